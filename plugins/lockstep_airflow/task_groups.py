"""Lockstep's tasks in DAGs that others write: `from lockstep.airflow import pipeline_tasks`.

    with DAG("shop_hourly", schedule="@hourly", start_date=...):
        pipeline_tasks("pipelines/shop.yaml") >> report()

Each of these is a task group of the DAG in whose `with` block it is made. The window of a run is the DAG run's data
interval. What the form of a Lockstep DAG asks for, the DAG's param `lockstep` may have, such as
{"window_start": "2026-11-21T04:00:00Z"}.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, TaskGroup
from airflow.sdk.definitions._internal.contextmanager import DagContext

from cdc_core import config
from cdc_core.config import Pipeline
from cdc_core.errors import UsageError
from lockstep_airflow.render import add_tasks, default_args
from lockstep_airflow.specs import DagSpec, TaskKind, dag_spec, snapshot_spec, verify_spec


class _PipelineGroup(TaskGroup):
    """file: of the pipeline; a relative path begins at the folder of the DAG's file. Further arguments: TaskGroup's.

    Raises UsageError for a file that has no pipeline, and outside a DAG.
    """

    def __init__(self, file: str | Path, *, group_id: str | None = None, **kwargs: Any) -> None:
        dag = kwargs.pop("dag", None) or DagContext.get_current()
        if not isinstance(dag, DAG):
            raise UsageError(
                f"{type(self).__name__} is made outside a DAG.",
                where=str(file),
                code="airflow.pipelines",
                remedy="make it in the `with DAG(...)` block, or in the function that @dag decorates",
            )
        path = Path(dag.fileloc).parent / file
        spec = self.spec(config.load(path), path)
        args: Any = _default_args(spec, dag, kwargs.pop("default_args", {}))
        super().__init__(group_id or self.name(spec.pipeline), dag=dag, default_args=args, **kwargs)
        add_tasks(spec, dag, self)

    def name(self, pipeline: str) -> str:
        """The id of the group, unless one is given."""
        return f"{type(self).__name__.removesuffix('Tasks').lower()}_{pipeline}"

    @abstractmethod
    def spec(self, pipeline: Pipeline, file: Path) -> DagSpec:
        """The tasks that the group has."""


class PipelineTasks(_PipelineGroup):
    """What the DAG cdc_<pipeline> does: extract, and apply to each target."""

    def name(self, pipeline: str) -> str:
        return pipeline

    def spec(self, pipeline: Pipeline, file: Path) -> DagSpec:
        return dag_spec(pipeline, file)


class ExtractTasks(_PipelineGroup):
    """Reads the sources' logs up to the end of the window, and stages it."""

    def spec(self, pipeline: Pipeline, file: Path) -> DagSpec:
        return _some(dag_spec(pipeline, file), TaskKind.EXTRACT)


class ApplyTasks(_PipelineGroup):
    """Applies what is staged of the window to each target: plan, merge, filter, write, quality, commit."""

    def spec(self, pipeline: Pipeline, file: Path) -> DagSpec:
        _require_targets(pipeline, file)
        return _some(dag_spec(pipeline, file), TaskKind.PLAN, TaskKind.SPARK, TaskKind.COMMIT)


class SnapshotTasks(_PipelineGroup):
    """Copies the existing rows that tables lack to the stage, beside everything else. In a DAG of its own, it keeps no
    window waiting."""

    def spec(self, pipeline: Pipeline, file: Path) -> DagSpec:
        return snapshot_spec(pipeline, file)


class VerifyTasks(_PipelineGroup):
    """Compares the targets with the sources, and repairs what differs if the file's `verify.repair` says so."""

    def spec(self, pipeline: Pipeline, file: Path) -> DagSpec:
        _require_targets(pipeline, file)
        return verify_spec(pipeline, file)


def pipeline_tasks(file: str | Path, **kwargs: Any) -> TaskGroup:
    """A group of the tasks that the DAG cdc_<pipeline> has. The arguments are those of the other groups."""
    return PipelineTasks(file, **kwargs)


def _default_args(spec: DagSpec, dag: DAG, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the file, then those that are given; callbacks add up: who is called for other tasks of the DAG is
    called for these, too."""
    own, theirs = default_args(spec), {**dag.default_args, **given}
    both = [name for name in own.keys() & theirs.keys() if name.endswith("_callback")]
    called = {name: [own[name], *([some] if callable(some := theirs[name]) else some or ())] for name in both}
    return {**own, **given, **called}


def _require_targets(pipeline: Pipeline, file: Path) -> None:
    """Raises UsageError (airflow.pipelines): a group without tasks would order nothing in the DAG."""
    if not pipeline.targets:
        raise UsageError(
            f"The pipeline {pipeline.pipeline!r} has no targets.",
            where=str(file),
            code="airflow.pipelines",
            remedy="leave the group out, or add a target",
        )


def _some(spec: DagSpec, *kinds: TaskKind) -> DagSpec:
    """The tasks of these kinds."""
    kept = [task for task in spec.tasks if task.kind in kinds]
    ids = {task.task_id for task in kept}
    tasks = (replace(task, upstream=tuple(before for before in task.upstream if before in ids)) for task in kept)
    return replace(spec, tasks=tuple(tasks))
