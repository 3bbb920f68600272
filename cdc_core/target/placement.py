"""Which rows a table of a target is for, kept in the target itself: `_lockstep_layout`, in the database of the table.

The first write to a table notes its shard and the layout; every later one requires the same, in its own transaction and
under the lock of the table (prepare.lock_table). Meta keeps the layouts as well, and refuses a run sooner; but meta can
be lost, and is then rebuilt from the stage, which knows nothing of shards. A run under another sharding would otherwise
write rows to other tables than those that have them, and no error would tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql

from cdc_core.config import Target
from cdc_core.connections import quote, resolve
from cdc_core.errors import DataAtRisk
from cdc_core.server_errors import NO_TABLE, number_of
from cdc_core.target.load import altering_session
from cdc_core.target.prepare import LAYOUTS, tables_locked
from cdc_core.target.sharding import ShardTable, shard_tables


@dataclass(frozen=True, slots=True)
class PlacedTable:
    """A table of a target. noted: for which rows it was written; None if nothing tells. wanted: what the rules say."""

    logical: str
    name: str
    noted: str | None
    wanted: str


@dataclass(frozen=True, slots=True)
class Noted:
    """What is noted of a table. stages: see ownership.py."""

    placement: str
    stages: tuple[str, ...] = ()


def noted_in(cursor: Any, database: str) -> dict[str, Noted]:
    """What is noted of the tables of a database."""
    try:
        cursor.execute(f"SELECT table_name, placement, stages FROM {quote(database, LAYOUTS)}")
    except pymysql.err.MySQLError as error:
        if number_of(error) not in NO_TABLE:
            raise
        return {}
    return {str(table): Noted(str(placement), tuple(stages.split())) for table, placement, stages in cursor.fetchall()}


def keep_placement(cursor: Any, database: str, table: str, placement: str) -> None:
    """In a transaction that writes to the table, under its lock. Raises DataAtRisk (target.layout)."""
    layouts = quote(database, LAYOUTS)
    cursor.execute(f"SELECT placement FROM {layouts} WHERE table_name = %s", (table,))
    row = cursor.fetchone()
    if row is None:
        cursor.execute(f"INSERT INTO {layouts} (table_name, placement) VALUES (%s, %s)", (table, placement))
    elif row[0] != placement:
        raise misplaced(f"{database}.{table}", str(row[0]), placement)


def misplaced(name: str, noted: str, wanted: str) -> DataAtRisk:
    return DataAtRisk(
        f"The table was written as {noted}, and would now be written as {wanted}: rows would stay in the wrong "
        "place, beside their newer versions.",
        where=name,
        code="target.layout",
        remedy="restore the former sharding and names; or give the target a new name and new tables (`lockstep "
        "reshard`); or, if every row already is where it belongs, `lockstep target layout PIPELINE --accept TABLE`",
    )


def placements(target: Target, logical: Sequence[str]) -> list[PlacedTable]:
    """The physical tables of the logical ones. Raises what connections.connect raises, and what target.faults makes of
    the servers' errors."""
    found = []
    for cursor, tables in _by_server(target, logical):
        noted = {database: noted_in(cursor, database) for database in {place.database for _, place in tables}}
        for name, place in tables:
            one = noted[place.database].get(place.table)
            found.append(PlacedTable(name, place.name, one.placement if one else None, place.placement))
    return found


def accept_placements(target: Target, logical: Sequence[str], told: Callable[[str], None] = lambda one: None) -> None:
    """From now on every row of these tables is where the rules have it. Tables that were never written are left out.
    Safe to repeat. Raises as `placements`, and RetryLater (target.busy)."""
    for cursor, tables in _by_server(target, logical):
        for _, place in tables:
            noted = noted_in(cursor, place.database).get(place.table)
            if noted is not None and noted.placement != place.placement:
                with tables_locked(cursor, [place.name]):
                    cursor.execute(
                        f"UPDATE {quote(place.database, LAYOUTS)} SET placement = %s WHERE table_name = %s",
                        (place.placement, place.table),
                    )
                told(place.name)


def _by_server(target: Target, logical: Sequence[str]) -> Iterator[tuple[Any, list[tuple[str, ShardTable]]]]:
    places = [(name, place) for name in logical for place in shard_tables(target, name)]
    for number, reference in enumerate(target.connections):
        mine = [(name, place) for name, place in places if place.connection == number]
        if mine:
            with _cursor(reference) as cursor:
                yield cursor, mine


@contextmanager
def _cursor(reference: str) -> Iterator[Any]:
    with altering_session(resolve(reference), reference) as connection, connection.cursor() as cursor:
        yield cursor
