"""Which captured tables a server has now, and which of them are proven to be empty.

It must keep true that a table is called empty only if every row that a transaction logged before the survey's position
has put into it was removed again by one that is logged before that position too. A transaction is in the log before its
rows can be seen, so that a plain read may miss them; a locking read waits for it. It holds no lock after its answer and
waits for one second at most: a table on which it would have to wait longer is not proven empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql

from cdc_core.model.position import Position
from cdc_core.source.definitions import ROWS_ESTIMATE, FoundTable
from cdc_core.source.facts import Grants, now_us, query

log = logging.getLogger(__name__)

_TABLES = f"""
SELECT TABLE_SCHEMA, TABLE_NAME, {ROWS_ESTIMATE} FROM INFORMATION_SCHEMA.TABLES
 WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
 ORDER BY TABLE_SCHEMA, TABLE_NAME
"""


@dataclass(frozen=True, slots=True)
class Survey:
    """What was there at `position`, a place of the log at or behind the moment at which the tables were read.

    tables:   `database.table` of every captured table that the account sees, with the server's estimate of its rows.
    empty:    those of the tables asked for that are proven to be empty.
    complete: the account sees every table, so that a name that is missing did not exist.
    at_us:    the server's clock behind the last read, µs UTC.
    """

    tables: dict[str, int | None]
    empty: frozenset[str]
    complete: bool
    position: Position
    at_us: int


def survey_tables(
    connection: pymysql.Connection[Any],
    captures: Callable[[str, str], bool],
    *,
    known: Container[str],
    grants: Grants,
    end_of_log: Callable[[], Position],
) -> Survey:
    """Asks for all captured tables, and of those not in `known` whether they are empty."""
    if query(connection, "SHOW VARIABLES LIKE 'information_schema_stats_expiry'"):
        query(connection, "SET SESSION information_schema_stats_expiry = 0")  # MySQL keeps estimates for a day
    tables: dict[str, int | None] = {}
    asked: dict[str, tuple[str, str]] = {}
    for row in query(connection, _TABLES):
        database, table = (part.decode() if isinstance(part, bytes) else str(part) for part in row[:2])
        if not captures(database, table):
            continue
        name = f"{database}.{table}"
        tables[name] = int(row[2]) if row[2] else None
        if name not in known:
            asked[name] = (database, table)
    with _impatient(connection):
        empty = {name for name, (database, table) in asked.items() if proven_empty(connection, database, table)}
    at_us = now_us(connection)
    return Survey(tables, frozenset(empty), grants.has("SELECT"), end_of_log(), at_us)


def rows_before(table: FoundTable) -> str:
    """What a pipeline that begins now would not capture of a table that has rows."""
    rows = f"~{table.rows:,} row{'s' if table.rows != 1 else ''}" if table.rows else "rows"
    return f"{rows} of {table.name} from before the start are not captured"


def proven_empty(connection: pymysql.Connection[Any], database: str, table: str) -> bool:
    """Whether the table had no row, and none on the way; False where that cannot be seen."""
    name = ".".join("`" + part.replace("`", "``") + "`" for part in (database, table))
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {name} LIMIT 1")
            if cursor.fetchone() is not None:
                return False
            cursor.execute(f"SELECT 1 FROM {name} LIMIT 1 LOCK IN SHARE MODE")
            return cursor.fetchone() is None
    except pymysql.err.MySQLError as error:
        log.info("%s is not proven to be empty: %s", name, error.args[-1])
        return False


@contextmanager
def _impatient(connection: pymysql.Connection[Any]) -> Iterator[None]:
    """A session whose statements give up after a second, waiting or scanning what was deleted."""
    variables = {"innodb_lock_wait_timeout": "1"}
    for name, value in (("max_execution_time", "1000"), ("max_statement_time", "1")):  # MySQL's, MariaDB's
        if query(connection, f"SHOW VARIABLES LIKE '{name}'"):
            variables[name] = value
    for name, value in variables.items():
        query(connection, f"SET SESSION {name} = {value}")
    try:
        yield
    finally:
        for name in variables:
            query(connection, f"SET SESSION {name} = DEFAULT")
