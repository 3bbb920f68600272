"""What an extractor takes of memory does not depend on how large a transaction is, or an event of it, and in which form
the log holds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pytest

from cdc_core.stage import manifest as manifests
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stage_reader import changes
from cdc_core.stage.stores import open_store
from tests.integration.draining import draining, killed_inside_a_transaction
from tests.integration.source_origin import Origin

RING_MIB = 80
LEASE_S = 5
ROWS = 1_000_000


@dataclass
class Line:
    """A pipeline that captures table t of an origin, from now on."""

    origin: Origin
    pipeline: Path
    stage: Path
    store: ObjectStore

    def kill(self) -> None:
        """A drain, in the middle of a transaction."""
        killed_inside_a_transaction(self.pipeline, self.origin.sql.url, self.stage)
        assert sum(batch.rows for batch in self.chain) == 0
        time.sleep(LEASE_S + 0.2)

    def drain(self) -> None:
        with draining(self.pipeline, self.origin.sql.url) as worker:
            peak_kib, _ = worker.communicate()
        assert worker.returncode == 0
        assert int(peak_kib) <= (RING_MIB + 300) << 10

    @property
    def chain(self) -> list[manifests.Manifest]:
        return list(manifests.chain(self.store, "shop"))

    def assert_staged(self) -> None:
        """All rows, in one transaction."""
        assert [(batch.rows, batch.transactions) for batch in self.chain if batch.rows] == [(ROWS, 1)]
        assert manifests.verify(self.store, "shop", deep=True) == []
        staged = changes(self.store, self.chain, "t")
        assert pc.sum(staged["id"]).as_py() == ROWS * (ROWS + 1) // 2
        assert pc.count_distinct(staged["_cdc_row"]).as_py() == ROWS
        assert pc.count_distinct(staged["_cdc_seq"]).as_py() == 1


@pytest.fixture(scope="module", params=[pytest.param("mariadb", marks=pytest.mark.matrix), "mysql9"])
def any_server(request: pytest.FixtureRequest) -> object:
    return request.getfixturevalue(request.param)


@pytest.fixture
def line(origin: Origin, tmp_path: Path) -> Line:
    origin.execute(*(f"CREATE TABLE {name} (id INT PRIMARY KEY, v VARCHAR(40), w LONGTEXT)" for name in ("t", "other")))
    position = origin.end().position
    pipeline = tmp_path / "shop.yaml"
    pipeline.write_text(f"""
        pipeline: shop
        schedule: "0 * * * *"
        sources:
          - name: shop
            connection: env:SOURCE
            server_id: 78
            start: {{position: {{file: {position.file}, offset: {position.offset}}}}}
        tables: {{include: ['{origin.name}\\.t']}}
        routes: [{{match: '{origin.name}\\.(.*)', to: '\\1'}}]
        stage: {{uri: {(tmp_path / "stage").as_uri()}}}
        meta: {{url: "sqlite:///{tmp_path}/meta.db"}}
        limits: {{ring_mib: {RING_MIB}, lease_s: {LEASE_S}}}
        """)
    return Line(origin, pipeline, tmp_path / "stage", open_store((tmp_path / "stage").as_uri()))


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
    line: Line, run: Callable[..., object], table: str
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
    line: Line, run: Callable[..., object]
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
    line: Line, run: Callable[..., object]
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
def test_rows_that_are_not_captured_take_no_memory_however_large(line: Line) -> None:
    line.origin.execute("SET GLOBAL max_allowed_packet = 1 << 30")
    with line.origin.session() as run:
        run("INSERT INTO other SELECT 1, '', REPEAT(SHA2(1, 256), 6000000)")
        with compressed(line.origin, run):
            run("INSERT INTO other SELECT 2, '', w FROM other")
    line.drain()
