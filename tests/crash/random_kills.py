"""What the tests with kills at random moments have in common: a database with tables of every kind, a mixed workload,
rows that change without row events, and how everything ends.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_core.config import Pipeline
from cdc_core.meta import Meta
from cdc_core.model.batch import Manifest
from cdc_core.operations.apply.retention import sweep
from cdc_core.operations.copy.pending import pending
from cdc_core.stage import manifest as manifests
from cdc_core.stage.files import FileStore
from cdc_core.stage.stores import open_store
from tests.lab.forked_commands import ForkedCommands
from tests.lab.opened import opened
from tests.lab.staged_tables import table_state

MANY = int(os.environ.get("LOCKSTEP_KILLS", "50"))
SEED = os.environ.get("LOCKSTEP_SEED", "")
"""Of one run of the long tests: several short runs of different seeds are as good as a long one."""
LIMITS = "lease_s: 5, batch_rows: 500, batch_age_s: 1, ring_mib: 1"
TABLES = {
    "plain": "(id INT PRIMARY KEY, name VARCHAR(40), amount DECIMAL(20,6), at DATETIME(6), raw VARBINARY(40))",
    "twin": "(a INT, b VARCHAR(20), note TEXT, PRIMARY KEY (a, b))",
    "no_key": "(n INT, word VARCHAR(20))",
    "large": "(id INT PRIMARY KEY, filler VARCHAR(300))",
}
PARTED = (
    "(id INT PRIMARY KEY, v INT, filler VARCHAR(6000)) "
    "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (300), PARTITION p1 VALUES LESS THAN MAXVALUE)"
)
ROWS = {
    "plain": "SELECT seq, 'old', seq / 7, NOW(6), 'raw' FROM numbers WHERE seq < 400",
    "twin": "SELECT seq % 50, seq, 'old' FROM numbers WHERE seq < 1000",
    "no_key": "SELECT seq % 5, 'old' FROM numbers WHERE seq < 200",
    "large": "SELECT seq, REPEAT('o', 300) FROM numbers",
    "parted": "SELECT seq, 0, REPEAT('p', 6000) FROM numbers WHERE seq < 600",
}
"""Several chunks each for `large` and `parted`, of the least size that a pipeline may set."""


def filled(cursor: pymysql.cursors.Cursor) -> None:
    """Makes the tables of ROWS in the database of the cursor, with rows."""
    cursor.execute("CREATE TABLE numbers (seq INT PRIMARY KEY)")
    cursor.executemany("INSERT INTO numbers VALUES (%s)", range(8000))
    for table, columns in {**TABLES, "parted": PARTED}.items():
        cursor.execute(f"CREATE TABLE {table} {columns}")
        cursor.execute(f"INSERT INTO {table} {ROWS[table]}")


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
        for future in working:
            future.result()


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


def change_unlogged(cursor: pymysql.cursors.Cursor, chance: random.Random, number: int) -> None:
    """Rows change, and the log does not carry them."""
    swap = (
        "CREATE TABLE plain_next LIKE plain",
        "INSERT INTO plain_next SELECT * FROM plain WHERE id % 3",
        "RENAME TABLE plain TO plain_former, plain_next TO plain",
        "DROP TABLE plain_former",
    )
    kinds = (
        ("ALTER TABLE parted TRUNCATE PARTITION p0",),
        ("ALTER TABLE parted TRUNCATE PARTITION p1",),
        (f"ALTER TABLE twin ADD COLUMN more{number} INT NOT NULL DEFAULT 5",),
        ("TRUNCATE TABLE no_key",),
        swap,
    )
    for statement in chance.choice(kinds):
        cursor.execute(statement)
    first = chance.randrange(600)
    cursor.execute(
        "REPLACE INTO parted SELECT seq, %s, REPEAT('q', 6000) FROM numbers WHERE seq BETWEEN %s AND %s",
        (number, first, first + 150),
    )


def sweep_all(pipeline: Pipeline, *, leftovers: bool) -> None:
    """Removes what ended attempts left, however young. leftovers: unfinished files too, while nothing writes any."""
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta, pytest.MonkeyPatch.context() as patch:
        if not leftovers:
            patch.setattr(FileStore, "leftovers", lambda _: iter(()))
        sweep(opened(pipeline, meta, store=open_store(pipeline.stage.uri)), older_than_s=-60.0)


def settle(lockstep: Any, pipeline: Pipeline) -> None:
    """Quiet. A copy may go on from chunks that were read before rows changed unlogged: the next one counts then."""
    for _ in range(2):
        lockstep("snapshot", "kills.yaml")
        with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
            if not pending(meta, "kills"):
                break
    lockstep("extract", "kills.yaml", "--until", "now")
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        assert pending(meta, "kills") == ()
        assert (meta.copies.chunks("kills"), meta.copies.find("kills"), meta.copied.decided("kills")) == ((), (), ())


def chain_of(pipeline: Pipeline) -> list[Manifest]:
    return list(manifests.chain(open_store(pipeline.stage.uri), "kills"))


def staged_equals_source(pipeline: Pipeline, cursor: pymysql.cursors.Cursor) -> None:
    store, batches = open_store(pipeline.stage.uri), chain_of(pipeline)
    for table in ROWS:
        cursor.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        held = Counter(cursor.fetchall())
        state = table_state(store, batches, table).select(names)
        found = Counter(tuple(row.values()) for row in state.to_pylist())
        assert found == held, (table, list((found - held).items())[:3], list((held - found).items())[:3])
