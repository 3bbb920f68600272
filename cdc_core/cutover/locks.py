"""Keeps writes out of tables for as long as a session lives, and no longer than a number of seconds.

`LOCK TABLES ... READ` without autocommit: others read, and wait to write. It is granted once every transaction that
has written to the tables has ended, so that the end of the log is final then. XA transactions that are prepared count,
even those whose session is gone: on MariaDB these hold no metadata lock any more, but InnoDB's, for which the lock
waits only without autocommit and with innodb_table_locks, which a server may have switched off (measured on MySQL 9.7
and MariaDB 11.4). The lock ends with its session: with the process, or, where that is stopped, by `wait_timeout`.

The tables are locked by waves, each in sessions of its own, so that one wave after the other can be released while the
others stay locked. A gate waits for what the server locks with its table, too: the tables that its triggers write to,
and its children by foreign keys with CASCADE (measured on MySQL 9.7 and MariaDB 11.4). So parents come after their
children, and tables with triggers last.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pymysql

from cdc_core.connections import SafeConnection, connect, quote, resolve
from cdc_core.errors import RetryLater
from cdc_core.server_errors import number_of
from cdc_core.source.foreign_keys import foreign_keys
from cdc_core.target.faults import translated, translating

T = TypeVar("T")
LOCK_WAIT_S = 2
TOGETHER = 64
"""Tables of one server in a wave."""
_LOCKED = frozenset({1205, 1213})
_PAUSE_S = 0.2

Places = Mapping[str, Sequence[tuple[str, str]]]
"""By server, as the pipeline file names it: database and name of each table."""


Ranks = Mapping[str, Mapping[tuple[str, str], int]]
"""By server: how late tables come that are not among the first."""


def waves(places: Places, ranks: Ranks | None = None) -> tuple[Places, ...]:
    """Each has at most TOGETHER tables of each server, in the order of their ranks and names."""
    most = max(map(len, places.values()), default=0)
    in_order = {reference: _ordered(tables, (ranks or {}).get(reference, {})) for reference, tables in places.items()}
    return tuple(
        {reference: some for reference, tables in in_order.items() if (some := tables[first : first + TOGETHER])}
        for first in range(0, most, TOGETHER)
    )


def _ordered(tables: Iterable[tuple[str, str]], ranks: Mapping[tuple[str, str], int]) -> list[tuple[str, str]]:
    return sorted(tables, key=lambda one: (ranks.get(one, 0), one))


def ranks_of(places: Places, environ: Mapping[str, str] | None = None) -> Ranks:
    """Of servers with several waves. Raises what connections.connect raises, and target.faults' errors."""
    found: dict[str, Mapping[tuple[str, str], int]] = {}
    for reference, tables in places.items():
        if len(tables) > TOGETHER:
            with connect(resolve(reference, environ), where=reference) as session, translating(reference):
                depths = generations((key.parent, key.child) for key in foreign_keys(session))
                with session.cursor() as cursor:
                    cursor.execute("SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS")
                    triggered = {(str(database), str(table)) for database, table in cursor.fetchall()}
            after = 1 + max(depths.values(), default=0)
            found[reference] = {one: depths.get(one, 0) + after * (one in triggered) for one in tables}
    return found


def generations(pairs: Iterable[tuple[T, T]]) -> dict[T, int]:
    """How many generations of children each parent has. pairs: parents and children, which may be in a circle."""
    children: dict[T, set[T]] = {}
    for parent, child in pairs:
        children.setdefault(parent, set()).add(child)
    found: dict[T, int] = {}

    def counted(one: T) -> int:
        if one not in found:
            found[one] = 0  # in a circle, until its children are known
            found[one] = max((1 + counted(child) for child in children.get(one, ()) if child != one), default=0)
        return found[one]

    for parent in children:
        counted(parent)
    return found


