"""One setting of an Airflow that has the package shows the DAGs of a folder of pipeline files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag

from lockstep_airflow.bundle import CLASSPATH, configured_pipelines
from lockstep_airflow.page.routes import _folder


def bundles(pipelines: Path) -> list[dict[str, Any]]:
    return [{"name": "lockstep", "classpath": CLASSPATH, "kwargs": {"pipelines": str(pipelines)}}]


def test_one_setting_shows_the_dags_the_page_and_what_is_wrong_with_a_file(
    pipelines: Path, write_pipeline: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests' own Airflow names another folder: here the bundle is the only setting.
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(bundles(pipelines)))
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path / "bundles"))
    monkeypatch.setenv("LOCKSTEP_PIPELINES", "")
    write_pipeline()
    bundle = DagBundlesManager().get_bundle("lockstep")
    bundle.initialize()
    assert str(_folder()) == str(pipelines)
    assert {path.name for path in bundle.path.glob("*.py")} == {
        "lockstep_pipeline_errors.py", "lockstep_pipelines.py"
    }  # fmt: skip
    for broken in (False, True):
        if broken:
            (pipelines / "odd.yaml").write_text("pipeline: odd\nsurces: []\n")
            bundle.refresh()
        bag = DagBag(str(bundle.path))
        assert sorted(bag.dags) == ["cdc_shop", "cdc_shop_replay", "cdc_shop_snapshot", "cdc_shop_verify"]
        assert ["surces" in error for error in bag.import_errors.values()] == [True] * broken


def test_the_folder_of_a_bundle_is_found_among_others() -> None:
    others = [{"name": "dags-folder", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {}}]
    assert configured_pipelines(others) is None
    assert configured_pipelines([*others, *bundles(Path("/p"))]) == "/p"
    assert configured_pipelines(None) is None
