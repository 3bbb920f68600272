"""Copies of existing rows beside writes that go on: whatever the order, the stage ends with the source's rows."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pymysql
import pytest

from cdc_core.errors import Refused, RetryLater
from cdc_core.meta import Meta
from cdc_core.meta.batches import Batches
from cdc_core.meta.copied_batches import CopiedBatches
from cdc_core.meta.positions import SourcePositions
from cdc_core.model.coverage import How
from cdc_core.model.schema import TableSchema
from cdc_core.mysql.connections import answers
from cdc_core.operations.apply.plan import plan
from cdc_core.operations.apply.retention import purge
from cdc_core.operations.copy import chunks as chunks_module
from cdc_core.operations.copy import copier, read_source, table_chunks, watermarks
from cdc_core.operations.copy import throttle as throttle_module
from cdc_core.operations.copy.staging import Staged
from cdc_core.operations.extract.attached_source import recover
from cdc_core.results import value_columns as values
from cdc_core.stage import manifest as manifests
from cdc_core.stage.as_of import AsOf
from examples.sandbox.mysql import MySql
from tests.integration.beside import beside
from tests.integration.one_server import FIRST_MARIADB, FIRST_MYSQL
from tests.integration.replicated import semi_synchronous
from tests.lab.copying import at_source, copy, in_stage, is_equal, pending_tables, read, stage
from tests.lab.databases import is_newest
from tests.lab.lab import Lab
from tests.lab.origin import Origin, own_origin
from tests.lab.pipeline_file import target
from tests.lab.refusals import raises
from tests.lab.staged_tables import table_state
from tests.lab.waiting import wait_until

ROWS = 500
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
    pairs = [condition.split(" = ") for condition in _KEYS[table](n).split(" AND ")]
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
    return beside(*(partial(write, line, random.Random(seed * 10 + index)) for index in range(count)))


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
    line = make_line()
    fill(line, rows)
    line.begin_now()
    line.drain()
    return line


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(4)
    monkeypatch.setattr(chunks_module, "chunk_rows", lambda size_bytes, row_bytes: chance.choice([1, 7, 90, 400]))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_a_copy_beside_writers_ends_with_the_rows_of_the_source(
    make_line: Callable[..., Lab], small_chunks: None, seed: int
) -> None:
    line = make_line()
    fill(line)
    line.begin_now()
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
    is_equal(line, *TABLES)


class Killed(BaseException):
    """What a kill is to the code: nothing more runs."""


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
        patch.setattr(chunks_module, "chunk_rows", lambda size_bytes, row_bytes: 10)
        patch.setattr(table_chunks.TableChunks, "next", next_chunk)
        read(line, "number")
    line.drain()
    return stage(line)


def test_a_table_that_is_truncated_while_it_is_copied_is_whole_without_the_copy(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables="on_truncate: stage")
    found = changed(line, "TRUNCATE TABLE number", "INSERT INTO number VALUES (3, 3, 'x')")
    # Where a reader was so late that it has read only what came after the TRUNCATE, nothing was dropped.
    assert [table for table, _ in found.dropped] in ([f"{line.origin.name}.number"], [])
    is_equal(line, "number")


def test_a_column_that_is_added_while_a_table_is_copied_begins_the_copy_again(make_line: Callable[..., Lab]) -> None:
    line = make_line()
    changed(line, "ALTER TABLE number ADD COLUMN more INT", "UPDATE number SET more = 7 WHERE v < 9")
    assert line.coverage["number"] is How.COPIED
    is_equal(line, "number")


def test_a_column_that_is_added_between_the_read_and_the_staging_of_a_copy_is_in_the_state(
    make_line: Callable[..., Lab],
) -> None:
    line = make_line()
    fill(line, 50)
    line.drain()
    read(line, "number")
    line.origin.execute("ALTER TABLE number ADD COLUMN more INT", "UPDATE number SET more = 7 WHERE v < 9")
    line.drain()
    stage(line)
    assert line.coverage["number"] is How.COPIED
    is_equal(line, "number")


@FIRST_MARIADB
def test_a_table_that_was_gone_for_a_moment_is_copied_from_its_beginning(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between DROP and CREATE a question about it fails; when the copier looks again, its definition is what it was."""
    line = with_rows(make_line, 30)
    known, met = chunks_module.end_of_chunk, []

    def gone_once(connection: Any, *arguments: Any) -> Any:
        if len(met) < 2:
            met.append(len(met))
            with answers("source"), connection.cursor() as cursor:
                cursor.execute(f"SELECT 1 FROM {line.origin.name}.is_gone")
        return known(connection, *arguments)

    monkeypatch.setattr(chunks_module, "end_of_chunk", gone_once)
    read(line)
    assert met == [0, 1]
    line.drain()
    assert len(stage(line).tables) == len(TABLES)
    is_equal(line, *TABLES)


