"""What a cutover would wait for: transactions that are open for long, and prepared ones, found beforehand.

Locks wait for transactions that have written, gates for those that have only read. Where the account may not see them,
that is a finding, too: an empty list would say that there are none.
"""

from __future__ import annotations

from typing import Any

import pymysql

from cdc_core.model.readable import counted
from cdc_core.mysql.connections import bytes_for_texts, shown
from cdc_core.mysql.server_errors import ErrorKind, kind_of
from cdc_core.operations.check.findings import Findings

LONG_S = 2
"""Transactions that are open for longer are listed."""
_SHOWN = 10


def find_blockers(session: Any, reference: str, findings: Findings) -> None:
    _open(session, reference, findings)
    _prepared(session, reference, findings)


def _open(session: Any, reference: str, findings: Findings) -> None:
    try:
        with session.cursor() as cursor:
            cursor.execute(
                "SELECT trx_mysql_thread_id, "
                "TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', @@time_zone), NOW()) AS age_s, "
                "trx_rows_modified FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id > 0 "
                f"HAVING age_s > {LONG_S} ORDER BY trx_rows_modified > 0 DESC, age_s DESC"
            )
            found = list(cursor.fetchall())
    except pymysql.err.MySQLError as error:
        if kind_of(error) is not ErrorKind.DENIED:
            raise
        findings.warn(
            reference,
            "the account may not see the transactions of others (PROCESS): none that is open for long is listed here",
            "GRANT PROCESS ON *.* TO the account; or look yourself (information_schema.INNODB_TRX)",
        )
        return
    for thread, age_s, rows in found[:_SHOWN]:
        opened = f"connection {thread} has had a transaction open for {age_s} s"
        if rows:
            findings.warn(
                reference,
                f"{opened}, with {counted(int(rows), 'row')}",
                "writes are not stopped before it ends (cutover.patience_s)",
            )
        else:
            findings.warn(
                reference,
                f"{opened}, which has changed nothing: a report or a dump, for example",
                "if it has read a table that is left, the gate of the table does not close before it ends, and the "
                "cutover is rolled back (cutover.locked): let it end first",
            )
    if len(found) > _SHOWN:
        findings.warn(
            reference,
            f"{counted(len(found) - _SHOWN, 'more transaction')} are open for more than {LONG_S} s",
            "see information_schema.INNODB_TRX",
        )


def _prepared(session: Any, reference: str, findings: Findings) -> None:
    try:
        with bytes_for_texts(session), session.cursor() as cursor:
            cursor.execute("XA RECOVER")
            rows = list(cursor.fetchall())
    except pymysql.err.MySQLError as error:  # MySQL's code for a lacking privilege is that of damage
        findings.warn(
            reference,
            f"the account may not list prepared XA transactions (XA_RECOVER_ADMIN): {shown(error)}",
            "GRANT XA_RECOVER_ADMIN ON *.* TO the account; or look yourself (XA RECOVER)",
        )
        return
    for row in rows[:_SHOWN]:
        name = row[3].decode("utf-8", "replace")
        findings.warn(
            reference,
            f"the XA transaction {name!r} is prepared",
            "writes are not stopped before it ends: XA COMMIT or XA ROLLBACK",
        )
