"""Runs of pipelines by `airflow dags test`, against real servers."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import lockstep
from tests.dags.airflow_line import AirflowLine, ended, fill, now


@pytest.mark.matrix
def test_a_run_by_hand_takes_what_was_changed_a_moment_ago_whatever_its_logical_date(
    line: Callable[..., AirflowLine], source_database: Any, pipelines: Path
) -> None:
    """`airflow dags test` fills the date in as the form does; the interval before it would end at the last month."""
    run = line("by_hand")
    file = pipelines / "by_hand.yaml"
    file.write_text(file.read_text().replace("* * * * *", "0 0 1 * *"))
    fill(source_database, 5)
    process = run.start(None)
    assert process.wait(timeout=240) == 0, run.output[-6000:]
    assert sorted(run.staged("id")) == list(range(5))
    assert run._ask("SELECT rendered_map_index FROM task_instance WHERE dag_id = ?") == [("by_hand_db",)]
    fill(source_database, 5, first=5)
    past = run.start(None, logical_date="2026-01-15T12:00:00+00:00")
    assert past.wait(timeout=240) == 0, run.output[-6000:]
    assert sorted(run.staged("id")) == list(range(10)), run.output[-6000:]


@pytest.mark.matrix
def test_existing_rows_of_an_idle_source_are_copied_and_staged_by_the_snapshot_dag_alone(
    line: Callable[..., AirflowLine], source_database: Any
) -> None:
    fill(source_database, 30)
    run = line("older", snapshot="mode: initial")
    fill(source_database, 5, first=30)
    run.run(now())
    assert run.states() == {"extract": ["success"], "snapshot": ["skipped"]}, run.output[-6000:]
    assert "Airflow has no DAG cdc_older_snapshot yet" in run.output  # `airflow dags test` knows only the one it tests
    copy = replace(run, suffix="_snapshot")
    assert copy.start(None, dry_run=True).wait(timeout=240) == 0, copy.output[-6000:]
    assert f"would copy {source_database.name}.t, ~" in copy.output
    assert copy.states() == {"plan": ["success"], "copy": ["skipped"]}
    # Nothing moves the chain of an idle source but the task itself.
    assert copy.start(None).wait(timeout=240) == 0, copy.output[-6000:]
    assert copy.states() == {"plan": ["success"], "copy": ["success"]}, copy.output[-6000:]
    assert f"{source_database.name}.t: all 35 rows read" in copy.output
    assert sorted(run.staged("id")) == sorted([*range(35), *range(30, 35)])  # 5 of them are in the log, too
    values = [value for task, key, value in copy.xcoms() if (task, key) == ("copy", "return_value")]
    assert values == [{"source": "older_db", "tables": 1, "rows": 35, "batches": 1, "dropped": 0}]
    # Named by hand, it is copied once more.
    named = {"tables": [f"{source_database.name}.t"], "source": "older_db"}
    assert copy.start(None, **named).wait(timeout=240) == 0, copy.output[-6000:]
    assert run.staged("id").count(7) == 2
    assert copy.start(None, tables=["nowhere.t"]).wait(timeout=240) != 0
    assert "usage.unknown_name" in copy.output
    run.run(now())
    assert run.states() == {"extract": ["success"], "snapshot": ["skipped"]}, run.output[-6000:]
    assert "is staged with all of its rows" in run.output


@pytest.mark.matrix
def test_the_retention_dag_compacts_each_closed_window_and_what_is_read_stays(
    line: Callable[..., AirflowLine], source_database: Any, pipelines: Path, tmp_path: Path
) -> None:
    run = line("packed", retention="keep: 1d, compact: window")
    if time.time() % 60 > 30:
        time.sleep(61 - time.time() % 60)
    for number in range(5):
        if number == 4:
            time.sleep(61 - time.time() % 60)
        fill(source_database, 10, first=10 * number)
        command = [sys.executable, "-m", "cdc_core.cli", "extract", str(pipelines / "packed.yaml")]
        subprocess.run(command, env=os.environ | {"LOCKSTEP_CONN_PACKED": source_database.server.url}, check=True)
    before = rows_of(tmp_path / "stage", source_database.name)
    assert sorted(row["id"] for row in before) == list(range(50))
    packing = replace(run, suffix="_retention")
    assert packing.start(None, dry_run=True).wait(timeout=240) == 0, packing.output[-6000:]
    assert not list((tmp_path / "stage").glob("compacted/**/*.parquet"))
    assert packing.start(None).wait(timeout=240) == 0, packing.output[-6000:]
    assert packing.states() == {task: ["success"] for task in ("purge", "compact", "sweep")}
    shown, done = [value for task, key, value in packing.xcoms() if (task, key) == ("compact", "return_value")]
    assert done == shown
    assert 1 <= done["ranges"] <= done["files"] < done["files_before"]
    assert len(list((tmp_path / "stage").glob("compacted/**/*.parquet"))) == done["files"]
    assert rows_of(tmp_path / "stage", source_database.name) == before


def rows_of(stage: Path, database: str) -> list[dict[str, Any]]:
    """All changes of the table, as an analyst reads them."""
    found: list[dict[str, Any]] = lockstep.open(stage)[f"{database}.t"].changes().to_arrow().to_pylist()
    return found


@pytest.mark.matrix
def test_batches_without_rows_are_committed_and_a_staged_and_applied_window_is_skipped(
    line: Callable[..., AirflowLine], source_database: Any, pipelines: Path
) -> None:
    """No Spark, as there are no rows; then no connection to the source, as its window is staged."""
    target = {"name": "main", "connections": ["airflow:again"], "tables": {"*": {}}}
    run = line("again", targets=[target], spark="connection: spark_default")
    fill(source_database, 0)
    end = now()
    run.run(end)
    tasks = ["extract", "plan", "merge", "to_main.filter", "to_main.write", "to_main.quality", "to_main.commit"]
    assert run.states() == {task: ["success"] for task in tasks}
    of_commit = {key: value for task, key, value in run.xcoms() if task == "to_main.commit"}
    committed = of_commit["return_value"]
    assert (committed["batches"] > 0, committed["tables"]) == (True, [])
    assert of_commit["_link_LedgerLink"].endswith(f"/lockstep/ledger/again/{committed['run_id']}")

    run.environ["AIRFLOW_CONN_AGAIN"] = "mysql://nobody:nothing@127.0.0.1:1"
    output = run.run(end)
    assert "the source is not read" in output
    assert "every staged batch in range is already consumed" in output
    assert run.states() == {task: ["success" if task in tasks[:2] else "skipped"] for task in tasks}
    # A replay takes them once more, and asks no source either.
    again = replace(run, suffix="_replay")
    assert again.start(end, target="main", dry_run=False).wait(timeout=240) == 0, again.output[-6000:]
    assert again.states() == {task: ["success"] for task in tasks[1:]}, again.output[-6000:]
    replayed = next(value for task, _, value in again.xcoms() if task == "to_main.commit")
    assert (replayed["batches"], replayed["moved"]) == (committed["batches"], 0)

    # What is committed is purged when it is old enough; here every finished window is, of which the newest batch stays.
    pipeline = pipelines / "again.yaml"
    pipeline.write_text(pipeline.read_text() + "retention: {keep: 1m, keep_meta: 1m}\n")
    retention = replace(run, suffix="_retention")
    assert retention.start(end).wait(timeout=240) == 0, retention.output[-6000:]
    assert retention.states() == {"purge": ["success"], "sweep": ["success"]}, retention.output[-6000:]


@pytest.mark.matrix
def test_a_run_whose_plan_was_marked_as_successful_fails_and_says_why(
    line: Callable[..., AirflowLine], source_database: Any
) -> None:
    """It must not end green with nothing applied, as a run without batches does."""
    target = {"name": "main", "connections": ["airflow:marked"], "tables": {"*": {}}}
    run = line("marked", targets=[target], spark="connection: spark_default")
    fill(source_database, 0)
    assert run.start(now(), marked="plan").wait(timeout=240) != 0, run.output[-6000:]
    assert "run.clear_task" in run.output
    states = run.states()
    assert (states["plan"], states["merge"], states["to_main.commit"]) == (["success"], ["failed"], ["upstream_failed"])
    run.run(now())
    assert run.states()["to_main.commit"] == ["success"]


@pytest.mark.matrix
@pytest.mark.spark
def test_a_verification_that_repairs_ends_equal_and_fails_at_once_by_what_it_must_not_overwrite(
    line: Callable[..., AirflowLine], source_database: Any, mariadb_target: Any
) -> None:
    """verify -> repair with an ordinary run by Spark, through Airflow's connections."""
    place = f"{source_database.name}_to"
    tables = {"*": {"database": place, "table": "t"}}
    target = {"name": "main", "connections": ["airflow:fixing_to"], "tables": tables, "on_missing_table": "create"}
    run = line("fixing", targets=[target], spark="connection: spark_default", verify="repair: true")
    run.environ["AIRFLOW_CONN_FIXING_TO"] = mariadb_target.url
    fill(source_database, 20)

    rows, expected = f"SELECT id, v FROM {place}.t ORDER BY id", [(n, n % 7) for n in range(20)]
    mariadb_target.run(f"CREATE DATABASE IF NOT EXISTS {place}")
    try:
        run.run(now())
        assert mariadb_target.run(rows) == expected
        verify = replace(run, suffix="_verify")
        assert verify.start(None).wait(timeout=240) == 0, verify.output[-6000:]
        assert verify.states() == {"verify": ["success"], "repair": ["skipped"]}, verify.output[-6000:]
        fault = f"UPDATE {place}.t SET v = 99 WHERE id IN (3, 4)"
        mariadb_target.run(
            fault, f"DELETE FROM {place}.t WHERE id = 9", f"INSERT INTO {place}.t (id, v) VALUES (70, 70)"
        )
        assert verify.start(None, repair=False).wait(timeout=240) != 0
        assert verify.states() == {"verify": ["failed"], "repair": ["failed"]}, verify.output[-6000:]
        assert "verify.differs" in verify.output
        assert verify.start(None).wait(timeout=240) == 0, verify.output[-6000:]
        assert verify.states() == {"verify": ["success"], "repair": ["success"]}, verify.output[-6000:]
        assert mariadb_target.run(rows) == expected
        done = [value for task, key, value in verify.xcoms() if (task, key) == ("repair", "return_value")][-1]
        assert (done["rows"], done["deletes"], done["equal"], len(done["runs"])) == (3, 1, True, 1)
        foreign = f"UPDATE {place}.t SET v = 99, _cdc_version = X'7FFFFFFFFFFFFFFF7FFFFFFFFFFFFFFF00000000000000007A'"
        mariadb_target.run(f"{foreign} WHERE id = 5")
        assert verify.start(None).wait(timeout=240) != 0
        assert "still differ after the repair" in verify.output
        assert "it is not tried again" in verify.output
        assert verify.states() == {"verify": ["success"], "repair": ["failed"]}, verify.output[-6000:]
    finally:
        mariadb_target.run(f"DROP DATABASE {place}")


@contextmanager
def writing(source_database: Any) -> Iterator[list[int]]:
    """Commits one row after another while the block runs; the list holds their numbers."""
    source_database.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v INT)")
    done: list[int] = []
    stop = threading.Event()

    def write() -> None:
        with source_database.server.connect(source_database.name, autocommit=True) as connection:
            while not stop.is_set():
                connection.query(f"INSERT INTO t VALUES ({len(done)}, 1)")
                done.append(len(done))
                time.sleep(0.005)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


def test_a_terminated_extract_gives_its_lease_back(line: Callable[..., AirflowLine], source_database: Any) -> None:
    run = line("ended", batch_rows=100)
    with writing(source_database):
        process = run.start(now() + timedelta(minutes=10))
        with ended(process):
            run.wait_for(lambda: len(run.manifests()) >= 1, process)
            assert holder(run).startswith("cdc_ended/")
            process.send_signal(signal.SIGTERM)
            run.wait_for(lambda: holder(run) == "", process, alive=False)


def holder(run: AirflowLine) -> str:
    with closing(sqlite3.connect(run.folder / "meta.db")) as database:
        return str(database.execute("SELECT holder FROM lease").fetchone()[0])
