"""What an extractor takes of memory does not depend on how large a transaction is, or an event of it, and in which form
the log holds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.integration.draining import draining, killed_inside_a_transaction
from tests.lab.lab import Lab
from tests.lab.origin import Origin

RING_MIB = 80
LEASE_S = 5
ROWS = 1_000_000


class Large(Lab):
    """A pipeline that captures a table of large transactions, from now on."""

    def kill(self) -> None:
        """A drain, in the middle of a transaction."""
        killed_inside_a_transaction(self.file, self.origin.sql.url, self.folder / "stage")
        assert sum(batch.rows for batch in self.chain) == 0
        time.sleep(LEASE_S + 0.2)

    def drain(self) -> None:
        with draining(self.file, self.origin.sql.url) as worker:
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
    limits = {"ring_mib": RING_MIB, "lease_s": LEASE_S}
    with Large(tmp_path, origin, tables=rf"include: ['{origin.name}\.t']", limits=limits) as line:
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


@pytest.mark.parametrize("table", ["t", pytest.param("other", marks=pytest.mark.matrix)])
def test_a_compressed_transaction_larger_than_memory_takes_no_more_than_any(
    line: Large, run: Callable[..., object], table: str
) -> None:
    with compressed(line.origin, run):
        run(insert(table))
    if table == "t":
        line.kill()
    line.drain()
    if table == "t":
        line.assert_staged()
    else:
        assert sum(batch.rows for batch in line.chain) == 0


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
            run("INSERT INTO other SELECT 2, '', w FROM other")
    line.drain()
