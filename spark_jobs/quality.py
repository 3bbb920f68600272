"""Quality: the suites of expectations/ over the run's staged and merged rows, and over what the target now has.

The suites judge the rows that quality_rows.py gives, few of them in the driver, many in tasks of Spark.
Above `quality.sample_rows` evenly spaced rows are read back, and the verdict says of how many.
Results are kept in quality/target=<t>/: <stage>.json, own-<n>.json for suites of the pipeline's own, and report.html.
A critical expectation that fails is DataAtRisk.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from cdc_core.config import IcebergTarget
from cdc_core.errors import DataAtRisk
from cdc_core.model.run_plan import MergeTable, quality_report
from spark_jobs.job import Job, log
from spark_jobs.quality_rows import JudgedRows, Sample, merged_rows, own_rows, staged_rows, target_rows
from spark_jobs.quarantine import accepted_rows, names_aside
from spark_jobs.report import page, summary
from spark_jobs.step_files import clear_folder

GATHERED_ROWS = 1_000_000
"""So many rows at most of a run that Spark does are judged in the driver (suite_runner.py); of a run that the driver
does, all."""
GATHERED_BYTES = 64 << 20
"""So much memory at most take the changes whose rows a pipeline's own suite judges in the driver of such a run: Arrow's
columns, those of pandas, and what an expectation makes of them take four times as much."""


def check(job: Job) -> None:
    """Runs the three suites and the pipeline's own. Raises DataAtRisk (quality.failed) after all have run and their
    results are kept, UsageError (quality.suite), Refused (plan.purged) for staged files that were purged meanwhile."""
    with job.reading_staged():
        _check(job)


def _check(job: Job) -> None:
    folder = job.plan.quality_folder(job.target.name)
    clear_folder(job.store, folder)
    tables = [table for table in job.tables() if table.files]
    aside = names_aside(job)
    accepted = accepted_rows(job, tables, aside)
    sample = Sample.of(job.plan.run_id, accepted, job.pipeline.quality.sample_rows)
    rows = {
        "staged": staged_rows(job, tables),
        "merged": merged_rows(job, tables),
        "target": _of_target(job, tables, sample, aside),
    }
    verdicts: dict[str, dict[str, Any]] = {}
    for stage, verdict in _verdicts(job, rows):
        verdicts[stage] = verdict
        if stage == "target":
            verdict["of"] = sum(accepted.values())
        _keep(job, folder, stage, verdict)
    for name, verdict in _own_verdicts(job, tables):
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


def _of_target(
    job: Job, tables: Sequence[MergeTable], sample: Sample, aside: Mapping[str, tuple[str, ...]]
) -> JudgedRows:
    if isinstance(job.target, IcebergTarget):
        from spark_jobs.lake_quality import mirror_rows

        return mirror_rows(job, tables, sample)
    return target_rows(job, tables, sample, aside)


def _verdicts(job: Job, rows: Mapping[str, JudgedRows]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The verdicts of the three suites. A thread gathers rows while others are judged."""
    from spark_jobs.suite_parts import judge_in_parts  # takes seconds, and not beside others (Driver.load)
    from spark_jobs.suite_runner import judge_stage

    few = [stage for stage, row in rows.items() if job.small or row.count <= GATHERED_ROWS]
    pool = ThreadPoolExecutor(1, thread_name_prefix="rows")
    try:
        gathered = {stage: pool.submit(rows[stage].table, job) for stage in few}
        for stage, row in rows.items():
            if stage in gathered:
                yield stage, judge_stage(gathered.pop(stage).result(), stage, row.count)
            else:
                yield stage, judge_in_parts(job, stage, row)
    finally:
        pool.shutdown(cancel_futures=True)


def _own_verdicts(job: Job, tables: Sequence[MergeTable]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The verdicts of those of the pipeline's own suites whose table has rows in the run."""
    from spark_jobs.suite_runner import judge, own_suite

    by_name = {table.table: table for table in tables}
    for number, suite in enumerate(job.pipeline.quality.suites):
        table = by_name.get(suite.table)
        if table is not None:
            made = own_suite(suite)
            rows = own_rows(job, table, suite.stage)
            few = job.small or (rows.count <= GATHERED_ROWS and table.plain_bytes <= GATHERED_BYTES)
            with nullcontext(rows.table(job)) if few else rows.frame(job) as frame:
                verdict = judge(frame, made, rows.count)
            yield f"own-{number}", verdict | {"table": suite.table, "stage": suite.stage, "file": suite.path}


def _keep(job: Job, folder: str, name: str, verdict: dict[str, Any]) -> None:
    """Writes the verdict to a file and to the task's log."""
    job.store.put(f"{folder}/{name}.json", json.dumps(verdict, indent=1).encode())
    met = all(expectation["success"] for expectation in verdict["expectations"])
    log.log(logging.INFO if met else logging.WARNING, "run %s %s", job.plan.run_id, summary(name, verdict))
    for example in verdict.get("examples", ()):
        log.warning("run %s %s", job.plan.run_id, example)
