"""The tasks of a pipeline as plain values: which tasks, in which order, for which target. No Airflow here.

Everything follows from the pipeline file alone, so that a DAG looks the same whenever it is parsed (Airflow stores
a new version of a DAG for each difference). render.py turns the values into operators.

    cdc_<pipeline>           extract[source] ─► plan ─► merge ─► to_<target>: filter ─► write ─► quality ─► commit
                                             └► snapshot, which starts the next one (Pipeline.copies_by_itself)
    cdc_<pipeline>_snapshot  plan ─► copy[source]
    cdc_<pipeline>_replay                       plan ─► merge ─► to_<target>: ... of the one target that a run names
    cdc_<pipeline>_retention purge ─► [compact] ─► sweep
    cdc_<pipeline>_verify    verify[target] ─► repair[target]
    cdc_<pipeline>_cutover   plan ─► rehearse ─► approve ─► switch
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cdc_core.config import WAY_BACK_SUFFIX, Airflow, Pipeline
from cdc_core.model.tasks import EXTRACT, MERGE, SNAPSHOT, TARGET_TASKS
from cdc_core.model.tasks import PLAN as PLAN_TASK

PLAN = PLAN_TASK.name
PURGE = "purge"
COMPACT = "compact"
SWEEP = "sweep"
COPY = "copy"
VERIFY = "verify"
REPAIR = "repair"
REHEARSE = "rehearse"
APPROVE = "approve"
SWITCH = "switch"


PIPELINE, BY_HAND, HOUSEKEEPING = "lockstep:pipeline", "lockstep:by hand", "lockstep:housekeeping"
"""Tags: Airflow's list of DAGs shows the pipelines alone by the first of them."""


class TaskKind(StrEnum):
    """What a task does; render.py has an operator for each."""

    EXTRACT = "extract"
    """Drains the log of a source to the end of the window; a sensor, mapped over the sources."""
    PLAN = "plan"
    """Chooses the staged batches that the run applies."""
    REPLAN = "replan"
    """Chooses the staged batches that the run applies again."""
    SPARK = "spark"
    """Runs one Spark application, `job`."""
    PURGE = "purge"
    """Removes batches that are old and committed by every target."""
    COMPACT = "compact"
    """Joins the staged files of closed days or windows into one file per table."""
    SWEEP = "sweep"
    """Removes what killed extractions left on the stage."""
    START_COPY = "start_copy"
    """Starts the snapshot DAG if a copy is due."""
    COPY_PLAN = "copy_plan"
    """Lists the tables that the run copies."""
    COPY = "copy"
    """Reads existing rows of a source's tables, and stages them once the log has passed them; a sensor, mapped over the
    sources."""
    VERIFY = "verify"
    """Compares targets with the sources; a sensor, mapped over the targets."""
    REPAIR = "repair"
    """Repairs what the verification of a target found; a sensor, mapped over the targets."""
    CUTOVER = "cutover"
    """Does a step of a cutover, which its name says."""
    APPROVE = "approve"
    """Waits until somebody approves of the switch."""
    COMMIT = "commit"
    """Closes the ledger and moves the consume records of one target."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task.

    name:     within its group.
    job:      of a Spark task: its application (cdc_core.model.tasks).
    target:   the target it belongs to; "" for those that all targets share.
    sources:  what a mapped task is mapped over; of VERIFY and REPAIR, the targets.
    upstream: task ids it waits for.
    on:       of REPAIR: whether it repairs unless the trigger form says otherwise.
    doc:      what the task does, shown in Airflow's UI.
    """

    kind: TaskKind
    name: str
    upstream: tuple[str, ...]
    doc: str
    job: str = ""
    target: str = ""
    sources: tuple[str, ...] = ()
    on: bool = False

    @property
    def group(self) -> str:
        return group_of(self.target) if self.target else ""

    @property
    def task_id(self) -> str:
        return f"{self.group}.{self.name}" if self.group else self.name


@dataclass(frozen=True, slots=True)
class DagSpec:
    """One DAG. `schedule` is a cron expression whose intervals are the windows, None for a DAG that is triggered;
    `file` is the pipeline file."""

    dag_id: str
    pipeline: str
    file: str
    description: str
    schedule: str | None
    targets: tuple[str, ...]
    tags: tuple[str, ...]
    airflow: Airflow
    spark_connection: str
    tasks: tuple[TaskSpec, ...]

    def task(self, task_id: str) -> TaskSpec:
        return next(task for task in self.tasks if task.task_id == task_id)

    def tasks_by_target(self) -> dict[str, list[str]]:
        """Ids of the tasks that belong to one target alone."""
        return {target: [task.task_id for task in self.tasks if task.target == target] for target in self.targets}


