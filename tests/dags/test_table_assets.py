"""Which batches a run announces, and the events of their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import AssetAlias
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import AssetResponse, AssetsByAliasResult, GetAssetsByAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from cdc_core import config
from lockstep_airflow import table_assets
from lockstep_airflow.table_assets import alias_of, extracted_batches, publish_staged, target_uris
from lockstep_airflow.window import RunWindow
from tests.dags.made_pipelines import staged
from tests.lab.made_batches import HOUR_US, START_US
from tests.lab.made_line import Line

BEFORE, AFTER = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def shop(write_pipeline: Callable[..., Path]) -> Iterator[Line]:
    """Batches of the windows 0, 1 and 3; the second has no rows."""
    line = staged(write_pipeline("shop"))
    yield line
    line.meta.close()


class Supervisor:
    """What a task asks Airflow. known: the URIs of the assets of an alias, at each question."""

    def __init__(self, *known: list[str]) -> None:
        self.known = list(known)

    def send(self, message: GetAssetsByAlias) -> AssetsByAliasResult:
        uris = self.known.pop(0)
        assets = [AssetResponse(name=uri, uri=uri, group="asset") for uri in uris]
        return AssetsByAliasResult.from_asset_responses(assets)


def context(began: datetime) -> Any:
    task = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
    return {"dag_run": SimpleNamespace(start_date=began), "outlet_events": OutletEventAccessors(), "ti": task}


def windows(shop: Line, began: datetime, window: RunWindow) -> list[int]:
    batches = extracted_batches(context(began), shop.meta, "shop_db", window)
    return [(batch.window_start_us - START_US) // HOUR_US for batch in batches]


def hours(start: int, end: int) -> RunWindow:
    return RunWindow(START_US + start * HOUR_US, START_US + end * HOUR_US)


def test_a_run_announces_its_window_and_earlier_ones_that_were_staged_since_it_began(shop: Line) -> None:
    assert windows(shop, AFTER, hours(3, 4)) == [3]
    assert windows(shop, BEFORE, hours(3, 4)) == [0, 1, 3]
    assert windows(shop, BEFORE, hours(1, 2)) == [0, 1]


def test_a_run_up_to_now_announces_what_was_staged_since_it_began(shop: Line) -> None:
    now = RunWindow(0, START_US + 9 * HOUR_US, open=True)
    assert windows(shop, BEFORE, now) == [0, 1, 3]
    assert windows(shop, AFTER, now) == []


def test_a_staged_table_has_one_event_with_the_windows_and_positions_of_its_batches(
    shop: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, alias = context(BEFORE), alias_of("shop")
    batches = extracted_batches(task, shop.meta, "shop_db", hours(0, 4))
    uri = f"{shop.pipeline.stage.uri}/changes/cdc_table=shop.orders"
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor([uri]), raising=False)
    publish_staged(task, [alias], shop.pipeline, shop.meta, batches)
    (event,) = task["outlet_events"][alias].asset_alias_events
    assert event.dest_asset_key.name == event.dest_asset_key.uri == uri
    assert event.extra == {
        "table": "shop.orders",
        "window_start_us": START_US,
        "window_end_us": START_US + 4 * HOUR_US,
        "positions": {"shop_db": [str(batches[0].begin), str(batches[-1].end)]},
        "staged_rows": 1239,
    }


def test_of_tasks_that_name_a_new_asset_one_at_a_time_ends(shop: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow fails the later of two that make it at the same moment."""
    task, alias, at_exit = context(BEFORE), alias_of("shop"), list[Callable[[], None]]()
    batches = extracted_batches(task, shop.meta, "shop_db", hours(0, 4))
    monkeypatch.setattr(table_assets.atexit, "register", at_exit.append)
    monkeypatch.setattr(table_assets, "_LOOK_S", 0)

    def publish(*known: list[str]) -> int:
        """In a process of its own; how often it asks."""
        table_assets._telling.clear()
        supervisor = Supervisor(*known)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
        publish_staged(task, [alias], shop.pipeline, shop.meta, batches)
        return len(known) - len(supervisor.known)

    uri = f"{shop.pipeline.stage.uri}/changes/cdc_table=shop.orders"
    assert (publish([], [], []), len(at_exit)) == (1, 1)  # has the lease until its process ends
    assert (publish([], [], [uri]), len(at_exit)) == (3, 1)  # another, which waits until Airflow has recorded the first
    at_exit.pop()()
    assert (publish([], [], []), len(at_exit)) == (1, 1)  # had the first failed, the next would make the asset
    publish_staged(task, [alias], shop.pipeline, shop.meta, batches)  # the next task of that process does not wait
    assert len(at_exit) == 1
    at_exit.pop()()
    table_assets._telling.clear()


def test_a_table_of_a_lake_is_named_by_its_catalog_and_one_of_a_database_by_its_pipeline(
    write_pipeline: Callable[..., Path],
) -> None:
    catalog = {"type": "sql", "uri": "env:LAKE", "warehouse": "s3://lake/warehouse"}
    lake = {"name": "lake", "kind": "iceberg", "namespace": "sales", "catalog": catalog}
    lake["tables"] = {"*": {}, "shop.items": {"changes": "table"}}
    shards = {"name": "main", "connections": ["airflow:target_db"], "tables": {"*": {}}}
    pipeline = config.load(write_pipeline("shop", targets=[lake, shards]))
    assert target_uris(pipeline, pipeline.target("lake"), "shop.orders") == ["iceberg://lake/sales.orders"]
    of_items = ["iceberg://lake/sales.items", "iceberg://lake/sales.items__changes"]
    assert target_uris(pipeline, pipeline.target("lake"), "shop.items") == of_items
    assert target_uris(pipeline, pipeline.target("main"), "shop.orders") == ["lockstep/shop/main/shop.orders"]
    assert [alias_of("shop", "lake"), alias_of("shop")] == [
        AssetAlias("lockstep/shop/lake"),
        AssetAlias("lockstep/shop"),
    ]
