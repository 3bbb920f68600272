"""What Airflow's own database knows of a pipeline's DAGs: switched off or on, how runs ended, when tasks ran.

Read only, in the web server's process. Keeps true: the page works without it; what Airflow's database does not answer
is left out, and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import and_, or_, select
from sqlalchemy.exc import SQLAlchemyError

from cdc_core.model.readable import moment
from cdc_core.model.windows import to_us

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DagState:
    """paused: of the DAG. failed_run: id of its latest run that has ended, if that run failed; otherwise None."""

    paused: bool
    failed_run: str | None


@dataclass(frozen=True, slots=True)
class TaskRun:
    """A task instance of a DAG run, its latest try. start_us, end_us: 0 where it has not begun or ended."""

    task_id: str
    map_index: int
    state: str
    tries: int
    start_us: int
    end_us: int


RunKey = tuple[str, str]
"""DAG id and run id."""


def dags(dag_ids: Collection[str]) -> dict[str, DagState]:
    """Of the DAGs that Airflow knows."""
    found: dict[str, DagState] = {}

    def ask(session: Any) -> None:
        for dag_id, paused in session.execute(
            select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(dag_ids))
        ):
            latest = session.execute(
                select(DagRun.run_id, DagRun.state)
                .where(DagRun.dag_id == dag_id, DagRun.state.in_(("success", "failed")))
                .order_by(DagRun.run_after.desc(), DagRun.id.desc())
                .limit(1)
            ).first()
            failed = latest is not None and str(latest.state) == "failed"
            found[dag_id] = DagState(bool(paused), latest.run_id if latest is not None and failed else None)

    _asked(ask)
    return found


def tasks(runs: Iterable[RunKey]) -> dict[RunKey, list[TaskRun]]:
    """The tasks of DAG runs that have begun, in the order in which they did."""
    found: dict[RunKey, list[TaskRun]] = {}
    wanted = [and_(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id) for dag_id, run_id in runs]
    if not wanted:
        return found

    def ask(session: Any) -> None:
        for row in session.execute(
            select(
                TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index,
                TaskInstance.state, TaskInstance.try_number, TaskInstance.start_date, TaskInstance.end_date,
            ).where(or_(*wanted)).order_by(TaskInstance.start_date, TaskInstance.task_id)
        ):  # fmt: skip
            found.setdefault((row.dag_id, row.run_id), []).append(
                TaskRun(
                    row.task_id, row.map_index, str(row.state or "waiting"), row.try_number,
                    _us(row.start_date), _us(row.end_date),
                )
            )  # fmt: skip

    _asked(ask)
    return found


def task_documents(found: list[TaskRun], now_us: int, *, link: str) -> list[dict[str, Any]]:
    """For the page: each task's part of the run, in thousandths of its length, and the path to its log."""
    begun = [one for one in found if one.start_us]
    if not begun:
        return []
    first = min(one.start_us for one in begun)
    last = max(max(one.end_us or now_us for one in begun), first + 1)
    return [
        {
            "task": one.task_id + (f"[{one.map_index}]" if one.map_index >= 0 else ""),
            "state": one.state,
            "tries": one.tries,
            "start": moment(one.start_us),
            "seconds": max(0, (one.end_us or now_us) - one.start_us) / 1e6,
            "offset": round((one.start_us - first) * 1000 / (last - first), 1),
            "length": round(max(4.0, ((one.end_us or now_us) - one.start_us) * 1000 / (last - first)), 1),
            "link": f"{link}/tasks/{one.task_id}" + (f"/mapped/{one.map_index}" if one.map_index >= 0 else ""),
        }
        for one in begun
    ]


def _us(when: datetime | None) -> int:
    return to_us(when) if when is not None else 0


def _asked(ask: Any) -> None:
    try:
        with create_session(scoped=False) as session:
            ask(session)
    except SQLAlchemyError:
        log.exception("Airflow's database did not answer; the page leaves out the state of DAGs and tasks")
