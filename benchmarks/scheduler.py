"""`make bench-scheduler`: how long the runs of a pipeline take under Airflow's own scheduler, task by task.

A pipeline runs each minute; in each interval an application changes rows of five tables. With --connect, the tasks of
a run are sessions of one Spark Connect server; without, each that has too much for its driver starts a Spark. Airflow
is the one of `make ui`: `airflow standalone` with LocalExecutor and PostgreSQL. Of each task two times are taken from
Airflow's own database: how long it waited since the task before it had ended (Airflow schedules and queues), and how
long it ran (Airflow starts a process for it and imports the DAG, then Lockstep works).

A run counts from the end of `extract`, when its interval is staged, to the end of the last commit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from sqlalchemy import Engine, create_engine, text

from benchmarks.copy import execute
from benchmarks.document import keep, machine
from cdc_core.meta import Meta
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.postgres import Postgres
from examples.sandbox.process import free_port
from examples.sandbox.spark import ConnectServer
from examples.shop.airflow_env import airflow_environment
from examples.shop.standalone import standalone, wait_until_healthy
from lockstep_airflow.run_context import run_name_of

TABLES = 5
PIPELINE_NAME, DAG, TARGET = "bench", "cdc_bench", "shards"
STAGED, COMMITTED = "extract", f"to_{TARGET}.commit"
PATIENCE_S = 900
PIPELINE = """
pipeline: bench
schedule: "* * * * *"
sources: [{{name: shop, connection: "env:SOURCE", server_id: 4713, start: latest, heartbeat_s: 1}}]
tables: {{include: ['bench\\.t[0-9]+']}}
routes: [{{match: 'bench\\.(.*)', to: '\\1'}}]
stage: {{uri: "file://{root}/stage"}}
meta: {{url: "sqlite:///{root}/meta.db"}}
targets:
  - name: shards
    connections: ["env:TARGET"]
    on_missing_table: create
    tables:
      '*':
        database: bench_{{d}}
        table: "{{logical}}_{{t}}"
        sharding: {{key: id, databases: 2, tables: 2}}
airflow: {{poke_interval_s: 1}}
"""


@dataclass(frozen=True, slots=True)
class Task:
    """Times are those of Airflow's database."""

    name: str
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Measured:
    """A run that succeeded. tasks: those after `extract`, by their ends; staged: when that had ended."""

    run_id: str
    staged: datetime
    tasks: tuple[Task, ...]

    @property
    def took_s(self) -> float:
        return (self.tasks[-1].end - self.staged).total_seconds()

    def times(self) -> Iterator[tuple[str, float, float]]:
        """Of each task: its name, how long it waited since the one before it had ended, and how long it ran."""
        before = self.staged
        for task in self.tasks:
            yield task.name, (task.begin - before).total_seconds(), (task.end - task.begin).total_seconds()
            before = task.end


def make_tables(source: MariaDb, target: MariaDb) -> None:
    execute(source, "CREATE DATABASE bench")
    for table in range(TABLES):
        columns = "id BIGINT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(40), price DECIMAL(10,2)"
        execute(source, f"CREATE TABLE bench.t{table} ({columns})")
    execute(target, "CREATE DATABASE bench_0", "CREATE DATABASE bench_1")


def change(source: MariaDb, rows: int) -> None:
    """So many changes, as many in each table: four of five are inserts, the others updates."""
    inserts = rows // TABLES * 4 // 5
    for table in range(TABLES):
        execute(
            source,
            "USE bench",  # its tables of numbers need one
            f"INSERT INTO t{table} (name, price) SELECT CONCAT('name ', seq), seq / 7 FROM seq_1_to_{inserts}",
            f"UPDATE t{table} SET price = price + 1 ORDER BY id DESC LIMIT {rows // TABLES - inserts}",
        )


@contextmanager
def scheduled(
    folder: Path, source: MariaDb, target: MariaDb, database: str, connect: ConnectServer | None
) -> Iterator[None]:
    """An Airflow that runs the pipeline each minute. Raises RuntimeError when it does not come up."""
    port, log = free_port(), folder / "airflow.log"
    environment = {
        **os.environ,
        **airflow_environment(folder / "airflow", folder / "pipelines", {}, port=port, database=database),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",  # the pipeline's file does not change
        "SOURCE": source.url,
        "TARGET": target.url,
    }
    if connect:
        environment["AIRFLOW_CONN_SPARK_DEFAULT"] = connect.url.replace("sc://", "spark-connect://")
    with standalone(environment, log) as airflow:
        if not wait_until_healthy(airflow, port):
            raise RuntimeError(f"Airflow did not come up: {log.read_text()[-4000:]}")
        yield


