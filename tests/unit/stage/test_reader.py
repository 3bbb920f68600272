"""Reading staged batches: changes under one schema, the states that they leave, and export."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc_core.errors import Refused, RetryLater, UsageError
from cdc_core.model.batch import Manifest
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, ColumnType, TableSchema, parse_column_type
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.compacting import rows_of
from cdc_core.stage.sql_views import sql
from cdc_core.stage.stage_reader import (
    by_key_batches,
    change_batches,
    changes_columns,
    state_columns,
)
from cdc_core.stage.stores import open_store
from tests.history_model import COLUMNS, KEY, NAMES, History, Unknown, histories, nets, winners
from tests.lab.made_blocks import Change, Made, at
from tests.lab.made_stages import ID, KEYLESS, NOTE, ORDERS, delete, insert, rows, stage, truncate, update
from tests.lab.refusals import raises
from tests.lab.staged_tables import changes, export, table_state

ODD_NAMES = (
    "select", "from", "order", "by", "read_parquet", "desc", "where", "key", "value", "struct", "null", "rows", "k0",
    "n",    "place", "gone", "ts", "t", "e", "c", "changes", "a.b", "😀 x/%",
)  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return open_store(f"file://{tmp_path}/stage")


def test_memory_holds_one_row_group_of_a_part_at_a_time(store, monkeypatch):
    """It ends at a weight of values: so many rows may be of any size."""
    monkeypatch.setattr("cdc_core.stage.parquet.ROW_GROUP_ROWS", 2)
    batches = stage(store, [Made([insert(number, "x" * (1 << 20)) for number in range(40)], ts=10)])
    ((part,),) = (batch.parts for batch in batches)
    before = pa.total_allocated_bytes()
    for read in (rows_of(store, part), change_batches(store, batches, "shop.orders")):
        assert max(pa.total_allocated_bytes() - before for _ in read) < 20 << 20


def test_the_last_change_of_each_key_is_its_state(store):
    batches = stage(
        store,
        [Made([insert(1), insert(2), insert(3)], ts=10)],
        [Made([update((2, "n"), (2, "new"))], ts=20), Made([delete(3), insert(4), update((4, "n"), (4, "m"))], ts=30)],
    )
    state = table_state(store, batches, "shop.orders")
    assert rows(state, "id", "note") == [(1, "n"), (2, "new"), (4, "m")]
    assert state.column_names == ["id", "note", "_cdc_seq", "_cdc_ts", "_cdc_literal", "_cdc_absent"]
    assert rows(state, "_cdc_seq") == [(at(0).seq,), (at(1).seq,), (at(2).seq,)]
    assert state.column("_cdc_ts").to_pylist()[1] == datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + (
        datetime.timedelta(microseconds=20)
    )
    assert state.schema.field("id").metadata[b"key_part"] == b"1"


def test_a_value_of_an_older_change_is_exact(store):
    numbers = {
        "d": [-0.0, 5e-324, 0.1, -1.7976931348623157e308],
        "f": [-0.0, 1e-45, 16777216.0, -3.4028234663852886e38],
    }
    vector = ColumnType("vector", length=4)
    columns = (ID, Column("d", ColumnType("double")), Column("f", ColumnType("float")), Column("v", vector), NOTE)
    schema = TableSchema("shop", "orders", columns)
    full = [
        {"id": n, "d": d, "f": f, "v": numbers["f"], "note": "n"}
        for n, (d, f) in enumerate(zip(*numbers.values(), strict=True))
    ]
    lacking = {"d": None, "f": None, "v": None, "note": "m"}
    later = [Change(schema, "u", {"id": n} | lacking, {"id": n} | lacking, absent=("d", "f", "v")) for n in range(4)]
    batches = stage(store, [Made([Change(schema, "c", row) for row in full])], [Made(later)])
    exact = changes(store, batches, "shop.orders").select(["id", "d", "f", "v"]).to_pylist()[:4]
    assert str(exact[0]["d"]) == "-0.0"
    found = rows(table_state(store, batches, "shop.orders"), "id", "d", "f", "v", "note")
    assert repr(found) == repr([(*row.values(), "m") for row in exact])


def test_a_truncate_removes_what_its_source_table_wrote_before(store):
    other = TableSchema("shop", "orders_1", ORDERS.columns)
    made = [
        Made([insert(1, logical="all"), insert(2, schema=other, logical="all")]),
        Made([truncate(logical="all"), insert(3, logical="all")]),
    ]
    assert rows(table_state(store, stage(store, made), "all"), "id") == [(2,), (3,)]


def test_keys_that_only_their_literal_tells_apart_are_different_keys(store):
    schema = TableSchema("shop", "days", (Column("day", ColumnType("date"), False, 1), NOTE))

    def day(op: str, literal: str, note: str, before: dict | None = None, **more: str) -> Change:
        return Change(schema, op, {"day": None, "note": note}, before, {"day": literal} | more)

    made = [
        Made([day("c", "0000-00-00", "zero"), day("c", "2024-02-31", "odd"), day("c", "2024-02-30", "gone")]),
        Made([day("d", "2024-02-30", "gone")]),
        Made([day("u", "2023-02-31", "moved", {"day": None, "note": "odd"}, **{"_before.day": "2024-02-31"})]),
    ]
    state = table_state(store, stage(store, made), "shop.days")
    assert sorted((dict(row["_cdc_literal"])["day"], row["note"]) for row in state.to_pylist()) == [
        ("0000-00-00", "zero"),
        ("2023-02-31", "moved"),
    ]
    assert all(name == "day" for row in state.to_pylist() for name, _ in row["_cdc_literal"])


def test_without_a_key_zeros_of_both_signs_are_different_rows(store):
    vector = ColumnType("vector", length=2)
    columns = (Column("d", ColumnType("double")), Column("f", ColumnType("float")), Column("v", vector))
    schema = TableSchema("shop", "log", columns)
    plain, minus = ({"d": sign * 0.0, "f": sign * 0.0, "v": [sign * 0.0, 0.5]} for sign in (1, -1))
    other = {"d": 0.1, "f": 16777216.0, "v": [1e-45, -3.4028234663852886e38]}
    made = [
        Made([Change(schema, "c", row) for row in (plain, minus, minus, other, plain)]),
        Made([Change(schema, "d", plain), Change(schema, "u", other, plain), Change(schema, "u", plain, minus)]),
    ]
    batches = stage(store, made)
    (exact,) = (row for row in changes(store, batches, "shop.log").to_pylist()[3:4])
    expected = [plain, minus, *[{name: exact[name] for name in other}] * 2]
    state = table_state(store, batches, "shop.log")
    assert Counter(map(repr, rows(state, "d", "f", "v"))) == Counter(repr(tuple(row.values())) for row in expected)
    answer = sql(store, {"shop": batches}, "SELECT d, f, v FROM shop.log")
    assert Counter(map(repr, rows(answer, "d", "f", "v"))) == Counter(map(repr, rows(state, "d", "f", "v")))


def test_without_a_key_a_generated_column_does_not_say_which_row_a_change_is_of(store):
    schema = replace(KEYLESS, columns=(*KEYLESS.columns, Column("g", ColumnType("int"), generated=True)))

    def row(op: str, number: int, g: int | None) -> Change:
        return Change(schema, op, {"n": number, "note": "n", "g": g}, absent=() if g else ("g",))

    made = [Made([row("c", 1, None), row("c", 1, 7), row("c", 2, 8), row("c", 3, None)], ts=1)]
    made += [Made([row("d", 2, None), row("d", 1, 7)], ts=2)]
    state = table_state(store, stage(store, made), "shop.log")
    assert rows(state, "n", "g", "_cdc_absent") == [(1, 7, None), (3, None, '["g"]')]


@pytest.mark.parametrize("key", [True, False])
def test_a_column_may_have_any_name(store, key):
    """The words of every query are columns, the key has a name with quotes, and the row's last change lacks all."""
    name = "q\"u'o"
    odd = tuple(Column(odd_name, ColumnType("int")) for odd_name in ODD_NAMES)
    schema = TableSchema("shop", "odd", (Column(name, ColumnType("int"), key_part=1 if key else None), NOTE, *odd))
    full: dict[str, Any] = {name: 1, "note": "a"} | {column.name: at for at, column in enumerate(odd)}
    lacking = dict.fromkeys(full)
    last = lacking | {name: 2 if key else 1, "note": "b"}
    before = lacking | {name: 1, "note": "a"}
    absent = [column.name for column in odd]
    if not key:
        last, before, absent = full | {"note": "b"}, full, []  # without a key, whole rows are needed
    later = Change(schema, "u", last, before, absent=tuple(absent))
    truncated = [Made([Change(schema, "c", full | {name: 7}), truncate(schema)])]
    batches = stage(store, truncated, [Made([Change(schema, "c", full)])], [Made([later])])
    [row] = table_state(store, batches, "shop.odd").to_pylist()
    assert {column: row[column] for column in full} == full | {name: last[name], "note": "b"}
    read = sql(store, {"shop": batches}, 'SELECT * FROM "shop.odd_changes" ORDER BY _cdc_seq, _cdc_row').to_pylist()
    assert [{column: change[column] for column in full} for change in read[-2:]] == [full, last]
    if key:
        by_key = pa.Table.from_batches(by_key_batches(store, batches, "shop.odd")).to_pylist()
        assert [(change["_cdc_op"], change[name]) for change in by_key] == [
            ("c", 7), ("d", 7), ("c", 1), ("d", 1), ("c", 2)
        ]  # fmt: skip
        assert {column: by_key[2][column] for column in full} == full


