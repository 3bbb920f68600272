"""A row that comes under a new key brings along, exactly, what the log did not say and the target has under the old."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.config import ONE_TABLE, MysqlTable
from cdc_core.errors import DataAtRisk
from cdc_core.model.merged_columns import KEY_CHAIN
from cdc_core.model.schema import parse_column_type
from cdc_core.model.version import Version, encode
from cdc_core.mysql.connections import is_mariadb
from cdc_core.targets.reading.destination import Destination, Shard, ShardSessions
from cdc_core.targets.reading.sharding import ShardTable
from cdc_core.targets.tables.compare_columns import DIFFERS, SAME, judged
from cdc_core.targets.writing.load import LoadFile, open_session
from cdc_core.targets.writing.row_lookup import LocatedRows, locate_rows
from cdc_core.targets.writing.row_writer import write_shard
from cdc_core.targets.writing.shard_write import ShardWrite
from cdc_core.targets.writing.versions import versions_of
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer
from tests.integration.test_target_session import with_globals
from tests.lab.refusals import raises, refusal
from tests.lab.target_rows import Table, Winner, record_batch, target_table

ODD = {
    "ratio": ("float", "0.123456789"), "wide": ("double", "1e-300"),
    "amount": ("decimal(30,10)", "-12345678901234567890.0123456789"),
    "bits": ("bit(9)", "b'101010101'"), "flag": ("bit(1)", "b'1'"), "big": ("bigint unsigned", "18446744073709551615"),
    "day": ("date", "'0000-00-00'"), "at": ("datetime(6)", "'2024-02-31 23:59:59.000001'"),
    "ts": ("timestamp(3)", "'1990-01-01 00:00:01.001'"), "took": ("time(2)", "'-838:59:58.99'"),
    "born": ("year", "2155"), "name": ("varchar(40)", r"'tab\tnl\nback\\slash'"), "gone": ("varchar(9)", "NULL"),
    "kind": ("enum('a','ß')", "'ß'"), "some": ("set('x','y')", "'x,y'"), "raw": ("varbinary(9)", "X'00FF5C09'"),
    "none": ("blob", "X''"), "spot": ("point", "ST_GeomFromText('POINT(1 2)')"), "note": ("text", "REPEAT('ü€😀', 99)"),
    "doc": ("json", r"""'{"a": "\\"é"}'"""), "label": ("enum('a','')", "''"),
}  # fmt: skip
LINK = pa.struct(
    [
        ("id", pa.int64()),
        ("_cdc_literal", pa.map_(pa.string(), pa.string())),
        ("_cdc_ts", pa.timestamp("us", tz="UTC")),
        ("_cdc_source", pa.string()),
        ("_cdc_seq", pa.int64()),
        ("_cdc_row", pa.int64()),
    ]
)


@pytest.fixture
def odd(server: Any) -> Iterator[Table]:
    declared = ", ".join(f"`{name}` {kind} NULL" for name, (kind, _) in ODD.items())
    definition = f"CREATE TABLE {{name}} (id BIGINT PRIMARY KEY, {declared}) COLLATE utf8mb4_bin"
    columns = {"id": pa.int64()} | {name: parse_column_type(kind).arrow for name, (kind, _) in ODD.items()}
    with target_table(server, definition, columns) as made:
        made.query("SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        values = ", ".join(value for _, value in ODD.values())
        made.query(f"INSERT INTO {made.facts.name} (id, {', '.join(f'`{name}`' for name in ODD)}) VALUES (1, {values})")
        yield made


def arrived(odd: Table, left_at: int) -> tuple[Destination, LocatedRows]:
    """Row 1 came under the key 2 by a change of (`left_at`, 0) that said nothing else."""
    place = ShardTable(0, odd.facts.database, odd.facts.table, 0)
    shards = (Shard(place, odd.server, odd.facts, tuple(odd.columns)),)
    destination = Destination("t", "shop.odd", MysqlTable(), ("id",), tuple(odd.columns), shards)
    rows = record_batch([Winner("u", {"id": 2}, (9, 9, 0, "one"), absent=list(ODD))], odd.columns)
    link = {"id": 1, "_cdc_ts": left_at, "_cdc_source": "one", "_cdc_seq": left_at, "_cdc_row": 0}
    rows = rows.append_column(KEY_CHAIN, pa.array([[link]], pa.list_(LINK)))
    with tempfile.TemporaryDirectory() as scratch, ShardSessions() as sessions:
        return destination, locate_rows(destination, sessions, Path(scratch), rows)


def unequal(odd: Table) -> list[str]:
    """The columns in which the rows 1 and 2 differ."""
    equal = ", ".join(f"a.`{name}` <=> b.`{name}`" for name in ODD)
    (found,) = odd.query(f"SELECT {equal} FROM {odd.facts.name} a, {odd.facts.name} b WHERE a.id = 1 AND b.id = 2")
    return [name for name, same in zip(ODD, found, strict=True) if not same]


def test_values_of_every_type_come_along_to_the_new_key(odd: Table) -> None:
    destination, settled = arrived(odd, 8)
    assert settled.rows.column("_cdc_absent").to_pylist() == [None]
    with (
        tempfile.TemporaryDirectory() as folder,
        LoadFile(Path(folder), destination.layout_of(destination.shards[0])) as file,
    ):
        file.add(settled.rows)
        write_shard(odd.server, ShardWrite("run", "shop.odd", odd.facts, ONE_TABLE), file)
    assert unequal(odd) == []
    odd.query(f"DELETE FROM {odd.facts.name} WHERE id = 1")
    _, settled = arrived(odd, 8)  # the run again: the row stands under its new key, for the write to take
    assert settled.rows.column("_cdc_absent").null_count == 0
    assert settled.shards.tolist() == [0]


def test_what_came_under_the_old_key_since_is_another_row(odd: Table) -> None:
    version = encode(Version(8, 8, 0, "one")).hex()
    odd.query(f"UPDATE {odd.facts.name} SET _cdc_version = X'{version}' WHERE id = 1")
    with raises(DataAtRisk, "target.absent_values", match="the key 2"):
        arrived(odd, 8)


@pytest.mark.parametrize("raw", [b"\0\0\x80?\0\0`\xc0", bytes(8)], ids=["bytes", "ASCII"])
def test_a_vector_comes_along_as_its_bytes(mysql9: SqlServer, tmp_path: Path, raw: bytes) -> None:
    declared = "VECTOR(2)" if MySql.version() >= (9,) else "VARBINARY(8)"
    columns = {"id": pa.int64(), "v": parse_column_type("vector(2)").arrow}
    with target_table(mysql9, f"CREATE TABLE {{name}} (id BIGINT PRIMARY KEY, v {declared})", columns) as table:
        table.query(f"INSERT INTO {table.facts.name} (id, v) VALUES (1, X'{raw.hex()}')")
        assert Long("vector", raw, table).held(tmp_path) == raw.hex().upper()


LONG = {
    "text": ("LONGTEXT CHARACTER SET utf8mb4", pa.string(), "ü" * (3 << 19)),
    "latin": ("LONGTEXT CHARACTER SET latin1", pa.string(), "ü" * (3 << 20)),
    "bytes": ("LONGBLOB", pa.binary(), bytes(range(256)) * (3 << 12)),
    "json": ("JSON", pa.string(), '{"a": "' + "x" * (3 << 20) + '"}'),
}


@dataclass(frozen=True)
class Long:
    """A table whose row 1 has a value that is longer than what its server casts."""

    kind: str
    value: Any
    table: Table

    def asked(self, value: Any = None) -> pa.RecordBatch:
        """Row 1 with this value; without one, it is absent."""
        if value is None:
            return record_batch([Winner("u", {"id": 1}, (2, 2, 0, "one"), absent=["v"])], self.table.columns)
        return record_batch([Winner("u", {"id": 1, "v": value}, (1, 1, 0, "one"))], self.table.columns)

    def session(self) -> Any:
        return closing(open_session(self.table.server, self.table.facts.database, where="test"))

    def held(self, scratch: Path) -> Any:
        """The value that the target has."""
        with self.session() as session:
            (version,) = versions_of(
                session, self.table.facts, self.asked(), key=("id",), freshness=None, scratch=scratch,
                columns={"v": isinstance(self.value, bytes)},
            )  # fmt: skip
        return version.values["v"]


@pytest.fixture
def long(server: Any, kind: str) -> Iterator[Long]:
    declared, arrow, value = LONG[kind]
    columns = {"id": pa.int64(), "v": arrow}
    with target_table(server, f"CREATE TABLE {{name}} (id BIGINT PRIMARY KEY, v {declared})", columns) as table:
        table.write([Winner("u", {"id": 1, "v": value}, (1, 1, 0, "one"))])
        with with_globals(server, {"max_allowed_packet": str(1 << 20)}):
            yield Long(kind, value, table)


@pytest.mark.parametrize("kind", LONG)
def test_values_that_are_longer_than_what_the_server_casts_come_along_whole_and_are_told_apart(
    long: Long, tmp_path: Path
) -> None:
    if long.kind == "json" and not is_mariadb(long.table.connection):  # it does not print such a document
        assert refusal(lambda: long.held(tmp_path)).code == "target.limit"
        return
    found = long.held(tmp_path)
    assert found is not None
    same = found == (long.value.hex().upper() if isinstance(long.value, bytes) else long.value)
    assert same  # a message with the values would be endless
    if long.kind not in ("text", "latin"):
        return
    facts, layout = long.table.facts, long.table.layout
    with long.session() as session:
        words = [
            judged(session, facts, long.asked(text), layout, scratch=tmp_path)
            for text in (long.value, long.value[:-1] + "x")
        ]
    assert words == [[SAME], [DIFFERS]]
