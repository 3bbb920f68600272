"""A database on a real source, its log read to blocks, and blocks replayed to the rows that a table must have."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import pymysql

from cdc_core.config import CaptureRules, Source
from cdc_core.model.block import Block
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import DefinedSince, TableSchema
from cdc_core.mysql import connections
from cdc_core.source.capture import Capture
from cdc_core.source.host import source_server as server
from cdc_core.source.host.start_position import find_start
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.transactions.source_stream import SourceStream
from examples.sandbox.sql_server import SqlServer
from tests.lab.databases import own_database
from tests.lab.waiting import PATIENCE_S, wait_until

TABLES = (
    "CREATE TABLE customer (id INT PRIMARY KEY, name VARCHAR(40), credit DECIMAL(12,2), seen DATETIME(3))",
    "CREATE TABLE item (customer INT, line INT, text TEXT, PRIMARY KEY (line, customer))",
)

Rows = dict[tuple[Any, ...], dict[str, Any]]


@dataclass
class Origin:
    """One test's database on a source."""

    sql: SqlServer
    name: str
    server_id: int = 4100

    @cached_property
    def control(self) -> pymysql.Connection:
        """A session that the product asks its questions by."""
        return connections.connect(self.address(), where="test")

    def address(self, user: str = "", password: str = "") -> connections.Server:
        return connections.Server(self.sql.host, self.sql.port, user or self.sql.user, password or self.sql.password)

    def source(self, **more: Any) -> Source:
        return Source(name="origin", connection="env:ORIGIN", server_id=self.server_id, **more)

    @property
    def mariadb(self) -> bool:
        return server.facts(self.control).mariadb

    @contextmanager
    def session(self) -> Iterator[Callable[..., Any]]:
        """A session in the database that runs statements, each committed by itself unless in BEGIN."""
        with self.sql.connect(self.name, autocommit=True) as connection, connection.cursor() as cursor:

            def run(*statements: str) -> Any:
                for statement in statements:
                    cursor.execute(statement)
                return cursor.fetchall()

            yield run

    def execute(self, *statements: str) -> None:
        with self.session() as run:
            run(*statements)

    def execute_on_server(self, *statements: str) -> None:
        """Outside the database, each committed by itself."""
        self.sql.run(*statements)

    def purge_to(self, file: str) -> None:
        """The file is the oldest then. One that a stream still reads is kept until that has ended."""

        def purged() -> bool:
            self.sql.run(f"PURGE BINARY LOGS TO '{file}'")
            return server.binlog_files(self.control)[0].name == file

        wait_until(purged)

    def end(self) -> Checkpoint:
        return Checkpoint(server.end_position(self.control, 0))

    def start(self, start: Any = "latest", stored: Checkpoint | None = None) -> Checkpoint:
        """Where a source begins whose `start` is this."""
        return find_start(self.source(start=start), self.control, stored, server=self.address())

    def stream(
        self,
        start: Checkpoint,
        *,
        include: Sequence[str] = (),
        address: connections.Server | None = None,
        on_unlogged_change: str = "stop",
        on_truncate: str = "unlogged",
        on_unreadable: str = "stop",
        block_bytes: int = 16 << 20,
        history: Iterable[DefinedSince] = (),
        replica_host: str = "lockstep-origin",
        **source: Any,
    ) -> SourceStream:
        capture = Capture(CaptureRules(include=tuple(include) or (rf"{self.name}\..*",)))
        return SourceStream(
            self.source(**source),
            server=address or self.address(),
            start=start,
            capture=capture,
            replica_host=replica_host,
            policy=CapturePolicy(
                on_unlogged_change=on_unlogged_change,
                on_truncate=on_truncate,
                on_unreadable=on_unreadable,
            ),
            block_bytes=block_bytes,
            history=history,
        )

    def drain(self, start: Checkpoint, *, until: Position | None = None, **options: Any) -> list[Block]:
        """All blocks from `start` to the log's present end."""
        until = until or self.end().position
        with self.stream(start, **options) as stream:
            return read_to(stream, until)

    def rows(self, table: str) -> list[dict[str, Any]]:
        with self.sql.connect(self.name) as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(f"SELECT * FROM `{table}`")
            return list(cursor.fetchall())


