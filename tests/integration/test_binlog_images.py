"""Row images that leave columns out: what the log has, what stands for the rest, and what stops."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cdc_core.binlog.image_shapes import Defaults
from cdc_core.binlog.row_columns import DecodedRows, decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from cdc_core.errors import Refused
from cdc_core.model.schema import TableSchema
from cdc_core.source.schemas.column_defaults import column_defaults
from examples.sandbox.sql_server import SqlServer
from tests.unit.binlog.reading import events_since, known_schema, mark, row_groups

_DEFAULTED = """
  i INT DEFAULT -5, u BIGINT UNSIGNED DEFAULT 18446744073709551615, de DECIMAL(8,3) DEFAULT 1.5,
  big DECIMAL(50,2) DEFAULT 7, s VARCHAR(20) DEFAULT 'it''s \\\\ "ü"', e ENUM('a','b') DEFAULT 'b',
  st SET('x','y') DEFAULT 'x,y', dt DATETIME(3) DEFAULT '2020-01-02 03:04:05.678', z DATETIME DEFAULT '2020-02-31',
  ts TIMESTAMP(2) NULL DEFAULT '2020-01-02 03:04:05.67', da DATE DEFAULT '2020-01-02',
  ti TIME(2) DEFAULT '-01:02:03.45', y YEAR DEFAULT 2020, bi BIT(5) DEFAULT b'101', b1 BIT(1) DEFAULT b'1',
  bn BINARY(4) DEFAULT 'ab',
  vb VARBINARY(4) DEFAULT X'00FF', f FLOAT DEFAULT 1.1, d DOUBLE DEFAULT 1e10, nl INT DEFAULT NULL, t TEXT,
  at DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), g INT AS (i + 1) STORED
