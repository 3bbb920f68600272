"""Lockstep's tasks in a DAG that somebody else wrote."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from pyiceberg.catalog import load_catalog

from cdc_core.errors import UsageError
from examples.shop.airflow_env import REPOSITORY, airflow_command
from lockstep.airflow import Apply, Extract, Snapshot, Verify, pipeline_tasks
from lockstep_airflow.run_context import is_dry_run, run_name_of
from tests.dags.airflow_line import AirflowLine, fill
from tests.dags.task_context import task_context

OF_OTHERS = """
from datetime import datetime
from airflow.sdk import DAG, Param, task
from lockstep.airflow import Apply, Extract

@task(trigger_rule="none_failed")
def report(found=None):
    print("REPORTED")

# Params of their own, with names that Lockstep's forms have, too.
params = {"dry_run": Param(True), "tables": Param("theirs"), "lockstep": Param({}, type="object")}
with DAG("of_others", schedule=None, start_date=datetime(2026, 1, 1), params=params):
    report.override(task_id="before")() >> Extract(FILE) >> Apply(FILE, group_id="to_the_lake") >> report()
"""


TO_MAIN = [f"to_main.{task}" for task in ("filter", "write", "quality", "commit")]


def dag(file: Path) -> DAG:
    made = DAG("of_others", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))
    made.fileloc = str(file.parent / "dag.py")
    return made


def test_a_group_has_the_tasks_of_the_pipelines_dag_and_each_knows_its_plan(
    write_pipeline: Callable[..., Path],
) -> None:
    first, second = write_pipeline("shop"), write_pipeline("books")
    with dag(first) as made:
        pipeline_tasks("shop.yaml") >> pipeline_tasks(second, group_id="others")
    tasks = {task.task_id: task for task in made.tasks}
    assert set(tasks) == {
        f"{group}.{task}" for group in ("shop", "others") for task in ("extract", "plan", "merge", *TO_MAIN)
    }
    assert tasks["others.extract"].upstream_task_ids == {"shop.to_main.commit"}
    assert tasks["others.to_main.filter"].upstream_task_ids == {"others.merge"}
    assert (tasks["others.merge"].plan_task, tasks["others.to_main.commit"].plan_task) == ("others.plan",) * 2
    assert tasks["shop.plan"].target_tasks == {"main": [f"shop.{task}" for task in TO_MAIN]}
    assert {task.retries for task in made.tasks} == {5}, "as the pipeline file says"


def test_parts_of_a_pipeline_are_groups_that_can_be_put_in_any_order(write_pipeline: Callable[..., Path]) -> None:
    file = write_pipeline("shop")
    with dag(file) as made:
        Extract(file) >> [Apply(file), Snapshot(file)] >> Verify(file, default_args={"retries": 0})
    tasks = {task.task_id: task for task in made.tasks}
    assert tasks["apply_shop.plan"].upstream_task_ids == {"extract_shop.extract"}
    assert tasks["verify_shop.verify"].upstream_task_ids == {"apply_shop.to_main.commit", "snapshot_shop.copy"}
    assert (tasks["verify_shop.repair"].retries, tasks["apply_shop.merge"].retries) == (0, 5)


def test_a_group_needs_a_dag_and_a_pipeline(write_pipeline: Callable[..., Path]) -> None:
    file = write_pipeline("shop")
    with pytest.raises(UsageError, match="outside a DAG"):
        pipeline_tasks(file)
    with dag(file), pytest.raises(UsageError, match=r"missing\.yaml"):
        pipeline_tasks("missing.yaml")


def test_params_of_others_mean_nothing_to_lockstep_and_a_run_bears_the_name_of_its_dag() -> None:
    context = task_context("extract", params={"dry_run": True})
    assert is_dry_run(context)
    context["dag"] = DAG("of_others", schedule=None, tags=["lockstep"])
    assert not is_dry_run(context)
    assert is_dry_run({**context, "params": {"lockstep": {"dry_run": True}}})
    assert run_name_of("shop", "cdc_shop_replay", "r") == "shop_replay-r"
    assert run_name_of("shop", "of_others", "r") == "shop-of_others-r"


def test_a_dag_of_others_runs_a_pipeline_between_its_own_tasks(
    line: Callable[..., AirflowLine], source_database: Any, pipelines: Path, tmp_path: Path
) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    lake = {"name": "lake", "kind": "iceberg", "namespace": "shop", "tables": {"*": {}}, "catalog": catalog}
    run = line("grouped", targets=[lake])
    file = tmp_path / "dags" / "of_others.py"
    file.parent.mkdir()
    file.write_text(OF_OTHERS.replace("FILE", repr(str(pipelines / "grouped.yaml"))))

    environ = run.environ | {"AIRFLOW__CORE__DAGS_FOLDER": str(file.parent)}

    def once() -> tuple[str, dict[str, list[str]]]:
        ran = subprocess.run(
            airflow_command(["dags", "test", "of_others"]),
            env=environ, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        output = ran.stdout + ran.stderr
        assert ran.returncode == 0, output[-6000:]
        return output, run.states("of_others")

    fill(source_database, 40)
    output, states = once()
    assert {state for of_task in states.values() for state in of_task} == {"success"}, output[-6000:]
    rows = load_catalog("lake", **catalog).load_table("shop.t").scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == list(range(40))
    # Nothing to apply: the group's tasks are skipped, and what others put after them is not.
    output, states = once()
    assert states["to_the_lake.to_lake.commit"] == ["skipped"], json.dumps(states)
    assert states["report"] == ["success"], output[-6000:]