def keyed(table: str, **parts: int) -> TableSchema:
    """A table with these columns in the key, `note`, and, if it is not among them, `id`."""
    columns = [Column(name, ColumnType("int"), key_part=part) for name, part in ({"id": None} | parts).items()]
    return TableSchema("shop", table, (*columns, NOTE))


def test_source_tables_with_one_key_spelled_or_ordered_otherwise_have_a_common_state(store):
    one, other = keyed("one", id=1, n=2), keyed("other", N=1, ID=2)
    other = replace(other, columns=other.columns[1:])
    after, before = {"ID": 3, "N": 3, "note": "b"}, {"ID": 3, "N": 3}
    made = [
        Change(one, "c", {"id": 1, "n": 1, "note": "a"}, logical="all"),
        Change(other, "c", {"ID": 3, "N": 3, "note": "a"}, logical="all"),
        Change(other, "u", after, before, logical="all", absent=("_before.note",)),
    ]
    state = table_state(store, stage(store, [Made(made)]), "all").to_pylist()
    assert [list(row.values())[:3] for row in state] == [[1, 1, "a"], [3, 3, "b"]]


@pytest.mark.parametrize("key", [{"n": 1}, {}])
def test_source_tables_with_different_keys_have_no_state_unless_a_key_is_given(store, key):
    """By whole rows, the update would not find the row that it changes: the log has its key alone."""
    one, other = keyed("one", id=1, n=None), keyed("other", id=None, **(key or {"n": None}))
    made = [
        Change(one, "c", {"id": 1, "n": 1, "note": "a"}, logical="all"),
        Change(
            one, "u", {"id": 1, "n": 1, "note": "b"}, {"id": 1}, logical="all", absent=("_before.n", "_before.note")
        ),
        Change(other, "c", {"id": 2, "n": 2, "note": "a"}, logical="all"),
    ]
    batches = stage(store, [Made(made)])
    for partial in (False, True):
        with raises(Refused, "stage.key", match="different keys"):
            table_state(store, batches, "all", partial=partial)
        with raises(Refused, "stage.key", match="different keys"):
            sql(store, {"shop": batches}, 'SELECT * FROM "all"', partial=partial)
    assert sql(store, {"shop": batches}, "SELECT * FROM all_changes").num_rows == 3
    assert rows(table_state(store, batches, "all", ["id"]), "id", "note") == [(1, "b"), (2, "a")]
    with raises(Refused, "stage.key", match=r"column of the key \(n\) for 1 changes of all"):
        table_state(store, batches, "all", ["n"])
    with raises(Refused, "stage.key"):
        list(by_key_batches(store, batches, "all", ["n"]))