@FIRST_MARIADB
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
    with raises(RetryLater, "table.redefined"):
        read(line, "number")  # gone for its begin too: nothing is known of it then
    assert len(copy(line).tables) == len(TABLES)
    is_equal(line, *TABLES)


@FIRST_MARIADB
def test_a_state_as_of_a_moment_before_the_copy_is_refused_and_after_it_right(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 40)
    read(line)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5")
    line.drain()
    stage(line)
    (copied,) = [manifest for manifest in line.chain if manifest.copied]
    expected = at_source(line, "number")
    line.origin.execute("DELETE FROM number")
    line.drain()
    at = AsOf(position=copied.end.position)
    state = table_state(line.store, line.chain, "number", as_of=at)
    assert len(state) == len(expected)
    assert sorted(state.column("v").to_pylist()) == sorted(row[1] for row in expected)
    for chunk in copied.chunks:
        if chunk.low < copied.end.position:
            with pytest.raises(Refused):  # partial, or before everything that is staged
                table_state(line.store, line.chain, "number", as_of=AsOf(position=chunk.low))


@FIRST_MARIADB
def test_a_state_as_of_a_moment_while_a_whole_table_is_copied_again_has_the_rows_from_before(
    make_line: Callable[..., Lab],
) -> None:
    line = make_line()
    line.drain()
    line.origin.execute(TABLES["number"], "INSERT INTO number VALUES (1, 1, 'old'), (2, 2, 'old')")
    line.drain()
    read(line, "number")
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
    is_equal(line, "number")


