"""Keeps writes out of tables for as long as a session lives, and no longer than a number of seconds.

`LOCK TABLES ... READ` without autocommit: others read, and wait to write. It is granted once every transaction that
has written to the tables has ended, so that the end of the log is final then. XA transactions that are prepared count,
even those whose session is gone: on MariaDB these hold no metadata lock any more, but InnoDB's, for which the lock
waits only without autocommit (measured on MySQL 9.7 and MariaDB 11.4). The lock ends with its session: with the
process, or, where that is stopped, by `wait_timeout`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pymysql

from cdc_core.connections import SafeConnection, connect, quote, resolve
from cdc_core.errors import RetryLater
from cdc_core.target.faults import number_of, translated, translating

LOCK_WAIT_S = 2
_LOCKED = frozenset({1205, 1213})
_PAUSE_S = 0.2

Places = Mapping[str, Sequence[tuple[str, str]]]
"""By server, as the pipeline file names it: database and name of each table."""


class Locks:
    """The locks that `locked` has taken."""

    def __init__(self) -> None:
        self.sessions: list[SafeConnection] = []
        self._alone = threading.Lock()

    def release(self) -> None:
        """Lets writers continue. Safe to repeat, and from any thread."""
        with self._alone:
            for session in self.sessions:
                if session.open:
                    session.close()  # which ends the locks, whatever state it is in


@contextmanager
def locked(
    places: Places, *, patience_s: float, held_s: float, environ: Mapping[str, str] | None = None
) -> Iterator[Locks]:
    """Locks all tables against writes, for the block. patience_s: how long transactions under way are waited for,
    LOCK_WAIT_S at a time, for others queue behind the request. held_s: after which a server frees the locks of a
    process that says nothing.

    Raises RetryLater (cutover.not_locked), and what connections.connect raises.
    """
    end_s = time.monotonic() + patience_s
    locks = Locks()
    try:
        for reference in places:
            locks.sessions.append(connect(resolve(reference, environ), where=reference))
        for session, (reference, tables) in zip(locks.sessions, places.items(), strict=True):
            with translating(reference), session.cursor() as cursor:
                cursor.execute("SET SESSION autocommit = 0")
                cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
                cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_S}")
                cursor.execute(f"SET SESSION wait_timeout = {max(1, round(held_s))}")
            _lock(session, reference, tables, end_s, patience_s)
        yield locks
    finally:
        locks.release()


def _lock(
    session: SafeConnection, reference: str, tables: Sequence[tuple[str, str]], end_s: float, patience_s: float
) -> None:
    statement = "LOCK TABLES " + ", ".join(f"{quote(*table)} READ" for table in sorted(tables))
    while True:
        try:
            with session.cursor() as cursor:
                cursor.execute(statement)
            return
        except pymysql.err.MySQLError as error:
            if number_of(error) not in _LOCKED:
                raise translated(error, where=reference) from None
            if time.monotonic() >= end_s:
                raise RetryLater(
                    f"The tables could not be locked within {patience_s:g} s: transactions that have written to them "
                    "are still open.",
                    where=reference,
                    code="cutover.not_locked",
                    remedy="nothing has happened. End long transactions, and prepared ones (XA RECOVER), or give them "
                    "more time (cutover.patience_s); then begin again",
                ) from None
            time.sleep(random.uniform(_PAUSE_S, 2 * _PAUSE_S))
