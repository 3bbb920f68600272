"""Copies of existing rows beside writes that go on: whatever the order, the stage ends with the source's rows."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest

from cdc_core.extract.extractor import default_holder
from cdc_core.meta import Meta
from cdc_core.model.coverage import How
from cdc_core.sink import Capture
from cdc_core.snapshot import copier
from cdc_core.snapshot.copier import copier_lease, copy_tables
from cdc_core.snapshot.pending import pending
from cdc_core.snapshot.staging import Staged, finish_decided, stage_due
from cdc_core.stage.reader import table_state
from tests.integration.line import Line

ROWS = 1500
TABLES = {
    "number": "CREATE TABLE number (id BIGINT UNSIGNED PRIMARY KEY, v INT, w VARCHAR(20))",
    "pair": "CREATE TABLE pair (name VARCHAR(12) COLLATE utf8mb4_general_ci, id INT, v INT, w VARCHAR(20), "
    "PRIMARY KEY (name, id))",
    "late": "CREATE TABLE late (day DATE, id DECIMAL(20,4), v INT, w VARCHAR(20), PRIMARY KEY (id, day))",
}
_KEYS: dict[str, Callable[[int], str]] = {
    "number": lambda n: f"id = {n if n % 7 else n + (1 << 63)}",
    "pair": lambda n: f"name = '{'aAéEzß'[n % 6]}{n % 11}' AND id = {n // 11 - 40}",
    "late": lambda n: f"day = '2024-0{n % 9 + 1}-11' AND id = {n - 700}.{n % 4}",
}


def insert(table: str, n: int, v: int) -> str:
    """An INSERT of the n-th row; quietly nothing where another row has its key."""
    pairs = [one.split(" = ") for one in _KEYS[table](n).split(" AND ")]
    names, values = ", ".join(name for name, _ in pairs), ", ".join(value for _, value in pairs)
    return f"INSERT IGNORE INTO {table} ({names}, v, w) VALUES ({values}, {v}, 'w{v}')"


def write(line: Line, chance: random.Random, stop: threading.Event) -> None:
    """Transactions of an application: inserts, updates, deletes, changes of keys, rollbacks."""
    with closing(line.origin.sql.connect(line.origin.name)) as connection, connection.cursor() as cursor:
        while not stop.is_set():
            try:
                for _ in range(chance.randint(1, 5)):
                    table, n, m = chance.choice(list(TABLES)), chance.randrange(2 * ROWS), chance.randrange(2 * ROWS)
                    v = chance.randrange(10**6)
                    cursor.execute(
                        chance.choice(
                            [
                                insert(table, n, v),
                                f"UPDATE {table} SET v = {v} WHERE {_KEYS[table](n)}",
                                f"DELETE FROM {table} WHERE {_KEYS[table](n)}",
                                f"UPDATE IGNORE {table} SET {_KEYS[table](m).replace(' AND ', ', ')} "
                                f"WHERE {_KEYS[table](n)}",
                            ]
                        )
                    )
                connection.rollback() if chance.random() < 0.1 else connection.commit()
            except pymysql.err.OperationalError:  # a deadlock
                connection.rollback()


@contextmanager
def writers(line: Line, seed: int, count: int = 2) -> Iterator[None]:
    stop = threading.Event()
    threads = [
        threading.Thread(target=write, args=(line, random.Random(seed * 10 + one), stop)) for one in range(count)
    ]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        stop.set()
        for one in threads:
            one.join()


def read(line: Line, tables: list[str] | None = None) -> dict[str, Any]:
    """Reads chunks of the pending tables, or of these."""
    environ = {"SOURCE": line.origin.sql.url}
    with (
        Meta.open(line.pipeline.meta.url) as meta,
        copier_lease(meta, "shop", "shop", default_holder()) as lease,
    ):
        finish_decided(meta, line.store, "shop", lease)
        names = [f"{line.origin.name}.{one}" for one in tables or ()] or [one.name for one in pending(meta, "shop")]
        chosen = [tuple(name.split(".", 1)) for name in names]
        return copy_tables(line.pipeline, "shop", chosen, meta=meta, store=line.store, lease=lease, environ=environ)  # type: ignore[arg-type]


def stage(line: Line) -> Staged:
    routes = Capture(line.pipeline.tables, line.pipeline.routes).route
    with (
        Meta.open(line.pipeline.meta.url) as meta,
        copier_lease(meta, "shop", "shop", default_holder()) as lease,
    ):
        return stage_due(meta, line.store, line.pipeline, "shop", lease, routes=routes)


def at_source(line: Line, table: str) -> list[tuple[Any, ...]]:
    with closing(line.origin.sql.connect(line.origin.name)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return sorted(cursor.fetchall(), key=repr)


def in_stage(line: Line, table: str) -> list[tuple[Any, ...]]:
    found = table_state(line.store, line.chain, table)
    columns = [found.column(name).to_pylist() for name in found.schema.names if not name.startswith("_cdc_")]
    return sorted(zip(*columns, strict=True), key=repr)


def fill(line: Line, rows: int = ROWS) -> None:
    with closing(line.origin.sql.connect(line.origin.name)) as connection, connection.cursor() as cursor:
        for table, definition in TABLES.items():
            cursor.execute(definition)
            for n in range(0, rows):
                cursor.execute(insert(table, n, n))
            connection.commit()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(4)
    monkeypatch.setattr(copier, "chunk_rows", lambda size_bytes, row_bytes: chance.choice([1, 7, 90, 400]))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_copy_beside_writers_ends_with_the_rows_of_the_source(
    make_line: Callable[..., Line], small_chunks: None, seed: int
) -> None:
    line = make_line()
    fill(line)
    line = make_line()  # it begins after the rows
    with writers(line, seed):
        time.sleep(0.2)
        line.drain()
        assert set(line.coverage.values()) == {How.EXISTING}
        reader = threading.Thread(target=read, args=(line,))
        reader.start()
        while reader.is_alive():
            line.drain()
        reader.join()
        stage(line)
        while pending_tables(line):
            line.drain()
            stage(line)
        assert set(line.coverage.values()) == {How.COPIED}
    line.drain()
    for table in TABLES:
        assert in_stage(line, table) == at_source(line, table), table


def pending_tables(line: Line) -> list[str]:
    with Meta.open(line.pipeline.meta.url) as meta:
        return [one.name for one in pending(meta, "shop")]
