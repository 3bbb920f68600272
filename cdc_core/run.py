"""Applies staged batches to the targets without Airflow: the tasks of a DAG run, one after the other, in this process.

plan -> merge -> per target: filter -> write -> quality -> commit. The code of each task is the one that Airflow runs;
Spark's jobs are those of Airflow's tasks, in one application on the master that the pipeline names. What a run has not
committed, because it failed or was killed, the next one takes over; it also takes over from one that is still running,
which then ends where its next task would begin.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from cdc_core.apply import plan as planning
from cdc_core.apply import replay as replaying
from cdc_core.apply.commit import CommitSummary, commit, mark_applied, require_gates_closed, taken_over
from cdc_core.apply.jobs import SparkJob, environ_for, is_remote, job_of, spark_job
from cdc_core.apply.layouts import note_layouts
from cdc_core.apply.replay import Selection
from cdc_core.apply.spark_application import SparkApplication
from cdc_core.check.loops import require_no_loops
from cdc_core.config import Pipeline
from cdc_core.connections import variable_of
from cdc_core.errors import LockstepError, UsageError
from cdc_core.extras import require
from cdc_core.meta import LedgerRow, Meta
from cdc_core.model.run import RunPlan
from cdc_core.model.tasks import COMMIT, MERGE, TARGET_TASKS, WRITE
from cdc_core.stage.objects import ObjectStore
from cdc_core.target_tables import require_any_ready

log = logging.getLogger(__name__)

Began = Callable[[str], None]
"""Receives the name of each task as it begins, such as `merge` or `shards: write`."""


class Application(Protocol):
    """Runs the Spark jobs of a run, one after the other."""

    local: bool
    """Whether the master is on this machine."""

    def submit(self, job: SparkJob) -> None:
        """Runs a job to its end. Raises the error that ended it."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. summaries: of the targets that had batches, in the pipeline's order. lost: why it skipped
    other targets, whose batches other runs took over meanwhile. by_driver: without Spark."""

    run_id: str
    batches: int
    rows: int
    summaries: tuple[CommitSummary, ...]
    ledgers: tuple[LedgerRow, ...]
    lost: tuple[str, ...]
    by_driver: bool


@dataclass(frozen=True, slots=True)
class RunContext:
    """The context of every task of a run.

    logs: a local directory for the output of Spark applications. application: runs the Spark jobs of a plan; None: an
    application on the pipeline's spark.master does.
    """

    pipeline: Pipeline
    file: Path
    meta: Meta
    store: ObjectStore
    logs: Path
    environ: Mapping[str, str]
    began: Began
    application: Callable[[RunPlan], AbstractContextManager[Application]] | None = None


def fresh_run_id(pipeline: str, kind: str) -> str:
    """A run id that no other run has. Second and process id do not tell runs apart: in containers that are started
    together, the processes have the same id."""
    return f"{pipeline}-{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def apply(
    context: RunContext, run_id: str, *, targets: Sequence[str] | None = None, most_rows: int | None = None
) -> RunResult:
    """Apply everything staged that the targets have not committed yet. most_rows: as in the plan. Raises what
    `carry_out` and the plan raise."""
    context.began("plan")
    try:
        plan = planning.plan(
            context.meta, context.store, context.pipeline, window=None, run_id=run_id, targets=targets,
            most_rows=most_rows,
        )  # fmt: skip
    except LockstepError as error:
        _keep(context, "plan", "", error)
        raise
    return carry_out(context, plan)


def replay(context: RunContext, run_id: str, selection: Selection) -> RunResult:
    """Apply the selection, consumed or not. Raises what `carry_out` and the plan raise."""
    context.began("plan")
    return carry_out(
        context,
        replaying.plan(
            context.meta, context.store, context.pipeline, selection, run_id=run_id, environ=context.environ
        ),
    )


def carry_out(context: RunContext, plan: RunPlan) -> RunResult:
    """Runs all tasks of a plan.

    The targets are asked first whether they can be written. A target that fails, then or later, does not stop the
    others; the first error is raised when all have ended. Raises what the tasks raise; Refused (check.loop); RetryLater
    (run.spark_ended) for a Spark application that ends without an error of Lockstep.
    """
    run_id = plan.run_id
    require_no_loops(context.pipeline, plan, context.environ)
    summaries: list[CommitSummary] = []
    errors: list[LockstepError] = []
    lost: list[str] = []
    failed: dict[str, LockstepError] = {}
    with _application(context, plan) as spark:
        if any(one.batches for one in plan.targets) and not taken_over(context.meta, plan):
            with _noted(context, run_id):
                failed = require_any_ready(context.meta, context.pipeline, plan, context.environ)
                _merge(context, spark, plan)
        for name, refusal in failed.items():
            log.error("run %s: target %s: %s", run_id, name, refusal)
            context.meta.record_failure(run_id, str(refusal), target=name)
            errors.append(refusal)
        for one in plan.targets:
            if one.batches and one.target not in failed:
                try:
                    with _noted(context, run_id, one.target):
                        summaries.append(_to_target(context, spark, plan, one.target))
                except _TakenOver as taken:
                    lost.append(str(taken))
                except LockstepError as error:
                    log.error("run %s: target %s: %s", run_id, one.target, error)
                    errors.append(error)
    for one in plan.targets:
        if one.target not in failed:
            try:
                require_gates_closed(context.meta, context.pipeline, one.target, context.environ)
            except LockstepError as error:
                errors.append(error)
    if errors:
        raise errors[0]
    return RunResult(
        run_id,
        len({batch for one in plan.targets for batch in one.batches}),
        sum(table.rows for one in plan.merge_sets for table in one.tables),
        tuple(summaries),
        context.meta.ledger(run_id),
        tuple(lost),
        plan.by_driver(context.pipeline.spark.driver_rows),
    )


def _application(context: RunContext, plan: RunPlan) -> AbstractContextManager[Application]:
    """For all jobs of the run; by default its output goes to a file of the log directory."""
    return application_of(context) if context.application is None else context.application(plan)


def application_of(context: RunContext) -> SparkApplication:
    """On the pipeline's spark.master. Its driver starts with the first job, and stays until the end of the block.

    Raises UsageError (spark.no_endpoint, install.missing_extra).
    """
    spark = context.pipeline.spark
    if spark.session == "remote":
        require("connect", by="spark.session: remote")
        if not is_remote(spark.master):
            raise UsageError(
                "The pipeline's spark.session is remote, and its spark.master is not a Spark Connect endpoint.",
                where="spark.master",
                code="spark.no_endpoint",
                remedy="set spark.master: sc://host:15002; a token is in SPARK_CONNECT_AUTHENTICATE_TOKEN",
            )
    name = f"lockstep-{context.pipeline.pipeline}"
    references = [one for target in context.pipeline.targets for one in target.connections]
    return SparkApplication(
        name,
        master=spark.master,
        output=context.logs / f"{name}.log",
        environ=environ_for(context.pipeline, context.environ, {variable_of(one) for one in references}),
        driver_first=context.pipeline.spark.driver_rows > 0,
    )


@contextmanager
def shared_application(context: RunContext, *, ahead: bool = False) -> Iterator[tuple[RunContext, SparkApplication]]:
    """(a context whose runs share one application, that application). ahead: a driver that may do all jobs itself loads
    its libraries while the block does what comes before the first job. Raises what `application_of` raises."""
    with application_of(context) as application:
        if ahead:
            application.start_ahead(job_of(MERGE.name, (), context.pipeline, (), local=application.local))
        yield replace(context, application=lambda plan: nullcontext(application)), application


class _TakenOver(Exception):
    """Other runs took over all batches of the target."""


@contextmanager
def _noted(context: RunContext, run_id: str, target: str | None = None) -> Iterator[None]:
    """Records an error of the block in meta with the run, as Airflow's tasks do."""
    try:
        yield
    except LockstepError as error:
        _keep(context, "run", run_id, error, target)
        raise


