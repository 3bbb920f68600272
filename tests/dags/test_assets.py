"""DAGs that are scheduled on the tables of a pipeline start when its window is published, under Airflow's scheduler."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cdc_core.model.windows import to_us
from lockstep_airflow.table_assets import alias_of
from tests.dags.airflow_line import fill
from tests.dags.airflow_server import FEW_LOOKS, serving
from tests.lab.pipeline_file import pipeline_document, pipeline_text

pytestmark = [pytest.mark.timeout(900)]

CONSUMERS = """
import json
from airflow.sdk import DAG, Asset, AssetAlias, task

for name, schedule in SCHEDULES.items():
    with DAG(name, schedule=[schedule]):
        @task
        def note(triggering_asset_events=None, dag=None):
            found = [
                [asset.uri, event.extra] for asset, events in triggering_asset_events.items() for event in events
                if isinstance(asset, Asset)  # each is listed under its alias, too
            ]
            with open(f"SEEN/{dag.dag_id}", "w") as file:
                json.dump(found, file)
        note()
"""
LOCAL_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"


def bundles(consumers: Path) -> dict[str, str]:
    """Lockstep's own folder of DAGs, and that of others."""
    found = [
        {"name": "dags-folder", "classpath": LOCAL_BUNDLE, "kwargs": {}},
        {"name": "consumers", "classpath": LOCAL_BUNDLE, "kwargs": {"path": str(consumers)}},
    ]
    return {"AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(found)}


def test_dags_start_when_the_window_of_their_table_is_staged_and_published(
    source_database: Any, tmp_path: Path
) -> None:
    fill(source_database, 40)
    table = f"{source_database.name}.t"
    for name in ("pipelines", "consumers", "seen", "warehouse"):
        (tmp_path / name).mkdir()
    catalog = {"type": "sql", "uri": "env:LAKE", "warehouse": (tmp_path / "warehouse").as_uri()}
    lake = {"name": "lake", "kind": "iceberg", "namespace": "shop", "tables": {"*": {}}, "catalog": catalog}
    (place,) = source_database.execute("SHOW MASTER STATUS")
    document = pipeline_document(
        tmp_path, source_database.name, pipeline="sold", schedule="0 0 * * *", routes="[]", targets=[lake],
        source={"name": "shop", "connection": "airflow:shop", "start": {"position": {"file": place[0], "offset": 4}}},
        airflow={"poke_interval_s": 1, "retry_delay_s": 1}, limits="lease_s: 5",
    )  # fmt: skip
    (tmp_path / "pipelines" / "sold.yaml").write_text(pipeline_text(document))
    staged = f"{(tmp_path / 'stage').as_uri()}/changes/cdc_table={table}"
    schedules = {
        "on_stage": f"Asset({staged!r})",
        "on_lake": "Asset('iceberg://lake/shop.t')",
        "on_target": f"AssetAlias({alias_of('sold', 'lake').name!r})",
    }
    listed = "{" + ", ".join(f"{name!r}: {on}" for name, on in schedules.items()) + "}"
    program = CONSUMERS.replace("SCHEDULES", listed).replace("SEEN", str(tmp_path / "seen"))
    (tmp_path / "consumers" / "consumers.py").write_text(program)
    environ = {"LAKE": f"sqlite:///{tmp_path}/catalog.db", **FEW_LOOKS, **bundles(tmp_path / "consumers")}
    with serving(tmp_path, {"shop": source_database.server.url}, **environ) as airflow:
        for dag_id in ("cdc_sold", *schedules):
            airflow.wait_for_dag(dag_id)
            airflow.switch_on(dag_id)
        # Nothing is logged for the scheduler's own run, of yesterday.
        end = datetime.now(UTC)
        airflow.trigger("cdc_sold", window_end=end.isoformat()).wait()
        for dag_id in schedules:
            airflow.wait_for_runs(dag_id, 1)
    seen = {name: json.loads((tmp_path / "seen" / name).read_text()) for name in schedules}
    ((asset, extra),) = seen["on_stage"]
    assert (asset, extra["table"], extra["staged_rows"]) == (staged, table, 40)
    assert extra["window_start_us"] < to_us(end) < extra["window_end_us"]
    ((asset, extra),) = seen["on_lake"]
    assert (asset, extra["table"], extra["written"]) == ("iceberg://lake/shop.t", table, 40)
    assert extra["window_end_us"] == to_us(end)
    assert [extra for _, extra in seen["on_target"]] == [extra]
