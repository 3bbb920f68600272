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

from cdc_core.meta import Meta
from cdc_core.stage import manifest as manifests
from cdc_core.stage.stage_reader import table_state
from cdc_core.stage.stores import open_store
from tests.conftest import SourceDatabase

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


class Line:
    """A pipeline file on a database of the shared MariaDB, for extractors in processes of their own."""

    def __init__(self, database: SourceDatabase, tmp_path: Path) -> None:
        self.database = database
        self.file = tmp_path / "shop.yaml"
        with database.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            file, offset = cursor.fetchone()[:2]
        self.url = f"sqlite:///{tmp_path}/meta.db"
        self.store = open_store((tmp_path / "stage").as_uri())
        self.file.write_text(
            f"""
            pipeline: shop
            sources:
              - {{name: shop, connection: env:SOURCE, server_id: 78,
                 start: {{position: {{file: {file}, offset: {offset}}}}}, heartbeat_s: 0.5, read_timeout_s: 3}}
            tables: {{include: ['{database.name}\\..*']}}
            routes: [{{match: '{database.name}\\.(.*)', to: '\\1'}}]
            stage: {{uri: {self.store.uri}}}
            meta: {{url: "{self.url}"}}
            limits: {{lease_s: 5, batch_age_s: 0.5}}
            """
        )
        self.inserted = 0

    def insert(self, count: int) -> None:
        for _ in range(count):
            self.inserted += 1
            self.database.execute(f"INSERT INTO a VALUES ({self.inserted})", f"INSERT INTO b VALUES ({self.inserted})")

    @contextmanager
    def extractor(self, *options: str, step: str = "never") -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", EXTRACTOR, step, "extract", str(self.file), *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "SOURCE": self.database.server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            print(process.communicate()[0])  # shown where a test fails

    def staged(self) -> list[int]:
        batches = list(manifests.chain(self.store, "shop"))
        if not any(part.table == "b" for batch in batches for part in batch.parts):
            return []
        return table_state(self.store, batches, "b").column("id").to_pylist()

    def wait_until_staged(self) -> None:
        wait_for(lambda: self.staged() == list(range(1, self.inserted + 1)) and self.recorded())

    def recorded(self) -> bool:
        """Whether meta has the whole chain."""
        with Meta.open(self.url, "shop") as meta:
            stored = meta.positions.checkpoint("shop")
        return stored is not None and stored.position == list(manifests.chain(self.store, "shop"))[-1].end.position

    def assert_one_chain(self) -> None:
        chain = list(manifests.chain(self.store, "shop"))
        assert manifests.verify(self.store, "shop", deep=True) == []
        rows = [row for batch in chain for part in batch.parts if part.table == "a" for row in range(part.rows)]
        assert len(rows) == self.inserted, "a change is staged twice, or not at all"
        with Meta.open(self.url, "shop") as meta:
            stored = meta.positions.checkpoint("shop")
            assert stored is not None
            assert stored.position == chain[-1].end.position
            assert [batch.batch_id for batch in meta.batches.find("shop")] == [batch.batch_id for batch in chain]


def wait_for(condition: object) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < give_up_s
        time.sleep(0.1)


def is_stopped(process: subprocess.Popen[str]) -> bool:
    assert process.poll() is None, process.communicate()[0]
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def line(source_database: SourceDatabase, tmp_path: Path) -> Line:
    made = Line(source_database, tmp_path)
    source_database.execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    return made


@pytest.mark.parametrize("step", STEPS)
def test_an_extractor_stopped_at_any_step_of_a_commit_moves_nothing_when_it_wakes(line: Line, step: str) -> None:
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


def test_of_several_that_follow_one_reads_and_when_it_is_killed_another_takes_over(line: Line) -> None:
    line.insert(5)
    with line.extractor("--follow") as one, line.extractor("--follow") as two:
        line.wait_until_staged()
        with Meta.open(line.url, "shop") as meta:
            holder = meta.status.find().sources[0].holder
        first, second = (one, two) if holder.endswith(f":{one.pid}") else (two, one)
        first.kill()
        line.insert(5)
        line.wait_until_staged()
        assert second.poll() is None
    line.assert_one_chain()
