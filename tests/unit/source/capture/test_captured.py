"""The sink: which tables are captured, and which logical tables they feed."""

from __future__ import annotations

from dataclasses import fields

import pytest

from cdc_core.config import CaptureRules, Route
from cdc_core.errors import InternalError, Refused, UsageError
from cdc_core.model.position import Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.source.capture import SYSTEM_SCHEMAS, Capture
from tests.lab.made_blocks import Change, Made, block
from tests.lab.refusals import raises

BEGIN = Position(0, "binlog.000001", 4)


def schema(table: str, *columns: str) -> TableSchema:
    return TableSchema("shop", table, tuple(Column(name, ColumnType("int")) for name in ("id", *columns)))


@pytest.mark.parametrize(
    ("include", "exclude", "captured", "others"),
    [
        ([r"shop\.orders"], [], ["shop.orders"], ["shop.orders_old", "myshop.orders"]),
        ([r"shop\..*"], [r".*\.tmp_.*"], ["shop.orders"], ["shop.tmp_orders"]),
        *(
            ([pattern], [], [], [f"{name}.user" for name in SYSTEM_SCHEMAS])
            for pattern in (".*", r".*\..*", r"[a-z_]+\..+")
        ),
        ([r"(mysql|sys)\..*"], [], [], ["mysql.user", "sys.user"]),
        *(
            ([".*", pattern], [], ["mysql.user"], ["sys.user"])
            for pattern in (r"mysql\.user", r"^mysql\..*", r"mysql[.].*")
        ),
        # What Lockstep keeps in a target that is a source.
        ([r"shop\..*"], [], [], ["shop._lockstep_ledger", "shop._lockstep_tombstone_orders", "shop._LOCKSTEP_MARK"]),
    ],
)
def test_tables_are_captured_whose_whole_names_are_included_and_not_excluded_nor_those_of_a_server(
    include: list[str], exclude: list[str], captured: list[str], others: list[str]
) -> None:
    capture = Capture(CaptureRules(include=tuple(include), exclude=tuple(exclude)))
    names = [tuple(name.split(".")) for name in (*captured, *others)]
    assert [".".join(name) for name in names if capture.captures(*name)] == captured
    assert [".".join(name) for name in names if capture.route(*name)] == captured


@pytest.mark.parametrize(
    ("include", "may"),
    [
        (r"shop\..*", True), (r"SHOP\.orders", True), (r"sh.*\.orders", True), (r"shop_\d+\..*", False), (r".*", True),
        (r"other\..*", False), (r"(other\.a|shop\.b)", True), (r"other\.a|shop\.b", True), ("shop[.]orders", True),
        (r"sh\.?.*\.orders", True), (r"s\.*hop\.a", True), (r"sh\.{0,1}op\.a", True), (r"shop(?!$)\.orders", True),
    ],
)  # fmt: skip
def test_a_captured_table_may_be_in_a_database_unless_every_pattern_names_others(include: str, may: bool) -> None:
    assert Capture(CaptureRules(include=(include,))).may_be_in("shop") is may


@pytest.mark.parametrize(
    ("routes", "table", "logical"),
    [
        ([], "shop.orders", ("shop.orders",)),
        ([(r"shop\.orders_\d+", "shop.orders")], "shop.orders_3", ("shop.orders",)),
        ([(r"shop\.orders_\d+", "shop.orders")], "shop.customers", ("shop.customers",)),
        ([(r"shop\.orders", "b"), (r".*\.orders", "a"), (r"shop\..*", "b")], "shop.orders", ("b", "a")),
        ([(r"shop_(\d+)\.(?P<table>\w+)", r"all.\g<table>_of_\1")], "shop_7.orders", ("all.orders_of_7",)),
    ],
)
def test_a_table_feeds_the_logical_tables_of_its_routes_in_their_order_or_one_of_its_own_name(
    routes: list[tuple[str, str]], table: str, logical: tuple[str, ...]
) -> None:
    rules = tuple(Route(match=match, to=to) for match, to in routes)
    assert Capture(CaptureRules(include=(".*",)), rules).route(*table.split(".")) == logical


def test_a_route_to_an_empty_name_is_an_error_of_the_pipeline_file() -> None:
    capture = Capture(CaptureRules(include=(".*",)), (Route(match=r"shop\.orders(.*)", to=r"\1"),))
    with raises(UsageError, "config.invalid"):
        capture.route("shop", "orders")


def test_a_route_to_a_name_for_which_meta_has_no_room_is_an_error_of_the_pipeline_file() -> None:
    capture = Capture(CaptureRules(include=(".*",)), (Route(match=r"shop\.(.*)", to="x" * 190 + r"\1"),))
    assert capture.route("shop", "ab") == ("x" * 190 + "ab",)
    with raises(UsageError, "config.invalid"):
        capture.route("shop", "abc")


def test_a_database_with_a_dot_would_share_the_names_of_its_tables_with_another() -> None:
    rules = CaptureRules(include=(r"a\..*", "other"), exclude=(r"a\.left_out\..*",))
    assert Capture(rules).route("a", "b.c") == ("a.b.c",)
    assert not Capture(rules).captures("a.left_out", "c")
    assert not Capture(rules).captures("x.y", "c")
    with raises(UsageError, "config.invalid"):
        Capture(rules).captures("a.b", "c")


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
    assert (routed.begin, routed.end) == (made.begin, made.end)
    assert all(getattr(routed.entries, own.name) is getattr(made.entries, own.name) for own in fields(made.entries))


@pytest.mark.parametrize("name", ["_CDC_seq", "_before", "_cdc_shard", "_cdc_class", "_Cdc_Key0"])
def test_a_captured_table_with_a_reserved_column_name_is_refused(name: str) -> None:
    capture = Capture(CaptureRules(include=(r"shop\..*",)))
    made = block([Made([Change(schema("orders"), "c", {"id": 1})])], BEGIN)
    taken = TableSchema("shop", "orders", (Column("id", ColumnType("int")), Column(name, ColumnType("int"))))
    object.__setattr__(made.tables[0], "schema", taken)
    with raises(Refused, "source.unsupported_table", match=name):
        capture.apply(made)


def test_rows_of_a_table_that_is_not_captured_are_a_defect_and_never_dropped_in_silence() -> None:
    capture = Capture(CaptureRules(include=(r"shop\.customers",)))
    with raises(InternalError, "internal.defect"):
        capture.apply(block([Made([Change(schema("orders"), "c", {"id": 1})])], BEGIN))
