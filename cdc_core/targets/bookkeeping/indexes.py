"""Secondary indexes of a large first load: dropped before it, and built after it in one statement.

A server that loads rows into a table with indexes adds each row to each of them, at random places. Built from the rows
that are there, an index is sorted once (`python -m benchmarks.indexes` measures it).

The column `due` of the row that table_states.py has of the table says what is to be done, whoever does it:

    NULL   Lockstep has not made the table, or its indexes have waited once: they stay as they are
    []     Lockstep has made the table; its indexes may wait for the first load, if that is large
    [...]  the statements of indexes that are due: each was noted before any was dropped

So wherever a process is killed, the row says what the table lacks. The next process that prepares the table adds that,
and then forgets it: a job of any run (destination.py), `lockstep target create`, a cutover before it begins.
An index that is there by then, by its name or by its columns, is not added again.

Unique indexes never wait: they decide what is written. Neither do FULLTEXT and SPATIAL ones, nor those on expressions,
nor those of a table of which a foreign key needs one. No statement of Lockstep needs one of the others.
In the end the table is defined as before, to the letter: `lockstep ddl` compares the shards of a table by that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pymysql

from cdc_core.errors import LockstepError, Refused, RetryLater, TargetBusy
from cdc_core.mysql.connections import Server, quote, resolve
from cdc_core.mysql.server_errors import ErrorKind, kind_of, number_of
from cdc_core.targets.bookkeeping.table_states import (
    LOCK_WAIT_S,
    NOTHING,
    STATES,
    DueIndex,
    IndexParts,
    create,
    note,
    states_in,
    tables_locked,
)
from cdc_core.targets.reading.target_faults import denied, reason, translated, translating
from cdc_core.targets.tables.definition_sql import PlannedTable
from cdc_core.targets.tables.table_definition import IndexDefinition, TableDefinition, read_definitions
from cdc_core.targets.writing.load import IDLE_S, altering_session, asking_session

log = logging.getLogger(__name__)

LARGE_ROWS = 500_000
"""From so many rows of a shard on, its indexes wait. Fewer are loaded in seconds either way."""
AT_ONCE = 4
"""Sessions that build indexes of a target side by side."""
DROP_WAIT_S = 5
"""For the metadata lock of an empty table: if somebody has it, the indexes stay."""
BUILD_WAIT_S, BUILD_TRIES = 2, 20
"""For that of a table with rows, a second apart: if somebody has it each time, the indexes are still due. Queries of
the table that come meanwhile wait, too."""
END_WAIT_S = 60
"""For the same lock at the end of the statement. Without it, all that the statement has done is undone."""
SETTLE_WAIT_S = LOCK_WAIT_S
"""For a run that writes to the table, before a cutover."""
_BUILD_ATTEMPTS = 3
_DUPLICATE_NAME = 1061
_NO_SPACE = frozenset({1114, 1799, 1878})
"""For temporary files (tmpdir, innodb_tmpdir), or for the log of other sessions' writes during the statement."""


@dataclass(frozen=True, slots=True)
class IndexedTable:
    """A physical table. reference: as the pipeline file names its server."""

    server: Server
    reference: str
    database: str
    table: str

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


def note_made(cursor: Any, database: str, table: str, plan: PlannedTable) -> None:
    """Indexes of the table, which Lockstep has just made, may wait. The caller has the table's lock."""
    if any(not index.unique and index.sql.startswith("KEY ") for index in plan.indexes):
        create(cursor, database, (STATES,))
        _note_due(cursor, database, table, ())


def due_in(cursor: Any, database: str) -> dict[str, tuple[DueIndex, ...]]:
    """The indexes that are due in a database, by table."""
    return {table: state.due for table, state in states_in(cursor, database).items() if state.due}


def _due(cursor: Any, database: str, table: str) -> tuple[DueIndex, ...] | None:
    return states_in(cursor, database, table).get(table, NOTHING).due


def _note_due(cursor: Any, database: str, table: str, due: tuple[DueIndex, ...] | None) -> None:
    before = states_in(cursor, database, table).get(table)
    note(cursor, database, table, before, replace(before or NOTHING, due=due))


def postpone(connection: pymysql.Connection[Any], database: str, table: str) -> bool:
    """Drops the indexes that may wait, if Lockstep has made the table and it is empty; whether it did. The caller has
    the table's lock, and the session the settings of session_settings.WRITING.

    If the server refuses to drop them, they stay. Raises PyMySQL's errors, after which they may be due.
    """
    with connection.cursor() as cursor:
        if _due(cursor, database, table) != ():
            return False
        cursor.execute(f"SELECT EXISTS(SELECT 1 FROM {quote(database, table)})")
        filled = cursor.fetchone()[0]
        there = read_definitions(connection, database, [table]).get(table)
        if filled or there is None:
            return False
        due = _may_wait(cursor, there)
        if not due:
            return False
        _note_due(cursor, database, table, due)
        try:
            # With checks off, MariaDB drops an index that a foreign key needs, and takes no row into its child table.
            cursor.execute(f"SET SESSION foreign_key_checks = 1, lock_wait_timeout = {DROP_WAIT_S}")
            dropped = ", ".join(f"DROP INDEX {quote(index.name)}" for index in due)
            cursor.execute(f"ALTER TABLE {quote(database, table)} {dropped}")
        except pymysql.err.MySQLError as error:
            if kind_of(error) is ErrorKind.GONE:
                raise
            log.info("%s.%s: its indexes stay during the load: %s", database, table, reason(error))
            build(connection, database, table)
            return False
    log.info("%s.%s: %d indexes are built after the load", database, table, len(due))
    return True


