"""MERGE tables (ENGINE=MRG_MyISAM): views over MyISAM tables that rows can be written through.

The log has such rows under the name of the MERGE table only. But it maps the united tables too, in the same statement
and without row events of their own. So a row event of a table that is a MERGE table now, or that is gone, while a
captured table with equal columns is mapped beside it, may have changed that one. A TRUNCATE maps nothing: the lists of
united tables are asked for when a stream opens, and followed through the log's statements.
It must keep true that no row of a captured table is changed through a MERGE table unnoticed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pymysql

from cdc_core.binlog.wire import WireCursor
from cdc_core.connections import answers, one_line, quote
from cdc_core.errors import LockstepError, NeverCaptured, Refused
from cdc_core.source.facts import as_text, query
from cdc_core.source.statements import Statement

log = logging.getLogger(__name__)

Name = tuple[str, str]

ENGINE = "MRG_MYISAM"
NO_ROWS_OF_ITS_OWN = "a MERGE table: it shows the rows of other tables, which change past it"


def merge_table(database: str, table: str) -> Refused:
    """Of a captured MERGE table: rows that are written to the united tables are not logged as rows of it."""
    return NeverCaptured(
        f"{database}.{table} is {NO_ROWS_OF_ITS_OWN}.",
        where=f"{database}.{table}",
        remedy="exclude the table (tables.exclude) and capture the tables that it unites",
    )


@answers("source")
def may_unite_tables(connection: pymysql.Connection, database: str, table: str) -> bool:
    """Whether it is a MERGE table now, or nobody can tell: it is gone, broken, or the account may not see it."""
    rows = query(
        connection,
        "SELECT ENGINE FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (database, table),
    )
    return not rows or as_text(rows[0][0] or "").upper() in (ENGINE, "")


@answers("source")
def united_tables(connection: pymysql.Connection) -> dict[Name, tuple[Name, ...]]:
    """Every MERGE table that the account sees, with the tables that it unites; not one that is broken."""
    found = {}
    for row in query(
        connection, f"SELECT TABLE_SCHEMA, TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE ENGINE = '{ENGINE}'"
    ):
        name = as_text(row[0]), as_text(row[1])
        try:
            found[name] = union_of(connection, *name)
        except (pymysql.err.MySQLError, Refused) as error:
            why = one_line(str(error))
            log.warning(
                "a TRUNCATE of the MERGE table %s will not be noticed: it cannot be read: %s", quote(*name), why
            )
    return found


def union_of(connection: pymysql.Connection, database: str, table: str) -> tuple[Name, ...]:
    """The tables that a MERGE table unites, by its definition."""
    text = as_text(query(connection, f"SHOW CREATE TABLE {quote(database, table)}")[0][1])
    listed = re.search(r"[ ]UNION=\(((?:`(?:[^`]|``)*`[.,]?)*)\)[^\n]*\Z", text)
    parts = [] if listed is None else re.findall(r"`((?:[^`]|``)*)`(\.?)", listed[1])
    found: list[Name] = []
    within = database
    for part, dot in parts:
        name = part.replace("``", "`")
        if dot:
            within = name
        else:
            found.append((within, name))
            within = database
    return tuple(found)


class MergeTables:
    """may_unite: see `may_unite_tables`. Keys are bodies of table maps from the names on."""

    def __init__(self, captures: Callable[[str, str], bool], may_unite: Callable[[str, str], bool]) -> None:
        self._captures = captures
        self._may_unite = may_unite
        self._unions: dict[Name, tuple[Name, ...]] = {}
        self._alike: dict[bytes, _Alike] = {}
        """Of tables with equal columns."""
        self._suspects: dict[bytes, tuple[Name, _Alike]] = {}
        """Maps of tables that may be MERGE tables."""

    def learn(self, unions: Mapping[Name, tuple[Name, ...]]) -> None:
        """What MERGE tables unite."""
        self._unions |= unions

    def meet(self, name: Name, key: bytes) -> bool:
        """A table map is met for the first time; whether `unites` has another answer to other maps now."""
        alike = self._alike.setdefault(_shape(key), _Alike())
        alike.keys.setdefault(name, set()).add(key)
        judged: Iterable[Name] = (name,)
        if name not in alike.captured and self._captures(*name):
            alike.captured.add(name)
            if len(alike.captured) <= 2:  # from the first on others may unite it, from the second on the first may
                judged = list(alike.keys)
        before = len(self._suspects)
        for one in judged:
            if alike.captured - {one} and self._is_suspect(one, alike):
                self._suspects |= dict.fromkeys(alike.keys[one], (one, alike))
        return len(self._suspects) > before

    def _is_suspect(self, name: Name, alike: _Alike) -> bool:
        if name not in alike.suspect:
            alike.suspect[name] = self._may_unite(*name)
        return alike.suspect[name]

    def unites(self, key: bytes) -> frozenset[Name]:
        """The captured tables that the table of this map may unite: those of them that its statement maps too."""
        if key not in self._suspects:
            return frozenset()
        name, alike = self._suspects[key]
        return frozenset(alike.captured - {name})

    def name_of(self, key: bytes) -> Name:
        """Of a map that `unites` has an answer to."""
        return self._suspects[key][0]

    def emptied_by(self, truncated: Iterable[Name]) -> tuple[Name, ...]:
        """The captured tables that a TRUNCATE of these empties."""
        united = (one for name in truncated for one in self._unions.get(name, ()))
        return tuple(dict.fromkeys(one for one in united if self._captures(*one)))

    def define(self, statement: Statement) -> None:
        """A statement defined tables."""
        names = statement.tables or ()
        if statement.verb == "RENAME TABLE":
            for old, new in zip(names[::2], names[1::2], strict=False):
                if old in self._unions:
                    self._unions[new] = self._unions.pop(old)
        elif statement.union is not None and names:
            self._unions[names[0]] = statement.union
        elif statement.like is not None and names and statement.like in self._unions:
            self._unions[names[0]] = self._unions[statement.like]
        elif statement.verb in ("DROP TABLE", "DROP DATABASE"):
            for name in list(self._unions):
                if name in names or name[0] == statement.database:
                    del self._unions[name]

    def forget(self, names: Iterable[Name] | None) -> set[bytes]:
        """After DDL of these tables, or of any (None): the table maps of which nothing is known now."""
        gone: set[bytes] = set()
        wanted = None if names is None else set(names)
        for alike in self._alike.values():
            for name in [one for one in alike.keys if wanted is None or one in wanted]:
                gone |= alike.keys.pop(name)
                alike.suspect.pop(name, None)
                alike.captured.discard(name)
        for key in gone:
            self._suspects.pop(key, None)
        return gone


@dataclass(slots=True)
class _Alike:
    """Tables with equal columns: the maps of each, those that are captured, and the answers about them."""

    keys: dict[Name, set[bytes]] = field(default_factory=dict)
    captured: set[Name] = field(default_factory=set)
    suspect: dict[Name, bool] = field(default_factory=dict)


def _shape(key: bytes) -> bytes:
    """Types and metadata of the columns."""
    read = WireCursor(key, "a table map", "")
    with suppress(LockstepError):
        read.zero_terminated(read.u8())
        read.zero_terminated(read.u8())
        types = read.take(read.lenenc())
        return bytes(types) + b"\0" + bytes(read.take(read.lenenc()))
    return key
