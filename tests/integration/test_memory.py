"""What an extractor takes of memory does not depend on how large a transaction is, or an event of it, and in which form
the log holds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.lab.lab import Lab
from tests.lab.origin import Origin

RING_MIB = 80
ROWS = 1_000_000


_DRAIN_AND_PEAK = """
import sys
from pathlib import Path
from cdc_core.config import load
from cdc_core.operations.extract import Extractor
from tests.lab.opened import opened
from cdc_core.meta import Meta
pipeline = load(Path(sys.argv[1]))
with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta, Extractor(opened(pipeline, meta), "shop") as extractor:
    extractor.drain()
print(next(row.split()[1] for row in open("/proc/self/status") if row.startswith("VmHWM")))
"""


class Large(Lab):
    """A pipeline that captures a table of large transactions, from now on, and is drained in processes."""

    def _draining(self) -> subprocess.Popen[str]:
        """Prints the most memory that it took, in KiB."""
        command = [sys.executable, "-c", _DRAIN_AND_PEAK, str(self.file)]
        return subprocess.Popen(command, env={**os.environ, **self.environ}, stdout=subprocess.PIPE, text=True)

    def kill(self) -> None:
        """A drain, as soon as pieces of the transaction lie in part files."""
        with self._draining() as worker:
            while not any(part.stat().st_size for part in (self.folder / "stage").rglob("*.parquet")):
                assert worker.poll() is None
                time.sleep(0.01)
            worker.send_signal(signal.SIGKILL)
        assert sum(batch.rows for batch in self.chain) == 0
        self.expire_leases()

    def drain(self) -> None:
        with self._draining() as worker:
            peak_kib, _ = worker.communicate()
        assert worker.returncode == 0
        assert int(peak_kib) <= (RING_MIB + 300) << 10

    def assert_staged(self) -> None:
        """All rows, in one transaction."""
        assert [(batch.rows, batch.transactions) for batch in self.chain if batch.rows] == [(ROWS, 1)]
        self.assert_intact()
        staged = self.changes()
        assert pc.sum(staged["id"]).as_py() == ROWS * (ROWS + 1) // 2
        assert pc.count_distinct(staged["_cdc_row"]).as_py() == ROWS
        assert pc.count_distinct(staged["_cdc_seq"]).as_py() == 1


@pytest.fixture(scope="module", params=[pytest.param("mariadb", marks=pytest.mark.matrix), "mysql9"])
def any_server(request: pytest.FixtureRequest) -> object:
    return request.getfixturevalue(request.param)


@pytest.fixture
def line(origin: Origin, tmp_path: Path) -> Iterator[Large]:
    origin.execute(*(f"CREATE TABLE {name} (id INT PRIMARY KEY, v VARCHAR(40), w LONGTEXT)" for name in ("t", "other")))
    tables = rf"include: ['{origin.name}\.t']"
    with Large(tmp_path, origin, tables=tables, limits=f"ring_mib: {RING_MIB}") as line:
        yield line


@pytest.fixture
def run(origin: Origin) -> Iterator[Callable[..., object]]:
    """A session."""
    with origin.session() as run:
        yield run


@contextmanager
def compressed(origin: Origin, run: Callable[..., object]) -> Iterator[None]:
    """What the session changes in here is compressed in the log."""
    setting = "GLOBAL log_bin_compress" if origin.mariadb else "SESSION binlog_transaction_compression"
    run(f"SET {setting} = ON")
    yield
    run(f"SET {setting} = OFF")


def insert(table: str, rows: int = ROWS) -> str:
    """Text that zstd makes half as large, at best."""
    digits = "SELECT 0 d" + "".join(f" UNION ALL SELECT {n}" for n in range(1, 10))
    number = "1 + " + " + ".join(f"d{k}.d * {10**k}" for k in range(6))
    joined = ", ".join(f"({digits}) d{k}" for k in range(6))
    text = f"LEFT(SHA2({number}, 256), 32)"
    return f"INSERT INTO {table} SELECT * FROM (SELECT {number} id, {text}, '' FROM {joined}) n WHERE id <= {rows}"


@pytest.mark.parametrize("form", ["plain", "compressed"])
def test_a_transaction_larger_than_memory_takes_no_more_than_any_and_is_whole_after_a_kill(
    line: Large, run: Callable[..., object], form: str
) -> None:
    with compressed(line.origin, run) if form == "compressed" else nullcontext():
        run(insert("t"))
    line.kill()
    line.drain()
    line.assert_staged()


def test_a_prepared_transaction_larger_than_memory_takes_no_more_than_any_also_after_a_restart(
    line: Large, run: Callable[..., object]
) -> None:
    name = line.origin.name
    with compressed(line.origin, run):
        run(f"XA START '{name}'", insert("t"), f"XA END '{name}'", f"XA PREPARE '{name}'")
    line.drain()
    assert sum(batch.rows for batch in line.chain) == 0
    run(f"XA COMMIT '{name}'")
    line.kill()
    line.drain()
    line.assert_staged()


@pytest.mark.matrix
def test_a_transaction_with_savepoints_larger_than_memory_takes_no_more_than_any(
    line: Large, run: Callable[..., object]
) -> None:
    run(
        "BEGIN",
        "INSERT INTO t VALUES (0, '', '')",
        "SAVEPOINT a",
        "DELETE FROM t",
        insert("t", ROWS - 1),
        "SAVEPOINT b",
    )
    run(f"UPDATE t SET w = 'x' WHERE id < {ROWS // 2}", "ROLLBACK TO b", f"INSERT INTO t VALUES ({ROWS}, '', '')")
    run("COMMIT")
    line.drain()
    assert sum(batch.rows for batch in line.chain) == ROWS + 2


@pytest.mark.matrix
def test_rows_that_are_not_captured_take_no_memory_however_large(line: Large) -> None:
    line.origin.execute("SET GLOBAL max_allowed_packet = 1 << 30")
    with line.origin.session() as run:
        run("INSERT INTO other SELECT 1, '', REPEAT(SHA2(1, 256), 6000000)")
        with compressed(line.origin, run):
            run("INSERT INTO other SELECT 2, '', w FROM other", "TRUNCATE TABLE other", insert("other"))
    line.drain()
    assert sum(batch.rows for batch in line.chain) == 0