def test_a_given_key_stands_instead_of_the_tables_own(store):
    batches = stage(store, [Made([insert(1, "a", KEYLESS)]), Made([insert(1, "b", KEYLESS)])])
    assert rows(table_state(store, batches, "shop.log", key=["n"]), "n", "note") == [(1, "b")]
    with raises(Refused, "stage.key"):
        table_state(store, batches, "shop.log", key=["nothing"])


def test_a_row_that_moves_from_one_source_table_to_another_is_there_in_whatever_order_it_moves(store):
    """Each of several source tables has its own rows, whose keys are apart whenever a transaction ends."""
    old, new = (replace(ORDERS, table=name) for name in ("old", "new"))
    lacking = {"logical": "orders", "absent": ("note",)}
    here, there = ({"schema": schema, "logical": "orders"} for schema in (old, new))
    batches = stage(
        store,
        [Made([insert(number, f"{number}", **here) for number in (1, 2, 3, 4, 5, 6)], ts=10)],
        [
            Made([insert(1, "moved", **there), delete(1, "1", **here)], ts=20),
            Made([delete(2, "2", **here), insert(2, "moved", **there)], ts=20),
            Made([insert(3, "moved", **there), update((3, "3"), (3, "go"), **here), delete(3, "go", **here)], ts=20),
            Made([insert(4, "moved", **there), update((4, "4"), (7, "4"), **here)], ts=20),
            Made([insert(5, "moved", **there)], ts=30),
        ],
        # The row that has moved lacks a value; its last change before is one of the other row.
        [Made([insert(6, "moved", **there), update((6, "6"), (6, "go"), **here), delete(6, "go", **here)], ts=40)],
        [Made([update((6, None), (6, None), new, **lacking), delete(5, "moved", **there)], ts=50)],
        [Made([update((1, "moved"), (1, "again"), **there), delete(2, "moved", **there)], ts=60)],
    )
    expected = [(1, "again"), (3, "moved"), (4, "moved"), (5, "5"), (6, "moved"), (7, "4")]
    assert rows(table_state(store, batches, "orders"), "id", "note") == expected
    batch = stage(store, [Made([insert(8)], ts=10), Made([delete(8)], ts=30)], source="a")
    other = stage(store, [Made([insert(8, "moved")], ts=20)], source="b")
    assert rows(table_state(store, [*batch, *other], "shop.orders"), "id", "note") == [(8, "moved")]


