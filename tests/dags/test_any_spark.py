"""A pipeline's DAG with its Spark elsewhere: at a Connect endpoint, and on a standalone cluster, whose executors have
nothing of Lockstep; and with Spark on this machine, whose JVM is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from examples.sandbox.spark import ConnectServer, Standalone
from tests.dags.airflow_line import AirflowLine, ended, now
from tests.lab.foreign_python import foreign_python, install_what_jobs_import

pytestmark = [pytest.mark.matrix, pytest.mark.spark, pytest.mark.timeout(900)]
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))"
TASKS = ["extract", "plan", "merge", "to_main.filter", "to_main.write", "to_main.quality", "to_main.commit"]


@contextmanager
def at_endpoint(python: Path, home: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    with ConnectServer.start(python=str(python), environ={"HOME": str(home)}) as server:
        address = urlsplit(server.url)
        yield (
            {"conn_type": "spark_connect", "host": f"sc://{address.hostname}", "port": address.port},
            {},
        )


@contextmanager
def on_cluster(python: Path, home: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    with Standalone.start(environ={"HOME": str(home)}) as cluster:
        host, _, port = cluster.master.rpartition(":")
        conf = {
            "spark.pyspark.python": str(python), "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
        }  # fmt: skip
        yield {"conn_type": "spark", "host": host, "port": int(port)}, {"conf": conf}
        assert list(cluster.directory.glob("worker*/app-*/*/lockstep-*.zip")), "executors were given the code"


@pytest.mark.parametrize("there", [at_endpoint, on_cluster])
def test_a_dag_ends_green_and_its_target_equal_with_spark_elsewhere(
    line: Callable[..., AirflowLine], source_database: Any, target_database: Any, tmp_path: Path, there: Any
) -> None:
    home = tmp_path / "executors"
    python = foreign_python(home / "python")
    install_what_jobs_import(home / "python")
    name = source_database.name
    tables = {f"{name}.t": {"database": name, "table": "t"}}
    target = {"name": "main", "connections": ["airflow:copy"], "tables": tables}
    target_database.execute(TABLE)
    with there(python, home) as (connection, spark):
        spark = {"connection": "spark_there", "driver_rows": 0, **spark}
        run = line("there", targets=[target], spark=spark)
        run.environ["AIRFLOW_CONN_COPY"] = target_database.server.url
        run.environ["AIRFLOW_CONN_SPARK_THERE"] = json.dumps(connection)
        source_database.execute(TABLE, "INSERT INTO t VALUES (1, 'new'), (2, 'new'), (3, 'gone'), (4, NULL)")
        run.run(now())
        assert run.states() == {task: ["success"] for task in TASKS}
        source_database.execute(
            "UPDATE t SET v = 'paid' WHERE id = 1", "DELETE FROM t WHERE id = 3", "UPDATE t SET id = 20 WHERE id = 2"
        )
        run.run(now())
        assert run.states() == {task: ["success"] for task in TASKS}
        rows = source_database.execute("SELECT * FROM t ORDER BY id")
        assert target_database.execute("SELECT id, v FROM t ORDER BY id") == rows
    for secret in (target_database.server.password, source_database.server.password):
        assert secret not in run.output


def test_a_task_whose_jvm_is_killed_is_tried_again(
    line: Callable[..., AirflowLine], source_database: Any, target_database: Any
) -> None:
    """The write waits for a lock on the target when Spark's JVM dies below it."""
    name = source_database.name
    tables = {f"{name}.t": {"database": name, "table": "t"}}
    target = {"name": "main", "connections": ["airflow:copy"], "tables": tables}
    spark = {"connection": "spark_default", "driver_rows": 0}
    target_database.execute(TABLE)
    run = line("alone", targets=[target], spark=spark)
    run.environ["AIRFLOW_CONN_COPY"] = target_database.server.url
    source_database.execute(TABLE, "INSERT INTO t VALUES (1, 'new'), (2, 'new')")
    run.run(now())
    assert run.states() == {task: ["success"] for task in TASKS}
    source_database.execute("UPDATE t SET v = 'paid' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    process = run.start(now())
    with (
        ended(process),
        target_database.server.connect(name, autocommit=True) as opened,
        opened.cursor() as blocking,
    ):
        run.wait_for(lambda: run.states().get("to_main.filter") == ["success"], process)
        blocking.execute("LOCK TABLES t READ")
        waiting = "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%'"
        run.wait_for(lambda: target_database.execute(waiting) != [(0,)], process)
        os.kill(jvm_below(process.pid), signal.SIGKILL)
        blocking.execute("UNLOCK TABLES")
        assert process.wait(timeout=240) == 0, run.output[-6000:]
    assert run.states() == {task: ["success"] for task in TASKS}, run.output[-6000:]
    assert "up_for_retry" in run.output.lower()
    assert target_database.execute("SELECT id, v FROM t") == [(1, "paid")]


def jvm_below(ancestor: int) -> int:
    """Spark's JVM of a task that a process has started."""
    return next(pid for pid in below(ancestor) if b"SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes())


def below(pid: int) -> Iterator[int]:
    """The processes that descend from one."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from below(child)
