"""Quality: the suites of expectations/ over the run's staged and merged rows, and over what now stands in the target.

The workers read the touched keys back from the target and compare values in the server; the suites judge the frames.
A frame of up to PANDAS_ROWS rows is judged by GX's pandas engine (0.1 s), a larger one by its Spark engine (3 s and
more): the same suites, measured to give the same verdicts.
Results are kept as quality/target=<t>/<stage>.json. A critical expectation that fails is DataAtRisk.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import great_expectations as gx
import numpy as np
import pyarrow as pa
from great_expectations.data_context.types.base import ProgressBarsConfig
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cdc_core.errors import DataAtRisk
from cdc_core.model.run import MergeCounts, MergeTable, counts_from_bytes, counts_path
from cdc_core.model.staged import FILE, OP, POS, ROW, SEQ, SOURCE, TS
from cdc_core.target.compare import outcomes
from cdc_core.target.destination import Destination, Sessions
from cdc_core.target.text import row_keys
from expectations import merged, staged, target
from spark_jobs.columns import c, staged_struct
from spark_jobs.failures import carried
from spark_jobs.filter import SHARD
from spark_jobs.job import Job, each_table, leave, log, run
from spark_jobs.merge import exact

PANDAS_ROWS = 1_000_000
_TABLE, _KEY, _SHARD, _OUTCOME = "_table", "_key", "_shard", "_outcome"
_STAGED = (OP, TS, SOURCE, FILE, POS, ROW, SEQ)
_TARGET_FRAME = f"`{_TABLE}` string, `{_SHARD}` string, `{_KEY}` string, `{OP}` string, `{_OUTCOME}` string"


def staged_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    parts = []
    for table in tables:
        for schema_id in dict.fromkeys(file.schema_id for file in table.files):
            paths = [job.store.spark_uri(file.path) for file in table.files if file.schema_id == schema_id]
            rows = job.spark.read.schema(staged_struct(job.plan.schemas[schema_id])).parquet(*paths)
            parts.append(rows.select(F.lit(table.table).alias(_TABLE), *[c(name) for name in _STAGED]))
    return reduce(DataFrame.unionAll, parts) if parts else None


def merged_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    parts = []
    for table in tables:
        rows = job.read(job.merged(table.table))
        key = F.to_json(F.struct(*[exact(rows.schema[name].dataType, name).alias(name) for name in table.key]))
        notes = [c(name) for name in (OP, SOURCE, SEQ, ROW)]
        parts.append(rows.select(F.lit(table.table).alias(_TABLE), key.alias(_KEY), *notes))
    return reduce(DataFrame.unionAll, parts) if parts else None


def target_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    def one(table: MergeTable) -> DataFrame:
        rows = job.read(job.filtered(table.table))
        return rows.mapInArrow(_comparer(job.destination(table)), _TARGET_FRAME)

    parts = each_table(one, tables)
    return reduce(DataFrame.unionAll, parts) if parts else None


def _comparer(destination: Destination) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with carried(), tempfile.TemporaryDirectory(prefix="lockstep-") as scratch, Sessions(destination) as sessions:
            for batch in batches:
                shards = np.asarray(batch.column(SHARD))
                for number in np.unique(shards):
                    rows = batch.take(pa.array(np.flatnonzero(shards == number)))
                    shard = destination.shards[number]
                    found = outcomes(sessions.of(shard), shard.facts, rows, destination.layout, scratch=Path(scratch))
                    yield pa.record_batch(
                        {
                            _TABLE: pa.array([destination.logical] * rows.num_rows),
                            _SHARD: pa.array([shard.place.name] * rows.num_rows),
                            _KEY: row_keys(rows, destination.key),
                            OP: rows.column(OP),
                            _OUTCOME: pa.array(found, pa.string()),
                        }
                    )

    return work


def judge(frame: DataFrame, suite: gx.ExpectationSuite, rows: int) -> dict[str, Any]:
    """The verdict of a suite on a frame of about so many rows."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    small = rows <= PANDAS_ROWS
    if small:
        source: Any = context.data_sources.add_pandas("rows")
        data: Any = frame.toArrow().to_pandas()
    else:
        source = context.data_sources.add_spark("rows", persist=False)
        data = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        whole = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("rows")
        batch = whole.get_batch({"dataframe": data})
        result = batch.validate(suite, result_format="BOOLEAN_ONLY")
        if not result.success:  # only now is it worth the work to count and to show examples
            result = batch.validate(suite, result_format="SUMMARY")
    finally:
        if not small:
            data.unpersist()
    found = [_one(outcome) for outcome in result.results]
    return {
        "success": all(one["success"] or one["severity"] != "critical" for one in found),
        "suite": suite.name,
        "engine": "pandas" if small else "spark",
        "rows": rows,
        "expectations": found,
    }


