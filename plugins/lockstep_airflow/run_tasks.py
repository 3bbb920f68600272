"""plan, the Spark tasks and commit. Each finds everything it needs in the pipeline file, the run's plan and meta; XCom
carries the run's id and counts.

cdc_core.operations.apply ensures that a repeated task gives the same answer and applies nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, SkipMixin
from airflow.sdk.exceptions import AirflowSkipException

from cdc_core import config
from cdc_core.errors import LockstepError
from cdc_core.model.tasks import FILTER, MERGE, WRITE
from lockstep_airflow import metrics
from lockstep_airflow.airflow_failures import as_airflow_failures
from lockstep_airflow.credentials import exported
from lockstep_airflow.links import LedgerLink
from lockstep_airflow.run_context import (
    asked_at,
    is_dry_run,
    run_name,
    selection_of,
    targets_of,
    window_of,
)
from lockstep_airflow.spark_connection import driver_of
from lockstep_airflow.table_assets import publish, target_uris
from lockstep_airflow.task_pipeline import opened
from lockstep_airflow.termination import Leaving
from lockstep_airflow.window import RunWindow

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    from cdc_core.meta import Meta
    from cdc_core.model.run_plan import RunPlan
    from cdc_core.operations.apply.commit import CommitSummary
    from cdc_core.operations.apply.jobs import SparkJob
    from cdc_core.operations.open_pipeline import OpenPipeline
    from lockstep_airflow.lineage import Lineage

log = logging.getLogger(__name__)


class _PipelineOperator(Leaving, BaseOperator):
    """A task of one pipeline file."""

    ui_color = "#e8eefb"

    def __init__(self, *, file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file

    @contextmanager
    def open_pipeline(self, context: Context) -> Iterator[OpenPipeline]:
        with opened(self.file, context) as ready, self.working():
            yield ready


class PlanOperator(_PipelineOperator, SkipMixin):
    """Registers the run. XCom: {run_id, window, batches, rows, targets: {name: batches}}.

    target_tasks: the tasks of each target; they are skipped when the target has nothing.
    """

    operator_extra_links = (LedgerLink(),)

    def __init__(self, *, target_tasks: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target_tasks = {target: list(tasks) for target, tasks in target_tasks.items()}

    def execute(self, context: Context) -> dict[str, Any]:
        with as_airflow_failures("plan"), self.open_pipeline(context) as ready:
            dry = is_dry_run(context)
            try:
                look = self._look if dry else self._plan
                planned = look(context, ready)
            except LockstepError as error:
                if not dry:
                    self._keep(ready, error)
                raise
            none = [target for target, batches in planned["targets"].items() if not batches]
            left = self._left(context, ready, none)
            unsound = [] if dry else self._unsound(ready, none)
            if unsound and len(none) == len(planned["targets"]):
                raise unsound[0]
        for target, batches in planned["targets"].items():
            if batches:
                log.info("%s: %d batches to apply", target, batches)
            elif left.get(target):
                log.warning(
                    "%s: a run of this name has committed it before, and takes nothing more; %d batches that were "
                    "staged since are left to the next run",
                    target,
                    left[target],
                )
            else:
                log.info("%s: nothing to apply, every staged batch in range is already consumed", target)
        idle = [target for target in self.target_tasks if not planned["targets"].get(target)]
        if dry or len(idle) == len(self.target_tasks):
            log.info("The rest of this run is skipped: %s.", "a dry run" if dry else "there is nothing to apply")
            assert self.task_group is not None  # every task of a DAG has one, that of the DAG if no other
            mine = {task.task_id for task in self.task_group.iter_tasks()}
            self._skip(context, planned, sorted(mine & self.get_flat_relative_ids(upstream=False)))
        elif idle:
            log.info("Skipped: %s.", ", ".join(idle))
            self._skip(context, planned, [task for target in idle for task in self.target_tasks[target]])
        return planned

    def _left(self, context: Context, ready: OpenPipeline, targets: Sequence[str]) -> dict[str, int]:
        """How many batches in reach these targets have not consumed, although the run has none for them."""
        if not targets:
            return {}
        window = window_of(context)
        bounds = None if window.open else (window.start_us, window.end_us)
        sources = [source.name for source in ready.pipeline.sources]
        view = ready.meta.plans.find(run_name(context, ready.pipeline), sources, targets, bounds)
        return {target: len(view.pending[target]) for target in view.closed}

    def _unsound(self, ready: OpenPipeline, idle: Sequence[str]) -> list[LockstepError]:
        """What is wrong with the targets that the run has nothing for. Their commit, which would ask them, is skipped;
        it is kept in meta, and fails a run that has nothing for any target."""
        from cdc_core.operations.apply.commit import require_sound

        errors: list[LockstepError] = []
        with exported(ready.pipeline):
            for target in idle:
                try:
                    require_sound(ready, target)
                except LockstepError as error:
                    log.error("%s: %s", target, error)
                    errors.append(error)
        return errors

    def _keep(self, ready: OpenPipeline, error: LockstepError) -> None:
        from cdc_core.operations.pipeline_run import keep_failure

        keep_failure(ready, "plan", "", error)

    def _plan(self, context: Context, ready: OpenPipeline) -> dict[str, Any]:
        from cdc_core.operations.apply.plan import plan
        from cdc_core.operations.pipeline_run import ask_sources

        pipeline = ready.pipeline
        window, targets = window_of(context), targets_of(context, pipeline)
        if window.open:
            with exported(pipeline):
                ask_sources(ready, targets)
        made = plan(
            ready,
            window=None if window.open else (window.start_us, window.end_us),
            run_id=run_name(context, pipeline),
            targets=targets,
            airflow_run_id=context["dag_run"].run_id,
        )
        return _planned(ready, made, str(window))

    def _look(self, context: Context, ready: OpenPipeline) -> dict[str, Any]:
        """What a plan would choose, without registering it."""
        pipeline = ready.pipeline
        window, targets = window_of(context), targets_of(context, pipeline)
        run_id = run_name(context, pipeline)
        bounds = None if window.open else (window.start_us, window.end_us)
        view = ready.meta.plans.find(run_id, [source.name for source in pipeline.sources], targets, bounds)
        return {
            "run_id": run_id,
            "window": str(window),
            "dry_run": True,
            "batches": len(view.files),
            "rows": sum(file.rows for files in view.files.values() for file in files),
            "targets": {target: len(view.pending[target]) for target in targets},
        }

    def _skip(self, context: Context, planned: Mapping[str, Any], task_ids: list[str]) -> None:
        # `skip` ends the task by an exception, so its answer has to be pushed before.
        context["ti"].xcom_push(key="return_value", value=dict(planned))
        self.skip(context["ti"], [self.dag.get_task(task_id) for task_id in task_ids])


class ReplayPlanOperator(PlanOperator):
    """Registers a replay: what the trigger form names, for one target. XCom as PlanOperator's."""

    def _left(self, context: Context, ready: OpenPipeline, targets: Sequence[str]) -> dict[str, int]:
        """A replay leaves nothing to others."""
        return {}

    def _unsound(self, ready: OpenPipeline, idle: Sequence[str]) -> list[LockstepError]:
        """A replay may be what mends the target."""
        return []

    def _keep(self, ready: OpenPipeline, error: LockstepError) -> None:
        """A replay is started by hand: a failure to plan it says nothing about the pipeline."""

    def _plan(self, context: Context, ready: OpenPipeline) -> dict[str, Any]:
        from cdc_core.operations.apply.replay import plan

        selection = selection_of(context, ready.pipeline, ready.meta, ready.store)
        with exported(ready.pipeline):
            made = plan(
                ready,
                selection,
                run_id=run_name(context, ready.pipeline),
                airflow_run_id=context["dag_run"].run_id,
            )
        return _planned(ready, made, str(RunWindow(made.window_start_us, made.window_end_us)))

    def _look(self, context: Context, ready: OpenPipeline) -> dict[str, Any]:
        from cdc_core.operations.apply.replay import chosen

        selection = selection_of(context, ready.pipeline, ready.meta, ready.store)
        view = chosen(ready, selection)
        return {
            "run_id": run_name(context, ready.pipeline),
            "dry_run": True,
            "batches": len(view.files),
            "rows": sum(file.rows for files in view.files.values() for file in files),
            "targets": {selection.target: len(view.files)},
        }


