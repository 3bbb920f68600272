"""Copies of existing rows beside writes that go on: whatever the order, the stage ends with the source's rows."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pymysql
import pytest

from cdc_core.config import Pipeline, ThrottleOptions
from cdc_core.errors import DataAtRisk, Refused, RetryLater
from cdc_core.meta import Meta
from cdc_core.meta.batches import Batches
from cdc_core.meta.copied_batches import CopiedBatches
from cdc_core.meta.positions import SourcePositions
from cdc_core.meta.table_copies import TableCopies
from cdc_core.model.coverage import How
from cdc_core.model.schema import TableSchema
from cdc_core.mysql.connections import answers
from cdc_core.operations.apply.plan import plan
from cdc_core.operations.apply.retention import purge, sweep
from cdc_core.operations.copy import copier, pace, table_chunks, watermarks
from cdc_core.operations.copy import throttle as throttle_module
from cdc_core.operations.copy.copier import copier_lease, copy_tables
from cdc_core.operations.copy.pending import pending
from cdc_core.operations.copy.staging import Staged, finish_decided, stage_due
from cdc_core.operations.extract.extractor import recover
from cdc_core.results import value_columns as values
from cdc_core.source.capture import Capture
from cdc_core.source.host import source_server as server
from cdc_core.stage import manifest as manifests
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.layout import parse_copied
from cdc_core.stage.stage_reader import table_state
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from tests.integration.beside import beside
from tests.integration.one_server import ONE_SERVER
from tests.lab.lab import Lab
from tests.lab.opened import opened
from tests.lab.origin import Origin, fresh_name

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


def write(line: Lab, chance: random.Random) -> None:
    """Transactions of an application: inserts, updates, deletes, changes of keys, rollbacks."""
    with closing(line.origin.sql.connect(line.origin.name)) as connection, connection.cursor() as cursor:
        for _ in range(20):
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


def writers(line: Lab, seed: int, count: int = 2) -> AbstractContextManager[None]:
    return beside(*(partial(write, line, random.Random(seed * 10 + one)) for one in range(count)))


def read(line: Lab, tables: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """Reads chunks of the pending tables, or of these."""
    environ = {"SOURCE": line.origin.sql.url, "SALT": "salt"}
    with (
        Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta,
        copier_lease(opened(line.pipeline, meta), "shop") as lease,
    ):
        finish_decided(meta, line.store, "shop", lease)
        names = [f"{line.origin.name}.{one}" for one in tables or ()] or [one.name for one in pending(meta, "shop")]
        chosen = [tuple(name.split(".", 1)) for name in names]
        return copy_tables(opened(line.pipeline, meta, environ), "shop", chosen, lease, **more)  # type: ignore[arg-type]


def stage(line: Lab) -> Staged:
    capture = Capture(line.pipeline.tables, line.pipeline.routes)
    with (
        Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta,
        copier_lease(opened(line.pipeline, meta), "shop") as lease,
    ):
        return stage_due(opened(line.pipeline, meta, store=line.store), "shop", lease, capture=capture)


def at_source(line: Lab, table: str) -> list[tuple[Any, ...]]:
    with closing(line.origin.sql.connect(line.origin.name)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return sorted(cursor.fetchall(), key=repr)


def in_stage(line: Lab, table: str) -> list[tuple[Any, ...]]:
    found = table_state(line.store, line.chain, table)
    columns = [found.column(name).to_pylist() for name in found.schema.names if not name.startswith("_cdc_")]
    return sorted(zip(*columns, strict=True), key=repr)


def fill(line: Lab, rows: int = ROWS) -> None:
    with closing(line.origin.sql.connect(line.origin.name)) as connection, connection.cursor() as cursor:
        for table, definition in TABLES.items():
            cursor.execute(definition)
            head, _, _ = insert(table, 0, 0).partition(" VALUES ")
            values = ", ".join(insert(table, n, n).partition(" VALUES ")[2] for n in range(rows))
            cursor.execute(f"{head} VALUES {values}")
            connection.commit()


def with_rows(make_line: Callable[..., Lab], rows: int) -> Lab:
    """A pipeline that begins after its tables were filled, extracted once."""
    fill(make_line(), rows)
    line = make_line()
    line.drain()
    return line


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(4)
    monkeypatch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: chance.choice([1, 7, 90, 400]))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_a_copy_beside_writers_ends_with_the_rows_of_the_source(
    make_line: Callable[..., Lab], small_chunks: None, seed: int
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


def pending_tables(line: Lab) -> list[str]:
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        return [one.name for one in pending(meta, "shop")]


class Killed(BaseException):
    """What a kill is to the code: nothing more runs."""


STEPS = [
    (copier.ChunkFile, "finish"),
    (TableCopies, "begin"),
    (TableCopies, "chunk_read"),
    (CopiedBatches, "decide"),
    (manifests, "commit"),
    (Batches, "record_copied"),
]


@ONE_SERVER
@pytest.mark.parametrize(
    ("owner", "step", "after"),
    [
        # After most of them is before the next one, but for what the step itself writes down.
        pytest.param(
            *step, after, id=f"{step[1]}-{when}", marks=[pytest.mark.matrix] if after and step != STEPS[-1] else []
        )
        for step in STEPS
        for after, when in ((False, "before"), (True, "after"))
    ],
)
def test_after_a_kill_at_a_durable_step_the_same_calls_stage_each_row_once(
    make_line: Callable[..., Lab],
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    step: str,
    after: bool,
) -> None:
    monkeypatch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: 15)
    line = with_rows(make_line, 40)
    done = getattr(owner, step)
    left = [2 if step in ("finish", "chunk_read") else 1]

    def struck(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            raise Killed
        found = done(*arguments, **named)
        if left[0] == 0:
            raise Killed
        return found

    monkeypatch.setattr(owner, step, struck)
    for _ in range(3):
        with suppress(Killed):
            read(line)
            line.drain()
            stage(line)
    assert left[0] <= 0
    assert pending_tables(line) == []
    for table in TABLES:
        assert in_stage(line, table) == at_source(line, table), table
    numbers = [chunk.number for manifest in line.chain for chunk in manifest.chunks]
    assert len(numbers) == len(set(numbers))
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        assert (meta.copies.chunks("shop"), meta.copies.find("shop"), meta.copied.decided("shop")) == ((), (), ())


def changed(line: Lab, *statements: str) -> Staged:
    """Half of the copy of `number` is read, then the statements run; then everything goes on."""
    fill(line, 50)
    line.drain()
    before = table_chunks.TableChunks.next
    calls = [0]

    def next_chunk(self: Any, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            line.origin.execute(*statements)
        return before(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: 10)
        patch.setattr(table_chunks.TableChunks, "next", next_chunk)
        read(line, ["number"])
    line.drain()
    return stage(line)


def test_a_table_that_is_truncated_while_it_is_copied_is_whole_without_the_copy(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables="on_truncate: stage")
    found = changed(line, "TRUNCATE TABLE number", "INSERT INTO number VALUES (3, 3, 'x')")
    # Where a reader was so late that it has read only what came after the TRUNCATE, nothing was dropped.
    assert [table for table, _ in found.dropped] in ([f"{line.origin.name}.number"], [])
    assert in_stage(line, "number") == at_source(line, "number")


def test_a_column_that_is_added_while_a_table_is_copied_begins_the_copy_again(make_line: Callable[..., Lab]) -> None:
    line = make_line()
    changed(line, "ALTER TABLE number ADD COLUMN more INT", "UPDATE number SET more = 7 WHERE v < 9")
    assert line.coverage["number"] is How.COPIED
    assert in_stage(line, "number") == at_source(line, "number")


def test_a_column_that_is_added_between_the_read_and_the_staging_of_a_copy_is_in_the_state(
    make_line: Callable[..., Lab],
) -> None:
    line = make_line()
    fill(line, 50)
    line.drain()
    read(line, ["number"])
    line.origin.execute("ALTER TABLE number ADD COLUMN more INT", "UPDATE number SET more = 7 WHERE v < 9")
    line.drain()
    stage(line)
    assert line.coverage["number"] is How.COPIED
    assert in_stage(line, "number") == at_source(line, "number")


def test_rows_that_change_unlogged_while_a_table_is_copied_drop_the_copy(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables="on_unlogged_change: record")
    found = changed(line, "ALTER TABLE number ADD COLUMN more INT NOT NULL DEFAULT 5")
    if line.coverage["number"].whole:  # the copy began again, and its view is known to be later than the change
        assert found.dropped == ()
        assert in_stage(line, "number") == at_source(line, "number")
    else:
        assert [table for table, _ in found.dropped] == [f"{line.origin.name}.number"]
        assert f"{line.origin.name}.number" in pending_tables(line)


def test_a_table_that_is_dropped_and_created_while_it_is_copied_has_only_its_new_rows(
    make_line: Callable[..., Lab],
) -> None:
    line = make_line(tables="on_unlogged_change: record")
    changed(line, "DROP TABLE number", TABLES["number"], "INSERT INTO number VALUES (3, 3, 'x')")
    if line.coverage["number"].whole:
        assert in_stage(line, "number") == at_source(line, "number")


@ONE_SERVER
def test_a_table_that_was_gone_for_a_moment_is_copied_from_its_beginning(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between DROP and CREATE a question about it fails; when the copier looks again, its definition is what it was."""
    line = with_rows(make_line, 30)
    known, met = table_chunks.end_of_chunk, []

    def gone_once(connection: Any, *arguments: Any) -> Any:
        if len(met) < 2:
            met.append(len(met))
            with answers("source"), connection.cursor() as cursor:
                cursor.execute(f"SELECT 1 FROM {line.origin.name}.is_gone")
        return known(connection, *arguments)

    monkeypatch.setattr(table_chunks, "end_of_chunk", gone_once)
    read(line)
    assert met == [0, 1]
    line.drain()
    assert len(stage(line).tables) == len(TABLES)
    for table in TABLES:
        assert in_stage(line, table) == at_source(line, table), table


