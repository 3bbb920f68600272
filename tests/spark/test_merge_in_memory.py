"""The merge in memory is what the model of history says; without Spark, so that many histories can be tried."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cdc_core.stage.stores import open_store
from spark_jobs import arrow_changes, small_tables
from spark_jobs.arrow_changes import Memory, NotSmallError
from spark_jobs.arrow_parts import Parts, parts_of_keys
from spark_jobs.job import Job
from tests.history_model import COLUMNS, KEY, NAMES, TRUNCATE_KEY, Change, winners
from tests.spark.staged_changes import Stage, table_schema
from tests.spark.test_merge import CASES, model_values, pipeline

HISTORIES = table_schema("shop.items", COLUMNS, KEY)


def staged(folder: Path, changes: Sequence[Change], files: int, on_truncate: str, data: st.DataObject) -> Job:
    """A job that merges the changes, which each source has in so many files, in any order."""
    stage = Stage(folder)
    for source in sorted({change.source for change in changes}):
        mine = data.draw(st.permutations([change for change in changes if change.source == source]))
        for number in range(min(files, len(mine))):
            stage.add("shop.items", HISTORIES, mine[number::files])
    plan = stage.plan("r", {"shop.items": list(KEY)}, on_truncate=on_truncate)
    spark: Any = None
    return Job(lambda: spark, pipeline(stage.root), plan, open_store(stage.uri), set_name="0")


@pytest.mark.parametrize("case", CASES)
@given(data=st.data(), files=st.integers(1, 4), few=st.sampled_from([0, arrow_changes.FEW_ROWS]))
@settings(max_examples=100)
def test_the_merge_in_memory_is_what_the_model_of_history_says(
    case: str, files: int, few: int, data: st.DataObject
) -> None:
    drawn, on_truncate = CASES[case]
    changes = data.draw(drawn).changes
    with tempfile.TemporaryDirectory() as folder:
        job = staged(Path(folder), changes, files, on_truncate, data)
        small = small_tables._small(job, job.merge_set.tables[0])
        if len({change.source for change in changes}) > 1 and any(change.absent for change in changes):
            assert small is None
            return
        assert small is not None
        with Memory(1 << 30).share() as take, patch.object(arrow_changes, "FEW_ROWS", few):
            table, counts, undone, _ = small_tables.merged_rows(job.store, small, take)
    found = {}
    for row in table.to_pylist():
        key = TRUNCATE_KEY if row["_cdc_op"] == "t" else (row["a"], row["b"])
        found[key] = (row["_cdc_op"], (row["_cdc_seq"], row["_cdc_row"]), row["_cdc_source"], model_values(row))
    last = winners([one for one in changes if on_truncate == "apply" or one.op != "t"], NAMES, KEY)
    assert found == {
        key: (one.op, one.order, one.source, dict(one.values) if one.op == "u" else None) for key, one in last.items()
    }
    assert counts.rows + undone == len(changes)
    assert counts.rows + counts.key_changes == table.num_rows + counts.superseded


@pytest.mark.parametrize("case", CASES)
@given(data=st.data(), files=st.integers(1, 4), parts=st.integers(1, 7))
@settings(max_examples=60)
def test_a_merge_in_parts_has_the_rows_and_counts_of_a_merge_at_once(
    case: str, files: int, parts: int, data: st.DataObject
) -> None:
    drawn, on_truncate = CASES[case]
    changes = data.draw(drawn).changes
    with tempfile.TemporaryDirectory() as folder:
        job = staged(Path(folder), changes, files, on_truncate, data)
        small = small_tables._small(job, job.merge_set.tables[0])
        assume(small is not None)
        assert small is not None
        with Memory(1 << 30).share() as take:
            at_once, counts, undone, removing = small_tables.merged_rows(job.store, small, take)
        moves = any(one.op == "u" and one.before is not None for one in changes)
        try:
            done = small_tables.merge_in_parts(job.store, small, 1 << 30, parts)
        except NotSmallError:
            assert small.rule.fill
            assert moves
            return
        found = [row for path in done.paths for row in pq.read_table(Path(folder) / path).to_pylist()]
    assert sorted(map(repr, found)) == sorted(map(repr, at_once.to_pylist()))
    assert (done.found, done.undone, done.winners) == (counts, undone, at_once.num_rows)
    assert done.removing == removing
    keys = [(row["a"], row["b"]) for row in found if row["_cdc_op"] != "t"]
    assert len(set(keys)) == len(keys)


KINDS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint8(): st.integers(0, 255),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.decimal128(20, 2): st.decimals(-(10**17), 10**17, places=2),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
}


@given(data=st.data(), kind=st.sampled_from(list(KINDS)), parts=st.integers(1, 9), cut=st.integers(0, 3))
def test_equal_keys_are_in_one_part_wherever_they_are_in_an_array(
    data: st.DataObject, kind: pa.DataType, parts: int, cut: int
) -> None:
    values = data.draw(st.lists(st.one_of(st.none(), KINDS[kind]), min_size=cut, max_size=20))
    whole = pa.array(values, kind)
    found = parts_of_keys([whole, whole], parts).tolist()
    assert all(0 <= part < parts for part in found)
    assert parts_of_keys([whole.slice(cut), whole.slice(cut)], parts).tolist() == found[cut:]
    one_by_one = [pa.array([value], kind) for value in values]
    assert [parts_of_keys([one, one], parts)[0] for one in one_by_one] == found
    coded = whole.dictionary_encode() if kind in (pa.string(), pa.int64()) else whole
    assert parts_of_keys([coded, coded], parts).tolist() == found


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_many_keys_are_spread_over_all_parts(kind: str) -> None:
    keys = pa.array(range(10_000)).cast(kind)
    sizes = np.bincount(parts_of_keys([keys], 16), minlength=16)
    assert sizes.min() > 400
    assert sizes.max() < 900


def test_parts_are_ranges_of_about_as_many_keys_unless_a_key_is_too_frequent() -> None:
    keys = np.array([*range(1_000), *range(10**12, 10**12 + 1_000)])
    cut = Parts.of_ranges(8, keys)
    found = cut.of([pa.array(keys)])
    assert np.bincount(found).tolist() == [250] * 8
    assert (np.diff(found) >= 0).all()
    outside = cut.of([pa.array([-(10**15), 10**15, None]).cast(pa.int64())]).tolist()
    assert outside[:2] == [0, 7]
    for frequent in (np.array([7] * 1_000), np.array([], np.int64), np.array([*[1] * 500, *range(500)])):
        assert Parts.of_ranges(8, frequent).bounds is None
