"""Keeps writes out of tables for as long as a session lives, and no longer than a number of seconds.

`LOCK TABLES ... READ` without autocommit: others read, and wait to write. It is granted once every transaction that
has written to the tables has ended, so that the end of the log is final then. XA transactions that are prepared count,
even those whose session is gone: on MariaDB these hold no metadata lock any more, but InnoDB's, for which the lock
waits only without autocommit and with innodb_table_locks, which a server may have switched off (measured on MySQL 9.7
and MariaDB 11.4). The lock ends with its session: with the process, or, where that is stopped, by `wait_timeout`.

All tables of a server are locked by one session and one statement.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pymysql

from cdc_core.errors import RetryLater
from cdc_core.mysql.connections import SafeConnection, connect, quote, resolve
from cdc_core.mysql.server_errors import LOCKED, number_of
from cdc_core.targets.bookkeeping.gates import Places
from cdc_core.targets.reading.target_faults import translated, translating

LOCK_WAIT_S = 2
_PAUSE_S = 0.2


class Locks:
    """The locks that `locked` has taken: a session for each server."""

    def __init__(self, places: Places) -> None:
        self._places = {reference: tables for reference, tables in places.items() if tables}
        self._sessions: dict[str, SafeConnection] = {}
        self._alone = threading.Lock()

    def connect(self, held_s: float) -> None:
        for reference in self._places:
            self._sessions[reference] = session = connect(resolve(reference), where=reference)
            with translating(reference), session.cursor() as cursor:
                cursor.execute("SET SESSION autocommit = 0, innodb_table_locks = 1")
                cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
                cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_S}")
                cursor.execute(f"SET SESSION wait_timeout = {max(1, round(held_s))}")

    def take(self) -> str | None:
        """Locks all tables, or none: an application may wait for a table of one server with a transaction that another
        one waits for. Returns the server whose tables could not be locked within LOCK_WAIT_S. Raises RetryLater
        (cutover.too_slow) if they were released meanwhile."""
        for reference, tables in self._places.items():
            statement = "LOCK TABLES " + ", ".join(f"{quote(*table)} READ" for table in tables)
            try:
                with self._alone, self._usable(self._sessions[reference]).cursor() as cursor:
                    cursor.execute(statement)
            except pymysql.err.MySQLError as error:
                if number_of(error) not in LOCKED:
                    raise translated(error, where=reference) from None
                self._give_back()
                return reference
        return None

    def _give_back(self) -> None:
        for reference, session in self._sessions.items():
            with translating(reference), self._alone, self._usable(session).cursor() as cursor:
                cursor.execute("UNLOCK TABLES")

    def _usable(self, session: SafeConnection) -> SafeConnection:
        if session.open:
            return session
        raise RetryLater(
            "Transactions under way kept writes stopped for longer than cutover.budget_s.",
            where="locking the tables",
            code="cutover.too_slow",
            remedy="end long and prepared transactions (XA RECOVER), or raise the budget",
        )

    def held(self) -> bool:
        """Whether no write has passed since they were taken: no session has ended."""
        try:
            for session in self._sessions.values():
                with self._alone, self._usable(session).cursor() as cursor:
                    cursor.execute("DO 0")
        except (RetryLater, pymysql.err.MySQLError):
            return False
        return True

    def release(self) -> None:
        """Lets writers continue. Safe to repeat, and from any thread: a statement by which tables are just being locked
        is waited for, but not for a server that does not answer."""
        waited = self._alone.acquire(timeout=LOCK_WAIT_S + 1)
        try:
            for session in self._sessions.values():
                if session.open:
                    session.close()  # which ends the locks, whatever state it is in
        finally:
            if waited:
                self._alone.release()


@contextmanager
def locked(
    places: Places,
    *,
    patience_s: float,
    held_s: float,
    taking: Callable[[Callable[[], None]], None] = lambda release: None,
) -> Iterator[Locks]:
    """Locks all tables against writes, for the block. patience_s: how long transactions under way are waited
    for, LOCK_WAIT_S at a time, for others queue behind the request. held_s: after which a server frees the locks of a
    process that says nothing. taking: receives what releases them, before the first is taken.

    Raises RetryLater (cutover.locked), and what connections.connect raises.
    """
    locks, end_s = Locks(places), time.monotonic() + patience_s
    try:
        locks.connect(held_s)
        taking(locks.release)
        while (busy := locks.take()) is not None:
            if time.monotonic() >= end_s:
                raise RetryLater(
                    "The tables could not be locked in time: transactions that wrote to them are still open.",
                    where=busy,
                    code="cutover.locked",
                    remedy="nothing has happened. End long and prepared transactions (XA RECOVER), or give them more "
                    "time (cutover.patience_s); then begin again",
                )
            time.sleep(random.uniform(_PAUSE_S, 2 * _PAUSE_S))
        yield locks
    finally:
        locks.release()