@ONE_SERVER
def test_a_table_that_is_gone_when_its_read_view_begins_is_copied_from_its_beginning(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunk was planned before the DROP; the CREATE is done when the copier looks again."""
    line = with_rows(make_line, 30)
    known, asked = watermarks.engine_of, [0]

    def gone_twice(control: Any, schema: TableSchema) -> str:
        if schema.table != "number":
            return known(control, schema)
        asked[0] += 1
        gone = asked[0] in (2, 3)  # the first one was asked when the copy began
        return known(control, replace(schema, table="is_gone") if gone else schema)

    monkeypatch.setattr(watermarks, "engine_of", gone_twice)
    with pytest.raises(RetryLater) as refused:
        read(line, ["number"])  # gone for its begin too: nothing is known of it then
    assert refused.value.code == "table.redefined"
    read(line)
    line.drain()
    assert len(stage(line).tables) == len(TABLES)
    for table in TABLES:
        assert in_stage(line, table) == at_source(line, table), table


@ONE_SERVER
def test_a_table_that_is_emptied_before_its_copy_is_whole_and_has_no_rows(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 30)
    line.origin.execute("DELETE FROM number")
    read(line)
    line.drain()
    stage(line)
    assert line.coverage["number"].whole
    for table in TABLES:
        assert in_stage(line, table) == at_source(line, table), table


@ONE_SERVER
def test_a_state_as_of_a_moment_before_the_copy_is_refused_and_after_it_right(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 40)
    read(line)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5")
    line.drain()
    stage(line)
    (copied,) = [one for one in line.chain if one.copied]
    expected = at_source(line, "number")
    line.origin.execute("DELETE FROM number")
    line.drain()
    at = AsOf(position=copied.end.position)
    found = table_state(line.store, line.chain, "number", as_of=at)
    assert len(found) == len(expected)
    assert sorted(found.column("v").to_pylist()) == sorted(row[1] for row in expected)
    for chunk in copied.chunks:
        if chunk.low < copied.end.position:
            with pytest.raises(Refused):  # partial, or before everything that is staged
                table_state(line.store, line.chain, "number", as_of=AsOf(position=chunk.low))


@ONE_SERVER
def test_a_state_as_of_a_moment_while_a_whole_table_is_copied_again_has_the_rows_from_before(
    make_line: Callable[..., Lab],
) -> None:
    line = make_line()
    line.drain()
    line.origin.execute(TABLES["number"], "INSERT INTO number VALUES (1, 1, 'old'), (2, 2, 'old')")
    line.drain()
    read(line, ["number"])
    line.origin.execute("UPDATE number SET v = 3 WHERE id = 2")
    line.drain()
    within = AsOf(position=line.chain[-1].end.position)
    line.origin.execute("INSERT INTO number VALUES (3, 3, 'later')")
    line.drain()
    before = table_state(line.store, line.chain, "number", as_of=within).to_pylist()
    assert [(row["id"], row["v"]) for row in before] == [(1, 1), (2, 3)]
    assert stage(line).tables
    assert any(part.ops.get("t") for part in line.chain[-1].parts)
    assert table_state(line.store, line.chain, "number", as_of=within).to_pylist() == before
    assert in_stage(line, "number") == at_source(line, "number")


@ONE_SERVER
def test_meta_is_rebuilt_and_the_stage_verified_with_copies_in_the_chain(
    make_line: Callable[..., Lab], small_chunks: None
) -> None:
    line = with_rows(make_line, 60)
    read(line)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5")
    line.drain()
    stage(line)
    line.origin.execute("UPDATE number SET v = -2 WHERE v < 5")
    line.drain()
    assert manifests.verify(line.store, "shop", deep=True) == []
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        known = [one.batch_id for one in meta.batches.find("shop")]
        assert known == [one.batch_id for one in line.chain]
    line.lose_meta()
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        lease = meta.leases.acquire("shop", "me", 60)
        lease, added = meta.rebuild(lease, line.chain)
        assert added == len(known)
        assert [one.batch_id for one in meta.batches.find("shop")] == known
        lease_of_copies = meta.leases.acquire("snapshot:shop", "me", 60)
        last = max(chunk.number for one in line.chain for chunk in one.chunks)
        assert meta.copies.next_chunk(lease_of_copies, "shop") == last + 1
        meta.leases.release(lease_of_copies)
        meta.leases.release(lease)
    line.drain()
    read(line, ["number"])
    line.drain()
    stage(line)
    for table in TABLES:
        assert in_stage(line, table) == at_source(line, table), table
    assert swept(line) == ()
    read(line, ["pair"])
    assert swept(line) == ()  # they wait for their manifest
    with (
        Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta,
        copier_lease(opened(line.pipeline, meta), "shop") as lease,
    ):
        meta.copies.drop(lease, "shop", f"{line.origin.name}.pair")
    assert {parse_copied(one.path) is not None for one in swept(line)} == {True}
    assert swept(line) == ()
    assert manifests.verify(line.store, "shop", deep=True) == []


def swept(line: Lab) -> tuple[Any, ...]:
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        return sweep(opened(line.pipeline, meta, store=line.store), older_than_s=-60.0)["shop"].parts


KEYS = {
    "TINYINT": ["-128", "0", "127"],
    "BIGINT": ["-9223372036854775808", "-1", "0", "9223372036854775807"],
    "BIGINT UNSIGNED": ["0", "9223372036854775808", "18446744073709551615"],
    "DECIMAL(40,10)": ["-999999999999999999999999999999.9999999999", "-0.0000000001", "0", "3.1400000000"],
    "DOUBLE": ["-1.7976931348623157e308", "-5e-324", "0", "0.1", "1e22", "9007199254740993"],
    "FLOAT": ["-3.4e38", "-0.1", "0.1", "16777216", "1.17e-38"],
    "BIT(9)": ["b'0'", "b'1'", "b'111111111'", "b'101'"],
    "YEAR": ["0", "1901", "2155"],
    "DATE": ["'0000-00-00'", "'1000-01-01'", "'2024-02-29'", "'9999-12-31'"],
    "DATETIME(6)": ["'0000-00-00'", "'1000-01-01 00:00:00.000001'", "'2024-02-29 23:59:59.999999'"],
    "TIMESTAMP(3)": ["'0000-00-00'", "'1970-01-01 00:00:01.001'", "'2024-10-27 01:30:00.5'"],
    "TIME(2)": ["'-838:59:59'", "'-00:00:00.01'", "'00:00:00'", "'100:00:00.5'"],
    "ENUM('z','a','é','it''s')": ["'z'", "'a'", "'é'", "'it''s'"],
    "SET('x','y','z')": ["''", "'x'", "'x,z'", "'z'"],
    f"SET({','.join(map(repr, map(str, range(53))))})": ["'52'", "'0,52'", "'1,52'", "'0,1,51,52'", "''"],
    "CHAR(6) CHARACTER SET latin1 COLLATE latin1_german1_ci": ["'b'", "'ä'", "'ß'", "''", "'z '", "'Zz'"],
    "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": ["'a'", "'A'", "'\\\\'", "'a '", "'''\"'", "'😀'", "''"],
    "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci": ["'a'", "'b'", "'ß'", "'😀'", "'Zz'", "''"],
    "VARCHAR(9) CHARACTER SET utf16 COLLATE utf16_general_ci": ["'a'", "'é'", "'Ω'", "''"],
    "VARCHAR(9) CHARACTER SET sjis COLLATE sjis_japanese_ci": ["'a'", "'ソ'", "'表'", "''"],
    "BINARY(3)": ["''", "x'00'", "x'0001'", "x'ff00ff'", "'a'"],
    "VARBINARY(5)": ["''", "x'00'", "x'0000'", "x'2027225c'", "x'ff'"],
}


@ONE_SERVER
def test_a_key_of_any_type_cuts_a_table_into_chunks_that_hold_each_row_once(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make_line()
    with closing(line.origin.sql.connect(line.origin.name)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+00:00'")
        for number, (kind, values) in enumerate(KEYS.items()):
            for place, keys in (("alone", "(k)"), ("first", "(k, n)"), ("last", "(n, k)")):
                cursor.execute(f"CREATE TABLE {place}{number} (n INT, k {kind}, v INT, PRIMARY KEY {keys})")
                rows = [(n, value) for value in values for n in ([0] if place == "alone" else [-1, 1])]
                for v, (n, value) in enumerate(rows):
                    cursor.execute(f"INSERT IGNORE INTO {place}{number} VALUES ({n}, {value}, {v})")
        connection.commit()
    line = make_line()
    line.drain()
    monkeypatch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: 1)
    read(line)
    line.drain()
    stage(line)
    chunks = [chunk for one in line.chain for chunk in one.chunks]
    for number, kind in enumerate(KEYS):
        for place in ("alone", "first", "last"):
            expected = sorted(row[2] for row in at_source(line, f"{place}{number}"))
            assert len(expected) > 1
            counts = [chunk.rows for chunk in chunks if chunk.table.endswith(f".{place}{number}")]
            # The end of a chunk of whole numbers may be computed: then there may be none in it.
            assert [count for count in counts if count] == [1] * len(expected), (kind, place)
            found = table_state(line.store, line.chain, f"{place}{number}")
            assert sorted(found.column("v").to_pylist()) == expected, (kind, place)


@ONE_SERVER
def test_a_copy_under_a_clock_that_was_ahead_is_not_taken_for_the_state_before_that_time(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 20)
    checkpoint = SourcePositions.checkpoint
    ahead_us = 3_600_000_000

    def ahead(self: SourcePositions, source: str) -> Any:
        found = checkpoint(self, source)
        return found and replace(found, watermark_us=found.watermark_us + ahead_us)

    with monkeypatch.context() as patch:
        patch.setattr(SourcePositions, "checkpoint", ahead)
        read(line)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5")
    line.drain()
    stage(line)
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        now = meta.positions.checkpoint("shop")
    assert now is not None
    with pytest.raises(Refused):  # the copied rows carry a later time: without them the table would be nearly empty
        table_state(line.store, line.chain, "number", as_of=AsOf(time_us=now.watermark_us))
    assert in_stage(line, "number") == at_source(line, "number")


@ONE_SERVER
def test_a_copy_whose_manifest_is_lost_is_missed_by_every_reader(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 20)
    limits = line.pipeline.limits.model_copy(update={"batch_mib": 0})  # a manifest for each table
    line.pipeline = line.pipeline.model_copy(update={"limits": limits})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: 5)
        read(line)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5")
    line.drain()
    stage(line)
    copies = [one for one in line.chain if one.copied]
    assert len(copies) == len(TABLES)
    for manifest in copies:
        (table,) = {chunk.table.partition(".")[2] for chunk in manifest.chunks}
        assert len(manifest.chunks) > 1
        assert in_stage(line, table) == at_source(line, table)
        data = line.store.get(manifest.path)
        line.store.delete(manifest.path)
        with pytest.raises(Refused):
            in_stage(line, table)
        with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta, pytest.raises(DataAtRisk) as lost:
            manifests.require_listed(line.store, "shop", [one.manifest for one in meta.batches.find("shop")])
        assert lost.value.code == "stage.damaged"
        with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
            known = [one.manifest for one in meta.batches.find("shop")]
        (found,) = manifests.verify(line.store, "shop", known=known)
        assert (found.code, found.path) == ("stage.damaged", manifest.path)
        line.store.put(manifest.path, data)
        assert manifests.verify(line.store, "shop", known=known) == []


@ONE_SERVER
def test_an_extractor_that_begins_at_a_copy_continues_with_what_meta_knows(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 20)
    read(line)
    line.drain()
    stage(line)
    for _ in range(2):
        line.drain()
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        known = meta.positions.checkpoint("shop")
        assert known is not None
        assert line.chain[-1].copied
        assert line.chain[-1].end.position == known.position
        assert line.chain[-1].end.watermark_us < known.watermark_us
        lease = meta.leases.acquire("shop", "me", 60)
        assert recover(meta, line.store, lease) == known
        meta.leases.release(lease)


def test_a_copy_waits_until_what_was_written_before_its_read_is_staged(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 20)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5")
    read(line)
    early = stage(line)
    assert (early.batches, early.tables) == ((), ())
    assert early.waiting is not None
    assert not any(one.copied for one in line.chain)
    line.drain()
    assert len(stage(line).tables) == len(TABLES)
    assert in_stage(line, "number") == at_source(line, "number")


def feeding(line: Lab, shared_keys: str) -> Pipeline:
    """The line's pipeline, with a target."""
    target = {"name": "t", "connections": ["env:TARGET"], "tables": {"*": {"shared_keys": shared_keys}}}
    return Pipeline.model_validate({**line.pipeline.model_dump(exclude_unset=True), "targets": [target]})


@ONE_SERVER
def test_rows_of_which_the_newest_counts_are_not_copied_because_nothing_tells_their_age(
    make_line: Callable[..., Lab],
) -> None:
    line = with_rows(make_line, 3)
    line.pipeline = feeding(line, "newest")  # the tables of that name in any other database feed it too
    refused = read(line)
    assert len(refused) == len(TABLES)
    assert {error.code for error in refused.values()} == {"snapshot.not_copyable"}
    line.pipeline = feeding(line, "stop")
    assert not read(line)
    line.drain()
    assert len(stage(line).tables) == len(TABLES)
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta, pytest.raises(Refused) as caught:
        plan(opened(feeding(line, "newest"), meta, store=line.store), window=None, run_id="r1")
    assert caught.value.code == "snapshot.not_copyable"


@ONE_SERVER
def test_an_extractor_goes_on_after_more_copies_than_it_had_starts(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 5)
    for _ in range(4):  # each time the copier has a new epoch of its own lease, which says nothing to the extractor
        read(line, ["number"])
    stage(line)
    assert line.chain[-1].copied
    line.origin.execute("UPDATE number SET v = -1")
    line.drain()
    assert in_stage(line, "number") == at_source(line, "number")


def write_copies(line: Lab, chance: random.Random, stop: threading.Event) -> None:
    """Transactions on a table without a key, whose rows have copies."""
    with closing(line.origin.sql.connect(line.origin.name)) as connection, connection.cursor() as cursor:
        while not stop.is_set():
            for _ in range(chance.randint(1, 4)):
                n, word = chance.randrange(5), chance.choice("xyz")
                cursor.execute(
                    chance.choice(
                        [
                            f"INSERT INTO heap VALUES ({n}, '{word}'), ({n}, '{word}')",
                            f"UPDATE heap SET word = '{word}' WHERE n = {n} LIMIT 2",
                            f"DELETE FROM heap WHERE n = {n} LIMIT 2",
                        ]
                    )
                )
            connection.commit()


def test_a_table_without_a_key_is_copied_with_as_many_copies_of_each_row_as_it_has(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make_line()
    line.origin.execute("CREATE TABLE heap (n INT, word VARCHAR(9))", "CREATE TABLE bare (n INT)",
                        "CREATE TABLE other (id INT PRIMARY KEY)",
                        *(f"INSERT INTO heap VALUES ({n % 5}, 'w'), ({n % 7}, NULL)" for n in range(60)))  # fmt: skip
    line = make_line()  # it begins after the rows
    stop = threading.Event()
    writing = threading.Thread(target=write_copies, args=(line, random.Random(3), stop))
    writing.start()
    try:
        line.drain()
        time.sleep(0.3)
        assert not read(line, ["heap"])
        time.sleep(0.3)  # changes between the claim and the place of its batch
        line.drain()
        decide = CopiedBatches.decide
        late: list[str] = []

        def first_too_late(self: Meta, *arguments: Any, **named: Any) -> None:
            if not late:
                late.append("once")
                time.sleep(0.05)
                line.drain()
            decide(self, *arguments, **named)

        monkeypatch.setattr(CopiedBatches, "decide", first_too_late)
        with pytest.raises(RetryLater) as moved:
            stage(line)
        assert moved.value.code == "lease.lost"
        assert stage(line).tables == (f"{line.origin.name}.heap",)
        (copied,) = [one for one in line.chain if one.copied]
        found = table_state(line.store, line.chain, "heap", as_of=AsOf(position=copied.end.position))
        assert len(found) == sum(part.ops.get("r", 0) for part in copied.parts)
    finally:
        stop.set()
        writing.join()
    line.drain()
    assert len(at_source(line, "heap")) > 0
    assert in_stage(line, "heap") == at_source(line, "heap")
    read(line, ["bare"])  # empty: surveyed as such, and copied all the same
    read(line, ["heap"])
    line.origin.execute("INSERT INTO heap VALUES (1, 'last')", "INSERT INTO bare VALUES (1), (1)")
    line.drain()
    stage(line)
    for table in ("heap", "bare"):
        assert in_stage(line, table) == at_source(line, table)
    assert manifests.verify(line.store, "shop", deep=True) == []
    line.lose_meta()
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        lease = meta.leases.acquire("shop", "me", 60)
        meta.leases.release(meta.rebuild(lease, line.chain)[0])
    line.drain()
    assert in_stage(line, "heap") == at_source(line, "heap")


@ONE_SERVER
def test_a_table_without_a_key_is_not_copied_twice_at_one_place(make_line: Callable[..., Lab]) -> None:
    """A target, which has the changes up to a mark, would leave out the second copy."""
    line = make_line()
    line.origin.execute("CREATE TABLE heap (n INT)", "INSERT INTO heap VALUES (1), (1)", "CREATE TABLE bare (n INT)")
    line = make_line()
    line.drain()
    table = f"{line.origin.name}.heap"
    read(line, ["heap"])
    assert stage(line).tables == (table,)
    read(line, ["heap"])
    again = stage(line)
    assert (again.tables, again.waiting, [one for one, _ in again.dropped]) == ((), None, [table])
    line.origin.execute("INSERT INTO bare VALUES (1)")
    line.drain()
    read(line, ["heap"])
    assert stage(line).tables == (table,)
    first, second = (one for one in line.chain if one.copied)
    assert first.begin.position < second.begin.position


@pytest.mark.parametrize("any_server", ["mariadb"], indirect=True)
def test_a_virtual_column_that_not_all_images_have_tells_no_rows_without_a_key_apart(
    make_line: Callable[..., Lab],
) -> None:
    line = make_line()
    line.origin.execute(
        "CREATE TABLE heap (n INT, twice INT AS (n * 2) VIRTUAL)", "INSERT INTO heap (n) VALUES (1), (1), (2), (3)"
    )
    line = make_line()  # it begins after the rows
    line.drain()
    read(line, ["heap"])
    line.origin.execute("DELETE FROM heap WHERE n = 1 LIMIT 1", "UPDATE heap SET n = 4 WHERE n = 2")
    line.drain()
    stage(line)

    def numbers() -> list[int]:
        return sorted(table_state(line.store, line.chain, "heap").column("n").to_pylist())

    assert numbers() == [1, 3, 4]
    line.origin.execute(
        "DELETE FROM heap WHERE n = 3", "INSERT INTO heap (n) VALUES (7)", "SET SESSION binlog_row_image = MINIMAL",
        "INSERT INTO heap (n) VALUES (5), (6)", "DELETE FROM heap WHERE n = 5", "UPDATE heap SET n = 8 WHERE n = 4",
    )  # fmt: skip
    line.drain()
    assert numbers() == [1, 6, 7, 8]
    state = table_state(line.store, line.chain, "heap").to_pylist()
    told = {row["n"]: (row["twice"], row["_cdc_absent"]) for row in state}
    assert told[7] == (14, None)
    assert all(twice == 2 * n or "twice" in absent for n, (twice, absent) in told.items())


def test_several_readers_share_a_table_and_a_kill_costs_at_most_a_chunk_of_each(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 300)
    limits = line.pipeline.snapshot.model_copy(update={"readers": 3})
    line.pipeline = line.pipeline.model_copy(update={"snapshot": limits})
    monkeypatch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: 20)
    threads: list[int] = []
    attempts: dict[int, int] = {}
    before, together = copier._ChunkReader._read, threading.Barrier(3, timeout=60)

    def met(self: Any, table: Any, copy: Any, planned: Any) -> None:
        attempts[planned.number] = planned.attempts
        threads.append(threading.get_ident())
        if len(attempts) <= 3 and planned.attempts == 1:
            together.wait()  # all three have a chunk of the one table
        if len(attempts) > 6 and planned.attempts == 1:
            raise Killed
        before(self, table, copy, planned)

    monkeypatch.setattr(copier._ChunkReader, "_read", met)
    with pytest.raises(Killed):
        read(line, ["number"])
    assert len(set(threads)) == 3
    monkeypatch.setattr(copier._ChunkReader, "_read", before)
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        first = {one.chunk.number for one in meta.copies.chunks("shop")}
    read(line, ["number"])
    line.drain()
    stage(line)
    (chunks,) = [one.chunks for one in line.chain if one.copied]
    numbers = {one.number for one in chunks}
    assert first <= numbers  # what was read before the kill is in the stage, and was not read again
    assert len(attempts.keys() - first) <= 3
    assert sum(one.rows for one in chunks) == 300
    assert in_stage(line, "number") == at_source(line, "number")


def test_a_chunk_that_takes_too_long_makes_the_next_ones_smaller(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 200)
    limits = line.pipeline.snapshot.model_copy(update={"readers": 1, "chunk_s": 1e-9})
    line.pipeline = line.pipeline.model_copy(update={"snapshot": limits})
    monkeypatch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: 190)
    read(line, ["number"])
    line.drain()
    stage(line)
    (chunks,) = [one.chunks for one in line.chain if one.copied]
    assert [one.rows for one in chunks] == [190] + 10 * [1]
    assert in_stage(line, "number") == at_source(line, "number")


