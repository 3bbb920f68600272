"""Suggestions for a pattern of `tables.include` that does not match any table of the source."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

import pymysql

from cdc_core.mysql.connections import answers
from cdc_core.source.host.server_facts import as_text, query

SHOWN = 3
"""How many tables a message names."""
ALIKE = 0.75
"""difflib's ratio of two names of which one may be a misspelling of the other."""
_NAMES = """
SELECT TABLE_SCHEMA, TABLE_NAME FROM INFORMATION_SCHEMA.TABLES
 WHERE (TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') OR %s)
   AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'performance_schema', 'information_schema')
 ORDER BY TABLE_SCHEMA, TABLE_NAME
"""


@answers("source")
def table_names(connection: pymysql.Connection, *, every: bool = False) -> list[str]:
    """All `database.table` that the account may see. every: views and sequences, too."""
    return [".".join(as_text(name) for name in row) for row in query(connection, _NAMES, (every,))]


def did_you_mean(pattern: str, names: Iterable[str]) -> list[str]:
    """Names that the pattern matches in lower case, as a bare table name or as a part; else similar spellings."""
    names = list(names)
    flexible = re.compile(pattern, re.IGNORECASE)
    ways: tuple[Callable[[str], object], ...] = (
        flexible.fullmatch,
        lambda name: flexible.fullmatch(name.partition(".")[2]),
        # A pattern that matches the empty string is found in every name.
        lambda name: (found := flexible.search(name)) and len(found[0]) > 2,
        _alike(pattern),
    )
    for way in ways:
        if found := [name for name in names if way(name)]:
            return found[:SHOWN]
    return []


def question(pattern: str, names: Iterable[str]) -> str:
    """`Did you mean ...?`, with the pattern to write; "" where no name is similar."""
    near = did_you_mean(pattern, names)
    if not near:
        return ""
    return f"Did you mean {' or '.join(near)}? A pattern must match the whole name, such as '{re.escape(near[0])}'"


def parts_of(pattern: str, *, most: int = 0) -> list[str]:
    """The parts of a pattern between dots that mean dots, or are meant to. most: how many at most; 0: all."""
    return re.split(r"\\\.|\[\.\]|(?<![.\\])\.(?![*+?])", pattern, maxsplit=max(0, most - 1))


def _alike(pattern: str) -> Callable[[str], bool]:
    """Whether a name's database and table resemble the pattern's; a part with wildcards resembles every name."""
    parts = parts_of(pattern, most=2)
    if len(parts) != 2:
        return lambda name: False
    wanted = [part.replace("\\", "").lower() for part in parts]
    wild = [re.search(r"[*+?\[(|]", part) is not None for part in parts]
    if all(wild):
        return lambda name: False

    def like(name: str) -> bool:
        pairs = zip(wanted, wild, name.lower().partition(".")[::2], strict=True)
        return all(any_ or difflib.SequenceMatcher(None, one, other).ratio() >= ALIKE for one, any_, other in pairs)

    return like
