"""Applies staged batches to the targets without Airflow: the tasks of a DAG run, one after the other, in this process.

plan -> merge -> per target: filter -> write -> quality -> commit. The code of each task is the one that Airflow runs.
What a run has not committed, because it failed or was killed, the next one takes over; it also takes over from one that
is still running, which then ends where its next task would begin.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from cdc_core.apply import plan as planning
from cdc_core.apply import replay as replaying
from cdc_core.apply.commit import CommitSummary, commit, mark_applied, require_gates_closed, taken_over
from cdc_core.apply.jobs import Spark, SparkJob
from cdc_core.apply.layouts import note_layouts
from cdc_core.apply.replay import Selection
from cdc_core.check.loops import require_no_loops
from cdc_core.config import Pipeline
from cdc_core.errors import LockstepError
from cdc_core.meta import LedgerRow, Meta
from cdc_core.model.run import RunPlan
from cdc_core.model.tasks import COMMIT, MERGE, TARGET_TASKS, WRITE
from cdc_core.stage.objects import ObjectStore
from cdc_core.target_tables import require_any_ready

log = logging.getLogger(__name__)

Began = Callable[[str], None]
"""Receives the name of each task as it begins, such as `merge` or `shards: write`."""


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
    """The context of every task of a run."""

    pipeline: Pipeline
    meta: Meta
    store: ObjectStore
    environ: Mapping[str, str]
    began: Began
    spark: Spark


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
    (spark.ended) for an error of Spark.
    """
    run_id = plan.run_id
    require_no_loops(context.pipeline, plan, context.environ)
    summaries: list[CommitSummary] = []
    errors: list[LockstepError] = []
    lost: list[str] = []
    failed: dict[str, LockstepError] = {}
    if any(one.batches for one in plan.targets) and not taken_over(context.meta, plan):
        with _noted(context, run_id):
            failed = require_any_ready(context.meta, context.pipeline, plan, context.environ)
            _merge(context, plan)
    for name, refusal in failed.items():
        log.error("run %s: target %s: %s", run_id, name, refusal)
        context.meta.record_failure(run_id, str(refusal), target=name)
        errors.append(refusal)
    for one in plan.targets:
        if one.batches and one.target not in failed:
            try:
                with _noted(context, run_id, one.target):
                    summaries.append(_to_target(context, plan, one.target))
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


def _merge(context: RunContext, plan: RunPlan) -> None:
    for one in plan.merge_sets:
        if one.tables:
            _announce(context, plan.run_id, MERGE.name)
            context.spark.submit(SparkJob(MERGE.name, plan, merge_set=one.name))


def _to_target(context: RunContext, plan: RunPlan, target: str) -> CommitSummary:
    if plan.merge_set(plan.target(target).merge_set).tables:
        for task in TARGET_TASKS:
            if task.spark:
                _begin(context, plan, target, task.name)
                if task is WRITE:
                    note_layouts(context.meta, context.pipeline, plan, target)
                context.spark.submit(SparkJob(task.name, plan, target=target))
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
    log.info("run %s: %s starts", run_id, task)
    context.began(task)