WIDER = TableSchema(
    "shop", "orders", (Column("id", ColumnType("bigint"), False, 1), Column("price", ColumnType("double")))
)


def test_definitions_that_follow_each_other_are_read_under_one_schema(store):
    batches = stage(
        store,
        [Made([insert(1), insert(2)])],
        [Made([Change(WIDER, "c", {"id": 2**40, "price": 0.5})])],
        [Made([Change(WIDER, "u", {"id": 2, "price": 1.5}, {"id": 2, "price": None})])],
    )
    every = changes(store, batches, "shop.orders")
    assert every.column_names[:3] == ["id", "price", "note"]
    assert rows(every, "id", "price", "note", "_cdc_op") == [
        (1, None, "n", "c"),
        (2, None, "n", "c"),
        (2**40, 0.5, None, "c"),
        (2, 1.5, None, "u"),
    ]
    assert every.column("_before").to_pylist()[3] == {"id": 2, "price": None, "note": None}
    state = table_state(store, batches, "shop.orders")
    assert state.column_names[:2] == ["id", "price"], "a dropped column is no column of the state"
    assert rows(state, "id", "price") == [(1, None), (2, 1.5), (2**40, 0.5)]


def test_an_export_may_keep_columns_that_the_table_has_no_more(store, tmp_path):
    batches = stage(
        store, [Made([insert(1), insert(2)])], [Made([Change(WIDER, "u", {"id": 2, "price": 1.5}, {"id": 2})])]
    )
    export(store, batches, "shop.orders", tmp_path / "all.parquet", dropped=True)
    kept = pq.read_table(tmp_path / "all.parquet")
    assert rows(kept, "id", "price", "note") == [(1, None, "n"), (2, 1.5, None)]


