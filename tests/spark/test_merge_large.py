"""A table that does not fit into the driver's memory: who merges it, and with what result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cdc_core.config import parse
from cdc_core.errors import DataAtRisk
from cdc_core.stage.stores import open_store
from spark_jobs import small_tables
from spark_jobs.arrow_changes import NotSmallError
from spark_jobs.job import Job
from spark_jobs.merge import merge
from tests.history_model import Change
from tests.spark.staged_changes import PIPELINE, Stage, table_schema

pytestmark = pytest.mark.spark
ROWS, KEYS = 30_000, 9_000
ITEMS = table_schema("shop.items", {"id": "int", "n": "int"}, ["id"])


def staged(folder: Path, keys: int, truncated_at: int | None = None) -> Job:
    """A job with more rows than the driver takes at once, and a session that must not be opened."""
    stage = Stage(folder)
    changes = [Change("u" if at >= keys else "c", {"id": at % keys, "n": at}, at + 1) for at in range(ROWS)]
    if truncated_at is not None:
        changes[truncated_at] = Change("t", {"id": None, "n": None}, truncated_at + 1)
    for at in range(3):
        stage.add("shop.items", ITEMS, changes[at::3])
    plan = stage.plan("r", {"shop.items": ["id"]}, on_truncate="apply")
    pipeline = PIPELINE.format(folder=folder) + (
        'targets: [{name: shards, connections: ["env:TGT"], tables: {"*": {database: "db"}}}]\nspark: {driver_mib: 5}\n'
    )

    def no_spark() -> Any:
        raise AssertionError("Spark was started")

    return Job(no_spark, parse(pipeline, where="test"), plan, open_store(stage.uri), set_name="0")


def test_a_large_table_is_merged_in_parts_without_spark(tmp_path: Path) -> None:
    job = staged(tmp_path, KEYS)
    assert not job.small
    merge(job)
    paths = job.files_in(job.merged("shop.items"))
    rows = {row["id"]: row["n"] for path in paths for row in pq.read_table(tmp_path / path).to_pylist()}
    assert len(paths) > 1
    assert job.rows_in(job.merged("shop.items")) == KEYS
    assert rows == {at % KEYS: at for at in range(ROWS - KEYS, ROWS)}
    # Again, as after a kill: what an earlier attempt has left is not counted.
    merge(job)
    assert job.rows_in(job.merged("shop.items")) == KEYS


def test_what_a_truncate_undoes_is_left_out_of_every_part(tmp_path: Path) -> None:
    job = staged(tmp_path, KEYS, truncated_at=ROWS - 5_000)
    merge(job)
    (counts,) = job.merge_counts.values()
    assert (counts.rows, counts.winners, len(counts.truncates)) == (ROWS, 5_000, 1)
    paths = job.files_in(job.merged("shop.items"))
    found = [row for path in paths for row in pq.read_table(tmp_path / path).to_pylist()]
    assert [row["id"] for row in found if row["_cdc_op"] == "t"] == [None]
    rows = {row["id"]: row["n"] for row in found if row["_cdc_op"] != "t"}
    assert rows == {at % KEYS: at for at in range(ROWS - 4_999, ROWS)}
    assert len(found) == 5_000


def test_a_cluster_merges_a_large_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = staged(tmp_path, KEYS)
    monkeypatch.setattr(small_tables, "is_on_this_machine", lambda: False)
    assert small_tables.merge_large(job, job.merge_set.tables[0]) is None


def test_a_key_with_too_many_changes_for_the_memory_is_left_to_spark(tmp_path: Path) -> None:
    job = staged(tmp_path, 1)
    table = small_tables._in_memory(job, job.merge_set.tables[0])
    assert table is not None
    with pytest.raises(NotSmallError, match="in parts too"):
        small_tables.merge_in_parts(job.store, table, job.driver_bytes, 8)
    assert small_tables.merge_large(job, job.merge_set.tables[0]) is None
    assert small_tables.merge_in_parts(job.store, table, 1 << 30, 8).winners == 1


def test_a_part_that_is_larger_than_a_threads_share_is_merged_alone(tmp_path: Path) -> None:
    job = staged(tmp_path, KEYS)
    table = small_tables._in_memory(job, job.merge_set.tables[0])
    assert table is not None
    taken = 12 << 20  # one part of all rows
    done = small_tables.merge_in_parts(job.store, table, taken, 1)
    assert (done.winners, done.found.rows) == (KEYS, ROWS)


def test_rows_that_are_missing_from_a_file_end_a_merge_in_parts(tmp_path: Path) -> None:
    job = staged(tmp_path, KEYS)
    table = job.merge_set.tables[0]
    path = tmp_path / table.files[0].path
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(DataAtRisk) as caught:
        small_tables.merge_large(job, table)
    assert caught.value.code == "spark.rows_differ"
