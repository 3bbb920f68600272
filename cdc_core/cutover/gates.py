"""Gates: triggers by which every write to a table fails, except Lockstep's own.

An application that was switched, and still writes to an old table from some forgotten place, gets an error, and not
rows that are lost. A table has three: for INSERT, UPDATE and DELETE. Sessions that set `@lockstep_writes` pass
(target.load does). TRUNCATE and DDL pass as well: they fire no trigger.

Where the table is locked for reading (locks.py), each gate waits in a session of its own for the exclusive lock, which
servers grant before the writes that queue for the table (measured on MySQL 9.7 and MariaDB 11.4): once the lock is
released, the gate closes before the first of them. The cutover looks at the log afterwards nevertheless.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pymysql

from cdc_core.connections import SafeConnection, quote, resolve
from cdc_core.cutover.locks import Places
from cdc_core.errors import LockstepError, Refused, RetryLater, of_all
from cdc_core.target.faults import number_of, translated
from cdc_core.target.load import OWN_WRITES, altering_session

PREFIX = "_lockstep_gate_"
EVENTS = ("insert", "update", "delete")
MOST_TABLES = 500
"""Each gate takes a session of the server for a moment."""
_WAIT_S = 5
_SETTLED_S = 0.05
BINLOG_PRIVILEGE = 1419
"""The error of an account that may create triggers only where no log is written."""
_EXISTS = 1359
_MESSAGE = 128
"""Characters of a condition's message that servers keep."""


def require_few(places: Places) -> None:
    """Raises Refused (cutover.too_many_tables)."""
    count = sum(map(len, places.values()))
    if count > MOST_TABLES:
        raise Refused(
            f"{count:,} tables would be switched at once; {MOST_TABLES} is the most.",
            where=", ".join(places),
            code="cutover.too_many_tables",
            remedy="move them in groups, each by a pipeline of its own",
        )


@contextmanager
def closing(places: Places, message: str, environ: Mapping[str, str] | None = None) -> Iterator[Callable[[], None]]:
    """Requests the gates of all tables, which close as soon as the tables' locks allow; yields what waits for them.

    message: the error that writes get. Raises what closing one raises: Refused (cutover.no_trigger), RetryLater
    (cutover.not_closed), and target.faults' errors.
    """
    tables = [(reference, *table) for reference, tables in places.items() for table in tables]
    waiting: list[Future[None]] = []
    at_the_lock = threading.Semaphore(0)
    with ThreadPoolExecutor(max(1, len(tables)), thread_name_prefix="gate") as pool:
        for reference, database, table in tables:
            waiting.append(pool.submit(_close, reference, database, table, message, environ, at_the_lock.release))
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
    database: str,
    table: str,
    message: str,
    environ: Mapping[str, str] | None,
    about_to: Callable[[], None],
) -> None:
    told = False
    try:
        with _session(reference, environ, f"{database}.{table}") as session, session.cursor() as cursor:
            told = True
            about_to()
            cursor.execute(f"LOCK TABLES {quote(database, table)} WRITE")
            for event in EVENTS:
                _create(session, database, table, event, message)
            cursor.execute("UNLOCK TABLES")
    finally:
        if not told:
            about_to()


def _create(session: SafeConnection, database: str, table: str, event: str, message: str) -> None:
    name = quote(database, _name(table, event))
    said = session.escape(message[:_MESSAGE])
    try:
        with session.cursor() as cursor:
            cursor.execute(
                f"CREATE TRIGGER {name} BEFORE {event.upper()} ON {quote(database, table)} FOR EACH ROW "
                f"BEGIN IF {OWN_WRITES} IS NULL THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = {said}; END IF; END"
            )
    except pymysql.err.MySQLError as error:
        if number_of(error) != _EXISTS:
            raise


def open_gates(places: Places, environ: Mapping[str, str] | None = None) -> None:
    """Lets everybody write again. Safe to repeat, also after half of it was done. Raises target.faults' errors."""
    for reference, tables in places.items():
        with _session(reference, environ, reference) as session, session.cursor() as cursor:
            for database, table in tables:
                for event in EVENTS:
                    cursor.execute(f"DROP TRIGGER IF EXISTS {quote(database, _name(table, event))}")


def closed_gates(places: Places, environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """The tables, `database.table`, that have all of their gates."""
    found = set()
    for reference, tables in places.items():
        with _session(reference, environ, reference) as session, session.cursor() as cursor:
            cursor.execute("SELECT TRIGGER_SCHEMA, TRIGGER_NAME FROM information_schema.TRIGGERS")
            there = {(str(schema), str(name)) for schema, name in cursor.fetchall()}
        for database, table in tables:
            if all((database, _name(table, event)) in there for event in EVENTS):
                found.add(f"{database}.{table}")
    return frozenset(found)


def _name(table: str, event: str) -> str:
    """At most 64 characters, as servers allow."""
    name = f"{PREFIX}{table}_{event}"
    if len(name) <= 64:
        return name
    return f"{PREFIX}{hashlib.sha256(table.encode()).hexdigest()[:24]}_{event}"


@contextmanager
def _session(reference: str, environ: Mapping[str, str] | None, where: str) -> Iterator[SafeConnection]:
    with altering_session(resolve(reference, environ), reference) as session:
        try:
            with session.cursor() as cursor:
                cursor.execute(f"SET SESSION lock_wait_timeout = {_WAIT_S}")
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
