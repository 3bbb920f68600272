"""Lockstep's tasks in a DAG that somebody else wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import DownstreamTasksSkipped
from pyiceberg.catalog import load_catalog

from cdc_core.errors import UsageError
from examples.shop.airflow_env import REPOSITORY, airflow_command
from lockstep.airflow import Apply, Extract, Snapshot, Verify, pipeline_tasks
from lockstep_airflow.run_context import is_dry_run, run_name_of
from tests.dags.airflow_line import AirflowLine, fill
from tests.dags.task_context import task_context
from tests.dags.test_dag_files import HEAVY
from tests.dags.test_plan_task import NOW, staged_line

OF_OTHERS = """
from datetime import datetime
from airflow.sdk import DAG, Param, task
from lockstep.airflow import Apply, Extract, Verify

@task(trigger_rule="none_failed")
def report(found=None):
    print("REPORTED")

# Params of their own, with names that Lockstep's forms have, too.
params = {"dry_run": Param(True), "tables": Param("theirs"), "lockstep": Param({}, type="object")}
with DAG("of_others", schedule=None, start_date=datetime(2026, 1, 1), params=params):
    before, applied = report.override(task_id="before")(), Apply(FILE, group_id="to_the_lake")
    before >> Extract(FILE) >> applied >> Verify(FILE) >> report()
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


def test_a_file_that_imports_them_is_parsed_without_anything_heavy() -> None:
    program = "import json, sys, lockstep.airflow; print(json.dumps([name for name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert set(json.loads(done.stdout.splitlines()[-1])).isdisjoint(HEAVY)


def test_parts_of_a_pipeline_are_groups_that_can_be_put_in_any_order(write_pipeline: Callable[..., Path]) -> None:
    file = write_pipeline("shop")
    with dag(file) as made:
        Extract(file) >> [Apply(file), Snapshot(file)] >> Verify(file, default_args={"retries": 0})
    tasks = {task.task_id: task for task in made.tasks}
    assert tasks["apply_shop.plan"].upstream_task_ids == {"extract_shop.extract"}
    assert tasks["verify_shop.verify"].upstream_task_ids == {"apply_shop.to_main.commit", "snapshot_shop.copy"}
    assert (tasks["verify_shop.repair"].retries, tasks["apply_shop.merge"].retries) == (0, 5)


@pytest.mark.parametrize("given", [{}, {"on_failure_callback": [print, repr]}])
def test_receivers_of_problems_and_callbacks_of_others_are_called_both(
    write_pipeline: Callable[..., Path], given: dict[str, Any]
) -> None:
    file = write_pipeline("shop", airflow={"notify": [{"use": "os:getcwd"}]})
    with dag(file) as made:
        made.default_args["on_failure_callback"] = print
        pipeline_tasks(file, default_args=given)
    for name in ("extract", "plan", "to_main.commit"):
        ours, *theirs = made.get_task(f"shop.{name}").on_failure_callback
        assert ours.keywords == {"given_up": True}
        assert theirs == given.get("on_failure_callback", [print])


@pytest.mark.parametrize("prefixed", [True, False])
def test_a_run_with_nothing_to_apply_skips_no_task_of_others(
    write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, prefixed: bool
) -> None:
    file = write_pipeline("shop")
    line = staged_line(file, monkeypatch)
    line.done("before")
    line.meta.close()
    with dag(file) as made:
        pipeline_tasks(file, prefix_group_id=prefixed) >> EmptyOperator(task_id="report", trigger_rule="all_done")
    prefix = "shop." if prefixed else ""
    context = task_context("plan", asked=NOW, map_index=-1, xcom_push=lambda key, value: None)
    with pytest.raises(DownstreamTasksSkipped) as caught:
        made.get_task(f"{prefix}plan").execute(context)
    assert set(caught.value.tasks) == {f"{prefix}{task}" for task in ("merge", *TO_MAIN)}


def test_a_group_needs_a_dag_and_a_pipeline(write_pipeline: Callable[..., Path]) -> None:
    file = write_pipeline("shop")
    with pytest.raises(UsageError, match="outside a DAG"):
        pipeline_tasks(file)
    with dag(file), pytest.raises(UsageError, match=r"missing\.yaml"):
        pipeline_tasks("missing.yaml")
    for group in (Apply, Verify):  # one without tasks would order nothing in the DAG
        with dag(file), pytest.raises(UsageError, match="has no targets"):
            group(write_pipeline("files", targets=[]))


def test_params_of_others_mean_nothing_to_lockstep_and_a_run_bears_the_name_of_its_dag() -> None:
    context = task_context("extract", params={"dry_run": True})
    assert is_dry_run(context)
    context["dag"] = DAG("of_others", schedule=None, tags=["lockstep"])
    assert not is_dry_run(context)
    assert is_dry_run({**context, "params": {"lockstep": {"dry_run": True}}})
    for wrong in ({"dry-run": True}, {"dry_run": True, "requeue": "r"}, "dry_run"):
        with pytest.raises(UsageError, match="No task has a param"):
            is_dry_run({**context, "params": {"lockstep": wrong}})
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
    assert states.pop("verify_grouped.repair") == ["skipped"], output[-6000:]
    assert {state for of_task in states.values() for state in of_task} == {"success"}, output[-6000:]
    rows = load_catalog("lake", **catalog).load_table("shop.t").scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == list(range(40))
    # Nothing to apply: the group's tasks are skipped, and what others put after them is not.
    output, states = once()
    assert states["to_the_lake.to_lake.commit"] == ["skipped"], json.dumps(states)
    assert states["verify_grouped.verify"] == states["verify_grouped.repair"] == ["skipped"], json.dumps(states)
    assert states["report"] == ["success"], output[-6000:]