"""  # fmt: skip


@pytest.fixture(params=["mariadb", "mysql9"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    return request.getfixturevalue(request.param)


@pytest.fixture
def database(server: SqlServer) -> Iterator[str]:
    name = f"images_{uuid.uuid4().hex[:8]}"
    _run(server, f"CREATE DATABASE {name}")
    yield name
    _run(server, f"DROP DATABASE {name}")


def _run(server: SqlServer, *statements: str) -> None:
    with server.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as cursor:
        for statement in ("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'", *statements):
            cursor.execute(statement)


def _decoded(
    server: SqlServer, database: str, *statements: str, defaults: bool = True
) -> tuple[TableSchema, DecodedRows]:
    """The rows that the statements logged of table t; its definition is that of before."""
    mariadb = "mariadb" in type(server).__name__.lower()
    known, since = known_schema(server, database, "t"), mark(server)
    _run(server, *statements)
    ((table, events),) = row_groups(events_since(server, since), mariadb=mariadb)
    schema = schema_of(table, known, mariadb=mariadb)
    with server.connect(autocommit=True, init_command="SET time_zone = '+00:00'") as connection:
        ask: Defaults = lambda names: column_defaults(connection, schema)  # noqa: E731
        return schema, decode_rows(schema, table, RowImages.from_events(events), ask if defaults else None)


def _changes(schema: TableSchema, rows: DecodedRows) -> list[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    """(op, present values after, present values before); literals in the place of what no type holds."""
    found = []
    for n, op in enumerate(rows.op.to_pylist()):
        literals = dict(rows.literal[n].as_py() or [])
        absent = set(json.loads(rows.absent[n].as_py() or "[]"))
        after, before = {}, None
        for column, array in zip(schema.columns, rows.after, strict=True):
            if column.name not in absent:
                after[column.name] = literals.get(column.name, array[n].as_py())
            else:
                assert array[n].as_py() is None
        image = rows.before[n].as_py()
        if image is not None:
            before = {
                name: literals.get(f"_before.{name}", value)
                for name, value in image.items()
                if f"_before.{name}" not in absent
            }
        found.append((op, after, before))
    return found


def _fold(changes: list[tuple[str, dict[str, Any], dict[str, Any] | None]]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for op, after, before in changes:
        if op == "d":
            del state[after["id"]]
        elif op == "u":
            assert before is not None
            old = state.pop(before["id"])
            assert all(old[name] == value for name, value in before.items() if name in old)
            state[after["id"]] = old | after
        else:
            state[after["id"]] = after
    return state


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_changes_without_all_columns_lead_to_what_full_images_say(server: SqlServer, database: str, image: str) -> None:
    _run(server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, {_DEFAULTED})")
    draw = random.Random(7)
    columns = {
        "i": "5", "u": "0", "de": "-0.001", "s": "'ß'", "e": "'a'", "st": "''", "dt": "NULL", "z": "'0000-00-00'",
        "ts": "'2030-01-01'", "b1": "NULL", "bn": "X'00'", "vb": "''", "nl": "3", "d": "-0.5",
        "t": "REPEAT('long', 99)",
    }  # fmt: skip
    statements, alive = [f"SET binlog_row_image = {image}"], []
    for n in range(150):
        some = draw.sample(sorted(columns), draw.randint(0, 5))
        kind = draw.choice("iiiuuudk") if alive else "i"
        if kind == "i":
            names, values = ["id", *some], [str(n), *(columns[name] for name in some)]
            statements.append(f"INSERT INTO {database}.t ({', '.join(names)}) VALUES ({', '.join(values)})")
            alive.append(n)
            continue
        row = draw.choice(alive)
        if kind == "u":
            changed = ", ".join(f"{name} = {columns[name]}" for name in some) or "i = i + 1"
            statements.append(f"UPDATE {database}.t SET {changed} WHERE id = {row}")
        elif kind == "k":
            statements.append(f"UPDATE {database}.t SET id = {1000 + n}, i = 6 WHERE id = {row}")
            alive[alive.index(row)] = 1000 + n
        else:
            statements.append(f"DELETE FROM {database}.t WHERE id = {row}")
            alive.remove(row)
    schema, partial = _decoded(server, database, *statements)
    _, full = _decoded(server, database, "SET binlog_row_image = FULL", f"DELETE FROM {database}.t")
    folded = _fold(_changes(schema, partial))
    assert len(folded) > 10
    assert folded == {row["id"]: row for _, row, _ in _changes(schema, full)}


def test_what_minimal_images_lack_is_absent_and_not_null(server: SqlServer, database: str) -> None:
    _run(
        server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a INT, b INT, c TEXT)",
        f"INSERT INTO {database}.t VALUES (1, 1, 1, 'x'), (2, 2, 2, 'y')",
    )  # fmt: skip
    schema, rows = _decoded(
        server, database, "SET binlog_row_image = MINIMAL", f"UPDATE {database}.t SET a = NULL WHERE id = 1",
        f"UPDATE {database}.t SET id = 3 WHERE id = 2", f"DELETE FROM {database}.t WHERE id = 1",
        "SET binlog_row_image = FULL", f"UPDATE {database}.t SET a = 4",
    )  # fmt: skip
    before = '"_before.a","_before.b","_before.c"'
    assert rows.absent.to_pylist() == [f'["b","c",{before}]', f'["a","b","c",{before}]', '["a","b","c"]', None]
    assert _changes(schema, rows) == [
        ("u", {"id": 1, "a": None}, {"id": 1}),
        ("u", {"id": 3}, {"id": 2}),
        ("d", {"id": 1}, None),
        ("u", {"id": 3, "a": 4, "b": 2, "c": "y"}, {"id": 3, "a": 2, "b": 2, "c": "y"}),
    ]


def test_a_before_image_gives_what_the_after_image_leaves_out(server: SqlServer, database: str) -> None:
    _run(server, f"CREATE TABLE {database}.t (a INT, b VARCHAR(9))", f"INSERT INTO {database}.t VALUES (1, 'x')")
    _, rows = _decoded(server, database, "SET binlog_row_image = MINIMAL", f"UPDATE {database}.t SET a = 2")
    assert rows.absent.to_pylist() == [None]
    assert [array.to_pylist() for array in rows.after] == [[2], ["x"]]


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_a_generated_column_is_what_the_server_computes_or_absent(server: SqlServer, database: str, key: str) -> None:
    """MariaDB leaves a virtual column out of an after image even if it changed: the before image has its old value."""
    mariadb = "mariadb" in type(server).__name__.lower()
    computed = "s INT AS (i + 1) STORED, v VARCHAR(20) AS (CONCAT('v', i)) VIRTUAL, x INT AS (i * 2) VIRTUAL, KEY (x)"
    for image in ["MINIMAL", "NOBLOB", *(["FULL_NODUP"] if mariadb else [])]:
        _run(server, f"DROP TABLE IF EXISTS {database}.t")
        _run(server, f"CREATE TABLE {database}.t (id INT {key}, i INT, t TEXT, {computed})")
        schema, rows = _decoded(
            server, database, f"SET binlog_row_image = {image}",
            f"INSERT INTO {database}.t (id, i) VALUES (1, 2), (2, 3), (3, 4)",
            f"UPDATE {database}.t SET i = 9 WHERE id = 1", f"UPDATE {database}.t SET t = 'q' WHERE id = 2",
            f"UPDATE {database}.t SET id = 30, i = NULL WHERE id = 3",
        )  # fmt: skip
        with server.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, s, v, x FROM t")
            held = {row[0]: dict(zip(("s", "v", "x"), row[1:], strict=True)) for row in cursor.fetchall()}
        updates = [after for op, after, _ in _changes(schema, rows) if op == "u"]
        assert [after["id"] for after in updates] == [1, 2, 30]
        for after in updates:
            carried = {name: after[name] for name in ("s", "v", "x") if name in after}
            assert carried.items() <= held[after["id"]].items(), image


def test_omitted_columns_whose_defaults_nobody_knows_stop(server: SqlServer, database: str) -> None:
    _run(server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a INT DEFAULT 5, n INT NOT NULL)")
    insert = ("SET binlog_row_image = MINIMAL", f"INSERT INTO {database}.t (id, n) VALUES (1, 1)")
    with pytest.raises(Refused, match="the columns' defaults are unknown") as refused:
        _decoded(server, database, *insert, defaults=False)
    assert refused.value.code == "source.incomplete_rows"


def test_images_that_do_not_tell_which_row_it_is_stop(server: SqlServer, database: str) -> None:
    """The table has another key in the log's definition than in its images, as after a forged or damaged log."""
    _run(server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a INT)", f"INSERT INTO {database}.t VALUES (1, 2)")
    mariadb = "mariadb" in type(server).__name__.lower()
    since = mark(server)
    _run(server, "SET binlog_row_image = MINIMAL", f"DELETE FROM {database}.t")
    ((table, events),) = row_groups(events_since(server, since), mariadb=mariadb)
    schema = schema_of(table, None, mariadb=mariadb)
    other = replace(schema, columns=tuple(replace(column, key_part=1) for column in schema.columns))
    with pytest.raises(Refused, match="lack a, so they do not say which row changed") as refused:
        decode_rows(other, table, RowImages.from_events(events))
    assert refused.value.code == "source.incomplete_rows"
