"""What a run is about: its window by how it was triggered, whether it looks old changes up in the sources before it is
planned, and what it says if it takes nothing. Looking up is a stand-in here."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped

from cdc_core import config
from cdc_core.meta import Meta
from cdc_core.model.windows import parse_moment, to_us
from cdc_core.operations import pipeline_run
from cdc_core.operations.apply import plan as planning
from cdc_core.operations.apply import retention
from cdc_core.operations.repair.reverse_query import Queried
from lockstep_airflow import run_tasks
from lockstep_airflow.pipelines import dags_of
from lockstep_airflow.run_context import window_of
from lockstep_airflow.run_tasks import PlanOperator, _positions
from lockstep_airflow.window import RunWindow
from tests.dags.made_pipelines import TARGET
from tests.dags.task_context import DAG_OF_OURS, task_context
from tests.lab.made_batches import manifest
from tests.lab.made_line import Line
from tests.lab.opened import opened_line

NOW = parse_moment("2026-01-01T00:00:00Z")


def test_only_a_run_without_a_window_asks_the_source_and_before_it_is_planned(
    write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [TARGET | {"on_missing_table": "create"}]
    file = write_pipeline("shop", reverse_query="older_than: 60s", targets=targets)
    other = write_pipeline("bank", targets=targets)
    for name in ("SOURCE_DB", "TARGET_DB"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "mysql://u:p@127.0.0.1:1/")
    done: list[str] = []

    def noted(what: str, answer: object) -> Callable[..., object]:
        def step(*_: object, **__: object) -> object:
            done.append(what)
            return answer

        return step

    monkeypatch.setattr(pipeline_run, "look_up", noted("look up", Queried()))
    monkeypatch.setattr(pipeline_run, "create_missing", noted("create", []))
    monkeypatch.setattr(planning, "plan", noted("plan", None))
    monkeypatch.setattr(run_tasks, "_planned", lambda *_: {"targets": {"main": 1}})

    def plan(of: Path, **params: Any) -> list[str]:
        done.clear()
        Meta.open(config.load(of).meta.url, "shop", upgrade=True).close()
        PlanOperator(task_id="plan", file=str(of), target_tasks={"main": []}).execute(
            task_context("plan", asked=NOW, params=params, map_index=-1)
        )
        return list(done)

    assert plan(file) == ["create", "look up", "plan"]
    assert plan(file, window_end="2025-12-31T00:00:00Z") == ["plan"]
    assert plan(other) == ["create", "plan"]


@pytest.mark.parametrize("kind", ["manual", "operator_triggered", "asset_triggered", "asset_materialization"])
def test_a_run_that_is_triggered_goes_up_to_now_whatever_date_and_interval_airflow_gives_it(kind: str) -> None:
    four, five, asked = (datetime.fromisoformat(f"2026-01-01T{time}Z") for time in ("04:00:00", "05:00:00", "05:12:07"))

    def window(run_type: str, logical_date: datetime | None, **params: str) -> RunWindow:
        run = SimpleNamespace(run_type=run_type, logical_date=logical_date, run_after=asked, start_date=asked)
        interval = {"data_interval_start": four, "data_interval_end": five}
        context: Any = {"dag": DAG_OF_OURS, "dag_run": run, "params": params, **interval}
        return window_of(context)

    for date in (None, asked, four, four.replace(minute=30)):
        assert window(kind, date) == RunWindow(0, to_us(asked), open=True)
    assert window(kind, four, window_end="2026-01-01T05:00:00Z") == RunWindow(0, to_us(five))
    for scheduled in ("scheduled", "backfill"):
        assert window(scheduled, four) == RunWindow(to_us(four), to_us(five))


STAGED: dict[str, Any] = {"source": "shop_db", "pipeline": "shop", "tables": {"shop.orders": 3}}


def staged_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    """The pipeline of a file, with one batch that nobody has applied."""
    for name in ("SOURCE_DB", "TARGET_DB"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "mysql://u:p@127.0.0.1:1/")
    parsed = config.load(file)
    root = Path(parsed.stage.uri.removeprefix("file://")).parent
    line = Line.open(root, **json.loads(parsed.model_dump_json()))
    line.stage(manifest(0, **STAGED))
    return line


def test_a_run_of_a_name_that_was_committed_before_says_what_it_leaves(
    write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a DAG run that was deleted and triggered again under its name."""
    file = write_pipeline("shop")
    line = staged_line(file, monkeypatch)
    line.done("shop-again")
    line.stage(manifest(1, **STAGED))
    task = dags_of(file.parent)["cdc_shop"].get_task("plan")
    context = task_context("plan", run_id="again", asked=NOW, map_index=-1, xcom_push=lambda key, value: None)
    with caplog.at_level("INFO"), pytest.raises(DownstreamTasksSkipped):
        task.execute(context)
    assert "takes nothing more; 1 batches that were staged since are left to the next run" in caplog.text
    assert "already consumed" not in caplog.text
    line.done("next")
    caplog.clear()
    with caplog.at_level("INFO"), pytest.raises(DownstreamTasksSkipped):
        task.execute(context)
    assert "every staged batch in range is already consumed" in caplog.text
    line.meta.close()


def test_a_task_whose_plan_task_says_nothing_asks_the_plan_and_not_only_whether_it_said_something(
    write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its XCom is gone where the plan task was marked as successful, or Airflow's database was cleaned. A run must not
    end green as if it had no batches."""
    file = write_pipeline("shop")
    line = staged_line(file, monkeypatch)
    task = dags_of(file.parent)["cdc_shop"].get_task("to_main.commit")

    def commits(run_id: str) -> Any:
        return task.execute(
            task_context("commit", run_id=run_id, asked=NOW, map_index=-1, xcom_pull=lambda task_ids: None)
        )

    with pytest.raises(AirflowFailException, match=r"run\.clear_task"):
        commits("unplanned")
    line.plan("shop-planned")
    with pytest.raises(AirflowFailException, match=r"run\.clear_task"):
        commits("planned")
    line.done("shop-next")
    line.plan("shop-idle")
    with pytest.raises(AirflowSkipException, match="no batches for main"):
        commits("idle")
    line.meta.close()


def test_a_commit_that_is_repeated_after_a_purge_still_knows_from_where_to_where_it_applied(tmp_path: Path) -> None:
    line = Line.open(tmp_path)
    with line.meta:
        batches = [manifest(number, window=number) for number in range(3)]
        line.stage(*batches)
        run = line.done("first")
        ends = {"shop": [str(batches[0].begin.position), str(batches[2].end.position)]}
        assert _positions(line.meta, run, "t") == ends
        retention.purge(opened_line(line), cutoff_us=1 << 60)
        assert _positions(line.meta, run, "t") == ends
        retention.purge(opened_line(line), cutoff_us=1 << 60, forget_us=1 << 60)
        assert _positions(line.meta, run, "t") == {}
