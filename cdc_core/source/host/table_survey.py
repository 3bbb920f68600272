"""Which captured tables a server has now, what is wrong with them, and which of them are proven to be empty.

It must keep true that every matching table is either capturable or has a reason why it is not; and that a table is
called empty only if every row that transactions logged before the survey's position inserted was also removed before
that position. A transaction is in the log before its rows are visible, so that a plain read may miss them; a locking
read waits for it. The survey keeps no lock after its answer and waits at most one second: a table on which it would
have to wait longer is not proven empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.constants import ER

from cdc_core.errors import Refused
from cdc_core.model.position import Position
from cdc_core.model.readable import counted, some_of
from cdc_core.model.schema import TableName, TableSchema
from cdc_core.model.staged_columns import require_unreserved
from cdc_core.mysql.connections import answers, is_mariadb, quote
from cdc_core.source.host.server_facts import Grants, ServerFacts, as_text, now_us, query
from cdc_core.source.schemas.captured_definitions import NOT_VISIBLE, read_definitions
from cdc_core.source.schemas.merge_tables import united_tables

log = logging.getLogger(__name__)

_ROWS_ESTIMATE = "IF(ENGINE = 'MEMORY', 0, TABLE_ROWS)"
"""Estimating the rows of a MEMORY table would open it. The first statement that opens one after a restart of MySQL logs
that it was emptied; our query would not be logged, and the server's replicas would keep its rows."""
_TABLES = f"""
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, {_ROWS_ESTIMATE} FROM INFORMATION_SCHEMA.TABLES
 ORDER BY TABLE_SCHEMA, TABLE_NAME
"""
_TABLE_TYPES = frozenset({"BASE TABLE", "SYSTEM VERSIONED"})


@dataclass(frozen=True, slots=True)
class _Listed:
    """A table or view whose name is captured, as INFORMATION_SCHEMA lists it. type: 'BASE TABLE', 'VIEW', ...

    rows: the server's estimate; 0 also where it has none.
    """

    name: TableName
    type: str
    engine: str
    rows: int

    @property
    def is_table(self) -> bool:
        return self.type in _TABLE_TYPES


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table or view that matches the pipeline's patterns.

    kind:    'table', or 'view', 'sequence' and the like.
    schema:  None where it is not a table or has an unsupported type.
    problem: why it cannot be captured or applied to a target; "" where nothing is wrong.
    rows:    the server's estimate.
    """

    database: str
    table: str
    kind: str
    engine: str
    schema: TableSchema | None
    problem: str
    rows: int

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


_ROWS_ELSEWHERE = frozenset({
    "FEDERATED", "SPIDER", "CONNECT", "S3", "COLUMNSTORE", "OQGRAPH", "SPHINX", "MROONGA", "NDBCLUSTER",
})  # fmt: skip
"""Engines whose rows are kept, and may be changed, outside of the server whose log we read."""


NO_SUCH_TABLE = "lockstep asks for the privilege"
"""A name that no table has."""


def is_transactional(engine: str) -> bool:
    """Whether a read view of a table of this engine shows it at one place of the log."""
    return engine.upper() == "INNODB"


def locked_for_copies(facts: ServerFacts, engine: str, *, keyed: bool) -> bool:
    """Whether a copy of a table locks it for a moment, to know the position of what it reads."""
    transactional = is_transactional(engine)
    if not keyed and not transactional:
        return False  # it is not copied at all
    if facts.mariadb:
        return not transactional
    return facts.gtid_mode != "ON" or not keyed


@answers("source")
def may_lock(connection: pymysql.Connection[Any], database: str) -> bool:
    """Whether the account may LOCK TABLES of a database. Nothing is locked: servers look for the privilege before they
    look for the table."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLES {quote(database, NO_SUCH_TABLE)} READ")
            cursor.execute("UNLOCK TABLES")
    except pymysql.err.MySQLError as error:
        if error.args[0] == ER.DBACCESS_DENIED_ERROR:
            return False
        if error.args[0] not in (ER.NO_SUCH_TABLE, ER.TABLEACCESS_DENIED_ERROR):
            raise
    return True


