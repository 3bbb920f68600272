"""What makes all older rows of a table go: a TRUNCATE of the source, or a copy that takes the place of older rows.

Both come as rows with MergedOp.TRUNCATE, at most one for each source table that feeds the table. Where several do, it
concerns only rows that say its origin (model.version). Its version stays in `_lockstep_truncate`, as a tombstone of all
keys. A row that it removes has no say in the same write either: whatever the write has for its key replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_core.model.merged_columns import MergedOp
from cdc_core.model.version import origin_of
from cdc_core.mysql.connections import bytes_literal, quote, utf8_literal
from cdc_core.targets.bookkeeping.table_states import TRUNCATES
from cdc_core.targets.reading.table_facts import TableFacts
from cdc_core.targets.writing.guard_sql import newer_or_equal_sql, origin_is_sql, other_origin_sql


@dataclass(frozen=True, slots=True)
class Truncates:
    """versions: of the changes that make older rows go."""

    versions: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.versions)

    def removes_sql(self, version: str) -> str:
        """SQL: whether one of them removes a row with this version; never null."""
        return _any(
            f"({_of_one_table(truncate, version)} AND {_older(version, truncate)})" for truncate in self.versions
        )

    def passes_sql(self, version: str) -> str:
        """SQL: whether a row with this version says no origin, and is older than one of those that have one."""
        older = (_older(version, truncate) for truncate in self.versions if origin_of(truncate))
        return f"(NOT {origin_is_sql(version)} AND {_any(older)})"

    def refuses_sql(self, version: str) -> str:
        """SQL: whether a change with this version, which is not null, is older than one of them that concerns it."""
        return _any(
            f"(NOT {newer_or_equal_sql(version, truncate)} AND NOT {other_origin_sql(version, truncate)})"
            for truncate in map(bytes_literal, self.versions)
        )


def _of_one_table(truncate: bytes, version: str) -> str:
    """Without an origin, it concerns every row of the table: one source table feeds it."""
    origin = origin_of(truncate)
    return origin_is_sql(version, origin) if origin else "TRUE"


def _older(version: str, truncate: bytes) -> str:
    return newer_or_equal_sql(bytes_literal(truncate), version)


def _any(terms: Iterable[str]) -> str:
    found = list(terms)
    return f"({' OR '.join(found)})" if found else "FALSE"


def truncates_name(facts: TableFacts) -> str:
    return f"{quote(facts.database)}.{TRUNCATES}"


def truncates_of(cursor: Any, facts: TableFacts) -> Truncates:
    """The last ones that were applied to the table, by origin: tombstones of all of its keys."""
    cursor.execute(f"SELECT version FROM {truncates_name(facts)} WHERE table_name = {utf8_literal(facts.table)}")
    return Truncates(tuple(sorted(bytes(row[0]) for row in cursor.fetchall())))


def loaded_truncates(cursor: Any, loaded: str) -> Truncates:
    """The truncates among the loaded rows."""
    ops = f"'{MergedOp.TRUNCATE}', '{MergedOp.TRUNCATE_UNCOUNTED}'"
    cursor.execute(f"SELECT _v FROM {loaded} WHERE _o IN ({ops})")
    return Truncates(tuple(sorted({bytes(row[0]) for row in cursor.fetchall()})))


def keep_truncates(cursor: Any, facts: TableFacts, versions: Sequence[bytes]) -> None:
    """Leaves a tombstone of all keys, unless a newer one is there."""
    for truncate in versions:
        version = bytes_literal(truncate)
        cursor.execute(
            f"INSERT INTO {truncates_name(facts)} (table_name, origin, version) "
            f"VALUES ({utf8_literal(facts.table)}, {bytes_literal(origin_of(truncate))}, {version}) "
            f"ON DUPLICATE KEY UPDATE version = IF({newer_or_equal_sql(version, 'version')}, {version}, version)"
        )
