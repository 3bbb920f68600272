"""Quality: the suites of expectations/ over the run's staged and merged rows, and over what the target now has.

The workers read the touched keys back from the target and compare values in the server; the suites judge the frames.
Above `quality.sample_rows` evenly spaced rows are read back, and the verdict says of how many.
Great Expectations takes seconds to import, which it does here while Spark starts and the frames are gathered.
Results are kept in quality/target=<t>/: <stage>.json, own-<n>.json for suites of the pipeline's own, and report.html.
A critical expectation that fails is DataAtRisk.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from cdc_core.errors import DataAtRisk
from cdc_core.model.run import DRIVER_BYTES, MergeCounts, MergeTable, counts_from_bytes, counts_path, quality_report
from spark_jobs.columns import c
from spark_jobs.job import Job, log
from spark_jobs.quality_rows import (
    OUTCOME,
    Sample,
    merged_frame,
    merged_rows,
    own_frame,
    size_bytes,
    staged_frame,
    staged_rows,
    target_frame,
    target_rows,
    whole,
)
from spark_jobs.report import page, summary
from spark_jobs.write import accepted

GATHERED_ROWS = 1_000_000
"""So many rows at most are judged at once in memory (suite_runner.py), without the JVM; those that a pipeline's own
suite judges, only if their values fit as well."""
_COPIES = 4
"""Of a frame that is judged in memory: Arrow's columns, those of pandas, and what an expectation makes of them."""

Rows = Callable[[Job, Sequence[MergeTable]], Iterator[pa.Table]]
Frame = Callable[[Job, Sequence[MergeTable]], DataFrame | None]


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
    names = job.tables_aside
    aside = [table for table in tables if table.table in names]
    paths = [path for table in tables if table.table not in names for path in job.filtered_files(table)]
    files = dict(zip(paths, job.rows_of(paths), strict=True))
    sample = Sample.of(job.plan.run_id, files, job.pipeline.quality.sample_rows)
    compared_whole = sum(accepted(job, table, job.read(job.filtered_files(table))).count() for table in aside)
    rows = {
        "staged": sum(table.rows for table in tables),
        "merged": sum(winners[table.table] for table in tables),
        "target": sample.rows + compared_whole,
    }
    verdicts: dict[str, dict[str, Any]] = {}
    for stage, verdict in _verdicts(job, tables, sample, rows):
        verdicts[stage] = verdict
        if stage == "target":
            verdict["of"] = sum(files.values()) + compared_whole
        _keep(job, folder, stage, verdict)
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


def _verdicts(
    job: Job, tables: Sequence[MergeTable], sample: Sample, rows: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of the three suites. rows: how many each of them judges. A sample is never judged by Spark's frame, which has
    all rows."""
    read: dict[str, Rows] = {
        "staged": staged_rows, "merged": merged_rows, "target": partial(target_rows, sample=sample, most=GATHERED_ROWS)
    }  # fmt: skip
    by_spark: dict[str, Frame] = {"staged": staged_frame, "merged": merged_frame, "target": target_frame}

    def is_read(stage: str) -> bool:
        return rows[stage] <= GATHERED_ROWS or (stage == "target" and sample.every > 1)

    with ThreadPoolExecutor(len(read), thread_name_prefix="gather") as pool:
        gathered = {
            stage: pool.submit(_gathered, give(job, tables), rows[stage])
            for stage, give in read.items()
            if is_read(stage)
        }
        from spark_jobs.suite_runner import EXAMPLES, GOOD, SUITES, judge

    for stage in SUITES:
        parts = gathered[stage].result() if stage in gathered else None
        if parts is not None:
            yield stage, _of_parts(stage, parts, rows[stage])
            continue
        frame = by_spark[stage](job, tables)
        assert frame is not None
        verdict = judge(frame, SUITES[stage](rows[stage]), rows[stage])
        if not verdict["success"] and stage == "target":
            bad = frame.where(~c(OUTCOME).isin(*GOOD)).limit(EXAMPLES)
            verdict["examples"] = _shown([row.asDict() for row in bad.collect()])
        yield stage, verdict


def _gathered(read: Iterator[pa.Table], rows: int) -> Iterable[pa.Table]:
    """About so many rows, at once if they are few, else as they come."""
    if rows > GATHERED_ROWS:
        return read
    found = list(read)
    return [whole(found)] if found else []


def _of_parts(stage: str, parts: Iterable[pa.Table], rows: int) -> dict[str, Any]:
    from spark_jobs.suite_runner import EXAMPLES, GOOD, SUITES, judge_parts

    examples: list[dict[str, Any]] = []

    def frames() -> Iterator[Any]:
        for part in parts:
            if stage == "target":
                known = pc.is_in(part.column(OUTCOME).cast(pa.string()), pa.array(GOOD))
                examples.extend(part.filter(pc.invert(known)).slice(0, EXAMPLES - len(examples)).to_pylist())
            yield part.to_pandas()

    verdict = judge_parts(frames(), SUITES[stage], rows)
    return verdict | {"examples": _shown(examples)} if examples else verdict


def _shown(examples: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in row.items()} for row in examples]


def _own_verdicts(
    job: Job, tables: Sequence[MergeTable], winners: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The verdicts of those of the pipeline's own suites whose table has rows in the run."""
    from spark_jobs.suite_runner import judge, judged_in_memory, own_suite

    by_name = {table.table: table for table in tables}
    for number, suite in enumerate(job.pipeline.quality.suites):
        table = by_name.get(suite.table)
        if table is not None:
            made = own_suite(suite)
            rows = table.rows if suite.stage == "staged" else winners[table.table]
            frame = own_frame(job, table, suite.stage)
            here = rows <= GATHERED_ROWS and size_bytes(frame, rows) <= DRIVER_BYTES // _COPIES
            verdict = judge(judged_in_memory(frame.toArrow()) if here else frame, made, rows)
            yield f"own-{number}", verdict | {"table": suite.table, "stage": suite.stage, "file": suite.path}


def _keep(job: Job, folder: str, name: str, verdict: dict[str, Any]) -> None:
    """Writes the verdict to a file and to the task's log."""
    job.store.put(f"{folder}/{name}.json", json.dumps(verdict, indent=1).encode())
    met = all(one["success"] for one in verdict["expectations"])
    log.log(logging.INFO if met else logging.WARNING, "run %s %s", job.plan.run_id, summary(name, verdict))
    for example in verdict.get("examples", ()):
        log.warning("run %s %s", job.plan.run_id, example)
