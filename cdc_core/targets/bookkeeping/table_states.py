"""Lockstep's own tables in the databases of a target: what they hold, how they are made, and how they are read.

    _lockstep_ledger     one row per run and table, written in the transaction of the rows; `number` counts the writes
                         of the table; 0 until a write in parts (parts.py) is whole
    _lockstep_table      one row per table: which rows it is for (placement.py), which stages may write to it
                         (ownership.py), the fence around it (fence.py), the indexes that are due (indexes.py)
    _lockstep_truncate   one row per table that was truncated or copied again, and per source table where several feed
                         it: a tombstone of all keys
    _lockstep_mark       for tables without a key: up to which batch of each source they have the changes
    _lockstep_gate       one row per table that Lockstep alone may write to (gates.py)

Two more are typed by the key of the table that they stand beside (prepare.py). A row of `_lockstep_table` is written
under the lock of its table (`tables_locked`), which also orders the writers of the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pymysql

from cdc_core.config import WAY_BACK_SUFFIX, MysqlTarget
from cdc_core.errors import TargetBusy
from cdc_core.model.version import ORIGIN_BYTES, VERSION_BYTES
from cdc_core.mysql.connections import quote, resolve
from cdc_core.mysql.server_errors import NO_TABLE, number_of
from cdc_core.targets.reading.sharding import PlacedTable, ShardTable, by_server, placed_tables
from cdc_core.targets.reading.target_faults import PRIVILEGES, denied, lacks, translating
from cdc_core.targets.writing.load import IDLE_S, altering_session, asking_session

LEDGER = "_lockstep_ledger"
STATES = "_lockstep_table"
TRUNCATES = "_lockstep_truncate"
MARKS = "_lockstep_mark"
GATES = "_lockstep_gate"

STAGES_CHARS = 1000
"""Enough for some fifty stages."""
NOTE_CHARS = 200
LOCK_WAIT_S = 2 * IDLE_S
"""A server frees the lock of a process that is stopped before another stops waiting for it."""
_IDLE_S = 30
"""After which a server frees the locks of a process that was stopped."""
_LOCKED_TOGETHER = 100

_TABLE = "table_name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
_NAME = "VARCHAR(48) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ''"
_TEXT = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
# Where pages have 4 KiB, a key has at most 768 bytes.
DEFINITIONS = {
    LEDGER: f"""
  run_id VARCHAR(250) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  {_TABLE},
  logical VARCHAR(128) {_TEXT} NOT NULL,
  written BIGINT NOT NULL,
  stale BIGINT NOT NULL,
  absent BIGINT NOT NULL,
  at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  number BIGINT NOT NULL,
  PRIMARY KEY (run_id, table_name),
  KEY (table_name, number)
""",
    STATES: f"""
  {_TABLE} PRIMARY KEY,
  placement MEDIUMTEXT {_TEXT},
  stages VARCHAR({STAGES_CHARS}) CHARACTER SET ascii NOT NULL DEFAULT '',
  fence VARCHAR({NOTE_CHARS}) {_TEXT},
  owner {_NAME},
  passes {_NAME},
  bars {_NAME},
  due MEDIUMTEXT {_TEXT}
""",
    TRUNCATES: f"""
  {_TABLE},
  origin VARBINARY({ORIGIN_BYTES}) NOT NULL DEFAULT '',
  version VARBINARY({VERSION_BYTES}) NOT NULL,
  PRIMARY KEY (table_name, origin)
""",
    MARKS: f"""
  {_TABLE},
  source VARBINARY(48) NOT NULL,
  seq BIGINT NOT NULL,
  PRIMARY KEY (table_name, source)
""",
    GATES: f"""
  {_TABLE} PRIMARY KEY,
  closed_by VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  pipeline {_NAME}