def dag_id_of(pipeline: str) -> str:
    return f"cdc_{pipeline}"


def replay_dag_id_of(pipeline: str) -> str:
    return f"{dag_id_of(pipeline)}_replay"


def snapshot_dag_id_of(pipeline: str) -> str:
    return f"{dag_id_of(pipeline)}_snapshot"


def group_of(target: str) -> str:
    """Task group of a target. The prefix keeps a target named `plan` or `merge` apart from the tasks."""
    return f"to_{target}"


def dag_specs(pipeline: Pipeline, file: Path) -> tuple[DagSpec, ...]:
    """All DAGs of a pipeline file."""
    replay = (replay_spec(pipeline, file),) if pipeline.targets else ()
    retention = (retention_spec(pipeline, file, pipeline.retention.schedule),) if pipeline.retention else ()
    verify = (verify_spec(pipeline, file),) if pipeline.targets else ()
    # The way back, whose file has the command as well, is led by the DAG of the way there.
    moves = pipeline.targets and pipeline.cutover.switch_with and not pipeline.pipeline.endswith(WAY_BACK_SUFFIX)
    cutover = (cutover_spec(pipeline, file),) if moves else ()
    others = (*replay, *retention, *verify, *cutover)
    return (dag_spec(pipeline, file), snapshot_spec(pipeline, file), *others)


def dag_spec(pipeline: Pipeline, file: Path) -> DagSpec:
    """The DAG `cdc_<pipeline>` of a pipeline file. Without targets it only stages."""
    sources = tuple(source.name for source in pipeline.sources)
    targets = tuple(target.name for target in pipeline.targets)
    tasks = [
        TaskSpec(TaskKind.EXTRACT, EXTRACT.name, (), EXTRACT.doc, sources=sources),
    ]
    if pipeline.copies_by_itself:
        doc = (
            f"Starts {snapshot_dag_id_of(pipeline.pipeline)} if tables lack rows that a copy brings, and no run of it "
            "is under way."
        )
        tasks.append(TaskSpec(TaskKind.START_COPY, SNAPSHOT.name, (EXTRACT.name,), doc))
    if targets:
        tasks += [TaskSpec(TaskKind.PLAN, PLAN, (EXTRACT.name,), PLAN_TASK.doc), _merge_task()]
    for target in targets:
        tasks += _target_tasks(target)
    description = f"Changes of {', '.join(sources)} to {', '.join(targets) or 'the stage'}"
    return _spec(pipeline, file, dag_id_of(pipeline.pipeline), description, pipeline.schedule, targets, tasks)


def snapshot_spec(pipeline: Pipeline, file: Path) -> DagSpec:
    """The DAG `cdc_<pipeline>_snapshot`: existing rows to the stage, beside all other runs."""
    sources = tuple(source.name for source in pipeline.sources)
    listed = "Extracts each source up to now, and lists the tables to copy: those that the form names, or pending ones."
    read = (
        "Reads the tables chunk by chunk, with SELECT only. A retry continues after the last chunk. The log shows how "
        "far each table is. Then it stages the rows, once everything that was committed meanwhile is extracted, by "
        "this task or by another extractor. The next run of the pipeline applies them."
    )
    tasks = [
        TaskSpec(TaskKind.COPY_PLAN, PLAN, (), listed),
        TaskSpec(TaskKind.COPY, COPY, (PLAN,), read, sources=sources),
    ]
    description = f"Existing rows of {', '.join(sources)} to the stage"
    dag_id = snapshot_dag_id_of(pipeline.pipeline)
    return _spec(pipeline, file, dag_id, description, None, (), tasks, BY_HAND)


def replay_spec(pipeline: Pipeline, file: Path) -> DagSpec:
    """The DAG `cdc_<pipeline>_replay`: staged batches to a target again, or to a new one, without the sources."""
    targets = tuple(target.name for target in pipeline.targets)
    doc = "Chooses the staged batches that the trigger form names, whether the target has taken them before or not."
    tasks = [TaskSpec(TaskKind.REPLAN, PLAN, (), doc), _merge_task()]
    for target in targets:
        tasks += _target_tasks(target)
    description = f"Staged changes of {pipeline.pipeline} again, to one of {', '.join(targets)}"
    return _spec(pipeline, file, replay_dag_id_of(pipeline.pipeline), description, None, targets, tasks, BY_HAND)


