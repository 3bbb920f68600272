"""What a run is about: its window by how it was triggered, whether it looks old changes up in the sources before it is
planned, and what it says if it takes nothing. Looking up is a stand-in here."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_core import config
from cdc_core.apply import plan as planning
from cdc_core.meta import Meta
from cdc_core.repair import reverse_query
from cdc_core.repair.reverse_query import Queried
from cdc_core.windows import parse_moment, to_us
from lockstep_airflow import operators
from lockstep_airflow.operators import PlanOperator
from lockstep_airflow.run_context import window_of
from lockstep_airflow.window import RunWindow

NOW = parse_moment("2026-01-01T00:00:00Z")


def test_only_a_run_without_a_window_asks_the_source_and_before_it_is_planned(
    write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_pipeline("shop", more="reverse_query: {older_than: 60s}\n")
    other = write_pipeline("bank")
    for name in ("SOURCE_DB", "TARGET_DB"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "mysql://u:p@127.0.0.1:1/")
    done: list[str] = []

    def noted(what: str, answer: object) -> Callable[..., object]:
        def step(*_: object, **__: object) -> object:
            done.append(what)
            return answer

        return step

    monkeypatch.setattr(reverse_query, "look_up", noted("look up", Queried()))
    monkeypatch.setattr(planning, "plan", noted("plan", None))
    monkeypatch.setattr(operators, "_planned", lambda *_: {"targets": {"main": 1}})
    run = SimpleNamespace(
        dag_id="cdc_shop", run_id="r", run_type="manual", logical_date=None, run_after=NOW, start_date=None
    )
    ti = SimpleNamespace(dag_id="cdc_shop", run_id="r", task_id="plan", map_index=-1, try_number=1)

    def plan(of: Path, **params: Any) -> list[str]:
        done.clear()
        Meta.open(config.load(of).meta.url, upgrade=True).close()
        PlanOperator(task_id="plan", file=str(of), target_tasks={"main": []}).execute(
            {"dag_run": run, "ti": ti, "params": params}  # type: ignore[typeddict-item]
        )
        return list(done)

    assert plan(file) == ["look up", "plan"]
    assert plan(file, window_end="2025-12-31T00:00:00Z") == ["plan"]
    assert plan(other) == ["plan"]


@pytest.mark.parametrize("kind", ["manual", "operator_triggered"])
def test_a_run_that_is_triggered_without_a_date_goes_up_to_now_also_by_another_dag(
    write_pipeline: Callable[..., Path], kind: str
) -> None:
    """TriggerDagRunOperator fills the current time in, and Airflow the last interval."""
    pipeline = config.load(write_pipeline("shop"))
    three, four, five, asked = (
        datetime.fromisoformat(f"2026-01-01T{time}Z") for time in ("03:00:00", "04:00:00", "05:00:00", "05:12:07")
    )

    def window(logical_date: datetime | None) -> RunWindow:
        run = SimpleNamespace(run_type=kind, logical_date=logical_date, run_after=asked, start_date=asked)
        context: Any = {"dag_run": run, "params": {}, "data_interval_start": four, "data_interval_end": five}
        return window_of(context, pipeline)

    assert window(asked) == window(None) == RunWindow(0, to_us(asked), open=True)
    assert window(four.replace(minute=30)) == RunWindow(to_us(three), to_us(four))
