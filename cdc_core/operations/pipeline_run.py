"""A run without Airflow: the tasks of a DAG run (model/tasks.py), one after the other, in this process.

extract -> copy -> plan -> merge -> per target: filter -> write -> quality -> commit. The code of each task is the one
that Airflow runs.
What a run has not committed, because it failed or was killed, the next one takes over; it also takes over from one that
is still running, which then ends where its next task would begin.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from cdc_core.config import MysqlTarget
from cdc_core.errors import LockstepError, RetryLater
from cdc_core.meta import LedgerRow
from cdc_core.model.run_plan import RunPlan
from cdc_core.model.tasks import COMMIT, EXTRACT, MERGE, PLAN, SNAPSHOT, TARGET_TASKS, WRITE
from cdc_core.operations.apply import plan as planning
from cdc_core.operations.apply import replay as replaying
from cdc_core.operations.apply.commit import CommitSummary, commit, mark_applied, require_sound, taken_over
from cdc_core.operations.apply.jobs import Spark, SparkJob
from cdc_core.operations.apply.replay import Selection
from cdc_core.operations.check.loops import require_no_loops
from cdc_core.operations.copy.copy_sources import copy_pending
from cdc_core.operations.extract.drained import DrainResult
from cdc_core.operations.extract.partial import note_partial
from cdc_core.operations.extract.side_by_side import extract_sources
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.repair.reverse_query import Queried, look_up
from cdc_core.operations.target_tables import create_missing, require_any_ready

log = logging.getLogger(__name__)


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
class WholeRun:
    """extracted: by source, how far it is staged. queried: what was looked up in the sources, if the pipeline does."""

    extracted: Mapping[str, DrainResult]
    queried: Queried | None
    applied: RunResult


def run(
    opened: OpenPipeline,
    spark: Spark,
    kind: str,
    targets: Sequence[str],
    *,
    until_us: int | None = None,
    partial_noted: set[str] | None = None,
) -> WholeRun:
    """What a DAG run does: extracts, copies what is pending, asks the sources (`ask_sources`), and applies.

    until_us: of the extraction; None for everything that is committed now. partial_noted: tables of which rows are
    missing, and of which that was noted before; gets those that are noted now. Raises what these raise.
    """
    partial_noted = set() if partial_noted is None else partial_noted
    opened.progress.step(EXTRACT.name)
    extracted = extract_sources(opened, until_us=until_us)
    opened.progress.step(SNAPSHOT.name)
    extracted |= copy_pending(opened)
    partial = {table for result in extracted.values() for table in result.partial}
    if not partial <= partial_noted:
        note_partial(opened, extracted)
        partial_noted |= partial
    queried = ask_sources(opened, targets)
    return WholeRun(extracted, queried, apply(opened, spark, kind, targets=targets))


def ask_sources(opened: OpenPipeline, targets: Sequence[str]) -> Queried | None:
    """What a run of everything that is staged does before its plan: makes the tables that the targets lack, and looks
    old changes up in the sources if the pipeline says so; what was found.

    Not for the run of an interval: it must not have rows of a later one, nor need the source.
    """
    _create_missing_tables(opened, targets)
    if opened.pipeline.reverse_query is None:
        return None
    opened.progress.step("reverse query")
    queried = look_up(opened, targets)
    for line in queried.notes:
        opened.progress.note(line)
    return queried


def _create_missing_tables(opened: OpenPipeline, names: Sequence[str]) -> None:
    """Also tables of which no row is staged; those of the run's plan are made by the run itself, which also finds a
    target that does not answer: that does not keep it from the others."""
    for target in map(opened.pipeline.target, names):
        if target.on_missing_table != "create" or not isinstance(target, MysqlTarget):
            continue
        try:
            made = create_missing(opened, [target])
        except RetryLater as error:
            opened.progress.note(f"{target.name}: no table is made: {error.what}")
            continue
        for table in made:
            if table.error is not None:
                opened.progress.note(f"{table.name} is not made: {table.error.what} {table.error.remedy}.")
            else:
                opened.progress.note(f"created {table.name}" + (f": {'; '.join(table.notes)}" if table.notes else ""))


def fresh_run_id(pipeline: str, kind: str) -> str:
    """A run id that no other run has. Second and process id do not tell runs apart: in containers that are started
    together, the processes have the same id."""
    return f"{pipeline}-{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def apply(opened: OpenPipeline, spark: Spark, kind: str, *, targets: Sequence[str] | None = None) -> RunResult:
    """Apply everything staged that the targets have not committed yet. kind: of the run, a part of its id. Raises
    what `carry_out` and the plan raise."""
    run_id = fresh_run_id(opened.name, kind)
    opened.progress.step(PLAN.name)
    try:
        plan = planning.plan(opened, window=None, run_id=run_id, targets=targets)
    except LockstepError as error:
        keep_failure(opened, "plan", "", error)
        raise
    return carry_out(opened, spark, plan)


def replay(opened: OpenPipeline, spark: Spark, selection: Selection) -> RunResult:
    """Apply the selection, consumed or not. Raises what `carry_out` and the plan raise."""
    run_id = fresh_run_id(opened.name, "replay")
    opened.progress.step(PLAN.name)
    return carry_out(opened, spark, replaying.plan(opened, selection, run_id=run_id))


def carry_out(opened: OpenPipeline, spark: Spark, plan: RunPlan) -> RunResult:
    """Runs all tasks of a plan.

    The targets are asked first whether they can be written. A target that fails, then or later, does not stop the
    others; the first error is raised when all have ended. Raises what the tasks raise; Refused (check.loop); RetryLater
    (spark.ended) for an error of Spark.
    """
    run_id = plan.run_id
    require_no_loops(opened.pipeline, plan)
    summaries: list[CommitSummary] = []
    errors: list[LockstepError] = []
    lost: list[str] = []
    failed: dict[str, LockstepError] = {}
    if any(target.batches for target in plan.targets) and not taken_over(opened.meta, plan):
        with _noted(opened, run_id):
            failed = require_any_ready(opened, plan)
            _merge(opened, spark, plan)
    for name, refusal in failed.items():
        log.error("run %s: target %s: %s", run_id, name, refusal)
        opened.meta.runs.record_failure(run_id, str(refusal), target=name)
        errors.append(refusal)
    for target in plan.targets:
        if target.batches and target.target not in failed:
            try:
                with _noted(opened, run_id, target.target):
                    summaries.append(_to_target(opened, spark, plan, target.target))
            except _TakenOver as taken:
                lost.append(str(taken))
            except LockstepError as error:
                log.error("run %s: target %s: %s", run_id, target.target, error)
                errors.append(error)
    for target in plan.targets:
        if target.target not in failed:
            try:
                require_sound(opened, target.target, replay=plan.replay)
            except LockstepError as error:
                errors.append(error)
    if errors:
        raise errors[0]
    return RunResult(
        run_id,
        len({batch for target in plan.targets for batch in target.batches}),
        sum(table.rows for merge_set in plan.merge_sets for table in merge_set.tables),
        tuple(summaries),
        opened.meta.ledgers.find(run_id),
        tuple(lost),
        plan.by_driver(opened.pipeline.spark.driver_rows),
    )


class _TakenOver(Exception):
    """Other runs took over all batches of the target."""


@contextmanager
def _noted(opened: OpenPipeline, run_id: str, target: str | None = None) -> Iterator[None]:
    """Records an error of the block in meta with the run, as Airflow's tasks do."""
    try:
        yield
    except LockstepError as error:
        keep_failure(opened, "run", run_id, error, target)
        raise


