"""A value that is read and the same value in the log are the same bytes of the same Arrow type, on real servers.

The cases are those of test_binlog_types.py: whatever the log can hold of a type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.binlog.row_columns import decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from cdc_core.model.staged_columns import LITERAL, staged_schema
from cdc_core.mysql import connections
from cdc_core.mysql import session_settings as session
from cdc_core.results import TableReader
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer
from tests.integration.test_binlog_types import CASES, MARIADB, MYSQL
from tests.unit.binlog.reading import events_since, known_schema, mark, row_groups


def opened(server: SqlServer, *settings: str, **options: Any) -> connections.SafeConnection:
    made = connections.connect(connections.parse_url(server.url, where="reader"), where="reader", **options)
    for setting in settings:
        made.query(f"SET SESSION {setting}")  # as an init_connect may have done before
    session.apply(made, session.READING, where="reader")
    return made


def streamed(server: SqlServer, since: Any, database: str, *, mariadb: bool) -> dict[str, pa.RecordBatch]:
    """What the log says was inserted, by table, as `TableReader.batches` has it."""
    found = {}
    for table, events in row_groups(events_since(server, since), mariadb=mariadb):
        if table.database != database:
            continue
        schema = schema_of(table, known_schema(server, database, table.table), mariadb=mariadb)
        rows = decode_rows(schema, table, RowImages.from_events(events))
        assert set(rows.op.to_pylist()) == {"c"}
        staged = staged_schema(schema)
        arrow = pa.schema([*(staged.field(i) for i in range(len(schema.columns))), staged.field(LITERAL)])
        found[table.table] = pa.RecordBatch.from_arrays([*rows.after, rows.literal], schema=arrow)
    return found


def read(
    server: SqlServer, database: str, table: str, connection: connections.SafeConnection, tail: str = "ORDER BY id"
) -> pa.RecordBatch:
    reader = TableReader(connection, known_schema(server, database, table))
    batches = list(reader.batches(f"FROM {database}.{table} {tail}"))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, reader.arrow).combine_chunks().to_batches()[0]


def require_equal(found: pa.RecordBatch, wanted: pa.RecordBatch) -> None:
    assert found.schema.equals(wanted.schema, check_metadata=True)
    for name in wanted.schema.names:
        assert found.column(name).to_pylist() == wanted.column(name).to_pylist(), name
    # -0.0 is equal to 0.0 in Python.
    assert [_bits(column) for column in found.columns] == [_bits(column) for column in wanted.columns]
    assert found.equals(wanted, check_metadata=True)


def _bits(array: pa.Array) -> list[Any]:
    if pa.types.is_floating(array.type):
        return array.fill_null(0).view(pa.int32() if array.type == pa.float32() else pa.int64()).to_pylist()
    return []


@dataclass
class Both:
    read: pa.RecordBatch
    streamed: pa.RecordBatch


# What would change what a SELECT shows, if the reader let it.
_HOSTILE = (
    "time_zone = '+05:30'", "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
    "sql_select_limit = 1", "character_set_results = latin1",
)  # fmt: skip


def _read_all(server: SqlServer, flavor: str) -> dict[int, Both]:
    database, mariadb = f"read_{flavor}", flavor == MARIADB
    since = mark(server)
    found: dict[int, Both] = {}
    with server.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        version = tuple(int(part) for part in cursor.fetchone()[0].split("-")[0].split("."))
        numbers = [i for i, case in enumerate(CASES) if flavor in case.on and case.since <= version]
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {database}")
        for i in numbers:
            case = CASES[i]
            for setting in case.globals:
                cursor.execute(f"SET GLOBAL {setting}")
            cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = DEFAULT")
            cursor.execute(f"CREATE TABLE c{i} (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0, v {case.type})")
            for setting in case.globals:
                cursor.execute(f"SET GLOBAL {setting.split('=')[0]} = DEFAULT")
            for setting in case.session:
                cursor.execute(f"SET SESSION {setting}")
            if flavor == MYSQL:
                cursor.execute("SET SESSION explicit_defaults_for_timestamp = ON")
            rows = ",".join(f"({row}, {value})" for row, value in enumerate(case.values))
            cursor.execute(f"INSERT IGNORE INTO c{i} (id, v) VALUES {rows}")
        logged = streamed(server, since, database, mariadb=mariadb)
        hostile = opened(server, *_HOSTILE)
        for i in numbers:
            found[i] = Both(read(server, database, f"c{i}", hostile), logged[f"c{i}"])
        hostile.close()
        cursor.execute(f"DROP DATABASE {database}")
    return found


@pytest.fixture(scope="module")
def on_mariadb(mariadb: MariaDb) -> Iterator[dict[int, Both]]:
    return _read_all(mariadb, MARIADB)


@pytest.fixture(scope="module")
def on_mysql(mysql9: MySql) -> Iterator[dict[int, Both]]:
    return _read_all(mysql9, MYSQL)


def _check(found: dict[int, Both], number: int) -> None:
    if number not in found:
        pytest.skip(f"came with version {CASES[number].since} of the server")
    require_equal(found[number].read, found[number].streamed)
    assert found[number].read.num_rows == len(CASES[number].values)


_IDS = [f"{case.type[:40]}" for case in CASES]


@pytest.mark.parametrize("number", [i for i, case in enumerate(CASES) if MARIADB in case.on], ids=lambda i: _IDS[i])
def test_a_value_read_from_mariadb_is_what_its_log_says(on_mariadb: dict[int, Both], number: int) -> None:
    _check(on_mariadb, number)


@pytest.mark.parametrize("number", [i for i, case in enumerate(CASES) if MYSQL in case.on], ids=lambda i: _IDS[i])
def test_a_value_read_from_mysql_is_what_its_log_says(on_mysql: dict[int, Both], number: int) -> None:
    _check(on_mysql, number)
