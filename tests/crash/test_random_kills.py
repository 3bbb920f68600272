"""kill -9 at random moments of a mixed workload: what is staged in the end is what each table of the source holds.

Two extractors follow the source all the time; the one that reads is killed, the other takes over, a new one stands by.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pymysql
import pytest

from tests.forked_commands import ForkedCommands

TABLES = {
    "plain": "(id INT PRIMARY KEY, name VARCHAR(40), amount DECIMAL(20,6), at DATETIME(6), raw VARBINARY(40))",
    "twin": "(a INT, b VARCHAR(20), note TEXT, PRIMARY KEY (a, b))",
    "no_key": "(n INT, word VARCHAR(20))",
    "large": "(id INT PRIMARY KEY, filler VARCHAR(300))",
}
PIPELINE = """\
pipeline: kills
sources: [{{name: kills, connection: "env:SOURCE", server_id: 5078, start: latest, heartbeat_s: 1}}]
tables: {{include: ['kills\\..*']}}
routes: [{{match: 'kills\\.(.*)', to: '\\1'}}]
stage: {{uri: "file://{folder}/stage"}}
meta: {{url: "sqlite:///{folder}/meta.db"}}
limits: {{lease_s: 5, batch_rows: 500, batch_age_s: 1, ring_mib: 1}}
"""


class Workload:
    """Seeded transactions on one connection, ended or rolled back; several may run at once."""

    def __init__(self, connection: pymysql.Connection, seed: int) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._random = random.Random(seed)
        self._seed = seed
        self._xa = 0

    def step(self) -> None:
        """One transaction, or one statement that is none."""
        rng = self._random
        kinds = (self._insert, self._update, self._delete, self._rekey, self._twins, self._words, self._savepoint)
        rare = (self._bulk, self._distributed, self._distributed, self._distributed, self._flush)
        try:
            if rng.random() < 0.01:
                rng.choice(rare)()
                return
            self._connection.begin()
            for _ in range(rng.choice((1, 1, 1, 4))):
                rng.choice(kinds)()
            if rng.random() < 0.05:
                self._connection.rollback()
            else:
                self._connection.commit()
        except (pymysql.err.IntegrityError, pymysql.err.OperationalError) as error:
            # A key that is taken, a deadlock or a lock timeout: the transaction did not take place.
            if error.args[0] not in (1062, 1205, 1213):
                raise
            self._connection.rollback()

    def _do(self, statement: str, *values: Any) -> None:
        self._cursor.execute(statement, values or None)

    def _id(self) -> int:
        return self._random.randrange(400)

    def _insert(self) -> None:
        rng = self._random
        amount, raw = f"{rng.uniform(-9e9, 9e9):.6f}", rng.randbytes(rng.randrange(40))
        self._do("REPLACE INTO plain VALUES (%s, %s, %s, NOW(6), %s)", self._id(), rng.choice("aßé木🦊"), amount, raw)

    def _update(self) -> None:
        low = self._id()
        self._do("UPDATE plain SET amount = amount + 1, name = NULL WHERE id BETWEEN %s AND %s", low, low + 9)

    def _delete(self) -> None:
        self._do("DELETE FROM plain WHERE id = %s", self._id())

    def _rekey(self) -> None:
        self._do("UPDATE plain SET id = %s WHERE id = %s", 400 + self._id(), self._id())

    def _twins(self) -> None:
        key, note = (self._id() % 50, self._random.choice("xyÿ")), self._random.random()
        self._do(
            "INSERT INTO twin (a, b, note) VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE note = %s", *key, note, note
        )

    def _words(self) -> None:
        self._do("INSERT INTO no_key VALUES (%s, 'w'), (%s, 'w')", self._id() % 5, self._id() % 5)
        self._do("DELETE FROM no_key WHERE n = %s LIMIT 1", self._id() % 5)

    def _savepoint(self) -> None:
        self._do("SAVEPOINT s")
        self._insert()
        self._do("ROLLBACK TO s")
        self._twins()

    def _bulk(self) -> None:
        """Larger than the ring."""
        first = self._random.randrange(10) * 5000
        self._connection.begin()
        self._do("DELETE FROM large WHERE id BETWEEN %s AND %s", first, first + 4999)
        self._do("INSERT INTO large VALUES " + ", ".join(f"({first + n}, REPEAT('x', 300))" for n in range(5000)))
        self._connection.commit()

    def _distributed(self) -> None:
        self._xa += 1
        name = f"'{self._seed}-{self._xa}'"
        self._do(f"XA START {name}")
        self._do("INSERT INTO no_key VALUES (99, 'xa')")
        self._do(f"XA END {name}")
        self._do(f"XA PREPARE {name}")
        self._do(f"XA {self._random.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} {name}")

    def _flush(self) -> None:
        self._do("FLUSH BINARY LOGS")


@contextmanager
def busy(server: Any, seeds: range, pause_s: float = 0.002) -> Iterator[None]:
    """Workloads run, each in a thread, while the block does. pause_s: between the transactions of one."""
    stop = threading.Event()

    def work(seed: int) -> None:
        with closing(server.connect("kills", charset="utf8mb4")) as connection:
            workload = Workload(connection, seed)
            while not stop.wait(pause_s):
                workload.step()

    with ThreadPoolExecutor(len(seeds)) as pool:
        working = [pool.submit(work, seed) for seed in seeds]
        try:
            yield
        finally:
            stop.set()
        for one in working:
            one.result()


class Followers:
    """Two `lockstep extract --follow` of one pipeline."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder, self._environ = folder, environ
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for _ in range(2):
            self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "cdc_core.cli", "extract", "--follow", str(self._folder / "kills.yaml")]
        with (self._folder / "follow.log").open("ab") as log:
            process = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log)
        self._running[process.pid] = process

    def _reader(self) -> subprocess.Popen[bytes]:
        """The one that holds the lease, as soon as one of the running does."""
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s:
            assert all(process.poll() is None for process in self._running.values()), self._log()
            for pid, process in self._running.items():
                if self._holder().endswith(f":{pid}"):
                    return process
            time.sleep(0.01)
        raise AssertionError(f"nobody took over: {self._log()}")

    def _holder(self) -> str:
        with closing(sqlite3.connect(self._folder / "meta.db")) as database:
            try:
                return str(database.execute("SELECT max(holder) FROM lease").fetchone()[0])
            except sqlite3.OperationalError:  # not made yet, or locked
                return ""

    def _log(self) -> str:
        return (self._folder / "follow.log").read_text(errors="replace")[-4000:]

    def kill_reader(self, after_s: float) -> None:
        reader = self._reader()
        time.sleep(after_s)
        reader.send_signal(signal.SIGKILL)
        reader.wait()
        del self._running[reader.pid]
        self._start()

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


