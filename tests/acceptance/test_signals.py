"""A command that is told to end, at any moment behind a slow link: it ends, keeps what is complete, and its next try
begins at once. The log is read once, however often reading is interrupted."""

from __future__ import annotations

import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.pipeline_file import sharded
from tests.lab.tcp_proxy import TcpProxy

HANGS_S = 30
"""A process that has not ended by then after SIGTERM is a defect; containers are killed."""
TRANSACTION_BYTES = 200_000
PATIENCE_S = 120


class Place:
    """A pipeline from a source to a target, both behind links that can be slow."""

    def __init__(self, lockstep: Any, source: Any, target: Any, links: tuple[TcpProxy, TcpProxy]) -> None:
        self.lockstep, self.source, self.target = lockstep, source, target
        self.links = links
        self.name = f"told_{uuid.uuid4().hex[:8]}"
        self.folder = Path(lockstep.directory)
        lockstep.environ |= {
            name: server.url.replace(f":{server.port}", f":{link.port}")
            for name, server, link in zip(("SHOP", "TARGET"), (source, target), links, strict=True)
        }

    def begin(self, start: str) -> None:
        self.lockstep.write(
            "shop",
            self.name,
            source=f"start: {start}",
            targets=[sharded("shards", "env:TARGET", "orders", self.name)],
            snapshot="mode: initial, chunk_mib: 1",
            limits="lease_s: 600",
        )

    def execute(self, *statements: str) -> Any:
        return self.source.run(*statements, database=self.name)

    def log_bytes(self) -> int:
        return sum(int(row[1]) for row in self.execute("SHOW BINARY LOGS"))

    def slow(self, slow: bool) -> None:
        for link in self.links:
            link.slow(0.05 if slow else 0.0, 32 << 10)

    def told(self, arguments: tuple[str, ...], until: Callable[[], bool]) -> None:
        """A command is told to end when this is true, unless it has ended before."""
        with self.lockstep.started(*arguments) as process:
            give_up_s = time.monotonic() + PATIENCE_S
            while not process.ended and not until():
                assert time.monotonic() < give_up_s
                time.sleep(0.02)
            process.send(signal.SIGTERM)
            assert process.wait(HANGS_S) in (0, 143, -signal.SIGTERM), process.log.read_text()

    def position(self) -> Any:
        with self.lockstep.opened() as ready:
            checkpoint = ready.meta.positions.checkpoint("shop")
        return checkpoint and checkpoint.position

    def rows(self, of: str) -> list[tuple[Any, ...]]:
        server, tables = (self.source, ["orders"]) if of == "source" else (self.target, ["orders_0", "orders_1"])
        queries = (f"SELECT id, n, MD5(t) FROM {table}" for table in tables)
        return sorted(server.run(" UNION ALL ".join(queries), database=self.name))


@pytest.fixture
def place(lockstep: Any, mariadb: Any, mariadb_target: Any) -> Iterator[Place]:
    with TcpProxy(mariadb.port) as proxy, TcpProxy(mariadb_target.port) as other:
        made = Place(lockstep, mariadb, mariadb_target, (proxy, other))
        for server in (mariadb, mariadb_target):
            server.run(f"CREATE DATABASE {made.name}")
        made.execute("CREATE TABLE orders (id INT PRIMARY KEY, n INT, t LONGTEXT)")
        yield made


def change(place: Place, transactions: int, size_bytes: int) -> None:
    place.execute(*(
        f"INSERT INTO orders SELECT COALESCE(MAX(id), 0) + 1, {number}, REPEAT(MD5(RAND()), {size_bytes // 32}) "
        "FROM orders" for number in range(transactions)
    ))  # fmt: skip


@pytest.fixture(params=["FULL", pytest.param("NO_LOG", marks=pytest.mark.matrix)])
def metadata(request: Any, place: Place) -> Iterator[str]:
    place.execute(f"SET GLOBAL binlog_row_metadata = {request.param}")
    yield request.param
    place.execute("SET GLOBAL binlog_row_metadata = FULL")


