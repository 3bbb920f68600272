"""Ends transactions for which the locks of a cutover wait, if the pipeline says so (`cutover.open_transactions`,
`cutover.prepared_transactions`).

MySQL says which sessions have written to a table (performance_schema.metadata_locks). MariaDB does not: there every
session of the server is ended whose transaction has changed rows. No server says which tables a prepared XA transaction
has changed: all of them are rolled back. One whose session is alive belongs to that session, and is left to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql

from cdc_core import config
from cdc_core.errors import Refused
from cdc_core.mysql.connections import SafeConnection, connect, is_mariadb, resolve, shown
from cdc_core.mysql.server_errors import number_of
from cdc_core.operations.cutover.work import CutoverWork, Tables
from cdc_core.source.transactions.prepared_transactions import prepared
from cdc_core.targets.bookkeeping.patience import Patience
from cdc_core.targets.reading.target_faults import translated

_PAUSE_S = 0.2
_GONE = 1094
"""KILL: the session has ended by itself."""
_NOT_MINE = frozenset({1397, 1399, 1400, 1402})
"""XA ROLLBACK: unknown, which it is to all while its session lives, or being ended."""
_DENIED = frozenset({1095, 1142, 1227, 1401})
_WRITERS = """
SELECT DISTINCT t.PROCESSLIST_ID FROM performance_schema.metadata_locks m
JOIN performance_schema.threads t ON t.THREAD_ID = m.OWNER_THREAD_ID
WHERE m.OBJECT_TYPE = 'TABLE' AND m.LOCK_STATUS = 'GRANTED'
AND m.LOCK_TYPE IN ('SHARED_WRITE', 'SHARED_WRITE_LOW_PRIO')
AND t.PROCESSLIST_ID <> CONNECTION_ID() AND (m.OBJECT_SCHEMA, m.OBJECT_NAME) IN ({})
"""
_CHANGERS = """
SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX
WHERE trx_rows_modified > 0 AND trx_mysql_thread_id NOT IN (0, CONNECTION_ID())
"""


def patience(work: CutoverWork, tables: Tables, seconds: float) -> Patience:
    """With transactions that use the old tables. Then they are ended, where the policy says so."""

    def end(reference: str) -> bool:
        ended = evict(work.options, reference, tables.sources[reference])
        for one in ended:
            work.opened.progress.note(f"{reference}: ended {one}")
        return bool(ended)

    return Patience(seconds, end)


def evict(options: config.CutoverOptions, reference: str, tables: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Ends what the policy allows of the transactions at a server; for people, what was ended.

    Raises Refused (connection.grant), and what connecting and target_faults raise.
    """
    ended: list[str] = []
    if options.open_transactions == "wait" and options.prepared_transactions == "wait":
        return ()
    with _session(reference) as session, session.cursor() as cursor:
        mariadb = is_mariadb(session)
        if options.open_transactions == "kill":
            ended += _killed(cursor, tables, mariadb=mariadb)
        if options.prepared_transactions == "rollback":
            ended += _rolled_back(cursor, prepared(session, mariadb=mariadb))
    return tuple(ended)


def evict_left_prepared(options: config.CutoverOptions, reference: str) -> tuple[str, ...]:
    """Rolls back what stays prepared at a MariaDB for cutover.patience_s, where the policy says so: beside it no row
    can be compared (snapshot.blocked), so that no lock would ever wait for it. For people, what was ended. Raises as
    `evict`.
    """
    with _session(reference) as session, session.cursor() as cursor:
        if not is_mariadb(session):
            return ()
        left, end_s = prepared(session, mariadb=True), time.monotonic() + options.patience_s
        while left and time.monotonic() < end_s:
            time.sleep(_PAUSE_S)
            left &= prepared(session, mariadb=True)
        return tuple(_rolled_back(cursor, left))


@contextmanager
def _session(reference: str) -> Iterator[SafeConnection]:
    with connect(resolve(reference), where=reference) as session:
        try:
            yield session
        except pymysql.err.MySQLError as error:
            if number_of(error) not in _DENIED:
                raise translated(error, where=reference) from None
            raise Refused(
                f"The account may not end transactions: {shown(error)}",
                where=reference,
                code="connection.grant",
                remedy="on MySQL GRANT PROCESS, CONNECTION_ADMIN, XA_RECOVER_ADMIN ON *.*, and SELECT on "
                "performance_schema.*; on MariaDB PROCESS, CONNECTION ADMIN",
            ) from None


def _killed(cursor: Any, tables: Sequence[tuple[str, str]], *, mariadb: bool) -> list[str]:
    if mariadb:
        cursor.execute(_CHANGERS)
    else:
        marks = ", ".join(["(%s, %s)"] * len(tables))
        cursor.execute(_WRITERS.format(marks), [name for table in tables for name in table])
    found = [int(row[0]) for row in cursor.fetchall()]
    ended = []
    for number in found:
        with _but_for(frozenset({_GONE})):
            cursor.execute(f"KILL CONNECTION {number}")
            ended.append(f"connection {number}, whose transaction was open")
    return ended


def _rolled_back(cursor: Any, names: Iterable[str]) -> list[str]:
    ended = []
    for name in sorted(names):
        with _but_for(_NOT_MINE):
            cursor.execute(f"XA ROLLBACK {name}")
            ended.append(f"the prepared XA transaction {name}")
    return ended


@contextmanager
def _but_for(numbers: frozenset[int]) -> Iterator[None]:
    """Errors of these numbers say that there is nothing to be ended."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        if number_of(error) not in numbers:
            raise
