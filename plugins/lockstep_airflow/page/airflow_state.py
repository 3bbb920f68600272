"""What Airflow's own database knows of a pipeline's DAGs: switched off or on, and how runs ended.

Read only, in the web server's process. Keeps true: the page works without it; what Airflow's database does not answer
is left out, and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DagState:
    """paused: of the DAG. failed_run: id of its latest run that has ended, if that run failed; otherwise None."""

    paused: bool
    failed_run: str | None


def dags(dag_ids: Collection[str]) -> dict[str, DagState]:
    """The states of the DAGs that Airflow knows."""
    states: dict[str, DagState] = {}
    try:
        with create_session(scoped=False) as session:
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
                states[dag_id] = DagState(bool(paused), latest.run_id if latest is not None and failed else None)
    except SQLAlchemyError:
        log.exception("Airflow's database did not answer; the page leaves out the state of DAGs")
    return states
