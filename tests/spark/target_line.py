"""A stage, a sharded target on a real server, and the four jobs of a run between them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.dataset as ds
import pymysql
import pytest
from pyspark.sql import SparkSession

from cdc_core.config import Pipeline
from cdc_core.errors import LockstepError
from cdc_core.model.merged_columns import CLASS, FILTER_ONLY, SHARD
from cdc_core.model.run_plan import FilterCounts, MergeCounts, RunPlan, WriteCounts
from cdc_core.model.schema import TableSchema
from cdc_core.stage.stores import open_store
from spark_jobs import spark_failures
from spark_jobs.filter import apply_filter
from spark_jobs.job import Job
from spark_jobs.merge import merge
from spark_jobs.quality import check
from spark_jobs.write import write
from tests.history_model import Change
from tests.spark.staged_changes import Stage, counts_of, require_merged_columns, staged_pipeline, table_schema

BY_DRIVER = pytest.param((20_000, "spark"), id="driver")
BY_SPARK = pytest.param((0, "spark"), id="spark")
BY_SPARK_IN_MATRIX = pytest.param((0, "spark"), id="spark", marks=pytest.mark.matrix)
REMOTE = pytest.param((0, "remote"), id="remote", marks=pytest.mark.matrix)
ALSO_BY_SPARK = pytest.mark.parametrize("line", [BY_SPARK, BY_DRIVER, REMOTE], indirect=True)
"""For what Spark's tasks add to the functions that the driver calls, too: files of many writers, and workers whose
errors and rows set aside come back."""
DRIVER_ALONE = pytest.mark.parametrize("line", [BY_DRIVER], indirect=True)

ORDERS = table_schema(
    "shop.orders", {"id": "bigint", "customer": "int", "code": "varchar(20)", "at": "datetime(6)"}, ["id"]
)


Made = TypeVar("Made", bound="TargetLine")


@dataclass
class TargetLine:
    """All runs are about the table that the schema defines. spark: starts Spark if nothing has."""

    spark: Callable[[], SparkSession]
    stage: Stage
    pipeline: Pipeline
    connection: pymysql.Connection[Any]
    prefix: str
    schema: TableSchema
    runs: list[RunPlan] = field(default_factory=list)

    @property
    def places(self) -> list[str]:
        """The target's tables, in the order of their shards."""
        split = self.pipeline.target("shards").tables["*"].sharding
        assert split is not None
        return [
            f"{self.prefix}_{d}.{self.schema.table}_{t}" for d in range(split.databases) for t in range(split.tables)
        ]

    def change_rule(self, **rule: Any) -> None:
        """Other keys of the target's rule for tables."""
        data = self.pipeline.model_dump()
        data["targets"][0]["tables"]["*"] |= rule
        self.pipeline = Pipeline.model_validate(data)

    @contextmanager
    def by_spark(self) -> Iterator[None]:
        """Jobs of the block are Spark's, however small."""
        mine = self.pipeline
        spark = mine.spark.model_copy(update={"driver_rows": 0})
        self.pipeline = mine.model_copy(update={"spark": spark})
        yield
        self.pipeline = mine

    def job(self, plan: RunPlan, *, target: str | None = "shards") -> Job:
        name = "0" if target is None else None
        return Job(self.spark, self.pipeline, plan, open_store(self.stage.uri), name, target)

    def plan(self) -> RunPlan:
        """A run over what was staged since the stage began again."""
        rule = self.pipeline.target("shards").tables["*"]
        keys = {self.schema.name: [column.name for column in self.schema.columns if column.key_part]}
        plan = self.stage.plan(f"run{len(self.runs)}", keys, on_truncate=rule.on_truncate, shared_keys=rule.shared_keys)
        self.runs.append(plan)
        return plan

    def planned(self, *batches: Sequence[Change]) -> RunPlan:
        """A run over these changes alone."""
        self.stage.begin_again()
        for changes in batches:
            self.stage.add(self.schema.name, self.schema, changes)
        return self.plan()

    def run(self, *changes: Change, quality: bool = False) -> RunPlan:
        plan = self.planned(changes)
        self.again(plan, quality=quality)
        return plan

    def run_of(self, changes: Mapping[str, Sequence[Change]], *, quality: bool = False) -> RunPlan:
        """A run over changes of several source tables that feed the table, by the source table's name."""
        self.stage.begin_again()
        for name, some in changes.items():
            self.stage.add(self.schema.name, replace(self.schema, table=name.partition(".")[2]), some)
        plan = self.plan()
        self.again(plan, quality=quality)
        return plan

    def again(self, plan: RunPlan, *, quality: bool = False) -> None:
        """The jobs of a run; a LockstepError of a worker is raised as `spark_jobs.job.perform` does."""
        try:
            merge(self.job(plan, target=None))
            apply_filter(self.job(plan))
            write(self.job(plan))
            if quality:
                check(self.job(plan))
        except LockstepError:
            raise
        except Exception as error:
            raise (spark_failures.found(error) or error) from error

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Rows with their versions as "D.T", tombstones as "D-T", by shard. Of tables of orders."""
        found = {}
        for place in self.places:
            database, _, table = place.partition(".")
            d, t = database[-1], table[-1]
            found[f"{d}.{t}"] = self.query(f"SELECT id, customer, code, _cdc_version FROM {place} ORDER BY id")
            found[f"{d}-{t}"] = self.query(f"SELECT * FROM {database}._lockstep_tombstone_{table} ORDER BY 1")
        return found

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """(id, customer, code) by shard, empty shards left out."""
        found = self.everything()
        return {at: [row[:3] for row in rows] for at, rows in found.items() if "." in at and rows}

    def counts(self, plan: RunPlan) -> tuple[MergeCounts, FilterCounts, list[WriteCounts]]:
        return counts_of(open_store(self.stage.uri), plan)

    def columns_are_as_said(self, plan: RunPlan) -> None:
        """The files of merged/ and filtered/ have the columns of model/merged_columns.py."""
        job = self.job(plan)
        table = job.merge_set.tables[0]
        merged = require_merged_columns(self.job(plan, target=None), table)
        filtered = ds.dataset(self.stage.root / job.filtered(table.table), format="parquet").schema
        assert set(filtered.names) == {*merged.names, SHARD, CLASS} - FILTER_ONLY

    def adds_up(self, plan: RunPlan) -> None:
        self.columns_are_as_said(plan)
        merged, filtered, written = self.counts(plan)
        assert merged.rows + merged.key_changes == merged.winners + merged.superseded
        done = sum(counts.written + counts.stale + counts.absent + counts.quarantined for counts in written)
        assert merged.winners == done + filtered.stale


@contextmanager
def target_line(
    request: pytest.FixtureRequest,
    server: Any,
    root: Path,
    schema: TableSchema,
    columns: str,
    sharding: Mapping[str, Any],
    driver_rows: int = 20_000,
    session: str = "spark",
    *,
    rule: Mapping[str, Any] | None = None,
    made: type[Made] = TargetLine,  # type: ignore[assignment]
    **target: Any,
) -> Iterator[Made]:
    """A target whose shards are empty. env:TARGET_URL must name the server.

    columns: of each shard's table. session: the fixture of Spark's session.
    """
    prefix = f"s{uuid.uuid4().hex[:8]}"
    rules = {"database": f"{prefix}_{{d}}", "table": "{table}_{t}", "sharding": sharding, **(rule or {})}
    shards = {"name": "shards", "connections": ["env:TARGET_URL"], "tables": {"*": rules}, **target}
    pipeline = staged_pipeline(root, targets=[shards], spark={"driver_rows": driver_rows})
    with server.connect(autocommit=True) as connection:
        line = made(lambda: request.getfixturevalue(session), Stage(root), pipeline, connection, prefix, schema)
        databases = sorted({place.partition(".")[0] for place in line.places})
        for database in databases:
            line.query(f"CREATE DATABASE {database}")
        for place in line.places:
            line.query(f"CREATE TABLE {place} ({columns})")
        yield line
        for database in databases:
            line.query(f"DROP DATABASE {database}")


def order(op: str, id: int, customer: int, code: str, seq: int, ordinal: int = 0, /, **before: Any) -> Change:
    row = {"id": id, "customer": customer, "code": code}
    if op == "u":
        return Change(op, row, seq, ordinal, before={**row, **before})
    return Change(op, row, seq, ordinal)


FIRST = [order("c", id, id, f"c{id}", 10, id) for id in range(1, 9)]


def fed_by_two(line: TargetLine, shared_keys: str = "stop") -> None:
    """Two source tables feed shop.orders."""
    routes = [{"match": r"shop\.p[12]", "to": "shop.orders"}]
    line.pipeline = Pipeline.model_validate(line.pipeline.model_dump() | {"routes": routes})
    line.change_rule(shared_keys=shared_keys)