def test_a_paused_copy_stops_after_its_chunk_wherever_it_runs_and_continues_after_it(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 100)
    monkeypatch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: 10)
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        done = table_chunks.TableChunks.read
        calls, paused = [0], [0]

        def then_paused(self: Any, *arguments: Any) -> bool:
            calls[0] += 1
            if calls[0] == 3:
                meta.copies.pause("shop", "an operator")
                meta.copies.pause("shop", "another one")
                paused[0] = calls[0]  # the other reader may have ended chunks meanwhile
            return done(self, *arguments)

        monkeypatch.setattr(table_chunks.TableChunks, "read", then_paused)
        for _ in range(2):
            with pytest.raises(RetryLater) as refused:
                read(line, ["number"])
            assert refused.value.code == "snapshot.paused"
            assert "an operator" in refused.value.what
        assert 3 <= paused[0] <= calls[0] <= paused[0] + 1  # each of two readers ended the chunk that it was at
        assert meta.copies.resume("shop")
        assert not meta.copies.resume("shop")
    read(line, ["number"])
    line.drain()
    stage(line)
    assert in_stage(line, "number") == at_source(line, "number")


def throttled(line: Lab, **limits: Any) -> tuple[list[str], list[str]]:
    """Copies `number`; what the first chunks waited for, and the errors of limits that cannot be asked for."""
    throttle = ThrottleOptions.model_validate(limits)
    snapshot = line.pipeline.snapshot.model_copy(update={"throttle": throttle})
    line.pipeline = line.pipeline.model_copy(update={"snapshot": snapshot})
    waited: list[str] = []

    def progressed(copy: Any) -> None:
        waited.append(copy.waiting)
        if copy.waiting:
            line.origin.execute("UPDATE brake SET v = 0")

    try:
        read(line, ["number"], progressed=progressed)
    except Refused as error:
        return waited, [error.code, error.what]
    return waited, []


