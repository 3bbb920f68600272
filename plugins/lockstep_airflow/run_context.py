"""What a task reads from its DAG run: its window, its targets, and the names under which it is known elsewhere."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from cdc_core.errors import UsageError
from cdc_core.model.choices import choose
from lockstep_airflow.specs import BY_HAND, HOUSEKEEPING, PIPELINE, dag_id_of
from lockstep_airflow.window import (
    ABANDON,
    ACCEPT,
    DRY_RUN,
    FIRST_BATCHES,
    LAST_BATCHES,
    MODE,
    READERS,
    REPAIR,
    REQUEUE,
    RESTART,
    SOURCE,
    TABLES,
    TARGET,
    TARGETS,
    WINDOW_END,
    WINDOW_START,
    RunWindow,
    moment_us,
    run_window,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.config import Pipeline
    from cdc_core.meta import Meta
    from cdc_core.operations.apply.replay import Selection
    from cdc_core.stage.objects import ObjectStore

MAX_RUN_NAME = 200
WITH_INTERVAL = ("scheduled", "backfill")
"""Types of DAG runs whose data interval is what they are about."""

_IN_GROUPS = frozenset(
    {WINDOW_START, WINDOW_END, TARGETS, DRY_RUN, ACCEPT, ABANDON, SOURCE, TABLES, READERS}
    | {TARGET, MODE, RESTART, REPAIR}
)
"""What the forms ask for whose tasks are also in groups."""


def window_of(context: Context) -> RunWindow:
    """The window of the DAG run. Raises UsageError (usage.argument)."""
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if context["dag_run"].run_type not in WITH_INTERVAL:
        start = end = None
    return run_window(_params(context), start, end, asked_at(context))


def asked_at(context: Context) -> datetime:
    """When the DAG run was asked for: the same in every try."""
    run = context["dag_run"]
    return run.run_after or run.start_date or datetime.now(UTC)


def targets_of(context: Context, pipeline: Pipeline) -> tuple[str, ...]:
    """The targets that the DAG run is for. Raises UsageError (usage.unknown_name)."""
    return _targets(pipeline, _params(context).get(TARGETS), TARGETS)


def _targets(pipeline: Pipeline, wanted: Sequence[str] | None, param: str) -> tuple[str, ...]:
    return tuple(choose([target.name for target in pipeline.targets], wanted, "target", f"param {param}"))


def selection_of(context: Context, pipeline: Pipeline, meta: Meta, store: ObjectStore) -> Selection:
    """What a run of the replay DAG applies. Raises UsageError (usage.argument)."""
    from cdc_core.operations.apply.replay import Selection, places, requeued

    params = _params(context)
    if params.get(REQUEUE):
        return requeued(meta, store, str(params[REQUEUE]), str(params.get(TARGET)))
    return Selection(
        str(params.get(TARGET) or ""),
        moment_us(params, WINDOW_START),
        moment_us(params, WINDOW_END),
        places(pipeline, params.get(FIRST_BATCHES) or (), f"param {FIRST_BATCHES}"),
        places(pipeline, params.get(LAST_BATCHES) or (), f"param {LAST_BATCHES}"),
        tuple(dict.fromkeys(params.get(TABLES) or ())),
    )


def copy_params(context: Context, pipeline: Pipeline) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sources that a run of the snapshot DAG is for, and the tables that it names, none for all that are pending.

    Raises UsageError (usage.argument, usage.unknown_name).
    """
    params = _params(context)
    source, tables = params.get(SOURCE), tuple(dict.fromkeys(params.get(TABLES) or ()))
    known = [configured.name for configured in pipeline.sources]
    names = choose(known, [source] if source else None, "source", f"param {SOURCE}")
    if tables and len(names) > 1:
        raise UsageError(
            f"The pipeline has {len(names)} sources, and {TABLES} names tables of one of them.",
            where=f"param {SOURCE}",
            code="usage.argument",
            remedy=f"choose one of {', '.join(names)}",
        )
    return tuple(names), tables


