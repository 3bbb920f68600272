"""A pipeline whose DAG the tests run by `airflow dags test`, and what it leaves: states, XComs, staged rows."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset

from examples.shop.airflow_env import REPOSITORY, airflow_command


@dataclass
class AirflowLine:
    """A pipeline that stages one database of the test's server. suffix: of the DAG among the pipeline's."""

    name: str
    home: Path
    folder: Path
    environ: dict[str, str]
    suffix: str = ""

    @property
    def dag_id(self) -> str:
        return f"cdc_{self.name}{self.suffix}"

    def start(
        self, window_end: datetime | None, logical_date: str = "", *, marked: str = "", **params: Any
    ) -> subprocess.Popen[bytes]:
        """`airflow dags test` of a run up to a moment; its output goes to a file, which takes it without waiting.

        marked: a pattern; tasks of such names are marked as successful instead of run."""
        with open(self.folder / "airflow.log", "wb") as output:
            conf = json.dumps(({"window_end": str(window_end)} if window_end else {}) | params)
            date = [logical_date] if logical_date else []
            options = ["--mark-success-pattern", marked] if marked else []
            return subprocess.Popen(
                airflow_command(["dags", "test", self.dag_id, *date, "--conf", conf, *options]),
                env=self.environ,
                cwd=REPOSITORY,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return (self.folder / "airflow.log").read_text(errors="replace")

    def run(self, window_end: datetime) -> str:
        """One run of the DAG up to a moment; its output. Fails when the run fails."""
        assert self.start(window_end).wait(timeout=240) == 0, self.output[-6000:]
        assert set(self.states()["extract"]) == {"success"}, self.output[-6000:]
        return self.output

    def manifests(self) -> list[Path]:
        return sorted((self.folder / "stage").glob("manifests/*/*.json"))

    def wait_for(self, condition: Callable[[], bool], process: subprocess.Popen[bytes], *, alive: bool = True) -> None:
        deadline_s = time.monotonic() + 120
        while not condition():
            assert not alive or process.poll() is None, f"ended with {process.returncode}: {self.output[-6000:]}"
            assert time.monotonic() < deadline_s, f"waited in vain: {self.output[-6000:]}"
            time.sleep(0.1)

    def _ask(self, query: str, dag_id: str | None = None) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.home / "airflow.db")) as database:
            return database.execute(query, (dag_id or self.dag_id,)).fetchall()

    def states(self, dag_id: str | None = None) -> dict[str, list[str]]:
        """Of the latest run's tasks, by task id. dag_id: of a DAG that is not the pipeline's."""
        found: dict[str, list[str]] = {}
        latest = "SELECT dag_id, run_id FROM dag_run WHERE dag_id = ? ORDER BY id DESC LIMIT 1"
        states = f"SELECT task_id, state FROM task_instance JOIN ({latest}) USING (dag_id, run_id)"
        for task_id, state in self._ask(states, dag_id):
            found.setdefault(task_id, []).append(state)
        return found

    def xcoms(self) -> list[tuple[str, str, Any]]:
        rows = self._ask("SELECT task_id, key, value FROM xcom WHERE dag_id = ? ORDER BY timestamp")
        return [(task_id, key, json.loads(value)) for task_id, key, value in rows]

    def staged(self, column: str) -> list[int]:
        """Values of a column in all that the manifests name, in no order."""
        values: list[int] = []
        for manifest in self.manifests():
            for part in json.loads(manifest.read_text())["parts"]:
                table = pyarrow.dataset.dataset(self.folder / "stage" / part["path"]).to_table(columns=[column])
                values += table.column(column).to_pylist()
        return values


def fill(source_database: Any, rows: int, *, first: int = 0) -> None:
    """`rows` transactions of one row each, numbered from `first`."""
    statements = ["CREATE TABLE IF NOT EXISTS t (id BIGINT PRIMARY KEY, v INT)"]
    statements += [f"INSERT INTO t VALUES ({number}, {number % 7})" for number in range(first, first + rows)]
    source_database.execute(*statements)


def require_ids_and_counts_only(run: AirflowLine, rows: int, password: str) -> None:
    """What Airflow keeps of the run's extract task: no row, and no password."""
    (value,) = [value for task, key, value in run.xcoms() if (task, key) == ("extract", "return_value")]
    assert (value["source"], value["rows"]) == (f"{run.name}_db", rows)
    assert set(value) == {"source", "rows", "batches", "files", "events", "position", "watermark_us"}
    assert all(isinstance(part, str | int) for part in value.values())
    assert _files_with(run.dag_id, run.home)
    assert _files_with(password, run.home) == []


def _files_with(text: str, folder: Path) -> list[str]:
    """By a process of its own: this one may have Airflow's database open, and closing a file gives up all locks on it.
    Files may come and go meanwhile."""
    grep = subprocess.run(["grep", "-rlsF", "-e", text, folder], capture_output=True, text=True, check=False)
    return grep.stdout.splitlines()


def now() -> datetime:
    return datetime.now(UTC)


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed at the end of the block, with all that it has started."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
