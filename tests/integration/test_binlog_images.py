"""Row images that leave columns out: what the log has, what stands for the rest, and what stops."""

from __future__ import annotations

import json
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
from tests.lab.refusals import raises
from tests.unit.binlog.reading import events_since, known_schema, mark, row_groups


def _run(server: SqlServer, *statements: str) -> None:
    server.run("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'", *statements)


def _decoded(
    server: SqlServer, database: str, *statements: str, defaults: bool = True
) -> tuple[TableSchema, DecodedRows]:
    """The rows that the statements logged of table t; its definition is that of before."""
    mariadb = server.mariadb
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


def test_what_minimal_images_lack_is_absent_and_not_null(any_server: SqlServer, database: str) -> None:
    _run(
        any_server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a INT, b INT, c TEXT)",
        f"INSERT INTO {database}.t VALUES (1, 1, 1, 'x'), (2, 2, 2, 'y')",
    )  # fmt: skip
    schema, rows = _decoded(
        any_server, database, "SET binlog_row_image = MINIMAL", f"UPDATE {database}.t SET a = NULL WHERE id = 1",
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


def test_a_before_image_gives_what_the_after_image_leaves_out(any_server: SqlServer, database: str) -> None:
    _run(any_server, f"CREATE TABLE {database}.t (a INT, b VARCHAR(9))", f"INSERT INTO {database}.t VALUES (1, 'x')")
    _, rows = _decoded(any_server, database, "SET binlog_row_image = MINIMAL", f"UPDATE {database}.t SET a = 2")
    assert rows.absent.to_pylist() == [None]
    assert [array.to_pylist() for array in rows.after] == [[2], ["x"]]


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_a_generated_column_is_what_the_server_computes_or_absent(
    any_server: SqlServer, database: str, key: str
) -> None:
    """MariaDB leaves a virtual column out of an after image even if it changed: the before image has its old value."""
    mariadb = any_server.mariadb
    computed = "s INT AS (i + 1) STORED, v VARCHAR(20) AS (CONCAT('v', i)) VIRTUAL, x INT AS (i * 2) VIRTUAL, KEY (x)"
    for image in ["MINIMAL", "NOBLOB", *(["FULL_NODUP"] if mariadb else [])]:
        _run(any_server, f"DROP TABLE IF EXISTS {database}.t")
        _run(any_server, f"CREATE TABLE {database}.t (id INT {key}, i INT, t TEXT, {computed})")
        schema, rows = _decoded(
            any_server, database, f"SET binlog_row_image = {image}",
            f"INSERT INTO {database}.t (id, i) VALUES (1, 2), (2, 3), (3, 4)",
            f"UPDATE {database}.t SET i = 9 WHERE id = 1", f"UPDATE {database}.t SET t = 'q' WHERE id = 2",
            f"UPDATE {database}.t SET id = 30, i = NULL WHERE id = 3",
        )  # fmt: skip
        with any_server.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, s, v, x FROM t")
            held = {row[0]: dict(zip(("s", "v", "x"), row[1:], strict=True)) for row in cursor.fetchall()}
        updates = [after for op, after, _ in _changes(schema, rows) if op == "u"]
        assert [after["id"] for after in updates] == [1, 2, 30]
        for after in updates:
            carried = {name: after[name] for name in ("s", "v", "x") if name in after}
            assert carried.items() <= held[after["id"]].items(), image


def test_omitted_columns_whose_defaults_nobody_knows_stop(any_server: SqlServer, database: str) -> None:
    _run(any_server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a INT DEFAULT 5, n INT NOT NULL)")
    insert = ("SET binlog_row_image = MINIMAL", f"INSERT INTO {database}.t (id, n) VALUES (1, 1)")
    with raises(Refused, "source.incomplete_rows", match="the columns' defaults are unknown"):
        _decoded(any_server, database, *insert, defaults=False)


def test_images_that_do_not_tell_which_row_it_is_stop(any_server: SqlServer, database: str) -> None:
    """The table has another key in the log's definition than in its images, as after a forged or damaged log."""
    _run(
        any_server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a INT)", f"INSERT INTO {database}.t VALUES (1, 2)"
    )
    mariadb = any_server.mariadb
    since = mark(any_server)
    _run(any_server, "SET binlog_row_image = MINIMAL", f"DELETE FROM {database}.t")
    ((table, events),) = row_groups(events_since(any_server, since), mariadb=mariadb)
    schema = schema_of(table, None, mariadb=mariadb)
    other = replace(schema, columns=tuple(replace(column, key_part=1) for column in schema.columns))
    with raises(Refused, "source.incomplete_rows", match="lack a, so they do not say which row changed"):
        decode_rows(other, table, RowImages.from_events(events))
