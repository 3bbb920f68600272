"""Task specs become Airflow operators, in DAGs of our own or in groups: the one place that knows both.

It imports Airflow's SDK and nothing heavy: no Spark, no numba, no pandas, no database drivers. A task imports those
when it runs.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, CronDataIntervalTimetable, Param, TaskGroup

from cdc_core.config import MOST_READERS
from lockstep_airflow.copy_tasks import CopyPlanOperator, CopySensor, StartCopyOperator
from lockstep_airflow.cutover_tasks import BACK, THERE, CutoverOperator
from lockstep_airflow.extract_sensor import ExtractSensor
from lockstep_airflow.notifications import callbacks
from lockstep_airflow.run_tasks import (
    CommitOperator,
    CompactOperator,
    PlanOperator,
    PurgeOperator,
    ReplayPlanOperator,
    SparkJobOperator,
    SweepOperator,
)
from lockstep_airflow.specs import PLAN, SWITCH, DagSpec, TaskKind, TaskSpec, snapshot_dag_id_of
from lockstep_airflow.specs import REHEARSE as REHEARSE_TASK
from lockstep_airflow.specs import REPAIR as REPAIR_TASK
from lockstep_airflow.table_assets import alias_of
from lockstep_airflow.verify_tasks import RepairSensor, VerifySensor
from lockstep_airflow.window import (
    ABANDON,
    ACCEPT,
    DIRECTION,
    DRY_RUN,
    FIRST_BATCHES,
    LAST_BATCHES,
    MODE,
    READERS,
    REHEARSE,
    REPAIR,
    REQUEUE,
    RESTART,
    SOURCE,
    TABLES,
    TARGET,
    TARGETS,
    WINDOW_END,
    WINDOW_START,
)

MAX_RETRY_DELAY = timedelta(minutes=10)
# Without catchup it only has to be in the past; a constant, so that a DAG is the same each time it is parsed.
START_DATE = datetime.fromisoformat("2020-01-01T00:00:00+00:00")
_TEXTS: dict[str, Any] = {"type": ["null", "array"], "items": {"type": "string"}}
"""The schema of a Param that is a list of texts, or nothing."""


def render(spec: DagSpec) -> DAG:
    """The DAG of a spec."""
    dag = DAG(
        dag_id=spec.dag_id,
        description=spec.description,
        doc_md=_about(spec),
        schedule=CronDataIntervalTimetable(spec.schedule, timezone="UTC") if spec.schedule else None,
        start_date=START_DATE,
        catchup=False,
        # Two runs of a pipeline at once would be correct, but the later would wait for the earlier one's lease.
        max_active_runs=1,
        is_paused_upon_creation=False if spec.tasks[0].kind is TaskKind.COPY_PLAN else None,  # cdc_<pipeline> starts it
        tags=list(spec.tags),
        params=_PARAMS[spec.tasks[0].kind](spec),
        default_args=default_args(spec),
        render_template_as_native_obj=False,
    )
    add_tasks(spec, dag)
    return dag


def add_tasks(spec: DagSpec, dag: DAG, within: TaskGroup | None = None) -> None:
    """Adds the tasks of a spec to a DAG, or to a group of it."""
    names = dict.fromkeys(task.group for task in spec.tasks if task.group)
    groups: dict[str, Any] = {name: TaskGroup(name, parent_group=within, dag=dag) for name in names}
    rendered: dict[str, Any] = {}
    for task in spec.tasks:
        rendered[task.task_id] = _operator(spec, task, dag, within, groups.get(task.group, within))
        for before in task.upstream:
            rendered[before] >> rendered[task.task_id]


def _operator(spec: DagSpec, task: TaskSpec, dag: DAG, within: TaskGroup | None, group: TaskGroup | None) -> Any:
    common: dict[str, Any] = {"dag": dag, "task_id": task.name, "doc_md": task.doc}
    common |= {"task_group": group} if group is not None else {}
    if task.kind in (TaskKind.EXTRACT, TaskKind.COPY, TaskKind.COMMIT):
        common["outlets"] = [alias_of(spec.pipeline, task.target)]
    waits = {"poke_interval": spec.airflow.poke_interval_s, "timeout": spec.airflow.timeout_s}

    def mapped(sensor: Any, **options: Any) -> Any:
        options |= {"file": spec.file, "mode": "reschedule", "map_index_template": "{{ task.subject }}"}
        return sensor.partial(**waits, **options, **common).expand(subject=list(task.sources))

    def in_dag(task_id: str) -> str:
        return str(within.child_id(task_id)) if within is not None else task_id  # type: ignore[no-untyped-call]

    def target_tasks() -> dict[str, list[str]]:
        return {target: [in_dag(task_id) for task_id in ids] for target, ids in spec.tasks_by_target().items()}

    match task.kind:
        case TaskKind.EXTRACT:
            return ExtractSensor.partial(
                file=spec.file,
                mode=spec.airflow.sensor,
                map_index_template="{{ task.source }}",
                **waits,
                **common,
            ).expand(source=list(task.sources))
        case TaskKind.PLAN:
            return PlanOperator(file=spec.file, target_tasks=target_tasks(), **common)
        case TaskKind.REPLAN:
            return ReplayPlanOperator(file=spec.file, target_tasks=target_tasks(), **common)
        case TaskKind.START_COPY:
            return StartCopyOperator(file=spec.file, dag_id_of_copy=snapshot_dag_id_of(spec.pipeline), **common)
        case TaskKind.COPY_PLAN:
            return CopyPlanOperator(file=spec.file, **common)
        case TaskKind.COPY:
            return mapped(CopySensor)
        case TaskKind.VERIFY:
            return mapped(VerifySensor)
        case TaskKind.REPAIR:
            # It looks itself whether its own target was verified: another target's failure must not stop it.
            return mapped(RepairSensor, connection=spec.spark_connection, trigger_rule="all_done")
        case TaskKind.PURGE:
            return PurgeOperator(file=spec.file, **common)
        case TaskKind.COMPACT:
            return CompactOperator(file=spec.file, **common)
        case TaskKind.SWEEP:
            return SweepOperator(file=spec.file, **common)
        case TaskKind.CUTOVER:
            return CutoverOperator(
                file=spec.file,
                step=task.name,
                # A task that the form leaves out is skipped, and those after it are not.
                trigger_rule="none_failed" if task.name == REHEARSE_TASK else "all_success",
                **common,
            )
        case TaskKind.APPROVE:
            return ApprovalOperator(subject=_subject(spec), body=_BODY, trigger_rule="none_failed", **common)
        case TaskKind.SPARK:
            return SparkJobOperator(
                file=spec.file,
                job=task.job,
                target=task.target,
                plan_task=in_dag(PLAN),
                connection=spec.spark_connection,
                **common,
            )
        case TaskKind.COMMIT:
            return CommitOperator(file=spec.file, target=task.target, plan_task=in_dag(PLAN), **common)


def default_args(spec: DagSpec) -> dict[str, Any]:
    args: dict[str, Any] = {
        "owner": "lockstep",
        "retries": spec.airflow.retries,
        "retry_delay": timedelta(seconds=spec.airflow.retry_delay_s),
        "retry_exponential_backoff": True,
        "max_retry_delay": MAX_RETRY_DELAY,
    }
    args |= {"pool": spec.airflow.pool} if spec.airflow.pool else {}
    return args | (callbacks(spec.file) if spec.airflow.notify else {})


def _params(spec: DagSpec) -> dict[str, Param]:
    params = {
        WINDOW_START: Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Window start",
            description="Given alone: everything from this time up to the moment of triggering. Empty: see Window end.",
        ),
        WINDOW_END: Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Window end",
            description="Empty: everything up to the moment of triggering, whatever the Logical Date is.",
        ),
        DRY_RUN: Param(
            False,
            type="boolean",
            title="Dry run",
            description="List the staged batches that a run would apply. Reads no source, changes nothing.",
        ),
        ACCEPT: Param(
            None,
            **_TEXTS,
            title="Accept",
            description="SOURCE=FILE:OFFSET of a statement that stopped a source, once you know what it changed. Any "
            "table that it may have changed needs a re-sync.",
        ),
        ABANDON: Param(
            None,
            **_TEXTS,
            title="Abandon",
            description="SOURCE=FILE:OFFSET of the position up to which a source was read, if its log is purged, reset "
            "or damaged from there on: reading continues at the end of the log, and every table is copied again.",
        ),
    }
    if spec.targets:
        params[TARGETS] = Param(
            None,
            type=["null", "array"],
            items={"type": "string", "enum": list(spec.targets)},
            examples=list(spec.targets),
            title="Targets",
            description="Empty: all targets of the pipeline.",
        )
    return params


def _replay_params(spec: DagSpec) -> dict[str, Param]:
    start, end = (
        Param(None, type=["null", "string"], format="date-time", title=title, description=description)
        for title, description in (
            ("Window start", "The first window to replay. Empty: from the beginning."),
            ("Window end", "Replay windows that begin before this time. Empty: everything that is staged."),
        )
    )
    first, last = (
        Param(None, **_TEXTS, title=title, description=description)
        for title, description in (
            ("First batches", "For each source, the first batch to replay, as `lockstep stage ls` names it."),
            ("Last batches", "For each source, the last batch to replay."),
        )
    )
    dry = Param(
        False, type="boolean", title="Dry run", description="List the batches that would be replayed. Changes nothing."
    )
    return {
        TARGET: Param(
            type="string",
            enum=list(spec.targets),
            title="Target",
            description="The target to replay into. Rows that it already has stay as they are; "
            "an empty target is rebuilt.",
        ),
        WINDOW_START: start,
        WINDOW_END: end,
        FIRST_BATCHES: first,
        LAST_BATCHES: last,
        TABLES: Param(
            None, **_TEXTS, title="Tables", description="Logical names of tables. Empty: every table of the target."
        ),
        REQUEUE: Param(
            None,
            type=["null", "string"],
            title="Requeue a run",
            description="A run that quarantined rows, to apply them again. Of the fields above, "
            "only the target is used.",
        ),
        DRY_RUN: dry,
    }


def _copy_params(spec: DagSpec) -> dict[str, Param]:
    sources = list(spec.tasks[1].sources)
    return {
        SOURCE: Param(
            None,
            type=["null", "string"],
            enum=[None, *sources],
            title="Source",
            description="Empty: all sources of the pipeline.",
        ),
        TABLES: Param(
            None,
            **_TEXTS,
            title="Tables",
            description="database.table of the source, to copy them whether rows are missing or not; an isolated one "
            "is captured again. Empty: each captured table that lacks rows from before its capture.",
        ),
        READERS: Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=MOST_READERS,
            title="Readers",
            description="Chunks that are read at once, of each source. Empty: snapshot.readers of the pipeline file.",
        ),
        DRY_RUN: Param(
            False,
            type="boolean",
            title="Dry run",
            description="List the tables that would be copied, by what is extracted. Reads no source, changes nothing.",
        ),
    }


def _purge_params(spec: DagSpec) -> dict[str, Param]:
    return {
        DRY_RUN: Param(
            False, type="boolean", title="Dry run", description="List what would be done. Writes and deletes nothing."
        )
    }


def _verify_params(spec: DagSpec) -> dict[str, Param]:
    return {
        TARGET: Param(
            None,
            type=["null", "string"],
            enum=[None, *spec.targets],
            title="Target",
            description="Empty: every target that runs feed.",
        ),
        TABLES: Param(
            None,
            **_TEXTS,
            title="Tables",
            description="Logical names of tables. Empty: every table of the target.",
        ),
        MODE: Param(
            None,
            type=["null", "string"],
            enum=[None, "ordered", "random", "count", "max-id"],
            title="Mode",
            description="ordered: every row, the only proof that a target is equal. random: a sample of the rows. "
            "count: numbers of rows. max-id: these, and the greatest keys. Empty: as verify.mode says.",
        ),
        RESTART: Param(
            False,
            type="boolean",
            title="Restart",
            description="Begin from the start, also if a verification was interrupted.",
        ),
        REPAIR: Param(
            spec.task(REPAIR_TASK).on,
            type="boolean",
            title="Repair",
            description="Bring the rows that differ from the source, apply them by a run, and verify them again. The "
            "limit of a day holds (repair.max_rows_per_day). Only in the modes that compare rows.",
        ),
    }


def _cutover_params(spec: DagSpec) -> dict[str, Param]:
    params = {
        DIRECTION: Param(
            THERE,
            type="string",
            enum=[THERE, BACK],
            title="Direction",
            description="there: from the sources to the target. back: to the old tables, which the way back has kept.",
        ),
        REHEARSE: Param(
            True,
            type="boolean",
            title="Rehearse",
            description="Before anybody is asked, stop writes for some seconds, prove, and let them continue.",
        ),
    }
    if len(spec.targets) > 1:
        params[TARGET] = Param(type="string", enum=list(spec.targets), title="Target", description="Where to.")
    return params


def _subject(spec: DagSpec) -> str:
    target = spec.targets[0] if len(spec.targets) == 1 else f"{{{{ params.{TARGET} }}}}"
    where = f"{{% if params.{DIRECTION} == '{BACK}' %}}back{{% else %}}to the target {target}{{% endif %}}"
    return f"Switch the application {where}?"


_BODY = (
    f"{{% set rehearsed = ti.xcom_pull(task_ids='{REHEARSE_TASK}') %}}"
    "{% if rehearsed %}The rehearsal stopped writes for **{{ '%.1f' | format(rehearsed.stopped_s) }} s**, and proved "
    "that both sides were equal.{% else %}**It was not rehearsed.**{% endif %}\n\n"
    "*Approve*: writes are stopped again, equality is proved again, and `cutover.switch_with` is called. "
    f"*Reject*: nothing is switched. The task `{SWITCH}` begins as soon as it has a worker slot."
)


_PARAMS = {
    TaskKind.CUTOVER: _cutover_params,
    TaskKind.VERIFY: _verify_params,
    TaskKind.EXTRACT: _params,
    TaskKind.COPY_PLAN: _copy_params,
    TaskKind.REPLAN: _replay_params,
    TaskKind.PURGE: _purge_params,
}
"""The trigger form of a DAG, by its first task."""


def _about(spec: DagSpec) -> str:
    if spec.tasks[0].kind is TaskKind.CUTOVER:
        return (
            f"Pipeline `{spec.pipeline}`: {spec.description}. Started by hand.\n\n"
            f"First pause `cdc_{spec.pipeline}`, whose runs would be waited for. Nothing is switched before somebody "
            "approves, and until then every failure and every kill leaves the application where it is. "
            "`lockstep cutover status` shows each step; `lockstep cutover complete` ends the time in which the "
            "application can go back."
        )
    if spec.tasks[0].kind is TaskKind.PURGE:
        return f"{spec.description}. {spec.tasks[0].doc} Each source keeps its newest batch."
    if spec.tasks[0].kind is TaskKind.VERIFY:
        started = f"Started at `{spec.schedule}` (UTC), or by hand." if spec.schedule else "Started by hand."
        return (
            f"Pipeline `{spec.pipeline}`: {spec.description}, beside all other runs. {started}\n\n{spec.tasks[0].doc}"
        )
    if spec.tasks[0].kind is TaskKind.COPY_PLAN:
        return (
            f"Pipeline `{spec.pipeline}`: {spec.description}, beside all other runs. Started by `cdc_{spec.pipeline}` "
            "when a table lacks rows that a copy brings (`snapshot.mode`, `tables.on_unlogged_change`, "
            "`tables.on_unreadable`), or by hand.\n\n"
            "Reads with SELECT only, while the application keeps writing. Any task can be killed, retried or cleared: "
            "the copy continues after the last chunk that was read, and nothing is read again that is staged."
        )
    if spec.tasks[0].kind is TaskKind.REPLAN:
        return (
            f"Pipeline `{spec.pipeline}`: {spec.description}. Triggered by hand.\n\n"
            "Reads staged files only, no source. No older change overwrites a newer row, so a replay into a target "
            "that already has everything changes nothing; consume records stay as they are."
        )
    return (
        f"Pipeline `{spec.pipeline}`: {spec.description}. Intervals: `{spec.schedule}` (UTC).\n\n"
        "Clearing or repeating any task, or a whole run, changes nothing that is already applied: "
        "every batch is consumed once by each target, and no older change overwrites a newer row."
    )
