"""Quality: the suites of expectations/ over the run's staged and merged rows, and over what the target now has.

The workers read the touched keys back from the target and compare values in the server; the suites judge the frames.
Great Expectations takes seconds to import, which it does here while Spark starts and gathers the frames.
Results are kept in quality/target=<t>/: <stage>.json, own-<n>.json for suites of the pipeline's own, and report.html.
A critical expectation that fails is DataAtRisk.
"""

from __future__ import annotations

import importlib
import json
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cdc_core.errors import DataAtRisk
from cdc_core.model.merged import KEY_CHAIN, ORIGIN, SHARD, MergedOp
from cdc_core.model.run import MergeCounts, MergeTable, counts_from_bytes, counts_path, quality_report
from cdc_core.model.staged import FILE, OP, POS, ROW, SEQ, SOURCE, TS
from cdc_core.target.compare import outcomes
from cdc_core.target.destination import Destination, Sessions
from cdc_core.target.text import row_keys
from spark_jobs.columns import Work, c, map_in_arrow
from spark_jobs.failures import carried
from spark_jobs.job import Job, each_table, leave, log, run
from spark_jobs.key_changes import exact
from spark_jobs.merge import read_changes, row_columns
from spark_jobs.multiset import copy_identity
from spark_jobs.report import page, summary
from spark_jobs.write import accepted

GATHERED_ROWS = 1_000_000
"""A frame of up to this many rows is judged in memory (see suite_runner)."""
_TABLE, _KEY, _SHARD, _OUTCOME = "_table", "_key", "_shard", "_outcome"
_STAGED = (OP, TS, SOURCE, FILE, POS, ROW, SEQ)
_TARGET_FRAME = f"`{_TABLE}` string, `{_SHARD}` string, `{_KEY}` string, `{OP}` string, `{_OUTCOME}` string"


def staged_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    parts = []
    for table in tables:
        for _, rows in job.staged(table):
            parts.append(rows.select(F.lit(table.table).alias(_TABLE), *[c(name) for name in _STAGED]))
    return reduce(DataFrame.unionAll, parts) if parts else None


def merged_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    parts = []
    for table in tables:
        rows = job.read(job.merged(table.table))
        if table.key:
            key = F.to_json(F.struct(*[exact(rows.schema[name].dataType, name).alias(name) for name in table.key]))
            if ORIGIN in rows.columns:  # a truncate has no key, and there may be one for each source table
                key = F.when(c(OP) == MergedOp.TRUNCATE, c(ORIGIN)).otherwise(key)
        else:
            key = copy_identity(rows.schema)
        notes = [c(name) for name in (OP, SOURCE, SEQ, ROW)]
        parts.append(rows.select(F.lit(table.table).alias(_TABLE), key.alias(_KEY), *notes))
    return reduce(DataFrame.unionAll, parts) if parts else None


def target_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    def one(table: MergeTable) -> DataFrame:
        rows = accepted(job, table, job.read(job.filtered(table.table)))
        return map_in_arrow(rows, _comparer(job.destination(table)), _TARGET_FRAME)

    parts = each_table(one, tables)
    return reduce(DataFrame.unionAll, parts) if parts else None


def _to_compare(job: Job, table: MergeTable) -> int:
    if job.rows_in(job.quarantine(table.table)):
        return accepted(job, table, job.read(job.filtered(table.table))).count()
    return job.rows_in(job.filtered(table.table))


def _comparer(destination: Destination) -> Work:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with carried(), tempfile.TemporaryDirectory(prefix="lockstep-") as scratch, Sessions(destination) as sessions:
            for batch in batches:
                shards = np.asarray(batch.column(SHARD))
                for number in np.unique(shards):
                    rows = batch.take(pa.array(np.flatnonzero(shards == number)))
                    shard = destination.shards[number]
                    found = outcomes(
                        sessions.of(shard), shard.facts, rows, destination.layout_of(shard), scratch=Path(scratch)
                    )
                    yield pa.record_batch(
                        {
                            _TABLE: pa.array([destination.logical] * rows.num_rows),
                            _SHARD: pa.array([shard.table.name] * rows.num_rows),
                            _KEY: row_keys(rows, destination.key),
                            OP: rows.column(OP),
                            _OUTCOME: pa.array(found, pa.string()),
                        }
                    )

    return work


def own_frame(job: Job, table: MergeTable, stage: str) -> DataFrame:
    """The rows that a user's suite judges: their columns and bookkeeping, without nested values."""
    merged = stage == "merged"
    rows = job.read(job.merged(table.table)) if merged else read_changes(job, table, row_columns(job, table))
    nested = [
        field.name
        for field in rows.schema
        if isinstance(field.dataType, T.StructType | T.MapType) or field.name == KEY_CHAIN
    ]
    return rows.drop(*[c(name) for name in nested])