def _planned(ready: OpenPipeline, made: RunPlan, window: str) -> dict[str, Any]:
    """A plan's XCom. Raises Refused (check.loop) for one that would write what the pipeline captures, and what is wrong
    with the targets where none of them can be written; else the filter task of a target fails by it."""
    from cdc_core.operations.check.loops import require_no_loops
    from cdc_core.operations.target_tables import require_any_ready

    with exported(ready.pipeline):
        require_no_loops(ready.pipeline, made)
        for target, error in require_any_ready(ready, made).items():
            log.error("%s: %s", target, error)
    return {
        "run_id": made.run_id,
        "window": window,
        "batches": len({batch for target in made.targets for batch in target.batches}),
        "rows": sum(table.rows for merge_set in made.merge_sets for table in merge_set.tables),
        "targets": {target.target: len(target.batches) for target in made.targets},
    }


class PurgeOperator(_PipelineOperator):
    """Purges by `retention`, up to when the run was asked for. XCom: counts by source, and the horizons."""

    def execute(self, context: Context) -> dict[str, Any]:
        from cdc_core.model.windows import age_us, to_us
        from cdc_core.operations.apply.retention import purge

        with as_airflow_failures("purge"), self.open_pipeline(context) as ready:
            assert ready.pipeline.retention is not None  # the renderer makes this DAG for such pipelines only
            now_us = to_us(asked_at(context))
            purged = purge(
                ready,
                cutoff_us=now_us - age_us(ready.pipeline.retention.keep),
                forget_us=ready.pipeline.retention.forget_us(now_us),
                dry_run=is_dry_run(context),
            )
        for source in purged.sources:
            held = f"; the next one stays: {source.held_by}" if source.held_by else ""
            log.info("%s: %d batches with %d rows purged%s", source.source, source.batches, source.rows, held)
        return purged.to_json() | {"runs": len(purged.runs)}


