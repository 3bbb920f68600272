"""Gates: triggers by which every write to a table fails, except Lockstep's own.

If an application that was switched still writes to an old table from some forgotten place, it gets an error, and loses
no rows. A table has three: for INSERT, UPDATE and DELETE. Sessions that set `@lockstep_writes` pass (load.py sets
it). TRUNCATE and DDL pass as well: they fire no trigger.

The triggers are created while everybody writes. They read a row of `_lockstep_gate`, in the database of the table: the
gate is closed while the row names somebody who has closed it. So an UPDATE closes or opens a gate, and waits for no
metadata lock: no backup, dump or long transaction keeps an application from writing again. FLUSH TABLES WITH READ LOCK
does, but it stops the application's own writes as well.

    a locking read      makes a transaction with an old snapshot see a gate that was closed since. The transaction holds
                        the lock until it ends: a gate closes once all transactions that have passed it have ended, and
                        opens once all that it has refused have ended. The read begins no snapshot in the transaction
    AFTER               because MariaDB refuses several rows by one `INSERT (...) SELECT`, with 1048, if a table has a
                        BEFORE trigger. IGNORE and REPLACE do not pass. A duplicate key is reported first, and changes
                        nothing; a table without transactions keeps the row of a statement that was refused

(measured on MySQL 9.7 and MariaDB 11.4). A gate costs the application some 25 µs for each row that it writes.

`closed_by` has a token of each process that has closed the gate. So a process that was paused, and undoes its work
late, does not open the gates of the process that continued without it.

The row stays when the triggers go: a table of that name that was swapped for another one, by RENAME, has none, and
takes writes that are lost. `lost_gates` finds it.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql

from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater
from cdc_core.model.readable import counted, some_of
from cdc_core.mysql.connections import SafeConnection, quote, resolve
from cdc_core.mysql.server_errors import LOCKED, number_of
from cdc_core.mysql.session_settings import OWN_WRITES
from cdc_core.targets.bookkeeping.table_states import GATES, create, read
from cdc_core.targets.reading.target_faults import translated
from cdc_core.targets.writing.load import altering_session

PREFIX = f"{GATES}_"
EVENTS = ("insert", "update", "delete")
_WAIT_S = 2
"""For how long those who write to a table queue behind the request for one of its triggers."""
BINLOG_PRIVILEGE = 1419
"""The error of an account that may create triggers only where no log is written."""
_EXISTS = 1359
_BODY = f"""
BEGIN
  DECLARE said VARCHAR(128) CHARACTER SET utf8mb4;
  IF {OWN_WRITES} IS NULL THEN
    SET said = (SELECT IF(closed_by = '', NULL, CONCAT('moved by Lockstep (', pipeline, '): write to the new tables'))
                FROM {{gates}} WHERE {{row}} LOCK IN SHARE MODE);
    IF said IS NOT NULL THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = said; END IF;
  END IF;