def _may_wait(cursor: Any, there: TableDefinition) -> tuple[DueIndex, ...]:
    """In the order in which the table has them. None that is before one that stays and would be after it then: servers
    put unique indexes first, FULLTEXT ones and those on expressions last, but SPATIAL ones where they were added."""
    cursor.execute(f"SHOW CREATE TABLE {quote(there.database, there.table)}")
    # Not splitlines: a comment may have characters that it takes for line ends. Servers escape those that end a line.
    lines = [line.strip(" ").removesuffix(",") for line in str(cursor.fetchone()[1]).split("\n")]
    stays = [
        f"{index.kind} KEY {quote(index.name)} (" for index in there.indexes if index.kind not in ("BTREE", "FULLTEXT")
    ]
    last = max((at for at, line in enumerate(lines) if line.startswith(tuple(stays))), default=-1)
    # The server's own words, so that the index is what it was in everything that no view of it shows.
    may_wait = {
        f"KEY {quote(index.name)} (": index
        for index in there.indexes
        if not index.unique and index.kind == "BTREE" and all(part.column for part in index.parts)
    }
    found = [
        (may_wait[beginning], line)
        for line in lines[last + 1 :]
        for beginning in may_wait
        if line.startswith(beginning)
    ]
    names = {index.name for index, _ in found}
    stay = {_parts(index) for index in there.indexes if index.name not in names}
    return tuple(DueIndex(index.name, _parts(index), line, _parts(index) not in stay) for index, line in found)


def _parts(index: IndexDefinition) -> IndexParts:
    return tuple((part.column.lower(), part.prefix, part.descending) for part in index.parts)


def build(connection: pymysql.Connection[Any], database: str, table: str) -> None:
    """Adds the indexes that are due and not there, and notes that nothing is due, now or later. The caller has the
    table's lock. Raises Refused (target.definition), and PyMySQL's errors, after which they are still due."""
    with connection.cursor() as cursor:
        due = _due(cursor, database, table)
        if due is None:
            return
        for attempt in range(1, _BUILD_ATTEMPTS + 1):
            missing = _missing(due, read_definitions(connection, database, [table]).get(table))
            if not missing:
                break
            _await_readers(cursor, quote(database, table))
            try:
                _add(
                    cursor, f"ALTER TABLE {quote(database, table)} {', '.join(f'ADD {index.sql}' for index in missing)}"
                )
                log.info("%s.%s: %d indexes built", database, table, len(missing))
                break
            except pymysql.err.MySQLError as error:
                # Somebody has just added one.
                if number_of(error) != _DUPLICATE_NAME or attempt == _BUILD_ATTEMPTS:
                    raise _refusal(error, f"{database}.{table}") from None
        _note_due(cursor, database, table, None)


def _await_readers(cursor: Any, table: str) -> None:
    """Until a statement has had the metadata lock of the table. Raises PyMySQL's errors."""
    cursor.execute(f"SET SESSION lock_wait_timeout = {BUILD_WAIT_S}")
    for left in reversed(range(BUILD_TRIES)):
        try:
            # It takes the lock with which adding an index begins, and does nothing else: InnoDB has no such keys.
            cursor.execute(f"ALTER TABLE {table} ENABLE KEYS")
            break
        except pymysql.err.MySQLError as error:
            if kind_of(error) is not ErrorKind.BUSY or not left:
                raise
            time.sleep(1)
    cursor.execute(f"SET SESSION lock_wait_timeout = {END_WAIT_S}")


def _add(cursor: Any, statement: str) -> None:
    """A copy of the table needs no temporary files, in which indexes are sorted, nor a log of what others write."""
    try:
        cursor.execute(statement)
    except pymysql.err.MySQLError as error:
        if number_of(error) not in _NO_SPACE:
            raise
        log.warning("%s; indexes are built by a copy of the table", reason(error))
        cursor.execute(f"{statement}, ALGORITHM=COPY")


