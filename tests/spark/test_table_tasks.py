"""Many tables share the Spark jobs of a run's work at a target, and an error in one of them leaves the others alone."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cdc_core.errors import DataAtRisk, LockstepError
from cdc_core.stage.stores import open_store
from spark_jobs.filter import apply_filter
from spark_jobs.job import Job
from spark_jobs.merge import merge
from spark_jobs.quality import check
from spark_jobs.table_tasks import Piece, packed, together
from spark_jobs.write import write
from tests.history_model import Change
from tests.spark.staged_changes import Stage, staged_pipeline, table_schema

# PySpark leaves the sockets of `collect` to the garbage collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
TABLES = 12
ITEMS = table_schema("shop.t0", {"id": "int", "n": "int"}, ["id"])


def test_many_tables_share_a_spark_job_and_one_that_fails_leaves_the_others_written(
    spark: SparkSession, mariadb_target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = f"s{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("TARGET_URL", mariadb_target.url)
    target = {
        "name": "shards",
        "connections": ["env:TARGET_URL"],
        "sessions": 3,
        "tables": {"*": {"database": database}},
    }
    pipeline = staged_pipeline(tmp_path, targets=[target], spark={"driver_rows": 0})
    stage = Stage(tmp_path)
    for number in range(TABLES):
        changes = [Change("c", {"id": id, "n": 10 * number + id}, 10, id) for id in range(1, 4)]
        stage.add(f"shop.t{number}", replace(ITEMS, table=f"t{number}"), changes)
    plan = stage.plan("r", {table: ["id"] for table in stage.files})
    store, context = open_store(stage.uri), spark.sparkContext
    job = Job(lambda: spark, pipeline, plan, store, None, "shards")

    create_frame = spark.createDataFrame
    tasks: list[int] = []

    def without_secrets(given: Any, *arguments: Any) -> Any:  # it may pass through a file
        assert mariadb_target.password.encode() not in pickle.dumps(given)
        tasks.append(len(given))
        return create_frame(given, *arguments)

    monkeypatch.setattr(spark, "createDataFrame", without_secrets)

    def jobs_of(name: str, work: Any) -> int:  # spreading the work over tasks is a job, too
        group = f"{database} {name}"
        context.setJobGroup(group, name)
        work(job)
        return len(context.statusTracker().getJobIdsForGroup(group))

    with mariadb_target.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        try:
            for number in range(TABLES):
                cursor.execute(f"CREATE TABLE {database}.t{number} (id INT PRIMARY KEY, n INT, CHECK (n <> 52))")

            def held(number: int) -> list[int]:
                cursor.execute(f"SELECT n FROM {database}.t{number} ORDER BY id")
                return [n for (n,) in cursor.fetchall()]

            merge(replace(job, set_name="0", target_name=None))
            assert jobs_of("filter", apply_filter) == 2
            assert tasks[-1] == 3  # as many sessions as the target gives
            with pytest.raises(DataAtRisk) as caught:
                write(job)
            assert (caught.value.code, ".t5" in str(caught.value)) == ("target.row_error", True)
            assert not (tmp_path / plan.written_folder("shards") / "counts.json").exists()
            assert [held(number) for number in range(TABLES)] == [
                [] if number == 5 else [10 * number + id for id in range(1, 4)] for number in range(TABLES)
            ]
            cursor.execute(f"DROP TABLE {database}.t5")
            cursor.execute(f"CREATE TABLE {database}.t5 (id INT PRIMARY KEY, n INT)")
            assert jobs_of("write", write) == 2
            assert held(5) == [51, 52, 53]
            assert tasks[-1] == 3
            check(job)
        finally:
            context.setJobGroup("", "")
            cursor.execute(f"DROP DATABASE {database}")


@given(rows=st.lists(st.integers(0, 1_000_000), max_size=40), most=st.integers(1, 9))
def test_each_piece_is_in_one_task_and_no_task_has_much_more_than_another(rows: list[int], most: int) -> None:
    pieces = [Piece(None, count, at) for at, count in enumerate(rows)]  # type: ignore[arg-type]
    tasks = packed(pieces, most)
    assert sorted(number for task in tasks for number, _ in task) == list(range(len(pieces)))
    assert all(pieces[number] is piece for task in tasks for number, piece in task)
    assert len(tasks) == min(len(pieces), most)
    assert all(tasks)
    loads = [sum(piece.rows for _, piece in task) for task in tasks]
    if len(loads) > 1:
        assert max(loads) - min(loads) <= max(rows) + 2_000 * len(rows)


def test_results_of_several_pieces_come_with_the_first_error() -> None:
    one, other = (DataAtRisk(text, code=text, remedy="") for text in "ab")
    mixed: list[list[int] | LockstepError] = [[1], one, [2, 3], other]
    assert together(mixed) == ([1, 2, 3], one)
    assert together([[1], []]) == ([1], None)