""",
}
OF_A_RUN = (LEDGER, STATES, TRUNCATES, MARKS)
"""The tables that a run needs."""


def create(cursor: Any, database: str, names: Collection[str]) -> None:
    """Creates those of the tables that are not there. A CREATE TABLE that finds its table waits for a backup, too."""
    cursor.execute(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s "
        f"AND TABLE_NAME IN ({', '.join(['%s'] * len(names))})",
        (database, *names),
    )
    there = {str(name) for (name,) in cursor.fetchall()}
    for name in names:
        if name not in there:
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {quote(database, name)} ({DEFINITIONS[name]}) ENGINE=InnoDB "
                "COMMENT='Lockstep: see docs/targets.md'"
            )


def read(
    cursor: Any, database: str, name: str, columns: str, where: str = "", arguments: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """Rows of one of the tables; none if it is not there, or its database. Raises Refused (connection.grant) for an
    account that may not read it."""
    try:
        cursor.execute(f"SELECT {columns} FROM {quote(database, name)}{where and f' WHERE {where}'}", arguments or None)
    except pymysql.err.MySQLError as error:
        if denied(error):
            raise lacks(cursor, database, PRIVILEGES, where=database) from None
        if number_of(error) not in NO_TABLE:
            raise
        return []
    return list(cursor.fetchall())


ALL = "*"


@dataclass(frozen=True, slots=True)
class Fence:
    """note: why it is there. owner: whose it is; "" for nobody's. passes: the pipeline that it lets through; "" for
    none, ALL for all. bars: a pipeline that it keeps out nevertheless, until a cutover lets it in; "" for none."""

    note: str
    owner: str
    passes: str = ""
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


IndexParts = tuple[tuple[str, int | None, bool], ...]
"""The columns of an index in lower case, with prefix, and whether they descend."""


@dataclass(frozen=True, slots=True)
class DueIndex:
    """sql: as SHOW CREATE TABLE has it, which ADD takes. alone: no index that stayed has the same columns."""

    name: str
    parts: IndexParts
    sql: str
    alone: bool


@dataclass(frozen=True, slots=True)
class TableState:
    """What is noted of a table. placement: for which rows it was written; None if it never was. stages: that may write
    to it. fence: None if there is none. due: the indexes that are; () if some may be, later; None if they are not."""

    placement: str | None = None
    stages: tuple[str, ...] = ()
    fence: Fence | None = None
    due: tuple[DueIndex, ...] | None = None


NOTHING = TableState()
_COLUMNS = ("placement", "stages", "fence", "owner", "passes", "bars", "due")


def states_in(cursor: Any, database: str, *tables: str) -> dict[str, TableState]:
    """What is noted of the tables of a database, or of some of them. Raises as `read`."""
    where = f"table_name IN ({', '.join(['%s'] * len(tables))})" if tables else ""
    rows = read(cursor, database, STATES, ", ".join(("table_name", *_COLUMNS)), where, tables)
    return {str(table): _state(*columns) for table, *columns in rows}


def _state(placement: str | None, stages: str, note: str | None, *others: Any) -> TableState:
    *fence, due = others
    return TableState(
        placement,
        tuple(stages.split()),
        None if note is None else Fence(note, *fence),
        None if due is None else tuple(_index(**index) for index in json.loads(due)),
    )


def _index(name: str, parts: Sequence[Sequence[Any]], sql: str, alone: bool) -> DueIndex:
    return DueIndex(name, tuple((column, prefix, descending) for column, prefix, descending in parts), sql, alone)


def note(cursor: Any, database: str, table: str, before: TableState | None, after: TableState) -> None:
    """Under the lock of the table. before: None if it has no row; an UPDATE that finds none, and an INSERT that finds
    one, would also lock the place of other tables' rows."""
    fence = after.fence or Fence("", "")
    due = None if after.due is None else json.dumps([asdict(index) for index in after.due], ensure_ascii=False)
    values = (
        after.placement,
        " ".join(after.stages),
        after.fence and fence.note,
        fence.owner,
        fence.passes,
        fence.bars,
        due,
    )
    if before is None:
        marks = ", ".join(["%s"] * (len(_COLUMNS) + 1))
        cursor.execute(
            f"INSERT INTO {quote(database, STATES)} ({', '.join(_COLUMNS)}, table_name) VALUES ({marks})",
            (*values, table),
        )
    else:
        cursor.execute(
            f"UPDATE {quote(database, STATES)} SET {', '.join(f'{name} = %s' for name in _COLUMNS)} "
            "WHERE table_name = %s",
            (*values, table),
        )


