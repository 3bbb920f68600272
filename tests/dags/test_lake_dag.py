"""A DAG run whose target is a lake, in Airflow itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog

from tests.dags.airflow_line import AirflowLine, fill, now


def test_a_dag_run_publishes_its_window_in_the_lake(
    line: Callable[..., AirflowLine], source_database: Any, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = {"type": "sql", "uri": "env:DAG_LAKE", "warehouse": tmp_path.as_uri()}
    lake = {"name": "lake", "kind": "iceberg", "namespace": "shop", "tables": {"*": {}}, "catalog": catalog}
    run = line("laked", targets=[lake])
    run.environ["DAG_LAKE"] = uri
    fill(source_database, 40)
    output = run.run(now())
    states = {state for of_task in run.states().values() for state in of_task}
    assert states <= {"success", "skipped"}, output[-6000:]
    rows = load_catalog("lake", type="sql", uri=uri).load_table("shop.t").scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == list(range(40))
    (commit,) = [value for task, key, value in run.xcoms() if "commit" in task and key == "return_value"]
    assert [(one["table"], one["written"]) for one in commit["tables"]] == [(f"{source_database.name}.t", 40)]