class Locks:
    """The locks that `locked` has taken: a session for each server of each wave."""

    def __init__(self, places: Places, ranks: Ranks | None = None) -> None:
        self.waves = waves(places, ranks)
        self._sessions: tuple[dict[str, SafeConnection], ...] = tuple({} for _ in self.waves)
        self._alone = threading.Lock()

    def connect(self, held_s: float, environ: Mapping[str, str] | None) -> None:
        for wave, sessions in zip(self.waves, self._sessions, strict=True):
            for reference in wave:
                sessions[reference] = session = connect(resolve(reference, environ), where=reference)
                with translating(reference), session.cursor() as cursor:
                    cursor.execute("SET SESSION autocommit = 0, innodb_table_locks = 1")
                    cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
                    cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_S}")
                    cursor.execute(f"SET SESSION wait_timeout = {max(1, round(held_s))}")

    def take(self) -> str | None:
        """Locks all tables, or none: a transaction may wait for a table of one wave while another wave waits for it.
        Returns the server whose tables could not be locked within LOCK_WAIT_S. Raises RetryLater (cutover.over_budget)
        if they were released meanwhile."""
        for wave, sessions in zip(self.waves, self._sessions, strict=True):
            for reference, tables in wave.items():
                statement = "LOCK TABLES " + ", ".join(f"{quote(*table)} READ" for table in tables)
                try:
                    with self._alone, self._usable(sessions[reference]).cursor() as cursor:
                        cursor.execute(statement)
                except pymysql.err.MySQLError as error:
                    if number_of(error) not in _LOCKED:
                        raise translated(error, where=reference) from None
                    self._give_back()
                    return reference
        return None

    def _give_back(self) -> None:
        for sessions in self._sessions:
            for reference, session in sessions.items():
                with translating(reference), self._alone, self._usable(session).cursor() as cursor:
                    cursor.execute("UNLOCK TABLES")

    def _usable(self, session: SafeConnection) -> SafeConnection:
        if session.open:
            return session
        raise RetryLater(
            "Writes were stopped for longer than cutover.budget_s while transactions under way were waited for.",
            where="locking the tables",
            code="cutover.over_budget",
            remedy="end long transactions, and prepared ones (XA RECOVER), or raise the budget",
        )

    def release(self, wave: int | None = None) -> None:
        """Lets writers continue, at the tables of one wave or at all. Safe to repeat, and from any thread: a statement
        by which tables are just being locked is waited for, but not for a server that does not answer."""
        waited = self._alone.acquire(timeout=LOCK_WAIT_S + 1)
        try:
            for sessions in self._sessions if wave is None else self._sessions[wave : wave + 1]:
                for session in sessions.values():
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
    ranks: Ranks | None = None,
    environ: Mapping[str, str] | None = None,
    taking: Callable[[Callable[[], None]], None] = lambda release: None,
    ending: Callable[[str], bool] = lambda reference: False,
) -> Iterator[Locks]:
    """Locks all tables against writes, for the block. patience_s: how long transactions under way are waited for,
    LOCK_WAIT_S at a time, for others queue behind the request. held_s: after which a server frees the locks of a
    process that says nothing. ranks: as in `waves`. taking: receives what releases them, before the first is taken.
    ending: ends transactions at a server, once, when they were waited for in vain; whether it has ended any.

    Raises RetryLater (cutover.not_locked), and what connections.connect raises.
    """
    end_s = time.monotonic() + patience_s
    locks = Locks(places, ranks)
    try:
        locks.connect(held_s, environ)
        taking(locks.release)
        asked: set[str] = set()
        while (busy := locks.take()) is not None:
            if time.monotonic() >= end_s and busy not in asked:
                asked.add(busy)
                if ending(busy):
                    end_s = time.monotonic() + LOCK_WAIT_S  # they are being rolled back
            if time.monotonic() >= end_s:
                raise RetryLater(
                    f"The tables could not be locked within {patience_s:g} s: transactions that have written to them "
                    "are still open.",
                    where=busy,
                    code="cutover.not_locked",
                    remedy="nothing has happened. End long transactions, and prepared ones (XA RECOVER), give them "
                    "more time (cutover.patience_s), or let the cutover end them (cutover.open_transactions, "
                    "cutover.prepared_transactions); then begin again",
                )
            time.sleep(random.uniform(_PAUSE_S, 2 * _PAUSE_S))
        yield locks
    finally:
        locks.release()