def engine_advice(engine: str) -> str:
    """How the log of a table of this engine differs from what a SELECT shows; "" where it does not."""
    name = engine.upper()
    if name == "BLACKHOLE":
        return "keeps no rows (BLACKHOLE): inserts are logged and staged, and no SELECT on the source shows them"
    if name in _ROWS_ELSEWHERE:
        return f"keeps its rows elsewhere ({engine}): changes that are not made on this server are not in its log"
    return ""


def find_tables(connection: pymysql.Connection[Any], captures: Callable[[str, str], bool]) -> tuple[FoundTable, ...]:
    """Everything whose name is captured, with its problem if any, sorted by name."""
    listed = _listed(connection, captures)
    definitions = read_definitions(connection, [table.name for table in listed])
    united = {name: merge for merge, names in united_tables(connection).items() for name in names}
    tables = []
    for table in listed:
        schema, problem = definitions.get(table.name, (None, NOT_VISIBLE))
        kind = "table" if table.is_table else table.type.lower()
        if not table.is_table:
            schema, problem = None, f"a {kind}, which has no row events"
        elif schema is not None:
            problem = problem or _unusable(schema)
        if merge := united.get(table.name):
            schema, problem = None, f"united by the MERGE table {'.'.join(merge)}: what is written through that is lost"
        tables.append(FoundTable(*table.name, kind, table.engine, schema, problem, table.rows))
    return tuple(tables)


@answers("source")
def _listed(connection: pymysql.Connection[Any], captures: Callable[[str, str], bool]) -> list[_Listed]:
    listed = []
    for row in query(connection, _TABLES):
        database, table, kind, engine = (as_text(part or "") for part in row[:4])
        if captures(database, table):
            listed.append(_Listed((database, table), kind, engine, int(row[4] or 0)))
    return listed


def _unusable(schema: TableSchema) -> str:
    try:
        require_unreserved(schema)
        for column in schema.columns:
            _ = column.type.arrow
    except Refused as error:
        return error.what.rstrip(".")
    return ""


@dataclass(frozen=True, slots=True)
class SourceSurvey:
    """The tables at `position`, which is at or after the moment at which the tables were read.

    tables:   `database.table` of every captured table that the account sees, with the server's estimate of its rows.
    empty:    the requested tables that are proven to be empty.
    complete: the account sees every table, so that a missing name did not exist.
    at_us:    the server's clock after the last read, µs UTC.
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
) -> SourceSurvey:
    """Reads all captured tables, and for those not in `known`, whether they are empty."""
    listed = [table for table in _listed(connection, captures) if table.is_table]
    tables = {".".join(table.name): table.rows or None for table in listed}
    asked = {name: table.name for table in listed if (name := ".".join(table.name)) not in known}
    with _impatient(connection):
        empty = {name for name, (database, table) in asked.items() if proven_empty(connection, database, table)}
    at_us = now_us(connection)
    return SourceSurvey(tables, frozenset(empty), grants.has("SELECT"), end_of_log(), at_us)


def rows_before(tables: Sequence[FoundTable]) -> str:
    """What the log lacks for a pipeline that begins now: rows of these tables."""
    rows = sum(table.rows or 0 for table in tables)
    names = some_of([table.name for table in tables], 3, "tables")
    shown = f"~{counted(rows, 'row')}" if rows else "rows"
    return f"{shown} of {names} from before the start are not in the log"


def proven_empty(connection: pymysql.Connection[Any], database: str, table: str) -> bool:
    """Whether the table had no rows, committed or in progress; False where that is unknown."""
    name = quote(database, table)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {name} LIMIT 1")
            if cursor.fetchone() is not None:
                return False
            cursor.execute(f"SELECT 1 FROM {name} LIMIT 1 LOCK IN SHARE MODE")
            return cursor.fetchone() is None
    except pymysql.err.MySQLError as error:
        log.info("%s could not be proven to be empty: %s", name, error.args[-1])
        return False


@contextmanager
def _impatient(connection: pymysql.Connection[Any]) -> Iterator[None]:
    """A session whose statements give up after a second of waiting, or of scanning deleted rows."""
    limit, second = ("max_statement_time", 1) if is_mariadb(connection) else ("max_execution_time", 1000)
    query(connection, f"SET SESSION innodb_lock_wait_timeout = 1, {limit} = {second}")
    try:
        yield
    finally:
        query(connection, f"SET SESSION innodb_lock_wait_timeout = DEFAULT, {limit} = 0")