def workload(origin: Origin, transactions: int, seed: int = 1) -> None:
    """Inserts, updates, deletes, key changes, multi-table, rolled-back and partly rolled-back transactions."""
    chance = random.Random(seed)
    with origin.session() as run:
        for n in range(transactions):
            key = chance.randrange(40)
            run("BEGIN")
            run(f"REPLACE INTO customer VALUES ({key}, 'näme {n}', {n}.25, NOW(3))")
            run(f"REPLACE INTO item VALUES ({key}, {n % 7}, REPEAT('x', {n % 300}))")
            if n % 5 == 0:
                run("SAVEPOINT here", f"DELETE FROM item WHERE line = {n % 3}", "ROLLBACK TO here")
            if n % 4 == 1:
                run(f"DELETE FROM customer WHERE id = {chance.randrange(40)}")
            if n % 6 == 2:
                run(f"UPDATE IGNORE customer SET id = id + 1000 WHERE id = {key}")
            if n % 3 == 0:
                who = chance.randrange(40)
                run(f"UPDATE IGNORE item SET line = line + 10, text = NULL WHERE customer = {who} AND line < 7")
            run("ROLLBACK" if n % 10 == 9 else "COMMIT")


def read_to(stream: SourceStream, until: Position) -> list[Block]:
    give_up_s = time.monotonic() + PATIENCE_S

    def stop() -> bool:
        assert time.monotonic() < give_up_s, f"still at {stream.position}, not at {until}"
        return stream.position >= until

    return list(stream.blocks(stop))


@contextmanager
def account(origin: Origin, *grants: str) -> Iterator[connections.Server]:
    """A new account with these privileges on everything."""
    user, password = origin.name, "Correct-horse-9"
    origin.execute(f"CREATE USER {user} IDENTIFIED BY '{password}'", f"GRANT {', '.join(grants)} ON *.* TO {user}")
    try:
        yield origin.address(user, password)
    finally:
        origin.execute(f"DROP USER {user}")


@contextmanager
def own_origin(server: SqlServer) -> Iterator[Origin]:
    """An empty database, which is dropped in the end."""
    with own_database(server) as name:
        origin = Origin(server, name)
        yield origin
        if "control" in origin.__dict__:
            origin.control.close()


def changes_in(blocks: Sequence[Block]) -> list[tuple[TableSchema, dict[str, Any]]]:
    """Every change with the definition of its table, in the order of their keys."""
    found = [(part.schema, row) for block in blocks for part in block.tables for row in part.rows.to_pylist()]
    return sorted(found, key=lambda change: (change[1]["_cdc_seq"], change[1]["_cdc_row"]))


def rows_in(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    """Every change as the blocks have them one after the other."""
    return [row for block in blocks for part in block.tables for row in part.rows.to_pylist()]


def ids_in(blocks: Iterable[Block]) -> list[Any]:
    return [row["id"] for row in rows_in(blocks)]


def replay(blocks: Sequence[Block]) -> dict[str, Rows]:
    """Tables by name, as the changes of all blocks in the order of their keys leave them."""
    tables: dict[str, Rows] = {}
    for schema, row in changes_in(blocks):
        table = tables.setdefault(schema.table, {})
        values = {column.name: row[column.name] for column in schema.columns}
        old = row["_before"] or values
        if row["_cdc_op"] != "c":
            gone = table.pop(tuple(old[name] for name in schema.key))
            assert {name: gone.get(name) for name in old} == old, "the before image is not the row that was there"
        if row["_cdc_op"] != "d":
            table[tuple(values[name] for name in schema.key)] = values
    return tables


def in_order(rows: Rows | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = list(rows.values()) if isinstance(rows, dict) else list(rows)
    return sorted(found, key=lambda row: str(sorted(row.items(), key=lambda item: item[0])))


def changes_of(blocks: Sequence[Block]) -> list[tuple[Any, ...]]:
    """Every change of all blocks with all its columns, by table and order key: the same however it was extracted."""
    return sorted(
        (schema.name, row["_cdc_seq"], row["_cdc_row"], repr(row), schema.id) for schema, row in changes_in(blocks)
    )


def assert_partition(blocks: Sequence[Block], start: Position, end: Position) -> None:
    """The blocks follow each other from start to end, and the entries of each cover all its bytes."""
    assert blocks[0].begin == start
    assert blocks[-1].end >= end
    for one, other in pairwise(blocks):
        assert one.end == other.begin
    for block in blocks:
        entries = block.entries
        assert entries.begin[0] == block.begin.offset
        assert (entries.begin[1:] == entries.end[:-1]).all()
        if block.end.file == block.begin.file:
            assert entries.end[-1] == block.end.offset
        counted = sum(part.rows.num_rows for part in block.tables)
        assert int(entries.rows.sum()) == counted