def succeed(commands: ForkedCommands, folder: Path, environ: dict[str, str], *arguments: str) -> None:
    """A command that must succeed, if need be once the lease of a killed process has run out."""
    done = commands.run(*arguments, directory=folder, environ=environ)
    if done.code == 75:
        time.sleep(6)
        done = commands.run(*arguments, directory=folder, environ=environ)
    assert done.code == 0, done.out + done.err


@contextmanager
def database(server: Any) -> Iterator[Any]:
    """A cursor at a server with an empty database `kills`, which is its own."""
    with closing(server.connect(autocommit=True, charset="utf8mb4")) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE kills CHARACTER SET utf8mb4")
        try:
            cursor.execute("USE kills")
            yield cursor
        finally:
            cursor.execute("DROP DATABASE kills")


@pytest.mark.parametrize(
    ("kills", "server"),
    [
        pytest.param(3, "mysql9", marks=pytest.mark.crash_sample),
        pytest.param(50, "mysql9", marks=pytest.mark.matrix),
        pytest.param(50, "mariadb", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.slow
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
        (tmp_path / "kills.yaml").write_text(PIPELINE.format(folder=tmp_path))
        lockstep("extract", "kills.yaml")  # begins here
        with busy(source, range(3)), closing(Followers(tmp_path, environ)) as followers:
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