def succeeded(airflow: Engine) -> list[str]:
    """Ids of the pipeline's runs that have ended well, in their order. Raises RuntimeError where one has failed."""
    with airflow.connect() as connection:
        query = text("SELECT run_id, state FROM dag_run WHERE dag_id = :dag ORDER BY run_after")
        found = list(connection.execute(query, {"dag": DAG}))
    failed = [run_id for run_id, state in found if state == "failed"]
    if failed:
        raise RuntimeError(f"the run {failed[0]} has failed")
    return [run_id for run_id, state in found if state == "success"]


def measured(airflow: Engine, run_id: str) -> Measured | None:
    """None for a run that had nothing to apply."""
    with airflow.connect() as connection:
        query = text(
            "SELECT task_id, start_date, end_date FROM task_instance "
            "WHERE dag_id = :dag AND run_id = :run AND state = 'success' ORDER BY end_date"
        )
        tasks = [Task(*row) for row in connection.execute(query, {"dag": DAG, "run": run_id})]
    (staged,) = (task for task in tasks if task.name == STAGED)
    names = [task.name for task in tasks]
    if COMMITTED not in names:
        return None
    line = tasks[names.index(STAGED) + 1 : names.index(COMMITTED) + 1]
    return Measured(run_id, staged.end, tuple(line))


def runs(airflow: Engine, source: MariaDb, meta_url: str, wanted: int, rows: int) -> list[Measured]:
    """So many runs that had changes to apply; the first one, which finds no tables, is left out.

    Changes are made whenever a run has ended, so that the next interval has them.
    """
    found: dict[str, Measured] = {}
    seen, deadline_s = 0, time.monotonic() + PATIENCE_S
    while len(found) <= wanted:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"no run has applied changes for {PATIENCE_S} s")
        ended = succeeded(airflow)
        if len(ended) > seen:
            seen = len(ended)
            change(source, rows)
        for run_id in ended:
            if run_id not in found and (run := measured(airflow, run_id)) is not None:
                found[run_id], deadline_s = run, time.monotonic() + PATIENCE_S
                print(f"{run_id}: {run.took_s:.1f} s", file=sys.stderr)
        time.sleep(1)
    with Meta.open(meta_url, PIPELINE_NAME) as meta:
        for run_id in found:
            written = sum(row.entry.written for row in meta.ledgers.find(run_name_of(PIPELINE_NAME, DAG, run_id)))
            if written < rows * 4 // 5:  # an updated row was inserted in the same interval
                raise RuntimeError(f"the run {run_id} has written {written} rows")
    return list(found.values())[1:]


def text_of(found: Sequence[Measured]) -> str:
    times: dict[str, list[tuple[float, float]]] = {}
    for run in found:
        for name, waited_s, ran_s in run.times():
            times.setdefault(name, []).append((waited_s, ran_s))
    rows = [
        (name, median(pair[0] for pair in of_task), median(pair[1] for pair in of_task))
        for name, of_task in times.items()
    ]
    waited, ran = sum(row[1] for row in rows), sum(row[2] for row in rows)
    took = median(run.took_s for run in found)
    return "\n".join(
        [
            "| task | waits for Airflow | runs |",
            "|---|---|---|",
            *(f"| {name} | {before:.1f} s | {itself:.1f} s |" for name, before, itself in rows),
            f"| all: {took:.1f} s | {waited:.1f} s | {ran:.1f} s |",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="that are measured (default 7)")
    parser.add_argument("--rows", type=int, default=1_000, help="changes of a run (default 1,000)")
    parser.add_argument("--connect", action="store_true", help="at a Spark Connect server")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as root,
        MariaDb.start(server_id=9) as source,
        MariaDb.start(server_id=10) as target,
        Postgres.start() as postgres,
        ConnectServer.start() if chosen.connect else nullcontext() as connect,
    ):
        folder = Path(root)
        for name in ("pipelines", "stage", "airflow"):
            (folder / name).mkdir()
        (folder / "pipelines" / "bench.yaml").write_text(PIPELINE.format(root=root))
        make_tables(source, target)
        airflow = create_engine(postgres.url())
        with scheduled(folder, source, target, postgres.url(), connect):
            found = runs(airflow, source, f"sqlite:///{folder}/meta.db", chosen.runs, chosen.rows)
        airflow.dispose()
        what = f"medians of {len(found)} runs of {chosen.rows:,} changes in {TABLES} tables, for 4 shards of each"
        document = "\n".join([machine(source, load, what), "", text_of(found)])
    print(document)
    if chosen.write:
        keep("scheduler", document)


if __name__ == "__main__":
    main()
