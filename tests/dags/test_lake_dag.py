"""A DAG run whose target is a lake, in Airflow itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog

from tests.dags.airflow_line import AirflowLine, ended, fill, now
from tests.dags.lineage_events import completed, emitting


def test_a_dag_run_publishes_its_window_in_the_lake(
    line: Callable[..., AirflowLine], source_database: Any, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = {"type": "sql", "uri": "env:DAG_LAKE", "warehouse": tmp_path.as_uri()}
    lake = {"name": "lake", "kind": "iceberg", "namespace": "shop", "tables": {"*": {}}, "catalog": catalog}
    run = line("laked", targets=[lake])
    events = tmp_path / "events.json"
    run.environ |= {"DAG_LAKE": uri} | emitting(events)
    fill(source_database, 40)
    commit = "cdc_laked.to_lake.commit"
    with ended(run.start(now())) as process:
        run.wait_for(lambda: commit in completed(events), process)
    states = {state for of_task in run.states().values() for state in of_task}
    assert states <= {"success", "skipped"}, run.output[-6000:]
    mirror = load_catalog("lake", type="sql", uri=uri).load_table("shop.t")
    assert sorted(mirror.scan().to_arrow()["id"].to_pylist()) == list(range(40))
    (answer,) = [value for task, key, value in run.xcoms() if "commit" in task and key == "return_value"]
    assert [(table["table"], table["written"]) for table in answer["tables"]] == [(f"{source_database.name}.t", 40)]
    (written,) = completed(events)[commit]["outputs"]
    assert (written["namespace"], f"file://{written['name']}") == ("file", mirror.location())
    facets, snapshot = written["facets"], mirror.current_snapshot()
    assert snapshot is not None
    assert facets["version"]["datasetVersion"] == str(snapshot.snapshot_id)
    assert [facets["catalog"][name] for name in ("framework", "type", "name")] == ["iceberg", "sql", "lake"]
    (alias,) = facets["symlinks"]["identifiers"]
    assert (alias["namespace"], alias["name"]) == ("iceberg://lake", "shop.t")
