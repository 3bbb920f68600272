"""kill -9 at random moments of a mixed workload: what is staged in the end is what each table of the source holds.

Two extractors follow the source all the time; the one that reads is killed, the other takes over, a new one stands by.
"""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import time
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.crash.random_kills import LIMITS, TABLES, busy, database, succeed
from tests.lab.forked_commands import ForkedCommands, Started
from tests.lab.pipeline_file import write_pipeline


class Followers:
    """Two `lockstep extract --follow` of one pipeline."""

    def __init__(self, commands: ForkedCommands, folder: Path, environ: dict[str, str]) -> None:
        self._commands, self._folder, self._environ = commands, folder, environ
        self._running: list[Started] = []
        self._number = itertools.count()
        for _ in range(2):
            self._start()

    def _start(self) -> None:
        log = self._folder / f"{next(self._number)}.log"
        self._running.append(
            self._commands.start(
                "extract", "--follow", "kills.yaml", directory=self._folder, environ=self._environ, log=log
            )
        )

    def _reader(self) -> Started:
        """The one that holds the lease, as soon as one of the running does."""
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s:
            for process in self._running:
                assert not process.ended, process.log.read_text()
                if self._holder().endswith(f":{process.pid}"):
                    return process
            time.sleep(0.01)
        raise AssertionError(f"nobody took over: {[process.log.read_text() for process in self._running]}")

    def _holder(self) -> str:
        with closing(sqlite3.connect(self._folder / "meta.db")) as database:
            try:
                return str(database.execute("SELECT max(holder) FROM lease").fetchone()[0])
            except sqlite3.OperationalError:  # not made yet, or locked
                return ""

    def kill_reader(self, after_s: float) -> None:
        reader = self._reader()
        time.sleep(after_s)
        reader.kill()
        self._running.remove(reader)
        self._start()

    def close(self) -> None:
        for process in self._running:
            process.kill()


@pytest.mark.parametrize(
    ("kills", "server"),
    [
        pytest.param(2, "mysql9", marks=pytest.mark.crash_sample),
        pytest.param(50, "mysql9", marks=pytest.mark.matrix),
        pytest.param(50, "mariadb", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.timeout(1800)
def test_kills_at_random_moments_of_a_mixed_workload_end_equal_to_the_source(
    server: str, kills: int, commands: ForkedCommands, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(server)
    chance = random.Random(kills)
    environ = {**os.environ, "SOURCE": source.url}
    lockstep = partial(succeed, commands, tmp_path, environ)
    with database(source) as cursor:
        for table, columns in TABLES.items():
            cursor.execute(f"CREATE TABLE kills.{table} {columns}")
        write_pipeline(tmp_path, "kills", pipeline="kills", source="name: kills, start: latest", limits=LIMITS)
        lockstep("extract", "kills.yaml")  # begins here
        cursor.execute("INSERT INTO kills.large VALUES (-1, 'the workload seldom writes here')")
        with busy(source, range(3)), closing(Followers(commands, tmp_path, environ)) as followers:
            for number in range(kills):
                if number == kills // 2:
                    cursor.execute("ALTER TABLE kills.twin ADD COLUMN more INT")
                followers.kill_reader(after_s=chance.choice((0.05, 0.3, 1, 2)) * chance.random())
        lockstep("extract", "kills.yaml", "--until", "now")
        lockstep("stage", "verify", "kills.yaml", "--deep")
        for table in TABLES:
            cursor.execute(f"SELECT * FROM kills.{table}")
            names = [column[0] for column in cursor.description]
            held = Counter(cursor.fetchall())
            lockstep("stage", "export", "kills.yaml", table, "-o", f"{table}.parquet")
            found = pq.read_table(tmp_path / f"{table}.parquet", columns=names).to_pylist()
            assert Counter(tuple(row.values()) for row in found) == held, table
            assert held
