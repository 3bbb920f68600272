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
from tests.dags.airflow_line import Line, ended, now
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
    line: Callable[..., Line], source_database: Any, mariadb_target: Any, tmp_path: Path, there: Any
) -> None:
    home = tmp_path / "executors"
    python = foreign_python(home / "python")
    install_what_jobs_import(home / "python")
    name = source_database.name
    tables = {f"{name}.t": {"database": name, "table": "t"}}
    target = f'  - {{name: main, connections: ["airflow:copy"], tables: {json.dumps(tables)}}}'
    with (
        there(python, home) as (connection, spark),
        mariadb_target.connect(autocommit=True) as opened,
        opened.cursor() as cursor,
    ):
        cursor.execute(f"CREATE DATABASE `{name}`")
        cursor.execute(f"USE `{name}`")
        cursor.execute(TABLE)
        spark = {"connection": "spark_there", "driver_rows": 0, **spark}
        run = line("there", more=f"targets:\n{target}\nspark: {json.dumps(spark)}")
        run.environ["AIRFLOW_CONN_COPY"] = mariadb_target.url
        run.environ["AIRFLOW_CONN_SPARK_THERE"] = json.dumps(connection)
        source_database.execute(TABLE, "INSERT INTO t VALUES (1, 'new'), (2, 'new'), (3, 'gone'), (4, NULL)")
        run.run(now())
        assert run.states() == {task: ["success"] for task in TASKS}
        source_database.execute(
            "UPDATE t SET v = 'paid' WHERE id = 1", "DELETE FROM t WHERE id = 3", "UPDATE t SET id = 20 WHERE id = 2"
        )
        run.run(now())
        assert run.states() == {task: ["success"] for task in TASKS}
        with source_database.server.connect(name) as source, source.cursor() as asked:
            asked.execute("SELECT * FROM t ORDER BY id")
            cursor.execute("SELECT id, v FROM t ORDER BY id")
            assert cursor.fetchall() == asked.fetchall()
        cursor.execute(f"DROP DATABASE `{name}`")
    for secret in (mariadb_target.password, source_database.server.password):
        assert secret not in run.output


def test_a_task_whose_jvm_is_killed_is_tried_again(
    line: Callable[..., Line], source_database: Any, mariadb_target: Any
) -> None:
    """The write waits for a lock on the target when Spark's JVM dies below it."""
    name = source_database.name
    tables = {f"{name}.t": {"database": name, "table": "t"}}
    target = f'  - {{name: main, connections: ["airflow:copy"], tables: {json.dumps(tables)}}}'
    spark = json.dumps({"connection": "spark_default", "driver_rows": 0})
    with mariadb_target.connect(autocommit=True) as opened, opened.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{name}`")
        cursor.execute(f"USE `{name}`")
        cursor.execute(TABLE)
        run = line("alone", more=f"targets:\n{target}\nspark: {spark}")
        run.environ["AIRFLOW_CONN_COPY"] = mariadb_target.url
        source_database.execute(TABLE, "INSERT INTO t VALUES (1, 'new'), (2, 'new')")
        run.run(now())
        assert run.states() == {task: ["success"] for task in TASKS}
        source_database.execute("UPDATE t SET v = 'paid' WHERE id = 1", "DELETE FROM t WHERE id = 2")
        process = run.start(now())
        with ended(process):
            run.wait_for(lambda: run.states().get("to_main.filter") == ["success"], process)
            cursor.execute("LOCK TABLES t READ")
            waiting = "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%'"
            run.wait_for(lambda: cursor.execute(waiting) and cursor.fetchall() != ((0,),), process)
            os.kill(jvm_below(process.pid), signal.SIGKILL)
            cursor.execute("UNLOCK TABLES")
            assert process.wait(timeout=240) == 0, run.output[-6000:]
        assert run.states() == {task: ["success"] for task in TASKS}, run.output[-6000:]
        assert "up_for_retry" in run.output.lower()
        cursor.execute("SELECT id, v FROM t")
        assert cursor.fetchall() == ((1, "paid"),)
        cursor.execute(f"DROP DATABASE `{name}`")


def jvm_below(ancestor: int) -> int:
    """Spark's JVM of a task that a process has started."""
    return next(pid for pid in below(ancestor) if b"SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes())


def below(pid: int) -> Iterator[int]:
    """The processes that descend from one."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from below(child)