class CompactOperator(_PipelineOperator):
    """Compacts as `retention` says. XCom: counts by range, and what was removed."""

    def execute(self, context: Context) -> dict[str, Any]:
        from cdc_core.operations.apply.compact import REMOVED_AFTER_US, By, compact

        with as_airflow_failures("compact"), self.open_pipeline(context) as ready:
            assert ready.pipeline.retention is not None  # the renderer makes this task for such pipelines only
            done = compact(
                ready,
                by=By(ready.pipeline.retention.compact or By.DAY),
                older_than_us=REMOVED_AFTER_US if ready.pipeline.retention.remove_originals else None,
                dry_run=is_dry_run(context),
            )
        for made in done.ranges:
            log.info("%s %s: %d files became %d", made.source, made.label, made.files_before, made.files)
        for removed in done.removed:
            held = f" stay: {removed.held_by}" if removed.held_by else " are removed"
            log.info("%s from %s: %d original files%s", removed.source, removed.begin, removed.files, held)
        return {
            "ranges": len(done.ranges),
            "files_before": sum(compacted.files_before for compacted in done.ranges),
            "files": sum(compacted.files for compacted in done.ranges),
            "removed": sum(removed.files for removed in done.removed if not removed.held_by),
            "held_by": {name: why for name, why in done.held_by.items() if why},
        }


class SweepOperator(_PipelineOperator):
    """Removes what killed extractions left on the stage. XCom: counts by source."""

    def execute(self, context: Context) -> dict[str, Any]:
        from cdc_core.operations.apply.retention import sweep, sweep_plans

        with as_airflow_failures("sweep"), self.open_pipeline(context) as ready:
            found = sweep(ready, dry_run=is_dry_run(context))
            dead = sweep_plans(ready, dry_run=is_dry_run(context))
        log.info("files of %d dead plans: %s", len(dead), ", ".join(dead) or "none")
        return {name: {"parts": len(swept.parts), "leftovers": len(swept.leftovers)} for name, swept in found.items()}


