"""Gates: triggers by which every write to a table fails, except Lockstep's own.

An application that was switched, and still writes to an old table from some forgotten place, gets an error, and not
rows that are lost. A table has three: for INSERT, UPDATE and DELETE. Sessions that set `@lockstep_writes` pass
(target.load does). TRUNCATE and DDL pass as well: they fire no trigger. IGNORE, REPLACE and LOAD DATA LOCAL do not pass
(measured on MySQL 9.7 and MariaDB 11.4).

Names contain a token of whoever closes them, so that a process that was paused, and undoes late what it has made, does
not open the gates of the one that went on without it.

Where the table is locked for reading (locks.py), each gate waits in a session of its own for the exclusive lock, which
servers grant before the writes that queue for the table (measured on MySQL 9.7 and MariaDB 11.4): once the lock is
released, the gate closes before the first of them. The cutover looks at the log afterwards nevertheless.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pymysql

from cdc_core.connections import SafeConnection, quote, resolve
from cdc_core.cutover.locks import Places
from cdc_core.errors import LockstepError, Refused, RetryLater, of_all
from cdc_core.server_errors import number_of
from cdc_core.session import OWN_WRITES
from cdc_core.target.faults import translated
from cdc_core.target.load import altering_session
from cdc_core.words import counted

PREFIX = "_lockstep_gate_"
EVENTS = ("insert", "update", "delete")
_OPENERS = 4
"""Sessions of a server that open gates side by side."""
_WAIT_S = 5
_IDLE_S = 10
"""After which a server frees the table of a process that was stopped while it closed a gate."""
_SETTLED_S = 0.05
BINLOG_PRIVILEGE = 1419
"""The error of an account that may create triggers only where no log is written."""
_EXISTS = 1359
_MESSAGE = 128
"""Characters of a condition's message that servers keep."""


@contextmanager
def closing(
    places: Places, message: str, token: str, environ: Mapping[str, str] | None = None
) -> Iterator[Callable[[], None]]:
    """Requests the gates of all tables, which close as soon as the tables' locks allow; yields what waits for them.
    Each takes a session of its server: see locks.waves for many tables.

    message: the error that writes get. token: letters and digits.
    Raises what closing one raises: Refused (cutover.no_trigger), RetryLater (cutover.not_closed), and target.faults'
    errors.
    """
    tables = [(reference, *table) for reference, tables in places.items() for table in tables]
    waiting: list[Future[None]] = []
    at_the_lock = threading.Semaphore(0)
    with ThreadPoolExecutor(max(1, len(tables)), thread_name_prefix="gate") as pool:
        for reference, database, table in tables:
            named = {event: _name(table, event, token) for event in EVENTS}
            waiting.append(pool.submit(_close, reference, (database, table), named, message, environ, at_the_lock))
        for _ in tables:
            at_the_lock.acquire()
        time.sleep(_SETTLED_S)  # the requests are on their way

        def closed() -> None:
            errors = [error for one in waiting if (error := one.exception()) is not None]
            if errors:
                raise of_all(errors)

        yield closed


def _close(
    reference: str,
    place: tuple[str, str],
    named: Mapping[str, str],
    message: str,
    environ: Mapping[str, str] | None,
    about_to: threading.Semaphore,
) -> None:
    told = False
    try:
        with _session(reference, environ, ".".join(place)) as session, session.cursor() as cursor:
            # So that InnoDB's lock is waited for, too: an XA transaction that is prepared, and whose session is gone,
            # holds no other one on MariaDB (locks.py). It would be committed after the gate has closed.
            cursor.execute(f"SET SESSION autocommit = 0, wait_timeout = {_IDLE_S}")
            told = True
            about_to.release()
            cursor.execute(f"LOCK TABLES {quote(*place)} WRITE")
            for event, name in named.items():
                _create(session, place, event, name, message)
            cursor.execute("UNLOCK TABLES")
    finally:
        if not told:
            about_to.release()


def _create(session: SafeConnection, place: tuple[str, str], event: str, name: str, message: str) -> None:
    said = session.escape(message[:_MESSAGE])
    try:
        with session.cursor() as cursor:
            cursor.execute(
                f"CREATE TRIGGER {quote(place[0], name)} BEFORE {event.upper()} ON {quote(*place)} FOR EACH ROW "
                f"BEGIN IF {OWN_WRITES} IS NULL THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = {said}; END IF; END"
            )
    except pymysql.err.MySQLError as error:
        if number_of(error) != _EXISTS:
            raise


def open_gates(
    places: Places, environ: Mapping[str, str] | None = None, *, token: str = "", sparing: Collection[str] = ()
) -> None:
    """Lets everybody write again. token: opens only the gates that were closed with it. sparing: tokens whose gates
    stay closed. Safe to repeat, also after half of it was done. Raises target.faults' errors."""
    shares = [
        (reference, some)
        for reference, tables in places.items()
        for first in range(_OPENERS)
        if (some := tables[first::_OPENERS])
    ]
    with ThreadPoolExecutor(max(1, len(shares)), thread_name_prefix="gate") as pool:
        opened = [pool.submit(_open, reference, tables, token, sparing, environ) for reference, tables in shares]
    errors = [error for one in opened if (error := one.exception()) is not None]
    if errors:
        raise of_all(errors)