PlacedState = tuple[str, ShardTable, TableState]
"""A logical table, one of its physical tables, and what is noted of that."""


def states(target: MysqlTarget, logical: Collection[str]) -> list[PlacedState]:
    """The states of the physical tables of the logical ones. Raises what connections.connect raises, and what
    target_faults makes of the servers' errors."""
    placed_states: list[PlacedState] = []
    for reference, tables in by_server(target, placed_tables(target, logical)):
        with asking_session(resolve(reference), reference) as connection, connection.cursor() as cursor:
            states_of = {database: states_in(cursor, database) for database in {place.database for _, place in tables}}
        placed_states += [(name, place, states_of[place.database].get(place.table, NOTHING)) for name, place in tables]
    return placed_states


def change_states(
    target: MysqlTarget, logical: Collection[str], change: Callable[[str, ShardTable, TableState], TableState | None]
) -> Iterator[PlacedState]:
    """Notes for each physical table what `change` makes of its state, while nobody writes to it; None: no change.
    Yields each with its state afterwards. Safe to repeat. Raises RetryLater (target.busy) when a write to a table does
    not end, and as `states`."""
    with closing(alone(target, logical)) as places:
        for cursor, database, tables in places:
            with translating(database):
                states_of = states_in(cursor, database)
                changes = [
                    (name, place, change(name, place, states_of.get(place.table, NOTHING))) for name, place in tables
                ]
                if any(after is not None for _, _, after in changes):
                    create(cursor, database, (STATES,))
                for name, place, after in changes:
                    before = states_of.get(place.table)
                    if after is not None:
                        note(cursor, database, place.table, before, after)
                    yield name, place, after or before or NOTHING


def alone(target: MysqlTarget, logical: Collection[str]) -> Generator[tuple[Any, str, list[PlacedTable]]]:
    """The tables of one database after the other, while nobody else writes to them: a cursor, the database, and the
    tables with their logical names. To be closed, which ends the session and its locks."""
    for reference, tables in by_server(target, placed_tables(target, logical)):
        with altering_session(resolve(reference), reference) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION wait_timeout = {_IDLE_S}")
            for database in dict.fromkeys(place.database for _, place in tables):
                mine = [(name, place) for name, place in tables if place.database == database]
                for at in range(0, len(mine), _LOCKED_TOGETHER):
                    some = mine[at : at + _LOCKED_TOGETHER]
                    with tables_locked(cursor, [place.name for _, place in some]):
                        yield cursor, database, some


def lock_table(cursor: Any, table: str) -> str:
    """Takes the lock by which runs that write to a table take turns; its name. table: `database.table`. Raises
    RetryLater (target.busy)."""
    return lock_tables(cursor, [table])[0]


def lock_tables(cursor: Any, tables: Sequence[str], *, wait_s: int = LOCK_WAIT_S) -> list[str]:
    """As lock_table, of several at once. A run that writes has one of them only, so that nobody waits for another."""
    names = ["lockstep:" + hashlib.sha256(table.encode()).hexdigest()[:40] for table in tables]
    cursor.execute(f"SELECT {', '.join([f'GET_LOCK(%s, {wait_s})'] * len(names))}", names)
    row = cursor.fetchone()
    for table, got in zip(tables, row or [0], strict=False):
        if got != 1:
            _unlock(cursor, names)
            raise TargetBusy(
                f"Another run has been writing to this table for more than {wait_s} s."
                if wait_s
                else "Another run is writing to this table.",
                where=table,
                remedy="wait for that run, or end it; then run this task again",
            )
    return names


@contextmanager
def tables_locked(cursor: Any, tables: Sequence[str], *, wait_s: int = LOCK_WAIT_S) -> Iterator[None]:
    """The locks of `lock_tables` for the block."""
    names = lock_tables(cursor, tables, wait_s=wait_s)
    try:
        yield
    finally:
        _unlock(cursor, names)


def _unlock(cursor: Any, names: Sequence[str]) -> None:
    cursor.execute(f"DO {', '.join(['RELEASE_LOCK(%s)'] * len(names))}", names)
