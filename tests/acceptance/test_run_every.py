"""`lockstep run --every`: the target follows the source, run by run, until a signal; errors that pass do not end it."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lab.forked_commands import Started
from tests.lab.pipeline_file import sharded

PATIENCE_S = 90


class Following:
    """A command that follows a source, and its two servers."""

    def __init__(self, source: Any, target: Any, name: str, process: Started) -> None:
        self.source, self.target, self.name, self.process = source, target, name, process

    def change(self, *statements: str) -> None:
        with self.source.connect(self.name, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self) -> list[tuple[Any, ...]]:
        both = "SELECT id, n FROM orders_0 UNION ALL SELECT id, n FROM orders_1 ORDER BY 1"
        return self.target.run(both, database=self.name)

    def answers(self) -> list[Any]:
        """Of each run so far."""
        return [json.loads(line) for line in self.process.log.read_text().splitlines() if line.startswith("{")]

    def becomes(self, wanted: list[tuple[Any, ...]]) -> None:
        self.until(lambda: self.rows() == wanted)

    def until(self, reached: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            assert not self.process.ended, self.process.log.read_text()
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
        server.run(f"CREATE DATABASE {name}")
    lockstep.write(
        "shop",
        name,
        source="start: latest",
        targets=[sharded("shards", "env:TARGET", "orders", name)],
        snapshot="mode: initial",
        limits="lease_s: 5",
    )
    lockstep.environ |= {"SHOP": source.url, "TARGET": target.url}
    source.run(
        "CREATE TABLE orders (id INT PRIMARY KEY, n INT)", "INSERT INTO orders VALUES (1, 1), (2, 2)", database=name
    )
    with lockstep.started("run", "shop.yaml", "--every", "1s") as process:
        yield Following(source, target, name, process)


@pytest.mark.timeout(400)
def test_a_target_follows_its_source_until_a_signal(lockstep: Any, mariadb: Any, mariadb_target: Any) -> None:
    with following(lockstep, mariadb, mariadb_target) as line:
        line.becomes([(1, 1), (2, 2)])  # rows that were there before are copied
        for number in range(3, 6):
            line.change(
                f"INSERT INTO orders VALUES ({number}, {number})", f"UPDATE orders SET n = n + 1 WHERE id = {number}"
            )
            line.becomes([(1, 1), (2, 2), *((at, at + 1) for at in range(3, number + 1))])
        line.until(lambda: sum(answer["rows"] for answer in line.answers()) == 2 + 3 * 2)
        line.process.send(signal.SIGTERM)  # which also ends a run that is under way
        # 143 where the machine is too slow for it to unwind in time
        assert line.process.wait(PATIENCE_S) in (0, 143), line.process.log.read_text()
        answers = line.answers()
        assert len(answers) >= 4
        assert len({answer["run_id"] for answer in answers}) == len(answers)
        assert all(answer["targets"] for answer in answers)
