"""A run that sleeps at a durable step while another takes over and later changes are applied: when it wakes, it changes
nothing, whether the table has a key or not. So does what a Spark Connect endpoint still does for a run that was killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.sandbox.mariadb import MariaDb
from examples.sandbox.spark import ConnectServer
from tests.crash.cases import COMMIT, META, PLAN, SUBMIT, WRITE
from tests.lab.pipeline_file import target as target_of
from tests.lab.pipeline_file import write_pipeline

ROOT = Path(__file__).parents[2]
HOOK = str(Path(__file__).parent / "hook")
TABLES = {
    "orders": "(id INT PRIMARY KEY, customer INT NOT NULL, status VARCHAR(20), UNIQUE KEY (customer))",
    "plain": "(id INT, customer INT, status VARCHAR(20))",
}
CHANGES = (
    "INSERT INTO orders SELECT seq, seq, 'new' FROM seq_1_to_200",
    "INSERT INTO plain SELECT seq % 50, seq % 10, 'new' FROM seq_1_to_200",
    "UPDATE orders SET status = 'paid' WHERE id % 3 = 0",
    "UPDATE orders SET id = id + 1000 WHERE id % 50 = 1",
    "DELETE FROM plain WHERE id % 7 = 0",
    "DELETE FROM orders WHERE id % 7 = 0",
)
LATER = (
    "UPDATE orders SET status = 'sent'",
    "UPDATE orders SET id = id + 2000 WHERE id % 20 = 3",
    "DELETE FROM orders WHERE id % 5 = 0",
    "INSERT INTO orders VALUES (7, 7, 'back'), (14, 14, 'back')",
    "UPDATE plain SET status = 'sent' WHERE id % 2 = 0",
    "DELETE FROM plain WHERE id % 5 = 0",
    "INSERT INTO plain VALUES (7, 7, 'back'), (7, 7, 'back')",
)
TRUNCATING = ("TRUNCATE TABLE orders", "TRUNCATE TABLE plain")
RULE = {"database": "shards", "on_truncate": "apply", "sharding": {"key": "id", "databases": 1, "tables": 2}}
RULES = {"orders": {"table": "orders_{t}", **RULE}, "plain": {"table": "plain_{t}", "no_key": "rows", **RULE}}
STEPS = {
    "planned": (PLAN, "plan", "after", 1),
    "merged, not counted": ("spark_jobs.merge", "merge_tables", "after", 1),
    "merged": (*SUBMIT, "after", 1),
    "filtered, not counted": ("spark_jobs.filter", "filter_tables", "after", 1),
    "filtered": (*SUBMIT, "after", 2),
    "before a shard is written": (WRITE, "write_shard", "before", 1),
    "a shard written": (WRITE, "write_shard", "after", 1),
    "written, not counted": ("spark_jobs.write", "write_tables", "after", 1),
    "written": (COMMIT, "mark_applied", "before", 1),
    "applied": (COMMIT, "mark_applied", "after", 1),
    "a result saved": ("spark_jobs.quality", "_keep", "after", 1),
    "checked": (*SUBMIT, "after", 4),
    "before the commit": (META, "RunRegister.commit", "before", 1),
}
AT_WORKERS = {
    "merging": ("cdc_core.model.merged_columns", "merged_schema", "before", 1),
    "filtering": ("cdc_core.targets.writing.versions", "versions_of", "after", 1),
    "before a shard is written": (WRITE, "write_shard", "before", 1),
    "reading back": ("cdc_core.targets.tables.compare_columns", "outcomes", "before", 1),
}
"""Steps of Spark's executors."""


