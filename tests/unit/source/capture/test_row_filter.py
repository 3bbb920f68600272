"""Conditions on rows: what is let in by the grammar, what a row must meet, and what becomes of updates."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from cdc_core.config import CaptureRules, RowFilter
from cdc_core.errors import DataAtRisk, UsageError
from cdc_core.model.block import Block
from cdc_core.model.condition import parse
from cdc_core.model.position import Position
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.source.capture import Capture
from cdc_core.source.capture.captured import FILTERED
from tests.lab.made_blocks import Change, Made, block
from tests.lab.refusals import raises

BEGIN = Position(0, "binlog.000001", 4)
TYPES = {
    "id": "int", "n": "int", "big": "bigint unsigned", "price": "decimal(9,2)", "ratio": "float", "name": "varchar(20)",
    "day": "date", "at": "datetime(3)", "seen": "timestamp", "flag": "bit(1)", "raw": "varbinary(9)", "odd name": "int",
    "long": "decimal(40,2)",
    "made": "year",
}  # fmt: skip
ORDERS = TableSchema(
    "shop",
    "orders",
    tuple(Column(name, parse_column_type(kind), key_part=1 if name == "id" else None) for name, kind in TYPES.items()),
)
ROW: dict[str, Any] = dict.fromkeys(TYPES) | {
    "id": 1, "n": 5, "big": 2**64 - 1, "price": Decimal("12.50"), "ratio": 1.5, "name": "paid", "day": date(2026, 3, 1),
    "at": datetime(2026, 3, 1, 12), "flag": True, "raw": b"\xc3\xbc", "odd name": 3,
    "long": "9.50", "made": 2026,
}  # fmt: skip


def filtered(where: str | tuple[str, ...], *entries: list[Change]) -> Block:
    rules = tuple(
        RowFilter(match=r"shop\.orders", where=condition)
        for condition in ([where] if isinstance(where, str) else where)
    )
    capture = Capture(CaptureRules(include=(".*",), rows=rules))
    return capture.apply(block([Made(changes) for changes in entries], BEGIN))


def insert(**values: Any) -> Change:
    return Change(ORDERS, "c", ROW | values)


def meets(where: str, **values: Any) -> bool:
    return bool(filtered(where, [insert(**values)]).tables[0].rows.num_rows)


@pytest.mark.parametrize(
    "where",
    [
        "n == 5", "n != 4", "4 < n <= 5", "not n > 5", "n == 5 and (name == 'x' or name == 'paid')", "n in (1, 5)",
        "n not in (1, 2)", "n > -1", "big == 18446744073709551615", "price == 12.5",
        "price >= 12", "ratio == 1.5", "name >= 'pa'", "day < '2026-03-02'", "at == '2026-03-01 12:00:00'",
        "flag == true", "flag == 1", "raw == 'ü'", "column('odd name') == 3", "name is not null", "seen is null",
        "seen is Null", "day in ('2026-03-01', '2020-01-01')",
    ],
)  # fmt: skip
def test_a_row_that_meets_its_conditions_goes_on_and_is_left_out_by_their_contrary(where: str) -> None:
    assert meets(where)
    assert not meets(f"not ({where})")


@pytest.mark.parametrize("where", ["long < 10", "long == 9.5", "long in (9.5, 10)", "long > -10", "long < '10'"])
def test_a_decimal_of_any_length_is_compared_as_a_number(where: str) -> None:
    assert meets(where)
    assert not meets(f"not ({where})")


def test_a_literal_has_all_of_its_digits() -> None:
    """A Python float has 17."""
    for where in ("long == 12345678901234567.89", "long in (0.5, 12345678901234567.89)"):
        assert meets(where, long="12345678901234567.89")
        assert not meets(where, long="12345678901234567.88")
    assert meets("-1234567890123456789012345678901234567.25 == long", long="-1234567890123456789012345678901234567.25")


def test_a_float_is_compared_as_a_server_does_with_all_of_its_digits() -> None:
    """The nearest FLOAT to 0.1 is greater than 0.1."""
    for where in ("ratio == 0.1", "ratio in (0.1, 7)", "ratio <= 0.1"):
        assert not meets(where, ratio=0.1)
    assert meets("ratio > 0.1 and ratio not in (0.1, 7)", ratio=0.1)
    assert not meets("ratio not in (0.5, 7)", ratio=None)


@pytest.mark.parametrize("where", ["made > 25", "made in (2000, 26)", "99 >= made", "not made == '26'"])
def test_a_year_of_two_digits_is_refused_which_a_server_takes_for_another(where: str) -> None:
    with pytest.raises(UsageError, match="is a YEAR"):
        meets(where)
    assert meets("made >= 2026 and made != 0 and made in (2026, 100)")


def test_zeros_of_both_signs_are_one_value() -> None:
    assert meets("ratio == 0 and ratio in (0.0, 1) and ratio in (0, 1)", ratio=-0.0)


@pytest.mark.parametrize("where", ["n == 5", "n != 5", "not n == 5", "n in (1, 5)", "n not in (1, 5)", "n < 5"])
def test_what_is_unknown_is_not_met_as_in_sql(where: str) -> None:
    assert not meets(where, n=None)


def test_one_side_decides_where_the_other_is_unknown() -> None:
    assert meets("n == 5 or price > 1", n=None)
    assert not meets("n == 5 and price > 1", n=None)
    assert meets("not (n == 5 and price < 1)", n=None)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("colour == 'red'", "no column 'colour'"), ("n == 'x'", "'x' is not a value of n"), ("n == 3000000000", "n:"),
        ("name == 1", "1 is not a value of name"), ("price == 1.234", "1.234 is not a value"), ("n == 5.5", "5.5 is"),
        ("day == 'soon'", "'soon' is not a value of day"), ("seen > '2026-01-01 00:00:00'", "zone offset"),
        ("flag == 2", "2 is not a value of flag"), ("big > n", "big is uint64, and n is int32"),
    ],
)  # fmt: skip
def test_a_condition_that_does_not_fit_the_table_is_told_at_first_sight_even_before_a_row(
    where: str, says: str
) -> None:
    capture = Capture(CaptureRules(include=(".*",), rows=(RowFilter(match=".*", where=where),)))
    for attempt in (lambda: capture.shape(ORDERS), lambda: capture.apply(block([Made([insert()])], BEGIN))):
        with raises(UsageError, "config.invalid", match=r"does not fit shop\.orders") as raised:
            attempt()
        assert says in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "", "n", "n = 5", "f(n) == 5", "__import__('os').system('x') == 0", "n.real == 5", "n == null", "n is 5",
        "n in ()", "n in (m, 2)", "name in 'abc'", "n == [1]", "n + 1 == 2", "(lambda: 1)() == n", "1 == 1",
        "n == b'x'", "n == 1; m == 2", "[n for n in n] == 1", "n := 5", "(" * 400 + "n == 1" + ")" * 400,
        "not " * 5000 + "n == 1", "column(n) == 1", "column('a', 'b') == 1", "n == ...", "n == 1j", "n\0 == 1",
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused_and_nothing_of_it_is_run(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse(text)


def change(before: int, after: int, **more: Any) -> Change:
    """An update of n from one value to another."""
    return Change(ORDERS, "u", ROW | {"n": after}, ROW | {"n": before, "id": more.pop("old_id", 1)}, **more)


def only_row(of: Block) -> dict[str, Any]:
    (row,) = of.tables[0].rows.to_pylist()
    return dict(row)


def test_an_update_by_which_a_row_leaves_is_a_delete_of_the_row_before_under_its_old_key() -> None:
    row = only_row(filtered("n == 1", [change(1, 2, old_id=7)]))
    assert (row["_cdc_op"], row["id"], row["n"], row["_before"]) == ("d", 7, 1, None)


def test_an_update_by_which_a_row_enters_is_an_insert() -> None:
    row = only_row(filtered("n == 2", [change(1, 2, old_id=7)]))
    assert (row["_cdc_op"], row["id"], row["n"], row["_before"]) == ("c", 1, 2, None)


def test_an_update_inside_stays_one_and_outside_is_left_out() -> None:
    row = only_row(filtered("n in (1, 2)", [change(1, 2)]))
    assert (row["_cdc_op"], row["n"], row["_before"]["n"]) == ("u", 2, 1)
    assert filtered("n == 9", [change(1, 2)]).tables[0].rows.num_rows == 0


def test_a_delete_goes_on_where_the_row_was_inside() -> None:
    gone = [Change(ORDERS, "d", ROW), Change(ORDERS, "d", ROW | {"n": 6})]
    assert only_row(filtered("n == 5", gone))["_cdc_op"] == "d"


def test_all_conditions_that_match_a_table_must_be_met() -> None:
    assert filtered(("n == 5", "name == 'paid'"), [insert()]).tables[0].rows.num_rows == 1
    assert filtered(("n == 5", "name == 'x'"), [insert()]).tables[0].rows.num_rows == 0


def test_rows_left_out_are_counted_and_the_entries_know_what_is_left() -> None:
    made = filtered("n == 5", [insert(), insert(n=1), insert(n=2)], [insert(n=1)], [insert(id=2)])
    assert made.left_out == {FILTERED: 3}
    assert made.entries.rows.tolist() == [1, 0, 1]
    assert made.tables[0].entry.tolist() == [0, 2]


def test_the_exact_texts_and_absent_names_of_a_turned_update_are_those_of_its_image() -> None:
    day = {"day": "2020-02-31", "_before.day": "0000-00-00"}
    after, before = (ROW | {"n": n, "day": None} for n in (2, 1))
    update = Change(ORDERS, "u", after, before, literal=day, absent=("_before.raw",))
    rows = filtered("n == 1", [update]).tables[0].rows.to_pylist()
    assert [(row["_cdc_literal"], row["_cdc_absent"]) for row in rows] == [([("day", "0000-00-00")], '["raw"]')]
    rows = filtered("n == 2", [update]).tables[0].rows.to_pylist()
    assert [(row["_cdc_literal"], row["_cdc_absent"]) for row in rows] == [([("day", "2020-02-31")], None)]
    rows = filtered("n > 0", [update]).tables[0].rows.to_pylist()
    assert [(row["_cdc_literal"], row["_cdc_absent"]) for row in rows] == [(list(day.items()), '["_before.raw"]')]


@pytest.mark.parametrize(
    "unknown",
    [
        Change(ORDERS, "u", ROW, ROW, absent=("n",)), Change(ORDERS, "u", ROW, ROW, absent=("_before.n",)),
        Change(ORDERS, "d", ROW, absent=("n",)), Change(ORDERS, "c", ROW | {"n": None}, literal={"n": "?"}),
        Change(ORDERS, "u", ROW, ROW | {"n": 1}, absent=("name",)),
    ],
    ids=["after", "before", "delete", "literal", "enters in part"],
)  # fmt: skip
def test_a_filter_stops_where_it_would_have_to_guess(unknown: Change) -> None:
    with raises(DataAtRisk, "sink.unknown_value") as raised:
        filtered("n == 5", [unknown])
    assert "binlog.000001" in raised.value.where


def test_values_that_a_filter_does_not_ask_for_may_be_absent() -> None:
    inside = filtered("n > 0", [Change(ORDERS, "u", ROW, ROW, absent=("name", "_before.name"))])
    assert inside.tables[0].rows.num_rows == 1
