"""The assets of a pipeline's tables, and the events by which a DAG that is scheduled on one starts.

    a staged table          its folder: <stage.uri>/changes/cdc_table=<table>
    a table of a lake       iceberg://<target>/<namespace>.<table>, and ….<table>__changes
    a table of a database   lockstep/<pipeline>/<target>/<table>

Which tables a run has is known only once it has staged them: so a task has an asset alias as its outlet, and adds the
assets to it. An event says the window in its extra, and has no partition key: Airflow takes none for the assets of an
alias, and a key would keep every DAG that asks for no partitions from starting.

Airflow (3.3.2, `register_asset_changes_in_db`) fails a task, although its work is done, whose new asset another task
makes at the same moment. So tasks that name new assets end one after the other.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from cdc_core.config import IcebergTarget, Pipeline, Target
from cdc_core.errors import LeaseHeld
from cdc_core.model.windows import CLOCK_TOLERANCE_US, to_us
from lockstep_airflow.run_context import asked_at, holder_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.meta import BatchRow, Meta
    from lockstep_airflow.window import RunWindow

_TELLING = "assets:new"
"""The name of the lease, which no source can have."""
_TELLING_S = 60
"""How long a killed task keeps it."""
_LOOK_S = 0.5
_telling = set[str]()
"""Pipelines whose lease this process has. `airflow dags test` runs all tasks in one process, one after the other."""


def alias_of(pipeline: str, target: str = "") -> AssetAlias:
    """Of all tables that a target's commits apply, or that a pipeline stages; DAGs can be scheduled on it."""
    return AssetAlias(f"lockstep/{pipeline}/{target}".rstrip("/"))


def staged_uri(pipeline: Pipeline, logical: str) -> str:
    from cdc_core.stage.layout import table_prefix

    return f"{pipeline.stage.uri.rstrip('/')}/{table_prefix(logical).rstrip('/')}"


def target_uris(pipeline: Pipeline, target: Target, logical: str) -> list[str]:
    """Of the table, and of its changes table if it has one."""
    if isinstance(target, IcebergTarget):
        from cdc_core.lake.catalogs import identifier, name_of
        from cdc_core.lake.lake_tables import changes_of

        mirror, rule = identifier(target, logical), target.table(logical)
        names = [mirror, changes_of(mirror)] if rule is not None and rule.changes == "table" else [mirror]
        return [f"iceberg://{target.name}/{name_of(name)}" for name in names]
    return [f"lockstep/{pipeline.pipeline}/{target.name}/{logical}"]


def extracted_batches(context: Context, meta: Meta, source: str, window: RunWindow) -> list[BatchRow]:
    """Those of the run's window, and those of earlier windows that were staged since the run began, as after a pause.
    Of a run up to now, all that were staged since it began."""
    start_us = None if window.open else window.start_us
    batches = meta.batches.staged_since(source, _began_us(context), window_start_us=start_us)
    return [batch for batch in batches if not batch.copied and batch.window_start_us < window.end_us]


def copied_batches(context: Context, meta: Meta, source: str) -> list[BatchRow]:
    """Those of copied rows that were staged since the run began."""
    return [batch for batch in meta.batches.staged_since(source, _began_us(context)) if batch.copied]


def _began_us(context: Context) -> int:
    """By Airflow's clock; batches have the time of meta's."""
    return to_us(context["dag_run"].start_date or asked_at(context)) - CLOCK_TOLERANCE_US


def publish_staged(
    context: Context, outlets: Sequence[AssetAlias], pipeline: Pipeline, meta: Meta, batches: Sequence[BatchRow]
) -> None:
    """An event for each table that has rows in batches of one source."""
    files = meta.batches.files([batch.batch_id for batch in batches])
    with_rows: dict[str, list[BatchRow]] = {}
    rows: dict[str, int] = {}
    for batch in batches:
        for part in files[batch.batch_id]:
            mine = with_rows.setdefault(part.table, [])
            if not mine or mine[-1] is not batch:
                mine.append(batch)
            rows[part.table] = rows.get(part.table, 0) + part.rows
    publish(
        context,
        outlets,
        pipeline,
        {
            staged_uri(pipeline, table): {
                "table": table,
                "window_start_us": min(batch.window_start_us for batch in mine),
                "window_end_us": max(batch.window_end_us for batch in mine),
                "positions": {mine[0].source: [str(mine[0].begin), str(mine[-1].end)]},
                "staged_rows": rows[table],
            }
            for table, mine in sorted(with_rows.items())
        },
    )


def publish(
    context: Context, outlets: Sequence[AssetAlias], pipeline: Pipeline, extras: Mapping[str, Mapping[str, Any]]
) -> None:
    """The last that a task does. outlets: of the task. extras: by the URI of the asset."""
    if not extras:
        return
    for alias in outlets:
        _wait_until_known(context, alias, pipeline, extras)
        events = context["outlet_events"][alias]
        for uri, extra in extras.items():
            events.add(Asset(uri), extra=dict(extra))


def _wait_until_known(
    context: Context, alias: AssetAlias, pipeline: Pipeline, extras: Mapping[str, Mapping[str, Any]]
) -> None:
    """Returns when Airflow knows the assets, or when nobody else may make them until this process ends, which is after
    Airflow has recorded its success."""
    mine = pipeline.pipeline in _telling
    while not mine and not extras.keys() <= _known(alias):
        mine = _begin_telling(context, pipeline)
        if not mine:
            time.sleep(_LOOK_S)


def _begin_telling(context: Context, pipeline: Pipeline) -> bool:
    from cdc_core.meta import Meta

    meta = Meta.open(pipeline.meta.url, pipeline.pipeline)
    try:
        meta.leases.acquire(_TELLING, holder_name(context), _TELLING_S)
    except LeaseHeld:
        meta.close()
        return False
    _telling.add(pipeline.pipeline)
    atexit.register(meta.close)  # which gives the lease back
    return True


def _known(alias: AssetAlias) -> set[str]:
    """The URIs of the assets that Airflow has of the alias."""
    from airflow.sdk.execution_time.comms import AssetsByAliasResult, GetAssetsByAlias
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    found = SUPERVISOR_COMMS.send(GetAssetsByAlias(alias_name=alias.name))
    return {asset.uri for asset in found.assets} if isinstance(found, AssetsByAliasResult) else set()
