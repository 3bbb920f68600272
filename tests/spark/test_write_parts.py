"""A run that has many rows for a table writes them in parts, where no row depends on another; its account adds up."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pyspark.sql import SparkSession

from cdc_core.config import Pipeline
from cdc_core.model.run_plan import RunPlan, WriteCounts
from cdc_core.stage.stores import open_store
from cdc_core.targets.writing import write_parts as parts
from spark_jobs.filter import apply_filter
from spark_jobs.job import Job
from spark_jobs.merge import merge
from spark_jobs.quality import check
from spark_jobs.write import write
from tests.history_model import Change
from tests.spark.staged_changes import Stage, counts_of, staged_pipeline, table_schema

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
ROWS = table_schema("shop.rows", {"id": "bigint", "n": "int"}, ["id"])


@dataclass
class Line:
    """A target of two shards, each written in parts of 5 rows. parts_done: how many rows each part had, by table."""

    spark: SparkSession
    stage: Stage
    pipeline: Pipeline
    connection: pymysql.Connection[Any]
    database: str
    parts_done: list[tuple[str, int]]
    dies_after: int | None = None
    runs: int = 0

    def plan(self, *changes: Change) -> RunPlan:
        self.runs += 1
        self.stage.begin_again()
        self.stage.add("shop.rows", ROWS, changes)
        plan = self.stage.plan(f"run{self.runs}", {"shop.rows": ["id"]})
        merge(self.job(plan, target=None))
        apply_filter(self.job(plan))
        return plan

    def job(self, plan: RunPlan, *, target: str | None = "shards") -> Job:
        name = "0" if target is None else None
        return Job(lambda: self.spark, self.pipeline, plan, open_store(self.stage.uri), name, target)

    def write(self, plan: RunPlan) -> list[WriteCounts]:
        """The counts of the shards. Everything adds up, and the rows are read back as they should be."""
        self.parts_done.clear()
        write(self.job(plan))
        check(self.job(plan))
        merged, filtered, written = counts_of(open_store(self.stage.uri), plan)
        assert merged.winners == filtered.stale + sum(one.written + one.stale + one.absent for one in written)
        return written

    def rows(self, *shards: int) -> dict[int, int]:
        """Of some shards, or of both."""
        with self.connection.cursor() as cursor:
            cursor.execute(" UNION ALL ".join(f"SELECT * FROM {self.database}.rows_{one}" for one in shards or (0, 1)))
            return dict(cursor.fetchall())


@pytest.fixture
def line(
    mysql9: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, spark: SparkSession
) -> Iterator[Line]:
    """By the driver alone and sharded by id, unless a test says otherwise."""
    monkeypatch.setenv("TARGET_URL", mysql9.url)
    database = f"p{uuid.uuid4().hex[:8]}"
    said = {"driver_rows": 20_000, "sharded_by": "id", **getattr(request, "param", {})}
    sharding = {"key": said["sharded_by"], "databases": 1, "tables": 2}
    rule = {"database": database, "table": "rows_{t}", "sharding": sharding}
    target = {"name": "shards", "connections": ["env:TARGET_URL"], "part_rows": 5, "tables": {"*": rule}}
    pipeline = staged_pipeline(tmp_path, targets=[target], spark={"driver_rows": said["driver_rows"]})
    with mysql9.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL local_infile = ON")
        cursor.execute(f"CREATE DATABASE {database}")
        for shard in (0, 1):
            cursor.execute(f"CREATE TABLE {database}.rows_{shard} (id BIGINT PRIMARY KEY, n INT)")
        made = Line(spark, Stage(tmp_path), pipeline, connection, database, [])
        real = parts.write_shard

        def noted(server: Any, write: Any, file: Any, **named: Any) -> Any:
            if made.dies_after is not None and len(made.parts_done) == made.dies_after:
                raise RuntimeError("killed")
            made.parts_done.append((write.facts.table, file.rows))
            return real(server, write, file, **named)

        monkeypatch.setattr(parts, "write_shard", noted)
        yield made
        cursor.execute(f"DROP DATABASE {database}")


def of_table(done: list[tuple[str, int]], table: str) -> list[int]:
    return [rows for name, rows in done if name == table]


def inserts(*ids: int, seq: int = 10) -> list[Change]:
    return [Change("c", {"id": id, "n": id}, seq, at) for at, id in enumerate(ids)]


@pytest.mark.parametrize(
    "line",
    [pytest.param({}, id="driver"), pytest.param({"driver_rows": 0}, id="spark", marks=pytest.mark.matrix)],
    indirect=True,
)
def test_each_shard_is_written_in_parts_and_counted_once(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    plan = line.plan(*inserts(*range(24), 100), Change("d", {"id": 50, "n": 0}, 11, 0))
    counts = line.write(plan)
    assert [(one.written, one.absent, one.number) for one in counts] == [(13, 1, 1), (12, 0, 1)]
    if line.parts_done:  # workers of Spark are processes of their own
        assert of_table(line.parts_done, "rows_0") == [5, 5, 4]
        assert of_table(line.parts_done, "rows_1") == [5, 5, 2]
    assert line.rows() == {id: id for id in [*range(24), 100]}
    again = line.write(plan)
    assert [(one.written, one.equal, one.absent, one.number) for one in again] == [(13, 13, 1, 2), (12, 12, 0, 2)]
    assert "in one transaction" not in caplog.text


def test_a_run_that_ends_after_some_parts_is_repeated_and_adds_up(line: Line) -> None:
    plan = line.plan(*inserts(*range(30)))
    line.dies_after = 3
    with pytest.raises(RuntimeError, match="killed"):
        write(line.job(plan))
    assert 0 < len(line.rows()) < 30
    line.dies_after = None
    counts = line.write(plan)
    assert sum(one.written for one in counts) == 30
    assert sum(one.equal for one in counts) >= 5
    assert line.rows() == {id: id for id in range(30)}


@pytest.mark.parametrize("line", [{"sharded_by": "n"}], indirect=True)
@pytest.mark.parametrize("dies_after", [None, 3, 9])
def test_rows_that_change_their_shard_arrive_in_parts_before_they_leave(line: Line, dies_after: int | None) -> None:
    line.write(line.plan(*inserts(*range(24))))
    moves = [Change("u", {"id": id, "n": id + 1}, 20, id, before={"id": id, "n": id}) for id in range(23)]
    plan = line.plan(*moves, Change("d", {"id": 23, "n": 23}, 20, 23))
    if dies_after is not None:
        line.parts_done.clear()
        line.dies_after = dies_after
        with pytest.raises(RuntimeError, match="killed"):
            write(line.job(plan))
        line.dies_after = None
        assert set(line.rows()) >= set(range(23)), "some are in neither shard"
    counts = line.write(plan)
    assert sum(one.written + one.absent for one in counts) == 24
    for shard in (0, 1):  # the arrivals in parts, then the departures in one transaction
        done = of_table(line.parts_done, f"rows_{shard}")
        assert max(done[:-1]) == 5
        assert sum(done[:-1]) >= done[-1] > 5
    assert {**line.rows(0), **line.rows(1)} == {id: id + 1 for id in range(23)}
    assert not line.rows(0).keys() & line.rows(1).keys()


def test_a_run_with_a_changed_key_writes_each_shard_whole_and_says_why(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line.write(line.plan(*inserts(*range(24))))
    changes = [Change("u", {"id": id, "n": -id}, 20, id, before={"id": id, "n": id}) for id in range(20)]
    changes.append(Change("u", {"id": 41, "n": 23}, 20, 99, before={"id": 23, "n": 23}))
    with caplog.at_level(logging.INFO):
        counts = line.write(line.plan(*changes))
    assert "not in parts of 5: rows change their keys" in caplog.text
    assert [one.written for one in counts] == [10, 12]
    assert sorted(line.parts_done) == [("rows_0", 10), ("rows_1", 12)]
    assert line.rows() == {**{id: -id for id in range(20)}, 20: 20, 21: 21, 22: 22, 41: 23}
