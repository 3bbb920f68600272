"""Ends transactions for which the locks of a cutover wait, if the pipeline says so (`cutover.open_transactions`,
`cutover.prepared_transactions`).

MySQL says which sessions have written to a table (performance_schema.metadata_locks). MariaDB does not: there every
session of the server is ended whose transaction has changed rows. No server says which tables a prepared XA transaction
has changed: all of them are rolled back. One whose session is alive belongs to that session, and is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql

from cdc_core import config
from cdc_core.connections import connect, resolve, shown
from cdc_core.errors import Refused
from cdc_core.target.faults import number_of, translated

_GONE = 1094
"""KILL: there is no such session any more."""
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


def evict(
    options: config.Cutover,
    reference: str,
    tables: Sequence[tuple[str, str]],
    environ: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Ends what the policy allows of the transactions at a server; for people, what was ended.

    Raises Refused (cutover.grant), and what connecting and target.faults raise.
    """
    ended: list[str] = []
    if options.open_transactions == "wait" and options.prepared_transactions == "wait":
        return ()
    with connect(resolve(reference, environ), where=reference) as session, session.cursor() as cursor:
        mariadb = "MariaDB" in session.get_server_info()  # type: ignore[no-untyped-call]
        try:
            if options.open_transactions == "kill":
                ended += _killed(cursor, tables, mariadb=mariadb)
            if options.prepared_transactions == "rollback":
                ended += _rolled_back(cursor, mariadb=mariadb)
        except pymysql.err.MySQLError as error:
            if number_of(error) not in _DENIED:
                raise translated(error, where=reference) from None
            raise Refused(
                f"The account may not end transactions: {shown(error)}",
                where=reference,
                code="cutover.grant",
                remedy="on MySQL GRANT PROCESS, CONNECTION_ADMIN, XA_RECOVER_ADMIN ON *.*, and SELECT on "
                "performance_schema.*; on MariaDB PROCESS, CONNECTION ADMIN",
            ) from None
    return tuple(ended)


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


def _rolled_back(cursor: Any, *, mariadb: bool) -> list[str]:
    cursor.execute("XA RECOVER FORMAT = 'SQL'" if mariadb else "XA RECOVER CONVERT XID")
    ended = []
    for number, length, branch, data in cursor.fetchall():
        name = str(data) if mariadb else _named(int(number), int(length), int(branch), str(data))
        with _but_for(_NOT_MINE):
            cursor.execute(f"XA ROLLBACK {name}")
            ended.append(f"the prepared XA transaction {name}")
    return ended


def _named(number: int, length: int, branch: int, data: str) -> str:
    """As statements name it. data: 0x and the hexadecimal digits of both parts."""
    digits = data.removeprefix("0x")
    parts = digits[: 2 * length], digits[2 * length : 2 * (length + branch)]
    return f"X'{parts[0]}', X'{parts[1]}', {number}"


@contextmanager
def _but_for(numbers: frozenset[int]) -> Iterator[None]:
    """Errors of these numbers say that there is nothing to be ended."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        if number_of(error) not in numbers:
            raise
