"""Several extractors for one source: one reads, another takes over, and the old one, woken late, moves nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import RetryLater
from examples.sandbox.mariadb import MariaDb
from tests.lab.forked_commands import ForkedCommands, Started
from tests.lab.lab import Lab
from tests.lab.origin import Origin
from tests.lab.waiting import wait_until

FILES = "cdc_core.stage.files"
STEPS = {
    "first bytes of a part": (FILES, "FileOutput.write", "after", 1),
    "before a part is durable": (FILES, "FileOutput.publish", "before", 1),
    "between two parts": (FILES, "FileOutput.publish", "after", 1),
    "before the manifest": ("cdc_core.stage.manifest", "commit", "before", 1),
    "manifest's temporary file": (FILES, "os.link", "before", 2),
    "manifest linked": (FILES, "os.link", "after", 2),
    "manifest put": ("cdc_core.stage.manifest", "commit", "after", 1),
    "meta recorded": ("cdc_core.meta.batches", "Batches.commit", "after", 1),
    "acknowledged": ("cdc_core.ring", "Ring.ack", "after", 1),
}
"""Module, function, when, and which of its calls: the first link is that of the start record."""
RECORDED = ("meta recorded", "acknowledged")


class Raced(Lab):
    """A pipeline for extractors in processes of their own."""

    def __init__(self, folder: Path, origin: Origin, commands: ForkedCommands) -> None:
        # Who is stopped while its lease is renewed would lock out all others of SQLite: it is not renewed so soon.
        limits = "lease_s: 300, batch_age_s: 0.5"
        super().__init__(folder, origin, source="heartbeat_s: 0.5, read_timeout_s: 3", limits=limits)
        self._commands = commands
        self._running: list[Started] = []
        self.inserted = 0

    def __exit__(self, *error: object) -> None:
        for process in self._running:
            process.kill()
            print(process.log.read_text())  # shown where a test fails
        super().__exit__(*error)

    def insert(self, count: int) -> None:
        for _ in range(count):
            self.inserted += 1
            self.origin.execute(f"INSERT INTO a VALUES ({self.inserted})", f"INSERT INTO b VALUES ({self.inserted})")

    def start(self, *options: str, stopped_at: str = "") -> Started:
        environ = {**os.environ, **self.environ}
        if stopped_at:
            module, function, when, call = STEPS[stopped_at]
            order: dict[str, Any] = {"module": module, "function": function, "when": when, "call": call}
            order |= {"victim": "process", "signal": "SIGSTOP", "flag": str(self.folder / "stopped")}
            environ["LOCKSTEP_CRASH"] = json.dumps(order)
        log = self.folder / f"{len(self._running)}.log"
        started = self._commands.start(
            "extract", self.file, *options, directory=self.folder, environ=environ, log=log
        )  # fmt: skip
        self._running.append(started)
        return started

    def stopped_at(self, step: str) -> Started:
        """An extractor that was stopped at a step, with its lease at an end. Another one where a thread of it was just
        writing to meta: SQLite would let nobody else write."""
        while True:
            self.insert(5)
            process = self.start(stopped_at=step)
            wait_until(partial(is_stopped, process))
            try:
                self.expire_leases()
            except RetryLater:
                process.kill()
                self._running.remove(process)
                (self.folder / "stopped").unlink()
                self.expire_leases()
            else:
                return process

    def ended(self, process: Started) -> tuple[int, str]:
        """Its exit code and what it said, once it has ended by itself."""
        wait_until(lambda: process.ended)
        self._running.remove(process)
        return process.kill(), process.log.read_text()

    def wait_until_staged(self) -> None:
        wait_until(lambda: self.ids("b") == list(range(1, self.inserted + 1)) and self.recorded())

    def recorded(self) -> bool:
        """Whether meta has the whole chain."""
        stored = self.meta.positions.checkpoint("shop")
        return stored is not None and stored.position == self.chain[-1].end.position

    def assert_one_chain(self) -> None:
        self.assert_intact()
        rows = sum(part.rows for batch in self.chain for part in batch.parts if part.table == "a")
        assert rows == self.inserted, "a change is staged twice, or not at all"


def is_stopped(process: Started) -> bool:
    assert not process.ended, process.log.read_text()
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture(scope="module")
def any_server(mariadb: MariaDb) -> MariaDb:
    return mariadb


@pytest.fixture
def line(origin: Origin, tmp_path: Path, commands: ForkedCommands) -> Iterator[Raced]:
    with Raced(tmp_path, origin, commands) as line:
        origin.execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
        yield line


@pytest.mark.parametrize("step", STEPS)
def test_an_extractor_stopped_at_any_step_of_a_commit_moves_nothing_when_it_wakes(line: Raced, step: str) -> None:
    old = line.stopped_at(step)
    line.insert(5)
    new = line.start("--follow")
    line.wait_until_staged()
    line.assert_one_chain()
    os.kill(old.pid, signal.SIGCONT)
    code, said = line.ended(old)
    # What was recorded before it was stopped may be all it had to do.
    if code or step not in RECORDED:
        assert code == 75, said
        assert "lease.lost" in said
    line.insert(5)
    line.wait_until_staged()
    os.kill(new.pid, signal.SIGTERM)
    code, said = line.ended(new)
    assert code in (0, 143), said  # 143 where the machine is too slow for it to unwind in time
    line.assert_one_chain()


def test_of_several_that_follow_one_reads_and_when_it_is_killed_another_takes_over(line: Raced) -> None:
    line.insert(5)
    one, two = line.start("--follow"), line.start("--follow")
    line.wait_until_staged()
    holder = line.meta.status.find().sources[0].holder
    assert holder is not None
    first, second = (one, two) if holder.endswith(f":{one.pid}") else (two, one)
    os.kill(first.pid, signal.SIGKILL)
    line.ended(first)
    line.expire_leases()
    line.insert(5)
    line.wait_until_staged()
    assert not second.ended
    line.assert_one_chain()
