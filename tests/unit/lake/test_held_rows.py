"""Keys are found among those of a row group, whatever their type and the group's order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from cdc_core.lake.held_rows import SoughtKeys

KINDS: dict[str, Callable[[int], pa.Scalar]] = {
    "int": lambda n: pa.scalar(n - 250),
    "text": lambda n: pa.scalar(f"key {n}"),
    "bytes": lambda n: pa.scalar(bytes([0, n % 256, n // 256])),
    "decimal": lambda n: pa.scalar(Decimal(n) / 10, pa.decimal128(38, 1)),
    "date": lambda n: pa.scalar(dt.date(2020, 1, 1) + dt.timedelta(n)),
    "time": lambda n: pa.scalar(dt.datetime(2020, 1, 1, microsecond=n), pa.timestamp("us")),
    "float": lambda n: pa.scalar(n / 7 - 30),
}


def column(kind: str, numbers: np.ndarray) -> pa.Array:
    values = [KINDS[kind](number) for number in numbers.tolist()]
    return pa.array([value.as_py() for value in values], KINDS[kind](0).type)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("ours", "theirs"), [(0, 5), (1, 5), (5, 0), (50, 70), (300, 1), (300, 300)])
def test_each_key_is_found(kind: str, in_order: bool, ours: int, theirs: int) -> None:
    random = np.random.default_rng(ours + theirs)
    known, sought = (random.permutation(500)[:count] for count in (ours, theirs))
    sought = np.sort(sought) if in_order else sought
    rows, numbers = SoughtKeys([column(kind, known)]).among([column(kind, sought)])
    places = {key: number for number, key in enumerate(known.tolist())}
    expected = [(row, places[key]) for row, key in enumerate(sought.tolist()) if key in places]
    assert sorted(zip(rows.tolist(), numbers.tolist(), strict=True)) == expected


def test_a_key_of_several_columns_is_found_as_a_whole() -> None:
    sought = SoughtKeys([pa.array([1, 1, 2]), pa.array(["a", "b", "a"])])
    rows, numbers = sought.among([pa.array([2, 1, 2, 1]), pa.array(["b", "b", "a", "c"])])
    assert sorted(zip(rows.tolist(), numbers.tolist(), strict=True)) == [(1, 1), (2, 2)]


def test_a_key_that_a_group_has_twice_is_found_twice_and_null_never() -> None:
    rows, numbers = SoughtKeys([pa.array([7, 3])]).among([pa.array([3, 3, None, 7, 9])])
    assert sorted(zip(rows.tolist(), numbers.tolist(), strict=True)) == [(0, 1), (1, 1), (3, 0)]
    assert not len(SoughtKeys([pa.array([7])]).among([pa.nulls(3, pa.int64())])[0])


def test_zero_is_found_whatever_its_sign() -> None:
    rows, numbers = SoughtKeys([pa.array([1.5, -0.0])]).among([pa.array([0.0, 1.5])])
    assert sorted(zip(rows.tolist(), numbers.tolist(), strict=True)) == [(0, 1), (1, 0)]
