"""Suggestions for a pattern of `tables.include` that does not match any table of the source."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

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


def resembling(pattern: str, names: Iterable[str]) -> list[str]:
    """Names that the pattern matches in lower case, or whose end it matches; else those whose parts its own parts
    match, or resemble where they have no wildcards."""
    names = list(names)
    return [name for name in names if _matches_end(pattern, name)] or [name for name in names if _alike(pattern, name)]


def did_you_mean(pattern: str, names: Iterable[str]) -> list[str]:
    """Names that the pattern resembles; else those in which it is found."""
    names = list(names)
    flexible = re.compile(pattern, re.IGNORECASE)
    # A pattern that matches the empty string is found in every name.
    within = (name for name in names if (part := flexible.search(name)) and len(part[0]) > 2)
    return (resembling(pattern, names) or list(within))[:SHOWN]


def question(near: Sequence[str]) -> str:
    """`Did you mean ...?`, with the pattern to write; "" where no name is similar."""
    if not near:
        return ""
    return f"Did you mean {' or '.join(near)}? A pattern must match the whole name, such as '{re.escape(near[0])}'"


def _matches_end(pattern: str, name: str) -> bool:
    parts = name.split(".")
    return any(re.fullmatch(pattern, ".".join(parts[at:]), re.IGNORECASE) for at in range(len(parts)))


def _alike(pattern: str, name: str) -> bool:
    # Dots of a pattern that mean dots, or are meant to.
    parts, names = re.split(r"\\\.|\[\.\]|(?<![.\\])\.(?![*+?])", pattern), name.split(".")
    if parts[0] == ".*":  # which may stand for several
        parts, names = parts[1:], names[len(names) + 1 - len(parts) :]
    return 0 < len(parts) == len(names) and all(map(_part_alike, parts, names))


def _part_alike(part: str, name: str) -> bool:
    if re.search(r"[*+?\[(|{]", part) is None:
        text = part.replace("\\", "").lower()
        return difflib.SequenceMatcher(None, text, name.lower()).ratio() >= ALIKE
    with suppress(re.error):  # a part of a pattern need not be one
        return re.fullmatch(part, name, re.IGNORECASE) is not None
    return False
