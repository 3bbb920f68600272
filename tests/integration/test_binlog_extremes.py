"""Tables and rows at the servers' own limits, and definitions that changed while older events wait."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from cdc_core.binlog.row_columns import decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from examples.sandbox.sql_server import SqlServer
from tests.unit.binlog.reading import decoded, events_since, known_schema, mark, row_groups, rows_of

ODD_NAMES = ("a.b", 'quo"te', "tick`", "two words", "emojié", "sla/sh", "back\\slash", "percent%s", "UPPER", "upper_")


@pytest.fixture(params=["mariadb", "mysql9"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    return request.getfixturevalue(request.param)


@pytest.fixture
def database(server: SqlServer) -> Iterator[str]:
    name = f"ext_{uuid.uuid4().hex[:8]}"
    _run(server, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield name
    _run(server, f"DROP DATABASE {name}")


def _run(server: SqlServer, *statements: str) -> None:
    with server.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _mariadb(server: SqlServer) -> bool:
    return "mariadb" in type(server).__name__.lower()


def test_a_table_of_as_many_columns_as_the_server_takes(server: SqlServer, database: str) -> None:
    count = 2500 if _mariadb(server) else 4096
    columns = ", ".join(f"c{n} TINYINT" for n in range(count))
    # In most tables the server stops earlier: InnoDB at 1017 columns.
    _run(server, f"CREATE TABLE {database}.t ({columns}) ENGINE=MyISAM")
    since = mark(server)
    values = [None if n % 5 == 0 else n % 127 for n in range(count)]
    written = ", ".join("NULL" if value is None else str(value) for value in values)
    _run(server, f"INSERT INTO {database}.t VALUES ({written})", f"UPDATE {database}.t SET c{count - 1} = 1, c0 = 2")
    schema, rows = decoded(
        events_since(server, since), known_schema(server, database, "t"), mariadb=_mariadb(server)
    )  # fmt: skip
    assert len(schema.columns) == count
    assert [list(row.values()) for row in rows_of(schema, rows.after)] == [values, [2, *values[1:-1], 1]]


def test_rows_of_tens_of_megabytes(server: SqlServer, database: str) -> None:
    _run(server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, b LONGBLOB, t LONGTEXT)")
    since = mark(server)
    size = 12 << 20
    _run(server, f"INSERT INTO {database}.t VALUES (1, REPEAT(X'00FF', {size}), REPEAT('é', {size // 2}))")
    _, rows = decoded(events_since(server, since), known_schema(server, database, "t"), mariadb=_mariadb(server))
    assert rows.after[1][0].as_py() == b"\0\xff" * size
    assert rows.after[2][0].as_py() == "é" * (size // 2)


def test_members_of_an_enum_and_a_set_are_those_of_when_the_row_was_written(server: SqlServer, database: str) -> None:
    _run(server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, e ENUM('a','b'), s SET('x','y'))")
    since = mark(server)
    _run(
        server,
        f"INSERT INTO {database}.t VALUES (1, 'b', 'x,y')",
        f"ALTER TABLE {database}.t MODIFY e ENUM('new','b','a'), MODIFY s SET('y','x','z')",
        f"INSERT INTO {database}.t VALUES (2, 'b', 'x')",
    )
    now = known_schema(server, database, "t")
    found = []
    events = events_since(server, since)
    middle = next(n for n, event in enumerate(events) if b"ALTER TABLE" in event.body)
    for part in (events[:middle], events[middle:]):
        ((table, rows),) = row_groups(part, mariadb=_mariadb(server))
        schema = schema_of(table, now, mariadb=_mariadb(server))
        found += rows_of(schema, decode_rows(schema, table, RowImages.from_events(rows)).after)
    assert found == [{"id": 1, "e": "b", "s": "x,y"}, {"id": 2, "e": "b", "s": "x"}]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_of_tables_and_columns_are_kept_as_they_are(server: SqlServer, database: str, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    _run(server, f"CREATE TABLE {database}.{quoted} (id INT PRIMARY KEY, {quoted} INT)")
    since = mark(server)
    _run(server, f"INSERT INTO {database}.{quoted} VALUES (1, 7)")
    schema, rows = decoded(
        events_since(server, since), known_schema(server, database, name), mariadb=_mariadb(server)
    )  # fmt: skip
    assert schema.table == name
    assert rows_of(schema, rows.after) == [{"id": 1, name: 7}]
