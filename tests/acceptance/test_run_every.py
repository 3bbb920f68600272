"""`lockstep run --every`: the target follows the source, run by run, until a signal; errors that pass do not end it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.sandbox.mariadb import MariaDb
from tests.lab.pipeline_file import sharded

PATIENCE_S = 90


class Following:
    """A command that follows a source, and its two servers."""

    def __init__(self, source: Any, target: Any, name: str, process: subprocess.Popen[str]) -> None:
        self.source, self.target, self.name, self.process = source, target, name, process

    def change(self, *statements: str) -> None:
        with self.source.connect(self.name, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self) -> list[tuple[Any, ...]]:
        with self.target.connect(self.name, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, n FROM orders_0 UNION ALL SELECT id, n FROM orders_1 ORDER BY 1")
            return list(cursor.fetchall())

    def becomes(self, wanted: list[tuple[Any, ...]]) -> None:
        self.until(lambda: self.rows() == wanted)

    def until(self, reached: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            assert self.process.poll() is None, "it ended"
            try:
                if reached():
                    return
            except Exception:
                if time.monotonic() > end:
                    raise
            assert time.monotonic() < end
            time.sleep(0.1)


@contextmanager
def following(lockstep: Any, source: Any, target: Any) -> Iterator[Following]:
    name = f"every_{uuid.uuid4().hex[:8]}"
    for server in {source, target}:
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
    folder = Path(lockstep.directory)
    lockstep.write(
        "shop",
        name,
        source="start: latest",
        targets=[sharded("shards", "env:TARGET", "orders", name)],
        snapshot="mode: initial",
        limits="lease_s: 5",
    )
    lockstep.environ |= {"SHOP": source.url, "TARGET": target.url}
    with source.connect(name, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id INT PRIMARY KEY, n INT)")
        cursor.execute("INSERT INTO orders VALUES (1, 1), (2, 2)")
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            lockstep.command("run", "shop.yaml", "--every", "1s", "--json"),
            cwd=folder, env=lockstep.environment, stdout=out, stderr=err, text=True,
        )  # fmt: skip
        try:
            yield Following(source, target, name, process)
        finally:
            process.kill()
            process.wait()
            for server in {source, target}:
                with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
                    cursor.execute(f"DROP DATABASE {name}")


@pytest.mark.timeout(400)
def test_a_target_follows_its_source_until_a_signal(lockstep: Any, mariadb: Any, mariadb_target: Any) -> None:
    folder = Path(lockstep.directory)
    with following(lockstep, mariadb, mariadb_target) as line:
        line.becomes([(1, 1), (2, 2)])  # rows that were there before are copied
        for number in range(3, 6):
            line.change(
                f"INSERT INTO orders VALUES ({number}, {number})", f"UPDATE orders SET n = n + 1 WHERE id = {number}"
            )
            line.becomes([(1, 1), (2, 2), *((at, at + 1) for at in range(3, number + 1))])
        line.until(lambda: sum(one["rows"] for one in answers_in(folder)) == 2 + 3 * 2)
        line.process.send_signal(signal.SIGTERM)  # which also ends a run that is under way
        # 143 where the machine is too slow for it to unwind in time
        assert line.process.wait(PATIENCE_S) in (0, 143), (folder / "err").read_text()
        answers = answers_in(folder)
        assert len(answers) >= 4
        assert len({one["run_id"] for one in answers}) == len(answers)
        assert all(one["targets"] for one in answers)


def answers_in(folder: Path) -> list[Any]:
    return [json.loads(text) for text in (folder / "out").read_text().splitlines()]


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_target_that_is_away_for_a_while_is_caught_up_with(lockstep: Any, mariadb: Any) -> None:
    folder = Path(lockstep.directory)
    with MariaDb.start(server_id=6) as target, following(lockstep, mariadb, target) as line:
        line.becomes([(1, 1), (2, 2)])
        target.stop()
        line.change("INSERT INTO orders VALUES (3, 3)")
        line.until(lambda: "tried again in 1 s" in (folder / "err").read_text())
        target.restart()
        line.change("INSERT INTO orders VALUES (4, 4)")
        line.becomes([(1, 1), (2, 2), (3, 3), (4, 4)])
        line.process.send_signal(signal.SIGTERM)
        assert line.process.wait(PATIENCE_S) in (0, 143), (folder / "err").read_text()