def test_a_column_whose_name_changes_its_case_is_the_same_column(store):
    loud = TableSchema("shop", "orders", tuple(replace(column, name=column.name.upper()) for column in ORDERS.columns))
    upper = Change(loud, "u", {"ID": 2, "NOTE": "m"}, {"ID": 2, "NOTE": "n"})
    batches = stage(store, [Made([insert(1), insert(2)])], [Made([upper])])
    assert rows(table_state(store, batches, "shop.orders"), "ID", "NOTE") == [(1, "n"), (2, "m")]
    assert rows(changes(store, batches, "shop.orders"), "ID", "NOTE") == [(1, "n"), (2, "n"), (2, "m")]
    answer = sql(store, {"shop": batches}, 'SELECT "NOTE", _before."NOTE" AS was FROM shop.orders_changes ORDER BY ALL')
    assert [tuple(row.values()) for row in answer.to_pylist()] == [("m", "n"), ("n", None), ("n", None)]


def spelled(name: str, key: str) -> TableSchema:
    dated = (Column(key, ColumnType("date"), False, 1), Column(name, ColumnType("date")))
    return TableSchema("shop", "days", (*dated, NOTE))


def test_what_a_typed_column_does_not_say_is_known_by_the_column_whatever_the_case_of_its_name(store):
    small, loud = spelled("at", "day"), spelled("At", "DAY")
    zeros = [
        Change(small, "c", {"day": None, "at": None, "note": note}, None, {"day": day, "at": "0000-00-00"})
        for day, note in (("0000-00-00", "zero"), ("2024-02-31", "odd"))
    ]
    gone = {"DAY": None, "At": None, "note": "odd"}
    later = [
        Change(loud, "u", gone | {"note": None}, gone, {"DAY": "2024-02-30", "_before.DAY": "2024-02-31"},
               absent=("note", "_before.At", "At")),
    ]  # fmt: skip
    batches = stage(store, [Made(zeros)], [Made(later)])
    expected = [
        ("2024-02-30", "0000-00-00", "odd"),
        ("0000-00-00", "0000-00-00", "zero"),
    ]
    state = table_state(store, batches, "shop.days").to_pylist()
    found = [(dict(row["_cdc_literal"]), row["note"]) for row in state]
    assert sorted((of["DAY"], of["At"], note) for of, note in found) == sorted(expected)
    history = changes(store, batches, "shop.days").to_pylist()
    assert [dict(row["_cdc_literal"]).keys() for row in history[:2]] == [{"DAY", "At"}] * 2
    answer = sql(store, {"shop": batches}, "SELECT _cdc_literal FROM shop.days_changes WHERE _cdc_op = 'c'").to_pylist()
    assert [dict(row["_cdc_literal"]).keys() for row in answer] == [{"DAY", "At"}] * 2


def test_a_given_key_may_be_written_in_another_case(store):
    schema = spelled("at", "day")
    made = [
        Change(schema, "c", {"day": None, "at": None, "note": day}, None, {"day": day})
        for day in ("0000-00-00", "2024-02-31")
    ]
    batches = stage(store, [Made(made)])
    assert len(table_state(store, batches, "shop.days", ["DAY"])) == 2