def _keep(context: RunContext, task: str, run_id: str, error: LockstepError, target: str | None = None) -> None:
    try:
        if run_id:
            context.meta.record_failure(run_id, str(error), target=target)
        context.meta.failed(context.pipeline.pipeline, task, run_id, error)
    except LockstepError as unrecorded:
        log.warning("%s %s: this failure could not be kept in meta: %s", task, run_id, unrecorded)


def _merge(context: RunContext, spark: Application, plan: RunPlan) -> None:
    for one in plan.merge_sets:
        if one.tables:
            _announce(context, plan.run_id, MERGE.name)
            job = spark_job(
                MERGE.name, plan.path, context.file, context.pipeline, merge_set=one.name, local=spark.local
            )
            spark.submit(job)


def _to_target(context: RunContext, spark: Application, plan: RunPlan, target: str) -> CommitSummary:
    if plan.merge_set(plan.target(target).merge_set).tables:
        for task in TARGET_TASKS:
            if task.spark:
                _begin(context, plan, target, task.name)
                if task is WRITE:
                    note_layouts(context.meta, context.pipeline, plan, target)
                job = spark_job(task.name, plan.path, context.file, context.pipeline, target=target, local=spark.local)
                spark.submit(job)
            if task is WRITE:
                mark_applied(context.meta, plan, target)
    _begin(context, plan, target, COMMIT.name)
    return commit(context.meta, context.store, context.pipeline, plan, target, environ=context.environ)


def _begin(context: RunContext, plan: RunPlan, target: str, task: str) -> None:
    reason = taken_over(context.meta, plan, target)
    if reason:
        raise _TakenOver(reason)
    _announce(context, plan.run_id, f"{target}: {task}")


def _announce(context: RunContext, run_id: str, task: str) -> None:
    log.info("run %s: %s starts; the output of Spark goes to %s", run_id, task, context.logs)
    context.began(task)
