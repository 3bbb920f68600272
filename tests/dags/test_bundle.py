"""One setting of an Airflow that has the package shows the DAGs of a folder of pipeline files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep_airflow.bundle import CLASSPATH, configured_pipelines

SHOWN = """
import json
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag
bundle = DagBundlesManager().get_bundle("lockstep")
bundle.initialize()
bundle.refresh()
bag = DagBag(str(bundle.path))
from lockstep_airflow.page.routes import _folder
print("RESULT " + json.dumps({"dags": sorted(bag.dags), "errors": list(bag.import_errors.values()),
    "files": sorted(path.name for path in bundle.path.glob("*.py")), "page": str(_folder())}))
"""


DAGS = ["cdc_shop", "cdc_shop_replay", "cdc_shop_snapshot", "cdc_shop_verify"]


def bundles(pipelines: Path) -> list[dict[str, Any]]:
    return [{"name": "lockstep", "classpath": CLASSPATH, "kwargs": {"pipelines": str(pipelines)}}]


def test_one_setting_shows_the_dags_the_page_and_what_is_wrong_with_a_file(
    python: Any, pipelines: Path, write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    write_pipeline()
    # The tests' own Airflow names another folder: here the bundle is the only setting.
    setting = {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles(pipelines)),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(tmp_path / "bundles"),
        "LOCKSTEP_PIPELINES": "",
    }

    def shown() -> Any:
        done = python(SHOWN, **setting)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert lines, done.stdout + done.stderr
        return json.loads(lines[-1].removeprefix("RESULT "))

    found = shown()
    assert found["dags"] == DAGS
    assert (found["errors"], found["page"]) == ([], str(pipelines))
    assert found["files"] == ["lockstep_pipeline_errors.py", "lockstep_pipelines.py"]
    (pipelines / "odd.yaml").write_text("pipeline: odd\nsurces: []\n")
    found = shown()
    assert found["dags"] == DAGS
    assert "surces" in found["errors"][0]


def test_the_folder_of_a_bundle_is_found_among_others() -> None:
    others = [{"name": "dags-folder", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {}}]
    assert configured_pipelines(others) is None
    assert configured_pipelines([*others, *bundles(Path("/p"))]) == "/p"
    assert configured_pipelines(None) is None
