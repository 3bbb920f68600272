"""Which runs look old changes up in the sources before they are planned. Looking up is a stand-in here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_core import config
from cdc_core.apply import plan as planning
from cdc_core.meta import Meta
from cdc_core.repair import reverse_query
from cdc_core.repair.reverse_query import Queried
from cdc_core.windows import parse_moment
from lockstep_airflow import operators
from lockstep_airflow.operators import PlanOperator

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
