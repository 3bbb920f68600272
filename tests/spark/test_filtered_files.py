"""The files of filtered/: what is written is read again shard by shard, whole, and in the order of the key."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.model.merged_columns import SHARD
from cdc_core.stage.files import FileStore
from spark_jobs import filtered_files
from spark_jobs.filtered_files import FilteredFiles, merged_runs, write_run

ROWS = st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 20), st.sampled_from(["", "a", "b.c"])))


@given(st.lists(ROWS, min_size=1, max_size=6), st.integers(1, 7), st.integers(1, 3), st.sampled_from([2, 16]))
def test_every_row_of_a_shard_is_read_once_and_the_rows_of_some_files_in_the_order_of_the_key(
    runs: list[list[tuple[int, int | None, str]]], batch_rows: int, group_rows: int, at_once: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(filtered_files, "GROUP_ROWS", group_rows)
        patch.setattr(filtered_files, "MERGED_AT_ONCE", at_once)
        for number, rows in enumerate(runs):
            table = pa.table(
                {
                    "nested": pa.array([{"x": 1}] * len(rows), pa.struct([("x", pa.int64())])),
                    "a.b": pa.array([row[1] for row in rows], pa.int64()),
                    "c": pa.array([row[2] for row in rows], pa.string()).dictionary_encode(),
                    SHARD: pa.array([row[0] for row in rows], pa.int32()),
                }
            )
            write_run(Path(folder) / f"{number}.parquet", table, ["a.b", "c"])
        paths = [f"{number}.parquet" for number in range(len(runs))]
        with FilteredFiles(FileStore(Path(folder).as_uri()), paths) as files:
            for shard in range(5):
                batches = list(files.rows_of(shard, ["a.b", "c"], batch_rows))
                found = [(row["a.b"], row["c"]) for batch in batches for row in batch.to_pylist()]
                expected = [(n, text) for rows in runs for number, n, text in rows if number == shard]
                ordered = sorted(expected, key=lambda row: (row[0] is None, row))
                assert found == ordered if len(runs) <= at_once else Counter(found) == Counter(expected)


def test_files_whose_keys_lie_apart_are_read_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (2, 0, 3, 1):
        ids = range(number * 10, number * 10 + 10)
        table = pa.table({"id": pa.array(ids, pa.int64()), SHARD: pa.array([0] * 10, pa.int32())})
        write_run(tmp_path / f"{number}.parquet", table, ["id"])
    merged = []

    def noted(runs: list[object], key: list[str]) -> object:
        merged.append(len(runs))
        return merged_runs(runs, key)  # type: ignore[arg-type]

    monkeypatch.setattr(filtered_files, "merged_runs", noted)
    monkeypatch.setattr(filtered_files, "MERGED_AT_ONCE", 2)
    with FilteredFiles(FileStore(tmp_path.as_uri()), [f"{n}.parquet" for n in (3, 1, 0, 2)]) as files:
        found = [value for batch in files.rows_of(0, ["id"], 7) for value in batch.column("id").to_pylist()]
    assert found == list(range(40))
    assert merged == [1, 1, 1, 1]


def test_rows_without_a_key_are_read_one_run_after_the_other() -> None:
    runs = [iter([pa.record_batch({"a": pa.array(values)})]) for values in ([3, 1], [2])]
    assert [value for batch in merged_runs(runs, ()) for value in batch.column("a").to_pylist()] == [3, 1, 2]