def _open(
    reference: str,
    tables: Sequence[tuple[str, str]],
    token: str,
    sparing: Collection[str],
    environ: Mapping[str, str] | None,
) -> None:
    with _session(reference, environ, reference) as session, session.cursor() as cursor:
        for gates in _gates(cursor, tables).values():
            for database, name, _ in gates:
                if name.startswith(PREFIX + token) and not _is_of(name, sparing):
                    cursor.execute(f"DROP TRIGGER IF EXISTS {quote(database, name)}")


def closed_gates(places: Places, environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """The tables, `database.table`, that have all of their gates."""
    return frozenset(name for name, events in _events(places, environ).items() if events >= set(EVENTS))


def gated_tables(places: Places, environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """The tables, `database.table`, that have a gate, if only for some events."""
    return frozenset(_events(places, environ))


def require_not_left(places: Places, environ: Mapping[str, str] | None = None, *, but: str = "") -> None:
    """Whatever equals tables with gates lacks what the application writes to the tables that it was led to.

    but: a token whose gates do not count. Raises Refused (cutover.left_before), and target.faults' errors.
    """
    gated = sorted(_events(places, environ, [but] if but else []))
    if gated:
        raise Refused(
            f"Gates keep the application from writing to {counted(len(gated), 'table')} that it would be led away "
            f"from: {', '.join(gated[:3])}{', ...' if len(gated) > 3 else ''}. A cutover has led it to other tables "
            "before, and what it writes there would be left behind.",
            where=", ".join(places),
            code="cutover.left_before",
            remedy="nothing was switched. See where the application writes (`lockstep cutover status` of each pipeline "
            "that has these tables), and lead it on, or back, from there. If it writes to these tables, the gates are "
            "of a cutover that was rolled back: `lockstep cutover abort PIPELINE` opens them; give it twice if a "
            "cutover is open",
        )


def _events(places: Places, environ: Mapping[str, str] | None, but: Collection[str] = ()) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for reference, tables in places.items():
        with _session(reference, environ, reference) as session, session.cursor() as cursor:
            for (database, table), gates in _gates(cursor, tables).items():
                events = {event for _, name, event in gates if not _is_of(name, but)}
                if events:
                    found[f"{database}.{table}"] = events
    return found


def _is_of(name: str, tokens: Collection[str]) -> bool:
    """Whether a gate was closed with one of these tokens."""
    return any(name.startswith(f"{PREFIX}{token}_") for token in tokens)


def _gates(cursor: Any, tables: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[tuple[str, str, str]]]:
    """By table that has some: database, name and event of its gates."""
    databases = sorted({database for database, _ in tables})
    cursor.execute(
        "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, TRIGGER_SCHEMA, TRIGGER_NAME, EVENT_MANIPULATION "
        f"FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA IN ({', '.join(['%s'] * len(databases))})",
        databases,
    )
    wanted = set(tables)
    found: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for database, table, schema, name, event in cursor.fetchall():
        if (str(database), str(table)) in wanted and str(name).startswith(PREFIX):
            found.setdefault((str(database), str(table)), []).append((str(schema), str(name), str(event).lower()))
    return found


def _name(table: str, event: str, token: str) -> str:
    """At most 64 characters, as servers allow. MySQL compares names of triggers without case and accents, and those of
    tables with both."""
    name = f"{PREFIX}{token}_{table}_{event}"
    if len(name) <= 64 and table.isascii() and table == table.lower():
        return name
    return f"{PREFIX}{token}_{hashlib.sha256(table.encode()).hexdigest()[:24]}_{event}"


@contextmanager
def _session(reference: str, environ: Mapping[str, str] | None, where: str) -> Iterator[SafeConnection]:
    with altering_session(resolve(reference, environ), reference) as session:
        try:
            with session.cursor() as cursor:
                cursor.execute(f"SET SESSION lock_wait_timeout = {_WAIT_S}, innodb_lock_wait_timeout = {_WAIT_S}")
            yield session
        except pymysql.err.MySQLError as error:
            raise _explained(error, reference, where) from None


def _explained(error: pymysql.err.MySQLError, reference: str, where: str) -> LockstepError:
    number = number_of(error)
    if number == BINLOG_PRIVILEGE:
        return Refused(
            "The account may not create triggers while the server writes a binary log.",
            where=reference,
            code="cutover.no_trigger",
            remedy="nothing was switched. SET GLOBAL log_bin_trust_function_creators = ON; or grant SUPER to the "
            "account",
        )
    if number in (1205, 1213):
        return RetryLater(
            f"A gate could not be closed within {_WAIT_S} s: a transaction uses the table.",
            where=where,
            code="cutover.not_closed",
            remedy="nothing was switched; begin again",
        )
    return translated(error, where=where)