def test_a_copy_waits_for_what_its_throttle_limits_and_refuses_a_limit_that_it_cannot_ask_for(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 100)
    monkeypatch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: 30)
    monkeypatch.setattr(copier, "WAIT_S", 0.01)
    monkeypatch.setattr(throttle_module, "CHECK_S", 0.0)
    name = line.origin.name
    line.origin.execute("CREATE TABLE brake (v INT)", "INSERT INTO brake VALUES (0)")
    read(line, ["number"])  # begun, so that a wait can be reported
    line.origin.execute("UPDATE brake SET v = 3")
    line.drain()
    stage(line)
    before = table_chunks.TableChunks.read

    def brakes(self: Any, *arguments: Any) -> bool:
        line.origin.execute("UPDATE brake SET v = 3")
        return before(self, *arguments)

    monkeypatch.setattr(table_chunks.TableChunks, "read", brakes)
    line.origin.execute("UPDATE brake SET v = 0")
    waited, errors = throttled(line, query=f"SELECT v FROM {name}.brake")
    assert "the query of snapshot.throttle returns 3" in waited
    assert not errors
    line.origin.execute("UPDATE brake SET v = 0")
    _, errors = throttled(line, query="SELECT 'many'")
    assert errors[0] == "snapshot.throttle"
    _, errors = throttled(line, query="SELECT v FROM missing.table")
    assert errors[0] == "snapshot.throttle"
    _, errors = throttled(line, replicas=["env:SOURCE"])
    assert errors[0] == "snapshot.throttle"
    assert "not a replica" in errors[1]
    line.drain()
    stage(line)
    waited, errors = throttled(line, threads_running=1000, history_list_length=10**9)
    assert (set(waited), errors) == ({""}, [])
    line.drain()
    stage(line)
    assert in_stage(line, "number") == at_source(line, "number")