@pytest.mark.timeout(600)
def test_each_try_reads_on_and_the_log_is_read_once(place: Place, metadata: str) -> None:
    """Tables that existed before, tables that are new, and a backlog that no single try reads to its end. Where the log
    does not name columns, it is read ahead once, too, before the position moves."""
    place.execute("FLUSH BINARY LOGS")
    file = place.execute("SHOW BINARY LOGS")[-1][0]
    place.begin(f"{{position: {{file: {file}, offset: 4}}}}")
    whole = metadata == "FULL"
    transactions = 12 if whole else 30
    change(place, transactions, TRANSACTION_BYTES)
    place.execute("CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    change(place, transactions, TRANSACTION_BYTES)
    backlog = int(place.execute("SHOW BINARY LOGS")[-1][1])
    place.slow(True)
    link, reached = place.links[0], [0]
    # While it is read ahead, the stream fills the buffers on its way.
    enough = (6 if whole else 30) * TRANSACTION_BYTES
    while reached[-1] < backlog:
        before = link.passed
        place.told(("extract", "shop.yaml"), lambda: link.passed > before + enough)  # noqa: B023
        reached.append(place.position().offset)
        assert len(reached) < 20, reached
    assert len(reached) > 2, "no try was interrupted"
    if whole:
        assert sorted(set(reached)) == reached, "a try has not moved the position"
        assert link.passed < backlog + len(reached) * 3 * TRANSACTION_BYTES
    place.slow(False)
    place.lockstep("run", "shop.yaml")
    assert place.rows("source") == place.rows("target")


COMMANDS: dict[str, tuple[str, ...]] = {
    "extract": ("extract", "shop.yaml"),
    "follow": ("extract", "shop.yaml", "--follow"),
    "snapshot": ("snapshot", "shop.yaml"),
    "run": ("run", "shop.yaml"),
    "every": ("run", "shop.yaml", "--every", "1s"),
    "verify": ("verify", "shop.yaml"),
    "repair": ("repair", "shop.yaml"),
    "stage verify": ("stage", "verify", "shop.yaml", "--deep"),
    "stage export": ("stage", "export", "shop.yaml", "orders", "-o", "exported.parquet", "--force"),
}
AGAIN = {"follow": "extract", "every": "run"}
"""The next try of a command that would not end by itself."""
ENDS_AS = {"verify": 4}
MOMENTS = [
    *((name, 1) for name in ("extract", "snapshot", "run")),
    *(
        pytest.param(name, seed, marks=pytest.mark.matrix)
        for seed in range(2, 7)
        for name in COMMANDS
    ),
]  # fmt: skip


@pytest.mark.parametrize(("command", "seed"), MOMENTS)
@pytest.mark.timeout(400)
def test_a_command_that_is_told_to_end_at_any_moment_ends_and_its_next_try_begins_at_once(
    place: Place, command: str, seed: int
) -> None:
    place.begin("latest")
    change(place, 20, 100_000)
    if command in ("verify", "repair", "stage verify", "stage export"):
        place.lockstep("run", "shop.yaml")
        damage(place)
        place.lockstep("verify", "shop.yaml", code=4)
    elif command != "snapshot":
        place.lockstep("extract", "shop.yaml")
    change(place, 20, 100_000)
    place.slow(True)
    moment_s = time.monotonic() + random.Random(f"{command} {seed}").uniform(1.5, 12.0)
    place.told(COMMANDS[command], lambda: time.monotonic() > moment_s)
    place.slow(False)
    place.lockstep(*COMMANDS[AGAIN.get(command, command)], code=ENDS_AS.get(command, 0))
    place.lockstep("repair", "shop.yaml", code=None)
    place.lockstep("run", "shop.yaml")
    assert place.rows("source") == place.rows("target")


def damage(place: Place) -> None:
    """A row that the target has lost."""
    place.target.run(*(f"DELETE FROM orders_{t} WHERE id = 5" for t in (0, 1)), database=place.name)