def copy_readers(context: Context) -> int | None:
    """How many chunks a run of the snapshot DAG reads at once; None for what the pipeline file says."""
    readers = _params(context).get(READERS)
    return None if readers is None else int(readers)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run of the verify DAG is for. tables: logical ones; none for all of a target."""

    targets: tuple[str, ...]
    tables: tuple[str, ...]
    mode: str
    restart: bool
    repair: bool


def verify_params(context: Context, pipeline: Pipeline) -> Asked:
    """Raises UsageError (usage.unknown_name)."""
    params = _params(context)
    target = params.get(TARGET)
    tables = tuple(dict.fromkeys(params.get(TABLES) or ()))
    repair = params.get(REPAIR)
    return Asked(
        _targets(pipeline, [target] if target else None, TARGET),
        tables,
        str(params.get(MODE) or pipeline.verify.mode),
        bool(params.get(RESTART)),
        pipeline.verify.repair if repair is None else bool(repair),
    )


def accepted_of(context: Context, pipeline: Pipeline, source: str) -> tuple[tuple[str, int], ...]:
    """Places in the source's log that the DAG run accepts. Raises UsageError (usage.argument)."""
    return tuple(_places(context, pipeline, source, ACCEPT))


def abandoned_of(context: Context, pipeline: Pipeline, source: str) -> tuple[str, int] | None:
    """The place from which on the DAG run gives up the source's log. Raises UsageError (usage.argument)."""
    return next(_places(context, pipeline, source, ABANDON), None)


def _places(context: Context, pipeline: Pipeline, source: str, param: str) -> Iterator[tuple[str, int]]:
    from cdc_core.operations.extract.acceptances import parse_place

    for text in _params(context).get(param) or ():
        name, _, place = str(text).partition("=")
        if name not in {configured.name for configured in pipeline.sources}:
            raise UsageError(
                f"{text!r} does not begin with a source of the pipeline.",
                where=f"param {param}",
                code="usage.argument",
                remedy="give SOURCE=FILE:OFFSET, such as shop=binlog.000012:4711",
            )
        if name == source:
            yield parse_place(place, where=f"param {param}")


def is_dry_run(context: Context) -> bool:
    return bool(_params(context).get(DRY_RUN))


def run_name(context: Context, pipeline: Pipeline) -> str:
    """The run's id in meta, stage and ledger: the same in every try and clear of a DAG run, and fit for a path."""
    run = context["dag_run"]
    return run_name_of(pipeline.pipeline, run.dag_id, run.run_id)


def run_name_of(pipeline: str, dag_id: str, dag_run_id: str) -> str:
    """`run_name` of a DAG run by its ids."""
    ours = dag_id_of(pipeline)
    of_dag = dag_id.removeprefix(ours) if dag_id.startswith(ours) else f"-{dag_id}"
    name = f"{pipeline}{of_dag}-{dag_run_id}"
    fit = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    return fit if len(fit) <= MAX_RUN_NAME else f"{fit[: MAX_RUN_NAME - 17]}-{sha256(name.encode()).hexdigest()[:16]}"


def holder_name(context: Context) -> str:
    """The holder of a source's lease: this try of this task instance, in this process.

    A killed process could not release its lease: the next try waits until the lease expires (limits.lease_s after its
    last renewal), poking meanwhile. A name shared by all tries could take over at once, but also while the previous
    process, which Airflow wrongly believes dead, still reads as the same replica.
    """
    ti = context["ti"]
    index = f"[{ti.map_index}]" if ti.map_index is not None and ti.map_index >= 0 else ""
    process = f"{socket.gethostname()}:{os.getpid()}"
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}{index} try {ti.try_number} on {process}"[:250]


def beside(task_id: str, name: str) -> str:
    """The id of the task `name` in the group of another one."""
    return task_id[: task_id.rfind(".") + 1] + name


def _params(context: Context) -> dict[str, Any]:
    """What the form of one of our DAGs says. In a DAG of others, whose params may have the same names: what its param
    `lockstep` has. Raises UsageError (usage.argument) if that has others."""
    params = dict(context.get("params") or {})
    if {PIPELINE, BY_HAND, HOUSEKEEPING} & set(context["dag"].tags):
        return params
    given = params.get("lockstep") or {}
    unknown = sorted(given.keys() - _IN_GROUPS) if isinstance(given, Mapping) else [str(given)]
    if unknown:
        raise UsageError(
            f"No task has a param {unknown[0]!r}.",
            where="param lockstep",
            code="usage.argument",
            remedy=f"give an object with some of: {', '.join(sorted(_IN_GROUPS))}",
        )
    return dict(given)