@pytest.mark.parametrize("limit", ["threads_running", pytest.param("history_list_length", marks=pytest.mark.matrix)])
def test_a_copy_waits_while_the_source_is_busier_than_the_throttle_allows(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    line = with_rows(make_line, 100)
    monkeypatch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: 30)
    monkeypatch.setattr(copier, "WAIT_S", 0.01)
    monkeypatch.setattr(throttle_module, "CHECK_S", 0.0)
    waited: list[str] = []
    released = threading.Event()

    def busy() -> None:
        """Sessions that work, or an old view for which each change is kept, until the copy has said that it waits."""
        with ExitStack() as opened:
            sessions = [opened.enter_context(line.origin.session()) for _ in range(4)]
            if limit == "history_list_length":
                sessions[0]("START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT COUNT(*) FROM number")
                for number in range(400):
                    sessions[1](f"UPDATE number SET v = {-number} WHERE v = {1 - number}")
                    sessions[1](f"INSERT INTO late VALUES ('2020-01-01', {number}, 1, '')")
                    sessions[1](f"DELETE FROM late WHERE id = {number}")
                started.set()
                released.wait()
            else:
                asked = [threading.Thread(target=sleep, args=(one,)) for one in sessions]
                for one in asked:
                    one.start()
                while len(sleeping()) < len(asked):
                    time.sleep(0.01)
                started.set()
                released.wait()
                for number in sleeping():
                    line.origin.execute_on_server(f"KILL QUERY {number}")
                for one in asked:
                    one.join()

    def sleep(session: Callable[..., Any]) -> None:
        with suppress(pymysql.err.OperationalError):  # KILL QUERY
            session("SELECT SLEEP(600)")

    def sleeping() -> list[int]:
        with line.origin.session() as run:
            rows = run("SELECT id FROM information_schema.processlist WHERE info = 'SELECT SLEEP(600)'")
        return [int(row[0]) for row in rows]

    def progressed(copy: Any) -> None:
        waited.append(copy.waiting)
        if copy.waiting:
            released.set()
        elif not started.is_set():
            beside.start()
            started.wait()

    started, beside = threading.Event(), threading.Thread(target=busy)
    throttle = ThrottleOptions.model_validate({limit: {"threads_running": 4, "history_list_length": 300}[limit]})
    snapshot = line.pipeline.snapshot.model_copy(update={"throttle": throttle, "readers": 1})
    line.pipeline = line.pipeline.model_copy(update={"snapshot": snapshot})
    try:
        read(line, ["number"], progressed=progressed)
    finally:
        released.set()
        beside.join()
    said = {"threads_running": "threads are running at the source, more than 4",
            "history_list_length": "entries, more than 300"}[limit]  # fmt: skip
    assert any(said in why for why in waited)
    assert waited[-1] == ""
    line.drain()
    stage(line)
    assert in_stage(line, "number") == at_source(line, "number")


