"""The columns of a mirror follow those of the source: under one field id for life, with the values that they had."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import LongType

from cdc_core.errors import ColumnsMissing, Refused
from cdc_core.lake.lake_schema import evolved, first_schema
from cdc_core.lake.lake_tables import followed, key_names, opened
from cdc_core.lake.ordered_rows import KeySpan
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.operations.verify.lake_rows import MirrorRows
from tests.lab.made_lake import NAME, MadeLake, delete, upsert

Columns = list[tuple[str, pa.DataType]]
INT, LONG, TEXT = pa.int32(), pa.int64(), pa.string()


class Source:
    """A table that is altered, and the rows that it has."""

    def __init__(self, folder: Path) -> None:
        self.columns: Columns = [("id", INT), ("a", INT), ("b", TEXT), ("c", pa.decimal128(10, 2)), ("f", pa.float32())]
        self.lake = MadeLake(folder, self.columns)
        self.rows: dict[int, dict[str, Any]] = {}
        self.seq = 0
        self.ids = self.field_ids()

    def field_ids(self) -> dict[str, int]:
        return {field.name: field.field_id for field in self.lake.opened().schema.fields}

    def write(self, *rows: tuple[Any, ...]) -> None:
        self.seq += 1
        names = [name for name, _ in self.columns]
        self.lake.apply(*(upsert(self.seq, *row) for row in rows))
        for row in rows:
            self.rows[row[0]] = dict(zip(names, row, strict=True))

    def delete(self, key: int) -> None:
        self.seq += 1
        self.lake.apply(delete(self.seq, key))
        del self.rows[key]

    def alter(self, columns: Columns, *renames: tuple[str, str]) -> None:
        for row in self.rows.values():
            for old, new in renames:
                row[new] = row.pop(old, None)
        self.columns = columns
        self.lake.alter(columns, renames)

    def require_equal(self) -> None:
        names = [name for name, _ in self.columns]
        found = self.lake.table().scan(selected_fields=tuple(names)).to_arrow().to_pylist()
        assert {row["id"]: row for row in found} == {
            key: {name: row.get(name) for name in names} for key, row in self.rows.items()
        }
        assert len(found) == len(self.rows)


def test_a_mirror_follows_25_alters(tmp_path: Path) -> None:
    source = Source(tmp_path)
    ids = source.ids
    source.write((1, 1, "one", Decimal("1.50"), 0.5), (2, -2, "two", None, None))
    steps: Sequence[tuple[Columns, tuple[tuple[str, str], ...]]] = [
        # add, last and in between; rename; widen; move; drop
        ([*source.columns, ("d", TEXT)], ()),
        ([("id", INT), ("e", LONG), *source.columns[1:], ("d", TEXT)], ()),
        ([("id", INT), ("e", LONG), ("aa", INT), *source.columns[2:], ("d", TEXT)], (("a", "aa"),)),
        ([("id", INT), ("e", LONG), ("aa", LONG), *source.columns[2:], ("d", TEXT)], ()),
        ([("id", INT), ("aa", LONG), ("e", LONG), *source.columns[2:], ("d", TEXT)], ()),
        ([("id", LONG), ("aa", LONG), ("e", LONG), *source.columns[2:], ("d", TEXT)], ()),
        ([("id", LONG), ("aa", LONG), ("e", LONG), ("b", TEXT), ("c", pa.decimal128(12, 2)), ("f", pa.float32())], ()),
        ([("id", LONG), ("aa", LONG), ("e", LONG), ("b", TEXT), ("c", pa.decimal128(38, 2)), ("f", pa.float64())], ()),
        ([("id", LONG), ("c", pa.decimal128(38, 2)), ("f", pa.float64()), ("b", TEXT), ("aa", LONG)], ()),
        ([("id", LONG), ("c", pa.decimal128(38, 2)), ("F", pa.float64()), ("b", TEXT), ("aa", LONG)], (("f", "F"),)),
        # two names change places; a chain; a name that another column had
        ([("id", LONG), ("c", pa.decimal128(38, 2)), ("F", pa.float64()), ("x", TEXT), ("aa", LONG)], (("b", "x"),)),
        ([("id", LONG), ("c", pa.decimal128(38, 2)), ("F", pa.float64()), ("x", TEXT), ("b", LONG)], (("aa", "b"),)),
        ([("id", LONG), ("c", pa.decimal128(38, 2)), ("F", pa.float64()), ("aa", TEXT), ("b", LONG)], (("x", "aa"),)),
        ([("id", LONG), ("c", pa.decimal128(38, 2)), ("F", pa.float64()), ("z", TEXT), ("b", LONG)],
         (("aa", "y"), ("y", "z"))),
    ]  # fmt: skip
    number = 10
    for columns, renames in steps:
        source.alter(columns, *renames)
        values = {TEXT: "text", LONG: 1 << 31, INT: 7, pa.float32(): 1.5, pa.float64(): 0.1}
        row = [values.get(kind, Decimal("99999999.25")) for _, kind in columns[1:]]
        source.write((number, *row))
        source.write((1, *row))
        source.require_equal()
        number += 1
    for at in range(11):  # more columns, one by one
        source.alter([*source.columns, (f"n{at}", TEXT if at % 2 else pa.list_(pa.float32()))])
        source.write((number, *[None] * (len(source.columns) - 2), "text" if at % 2 else [1.0, 2.5]))
        source.delete(number - 1)
        source.require_equal()
        number += 1
    now = source.field_ids()
    assert {now["id"], now["z"], now["b"], now["c"], now["F"], now["d"], now["e"]} == {
        ids["id"], ids["b"], ids["a"], ids["c"], ids["f"], source.lake.opened().schema.find_field("d").field_id,
        source.lake.opened().schema.find_field("e").field_id,
    }  # fmt: skip
    assert len(set(now.values())) == len(now)
    schema = source.lake.opened().schema
    assert [field.name for field in schema.fields[-3:]] == ["e", "d", VERSION_COLUMN]  # dropped ones, and the last
    assert [field.required for field in schema.fields] == [True, *[False] * (len(now) - 2), True]


def test_a_key_that_became_wider_is_found_and_buried(tmp_path: Path) -> None:
    lake = MadeLake(tmp_path, [("id", INT), ("v", INT)])
    lake.apply(upsert(1, 1, 1), upsert(1, 2, 2), delete(1, 3))
    lake.alter([("id", LONG), ("v", INT)])
    lake.apply(upsert(2, 1 << 40, 3), upsert(2, 1, 10), delete(2, 2))
    lake.apply(delete(3, 1 << 40))
    lake.apply(upsert(2, 1 << 40, 3), upsert(1, 2, 2), upsert(0, 3, 1))  # late ones
    assert [(row["id"], row["v"]) for row in lake.scanned()] == [(1, 10)]
    assert sorted(row["id"] for row in lake.scanned(tombstones=True)) == [2, 3, 1 << 40]


def test_the_columns_of_a_key_may_be_in_another_order_than_those_of_the_table(tmp_path: Path) -> None:
    lake = MadeLake(tmp_path, [("a", INT), ("b", TEXT), ("v", INT)], ["b", "a"])
    lake.apply(upsert(1, 1, "x", 1), delete(1, 2, "y"))
    lake.alter([("a", LONG), ("b", TEXT), ("v", INT), ("w", INT)])
    lake.apply(upsert(2, 1 << 40, "x", 2, 3), upsert(0, 2, "y", 1), delete(2, 1, "x"))
    assert [(row["a"], row["w"]) for row in lake.scanned()] == [(1 << 40, 3)]
    assert [(row["b"], row["a"]) for row in lake.scanned(tombstones=True)] == [("x", 1), ("y", 2)]


def test_a_decimal_key_that_became_wider_is_found(tmp_path: Path) -> None:
    narrow, wide = pa.decimal128(5, 2), pa.decimal128(12, 2)
    lake = MadeLake(tmp_path, [("id", narrow), ("v", INT)])
    lake.apply(upsert(1, Decimal("1.00"), 1), delete(1, Decimal("2.50")))
    lake.alter([("id", wide), ("v", INT)])
    lake.apply(upsert(2, Decimal("1.00"), 2), delete(2, Decimal("123456789.00")), upsert(0, Decimal("2.50"), 0))
    assert [(row["id"], row["v"]) for row in lake.scanned()] == [(Decimal("1.00"), 2)]


def test_a_key_follows_its_columns_names_and_another_one_needs_another_mirror(tmp_path: Path) -> None:
    lake = MadeLake(tmp_path, [("id", INT), ("v", INT)])
    lake.apply(upsert(1, 1, 1), upsert(1, 2, 2), delete(1, 3))
    with lake.table(tombstones=True).update_schema() as schema:
        schema.add_column("theirs", LongType())
    lake.apply(delete(2, 1))
    unseen, other = replace(lake.rule, key=("number",)), replace(lake.rule, key=("v",))
    with pytest.raises(ColumnsMissing) as early:
        opened(lake.catalog, NAME, unseen)
    assert "follows a column that was renamed" in early.value.remedy
    with pytest.raises(Refused) as refused:
        opened(lake.catalog, NAME, other)
    assert (type(refused.value), "lockstep meta accept" in refused.value.remedy) == (Refused, True)
    for name, renames in (("number", [("id", "number")]), ("Number", [])):
        lake.rule, lake.key = replace(lake.rule, key=(name,)), (name,)
        lake.row = [pa.field(name, INT), pa.field("v", INT)]
        followed(opened(lake.catalog, NAME, lake.rule, renames), lake.row, renames)
        assert key_names(lake.opened().tombstones) == (name,)
    unpublished = MirrorRows(lake.table(), ("NUMBER",)).rows.between(["Number", "v"], KeySpan())
    assert unpublished.to_pylist() == [{"Number": 2, "v": 2}]
    lake.apply(delete(3, 2), upsert(2, 3, 3), upsert(1, 1, 7))
    assert [(one["Number"], one["v"]) for one in lake.scanned()] == [(3, 3)]
    assert {one["Number"] for one in lake.scanned(tombstones=True)} == {1, 2}


def test_a_dropped_column_keeps_its_values_in_rows_that_do_not_change(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.write((1, 1, "one", None, None), (2, 2, "two", None, None))
    source.alter([column for column in source.columns if column[0] != "b"])
    source.write((2, 22, None, None))
    assert {row["id"]: row["b"] for row in source.lake.scanned()} == {1: "one", 2: None}


def test_a_column_that_is_dropped_and_added_again_has_its_field_id(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.alter([("id", INT), ("a", INT)])
    source.alter([("id", INT), ("a", INT), ("b", TEXT)])
    assert source.field_ids()["b"] == source.ids["b"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (INT, TEXT), (TEXT, INT), (pa.float64(), pa.decimal128(10, 2)), (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.decimal128(38, 0), TEXT), (pa.timestamp("us"), pa.timestamp("us", tz="UTC")), (INT, pa.decimal128(20, 0)),
        (LONG, pa.decimal128(20, 0)), (pa.bool_(), LONG), (INT, pa.float64()), (pa.date32(), pa.timestamp("us")),
        (TEXT, pa.binary()), (pa.list_(pa.float32()), TEXT),
    ],
)  # fmt: skip
def test_what_iceberg_cannot_change_is_refused(old: pa.DataType, new: pa.DataType) -> None:
    schema = first_schema([pa.field("id", INT), pa.field("v", old)], ["id"])
    with pytest.raises(Refused) as refused:
        evolved(schema, 9, [pa.field("id", INT), pa.field("v", new)], (), table="shop.t")
    assert refused.value.code == "target.definition"
    assert "column v of shop.t" in str(refused.value)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [(LONG, INT), (pa.float64(), pa.float32()), (pa.decimal128(20, 2), pa.decimal128(10, 2)), (INT, pa.int8())],
)
def test_a_column_that_became_narrower_stays_as_it_is(wide: pa.DataType, narrow: pa.DataType) -> None:
    schema = first_schema([pa.field("id", INT), pa.field("v", wide)], ["id"])
    assert evolved(schema, 3, [pa.field("id", INT), pa.field("v", narrow)], (), table="shop.t") is None


def test_of_two_runs_that_add_columns_at_once_one_does(tmp_path: Path) -> None:
    lakes = [MadeLake(tmp_path, [("id", INT)]) for _ in range(2)]
    there = [lake.opened() for lake in lakes]

    def add(at: int) -> str:
        try:
            followed(there[at], [pa.field("id", INT), pa.field("v", TEXT)])
        except CommitFailedException:
            return "changed"
        return "added"

    with ThreadPoolExecutor(2) as both:
        assert sorted(both.map(add, range(2))) == ["added", "changed"]
    schemas = lakes[0].table().metadata.schemas
    assert [schema.schema_id for schema in schemas] == [0, 1]


def test_readers_see_new_columns_with_the_rows_that_have_them(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.write((1, 1, "one", None, None))
    source.alter([*source.columns, ("d", TEXT)])
    assert "d" not in source.lake.table().schema().column_names
    done = source.lake.attempt(upsert(5, 1, 1, "one", None, None, "new"))
    assert done.snapshots
    assert "d" not in source.lake.table().schema().column_names
    source.lake.apply(upsert(5, 1, 1, "one", None, None, "new"))
    assert source.lake.scanned()[0]["d"] == "new"


@pytest.mark.parametrize("change", ["rename", "drop", "widen", "partition"])
def test_a_table_that_somebody_altered_is_refused_until_that_is_taken_back(tmp_path: Path, change: str) -> None:
    source = Source(tmp_path)
    source.write((1, 1, "one", None, None))
    table = source.lake.table()
    if change == "partition":
        with table.update_spec() as spec:
            spec.add_identity("a")
    else:
        with table.update_schema() as schema:
            act = {
                "rename": lambda: schema.rename_column("b", "bb"),
                "drop": lambda: schema.delete_column("b"),
                "widen": lambda: schema.update_column("a", LongType()),
            }
            act[change]()
    with pytest.raises(Refused) as refused:
        source.lake.attempt(upsert(2, 1, 1, "two", None, None))
    assert refused.value.code == "target.definition"
    if change == "rename":
        with source.lake.table().update_schema() as schema:
            schema.rename_column("bb", "b")
        source.write((1, 1, "two", None, None))
        source.alter([*source.columns, ("d", TEXT)])
        source.write((2, 1, "two", None, None, "new"))
        source.require_equal()


def test_comments_and_columns_of_others_stay(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.write((1, 1, "one", None, None))
    source.alter([*source.columns, ("d", TEXT)])
    with source.lake.table().update_schema() as schema:
        schema.update_column("b", doc="what it is")
        schema.add_column("theirs", LongType())
    source.alter([*source.columns[:-1], ("d", TEXT), ("e", INT)])
    source.write((2, 1, "two", None, None, "new", 7))
    source.require_equal()
    now = source.lake.table().schema()
    assert now.find_field("b").doc == "what it is"
    assert "theirs" in now.column_names
    assert len({field.field_id for field in now.fields}) == len(now.fields)