def check(job: Job) -> None:
    """Runs the three suites and the pipeline's own. Raises DataAtRisk (quality.failed) after all have run and their
    results are kept, UsageError (quality.suite), Refused (plan.purged) for staged files that were purged meanwhile."""
    with job.reading_staged():
        _check(job)


def _check(job: Job) -> None:
    folder = job.plan.quality_folder(job.target.name)
    job.clear(folder)
    tables = [table for table in job.tables() if table.files]
    counts = counts_from_bytes(job.store.get(counts_path(job.plan.merged_folder(job.merge_set.name))), MergeCounts)
    winners = {one.table: one.winners for one in counts}
    rows = {
        "staged": sum(table.rows for table in tables),
        "merged": sum(winners[table.table] for table in tables),
        "target": sum(_to_compare(job, table) for table in tables),
    }
    frames = {
        "staged": staged_frame(job, tables),
        "merged": merged_frame(job, tables),
        "target": target_frame(job, tables),
    }
    with ThreadPoolExecutor(len(frames), thread_name_prefix="gather") as pool:
        gathered = {
            stage: pool.submit(frame.toArrow)
            for stage, frame in frames.items()
            if frame is not None and rows[stage] <= GATHERED_ROWS
        }
        from spark_jobs.suite_runner import GOOD, SUITES, judge

    verdicts: dict[str, dict[str, Any]] = {}
    for stage, frame in frames.items():
        if frame is None:
            verdicts[stage] = {"success": True, "suite": stage, "rows": 0, "expectations": []}
        else:
            data = gathered[stage].result().to_pandas() if stage in gathered else frame
            verdicts[stage] = judge(data, SUITES[stage](rows[stage]), rows[stage])
            if not verdicts[stage]["success"] and stage == "target":
                verdicts[stage]["examples"] = _examples(frame, GOOD)
        _keep(job, folder, stage, verdicts[stage])
    for name, verdict in _own_verdicts(job, tables, winners):
        verdicts[name] = verdict
        _keep(job, folder, name, verdict)
    # Comes last: without the report, no verdict counts.
    job.store.put(quality_report(folder), page(job.plan.run_id, job.target.name, verdicts).encode())
    failed = [name for name, verdict in verdicts.items() if not verdict["success"]]
    if failed:
        raise DataAtRisk(
            f"Rows fail the expectations of {', '.join(failed)}.",
            where=f"run {job.plan.run_id}, target {job.target.name}",
            code="quality.failed",
            remedy=f"read {job.store.location(quality_report(folder))}, or {failed[0]}.json beside it; the consume "
            "records have not moved",
        )


def _own_verdicts(
    job: Job, tables: Sequence[MergeTable], winners: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The verdicts of those of the pipeline's own suites whose table has rows in the run."""
    from spark_jobs.suite_runner import judge, own_suite

    by_name = {table.table: table for table in tables}
    for number, suite in enumerate(job.pipeline.quality.suites):
        table = by_name.get(suite.table)
        if table is not None:
            made = own_suite(suite)
            rows = table.rows if suite.stage == "staged" else winners[table.table]
            frame = own_frame(job, table, suite.stage)
            verdict = judge(frame.toArrow().to_pandas() if rows <= GATHERED_ROWS else frame, made, rows)
            yield f"own-{number}", verdict | {"table": suite.table, "stage": suite.stage, "file": suite.path}


def _keep(job: Job, folder: str, name: str, verdict: dict[str, Any]) -> None:
    """Writes the verdict to a file and to the task's log."""
    job.store.put(f"{folder}/{name}.json", json.dumps(verdict, indent=1).encode())
    met = all(one["success"] for one in verdict["expectations"])
    log.log(logging.INFO if met else logging.WARNING, "run %s %s", job.plan.run_id, summary(name, verdict))
    for example in verdict.get("examples", ()):
        log.warning("run %s %s", job.plan.run_id, example)


def _examples(frame: DataFrame, good: Sequence[str]) -> list[dict[str, str]]:
    bad = frame.where(~c(_OUTCOME).isin(*good)).limit(20)
    return [{name: str(value) for name, value in row.asDict().items()} for row in bad.collect()]


def main(argv: Sequence[str] | None = None) -> int:
    with ThreadPoolExecutor(1, thread_name_prefix="import") as pool:
        pool.submit(importlib.import_module, "spark_jobs.suite_runner")
        return run("quality", check, argv)


if __name__ == "__main__":
    leave(main())