@ONE_SERVER
def test_of_two_copiers_of_a_source_one_reads(make_line: Callable[..., Lab]) -> None:
    line = make_line()
    line.drain()
    with (
        Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta,
        copier_lease(opened(line.pipeline, meta), "shop"),
        pytest.raises(RetryLater) as refused,
        copier_lease(opened(line.pipeline, meta), "shop"),
    ):
        pass
    assert refused.value.code == "lease.held"


@ONE_SERVER
def test_a_purge_takes_copied_rows_with_their_place_and_leaves_one_chain(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 30)
    read(line)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5")
    line.drain()
    stage(line)
    line.origin.execute("UPDATE number SET v = -2 WHERE v < 5")
    line.drain()
    (copied,) = [one for one in line.chain if one.copied]
    assert line.chain[-1] is not copied
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        (done,) = purge(opened(line.pipeline, meta, store=line.store), cutoff_us=1 << 61).sources
    # Where the copy stays, what the log brought since it was read does, too.
    if copied.batch_id in {one.batch_id for one in line.chain}:
        assert "rows that were read" in done.held_by
        assert in_stage(line, "number") == at_source(line, "number")
    for v in (-3, -4):
        line.origin.execute(f"UPDATE number SET v = {v} WHERE v < 5")
        line.drain()
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        purge(opened(line.pipeline, meta, store=line.store), cutoff_us=1 << 61)
    assert [one.copied for one in line.chain] == [False]
    assert not any(line.store.stat(part.path) for part in copied.parts)
    assert manifests.verify(line.store, "shop", deep=True) == []
    with pytest.raises(Refused):
        in_stage(line, "number")


