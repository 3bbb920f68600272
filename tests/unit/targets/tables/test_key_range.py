"""The range of some keys: the condition is true of exactly the keys from the least to the greatest."""

from __future__ import annotations

import sqlite3

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.targets.tables.key_range import range_of

KEYS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(-2, 2)] * width), min_size=1, max_size=6)
)


def batch(keys: list[tuple[int, ...]]) -> pa.RecordBatch:
    return pa.record_batch({f"k{at}": pa.array(column) for at, column in enumerate(zip(*keys, strict=True))})


@given(KEYS, st.data())
def test_the_condition_is_true_of_the_keys_between_both_ends(keys: list[tuple[int, ...]], data: st.DataObject) -> None:
    rows = batch(keys)
    key_range = range_of(rows, rows.schema.names)
    assert (key_range.least, key_range.greatest) == (min(keys), max(keys))
    cut = data.draw(st.integers(0, len(keys)))
    parts = [range_of(batch(some), rows.schema.names) for some in (keys[:cut], keys[cut:]) if some]
    assert key_range == (parts[0] if len(parts) == 1 or not parts[0] or not parts[1] else parts[0].with_(parts[1]))
    for other in data.draw(st.lists(st.tuples(*[st.integers(-3, 3)] * len(keys[0])), max_size=9)):
        with sqlite3.connect(":memory:") as connection:
            columns = ", ".join(f"{value} AS {name}" for name, value in zip(rows.schema.names, other, strict=True))
            (told,) = connection.execute(
                f"SELECT {key_range.sql(rows.schema.names)} FROM (SELECT {columns})"
            ).fetchone()
        connection.close()
        assert bool(told) == (key_range.least <= other <= key_range.greatest)


@pytest.mark.parametrize("column", [pa.array(["a"]), pa.array([b"a"]), pa.array([None], pa.int64()), pa.array([1.5])])
def test_only_whole_numbers_have_a_range(column: pa.Array) -> None:
    assert range_of(pa.record_batch({"a": pa.array([1]), "b": column}), ["a", "b"]) is None
    assert range_of(pa.record_batch({"a": pa.array([1])}), []) is None


def test_numbers_of_any_width_and_sign_have_one() -> None:
    key_range = range_of(pa.record_batch({"a": pa.array([2**64 - 1, 0, 2**63], pa.uint64())}), ["a"])
    assert key_range.sql(["`a`"]) == "`a` BETWEEN 0 AND 18446744073709551615"