def _one(outcome: Any) -> dict[str, Any]:
    config = outcome.expectation_config
    detail = dict(outcome.result or {})
    if not detail and outcome.exception_info:
        detail = {"could not evaluate": str(outcome.exception_info)[:2000]}
    kwargs = {name: value for name, value in config.kwargs.items() if name != "batch_id"}
    return {
        "expectation": config.type,
        "arguments": kwargs,
        "severity": str(getattr(config.severity, "value", config.severity) or "critical"),
        "success": bool(outcome.success),
        "result": json.loads(json.dumps(detail, default=str)),
    }


def summary(stage: str, verdict: dict[str, Any]) -> str:
    """Readable lines for the task's log: what passed, and each failure with examples."""
    bad = [one for one in verdict["expectations"] if not one["success"]]
    total = len(verdict["expectations"])
    lines = [f"{stage}: {verdict['rows']} rows, {total - len(bad)} of {total} expectations met"]
    for one in bad:
        arguments = ", ".join(f"{name}={value}" for name, value in one["arguments"].items())
        shown = {name: value for name, value in one["result"].items() if value not in (None, [], {})}
        lines.append(f"  {one['severity']}: {one['expectation']}({arguments}): {json.dumps(shown)[:600]}")
    return "\n".join(lines)


def check(job: Job) -> None:
    """Runs the three suites. Raises DataAtRisk (quality.failed) after all have run and their results are kept."""
    tables = [table for table in job.tables() if table.files]
    counts = counts_from_bytes(job.store.get(counts_path(job.plan.merged_folder(job.merge_set.name))), MergeCounts)
    winners = {one.table: one.winners for one in counts}
    rows = {
        "staged": sum(table.rows for table in tables),
        "merged": sum(winners[table.table] for table in tables),
        "target": sum(job.rows_in(job.filtered(table.table)) for table in tables),
    }
    stages = (("staged", staged_frame, staged), ("merged", merged_frame, merged), ("target", target_frame, target))
    failed = []
    for stage, frame_of, suites in stages:
        frame = frame_of(job, tables)
        if frame is None:
            verdict: dict[str, Any] = {"success": True, "suite": stage, "rows": 0, "expectations": []}
        else:
            verdict = judge(frame, suites.suite(rows[stage]), rows[stage])
            if not verdict["success"] and stage == "target":
                verdict["examples"] = _examples(frame)
        job.store.put(
            f"{job.plan.quality_folder(job.target.name)}/{stage}.json", json.dumps(verdict, indent=1).encode()
        )
        log.log(30 if not verdict["success"] else 20, "run %s %s", job.plan.run_id, summary(stage, verdict))
        for example in verdict.get("examples", ()):
            log.warning("run %s %s", job.plan.run_id, example)
        if not verdict["success"]:
            failed.append(stage)
    if failed:
        raise DataAtRisk(
            f"Rows of {', '.join(failed)} do not meet their expectations.",
            where=f"run {job.plan.run_id}, target {job.target.name}",
            code="quality.failed",
            remedy=f"read {job.plan.quality_folder(job.target.name)}/{failed[0]}.json on the stage; the consume "
            "records have not moved",
        )


def _examples(frame: DataFrame) -> list[dict[str, str]]:
    bad = frame.where(~c(_OUTCOME).isin(*target.GOOD)).limit(20)
    return [{name: str(value) for name, value in row.asDict().items()} for row in bad.collect()]


def main(argv: Sequence[str] | None = None) -> int:
    return run("quality", check, argv)


if __name__ == "__main__":
    leave(main())
