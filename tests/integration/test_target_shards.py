"""Shards of one table whose definitions differ: each row has the source's values, whichever shard it is in."""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.config import MysqlTable, MysqlTarget, Sharding
from cdc_core.errors import DataAtRisk
from cdc_core.model.merged_columns import SHARD_UNKNOWN
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.mysql.connections import connect, parse_url
from cdc_core.results import TableReader
from cdc_core.targets.bookkeeping.table_states import lock_table
from cdc_core.targets.reading.destination import Destination, ShardSessions
from cdc_core.targets.reading.sharding import shards_of
from cdc_core.targets.tables.compare_columns import outcomes
from cdc_core.targets.writing import load
from cdc_core.targets.writing.load import LoadFile
from cdc_core.targets.writing.row_lookup import locate_rows
from cdc_core.targets.writing.row_writer import write_shard
from cdc_core.targets.writing.shard_write import ShardWrite
from tests.integration.both_readers import both_readers  # noqa: F401
from tests.lab.refusals import raises
from tests.lab.target_rows import Winner, opened_destination, record_batch
from tests.unit.binlog.reading import decoded, events_since, known_schema, mark

TYPES = {"id": "bigint", "a": "int", "g": "int", "doc": "json"}
COLUMNS = {name: parse_column_type(kind).arrow for name, kind in TYPES.items()}
SCHEMA = TableSchema(
    "shop",
    "t",
    tuple(
        Column(name, parse_column_type(kind), nullable=name != "id", key_part=1 if name == "id" else None,
               generated=name == "g")
        for name, kind in TYPES.items()
    ),
)  # fmt: skip
GENERATED = {
    "missing": "CREATE TABLE {name} (id BIGINT PRIMARY KEY, a INT, doc JSON)",
    "plain": "CREATE TABLE {name} (id BIGINT PRIMARY KEY, a INT, g INT, doc JSON)",
    "generated": "CREATE TABLE {name} (id BIGINT PRIMARY KEY, a INT, g INT AS (a + 1) STORED, doc JSON)",
    "of another type": "CREATE TABLE {name} (id BIGINT PRIMARY KEY, a INT, g VARCHAR(9) AS (a + 1) STORED, doc JSON)",
}
DOC = '{"d": 12345678901234567890.123456789, "n": -1.50}'


@pytest.fixture
def databases(mysql9: Any, mariadb_target: Any) -> Iterator[Any]:
    """One on each of the two servers."""
    name = f"t_{uuid.uuid4().hex[:10]}"
    servers = (mysql9, mariadb_target)
    connections = [server.connect(autocommit=True) for server in servers]
    for connection in connections:
        with connection.cursor() as cursor:
            cursor.execute("SET GLOBAL local_infile = ON")
            cursor.execute(f"CREATE DATABASE {name}_0")
            cursor.execute(f"CREATE DATABASE {name}_1")
    yield name, servers, connections
    for connection in connections:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name}_0")
            cursor.execute(f"DROP DATABASE {name}_1")
        connection.close()


def opened(databases: Any, definitions: Sequence[str], order: Sequence[int], key: str) -> Destination:
    """Shard n is in the database n, on the server order[n]; made by definitions[n]."""
    name, servers, connections = databases
    for number, definition in enumerate(definitions):
        with connections[order[number]].cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {name}_{number}.t")
            cursor.execute(f"DROP TABLE IF EXISTS {name}_{number}._lockstep_tombstone_t")
            cursor.execute(definition.format(name=f"{name}_{number}.t"))
    rule = MysqlTable(
        database=name + "_{d}",
        table="t",
        sharding=Sharding(key=key, function="mod", databases=2, tables=1),
    )
    target = MysqlTarget(name="shards", connections=["env:S0", "env:S1"], tables={"shop.t": rule})
    environ = {f"S{number}": servers[at].url for number, at in enumerate(order)}
    return opened_destination(target, "shop.t", [SCHEMA], environ=environ)


def write(destination: Destination, rows: pa.RecordBatch, shards: Sequence[int]) -> list[str]:
    """As the jobs do: the rows to their shards, then what a read back says."""
    found = []
    for number, shard in enumerate(destination.shards):
        mine = rows.take(pa.array([at for at, of in enumerate(shards) if of == number], pa.int64()))
        with tempfile.TemporaryDirectory() as folder, LoadFile(Path(folder), destination.layout_of(shard)) as file:
            file.add(mine)
            write_shard(shard.server, ShardWrite("run", "shop.t", shard.facts, shard.table.placement), file)
            with ShardSessions() as sessions:
                layout = destination.layout_of(shard)
                found += outcomes(sessions.of(shard), shard.facts, mine, layout, scratch=Path(folder))
    return found


def rows_of(databases: Any, order: Sequence[int], columns: str = "*") -> list[tuple[Any, ...]]:
    name, _, connections = databases
    found: list[tuple[Any, ...]] = []
    for number, at in enumerate(order):
        with connections[at].cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM {name}_{number}.t")
            found += cursor.fetchall()
    return sorted(found)


def rows(*values: dict[str, Any], seq: int = 1, absent: tuple[str, ...] = ()) -> pa.RecordBatch:
    return record_batch([Winner("u", value, (seq, seq, 0, "one"), absent=absent) for value in values], COLUMNS)