END
"""

Table = tuple[str, str]
"""Database and name."""
Places = Mapping[str, Sequence[Table]]
"""Tables by server, as the pipeline file names it."""


@dataclass(frozen=True, slots=True)
class Gate:
    """closed_by: tokens. pipeline: which has closed it last. events: those that a trigger is there for."""

    table: str
    closed_by: frozenset[str]
    pipeline: str
    events: frozenset[str]

    @property
    def closed(self) -> bool:
        return bool(self.closed_by) and self.events >= set(EVENTS)


def make_gates(places: Places, patience_s: float = 0.0) -> None:
    """Makes the triggers that tables lack; gates are open until somebody closes them. patience_s: how long transactions
    that use a table are waited for.

    Raises Refused (connection.grant), RetryLater (cutover.locked), and target_faults' errors.
    """
    end_s = time.monotonic() + patience_s
    for reference, tables in places.items():
        with _session(reference) as session, session.cursor() as cursor:
            for database, some in _by_database(tables).items():
                if not some <= _rows(cursor, database).keys():
                    create(cursor, database, (GATES,))
                    cursor.executemany(
                        f"INSERT IGNORE INTO {quote(database, GATES)} (table_name) VALUES (%s)",
                        [(table,) for table in some],
                    )
            there = _triggers(cursor, tables)
            for place in tables:
                for event in sorted(set(EVENTS) - there.get(place, {}).keys()):
                    _create(session, place, event, end_s)


def _create(session: SafeConnection, place: Table, event: str, end_s: float) -> None:
    """end_s: when a table that is in use is given up, by time.monotonic."""
    name = _name(place[1], event)
    body = _BODY.format(gates=quote(place[0], GATES), row=_row_of(session, place[1]))
    while True:
        try:
            with session.cursor() as cursor:
                cursor.execute(
                    f"CREATE TRIGGER {quote(place[0], name)} AFTER {event.upper()} ON {quote(*place)} "
                    f"FOR EACH ROW {body}"
                )
            return
        except pymysql.err.MySQLError as error:
            if number_of(error) == _EXISTS:  # of a table that had the name before
                name = f"{PREFIX}{secrets.token_hex(12)}_{event}"
            elif number_of(error) != 1205 or time.monotonic() >= end_s:
                raise
            else:
                time.sleep(random.uniform(0.2, 0.4))  # those who have queued for the table go first


def close_gates(places: Places, pipeline: str, token: str) -> None:
    """No write passes from the return on. token: letters and digits. Safe to repeat. Raises as make_gates, which must
    have been called before."""
    change = "closed_by = CONCAT_WS(',', NULLIF(closed_by, ''), %s), pipeline = %s"
    _update(places, lambda tokens: token not in tokens, change, token, pipeline)


def open_gates(places: Places, *, token: str = "", sparing: Collection[str] = ()) -> None:
    """Lets everybody write again. token: opens only for whoever has closed with it. sparing: tokens that stay. Safe to
    repeat, also after half of it was done. Raises as make_gates."""
    change = "closed_by = TRIM(BOTH ',' FROM REPLACE(CONCAT(',', closed_by, ','), %s, ','))"
    for closer in [token] if token else {by for gate in gates_of(places) for by in gate.closed_by - set(sparing)}:
        _update(places, lambda tokens, closer=closer: closer in tokens, change, f",{closer},")  # type: ignore[misc]


def _update(places: Places, among: Callable[[frozenset[str]], bool], change: str, *arguments: str) -> None:
    """Changes rows with these tokens, and locks no others: who writes to their tables may do so for a long time."""
    for reference, tables in places.items():
        with _session(reference) as session, session.cursor() as cursor:
            for database, some in _by_database(tables).items():
                names = [
                    name for name, (tokens, _) in _rows(cursor, database).items() if name in some and among(tokens)
                ]
                if names:
                    cursor.execute(
                        f"UPDATE {quote(database, GATES)} SET {change} "
                        f"WHERE table_name IN ({', '.join(['%s'] * len(names))})",
                        [*arguments, *names],
                    )


def drop_gates(places: Places) -> None:
    """Removes the triggers of gates that are open; of those that a transaction or a backup keeps, none. Safe to repeat.
    Raises as make_gates."""
    for reference, tables in places.items():
        with _session(reference) as session, session.cursor() as cursor:
            rows = {name: _rows(cursor, name) for name in _by_database(tables)}
            for (database, table), triggers in _triggers(cursor, tables).items():
                if not rows[database].get(table, (frozenset(), ""))[0]:
                    for name in triggers.values():
                        cursor.execute(f"DROP TRIGGER IF EXISTS {quote(database, name)}")


def gates_of(places: Places) -> list[Gate]:
    """The gates of the tables that are closed, or should be; of tables that are gone, none."""
    gates = []
    for reference, tables in places.items():
        with _session(reference) as session, session.cursor() as cursor:
            rows = {
                (database, table): row
                for database, some in _by_database(tables).items()
                for table, row in _rows(cursor, database).items()
                if row[0] and table in some
            }
            triggers = _triggers(cursor, list(rows)) if rows else {}
            gates += [Gate(".".join(place), *rows[place], frozenset(events)) for place, events in triggers.items()]
    return gates


def gated_tables(places: Places) -> frozenset[str]:
    """The tables, `database.table`, that somebody has closed, whether writes get through or not."""
    return frozenset(gate.table for gate in gates_of(places))


def lost_gates(places: Places) -> DataAtRisk | None:
    """What is wrong where tables that an application has left take writes again (cutover.gates_gone)."""
    lost = [gate for gate in gates_of(places) if not gate.closed]
    if not lost:
        return None
    names = some_of(sorted(gate.table for gate in lost), 3)
    return DataAtRisk(
        f"A cutover has led the application away from {names}, and nothing keeps writes out of them: the gates were "
        "dropped, or a table was swapped for another one. Writes there are lost.",
        where=", ".join(places),
        code="cutover.gates_gone",
        remedy=f"`lockstep cutover resume {lost[0].pipeline}` closes the gates again; then verify the pipeline that "
        "writes to these tables, which names the rows written meanwhile. If the application is meant to write "
        f"there, and no cutover is open, delete the rows of these tables from {GATES}",
    )


def require_gates(places: Places) -> None:
    """Raises DataAtRisk (cutover.gates_gone)."""
    error = lost_gates(places)
    if error is not None:
        raise error


def require_not_left(places: Places, *, but: str = "") -> None:
    """Whatever equals tables with gates lacks what the application writes to the tables that it was led to.

    but: a token whose gates do not count. Raises Refused (cutover.left_before), and target_faults' errors.
    """
    gated = sorted(gate.table for gate in gates_of(places) if gate.closed_by - {but})
    if gated:
        raise Refused(
            f"The application would be led away from {counted(len(gated), 'table')} with closed gates: "
            f"{', '.join(gated[:3])}{', ...' if len(gated) > 3 else ''}. An earlier cutover has led it to other "
            "tables, and its writes there would be left behind.",
            where=", ".join(places),
            code="cutover.left_before",
            remedy="nothing was switched. See where the application writes (`lockstep cutover status` of each pipeline "
            "that has these tables), and switch it from there, forward or back. If it writes to these tables, the "
            "gates are left from a cutover that was rolled back: `lockstep cutover abort PIPELINE` opens them; if a "
            "cutover is open, give that command twice",
        )


def _by_database(tables: Sequence[Table]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for database, table in tables:
        found.setdefault(database, set()).add(table)
    return found


def _rows(cursor: Any, database: str) -> dict[str, tuple[frozenset[str], str]]:
    """The tokens that have closed each table, and the pipeline."""
    return {
        str(table): (frozenset(filter(None, str(closed_by).split(","))), str(pipeline))
        for table, closed_by, pipeline in read(cursor, database, GATES, "table_name, closed_by, pipeline")
    }


def _row_of(session: Any, table: str) -> str:
    return f"table_name = {session.escape(table)}"


def _triggers(cursor: Any, tables: Sequence[Table]) -> dict[Table, dict[str, str]]:
    """The triggers of gates by event, for each table that is there. One that came with a table that had another name
    reads another row, and is none."""
    databases = sorted({database for database, _ in tables})
    among = f"IN ({', '.join(['%s'] * len(databases))})"
    cursor.execute(
        f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA {among}", databases
    )
    there = {(str(database), str(table)) for database, table in cursor.fetchall()}
    triggers: dict[Table, dict[str, str]] = {place: {} for place in tables if place in there}
    cursor.execute(
        "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, TRIGGER_NAME, EVENT_MANIPULATION, ACTION_STATEMENT "
        f"FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA {among}",
        databases,
    )
    for database, table, name, event, body in cursor.fetchall():
        place = (str(database), str(table))
        if place in triggers and str(name).startswith(PREFIX) and _row_of(cursor.connection, place[1]) in str(body):
            triggers[place][str(event).lower()] = str(name)
    return triggers


def _name(table: str, event: str) -> str:
    """At most 64 characters, as servers allow. MySQL compares names of triggers without case and accents, and those of
    tables with both."""
    name = f"{PREFIX}{table}_{event}"
    if len(name) <= 64 and table.isascii() and table == table.lower():
        return name
    return f"{PREFIX}{hashlib.sha256(table.encode()).hexdigest()[:24]}_{event}"


@contextmanager
def _session(reference: str) -> Iterator[SafeConnection]:
    with altering_session(resolve(reference), reference) as session:
        try:
            with session.cursor() as cursor:
                cursor.execute(f"SET SESSION lock_wait_timeout = {_WAIT_S}, innodb_lock_wait_timeout = {_WAIT_S}")
            yield session
        except pymysql.err.MySQLError as error:
            raise _explained(error, reference) from None


def _explained(error: pymysql.err.MySQLError, reference: str) -> LockstepError:
    number = number_of(error)
    if number == BINLOG_PRIVILEGE:
        return Refused(
            "The account may not create triggers while the server writes a binary log.",
            where=reference,
            code="connection.grant",
            remedy="nothing was switched. SET GLOBAL log_bin_trust_function_creators = ON; or grant SUPER to the "
            "account",
        )
    if number in LOCKED:
        return RetryLater(
            "Gates could not be created, closed or opened: a transaction uses a table, or has not ended after a gate "
            "refused it, or a backup keeps triggers from being created.",
            where=reference,
            code="cutover.locked",
            remedy="nothing was switched. End that transaction or backup, or wait for its end; then begin again",
        )
    return translated(error, where=reference)