SEMI_SYNC = {
    "mysql9": ("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'", "rpl_semi_sync_source"),
    "mariadb": ("SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'", "rpl_semi_sync_master"),
}


@contextmanager
def logged_and_unseen(origin: Origin, flavor: str) -> Iterator[None]:
    """Until the block ends, an UPDATE is in the log, and cannot be seen: it waits for a replica that does not come."""
    prepare, switch = SEMI_SYNC[flavor]
    origin.execute_on_server(prepare, f"SET GLOBAL {switch}_timeout = 600000", f"SET GLOBAL {switch}_enabled = ON")
    waiting = threading.Thread(target=origin.execute, args=("UPDATE number SET v = -1 WHERE v < 10",))
    waiting.start()
    try:
        yield
    finally:
        origin.execute_on_server(f"SET GLOBAL {switch}_enabled = OFF")
        waiting.join()


def refuses_to_read_what_is_unseen(line: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermarks, "VISIBLE_WITHIN_S", 1.0)
    with pytest.raises(RetryLater) as refused:
        read(line, ["number"])
    assert refused.value.code == "snapshot.blocked"


def has_what_was_unseen(line: Lab) -> None:
    read(line)
    line.drain()
    assert len(stage(line).tables) == len(TABLES)
    assert (-1, "w0") in [row[1:] for row in at_source(line, "number")]
    assert in_stage(line, "number") == at_source(line, "number")