class _RunOperator(_PipelineOperator):
    """Works on the plan that the plan task registered.

    target:    "" for merge, which all targets share.
    plan_task: the task whose XCom says what each target has in this run.
    """

    operator_extra_links = (LedgerLink(),)

    def __init__(self, *, target: str, plan_task: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.plan_task = plan_task

    @contextmanager
    def planned(self, context: Context, doing: str) -> Iterator[tuple[OpenPipeline, RunPlan]]:
        """The opened pipeline and the plan; a failure is recorded in meta with the run and becomes one of Airflow's.

        If other runs have taken over the run's batches, the task ends as skipped: they commit them."""
        from cdc_core.operations.apply.commit import taken_over
        from cdc_core.operations.apply.plan import load
        from cdc_core.operations.apply.table_rules import require_layouts
        from cdc_core.operations.pipeline_run import keep_failure

        self._skip_without_batches(context)
        with as_airflow_failures(doing), self.open_pipeline(context) as ready:
            run_id = run_name(context, ready.pipeline)
            try:
                plan = load(ready.meta, ready.store, run_id)
                if not any(target.batches for target in plan.targets if self.target in ("", target.target)):
                    raise AirflowSkipException(self._nothing)
                require_layouts(ready.pipeline, plan)
                reason = taken_over(ready.meta, plan, self.target)
                if reason:
                    raise AirflowSkipException(reason)
                yield ready, plan
            except LockstepError as error:
                keep_failure(ready, "run", run_id, error, self.target or None)
                raise

    def _skip_without_batches(self, context: Context) -> None:
        """A task that is cleared by hand, for a target that had nothing in this run, ends as skipped."""
        planned = context["ti"].xcom_pull(task_ids=self.plan_task)
        if planned is None:
            return  # The plan task was marked, or Airflow has removed what it answered: the plan itself is asked.
        targets = planned.get("targets", {})
        if planned.get("dry_run") or not (targets.get(self.target) if self.target else any(targets.values())):
            raise AirflowSkipException(self._nothing)

    @property
    def _nothing(self) -> str:
        return f"This run has no batches for {self.target or 'any target'}."


class SparkJobOperator(_RunOperator):
    """Runs a Spark job, whose driver is the task. No XCom: its counts are files.

    job:        merge (once for each merge set), filter, write or quality.
    connection: Airflow connection id of the Spark cluster, or of a Spark Connect endpoint.
    """

    ui_color = "#fbe9d7"

    def __init__(self, *, job: str, connection: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.connection = connection

    def execute(self, context: Context) -> None:
        doing = f"{self.job} {self.target}".strip()
        with (
            self.planned(context, doing) as (ready, plan),
            exported(ready.pipeline),
            driver_of(self.connection, ready.pipeline, ready.store) as spark,
        ):
            if self.job == FILTER.name:
                from cdc_core.operations.target_tables import require_ready

                require_ready(ready, plan, self.target)
            for job in self._jobs(plan):
                spark.submit(job)
            if self.job == WRITE.name:
                from cdc_core.operations.apply.commit import mark_applied

                mark_applied(ready.meta, plan, self.target)

    def _jobs(self, plan: RunPlan) -> list[SparkJob]:
        """None if the planned batches have no row of the target's tables."""
        from cdc_core.operations.apply.jobs import SparkJob

        if self.job == MERGE.name:
            return [
                SparkJob(MERGE.name, plan, merge_set=merge_set.name)
                for merge_set in plan.merge_sets
                if merge_set.tables
            ]
        if not plan.merge_set(plan.target(self.target).merge_set).tables:
            log.info("The batches of this run have no rows for %s: nothing to %s.", self.target, self.job)
            return []
        return [SparkJob(self.job, plan, target=self.target)]

    def get_openlineage_facets_on_complete(self, task_instance: RuntimeTaskInstance) -> Lineage:
        """Airflow's OpenLineage provider asks for it."""
        from lockstep_airflow import lineage

        return lineage.of_spark_job(self.file, self.job, self.target, task_instance.get_template_context())


class CommitOperator(_RunOperator):
    """Closes the run for one target. XCom: the ids and counts of its ledger.

    Emits an asset event for each table through the asset alias that is its outlet, and again when it is repeated: a
    process that died after the commit must not lose them.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        from cdc_core.operations.apply.commit import commit, require_sound

        doing = f"commit {self.target}"
        with self.planned(context, doing) as (ready, plan), exported(ready.pipeline):
            summary = commit(ready, plan, self.target)
            metrics.committed(ready.name, summary)
            positions = _positions(ready.meta, plan, self.target)
        for table in summary.tables:
            log.info(
                "%s: %d changes staged: %d written, %d stale, %d absent already, %d superseded, %d quarantined",
                table.table,
                table.staged_rows + table.key_changes,
                table.written,
                table.stale,
                table.absent,
                table.superseded,
                table.quarantined,
            )
        log.info("%s: %d batches applied, %d records moved", self.target, summary.batches, summary.moved)
        self._publish(context, summary, positions)
        with as_airflow_failures(doing), self.open_pipeline(context) as ready, exported(ready.pipeline):
            require_sound(ready, self.target, replay=plan.replay)
        return summary.to_json()

    def get_openlineage_facets_on_complete(self, task_instance: RuntimeTaskInstance) -> Lineage:
        """Airflow's OpenLineage provider asks for it."""
        from lockstep_airflow import lineage

        return lineage.of_commit(self.file, self.target, task_instance.get_template_context())

    def _publish(self, context: Context, summary: CommitSummary, positions: Mapping[str, list[str]]) -> None:
        pipeline = config.load(Path(self.file))
        target = pipeline.target(self.target)
        window = {"window_start_us": summary.window_start_us, "window_end_us": summary.window_end_us}
        common: dict[str, Any] = {"run_id": summary.run_id, **window, "positions": dict(positions)}
        tables = summary.to_json()["tables"]
        extras = {uri: {**common, **table} for table in tables for uri in target_uris(pipeline, target, table["table"])}
        publish(context, self.outlets, pipeline, extras)


def _positions(meta: Meta, plan: RunPlan, target: str) -> dict[str, list[str]]:
    """For each source, where the run's first batch begins and its last one ends; not of batches that were forgotten."""
    ends: dict[str, tuple[str, str]] = {}
    for batch_id in plan.target(target).batches:
        source = batch_id.partition("/")[0]
        ends[source] = (ends.get(source, (batch_id, ""))[0], batch_id)
    found = {}
    for source, (first, last) in ends.items():
        begins, ends_ = meta.batches.by_id(first), meta.batches.by_id(last)
        if begins is not None and ends_ is not None:
            found[source] = [str(begins.begin), str(ends_.end)]
    return found
