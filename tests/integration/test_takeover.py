"""Several extractors for one source: one reads, another takes over, and the old one, woken late, moves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.sandbox.mariadb import MariaDb
from tests.lab.lab import Lab
from tests.lab.origin import Origin

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90
EXTRACTOR = """
import os, signal, sys, threading, time
from cdc_core.cli.app import main
from cdc_core.operations.extract import extractor
from cdc_core.meta.batches import Batches
from cdc_core.meta.leases import Leases
from cdc_core.ring import Ring
from cdc_core.stage import files

# Who is stopped inside a transaction of SQLite locks out all others for as long: not while the lease is renewed.
quiet, renew_lease = threading.Lock(), Leases.renew

def renew(*args, **rest):
    with quiet:
        return renew_lease(*args, **rest)

Leases.renew = renew

def stop():
    with quiet:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1)  # another thread may have got the signal first, and this one would go on for a moment

def stopping(owner, name, after, nth=1):
    real, calls = getattr(owner, name), [0]
    def call(*args, **rest):
        calls[0] += 1
        mine = calls[0]
        if mine == nth and not after:
            stop()
        result = real(*args, **rest)
        if mine == nth and after:
            stop()
        return result
    setattr(owner, name, call)

STEPS = {
    "between two parts": (files.FileOutput, "publish", True),
    "before the manifest": (files.FileStore, "put_if_absent", False),
    "manifest put": (files.FileStore, "put_if_absent", True),
    "before meta": (Batches, "commit", False),
    "meta recorded": (Batches, "commit", True),
    "acknowledged": (Ring, "ack", True),
}
step = sys.argv.pop(1)
if step != "never":
    stopping(*STEPS[step])
sys.exit(main())
"""
STEPS = (
    pytest.param("between two parts", marks=pytest.mark.matrix),
    pytest.param("before the manifest", marks=pytest.mark.matrix),
    "manifest put",
    pytest.param("before meta", marks=pytest.mark.matrix),
    "meta recorded",
    pytest.param("acknowledged", marks=pytest.mark.matrix),
)
RECORDED = ("meta recorded", "acknowledged")


class Raced(Lab):
    """A pipeline for extractors in processes of their own."""

    inserted = 0

    def insert(self, count: int) -> None:
        for _ in range(count):
            self.inserted += 1
            self.origin.execute(f"INSERT INTO a VALUES ({self.inserted})", f"INSERT INTO b VALUES ({self.inserted})")

    @contextmanager
    def extractor(self, *options: str, step: str = "never") -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", EXTRACTOR, step, "extract", str(self.file), *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "SOURCE": self.origin.sql.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            print(process.communicate()[0])  # shown where a test fails

    def wait_until_staged(self) -> None:
        wait_for(lambda: self.ids("b") == list(range(1, self.inserted + 1)) and self.recorded())

    def recorded(self) -> bool:
        """Whether meta has the whole chain."""
        stored = self.meta.positions.checkpoint("shop")
        return stored is not None and stored.position == self.chain[-1].end.position

    def assert_one_chain(self) -> None:
        self.assert_intact()
        rows = sum(part.rows for batch in self.chain for part in batch.parts if part.table == "a")
        assert rows == self.inserted, "a change is staged twice, or not at all"


def wait_for(condition: object) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < give_up_s
        time.sleep(0.1)


def is_stopped(process: subprocess.Popen[str]) -> bool:
    assert process.poll() is None, process.communicate()[0]
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture(scope="module")
def any_server(mariadb: MariaDb) -> MariaDb:
    return mariadb


@pytest.fixture
def line(origin: Origin, tmp_path: Path) -> Iterator[Raced]:
    source, limits = "heartbeat_s: 0.5, read_timeout_s: 3", "lease_s: 5, batch_age_s: 0.5"
    with Raced(tmp_path, origin, source=source, limits=limits) as line:
        origin.execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
        yield line


@pytest.mark.parametrize("step", STEPS)
def test_an_extractor_stopped_at_any_step_of_a_commit_moves_nothing_when_it_wakes(line: Raced, step: str) -> None:
    line.insert(5)
    with line.extractor(step=step) as old:
        wait_for(lambda: is_stopped(old))
        line.insert(5)
        with line.extractor("--follow") as new:
            line.wait_until_staged()
            line.assert_one_chain()
            old.send_signal(signal.SIGCONT)
            said, _ = old.communicate(timeout=PATIENCE_S)
            if (
                old.returncode or step not in RECORDED
            ):  # what was recorded before it was stopped may be all it had to do
                assert old.returncode == 75, said
                assert "lease.lost" in said or "lease.lost" in said
            line.insert(5)
            line.wait_until_staged()
            new.send_signal(signal.SIGTERM)
            said, _ = new.communicate(timeout=PATIENCE_S)
            assert new.returncode in (0, 143), said  # 143 where the machine is too slow for it to unwind in time
    line.assert_one_chain()


def test_of_several_that_follow_one_reads_and_when_it_is_killed_another_takes_over(line: Raced) -> None:
    line.insert(5)
    with line.extractor("--follow") as one, line.extractor("--follow") as two:
        line.wait_until_staged()
        holder = line.meta.status.find().sources[0].holder
        first, second = (one, two) if holder.endswith(f":{one.pid}") else (two, one)
        first.kill()
        line.insert(5)
        line.wait_until_staged()
        assert second.poll() is None
    line.assert_one_chain()