def test_a_history_with_a_retyped_column_is_read_on_either_side_of_the_change(store):
    text = TableSchema("shop", "orders", (Column("id", ColumnType("varchar", length=5), False, 1), NOTE))
    batches = stage(
        store,
        [Made([insert(1)], ts=10), Made([insert(2)], ts=20)],
        [Made([Change(text, "c", {"id": "x", "note": ""})], ts=30)],
        [Made([Change(text, "c", {"id": "y", "note": ""})], ts=40)],
    )

    def read(**moments: AsOf) -> list[tuple]:
        schema = changes_columns(store, batches, "shop.orders", **moments)
        found = pa.Table.from_batches(change_batches(store, batches, "shop.orders", **moments), schema)
        return rows(found, "id")

    with pytest.raises(Refused) as caught:
        read()
    place = str(at(2))
    assert f"until={place!r} or since={place!r}" in caught.value.remedy
    assert read(until=AsOf(position=at(2))) == [(1,), (2,)]
    assert read(since=AsOf(position=at(1)), until=AsOf(position=at(2))) == [(2,)]
    for since in (AsOf(position=at(2)), AsOf(time_us=20)):
        assert read(since=since) == [("x",), ("y",)]
    assert read(since=AsOf(time_us=40)) == []
    with pytest.raises(Refused, match=re.escape(place)):
        read(since=AsOf(time_us=19))


def test_a_state_begins_after_the_last_truncate_where_types_or_keys_before_it_exclude_those_of_now(store, tmp_path):
    other = TableSchema(
        "shop", "orders", (replace(NOTE, name="code", nullable=False, key_part=1), replace(ID, key_part=None))
    )
    text = TableSchema("shop", "orders", (replace(ID, type=ColumnType("varchar", length=5)), NOTE))
    for name, schema, row, kept in (
        ("type", text, {"id": "x", "note": ""}, ("x",)),
        ("key", other, {"code": "c", "id": 7}, ("c",)),
    ):
        before, first = [Made([insert(1), insert(2)])], [Made([Change(schema, "c", row)])]
        gone, again = [Made([truncate(schema)])], [Made([Change(schema, "c", row)])]
        batches = stage(store, before, first, gone, again)
        column = schema.key[0]
        assert rows(table_state(store, batches, "shop.orders"), column) == [kept]
        assert state_columns(batches, "shop.orders") == table_state(store, batches, "shop.orders").schema
        assert export(store, batches, "shop.orders", tmp_path / name) == 1
        assert sql(store, {"shop": batches}, f'SELECT "{column}" FROM shop.orders').to_pylist() == [{column: kept[0]}]
        for suffix in ("changes", "by_key"):
            with pytest.raises(Refused, match="either side") as caught:
                sql(store, {"shop": batches}, f"SELECT count(*) FROM shop.orders_{suffix}")
            assert caught.value.code == f"stage.{'key' if name == 'key' else 'schema_conflict'}"
        assert rows(table_state(store, batches, "shop.orders", as_of=AsOf(position=at(1))), "id") == [(1,), (2,)]
        assert rows(table_state(store, batches, "shop.orders", as_of=AsOf(position=at(3))), column) == []
        for moment in (AsOf(position=at(2)), AsOf(time_us=batches[0].window_end_us)):  # of a time nothing is certain
            with pytest.raises(Refused) as caught:
                table_state(store, batches, "shop.orders", as_of=moment)
            assert caught.value.code in ("stage.schema_conflict", "stage.key")


def test_a_truncate_of_another_source_table_takes_no_definition_away(store):
    text = TableSchema("shop", "orders_1", (replace(ID, type=ColumnType("varchar", length=5)), NOTE))
    batches = stage(store, [Made([insert(1)])], [Made([truncate(text, logical="shop.orders")])])
    with raises(Refused, "stage.schema_conflict"):
        table_state(store, batches, "shop.orders")


def test_a_table_that_is_not_staged_is_refused_with_the_names_that_are(store):
    with raises(UsageError, "usage.unknown_name", match=r"shop\.orders"):
        table_state(store, stage(store, [Made([insert(1)])]), "shop.order")


def test_an_export_holds_the_state_in_one_file(store, tmp_path):
    batches = stage(store, [Made([insert(n) for n in range(1000)])], [Made([delete(n) for n in range(0, 1000, 2)])])
    target = tmp_path / "orders.parquet"
    assert export(store, batches, "shop.orders", target) == 500
    assert pq.read_table(target).equals(table_state(store, batches, "shop.orders"))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["orders.parquet"]


