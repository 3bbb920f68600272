"""The DAG that gives a target another layout, under Airflow's own scheduler, while the pipeline's runs go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.dags.airflow_server import AirflowServer, serving
from tests.lab.databases import drop_database

pytestmark = [pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(1800)]

PIPELINE = """
pipeline: grown
sources: [{{name: grown, connection: "airflow:source", server_id: 7012, start: latest, heartbeat_s: 1}}]
tables: {{include: ['grown\\.orders']}}
routes: [{{match: 'grown\\.(.*)', to: '\\1'}}]
stage: {{uri: "file://{folder}/stage"}}
meta: {{url: "sqlite:///{folder}/meta.db"}}
targets:
  - name: shards   # the old ones
    connections: ["airflow:shards"]
    on_missing_table: create
    tables:
      '*': {{database: "grown_{{d}}", table: "{{logical}}_{{t}}", sharding: {{key: id, databases: 2, tables: 2}}}}
snapshot: {{mode: initial}}
limits: {{lease_s: 5}}
airflow: {{poke_interval_s: 1, retry_delay_s: 1}}
"""
DAG, RESHARD = "cdc_grown", "cdc_grown_reshard"
OLD_ROWS = 500


@dataclass(frozen=True)
class Grown:
    airflow: AirflowServer
    source: Any
    target: Any
    file: Path

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(execute(self.source, "SELECT id, n FROM grown.orders"))

    def in_shards(self, database: str, databases: int, tables: int) -> list[tuple[Any, ...]]:
        """The rows of all shards, each of which has only its own."""
        found = []
        for shard in range(databases * tables):
            d, t = divmod(shard, tables)
            rows = execute(self.target, f"SELECT id, n FROM {database.format(d=d)}.orders_{t}")
            assert all(key % (databases * tables) == shard for key, _ in rows)
            found += rows
        return sorted(found)


@pytest.fixture
def grown(mariadb: Any, mariadb_target: Any, tmp_path: Path) -> Iterator[Grown]:
    file = tmp_path / "pipelines" / "grown.yaml"
    file.parent.mkdir()
    file.write_text(PIPELINE.format(folder=tmp_path))
    execute(
        mariadb, "CREATE DATABASE grown", "USE grown", "CREATE TABLE orders (id INT PRIMARY KEY, n INT NOT NULL)",
        f"INSERT INTO orders SELECT seq, seq FROM seq_1_to_{OLD_ROWS}",
    )  # fmt: skip
    try:
        with serving(tmp_path, {"source": mariadb.url, "shards": mariadb_target.url}) as airflow:
            airflow.wait_for_dag(RESHARD)
            for name in (DAG, f"{DAG}_snapshot", RESHARD):
                airflow.switch_on(name)
            yield Grown(airflow, mariadb, mariadb_target, file)
    finally:
        for server in (mariadb, mariadb_target):
            for (database,) in execute(server, "SHOW DATABASES LIKE 'grown%'"):
                drop_database(server, database)


def execute(server: Any, *statements: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with closing(server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            rows = list(cursor.fetchall())
    return rows


def test_a_target_gets_more_shards_from_the_stage_while_runs_go_on_and_feed_them_from_then_on(grown: Grown) -> None:
    airflow = grown.airflow
    airflow.trigger(DAG).wait()  # starts the copy
    airflow.wait_for_runs(f"{DAG}_snapshot", 1)
    airflow.trigger(DAG).wait()
    assert grown.in_shards("grown_{d}", 2, 2) == grown.rows()

    execute(grown.source, "UPDATE grown.orders SET n = -n WHERE id % 7 = 0", "DELETE FROM grown.orders WHERE id = 4")
    with grown.target.connect(autocommit=True) as blocking, blocking.cursor() as cursor:
        # A run that was planned for the old target alone waits in its write until the DAG has the new one, too.
        beside = airflow.trigger(DAG)
        beside.wait_until(lambda: beside.states()["to_shards.filter"] == "success", "the filter task")
        cursor.execute("LOCK TABLES grown_0.orders_0 READ")
        beside.wait_until(lambda: beside.states()["to_shards.write"] == "running", "the write task")
        reshard = airflow.trigger(RESHARD, layout="4x4")
        reshard.wait()
        airflow.wait_for_task(DAG, "to_shards_4x4.commit")
    beside.wait()
    said = reshard.xcom("fill")
    assert (said["new_target"], said["fed_by_runs"]) == ("shards_4x4", True)
    assert reshard.xcom("verify")["equal"] is True
    assert "# the old ones" in grown.file.read_text()
    states = beside.states()
    assert states["to_shards.commit"] == "success"
    assert {state for task, state in states.items() if task.startswith("to_shards_4x4.")} <= {"skipped"}

    execute(grown.source, "INSERT INTO grown.orders VALUES (1000, 1)", "DELETE FROM grown.orders WHERE id = 5")
    run = airflow.trigger(DAG)
    run.wait()
    assert (run.states()["to_shards.commit"], run.states()["to_shards_4x4.commit"]) == ("success", "success")
    assert grown.in_shards("grown_{d}", 2, 2) == grown.rows()
    assert grown.in_shards("grown_{d}_4x4", 4, 4) == grown.rows()

    text = grown.file.read_text()
    reshard.clear("fill", downstream=True)
    reshard.wait()
    again = reshard.xcom("fill")
    assert again == said | {"batches": again["batches"]}  # those of later runs, too
    assert reshard.xcom("verify")["equal"] is True
    assert grown.file.read_text() == text
