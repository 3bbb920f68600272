"""The sink: which tables are captured, and which logical tables they feed."""

from __future__ import annotations

import pytest

from cdc_core.config import CaptureRules, Route
from cdc_core.errors import InternalError, Refused, UsageError
from cdc_core.model.position import Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.source.capture import SYSTEM_SCHEMAS, Capture
from tests.lab.made_blocks import Change, Made, block

BEGIN = Position(0, "binlog.000001", 4)


def schema(table: str, *columns: str) -> TableSchema:
    return TableSchema("shop", table, tuple(Column(name, ColumnType("int")) for name in ("id", *columns)))


def test_a_pattern_matches_the_whole_name_only() -> None:
    capture = Capture(CaptureRules(include=(r"shop\.orders",)))
    assert capture.captures("shop", "orders")
    assert not capture.captures("shop", "orders_old")
    assert not capture.captures("myshop", "orders")


def test_what_is_excluded_is_not_captured_though_it_is_included() -> None:
    capture = Capture(CaptureRules(include=(r"shop\..*",), exclude=(r".*\.tmp_.*",)))
    assert capture.captures("shop", "orders")
    assert not capture.captures("shop", "tmp_orders")
    assert capture.route("shop", "tmp_orders") == ()


@pytest.mark.parametrize("name", sorted(SYSTEM_SCHEMAS))
@pytest.mark.parametrize("pattern", [".*", r".*\..*", r"[a-z_]+\..+", r"(mysql|sys)\..*"])
def test_a_system_schema_is_not_captured_by_a_pattern_that_does_not_name_it(name: str, pattern: str) -> None:
    assert not Capture(CaptureRules(include=(pattern,))).captures(name, "user")


@pytest.mark.parametrize("pattern", [r"mysql\.user", r"^mysql\..*", r"mysql[.].*"])
def test_a_system_schema_is_captured_by_a_pattern_that_names_it(pattern: str) -> None:
    capture = Capture(CaptureRules(include=(".*", pattern)))
    assert capture.captures("mysql", "user")
    assert not capture.captures("sys", "user")


@pytest.mark.parametrize("name", ["_lockstep_ledger", "_lockstep_tombstone_orders", "_LOCKSTEP_MARK"])
def test_what_lockstep_keeps_in_a_target_that_is_a_source_is_not_captured(name: str) -> None:
    assert not Capture(CaptureRules(include=(r"shop\..*",))).captures("shop", name)


def test_a_table_without_a_route_has_its_own_name() -> None:
    assert Capture(CaptureRules(include=(r"shop\..*",))).route("shop", "orders") == ("shop.orders",)


def test_several_tables_may_become_one_logical_table() -> None:
    capture = Capture(CaptureRules(include=(r"shop\..*",)), (Route(match=r"shop\.orders_\d+", to="shop.orders"),))
    assert {capture.route("shop", f"orders_{i}") for i in range(4)} == {("shop.orders",)}
    assert capture.route("shop", "customers") == ("shop.customers",)


def test_one_table_may_feed_several_logical_tables_in_the_order_of_the_routes_without_repeats() -> None:
    routes = (
        Route(match=r"shop\.orders", to="b"), Route(match=r".*\.orders", to="a"), Route(match=r"shop\..*", to="b"),
    )  # fmt: skip
    assert Capture(CaptureRules(include=(".*",)), routes).route("shop", "orders") == ("b", "a")


def test_a_route_takes_groups_of_its_pattern() -> None:
    routes = (Route(match=r"shop_(\d+)\.(?P<table>\w+)", to=r"all.\g<table>_of_\1"),)
    assert Capture(CaptureRules(include=(".*",)), routes).route("shop_7", "orders") == ("all.orders_of_7",)


def test_a_route_to_an_empty_name_is_an_error_of_the_pipeline_file() -> None:
    capture = Capture(CaptureRules(include=(".*",)), (Route(match=r"shop\.orders(.*)", to=r"\1"),))
    with pytest.raises(UsageError) as raised:
        capture.route("shop", "orders")
    assert raised.value.code == "config.invalid"


def test_a_route_to_a_name_for_which_meta_has_no_room_is_an_error_of_the_pipeline_file() -> None:
    capture = Capture(CaptureRules(include=(".*",)), (Route(match=r"shop\.(.*)", to="x" * 190 + r"\1"),))
    assert capture.route("shop", "ab") == ("x" * 190 + "ab",)
    with pytest.raises(UsageError) as raised:
        capture.route("shop", "abc")
    assert raised.value.code == "config.invalid"


def test_a_database_with_a_dot_would_share_the_names_of_its_tables_with_another() -> None:
    rules = CaptureRules(include=(r"a\..*", "other"), exclude=(r"a\.left_out\..*",))
    assert Capture(rules).route("a", "b.c") == ("a.b.c",)
    assert not Capture(rules).captures("a.left_out", "c")
    assert not Capture(rules).captures("x.y", "c")
    with pytest.raises(UsageError) as raised:
        Capture(rules).captures("a.b", "c")
    assert raised.value.code == "config.invalid"


def test_apply_names_the_rows_once_per_route_and_changes_nothing_else() -> None:
    routes = (Route(match=r"shop\.orders_\d", to="orders"), Route(match=r"shop\.orders_0", to="first"))
    capture = Capture(CaptureRules(include=(r"shop\..*",)), routes)
    made = block(
        [Made([Change(schema("orders_0"), "c", {"id": 1})]), Made([Change(schema("orders_1"), "c", {"id": 2})])], BEGIN
    )
    routed = capture.apply(made)
    assert [(t.schema.table, t.logical, t.rows.column("id").to_pylist()) for t in routed.tables] == [
        ("orders_0", "orders", [1]), ("orders_0", "first", [1]), ("orders_1", "orders", [2]),
    ]  # fmt: skip
    assert (routed.begin, routed.end, routed.entries) == (made.begin, made.end, made.entries)


@pytest.mark.parametrize("name", ["_CDC_seq", "_before", "_cdc_shard", "_cdc_class", "_Cdc_Key0"])
def test_a_captured_table_with_a_reserved_column_name_is_refused(name: str) -> None:
    capture = Capture(CaptureRules(include=(r"shop\..*",)))
    made = block([Made([Change(schema("orders"), "c", {"id": 1})])], BEGIN)
    taken = TableSchema("shop", "orders", (Column("id", ColumnType("int")), Column(name, ColumnType("int"))))
    object.__setattr__(made.tables[0], "schema", taken)
    with pytest.raises(Refused, match=name) as raised:
        capture.apply(made)
    assert raised.value.code == "source.unsupported_table"


def test_rows_of_a_table_that_is_not_captured_are_a_defect_and_never_dropped_in_silence() -> None:
    capture = Capture(CaptureRules(include=(r"shop\.customers",)))
    with pytest.raises(InternalError) as raised:
        capture.apply(block([Made([Change(schema("orders"), "c", {"id": 1})])], BEGIN))
    assert raised.value.code == "internal.defect"