class Nap:
    def __init__(self, folder: Path, source: Any, target: MariaDb) -> None:
        self.folder, self.source, self.target = folder, source, target
        # Each table has one that feeds it, so that a TRUNCATE may empty it.
        routes = [{"match": rf"{source.name}\.{table}", "to": table} for table in TABLES]
        self.file = write_pipeline(
            folder, source.name, pipeline="nap", source="start: earliest", tables="on_truncate: stage", routes=routes,
            targets=[target_of("shards", "env:TARGET", RULES)], limits="lease_s: 5, batch_rows: 100",
        )  # fmt: skip
        self.flag = folder / "asleep"

    def command(self, *arguments: str, step: str = "") -> subprocess.Popen[str]:
        environ = {**os.environ, "SOURCE": self.source.server.url, "TARGET": self.target.url}
        paths = [str(ROOT), str(ROOT / "expectations"), str(ROOT / "plugins")]
        if step:
            environ |= self.armed(*STEPS[step])
            paths.insert(0, HOOK)
        return subprocess.Popen(
            [sys.executable, "-m", "cdc_core.cli", *arguments, str(self.file), "--json"],
            env={**environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def armed(self, module: str, function: str, when: str, call: int) -> dict[str, str]:
        """The variable that puts a process to sleep."""
        order = {"module": module, "function": function, "when": when, "call": call}
        return {
            "LOCKSTEP_CRASH": json.dumps({**order, "victim": "process", "flag": str(self.flag), "signal": "SIGSTOP"})
        }

    def done(self, *arguments: str) -> Any:
        with self.command(*arguments) as process:
            out, err = process.communicate()
        assert process.returncode == 0, out + err
        return json.loads(out)

    def rows(self, table: str) -> tuple[Counter[Any], Counter[Any]]:
        """Of the source, of the target."""
        columns = "id, customer, status"
        wanted = self.source.server.run(f"SELECT {columns} FROM {table}", database=self.source.name)
        both = f"SELECT {columns} FROM {table}_0 UNION ALL SELECT {columns} FROM {table}_1"
        return Counter(wanted), Counter(self.target.run(both, database="shards"))

    def assert_equal(self) -> None:
        for table in TABLES:
            wanted, found = self.rows(table)
            assert found == wanted, table

    def apply_later_changes(self) -> None:
        self.source.execute(*LATER)
        assert self.done("run")["batches"] > 0
        self.assert_equal()
        self.source.execute(
            *TRUNCATING, "INSERT INTO orders VALUES (1, 1, 'last')", "INSERT INTO plain VALUES (1, 1, '')"
        )
        self.done("run")
        self.assert_equal()

    def apply_last_changes(self) -> None:
        self.source.execute(
            "UPDATE orders SET status = 'over'", "DELETE FROM plain", "INSERT INTO plain VALUES (2, 2, 'x')"
        )
        assert all(entry["problems"] == [] for entry in self.done("run")["ledgers"])
        self.assert_equal()


def group_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes of its session, which are Spark's too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == process.pid:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def nap(source_database: Any, tmp_path: Path) -> Iterator[Nap]:
    with MariaDb.start(server_id=9) as server:
        server.run("CREATE DATABASE shards")
        for table, columns in TABLES.items():
            server.run(*(f"CREATE TABLE shards.{table}_{number} {columns}" for number in range(2)))
            source_database.execute(f"CREATE TABLE {table} {columns}")
        source_database.execute(*CHANGES)
        yield Nap(tmp_path, source_database, server)


@pytest.mark.matrix
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_run_that_sleeps_until_another_has_taken_over_changes_nothing_when_it_wakes(nap: Nap, step: str) -> None:
    nap.done("extract")
    asleep = nap.command("run", "--staged", step=step)
    try:
        while not nap.flag.exists():
            assert asleep.poll() is None, asleep.communicate()
            time.sleep(0.2)
        nap.apply_later_changes()
        for process in group_of(asleep):
            os.kill(process, signal.SIGCONT)
        out, err = asleep.communicate(timeout=900)
        assert asleep.returncode in (0, 75), out + err
        nap.assert_equal()
    finally:
        for process in group_of(asleep):
            os.kill(process, signal.SIGKILL)
        asleep.communicate()
    nap.apply_last_changes()
    assert nap.done("run", "--staged")["batches"] == 0


@pytest.mark.matrix
@pytest.mark.parametrize("step", AT_WORKERS)
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_what_an_endpoint_still_does_for_a_killed_run_changes_nothing(nap: Nap, step: str) -> None:
    """A worker sleeps there while its run is killed, and another run takes over and applies later changes."""
    environ = {"PYTHONPATH": HOOK, **nap.armed(*AT_WORKERS[step])}
    # Otherwise the endpoint would end the query by itself, after five minutes.
    kept = {"spark.connect.execute.manager.detachedTimeout": "2h"}
    with ConnectServer.start(environ=environ, conf=kept) as server:
        spark = {"master": server.url, "driver_rows": 0}
        nap.file.write_text(f"{nap.file.read_text()}spark: {json.dumps(spark)}\n")
        nap.done("extract")
        killed = nap.command("run", "--staged")
        while not nap.flag.exists():
            assert killed.poll() is None, killed.communicate()
            time.sleep(0.2)
        killed.kill()
        killed.communicate()
        nap.apply_later_changes()
        assert jobs_of(server)["Start"] > jobs_of(server)["End"], "what the killed run has asked for is not done yet"
        (worker,) = [pid for pid in workers_of(server) if state_of(pid) == "T"]
        os.kill(worker, signal.SIGCONT)
        while jobs_of(server)["Start"] > jobs_of(server)["End"]:
            time.sleep(0.2)
        nap.assert_equal()
        nap.apply_last_changes()


def workers_of(server: ConnectServer) -> list[int]:
    """Below the server: the daemon that makes Python workers, and these."""
    found, seen = [server.pid], 0
    while seen < len(found):
        for path in Path(f"/proc/{found[seen]}/task").glob("*/children"):
            found += map(int, path.read_text().split())
        seen += 1
    return found[1:]


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def jobs_of(server: ConnectServer) -> Counter[str]:
    """How many jobs have begun and ended."""
    (log,) = server.events.iterdir()
    return Counter(re.findall(r'"SparkListenerJob(Start|End)"', log.read_text()))