def retention_spec(pipeline: Pipeline, file: Path, schedule: str) -> DagSpec:
    """The DAG `cdc_<pipeline>_retention`, of a pipeline with `retention`."""
    doc = "Removes staged batches that are older than retention.keep and that every target has committed."
    dag_id = f"{dag_id_of(pipeline.pipeline)}_retention"
    swept = "Removes files that killed extractions left on the stage and that no batch lists."
    tasks = [TaskSpec(TaskKind.PURGE, PURGE, (), doc)]
    if pipeline.retention is not None and pipeline.retention.compact is not None:
        joined = (
            f"Joins the staged files of each closed {pipeline.retention.compact} into one file per table. The rows and "
            "their order stay the same."
        )
        tasks.append(TaskSpec(TaskKind.COMPACT, COMPACT, (PURGE,), joined))
    tasks.append(TaskSpec(TaskKind.SWEEP, SWEEP, (tasks[-1].name,), swept))
    return _spec(
        pipeline, file, dag_id, f"Purge of {pipeline.pipeline}'s staged history", schedule, (), tasks, HOUSEKEEPING
    )


def verify_spec(pipeline: Pipeline, file: Path) -> DagSpec:
    """The DAG `cdc_<pipeline>_verify`: targets compared with the sources, beside all other runs."""
    targets = tuple(target.name for target in pipeline.targets)
    doc = (
        "Compares the rows of a target with those of the sources, in short chunks and with SELECT only. It fails if "
        "rows differ that no repair will bring, and is not retried then: the log names the evidence on the stage. A "
        "retry of anything else continues after the last range."
    )
    repaired = (
        "If repairs are asked for: looks the rows that differ up in the source, stages them, applies them by an "
        "ordinary run and verifies them again. It fails if some still differ, and says what to do. Skipped where "
        "nothing differs."
    )
    tasks = [
        TaskSpec(TaskKind.VERIFY, VERIFY, (), doc, sources=targets),
        TaskSpec(TaskKind.REPAIR, REPAIR, (VERIFY,), repaired, sources=targets, on=pipeline.verify.repair),
    ]
    description = f"Proof that {', '.join(targets)} of {pipeline.pipeline} equal the sources"
    dag_id = f"{dag_id_of(pipeline.pipeline)}_verify"
    schedule = pipeline.verify.schedule
    return _spec(pipeline, file, dag_id, description, schedule, targets, tasks, HOUSEKEEPING if schedule else BY_HAND)


def cutover_spec(pipeline: Pipeline, file: Path) -> DagSpec:
    """The DAG `cdc_<pipeline>_cutover`, of a pipeline that has `cutover.switch_with`."""
    targets = tuple(target.name for target in pipeline.targets)
    planned = "Shows what would be switched, and fails if something would stop it. Switches nothing."
    rehearsed = (
        "Catches up, stops writes for at most cutover.budget_s, proves that both sides are equal, and lets writes "
        "continue. Switches nothing."
    )
    approved = "Waits until somebody has looked at the rehearsal and approves. If it is rejected, nothing is switched."
    switched = (
        "Catches up, stops writes, proves that both sides are equal, and leads the application to the other place by "
        "cutover.switch_with. A failure before that leaves everything as it was, and is not tried again."
    )
    tasks = [
        TaskSpec(TaskKind.CUTOVER, PLAN, (), planned),
        TaskSpec(TaskKind.CUTOVER, REHEARSE, (PLAN,), rehearsed),
        TaskSpec(TaskKind.APPROVE, APPROVE, (REHEARSE,), approved),
        TaskSpec(TaskKind.CUTOVER, SWITCH, (APPROVE,), switched),
    ]
    description = f"The application of {pipeline.pipeline} to {' or '.join(targets)}, or back"
    dag_id = f"{dag_id_of(pipeline.pipeline)}_cutover"
    return _spec(pipeline, file, dag_id, description, None, targets, tasks, BY_HAND)


def _spec(
    pipeline: Pipeline,
    file: Path,
    dag_id: str,
    description: str,
    schedule: str | None,
    targets: tuple[str, ...],
    tasks: list[TaskSpec],
    *purpose: str,
) -> DagSpec:
    return DagSpec(
        dag_id=dag_id,
        pipeline=pipeline.pipeline,
        file=str(file),
        description=description,
        schedule=schedule,
        targets=targets,
        tags=("lockstep", *(purpose or (PIPELINE,)), pipeline.pipeline),
        airflow=pipeline.airflow,
        spark_connection=pipeline.spark.connection,
        tasks=tuple(tasks),
    )


def _merge_task() -> TaskSpec:
    return TaskSpec(TaskKind.SPARK, MERGE.name, (PLAN,), MERGE.doc, job=MERGE.name)


def _target_tasks(target: str) -> list[TaskSpec]:
    tasks, before = [], MERGE.name
    for task in TARGET_TASKS:
        kind, job = (TaskKind.SPARK, task.name) if task.spark else (TaskKind.COMMIT, "")
        tasks.append(TaskSpec(kind, task.name, (before,), task.doc, job=job, target=target))
        before = tasks[-1].task_id
    return tasks
