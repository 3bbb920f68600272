"""What Airflow sees of the pipelines folder: one DAG a file, its shape, and what a broken file breaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.shop.airflow_env import REPOSITORY

HEAVY = (
    "pyspark", "numba", "pandas", "boto3", "pyarrow", "great_expectations", "pymysqlreplication", "pymysql",
    "duckdb", "cdc_core.extract", "cdc_core.meta", "cdc_core.stage", "cdc_core.apply",
)  # fmt: skip

PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
bag = DagBag(sys.argv[1])
print("RESULT " + json.dumps({
    "dags": {dag_id: [task.task_id for task in dag.tasks] for dag_id, dag in bag.dags.items()},
    "files": {dag_id: dag.fileloc for dag_id, dag in bag.dags.items()},
    "serialized": {dag_id: DagSerialization.to_dict(dag) for dag_id, dag in bag.dags.items()},
    "errors": bag.import_errors,
    "heavy": [name for name in json.loads(sys.argv[2]) if name in sys.modules],
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


def parse(python: Callable[..., Any], *, folder: Path = REPOSITORY / "dags", **environ: str) -> dict[str, Any]:
    return result(python(PARSE, str(folder), json.dumps(HEAVY), **environ))


def result(done: Any) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def test_each_pipeline_file_is_a_dag_the_same_each_time_and_parsing_imports_nothing_heavy(
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
    assert parse(python, PYTHONHASHSEED="2")["serialized"] == found["serialized"]


def test_a_broken_file_breaks_only_its_own_dag_and_says_what_where_and_what_to_do(
    write_pipeline: Callable[..., Path], python: Callable[..., Any]
) -> None:
    write_pipeline("shop")
    broken = write_pipeline("bank", more="shedule: nonsense\n")
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
        "airflow.pipeline_twice",
    ):
        assert part in text

    broken.unlink()
    twice.unlink()
    taken.unlink()
    assert result(python(SYNC_AND_STATE, str(REPOSITORY / "dags")))["errors"] == {}


def test_the_plugin_is_loaded_once_also_when_the_plugins_folder_is_named(python: Callable[..., Any]) -> None:
    code = """
import json, sys
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
print("RESULT " + json.dumps({"plugins": [str(p.source) for p in plugins if p.name == "lockstep"],
    "errors": plugins_manager.get_import_errors() if hasattr(plugins_manager, "get_import_errors") else errors,
    "twice": sorted(name for name in sys.modules if name in ("plugin", "sensor", "operators", "render", "specs"))}))
"""
    found = result(python(code, AIRFLOW__CORE__PLUGINS_FOLDER=str(REPOSITORY / "plugins")))
    assert len(found["plugins"]) == 1, found
    assert "lockstep" in found["plugins"][0]
    assert not found["errors"]
    assert found["twice"] == []
