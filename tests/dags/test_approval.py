"""The DAG that switches an application, under Airflow's own scheduler: nothing is switched before somebody approves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.move.application import NEW, OLD, Application, Layout
from tests.dags.airflow_server import AirflowServer, serving
from tests.lab.pipeline_file import pipeline_document, pipeline_text, sharded

pytestmark = [pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(1800)]

SWITCH = """#!/bin/sh
if [ "$LOCKSTEP_CUTOVER_DIRECTION" = there ]; then echo new > {to}.next; else echo old > {to}.next; fi
mv {to}.next {to}
"""


@dataclass(frozen=True)
class Moved:
    airflow: AirflowServer
    to: Path
    application: Application

    @property
    def place(self) -> str:
        return self.to.read_text().strip()


@pytest.fixture
def moved(mariadb: Any, mariadb_target: Any, tmp_path: Path) -> Iterator[Moved]:
    folder, to = tmp_path / "pipelines", tmp_path / "to"
    folder.mkdir()
    document = pipeline_document(
        tmp_path, "moved", pipeline="moved", source="name: moved, connection: 'airflow:old', start: latest",
        targets=[sharded("shards", "airflow:new", "orders", "moved_{d}", databases=2)], snapshot="mode: initial",
        limits="lease_s: 5", airflow="poke_interval_s: 1, retry_delay_s: 1",
        cutover={"switch_with": str(tmp_path / "switch.sh"), "budget_s": 30, "max_lag_s": 30},
    )  # fmt: skip
    (folder / "moved.yaml").write_text(pipeline_text(document))
    (tmp_path / "switch.sh").write_text(SWITCH.format(to=to))
    (tmp_path / "switch.sh").chmod(0o755)
    to.write_text(OLD)
    connections = {"old": mariadb.url, "new": mariadb_target.url}
    application = Application(
        {OLD: mariadb, NEW: mariadb_target}, to, Layout("moved"), ["orders"], per_s=50, rest={1000: 1}
    )
    mariadb.run("CREATE DATABASE moved", "CREATE TABLE moved.orders (id INT PRIMARY KEY, n INT NOT NULL)",
                "INSERT INTO moved.orders VALUES (1000, 1)",
    )  # fmt: skip
    try:
        with serving(tmp_path, connections) as airflow, application:
            airflow.wait_for_dag("cdc_moved_cutover")
            for name in ("cdc_moved", "cdc_moved_cutover", "cdc_moved_snapshot"):
                airflow.switch_on(name)
            yield Moved(airflow, to, application)
    finally:
        mariadb.run("DROP DATABASE moved")
        mariadb_target.run(*(f"DROP DATABASE IF EXISTS moved_{number}" for number in range(2)))


def test_an_application_is_switched_after_somebody_has_approved(moved: Moved) -> None:
    airflow = moved.airflow
    # The first run starts the copy; a later one applies it.
    airflow.trigger("cdc_moved").wait()
    airflow.wait_for_runs("cdc_moved_snapshot", 1)
    airflow.trigger("cdc_moved").wait()
    rejected = airflow.trigger("cdc_moved_cutover")
    asked = rejected.answer("approve", "Reject")
    assert "Switch the application to the target shards?" in asked
    assert "The rehearsal stopped writes for **" in asked
    rejected.wait()
    assert (rejected.states()["switch"], moved.place) == ("skipped", OLD)
    assert rejected.xcom("rehearse")["state"] == "ROLLED_BACK"

    approved = airflow.trigger("cdc_moved_cutover", rehearse=False)
    assert "It was not rehearsed" in approved.answer("approve", "Approve")
    approved.wait()
    assert (approved.states()["rehearse"], moved.place) == ("skipped", NEW)
    assert approved.xcom("switch")["state"] == "WATCH"
    time.sleep(1)
    moved.application.__exit__()
    assert (moved.application.errors, moved.application.wrong(NEW)) == ([], {"orders": 0})
    # Repeated, it finds that it is done.
    approved.clear("switch")
    approved.wait()
    assert (approved.xcom("switch")["state"], moved.place) == ("WATCH", NEW)