@pytest.mark.parametrize("flavor", ["mysql9", "mariadb"])
def test_a_transaction_that_is_logged_and_not_yet_visible_is_not_missing_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavor: str
) -> None:
    """A semi-synchronous server commits in the engine only after a replica has acknowledged what was logged."""
    with {"mysql9": MySql, "mariadb": MariaDb}[flavor].start(server_id=8) as sql:
        origin = Origin(sql, fresh_name())
        origin.execute_on_server(f"CREATE DATABASE {origin.name}")
        line = Lab(tmp_path, origin)
        fill(line, 20)
        line = Lab(tmp_path, origin)
        with logged_and_unseen(origin, flavor):
            assert eventually(lambda: line.drain() and any(one.rows for one in line.chain))
            assert (-1, "w0") not in [row[1:] for row in at_source(line, "number")]
            line.drain()  # an extractor that starts now finds the log that it read
            refuses_to_read_what_is_unseen(line, monkeypatch)
        monkeypatch.undo()
        has_what_was_unseen(line)
        origin.control.close()


@pytest.mark.parametrize("start", ["latest", pytest.param("position", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("flavor", ["mysql9", "mariadb"])
def test_a_transaction_that_is_logged_before_the_capture_and_visible_later_is_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavor: str, start: str
) -> None:
    with {"mysql9": MySql, "mariadb": MariaDb}[flavor].start(server_id=8) as sql:
        origin = Origin(sql, fresh_name())
        origin.execute_on_server(f"CREATE DATABASE {origin.name}")
        fill(Lab(tmp_path, origin), 20)
        before = server.end_position(origin.control, 0)
        with logged_and_unseen(origin, flavor):
            assert eventually(lambda: server.end_position(origin.control, 0) > before)
            line = Lab(tmp_path, origin)
            if start == "latest":
                line.change(source="start: latest")
            line.drain()
            assert (-1, "w0") not in [row[1:] for row in at_source(line, "number")]
            refuses_to_read_what_is_unseen(line, monkeypatch)
        monkeypatch.undo()
        has_what_was_unseen(line)
        origin.control.close()


def eventually(reached: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 60
    while not (found := reached()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return found


@ONE_SERVER
def test_a_purge_up_to_a_copy_leaves_whole_tables(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 30)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5", "UPDATE pair SET v = -1 WHERE v < 5")
    line.drain()
    read(line, ["number"])
    line.origin.execute("UPDATE number SET v = -2 WHERE v = 7", "DELETE FROM number WHERE v IN (3, 8)")
    line.drain()
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        purge(opened(line.pipeline, meta, store=line.store), cutoff_us=1 << 61)
    before = line.chain[0].begin.position
    with pytest.raises(Refused) as refused:
        in_stage(line, "number")
    assert refused.value.code == "stage.partial"
    assert stage(line).tables
    assert in_stage(line, "number") == at_source(line, "number")
    line.origin.execute("DELETE FROM number WHERE v = 9", "INSERT INTO number VALUES (12345, 1, 'new')")
    line.drain()
    assert in_stage(line, "number") == at_source(line, "number")
    with pytest.raises(Refused):  # before the copy, its rows are missing
        table_state(line.store, line.chain, "number", as_of=AsOf(position=before))
    with pytest.raises(Refused):  # not copied
        in_stage(line, "pair")
    with Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta:
        purge(opened(line.pipeline, meta, store=line.store), cutoff_us=1 << 61)
    # What the log brought since its first read stays with the copy, or both are gone.
    if any(one.copied for one in line.chain):
        assert in_stage(line, "number") == at_source(line, "number")
    else:
        with pytest.raises(Refused):
            in_stage(line, "number")


@pytest.fixture(scope="module")
def plain_mysql() -> Iterator[MySql]:
    """A MySQL without GTIDs, on which a copy locks each table for a moment."""
    with MySql.start(server_id=7, options={"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}) as server:
        yield server


@pytest.mark.parametrize("engine", ["InnoDB", pytest.param("MyISAM", marks=pytest.mark.matrix)])
def test_a_copy_from_a_server_without_gtids_ends_with_its_rows(
    plain_mysql: MySql, tmp_path: Path, small_chunks: None, engine: str
) -> None:
    origin = Origin(plain_mysql, fresh_name())
    origin.execute_on_server(f"CREATE DATABASE {origin.name}")
    line = Lab(tmp_path, origin)
    fill(line, 300)
    for table in TABLES:
        origin.execute(f"ALTER TABLE {table} ENGINE = {engine}")
    line = Lab(tmp_path, origin)
    with writers(line, 3):
        line.drain()
        read(line)
        while pending_tables(line):
            line.drain()
            stage(line)
    line.drain()
    for table in TABLES:
        assert in_stage(line, table) == at_source(line, table), table
    origin.control.close()


@ONE_SERVER
def test_an_extractor_adopts_copied_rows_of_a_copier_that_had_more_leases_than_it(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 20)
    for _ in range(5):  # each raises the epoch of the copier's lease
        read(line)
    line.drain()
    with monkeypatch.context() as killed:
        killed.setattr(Batches, "record_copied", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            stage(line)
    assert line.chain[-1].copied
    line.drain()
    assert {line.coverage[table] for table in TABLES} == {How.COPIED}


@ONE_SERVER
def test_a_table_that_is_never_sent_as_its_definition_says_is_refused_alone(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt later would find the same. All readers go on with the other tables, by the same sessions."""
    monkeypatch.setitem(cast(Any, values._CODES), "year", frozenset())
    first = make_line()
    tables = ("t1", "t2", "t3", "t4")
    for name in tables:
        first.origin.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, v {'YEAR' if name in ('t1', 't3') else 'INT'})",
            f"INSERT INTO {name} VALUES (1, 2001)",
        )
    line = make_line()
    line.drain()
    refused = read(line, list(tables))
    assert {name.partition(".")[2]: error.code for name, error in refused.items()} == {
        "t1": "source.unsupported_table", "t3": "source.unsupported_table",
    }  # fmt: skip
    stage(line)
    for name in ("t2", "t4"):
        assert in_stage(line, name) == at_source(line, name)
