"""The settings of a session that reads rows: what a server's own defaults must not change about them."""

from __future__ import annotations

from typing import Any

import pymysql

from cdc_core.connections import sensible
from cdc_core.results.faults import translating

_NO_LIMIT = 18446744073709551615
_CHANGING = frozenset({
    "PAD_CHAR_TO_FULL_LENGTH", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI", "ORACLE", "MSSQL", "DB2", "MAXDB",
    "POSTGRESQL",
})  # fmt: skip
"""Of sql_mode. CHAR would be read with blanks that it does not have; the others change how a statement is parsed."""


def prepare_for_keys(connection: pymysql.Connection[Any], *, where: str = "") -> None:
    """prepare_session for a reader whose conditions are about keys: strict modes compare no date with an invalid one.

    Raises what prepare_session raises.
    """
    prepare_session(connection, where=where)
    with translating(where), sensible(where), connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")


def prepare_session(connection: pymysql.Connection[Any], *, where: str = "") -> None:
    """Sets what must hold while rows are read; for good, so once is enough.

    TIMESTAMP is read in UTC. No limit of the server's cuts a result short (sql_select_limit) or ends it while the
    caller is busy with what came (net_write_timeout) or because there is much of it (max_execution_time,
    max_statement_time, sql_big_selects). sql_mode keeps what does not change reading.
    Raises Refused and RetryLater as TableReader.batches does.
    """
    version = str(connection.get_server_info())  # type: ignore[no-untyped-call]
    limit = "max_statement_time" if "mariadb" in version.lower() else "max_execution_time"
    with translating(where), sensible(where), connection.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.sql_mode")
        (mode,) = cursor.fetchone() or ("",)
        text = mode.decode("ascii") if isinstance(mode, bytes) else mode
        kept = ",".join(part for part in text.split(",") if part not in _CHANGING)
        cursor.execute(
            f"SET SESSION sql_mode = '{kept}', time_zone = '+00:00', sql_select_limit = {_NO_LIMIT}, "
            f"sql_big_selects = 1, net_write_timeout = 3600, {limit} = 0"
        )