def test_each_shard_takes_the_columns_and_the_json_that_it_has(databases: Any) -> None:
    for number, (first, second) in enumerate(itertools.product(GENERATED, repeat=2)):
        order = [(0, 1), (1, 0), (0, 0)][number % 3]
        destination = opened(databases, [GENERATED[first], GENERATED[second]], order, "id")
        given = rows(*({"id": at, "a": at * 10, "g": at * 10 + 1, "doc": DOC} for at in (1, 2)))
        assert write(destination, given, [1, 0]) == ["same", "same"]
        shown = rows_of(databases, order, "id, a, CAST(doc AS CHAR)")
        assert shown == [(1, 10, DOC), (2, 20, DOC)], (first, second)
        for kind, shard, at in ((first, 0, 2), (second, 1, 1)):
            if kind != "missing":
                (row,) = rows_of_shard(databases, order, shard)
                assert int(row[0]) == at * 10 + 1, (first, second)


def rows_of_shard(databases: Any, order: Sequence[int], number: int) -> list[tuple[Any, ...]]:
    name, _, connections = databases
    with connections[order[number]].cursor() as cursor:
        cursor.execute(f"SELECT g FROM {name}_{number}.t")
        return list(cursor.fetchall())


@pytest.mark.parametrize("second", ["plain", "generated"])
def test_a_row_that_moves_lacks_what_its_former_shard_does_not_have(databases: Any, second: str) -> None:
    """A value is never null just because the shard that the row leaves has no such column."""
    order = (0, 0)
    destination = opened(databases, [GENERATED["missing"], GENERATED[second]], order, "a")
    write(destination, rows({"id": 1, "a": 2, "g": 3, "doc": DOC}), [0])
    moved = rows({"id": 1, "a": 5}, seq=2, absent=("g", "doc"))
    moved = moved.append_column(SHARD_UNKNOWN, pa.array([True]))
    with tempfile.TemporaryDirectory() as scratch, ShardSessions() as sessions:
        located = locate_rows(destination, sessions, Path(scratch), moved)
    assert (located.shards.tolist(), list(located.left)) == ([1], [(0, 0)])
    if second == "generated":
        assert write(destination, located.rows, [1]) == ["same"]
        assert rows_of_shard(databases, order, 1) == [(6,)]
        return
    with raises(DataAtRisk, "target.absent_values"):
        write(destination, located.rows, [1])
    assert rows_of_shard(databases, order, 1) == []


@pytest.mark.parametrize("order", [(0, 0), (1, 1)])
def test_a_server_ends_the_session_of_a_paused_writer_and_the_next_one_opens_another(
    databases: Any, order: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "IDLE_S", 1)
    (shard, *_) = opened(databases, [GENERATED["plain"]] * 2, order, "id").shards
    with ShardSessions() as paused, ShardSessions() as other:
        first = paused.of(shard)
        with first.cursor() as cursor:
            lock_table(cursor, shard.facts.name)
        with other.of(shard).cursor() as cursor:
            lock_table(cursor, shard.facts.name)  # waits until the server has ended the first one
        second = paused.of(shard)
        assert second is not first
        with second.cursor() as cursor:
            cursor.execute("SELECT 1")


HASHED: dict[str, tuple[str, ...]] = {
    "DECIMAL(20,8)": ("0", "0.00000001", "-0.0000001", "0.000001", "12.5", "-0.0"),
    "DECIMAL(38,30)": ("0", "0.1", "-1e-30", "12345678"),
    "DECIMAL(50,10)": ("0", "0.0000000001", "-1.5", "1e39"),
    "DECIMAL(10,2) UNSIGNED": ("0", "0.01", "12345678.9"),
    "BIGINT UNSIGNED": ("0", "9223372036854775808", "18446744073709551615"),
    "BIGINT": ("-9223372036854775808", "-1", "9223372036854775807"),
    "MEDIUMINT UNSIGNED": ("0", "16777215"),
    "TINYINT": ("-128", "127"),
    "VARCHAR(20) CHARACTER SET utf8mb4": ("'a'", "'A'", "'a '", "'ä☂'", "''"),
    "CHAR(9) CHARACTER SET utf8mb4": ("'a'", "'b  '"),
    "VARBINARY(9)": ("'a'", "X'00FF'", "''"),
    "BINARY(4)": ("'a'", "X'FF00'", "''"),
    "ENUM('x','','ä') CHARACTER SET utf8mb4": ("'x'", "''", "'ä'"),
    "TIME(3)": ("'-01:02:03.4'", "'838:00:00'", "'0'"),
}
"""Types of shard keys, and values."""


@pytest.mark.parametrize("server", ["mariadb", "mysql9"])
def test_a_hash_is_what_the_server_computes_from_the_key_by_log_and_by_select(
    request: pytest.FixtureRequest, server: str
) -> None:
    """An application finds the shard of a row by `CRC32(key) % shards` in SQL."""
    from_server = request.getfixturevalue(server)
    database = f"t_{uuid.uuid4().hex[:10]}"
    sharding = Sharding(key="k", function="hash", databases=32, tables=32)
    with from_server.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        for kind, values in HASHED.items():
            cursor.execute(f"CREATE TABLE {database}.t (n INT PRIMARY KEY, k {kind} NOT NULL)")
            since = mark(from_server)
            rows = ", ".join(f"({n}, {value})" for n, value in enumerate(values))
            cursor.execute(f"INSERT INTO {database}.t VALUES {rows}")
            cursor.execute(f"SELECT CRC32(k) % 1024 FROM {database}.t ORDER BY n")
            said = [number for (number,) in cursor.fetchall()]
            schema = known_schema(from_server, database, "t")
            _, logged = decoded(events_since(from_server, since), schema, mariadb=server == "mariadb")
            with connect(parse_url(from_server.url, where="test"), where="test") as session:
                (read,) = TableReader(session, schema).batches(f"FROM {database}.t ORDER BY n")
            for found in (logged.after[1], read.column("k")):
                assert shards_of(found, sharding).tolist() == said, kind
            cursor.execute(f"DROP TABLE {database}.t")
        cursor.execute(f"DROP DATABASE {database}")
