"""Unified schemas: what widens, what is null, what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.errors import Refused
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.stage.unify import common_type, unified_columns, unified_schema
from tests.lab.refusals import raises

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
RANGES = {kind: (0, 2**kind.bit_width - 1) for kind in INTEGERS if pa.types.is_unsigned_integer(kind)} | {
    kind: (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    for kind in INTEGERS
    if pa.types.is_signed_integer(kind)
}


@pytest.mark.parametrize("one", INTEGERS, ids=str)
@pytest.mark.parametrize("other", INTEGERS, ids=str)
def test_integers_widen_to_a_type_that_holds_both_ranges_and_no_wider_than_needed(one, other):
    common = common_type(one, other)
    low, high = min(RANGES[one][0], RANGES[other][0]), max(RANGES[one][1], RANGES[other][1])
    if pa.types.is_decimal(common):
        assert (low, high) == (min(low, -1), 2**64 - 1)
        assert common == pa.decimal128(20, 0)
    else:
        assert RANGES[common][0] <= low
        assert high <= RANGES[common][1]
        fits = [kind for kind in INTEGERS if RANGES[kind][0] <= low and high <= RANGES[kind][1]]
        assert common.bit_width == min(kind.bit_width for kind in fits)


DECIMALS = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))


@given(DECIMALS, DECIMALS)
def test_decimals_widen_to_hold_the_digits_before_and_behind_the_point_of_both(one, other):
    common = common_type(one, other)
    scale = max(one.scale, other.scale)
    whole = max(one.precision - one.scale, other.precision - other.scale)
    assert common == (pa.decimal128(whole + scale, scale) if whole + scale <= 38 else None)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.int64(), pa.decimal128(12, 2), pa.decimal128(22, 2)),
        (pa.string(), pa.string(), pa.string()),
        (pa.int32(), pa.string(), None),
        (pa.int32(), pa.float64(), None),
        (pa.binary(), pa.string(), None),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), None),
        (pa.date32(), pa.timestamp("us"), None),
    ],
)
def test_what_has_no_exact_common_type_is_a_conflict(one, other, common):
    assert common_type(one, other) == common
    assert common_type(other, one) == common


def table(*columns: tuple[str, str]) -> TableSchema:
    return TableSchema("shop", "orders", tuple(Column(name, ColumnType(base)) for name, base in columns))


def test_the_newest_definition_sets_the_order_and_older_columns_follow():
    old, new = (
        table(("id", "int"), ("gone", "date"), ("n", "int")),
        table(("id", "bigint"), ("added", "text"), ("n", "int")),
    )
    columns = unified_columns("t", [old, new])
    assert [(field.name, field.type) for field in columns] == [
        ("id", pa.int64()),
        ("added", pa.string()),
        ("n", pa.int32()),
        ("gone", pa.date32()),
    ]
    schema = unified_schema("t", [old, new])
    assert [field.name for field in schema.field("_before").type] == ["id", "added", "n", "gone"]


def test_columns_of_now_have_types_that_hold_older_values_and_their_case_does_not_matter():
    old, new = table(("ID", "int"), ("gone", "date")), table(("id", "bigint"), ("gone2", "text"))
    columns = unified_columns("t", [old, new, old], [new])
    assert [(field.name, field.type) for field in columns] == [("id", pa.int64()), ("gone2", pa.string())]


def test_a_conflict_names_the_column_the_types_and_the_definitions():
    old, new = table(("id", "int"), ("at", "datetime")), table(("id", "int"), ("at", "timestamp"))
    with raises(Refused, "stage.schema_conflict") as caught:
        unified_columns("shop.orders", [old, new])
    for word in ("'at'", "datetime", "timestamp", old.id, new.id, "shop.orders"):
        assert word in str(caught.value)