def _refusal(error: pymysql.err.MySQLError, table: str) -> Exception:
    """What to raise where the server adds no index: for one that it would never take, Refused."""
    if denied(error) or translated(error, where=table).retriable:
        return error
    return Refused(
        f"The server refuses indexes that the table had before its first load: {reason(error)}.",
        where=table,
        code="target.definition",
        remedy=f"the column due of {STATES} in its database has their definitions. Alter the table so that it takes "
        "them; or add an index of the same name in another form, and Lockstep leaves that one to you. Then run this "
        "again",
    )


def _missing(due: Sequence[DueIndex], there: TableDefinition | None) -> list[DueIndex]:
    """None of a table that was dropped."""
    if there is None:
        return []
    names = {index.name.lower(): index for index in there.indexes}
    known = {_parts(index) for index in there.indexes if index.kind == "BTREE" and not index.hidden}
    missing = []
    for index in due:
        gone = [column for column, _, _ in index.parts if column not in there.by_name]
        named = names.get(index.name.lower())
        if gone:
            log.warning("%s: its index %s is not built: the column %s is gone", there.name, index.name, gone[0])
        elif named is not None and _parts(named) != index.parts:
            log.warning("%s: its index is not built, since another one has its name: %s", there.name, index.sql)
        elif named is None and not (index.alone and index.parts in known):
            missing.append(index)
    return missing


def build_due(tables: Iterable[IndexedTable]) -> None:
    """As `build`, of several tables side by side. Where another session writes to a table, or holds its metadata lock,
    the indexes stay due. Raises Refused (target.definition) and what altering raises, of the first table, after all
    others are done."""
    listed = list(tables)
    if not listed:
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(listed)), thread_name_prefix="indexes") as pool:
        ahead = [pool.submit(_built_now_or_later, table) for table in listed]
    for future in ahead:
        future.result()


def _built_now_or_later(table: IndexedTable) -> None:
    try:
        with _alone(table) as connection:
            build(connection, table.database, table.table)
    except TargetBusy as error:
        log.warning("%s: its indexes are still due: %s", table.name, error.what)


@contextmanager
def _alone(table: IndexedTable, wait_s: int = 0) -> Iterator[pymysql.Connection[Any]]:
    """A session with the lock of the table. Raises RetryLater (target.busy) if another one keeps it for longer."""
    with altering_session(table.server, table.reference) as connection, connection.cursor() as cursor:
        # Of a process that is stopped, the lock must not keep everybody from writing.
        cursor.execute(f"SET SESSION wait_timeout = {IDLE_S}")
        with tables_locked(cursor, [table.name], wait_s=wait_s):
            yield connection


@contextmanager
def built_after(tables: Sequence[IndexedTable]) -> Iterator[None]:
    """Around the load of so many rows into these tables that their indexes should wait: those of tables that are empty,
    and that Lockstep has made, are dropped before the block and built after it, also if it ends with an error.

    Raises no error of its own: what cannot be dropped stays, and what cannot be built is due.
    """
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="indexes") as pool:
        may_be_due = list(pool.map(_postponed, tables))
    waiting = [table for table, due in zip(tables, may_be_due, strict=True) if due]
    try:
        yield
    except Exception:
        _built_quietly(waiting)
        raise
    _built_quietly(waiting)


def _postponed(table: IndexedTable) -> bool:
    """Whether indexes are due now, or may be."""
    try:
        with _alone(table) as connection:
            return postpone(connection, table.database, table.table)
    except LockstepError as error:
        log.info("%s: its indexes do not wait for the load: %s", table.name, error)
        return not isinstance(error, TargetBusy)


def _built_quietly(tables: Sequence[IndexedTable]) -> None:
    try:
        build_due(tables)
    except LockstepError as error:
        log.warning("indexes are still due: %s", error)


Places = Mapping[str, Sequence[tuple[str, str]]]
"""Physical tables, with their databases, by server: as the pipeline file names it."""


def with_due(places: Places, *, later: bool = False) -> list[IndexedTable]:
    """Those of the tables that have indexes that are due; later: or that may be. Raises what connecting raises, and
    what target_faults makes of the servers' errors."""
    indexed = []
    for reference, tables in places.items():
        server = resolve(reference)
        with asking_session(server, reference) as connection, connection.cursor() as cursor:
            states = {database: states_in(cursor, database) for database in dict(tables)}
        for database, table in tables:
            due = states[database].get(table, NOTHING).due
            if due or (later and due is not None):
                indexed.append(IndexedTable(server, reference, database, table))
    return indexed


def settle(places: Places) -> None:
    """Builds what is due in these tables, after which none of their indexes ever waits again. Raises RetryLater
    (target.busy), Refused (target.definition), and as `with_due`."""
    for table in with_due(places, later=True):
        with translating(table.name), _alone(table, SETTLE_WAIT_S) as connection:
            build(connection, table.database, table.table)


def indexes_due(table: str) -> RetryLater:
    return RetryLater(
        "Indexes of the table are due: they were dropped before its first load, and are built after it.",
        where=table,
        code="target.busy",
        remedy="the next run builds them, and `lockstep target create PIPELINE` does; then run this again",
    )