def test_an_export_that_fails_leaves_the_file_of_before(store, tmp_path):
    target = tmp_path / "orders.parquet"
    target.write_text("before")
    with pytest.raises(UsageError):
        export(store, stage(store, [Made([insert(1)])]), "shop.nothing", target)
    assert target.read_text() == "before"
    batches = stage(store, [Made([insert(1)])])
    for name in ("x.parquet", "x.csv"):
        with raises(RetryLater, "disk.error"):
            export(store, batches, "shop.orders", tmp_path / "no/folder" / name)


def definition(*, keyed: bool) -> TableSchema:
    """The table of tests/history_model.py."""
    columns = [
        Column(
            name,
            parse_column_type(kind, charset="utf8mb4" if kind.startswith("varchar") else "", collation=""),
            key_part=KEY.index(name) + 1 if keyed and name in KEY else None,
        )
        for name, kind in COLUMNS.items()
    ]
    return TableSchema("shop", "items", tuple(columns))


def staged_history(store, history: History, schema: TableSchema, cuts: Sequence[bool]) -> dict[str, list[Manifest]]:
    """By source, its batches. The transaction with seq n of the history is the n-th of its source."""
    batches = {}
    for server in history.servers:
        made: list[list[Made]] = [[]]
        for seq in range(max(change.seq for change in server.log) + 1):
            own = [change for change in server.log if change.seq == seq]
            changes = [
                Change(
                    schema,
                    change.op,
                    dict(change.row),
                    change.before and dict(change.before),
                    change.literal,
                    absent=change.absent,
                )
                for change in own
            ]
            made[-1].append(Made(changes, ts=own[0].ts_us if own else 0))
            if cuts[seq % len(cuts)]:
                made.append([])
        batches[server.source] = stage(store, *filter(None, made), source=server.source)
    return batches


def as_read(row: dict[str, Any], absent: Sequence[str] = ()) -> tuple[Any, ...]:
    literal = dict(row["_cdc_literal"] or [])
    return tuple("?" if name in absent else literal.get(name, row[name]) for name in NAMES)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), cuts=st.lists(st.booleans(), min_size=5, max_size=5), part_rows=st.sampled_from([7, 1 << 22]))
