"""What Airflow gives to a task, where a test calls the task itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

DAG_OF_OURS = SimpleNamespace(tags=["lockstep:pipeline"])
FIVE, SIX = (datetime(2026, 11, 21, hour, tzinfo=UTC) for hour in (5, 6))


def task_context(
    task_id: str,
    *,
    run_id: str = "r",
    asked: datetime = SIX,
    logical_date: datetime | None = None,
    params: Mapping[str, Any] | None = None,
    **ti: Any,
) -> Any:
    """Of a run of `cdc_shop`: by hand, or scheduled for the interval from FIVE to SIX if the date says so.

    asked: when the run was triggered. ti: what else the task instance has, or has otherwise.
    """
    mine = {"dag_id": "cdc_shop", "run_id": run_id}
    run = {"run_type": "scheduled" if logical_date else "manual", "logical_date": logical_date, "run_after": asked}
    instance = {"task_id": task_id, "map_index": 0, "try_number": 1, **ti}
    context = {"dag_run": SimpleNamespace(**mine, **run, start_date=asked if logical_date else None)}
    interval = {"data_interval_start": FIVE, "data_interval_end": SIX} if logical_date else {}
    return {
        **context,
        "ti": SimpleNamespace(**mine, **instance),
        "dag": DAG_OF_OURS,
        "params": params or {},
        **interval,
    }