KEYS = {
    "TINYINT": ["-128", "0", "127"],
    "BIGINT": ["-9223372036854775808", "-1", "0", "9223372036854775807"],
    "BIGINT UNSIGNED": ["0", "9223372036854775808", "18446744073709551615"],
    "DOUBLE": ["-1.7976931348623157e308", "-5e-324", "0", "0.1", "1e22", "9007199254740993"],
    "DECIMAL(40,10)": ["-999999999999999999999999999999.9999999999", "-0.0000000001", "0", "3.1400000000"],
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


def places(number: int) -> tuple[tuple[str, str], ...]:
    """Of the column k in the keys of tables: beside another column, with every other type before it; the first four
    types alone, too: a chunk of whole numbers may end at one that is computed."""
    beside = ("last", "(n, k)") if number % 2 else ("first", "(k, n)")
    return (beside, ("alone", "(k)")) if number < 4 else (beside,)


@FIRST_MARIADB
def test_a_key_of_any_type_cuts_a_table_into_chunks_that_hold_each_row_once(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make_line()
    with closing(line.origin.sql.connect(line.origin.name)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+00:00'")
        for number, (kind, values) in enumerate(KEYS.items()):
            for place, keys in places(number):
                cursor.execute(f"CREATE TABLE {place}{number} (n INT, k {kind}, v INT, PRIMARY KEY {keys})")
                rows = [(n, value) for value in values for n in ([0] if place == "alone" else [-1, 1])]
                for v, (n, value) in enumerate(rows):
                    cursor.execute(f"INSERT IGNORE INTO {place}{number} VALUES ({n}, {value}, {v})")
        connection.commit()
    line.begin_now()
    line.drain()
    monkeypatch.setattr(chunks_module, "chunk_rows", lambda size_bytes, row_bytes: 1)
    copy(line)
    chunks = [chunk for manifest in line.chain for chunk in manifest.chunks]
    for number, kind in enumerate(KEYS):
        for place, _ in places(number):
            expected = sorted(row[2] for row in at_source(line, f"{place}{number}"))
            assert len(expected) > 1
            counts = [chunk.rows for chunk in chunks if chunk.table.endswith(f".{place}{number}")]
            # The end of a chunk of whole numbers may be computed: then there may be none in it.
            assert [count for count in counts if count] == [1] * len(expected), (kind, place)
            state = table_state(line.store, line.chain, f"{place}{number}")
            assert sorted(state.column("v").to_pylist()) == expected, (kind, place)


@FIRST_MARIADB
def test_a_copy_under_a_clock_that_was_ahead_is_not_taken_for_the_state_before_that_time(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 20)
    checkpoint = SourcePositions.checkpoint
    ahead_us = 3_600_000_000

    def ahead(self: SourcePositions, source: str) -> Any:
        stored = checkpoint(self, source)
        return stored and replace(stored, watermark_us=stored.watermark_us + ahead_us)

    with monkeypatch.context() as patch:
        patch.setattr(SourcePositions, "checkpoint", ahead)
        read(line)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5")
    line.drain()
    stage(line)
    now = line.meta.positions.checkpoint("shop")
    assert now is not None
    with pytest.raises(Refused):  # the copied rows carry a later time: without them the table would be nearly empty
        table_state(line.store, line.chain, "number", as_of=AsOf(time_us=now.watermark_us))
    is_equal(line, "number")


@FIRST_MARIADB
def test_an_extractor_that_begins_at_a_copy_continues_with_what_meta_knows(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 20)
    copy(line)
    for _ in range(2):
        line.drain()
    checkpoint = line.meta.positions.checkpoint("shop")
    assert checkpoint is not None
    assert line.chain[-1].copied
    assert line.chain[-1].end.position == checkpoint.position
    assert line.chain[-1].end.watermark_us < checkpoint.watermark_us
    lease = line.meta.leases.acquire("shop", "me", 60)
    assert recover(line.meta, line.store, lease) == checkpoint
    line.meta.leases.release(lease)


@FIRST_MYSQL
def test_a_copy_waits_until_what_was_written_before_its_read_is_staged(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 20)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5")
    read(line)
    early = stage(line)
    assert (early.batches, early.tables) == ((), ())
    assert early.waiting is not None
    assert not any(manifest.copied for manifest in line.chain)
    line.drain()
    assert len(stage(line).tables) == len(TABLES)
    is_equal(line, "number")


@FIRST_MARIADB
def test_rows_of_which_the_newest_counts_are_not_copied_because_nothing_tells_their_age(
    make_line: Callable[..., Lab],
) -> None:
    def feeding(shared_keys: str) -> list[Any]:
        return [target("t", "env:TARGET", {"*": {"shared_keys": shared_keys}})]

    line = with_rows(make_line, 3)
    line.change(targets=feeding("newest"))  # the tables of that name in any other database feed it too
    refused = read(line)
    assert len(refused) == len(TABLES)
    assert {error.code for error in refused.values()} == {"snapshot.not_copyable"}
    line.change(targets=feeding("stop"))
    assert not read(line)
    line.drain()
    assert len(stage(line).tables) == len(TABLES)
    line.change(targets=feeding("newest"))
    with raises(Refused, "snapshot.not_copyable"):
        plan(line.opened, window=None, run_id="r1")


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
    line.begin_now()
    stop = threading.Event()
    writing = threading.Thread(target=write_copies, args=(line, random.Random(3), stop))
    writing.start()
    try:
        line.drain()
        time.sleep(0.3)
        assert not read(line, "heap")
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
        with raises(RetryLater, "lease.lost"):
            stage(line)
        assert stage(line).tables == (f"{line.origin.name}.heap",)
        (copied,) = [manifest for manifest in line.chain if manifest.copied]
        state = table_state(line.store, line.chain, "heap", as_of=AsOf(position=copied.end.position))
        assert len(state) == sum(part.ops.get("r", 0) for part in copied.parts)
    finally:
        stop.set()
        writing.join()
    line.drain()
    assert len(at_source(line, "heap")) > 0
    is_equal(line, "heap")
    read(line, "bare")  # empty: surveyed as such, and copied all the same
    read(line, "heap")
    line.origin.execute("INSERT INTO heap VALUES (1, 'last')", "INSERT INTO bare VALUES (1), (1)")
    line.drain()
    stage(line)
    is_equal(line, "heap", "bare")
    assert manifests.verify(line.store, "shop", deep=True) == []
    line.lose_meta()
    line.rebuild()
    line.drain()
    is_equal(line, "heap")


@FIRST_MARIADB
def test_a_table_without_a_key_is_not_copied_twice_at_one_place(make_line: Callable[..., Lab]) -> None:
    """A target, which has the changes up to a mark, would leave out the second copy."""
    line = make_line()
    line.origin.execute("CREATE TABLE heap (n INT)", "INSERT INTO heap VALUES (1), (1)", "CREATE TABLE bare (n INT)")
    line.begin_now()
    line.drain()
    table = f"{line.origin.name}.heap"
    read(line, "heap")
    assert stage(line).tables == (table,)
    read(line, "heap")
    again = stage(line)
    assert (again.tables, again.waiting, [name for name, _ in again.dropped]) == ((), None, [table])
    line.origin.execute("INSERT INTO bare VALUES (1)")
    line.drain()
    read(line, "heap")
    assert stage(line).tables == (table,)
    first, second = (manifest for manifest in line.chain if manifest.copied)
    assert first.begin.position < second.begin.position


@pytest.mark.parametrize("any_server", ["mariadb"], indirect=True)
def test_a_virtual_column_that_not_all_images_have_tells_no_rows_without_a_key_apart(
    make_line: Callable[..., Lab],
) -> None:
    line = make_line()
    line.origin.execute(
        "CREATE TABLE heap (n INT, twice INT AS (n * 2) VIRTUAL)", "INSERT INTO heap (n) VALUES (1), (1), (2), (3)"
    )
    line.begin_now()
    line.drain()
    read(line, "heap")
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
    if is_newest(line.origin.sql):  # logs it of inserted rows alone
        assert "twice" not in state[0]
        return
    told = {row["n"]: (row["twice"], row["_cdc_absent"]) for row in state}
    assert told[7] == (14, None)
    assert all(twice == 2 * n or "twice" in absent for n, (twice, absent) in told.items())


@FIRST_MYSQL
def test_several_readers_share_a_table_and_a_kill_costs_at_most_a_chunk_of_each(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 300)
    line.change(snapshot="readers: 3")
    monkeypatch.setattr(chunks_module, "chunk_rows", lambda size_bytes, row_bytes: 20)
    threads: list[int] = []
    tried: set[int] = set()
    before, together = copier._ChunkReader._read, threading.Barrier(3, timeout=60)

    def met(self: Any, table: Any, copy: Any, planned: Any) -> None:
        first_time = planned.number not in tried
        tried.add(planned.number)
        threads.append(threading.get_ident())
        if len(tried) <= 3 and first_time:
            together.wait()  # all three have a chunk of the one table
        if len(tried) > 6 and first_time:
            raise Killed
        before(self, table, copy, planned)

    monkeypatch.setattr(copier._ChunkReader, "_read", met)
    with pytest.raises(Killed):
        read(line, "number")
    assert len(set(threads)) == 3
    monkeypatch.setattr(copier._ChunkReader, "_read", before)
    first = {chunk.chunk.number for chunk in line.meta.copies.chunks("shop")}
    copy(line, "number")
    (chunks,) = [manifest.chunks for manifest in line.chain if manifest.copied]
    numbers = {chunk.number for chunk in chunks}
    assert first <= numbers  # what was read before the kill is in the stage, and was not read again
    assert len(tried - first) <= 3
    assert sum(chunk.rows for chunk in chunks) == 300
    is_equal(line, "number")


@FIRST_MYSQL
def test_a_chunk_that_takes_too_long_makes_the_next_ones_smaller(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 200)
    line.change(snapshot="readers: 1, chunk_s: 1.0e-9")
    monkeypatch.setattr(chunks_module, "chunk_rows", lambda size_bytes, row_bytes: 190)
    copy(line, "number")
    (chunks,) = [manifest.chunks for manifest in line.chain if manifest.copied]
    assert [chunk.rows for chunk in chunks] == [190] + 10 * [1]
    is_equal(line, "number")


@FIRST_MYSQL
def test_a_paused_copy_stops_after_its_chunk_wherever_it_runs_and_continues_after_it(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 100)
    monkeypatch.setattr(chunks_module, "chunk_rows", lambda size_bytes, row_bytes: 10)
    done = table_chunks.TableChunks.read
    calls, paused = [0], [0]

    def then_paused(self: Any, *arguments: Any) -> bool:
        calls[0] += 1
        if calls[0] == 3:
            line.meta.copies.pause("shop", "an operator")
            line.meta.copies.pause("shop", "another one")
            paused[0] = calls[0]  # the other reader may have ended chunks meanwhile
        return done(self, *arguments)

    monkeypatch.setattr(table_chunks.TableChunks, "read", then_paused)
    for _ in range(2):
        with raises(RetryLater, "snapshot.paused") as refused:
            read(line, "number")
        assert "an operator" in refused.value.what
    assert 3 <= paused[0] <= calls[0] <= paused[0] + 1  # each of two readers ended the chunk that it was at
    assert line.meta.copies.resume("shop")
    assert not line.meta.copies.resume("shop")
    copy(line, "number")
    is_equal(line, "number")


def throttled(line: Lab, **limits: Any) -> tuple[list[str], list[str]]:
    """Copies `number`; what the first chunks waited for, and the errors of limits that cannot be asked for."""
    line.change(snapshot={"throttle": limits})
    waited: list[str] = []

    def progressed(copy: Any) -> None:
        waited.append(copy.waiting)
        if copy.waiting:
            line.origin.execute("UPDATE brake SET v = 0")

    try:
        read(line, "number", progressed=progressed)
    except Refused as error:
        return waited, [error.code, error.what]
    return waited, []


def test_a_copy_waits_for_what_its_throttle_limits_and_refuses_a_limit_that_it_cannot_ask_for(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 100)
    monkeypatch.setattr(chunks_module, "chunk_rows", lambda size_bytes, row_bytes: 30)
    monkeypatch.setattr(read_source, "WAIT_S", 0.01)
    monkeypatch.setattr(throttle_module, "CHECK_S", 0.0)
    name = line.origin.name
    line.origin.execute("CREATE TABLE brake (v INT)", "INSERT INTO brake VALUES (0)")
    read(line, "number")  # begun, so that a wait can be reported
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
    waited, errors = throttled(line, threads_running=1000)
    assert (set(waited), errors) == ({""}, [])
    line.drain()
    stage(line)
    is_equal(line, "number")


def test_a_copy_waits_while_the_source_is_busier_than_the_throttle_allows(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = with_rows(make_line, 100)
    monkeypatch.setattr(chunks_module, "chunk_rows", lambda size_bytes, row_bytes: 30)
    monkeypatch.setattr(read_source, "WAIT_S", 0.01)
    monkeypatch.setattr(throttle_module, "CHECK_S", 0.0)
    waited: list[str] = []
    released = threading.Event()

    def busy() -> None:
        """Sessions that work until the copy has said that it waits."""
        with ExitStack() as opened:
            sessions = [opened.enter_context(line.origin.session()) for _ in range(4)]
            asked = [threading.Thread(target=sleep, args=(session,)) for session in sessions]
            for thread in asked:
                thread.start()
            while len(sleeping()) < len(asked):
                time.sleep(0.01)
            started.set()
            released.wait()
            for number in sleeping():
                line.origin.execute_on_server(f"KILL QUERY {number}")
            for thread in asked:
                thread.join()

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
    line.change(snapshot={"throttle": {"threads_running": 4}, "readers": 1})
    try:
        read(line, "number", progressed=progressed)
    finally:
        released.set()
        beside.join()
    assert any("threads are running at the source, more than 4" in why for why in waited)
    assert waited[-1] == ""
    line.drain()
    stage(line)
    is_equal(line, "number")


@FIRST_MARIADB
def test_a_purge_takes_copied_rows_with_their_place_and_leaves_one_chain(make_line: Callable[..., Lab]) -> None:
    line = with_rows(make_line, 30)
    read(line)
    line.origin.execute("UPDATE number SET v = -1 WHERE v < 5")
    line.drain()
    stage(line)
    line.origin.execute("UPDATE number SET v = -2 WHERE v < 5")
    line.drain()
    (copied,) = [manifest for manifest in line.chain if manifest.copied]
    assert line.chain[-1] is not copied
    (done,) = purge(line.opened, cutoff_us=1 << 61).sources
    # Where the copy stays, what the log brought since it was read does, too.
    if copied.batch_id in {manifest.batch_id for manifest in line.chain}:
        assert "rows that were read" in done.held_by
        is_equal(line, "number")
    for v in (-3, -4):
        line.origin.execute(f"UPDATE number SET v = {v} WHERE v < 5")
        line.drain()
    purge(line.opened, cutoff_us=1 << 61)
    assert [manifest.copied for manifest in line.chain] == [False]
    assert not any(line.store.stat(part.path) for part in copied.parts)
    assert manifests.verify(line.store, "shop", deep=True) == []
    with pytest.raises(Refused):
        in_stage(line, "number")


@contextmanager
def logged_and_unseen(origin: Origin, v: int = -1) -> Iterator[None]:
    """Until the block ends, an UPDATE is in the log, and cannot be seen: it waits for a replica that does not come."""
    with semi_synchronous(origin.sql):
        waiting = threading.Thread(target=origin.execute, args=(f"UPDATE number SET v = {v} WHERE v < 10",))
        waiting.start()
        yield
    waiting.join()


def refuses_to_read_what_is_unseen(line: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermarks, "VISIBLE_WITHIN_S", 1.0)
    monkeypatch.setattr(watermarks, "LOCK_ATTEMPTS", 1)
    with raises(RetryLater, "snapshot.blocked"):
        read(line, "number")


def has_what_was_unseen(line: Lab) -> None:
    assert len(copy(line).tables) == len(TABLES)
    assert (-1, "w0") in [row[1:] for row in at_source(line, "number")]
    is_equal(line, "number")


def test_a_transaction_that_is_logged_and_not_yet_visible_is_not_missing_in_the_copy(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A semi-synchronous server commits in the engine only after a replica has acknowledged what was logged."""
    line = make_line()
    fill(line, 20)
    line.begin_now()
    with logged_and_unseen(line.origin):
        wait_until(lambda: line.drain() and any(manifest.rows for manifest in line.chain))
        assert (-1, "w0") not in [row[1:] for row in at_source(line, "number")]
        line.drain()  # an extractor that starts now finds the log that it read
        refuses_to_read_what_is_unseen(line, monkeypatch)
    monkeypatch.undo()
    has_what_was_unseen(line)


@FIRST_MARIADB
@pytest.mark.parametrize("unseen", [True, False])
def test_an_event_about_log_files_does_not_show_that_what_is_before_it_is_visible(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, unseen: bool
) -> None:
    line = make_line()
    fill(line, 20)
    line.begin_now()
    for v in range(-1, -40, -1):  # the server may write the event before the transaction
        line.origin.execute(f"INSERT INTO number (id, v) VALUES ({1000 - v}, 5)")
        line.origin.execute_on_server("FLUSH BINARY LOGS")
        with logged_and_unseen(line.origin, v) if unseen else nullcontext():
            if not unseen:
                line.origin.execute(f"UPDATE number SET v = {v} WHERE v < 10")
            wait_until(lambda: {"Binlog_checkpoint", "Gtid"} <= {*events_of_file(line)})
            if events_of_file(line)[-1] == "Binlog_checkpoint":
                line.drain()
                assert any(manifest.rows for manifest in line.chain)
                if unseen:
                    refuses_to_read_what_is_unseen(line, monkeypatch)
                break
    else:
        pytest.fail("the event was never the last one")
    monkeypatch.undo()
    assert len(copy(line).tables) == len(TABLES)
    is_equal(line, "number")


def events_of_file(line: Lab) -> list[str]:
    """The types of events of the server's log file, after those about the former ones with which it begins."""
    events = line.origin.sql.run(f"SHOW BINLOG EVENTS IN '{line.origin.end().position.file}'")
    return [kind for _, _, kind, *_ in events][3:]


@pytest.mark.parametrize("start", ["latest", pytest.param("position", marks=pytest.mark.matrix)])
def test_a_transaction_that_is_logged_before_the_capture_and_visible_later_is_in_the_copy(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    line = make_line()
    fill(line, 20)
    before = line.origin.end().position
    with logged_and_unseen(line.origin):
        wait_until(lambda: line.origin.end().position > before)
        if start == "latest":
            line.change(source="start: latest")
        else:
            line.begin_now()
        line.drain()
        assert (-1, "w0") not in [row[1:] for row in at_source(line, "number")]
        refuses_to_read_what_is_unseen(line, monkeypatch)
    monkeypatch.undo()
    has_what_was_unseen(line)


@pytest.fixture(scope="module")
def plain_mysql() -> Iterator[MySql]:
    """A MySQL without GTIDs, on which a copy locks each table for a moment."""
    with MySql.start(server_id=7, options={"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}) as server:
        yield server


@pytest.mark.parametrize("engine", ["InnoDB", pytest.param("MyISAM", marks=pytest.mark.matrix)])
def test_a_copy_from_a_server_without_gtids_ends_with_its_rows(
    plain_mysql: MySql, tmp_path: Path, small_chunks: None, engine: str
) -> None:
    with own_origin(plain_mysql) as origin, Lab(tmp_path, origin) as line:
        fill(line, 300)
        origin.execute(*(f"ALTER TABLE {table} ENGINE = {engine}" for table in TABLES))
        line.begin_now()
        with writers(line, 3):
            line.drain()
            read(line)
            while pending_tables(line):
                line.drain()
                stage(line)
        line.drain()
        is_equal(line, *TABLES)


@FIRST_MARIADB
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
    line.origin.execute("UPDATE number SET v = -1")
    line.drain()
    assert {line.coverage[table] for table in TABLES} == {How.COPIED}
    is_equal(line, *TABLES)


@FIRST_MARIADB
def test_a_table_that_is_never_sent_as_its_definition_says_is_refused_alone(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt later would find the same. All readers go on with the other tables, by the same sessions."""
    monkeypatch.setitem(cast(Any, values._CODES), "year", frozenset())
    line = make_line()
    tables = ("t1", "t2", "t3", "t4")
    for name in tables:
        line.origin.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, v {'YEAR' if name in ('t1', 't3') else 'INT'})",
            f"INSERT INTO {name} VALUES (1, 2001)",
        )
    line.begin_now()
    line.drain()
    refused = read(line, *tables)
    assert {name.partition(".")[2]: error.code for name, error in refused.items()} == {
        "t1": "source.unsupported_table", "t3": "source.unsupported_table",
    }  # fmt: skip
    stage(line)
    is_equal(line, "t2", "t4")
