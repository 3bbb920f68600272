"""The way from staged batches to the targets without Airflow: the tasks of a DAG run, one after the other, here.

plan -> merge -> per target: filter -> write -> quality -> commit. The code of each task is the one that Airflow runs;
Spark applications are submitted by the same values, to the master that the pipeline names. What a run has not
committed, because it failed or was killed, the next one takes over; so it does from one that is still at work, which
then ends where its next task would begin.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cdc_core.apply import plan as planning
from cdc_core.apply import replay as replaying
from cdc_core.apply.commit import CommitSummary, commit, mark_applied, taken_over
from cdc_core.apply.job_errors import error_of
from cdc_core.apply.jobs import SparkJob, spark_job
from cdc_core.apply.replay import Selection
from cdc_core.check.loops import require_no_loops
from cdc_core.check.targets import require_any_target
from cdc_core.config import Pipeline
from cdc_core.errors import LockstepError, Refused
from cdc_core.meta import LedgerRow, Meta
from cdc_core.model.run import RunPlan
from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Began = Callable[[str], None]
"""Told the name of each task as it begins, such as `merge` or `shards: write`."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has done. summaries: of the targets that had batches, in the pipeline's order. lost: why it left
    other targets alone, whose batches other runs took over meanwhile."""

    run_id: str
    batches: int
    rows: int
    summaries: tuple[CommitSummary, ...]
    ledgers: tuple[LedgerRow, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rooms:
    """What every task of a run works with. logs: a local directory for the output of Spark applications."""

    pipeline: Pipeline
    file: Path
    meta: Meta
    store: ObjectStore
    logs: Path
    environ: Mapping[str, str]
    began: Began


def apply(rooms: Rooms, run_id: str, *, targets: Sequence[str] | None = None) -> RunResult:
    """Take everything staged that the targets have not committed yet. Raises what `carry_out` and the plan raise."""
    rooms.began("plan")
    try:
        plan = planning.plan(rooms.meta, rooms.store, rooms.pipeline, window=None, run_id=run_id, targets=targets)
    except LockstepError as error:
        _keep(rooms, "plan", "", error)
        raise
    return carry_out(rooms, plan)


def replay(rooms: Rooms, run_id: str, selection: Selection) -> RunResult:
    """Apply the selection, consumed or not. Raises what `carry_out` and the plan raise."""
    rooms.began("plan")
    return carry_out(rooms, replaying.plan(rooms.meta, rooms.store, rooms.pipeline, selection, run_id=run_id))


def carry_out(rooms: Rooms, plan: RunPlan) -> RunResult:
    """All tasks behind a plan.

    The targets are asked first whether they can be written. A target that fails, then or later, does not stop the
    others; the first error is raised when all have ended. Raises
    what the tasks raise; Refused (check.loop); RetryLater (run.spark_ended) for a Spark application that says nothing
    of ours.
    """
    run_id = plan.run_id
    require_no_loops(rooms.pipeline, plan, rooms.environ)
    summaries: list[CommitSummary] = []
    errors: list[LockstepError] = []
    lost: list[str] = []
    failed: dict[str, LockstepError] = {}
    if any(one.batches for one in plan.targets) and not taken_over(rooms.meta, plan):
        failed = _noted(rooms, run_id, None, lambda: require_any_target(rooms.pipeline, plan, rooms.environ))
        _noted(rooms, run_id, None, lambda: _merge(rooms, plan))
    for name, refusal in failed.items():
        log.error("run %s: target %s: %s", run_id, name, refusal)
        rooms.meta.record_failure(run_id, str(refusal), target=name)
        errors.append(refusal)
    for one in plan.targets:
        if one.batches and one.target not in failed:
            try:
                summaries.append(_noted(rooms, run_id, one.target, lambda: _to_target(rooms, plan, one.target)))  # noqa: B023
            except _TakenOver as taken:
                lost.append(str(taken))
            except LockstepError as error:
                log.error("run %s: target %s: %s", run_id, one.target, error)
                errors.append(error)
    if errors:
        raise errors[0]
    return RunResult(
        run_id,
        len({batch for one in plan.targets for batch in one.batches}),
        sum(table.rows for one in plan.merge_sets for table in one.tables),
        tuple(summaries),
        rooms.meta.ledger(run_id),
        tuple(lost),
    )


class _TakenOver(Exception):
    """Other runs have all batches of the target."""


def _noted(rooms: Rooms, run_id: str, target: str | None, work: Callable[[], Result]) -> Result:
    """The work's result; an error is kept in meta beside the run, as Airflow's tasks do."""
    try:
        return work()
    except LockstepError as error:
        _keep(rooms, "run", run_id, error, target)
        raise


def _keep(rooms: Rooms, task: str, run_id: str, error: LockstepError, target: str | None = None) -> None:
    try:
        if run_id:
            rooms.meta.record_failure(run_id, str(error), target=target)
        rooms.meta.failed(rooms.pipeline.pipeline, task, run_id, error)
    except LockstepError as unrecorded:
        log.warning("%s %s: this failure could not be kept in meta: %s", task, run_id, unrecorded)


def _merge(rooms: Rooms, plan: RunPlan) -> None:
    for one in plan.merge_sets:
        if one.tables:
            _tell(rooms, plan.run_id, "merge")
            submit(spark_job("merge", plan.path, rooms.file, rooms.pipeline, merge_set=one.name), rooms)


def _to_target(rooms: Rooms, plan: RunPlan, target: str) -> CommitSummary:
    if plan.merge_set(plan.target(target).merge_set).tables:
        for job in ("filter", "write", "quality"):
            _begin(rooms, plan, target, job)
            submit(spark_job(job, plan.path, rooms.file, rooms.pipeline, target=target), rooms)
            if job == "write":
                mark_applied(rooms.meta, plan, target)
    _begin(rooms, plan, target, "commit")
    return commit(rooms.meta, rooms.store, rooms.pipeline, plan, target)


def _begin(rooms: Rooms, plan: RunPlan, target: str, task: str) -> None:
    reason = taken_over(rooms.meta, plan, target)
    if reason:
        raise _TakenOver(reason)
    _tell(rooms, plan.run_id, f"{target}: {task}")


def _tell(rooms: Rooms, run_id: str, task: str) -> None:
    log.info("run %s: %s begins; output of Spark goes to %s", run_id, task, rooms.logs)
    rooms.began(task)


def submit(job: SparkJob, rooms: Rooms) -> None:
    """Run a Spark application to its end; its output goes to a file of the log directory.

    Raises the error that the application logged, or RetryLater (run.spark_ended), Refused (run.no_spark_submit).
    """
    # spark-submit finds its home only when it is called by name, with the environment's bin on the path.
    bin_folder = str(Path(sys.executable).parent)
    environ = {**rooms.environ, "PATH": f"{bin_folder}{os.pathsep}{rooms.environ.get('PATH', '')}"}
    output = rooms.logs / f"{job.name}.log"
    with output.open("ab") as file:
        began = file.tell()
        try:
            process = subprocess.Popen(
                job.command(rooms.pipeline.spark.master), env=environ, stdout=file, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise Refused(
                f"spark-submit cannot be run: {error.strerror}.",
                where=bin_folder,
                code="run.no_spark_submit",
                remedy="install pyspark in this Python (`make setup`), and Java 17",
            ) from None
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status != 0:
        with output.open("rb") as file:
            file.seek(began)
            said = file.read().decode(errors="replace")
        raise error_of(said, job=job.name, status=status, seen=str(output))