@pytest.mark.parametrize(
    ("sources", "minimal", "keyed"), [(1, False, True), (2, False, True), (1, True, True), (1, False, False)]
)
def test_the_state_is_what_the_model_of_history_says(tmp_path_factory, sources, minimal, keyed, data, cuts, part_rows):
    """Also where its events wait in scratch files, a file for each part of the keys."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cdc_core.stage.event_parts.PART_ROWS", part_rows)
        compare_with_the_model(tmp_path_factory, sources, minimal, keyed, data, cuts)


def compare_with_the_model(tmp_path_factory, sources, minimal, keyed, data, cuts):
    drawn = data.draw(histories(sources=sources, minimal=minimal, keyed=keyed, truncates=True))
    schema = definition(keyed=keyed)
    store = open_store(f"file://{tmp_path_factory.mktemp('stage')}")
    by_source = staged_history(store, drawn, schema, cuts)
    batches = [batch for some in by_source.values() for batch in some]
    found = table_state(store, data.draw(st.permutations(batches)), schema.name).to_pylist()
    if not keyed:
        assert Counter(as_read(row) for row in found) == nets(drawn.changes, NAMES)
        return
    said = {key: one for key, one in winners(drawn.changes, NAMES, KEY, apart=True).items() if one.op == "u"}
    values = [tuple("?" if isinstance(row.values[name], Unknown) else row.values[name] for name in NAMES)
              for row in said.values()]  # fmt: skip
    assert sorted(map(str, (as_read(row, json.loads(row["_cdc_absent"] or "[]")) for row in found))) == sorted(
        map(str, values)
    )
    assert {(row["a"], row["b"]): row["_cdc_seq"] for row in found} == {
        key: at(row.order[0]).seq for key, row in said.items()
    }
    if sources == 1 and not minimal:
        in_order = by_source["s0"]
        last = {(row["a"], row["b"]): row for batch in by_key_batches(store, in_order, schema.name)
                for row in batch.to_pylist()}  # fmt: skip
        assert {key: as_read(row) for key, row in last.items() if row["_cdc_op"] != "d"} == {
            (row[0], row[1]): row for row in values
        }


@pytest.mark.parametrize("schema", [ORDERS, KEYLESS])
def test_the_state_at_a_moment_is_what_the_changes_before_it_leave(store, schema):
    history = [
        Made([insert(1, "a", schema), insert(2, "b", schema)], ts=1_000_000),
        Made([delete(1, "a", schema)], ts=2_000_000),
        Made([insert(3, "c", schema)], ts=2_000_000),
        Made([insert(1, "d", schema), delete(2, "b", schema)], ts=3_000_000),
        Made([insert(4, "e", schema)], ts=4_000_000),
    ]
    batches = stage(store, history[:2], history[2:3], history[3:])
    states = [
        {},
        {1: "a", 2: "b"},
        {2: "b"},
        {2: "b", 3: "c"},
        {1: "d", 3: "c"},
        {1: "d", 3: "c", 4: "e"},
    ]
    name = schema.columns[0].name

    def found(moment: AsOf) -> dict[int, str]:
        rows = table_state(store, batches, schema.name, as_of=moment).to_pylist()
        assert len({row[name] for row in rows}) == len(rows)
        return {row[name]: row["note"] for row in rows}

    for number, state in enumerate(states[1:], 1):
        assert found(AsOf(position=at(number))) == state
    for time_us, number in ((1_000_000, 1), (1_999_999, 1), (2_000_000, 3), (3_500_000, 4), (9_000_000, 5)):
        assert found(AsOf(time_us=time_us)) == states[number]
        asked = f'SELECT {name}, note FROM "{schema.name}"'
        rows = sql(store, {"shop": batches}, asked, as_of=AsOf(time_us=time_us)).to_pylist()
        assert {row[name]: row["note"] for row in rows} == states[number]


def test_what_a_window_brings_changes_no_state_as_of_its_begin(store):
    hour_us = 3_600_000_000
    transactions = [Made([insert(2, "at")], ts=hour_us), Made([insert(3, "late")], ts=hour_us // 2)]
    first, second = stage(store, [Made([insert(1, "before")], ts=hour_us - 1)], transactions)
    second = replace(second, window_start_us=hour_us, window_end_us=2 * hour_us)
    until = AsOf(time_us=hour_us)
    for known in ([first], [first, second]):
        assert rows(table_state(store, known, "shop.orders", as_of=until), "id") == [(1,)]
    since = pa.Table.from_batches(change_batches(store, [first, second], "shop.orders", since=until))
    assert rows(since, "id") == [(2,), (3,)]


def test_a_moment_that_is_not_staged_completely_is_refused():
    reached = {"shop": Checkpoint(at(5), watermark_us=5_000)}
    AsOf(position=at(5)).require_staged(reached)
    AsOf(time_us=5_000).require_staged(reached)
    for moment, sources in (
        (AsOf(position=at(6)), reached),
        (AsOf(time_us=5_001), reached),
        (AsOf(time_us=1), {**reached, "other": None}),
    ):
        with raises(Refused, "stage.as_of"):
            moment.require_staged(sources)
    with raises(UsageError, "usage.argument"):
        AsOf(position=at(1)).require_staged({**reached, "other": Checkpoint(at(9))})


def test_a_position_is_read_as_it_is_printed():
    for position in (at(3), Position(2, "my.bin.000077", 1234)):
        assert Position.from_text(str(position)) == position
    times = ("2026-11-21T04:00:00Z", "2026-11-21T04:00:00.000001+02:00")
    for text in (*times, "binlog.000001", "binlog:4", "binlog.000001:3", "timeline 1024 binlog.000001:4", ""):
        with pytest.raises(ValueError, match="is not a position"):
            Position.from_text(text)
