"""Generated columns of a target: never assigned, found as keys, and proven to be what the source has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.targets.reading.table_facts import loaded_columns
from tests.integration.one_server import EACH_STORE
from tests.lab.refusals import raises
from tests.lab.target_rows import Winner, require_table, target_table

COLUMNS = {"id": pa.int64(), "a": pa.int64(), "g": pa.int64()}
INVISIBLE_TOO = (
    "CREATE TABLE {name} (v INT GENERATED ALWAYS AS (a * 3) VIRTUAL, id BIGINT PRIMARY KEY, a BIGINT, "
    "g BIGINT GENERATED ALWAYS AS (a + 1) STORED, own INT GENERATED ALWAYS AS (a + 2) VIRTUAL INVISIBLE)"
)


def row(id: int, a: int, g: int | None, seq: int, *, op: str = "u", absent: tuple[str, ...] = ()) -> Winner:
    return Winner(op, {"id": id, "a": a, "g": g}, (seq, seq, 0, "one"), absent=absent)


@EACH_STORE
def test_a_generated_column_of_the_target_is_computed_and_compared(server: Any, store: str) -> None:
    with target_table(server, INVISIBLE_TOO, COLUMNS, store=store) as table:
        table.write([row(1, 5, 6, 1), row(2, 7, 8, 1)])
        table.write([row(1, 9, 10, 2), row(2, 0, None, 2, op="d")])
        table.write([Winner("u", {"id": 1, "a": 11}, (3, 3, 0, "one"), absent=("g",))])
        assert table.rows("id, a, g, v, own") == [(1, 11, 12, 33, 13)]
        with pytest.raises(DataAtRisk) as caught:
            table.write([row(3, 1, 2, 4), row(4, 1, 99, 4)])
        assert (caught.value.code, "key 4" in caught.value.what) == ("target.row_error", True)
        assert table.rows("id") == [(1,)]


def test_rows_without_a_key_are_counted_by_what_the_target_does_not_compute(server: Any) -> None:
    definition = "CREATE TABLE {name} (id BIGINT, a BIGINT, g BIGINT GENERATED ALWAYS AS (a + 1) STORED)"
    with target_table(server, definition, COLUMNS, ()) as table:
        assert loaded_columns(table.facts, schema(("id", False), ("a", False), ("g", True))) == ("id", "a", "g")


@EACH_STORE
def test_a_generated_key_finds_its_rows(server: Any, store: str) -> None:
    definition = "CREATE TABLE {name} (a BIGINT, id BIGINT GENERATED ALWAYS AS (a * 2) STORED NOT NULL PRIMARY KEY)"
    if server.mariadb:
        # MariaDB has no generated primary keys, and no NOT NULL in them
        definition = "CREATE TABLE {name} (a BIGINT, id BIGINT GENERATED ALWAYS AS (a * 2) STORED UNIQUE)"
    columns = {"id": pa.int64(), "a": pa.int64()}
    with target_table(server, definition, columns, store=store) as table:
        for seq, a in ((1, 1), (1, 2), (2, 1)):
            table.write([Winner("u", {"id": a * 2, "a": a}, (seq, seq, 0, "one"))])
        table.write([Winner("d", {"id": 4, "a": None}, (3, 3, 0, "one"))])
        assert table.write([Winner("u", {"id": 4, "a": 2}, (2, 2, 0, "one"))]).stale == 1
        assert table.rows("id, a") == [(2, 1)]


def schema(*columns: tuple[str, bool], logged: bool = True) -> TableSchema:
    """Of (name, generated); the first is the key."""
    made = [
        Column(name, parse_column_type("bigint"), nullable=bool(at), key_part=None if at else 1, generated=generated,
               logged=logged or not generated)
        for at, (name, generated) in enumerate(columns)
    ]  # fmt: skip
    return TableSchema("s", "t", tuple(made))


def test_a_generated_column_of_the_source_fills_a_plain_one(server: Any) -> None:
    with target_table(server, "CREATE TABLE {name} (id BIGINT PRIMARY KEY, a BIGINT, g BIGINT)", COLUMNS) as table:
        source = schema(("id", False), ("a", False), ("g", True))
        require_table(table.facts, source, ["id"], name="t")
        assert loaded_columns(table.facts, source) == ("id", "a", "g")
        unlogged = schema(("id", False), ("a", False), ("g", True), logged=False)
        require_table(table.facts, unlogged, ["id"], name="t")
        with raises(Refused, "target.definition", match="left out of the log"):
            require_table(table.facts, unlogged, ["id"], name="t", partial=True)
        without = schema(("id", False), ("a", False), ("h", True))
        assert loaded_columns(table.facts, without) == ("id", "a")
        require_table(table.facts, without, ["id"], name="t")