def keep_failure(opened: OpenPipeline, task: str, run_id: str, error: LockstepError, target: str | None = None) -> None:
    """Keeps an error of a task until it succeeds, and with the run, if there is one. Never raises."""
    try:
        if run_id:
            opened.meta.runs.record_failure(run_id, str(error), target=target)
        opened.meta.failures.keep(task, run_id, error)
    except LockstepError as unrecorded:
        log.warning("%s %s: this failure could not be kept in meta: %s", task, run_id, unrecorded)


def _merge(opened: OpenPipeline, spark: Spark, plan: RunPlan) -> None:
    for merge_set in plan.merge_sets:
        if merge_set.tables:
            _announce(opened, plan.run_id, MERGE.name)
            spark.submit(SparkJob(MERGE.name, plan, merge_set=merge_set.name))


def _to_target(opened: OpenPipeline, spark: Spark, plan: RunPlan, target: str) -> CommitSummary:
    if plan.merge_set(plan.target(target).merge_set).tables:
        for task in TARGET_TASKS:
            if task.spark:
                _begin(opened, plan, target, task.name)
                spark.submit(SparkJob(task.name, plan, target=target))
            if task is WRITE:
                mark_applied(opened.meta, plan, target)
    _begin(opened, plan, target, COMMIT.name)
    return commit(opened, plan, target)


def _begin(opened: OpenPipeline, plan: RunPlan, target: str, task: str) -> None:
    reason = taken_over(opened.meta, plan, target)
    if reason:
        raise _TakenOver(reason)
    _announce(opened, plan.run_id, f"{target}: {task}")


def _announce(opened: OpenPipeline, run_id: str, task: str) -> None:
    log.info("run %s: %s starts", run_id, task)
    opened.progress.step(task)
