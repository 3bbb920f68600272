"""The rows of a bulk write, from the temporary table into their table: each guarded once more, by the version that is
there at that moment. If the table rejects rows, the single ones are found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import pymysql

from cdc_core.model.version import VERSION_COLUMN
from cdc_core.mysql.server_errors import number_of
from cdc_core.targets.reading.table_facts import table_name, written_columns
from cdc_core.targets.reading.target_faults import is_row_error, known, reason
from cdc_core.targets.tables.target_keys import spelled_apart
from cdc_core.targets.tables.unique_keys import unique_conflict
from cdc_core.targets.writing.guard_sql import may_replace_sql
from cdc_core.targets.writing.load import IS_WRITTEN, MAX_UNFIT, TEMPORARY, LoadFile, rejected, target_name
from cdc_core.targets.writing.shard_write import ShardWrite
from cdc_core.targets.writing.target_truncates import Truncates
from cdc_core.targets.writing.versions import on_key

log = logging.getLogger(__name__)

_DUPLICATE = 1062


class RowCollision(Exception):
    """Another row holds a unique value of the batch: start again, carefully."""


class UnfitRows(Exception):
    """The table rejects these rows, by line number: start again without them."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{len(reasons)} rows")
        self.reasons = reasons


def upsert_rows(cursor: Any, write: ShardWrite, file: LoadFile, truncates: Truncates, *, careful: bool) -> None:
    """Writes the loaded rows that are to be written. careful: the rows were taken out, and none is there to be updated.

    Raises RowCollision, UnfitRows; DataAtRisk (target.unique_conflict, target.row_error)."""
    try:
        for statement in _upsert_sql(write, file, truncates, "", careful=careful):
            cursor.execute(statement)
    except pymysql.err.MySQLError as error:
        if number_of(error) == _DUPLICATE and not careful:
            raise RowCollision from None
        if not is_row_error(error):
            raise

        # The statement was undone, the transaction continues: find the rows that failed it, then undo everything.
        def execute(low: int, high: int) -> None:
            for statement in _upsert_sql(
                write, file, truncates, f"AND _l._n BETWEEN {low} AND {high}", careful=careful
            ):
                cursor.execute(statement)

        cursor.execute(f"SELECT MIN(_n), MAX(_n) FROM {TEMPORARY}")
        failing = failing_lines(execute, *map(int, cursor.fetchone()))
        found = dict(islice(failing, MAX_UNFIT + 1 if write.quarantine else 1))
        held = [line for line, cause in sorted(found.items()) if number_of(cause) == _DUPLICATE]
        if held and not careful:
            raise RowCollision from None  # which another error of all rows at once has hidden
        if held:
            raise unique_conflict(write.facts, _key_of(cursor, held[0]), found[held[0]]) from None
        if not found:
            # Every part was written, down to single rows. MariaDB refuses several rows by one INSERT (...) SELECT, with
            # 1048, if the table has a BEFORE INSERT trigger and a NOT NULL column without a default.
            log.warning("%s: written in parts, because all rows at once failed: %s", write.facts.name, reason(error))
            return
        if write.quarantine:
            raise UnfitRows({line: reason(cause) for line, cause in found.items()}) from error
        line = min(found)
        raise rejected(write.facts, _key_of(cursor, line), found[line]) from None


def _key_of(cursor: Any, line: int) -> bytes:
    cursor.execute(f"SELECT _k FROM {TEMPORARY} WHERE _n = %s", (line,))
    return bytes(cursor.fetchone()[0])


def _upsert_sql(write: ShardWrite, file: LoadFile, truncates: Truncates, extra: str, *, careful: bool) -> list[str]:
    """The version goes first: assignments run from left to right, so that each other column sees which row won.

    If the version is kept beside the row, nothing in the row would show that a unique value had led to another row:
    existing rows are updated by their key, the others inserted, and a unique value on another row is an error.
    """
    facts = write.facts
    if facts.beside:
        return _upsert_beside(write, file, extra)
    fresh = target_name(facts, write.freshness) if write.freshness else None
    names = [target_name(facts, name) for name in written_columns(facts, file.layout.columns)]
    keys = {target_name(facts, name) for name in file.layout.key}
    old = table_name(facts)
    insert = (
        f"INSERT INTO {old} ({', '.join([*names, VERSION_COLUMN])}) "
        f"SELECT {', '.join(f'_l.{name}' for name in names)}, _l._v FROM {TEMPORARY} _l WHERE {IS_WRITTEN} {extra}"
    )
    if careful:
        return [insert]
    version = f"{old}.{VERSION_COLUMN}"
    wins = may_replace_sql("_l._v", version, fresh=fresh and f"_l.{fresh}", old_fresh=fresh and f"{old}.{fresh}")
    if truncates:
        wins = f"({truncates.removes_sql(version)} OR {wins})"
    changes = [f"{version} = IF({wins}, _l._v, {version})"]
    changes += [
        f"{old}.{name} = IF({version} <=> _l._v, _l.{name}, {old}.{name})" for name in names if name not in keys
    ]
    if spelled_apart(facts, file.layout.key):
        # The key is spelled as written now, on the row that has it; another unique value may have led to another row.
        own = on_key(facts, file.layout.key, right=old)
        changes += [
            f"{old}.{name} = IF({version} <=> _l._v AND {own}, _l.{name}, {old}.{name})"
            for name in sorted(keys.intersection(names))
        ]
    return [f"{insert} ON DUPLICATE KEY UPDATE {', '.join(changes)}"]


def _upsert_beside(write: ShardWrite, file: LoadFile, extra: str) -> list[str]:
    facts, key = write.facts, file.layout.key
    written = written_columns(facts, file.layout.columns)
    names = [target_name(facts, name) for name in written]
    fixed = () if spelled_apart(facts, key) else key
    values = [target_name(facts, name) for name in written if name not in fixed]
    changes = ", ".join(f"r.{name} = _l.{name}" for name in values)
    chosen = f"{IS_WRITTEN} {extra}"
    table, same = table_name(facts), on_key(facts, key)
    update = f"UPDATE {TEMPORARY} _l STRAIGHT_JOIN {table} r ON {same} SET {changes} WHERE {chosen}"
    return [
        *([update] if changes else []),
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(f'_l.{name}' for name in names)} "
        f"FROM {TEMPORARY} _l LEFT JOIN {table} r ON {same} "
        # COALESCE, because servers find '0000-00-00' in a NOT NULL column by IS NULL.
        f"WHERE {chosen} AND COALESCE(r.{target_name(facts, key[0])}) IS NULL",
    ]


def failing_lines(
    execute: Callable[[int, int], object], low: int, high: int
) -> Iterator[tuple[int, pymysql.err.MySQLError]]:
    """Executes something for the lines from `low` to `high`, by halves of what the table rejects, down to single lines:
    those that it rejects alone, each with the error."""
    ranges = [(low, high)]
    while ranges:
        low, high = ranges.pop()
        try:
            execute(low, high)
        except pymysql.err.MySQLError as error:
            if known(error) and not is_row_error(error):
                raise
            middle = (low + high) // 2
            if low == high:
                yield low, error
            else:
                ranges += [(middle + 1, high), (low, middle)]
