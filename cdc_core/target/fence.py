"""Fences keep Lockstep's writes out of tables of a target: those of a late run, a replay or a repair, too.

A fence is a row of `_lockstep_fence`, in the database of the table. A write looks for the row in its transaction, under
the lock by which the writers of a table take turns (prepare.lock_table). The row is added and removed under that lock,
too. So once a fence is raised, no write is under way, and none begins. The first fence of a database makes
`_lockstep_fence`: without it there has been none.

A fence has an owner: the cutovers between two pipelines, or nobody. Tables to which an application was led by one
cutover, and which it leaves by another, keep the fence of the first, so that what fed them before is still kept out. It
lets one pipeline through: the way back to them.

A fence may keep out one pipeline alone: the way back to tables from which no cutover has led the application away yet.

Reading the table, verifying it and altering it are not writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql

from cdc_core.config import WAY_BACK_SUFFIX, Target
from cdc_core.connections import quote, resolve
from cdc_core.errors import Refused, TargetFenced
from cdc_core.server_errors import NO_TABLE, number_of
from cdc_core.target.facts import TableFacts
from cdc_core.target.faults import denied, sees_nothing_of, translating
from cdc_core.target.load import altering_session
from cdc_core.target.prepare import tables_locked
from cdc_core.target.sharding import ShardTable, shard_tables

FENCES = "_lockstep_fence"
MAX_NOTE = 200

_NAME = "VARCHAR(48) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ''"
_CREATE = f"""
CREATE TABLE IF NOT EXISTS {{database}}.{FENCES} (
  table_name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
  note VARCHAR({MAX_NOTE}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  owner {_NAME},
  passes {_NAME},
  bars {_NAME}
) ENGINE=InnoDB COMMENT='Lockstep: tables that it does not write to'
"""


ALL = "*"


@dataclass(frozen=True, slots=True)
class Fence:
    """note: why it is there. owner: whose it is; "" for nobody's. passes: the pipeline that it lets through; "" for
    none. bars: a pipeline that it keeps out nevertheless, until a cutover lets it in; "" for none."""

    note: str
    owner: str
    passes: str
    bars: str = ""

    def keeps_out(self, pipeline: str) -> bool:
        return self.waits_for(pipeline) or self.passes not in (ALL, pipeline or None)

    def waits_for(self, pipeline: str) -> bool:
        """Whether a cutover will let it in."""
        return bool(self.bars) and self.bars == pipeline

    def lets_through(self, pipeline: str) -> bool:
        """It alone, though a cutover may still have to let it in."""
        return bool(self.passes) and self.passes == pipeline

    def will_let_through(self, pipeline: str) -> bool:
        """Whether it does once a cutover has let this way back in: the fence is of other cutovers, and stays."""
        return self.passes != ALL and self.owner not in ("", pipeline.removesuffix(WAY_BACK_SUFFIX))


@dataclass(frozen=True, slots=True)
class FencedTable:
    """A table of a target. note: of its fence, if there is one."""

    logical: str
    name: str
    note: str | None


Told = Callable[[FencedTable], None]
_translated = translating(f"fences ({FENCES})")
"""For functions that work with the connections of `alone` and `_by_server`: they raise errors outside of these."""


def require_no_fence(cursor: Any, facts: TableFacts, pipeline: str) -> None:
    """In a transaction in which the pipeline writes to the table, under its lock. Raises Refused (target.fenced)."""
    fence = fences_in(cursor, facts.database).get(facts.table)
    if fence is not None and fence.keeps_out(pipeline):
        raise fenced(facts.name, fence.note)


def fenced(table: str, note: str) -> Refused:
    return TargetFenced(
        f"There is a fence around the table: {note}.",
        where=table,
        remedy="nothing was written. If Lockstep is to write to this table again, and no application does, lower the "
        "fence (`lockstep target fence PIPELINE --lower`)",
    )


def fences_in(cursor: Any, database: str) -> dict[str, Fence]:
    """The fences in a database, by table."""
    return _read(cursor, database) or {}


def _read(cursor: Any, database: str) -> dict[str, Fence] | None:
    """None: the table of fences is not there."""
    try:
        cursor.execute(f"SELECT table_name, note, owner, passes, bars FROM {quote(database, FENCES)}")
    except pymysql.err.MySQLError as error:
        if denied(error):
            raise sees_nothing_of(cursor, database) from None
        if number_of(error) not in NO_TABLE:
            raise
        return None
    return {str(row[0]): Fence(*map(str, row[1:])) for row in cursor.fetchall()}


@_translated
def fences(target: Target, logical: Sequence[str]) -> list[FencedTable]:
    """The physical tables of the logical ones, and their fences. Raises what connections.connect raises, and what
    target.faults makes of the servers' errors."""
    found: list[FencedTable] = []
    for connection, tables in _by_server(target, logical):
        with connection.cursor() as cursor:
            here = {name: fences_in(cursor, name) for name in {place.database for _, place in tables}}
        found += [FencedTable(name, place.name, _note(here[place.database], place)) for name, place in tables]
    return found


@_translated
def let_through_by(target: Target, logical: Sequence[str], among: Callable[[ShardTable], bool]) -> set[str]:
    """The single pipelines that fences let through. among: which of the tables. Raises as fences."""
    found: set[str] = set()
    for connection, tables in _by_server(target, logical):
        with connection.cursor() as cursor:
            here = {name: fences_in(cursor, name) for name in {place.database for _, place in tables}}
        up = [here[place.database].get(place.table) for _, place in tables if among(place)]
        found |= {fence.passes for fence in up if fence is not None}
    return found - {"", ALL}


@_translated
def raise_fences(
    target: Target, logical: Sequence[str], note: str, told: Told = lambda one: None, *, owner: str = ""
) -> None:
    """Keeps Lockstep's writes out of all physical tables of the logical ones, from the return on. Safe to repeat, also
    after half of it was done; a fence that is up keeps its owner, and lets nobody through. It keeps its note, too,
    unless it has let a pipeline through.

    note: why, in up to MAX_NOTE characters. told: receives each table as it is fenced. Raises RetryLater (target.busy)
    when a write to a table does not end, and what `fences` raises.
    """
    for cursor, database, tables in alone(target, logical):
        _make(cursor, database)
        cursor.execute(
            f"INSERT INTO {quote(database, FENCES)} (table_name, note, owner) VALUES "
            + ", ".join(["(%s, %s, %s)"] * len(tables))
            + " ON DUPLICATE KEY UPDATE note = IF(passes = '', note, %s), passes = ''",
            [*(value for _, place in tables for value in (place.table, note[:MAX_NOTE], owner)), note[:MAX_NOTE]],
        )
        here = fences_in(cursor, database)
        for name, place in tables:
            told(FencedTable(name, place.name, _note(here, place)))


@_translated
def bar(target: Target, logical: Sequence[str], pipeline: str, note: str, owner: str) -> None:
    """Keeps one pipeline out of the tables until `admit` lets it in; other fences around them stay as they are. Safe to
    repeat. Raises as raise_fences."""
    for cursor, database, tables in alone(target, logical):
        _make(cursor, database)
        cursor.execute(
            f"INSERT INTO {quote(database, FENCES)} (table_name, note, owner, passes, bars) VALUES "
            + ", ".join(["(%s, %s, %s, %s, %s)"] * len(tables))
            + " ON DUPLICATE KEY UPDATE bars = %s",
            [
                *(value for _, place in tables for value in (place.table, note[:MAX_NOTE], owner, ALL, pipeline)),
                pipeline,
            ],
        )


@_translated
def lower_fences(target: Target, logical: Sequence[str], told: Told = lambda one: None) -> None:
    """Lets Lockstep write to the tables again. Safe to repeat. Raises as raise_fences."""
    for cursor, database, tables in alone(target, logical):
        up = [place.table for _, place in tables if place.table in fences_in(cursor, database)]
        if up:
            marks = ", ".join(["%s"] * len(up))
            cursor.execute(f"DELETE FROM {quote(database, FENCES)} WHERE table_name IN ({marks})", up)
        for name, place in tables:
            told(FencedTable(name, place.name, None))


@_translated
def let_through(
    target: Target,
    logical: Sequence[str],
    pipeline: str,
    owner: str,
    among: Callable[[ShardTable], bool] = lambda place: True,
) -> None:
    """Fences let a pipeline through, and no other. owner: of those that are nobody's. among: which of the tables. Safe
    to repeat. Raises as raise_fences."""
    for cursor, database, tables in alone(target, logical):
        here = fences_in(cursor, database)
        up = [place.table for _, place in tables if place.table in here and among(place)]
        if up:
            marks = ", ".join(["%s"] * len(up))
            cursor.execute(
                f"UPDATE {quote(database, FENCES)} SET passes = %s, owner = IF(owner = '', %s, owner) "
                f"WHERE table_name IN ({marks}) AND passes <> '{ALL}'",
                [pipeline, owner, *up],
            )


@_translated
def admit(target: Target, logical: Sequence[str], pipeline: str, owner: str, *, noted: str = "") -> None:
    """Lets a pipeline write to the tables again: fences that have this owner, or none, are lowered; the others, and
    those that bar another pipeline, let it through. noted: only fences with notes that begin so. Safe to repeat. Raises
    as raise_fences."""
    for cursor, database, tables in alone(target, logical):
        here = fences_in(cursor, database)
        up = [(place.table, here[place.table]) for _, place in tables if place.table in here]
        found = [(table, fence) for table, fence in up if fence.note.startswith(noted)]
        for table, fence in found:
            bars = "" if fence.bars == pipeline else fence.bars
            if fence.owner in ("", owner) and not bars:
                cursor.execute(f"DELETE FROM {quote(database, FENCES)} WHERE table_name = %s", (table,))
            else:
                cursor.execute(
                    f"UPDATE {quote(database, FENCES)} SET passes = %s, bars = %s WHERE table_name = %s",
                    (ALL if fence.passes == ALL else pipeline, bars, table),
                )


def _make(cursor: Any, database: str) -> None:
    if _read(cursor, database) is None:  # a statement that finds it waits for a backup, too
        cursor.execute(_CREATE.format(database=quote(database)))


def _note(fences: Mapping[str, Fence], place: ShardTable) -> str | None:
    fence = fences.get(place.table)
    return None if fence is None else fence.note


_AT_ONCE = 100
"""Tables whose locks are held together."""
_IDLE_S = 30
"""After which a server frees the locks of a process that was stopped."""


def alone(target: Target, logical: Sequence[str]) -> Iterator[tuple[Any, str, list[tuple[str, ShardTable]]]]:
    """The tables of one database after the other, while nobody else writes to them: a cursor, the database, and the
    tables with their logical names."""
    for connection, tables in _by_server(target, logical):
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION wait_timeout = {_IDLE_S}")
        for database in dict.fromkeys(place.database for _, place in tables):
            mine = [(name, place) for name, place in tables if place.database == database]
            for at in range(0, len(mine), _AT_ONCE):
                some = mine[at : at + _AT_ONCE]
                with connection.cursor() as cursor, tables_locked(cursor, [place.name for _, place in some]):
                    yield cursor, database, some


def _by_server(
    target: Target, logical: Sequence[str]
) -> Iterator[tuple[pymysql.Connection[Any], list[tuple[str, ShardTable]]]]:
    """The physical tables with a connection to their server."""
    places = [(name, place) for name in logical for place in shard_tables(target, name)]
    for number, reference in enumerate(target.connections):
        mine = [(name, place) for name, place in places if place.connection == number]
        if mine:
            with altering_session(resolve(reference), reference) as connection:
                yield connection, mine
