"""What Airflow sees of the pipelines folder: one DAG a file, its shape, and what a broken file breaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.shop.airflow_env import REPOSITORY

HEAVY = (
    "pyspark", "numba", "pandas", "boto3", "pyarrow", "great_expectations", "pymysqlreplication", "pymysql",
    "duckdb", "cdc_core.operations.extract", "cdc_core.meta", "cdc_core.stage", "cdc_core.operations.apply",
    "openlineage", "lockstep_airflow.lineage",
)  # fmt: skip

PARSE = """
import json, sys
from airflow import plugins_manager
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
bag = DagBag(sys.argv[1])
print("RESULT " + json.dumps({
    "dags": {dag_id: [task.task_id for task in dag.tasks] for dag_id, dag in bag.dags.items()},
    "files": {dag_id: dag.fileloc for dag_id, dag in bag.dags.items()},
    "serialized": {dag_id: DagSerialization.to_dict(dag) for dag_id, dag in bag.dags.items()},
    "errors": bag.import_errors,
    "heavy": [name for name in json.loads(sys.argv[2]) if name in sys.modules],
    "plugins": [str(plugin.source) for plugin in plugins_manager._get_plugins()[0] if plugin.name == "lockstep"],
    "plugin_errors": plugins_manager.get_import_errors(),
    "twice": sorted(name for name in sys.modules if name in ("plugin", "sensor", "operators", "render", "specs")),
}, default=str))
"""

SYNC_AND_STATE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.dag_processing.bundles.manager import DagBundlesManager
DagBundlesManager().sync_bundles_to_db()
bag = DagBag(sys.argv[1], bundle_path=__import__("pathlib").Path(sys.argv[1]), bundle_name="dags-folder")
sync_bag_to_db(bag, "dags-folder", None)

from sqlalchemy import select
from airflow.models.dag import DagModel
from airflow.models.errors import ParseImportError
from airflow.utils.session import create_session
with create_session() as session:
    dags = {dag.dag_id: [dag.has_import_errors, dag.is_stale] for dag in session.scalars(select(DagModel))}
    errors = {error.filename: error.stacktrace for error in session.scalars(select(ParseImportError))}
print("RESULT " + json.dumps({"dags": dags, "errors": errors}))
"""

TRIGGER = """
import json
from datetime import UTC, datetime, timedelta
from airflow.api.common.trigger_dag import trigger_dag
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from types import SimpleNamespace
from lockstep_airflow.run_context import window_of
dag = SimpleNamespace(tags=["lockstep:pipeline"])

def window(kind, by, date):
    with create_session() as session:
        run = trigger_dag("cdc_shop", triggered_by=by, run_type=kind, logical_date=date, replace_microseconds=False,
                          session=session)
        interval = {"data_interval_start": run.data_interval_start, "data_interval_end": run.data_interval_end}
        context = {"dag_run": run, "dag": dag, "params": {}, **interval}
        return str(window_of(context)), run.run_after.isoformat()

now, day = datetime.now(UTC), datetime(2026, 1, 15, 12, 30, tzinfo=UTC)
by_hand = DagRunType.MANUAL, DagRunTriggeredByType.CLI
by_dag = DagRunType.OPERATOR_TRIGGERED, DagRunTriggeredByType.OPERATOR
print("RESULT " + json.dumps({
    "command": window(*by_hand, None), "operator": window(*by_dag, now),
    "command with a date": window(*by_hand, day), "operator with a date": window(*by_dag, day + timedelta(days=1)),
}))
"""


def parse(python: Callable[..., Any], **environ: str) -> dict[str, Any]:
    environ["AIRFLOW__OPENLINEAGE__DISABLED"] = "True"  # else its provider imports it
    return result(python(PARSE, str(REPOSITORY / "dags"), json.dumps(HEAVY), **environ))


def result(done: Any) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def test_each_pipeline_file_is_a_dag_the_same_each_time_parsing_imports_nothing_heavy_and_the_plugin_is_loaded_once(
    write_pipeline: Callable[..., Path], python: Callable[..., Any]
) -> None:
    write_pipeline("shop")
    write_pipeline("bank", file="other.yml")
    found = parse(python, PYTHONHASHSEED="1")
    assert found["errors"] == {}
    assert sorted(found["dags"]) == [
        f"cdc_{name}{suffix}" for name in ("bank", "shop") for suffix in ("", "_replay", "_snapshot", "_verify")
    ]
    assert found["dags"]["cdc_shop"] == [
        "extract", "plan", "merge", "to_main.filter", "to_main.write", "to_main.quality", "to_main.commit"
    ]  # fmt: skip
    assert found["dags"]["cdc_shop_replay"] == found["dags"]["cdc_shop"][1:]
    assert found["heavy"] == []
    # An Airflow may have the package and its folder of plugins, too.
    again = parse(python, PYTHONHASHSEED="2", AIRFLOW__CORE__PLUGINS_FOLDER=str(REPOSITORY / "plugins"))
    assert again["serialized"] == found["serialized"]
    assert ["lockstep" in source for source in again["plugins"]] == [True]
    assert (again["plugin_errors"], again["twice"]) == ({}, [])


def test_a_broken_file_breaks_only_its_own_dag_and_says_what_where_and_what_to_do(
    write_pipeline: Callable[..., Path], python: Callable[..., Any]
) -> None:
    write_pipeline("shop")
    broken = write_pipeline("bank", shedule={})
    twice = write_pipeline("shop", file="zz_copy.yaml")
    taken = write_pipeline("shop_replay")
    state = result(python(SYNC_AND_STATE, str(REPOSITORY / "dags")))
    assert state["dags"]["cdc_shop"] == [False, False]
    assert "cdc_bank" not in state["dags"]
    assert list(state["errors"]) == ["lockstep_pipeline_errors.py"]
    text = state["errors"]["lockstep_pipeline_errors.py"]
    for part in (
        str(broken),
        "shedule",
        "did you mean 'schedule'",
        str(twice),
        str(taken),
        "'cdc_shop_replay'",
        "airflow.pipelines",
    ):
        assert part in text

    broken.unlink()
    twice.unlink()
    taken.unlink()
    assert result(python(SYNC_AND_STATE, str(REPOSITORY / "dags")))["errors"] == {}


@pytest.mark.matrix
def test_a_run_triggered_by_the_command_line_or_by_another_dag_has_the_window_of_one_by_the_form(
    write_pipeline: Callable[..., Path], python: Callable[..., Any]
) -> None:
    """Airflow gives such runs the last interval before the trigger, and TriggerDagRunOperator a date that nobody has
    chosen."""
    write_pipeline("shop")
    result(python(SYNC_AND_STATE, str(REPOSITORY / "dags")))
    for window, asked in result(python(TRIGGER)).values():
        assert window == f"[the beginning, {asked})"
