"""Batches: what is written, counted and hashed; what an abort leaves; what is refused."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import errno
import hashlib
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_core.errors import InternalError, RetryLater
from cdc_core.model.block import EntryKind
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, ColumnType, TableSchema, parse_column_type
from cdc_core.model.staged_columns import staged_schema
from cdc_core.stage import files as file_store
from cdc_core.stage import parquet
from cdc_core.stage.manifest import commit
from cdc_core.stage.stores import open_store
from cdc_core.stage.writer import BatchWriter
from tests.lab.made_blocks import Change, Made, at, block
from tests.lab.refusals import raises

START = at(0)
WINDOW = (1_795_233_600_000_000, 1_795_237_200_000_000)
ORDERS = TableSchema(
    "shop",
    "orders_0",
    (Column("id", ColumnType("bigint"), False, 1), Column("note", ColumnType("varchar", length=50, charset="utf8mb4"))),
)
ITEMS = TableSchema("shop", "items", (Column("sku", ColumnType("char", length=4, charset="ascii"), False, 1),))


def insert(number: int, note: str = "n", logical: str | None = None) -> Change:
    return Change(ORDERS, "c", {"id": number, "note": note}, logical=logical)


def transactions(numbers, begin: Position = START):
    return block([Made([insert(number)], ts=1000 + number, gtid=f"0-1-{number}") for number in numbers], begin)


@pytest.fixture
def store(tmp_path):
    return open_store(f"file://{tmp_path}/stage")


@pytest.fixture
def begin(store):
    def start(position: Position = START, epoch: int = 7, to=store, **options: int) -> BatchWriter:
        return BatchWriter(
            to, pipeline="shop", source="shop", epoch=epoch, begin=Checkpoint(position), window=WINDOW, **options
        )

    return start


def files(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "stage").rglob("*") if path.is_file())


def test_a_manifest_tells_what_the_batch_holds(store, begin):
    moved = Change(ORDERS, "u", {"id": 9, "note": None}, {"id": 1, "note": "n"})
    writer = begin()
    writer.add(
        block(
            [Made([insert(1), Change(ITEMS, "c", {"sku": "a"})]), Made(kind=EntryKind.UNCAPTURED)], START, notes=("x",)
        )
    )
    writer.add(
        block([Made([moved, insert(2)]), Made([Change(ITEMS, "d", {"sku": "a"})])], at(2), left_out={"filtered": 3})
    )
    assert writer.rows == 5
    assert writer.position == at(4)
    manifest = writer.finish(Checkpoint(at(4), gtid_set="0-1-5"))
    assert (manifest.rows, manifest.events, manifest.transactions) == (5, 12, 3)
    assert (manifest.begin.position, manifest.end.position) == (START, at(4))
    assert (manifest.left_out, manifest.notes, manifest.epoch) == ({"filtered": 3}, ("x",), 7)
    assert (manifest.window_start_us, manifest.window_end_us) == WINDOW
    orders, items = manifest.parts
    assert (orders.table, orders.rows, orders.ops, orders.key_changes) == ("shop.orders_0", 3, {"c": 2, "u": 1}, 1)
    assert (items.table, items.rows, items.ops, items.key_changes) == ("shop.items", 2, {"c": 1, "d": 1}, 0)
    assert (orders.min_seq, orders.max_seq) == (START.seq, at(2).seq)
    assert manifest.schemas == {ORDERS.id: ORDERS, ITEMS.id: ITEMS}
    for part in manifest.parts:
        data = store.get(part.path)
        assert (part.size_bytes, part.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_part_says_what_its_rows_take_in_memory_however_well_they_compress(store, begin):
    note, literal = "n" * 400, "x" * 2_000_000
    rows = [insert(number, note) for number in range(5000)]
    rows += [Change(ORDERS, "u", {"id": 1, "note": note}, {"id": 1, "note": note}) for _ in range(999)]
    rows.append(Change(ORDERS, "c", {"id": 1, "note": None}, literal={"note": literal}))
    writer = begin()
    writer.add(block([Made(rows)], START))
    (part,) = writer.finish(Checkpoint(at(1))).parts
    values = (5000 + 2 * 999) * len(note) + len(literal)
    assert values < part.plain_bytes < values + 6000 * 200
    assert part.size_bytes < part.plain_bytes // 20


def test_rows_read_back_with_every_column_as_they_were_added(store, begin):
    made_block = block(
        [
            Made(
                [insert(1, "é😀"), Change(ORDERS, "u", {"id": 2, "note": None}, {"id": 3, "note": ""})],
                ts=5,
                gtid="0-1-2",
            ),
            Made([Change(ORDERS, "d", {"id": 4, "note": "x"}, literal={"note": "odd"})], ts=6),
        ],
        START,
    )
    writer = begin()
    writer.add(made_block)
    manifest = writer.finish(Checkpoint(at(2)))
    table = pq.ParquetFile(store.local_path(manifest.parts[0].path)).read()
    assert table.schema.equals(staged_schema(ORDERS))
    assert table.to_pylist() == made_block.tables[0].rows.to_pylist()


def test_small_blocks_are_gathered_into_one_row_group(store, begin):
    writer = begin()
    for number in range(100):
        writer.add(transactions([number], at(number)))
    manifest = writer.finish(Checkpoint(at(100)))
    metadata = pq.ParquetFile(store.local_path(manifest.parts[0].path)).metadata
    assert (metadata.num_rows, metadata.num_row_groups) == (100, 1)


@pytest.mark.parametrize("limit", ["rows", "bytes"])
def test_the_same_rows_give_the_same_bytes_however_they_were_cut_into_blocks(store, begin, monkeypatch, limit):
    if limit == "rows":
        monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 16)
    rng = np.random.default_rng(3)
    changes = []
    for n in range(200):
        row = {"id": n, "note": "x" * int(rng.integers(0, 60)) if rng.random() < 0.9 else None}
        changes.append(Change(ORDERS, "cud"[n % 3], row, row if n % 3 == 1 else None))
    hashes = set()
    for epoch, cut in enumerate((1, 7, 200)):
        writer = begin(epoch=epoch, row_group_buffer_bytes=2000 if limit == "bytes" else 1 << 30)
        for start in range(0, 200, cut):
            made = [Made([change], ts=5 + start + i) for i, change in enumerate(changes[start : start + cut])]
            writer.add(block(made, at(start)))
        (part,) = writer.finish(Checkpoint(at(200))).parts
        hashes.add(part.sha256)
        metadata = pq.ParquetFile(store.local_path(part.path)).metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        assert len(sizes) > 8
        assert min(sizes[:-1]) > 1
        if limit == "rows":
            assert set(sizes[:-1]) == {16}
    assert len(hashes) == 1


def test_bookkeeping_is_delta_or_dictionary_encoded_and_row_columns_where_it_pays(store, begin):
    note = [f"unique {n}" for n in range(2000)]
    schema = TableSchema("shop", "t", (*ORDERS.columns, Column("status", ColumnType("enum", labels=("a", "b")))))
    rows = [Change(schema, "c", {"id": n, "note": note[n], "status": "ab"[n % 2]}) for n in range(2000)]
    writer = begin()
    writer.add(block([Made([row], ts=n, gtid=f"0-1-{n}") for n, row in enumerate(rows)], START))
    manifest = writer.finish(Checkpoint(at(2000)))
    group = pq.ParquetFile(store.local_path(manifest.parts[0].path)).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    for name in ("_cdc_seq", "_cdc_pos", "_cdc_row", "_cdc_ts", "id", "_before.id"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings, name
    for name in ("_cdc_op", "_cdc_source", "_cdc_file", "status"):
        assert "RLE_DICTIONARY" in columns[name].encodings, name
    assert "DELTA_BYTE_ARRAY" in columns["_cdc_gtid"].encodings
    assert "RLE_DICTIONARY" not in columns["note"].encodings
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["id"].statistics.max == 1999
    assert columns["_cdc_seq"].statistics.min == START.seq
    bookkeeping = sum(c.total_compressed_size for name, c in columns.items() if name.startswith(("_cdc", "_before")))
    assert bookkeeping < 16 * 2000


def test_columns_of_even_steps_are_delta_encoded_and_others_are_not(store, begin):
    rng = random.Random(1)
    moment, number = ColumnType("datetime", fsp=6), ColumnType("bigint")
    begun, step = datetime.datetime(2026, 1, 1), datetime.timedelta(milliseconds=1)
    made = {
        "even": (
            moment,
            [begun + n * step if n % 7 else None for n in range(2000)],
        ),
        "jitter": (number, [n * 1_000_000 + rng.randrange(1000) for n in range(2000)]),
        "wild": (number, [rng.choice((-1, 1)) * rng.randrange(2**62, 2**63) for _ in range(2000)]),
        "empty": (number, [None] * 2000),
    }
    schema = TableSchema("shop", "t", (*ORDERS.columns, *(Column(name, kind) for name, (kind, _) in made.items())))
    changes = [
        Change(schema, "c", {"id": n, "note": "x", **{name: values[n] for name, (_, values) in made.items()}})
        for n in range(2000)
    ]
    writer = begin()
    writer.add(block([Made(changes)], START))
    path = store.local_path(writer.finish(Checkpoint(at(1))).parts[0].path)
    group = pq.ParquetFile(path).metadata.row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(group.num_columns)}
    delta = {name for name in made if "DELTA_BINARY_PACKED" in encodings[name]}
    assert delta == {"even", "jitter"}
    read = pq.read_table(path)
    by_duckdb = duckdb.sql(f"SELECT {', '.join(made)} FROM '{path}' ORDER BY _cdc_row").fetchall()
    for at_, (name, (_, values)) in enumerate(made.items()):
        assert read[name].to_pylist() == values
        assert [row[at_] for row in by_duckdb] == values


def test_whether_long_values_repeat_is_judged_by_few_of_them(store, begin):
    schema = TableSchema("shop", "t", (*ORDERS.columns, Column("body", ORDERS.column("note").type)))
    long = [f"{min(n, 400):03d}" * 1000 for n in range(4000)]  # the first 400 differ
    writer = begin()
    writer.add(
        block([Made([Change(schema, "c", {"id": n, "note": long[0], "body": long[n]})]) for n in range(4000)], START)
    )
    path = store.local_path(writer.finish(Checkpoint(at(4000))).parts[0].path)
    group = pq.ParquetFile(path).metadata.row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(group.num_columns)}
    assert "RLE_DICTIONARY" in encodings["note"]
    assert "RLE_DICTIONARY" not in encodings["body"]
    assert pq.read_table(path, columns=["body"])["body"].to_pylist() == long


def test_every_type_is_read_alike_by_duckdb(store, begin):
    types = {
        "i8": "tinyint", "u8": "tinyint unsigned", "u16": "smallint unsigned", "u32": "int unsigned",
        "u64": "bigint unsigned", "dec": "decimal(38,10)", "f": "float", "day": "date", "at": "datetime(6)",
        "ts": "timestamp(6)", "t": "time(3)", "y": "year", "b": "bit(1)", "bits": "bit(64)", "blob": "blob",
        "v": "vector",
    }  # fmt: skip
    columns = tuple(Column(name, parse_column_type(text)) for name, text in types.items())
    schema = TableSchema("shop", "all", (Column("id", ColumnType("int"), False, 1), *columns))
    moment = datetime.datetime(2026, 11, 21, 4, 5, 6, 789012)
    row = {
        "id": 1, "i8": -128, "u8": 255, "u16": 65535, "u32": 2**32 - 1, "u64": 2**64 - 1,
        "dec": Decimal("1234567890123456789012345678.0123456789"), "f": 0.5, "day": datetime.date(9999, 12, 31),
        "at": moment, "ts": moment.replace(tzinfo=datetime.UTC), "t": "-838:59:59.000", "y": 1901, "b": True,
        "bits": 2**64 - 1, "blob": b"\x00\xff", "v": [0.5, -1.0],
    }  # fmt: skip
    writer = begin()
    writer.add(block([Made([Change(schema, "u", row, row), Change(schema, "c", {"id": 2})])], START))
    part = writer.finish(Checkpoint(at(1))).parts[0]
    names = ", ".join(f'"{name}"' for name in row)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        files = f"read_parquet('{store.local_path(part.path)}', hive_partitioning = false)"
        result = connection.sql(f"SELECT {names}, _before FROM {files} ORDER BY id").to_arrow_table()
    assert result.select(list(row)).to_pylist()[0] == row
    assert result.column("_before").to_pylist() == [row, None]
    assert result.schema.field("at").type == pa.timestamp("us")
    assert result.schema.field("u64").type == pa.uint64()


def test_tables_of_one_logical_table_and_definitions_of_one_table_get_parts_of_their_own(begin):
    other = TableSchema("shop", "orders_1", ORDERS.columns)
    writer = begin()
    made = [
        Change(ORDERS, "c", {"id": 1, "note": ""}, logical="orders"),
        Change(other, "c", {"id": 2, "note": ""}, logical="orders"),
    ]
    writer.add(block([Made(made)], START))
    manifest = writer.finish(Checkpoint(at(1)))
    assert [(part.table, part.schema_id) for part in manifest.parts] == [("orders", ORDERS.id), ("orders", other.id)]
    assert len({part.path for part in manifest.parts}) == 2


def test_a_batch_knows_that_rows_have_a_type_that_no_run_could_merge_with_its_own(begin):
    text, wider = (
        TableSchema("shop", "orders_0", (ORDERS.columns[0], Column("note", kind)))
        for kind in (ColumnType("int"), ColumnType("varchar", length=500, charset="utf8mb4"))
    )
    other = TableSchema("shop", "orders_1", text.columns)
    writer = begin()
    writer.add(transactions([1]))
    assert not writer.redefines(transactions([2], at(1)))
    for schema, value, retyped in ((wider, "", False), (text, 1, True), (other, 1, False)):
        change = Change(schema, "c", {"id": 2, "note": value}, logical=ORDERS.name)
        assert writer.redefines(block([Made([change])], at(1))) == retyped
    writer.abort()


def test_a_batch_without_rows_is_a_manifest_without_parts(begin, tmp_path):
    writer = begin()
    writer.add(block([Made(kind=EntryKind.UNCAPTURED)], START))
    manifest = writer.finish(Checkpoint(at(1)))
    assert (manifest.parts, manifest.rows) == ((), 0)
    assert begin(at(1)).finish(Checkpoint(at(5))).end.position == at(5)
    assert not (tmp_path / "stage").exists()


def test_a_transaction_cut_in_parts_is_one_batch_and_one_transaction(begin):
    writer = begin()
    writer.add(transactions([1]))
    for piece in range(5):
        made = Made([insert(n) for n in range(100)], EntryKind.PART, seq=at(1).seq, first_row=piece * 100)
        writer.add(block([made], at(1 + piece)))
        assert writer.open_transaction
    writer.add(block([Made([insert(5)], seq=at(1).seq, first_row=500), Made([insert(6)]), Made(rows=0)], at(6)))
    manifest = writer.finish(Checkpoint(at(9)))
    assert (manifest.rows, manifest.transactions) == (503, 3)


def test_a_batch_ends_where_its_blocks_end_and_never_inside_a_transaction(begin):
    def refuses(writer: BatchWriter, end: Position) -> None:
        with raises(InternalError, "internal.defect"):
            writer.finish(Checkpoint(end))

    refuses(begin(), START)
    writer = begin()
    writer.add(transactions([1, 2]))
    for end in (START, at(1), at(3)):
        refuses(writer, end)
    writer = begin()
    writer.add(block([Made([insert(1)], EntryKind.PART)], START))
    refuses(writer, at(1))
    writer.add(block([Made()], at(1)))  # the last piece has no rows
    assert writer.finish(Checkpoint(at(2))).transactions == 1


def test_a_block_that_does_not_continue_the_batch_is_refused(begin):
    writer = begin()
    writer.add(transactions([1]))
    for wrong in (transactions([1]), transactions([1], at(2)), block([Made()], at(1), source="other")):
        with raises(InternalError, "internal.defect"):
            writer.add(wrong)
    assert writer.rows == 1


def test_rows_without_the_columns_of_their_definition_are_refused(begin):
    made_block = block([Made([insert(1)])], START)
    rows = made_block.tables[0]
    object.__setattr__(rows, "rows", rows.rows.drop_columns(["_cdc_gtid"]))
    with raises(InternalError, "internal.defect"):
        begin().add(made_block)


@pytest.mark.parametrize("when", ["gathered", "flushed"])
def test_an_aborted_batch_leaves_nothing(begin, tmp_path, monkeypatch, when):
    if when == "flushed":
        monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 10)
    writer = begin()
    writer.add(transactions(range(25)))
    assert bool(files(tmp_path)) == (when == "flushed")
    writer.abort()
    writer.abort()
    assert files(tmp_path) == []


@pytest.mark.parametrize("state", ["committed", "unknown"])
def test_an_abort_never_touches_what_its_manifest_lists_or_may_list(store, begin, state):
    writer = begin()
    writer.add(transactions([1]))
    manifest = writer.finish(Checkpoint(at(1)))
    if state == "committed":
        commit(store, manifest)
    writer.abort()
    assert store.stat(manifest.parts[0].path) is not None


def test_an_abort_removes_the_parts_of_a_batch_that_another_writer_staged(store, begin):
    mine, other = begin(epoch=1), begin(epoch=2)
    for writer in (mine, other):
        writer.add(transactions([1]))
    standing, lost = other.finish(Checkpoint(at(1))), mine.finish(Checkpoint(at(1)))
    commit(store, standing)
    assert not commit(store, lost).ours
    mine.abort()
    other.abort()
    assert [info.path for info in store.list("changes/")] == [standing.parts[0].path]


def test_a_second_attempt_of_the_same_epoch_never_touches_the_files_of_the_first(store, begin):
    first, second = begin(), begin()
    first.add(transactions([1]))
    one = first.finish(Checkpoint(at(1)))
    second.add(transactions([1, 2]))
    two = second.finish(Checkpoint(at(2)))
    assert one.parts[0].path != two.parts[0].path
    assert hashlib.sha256(store.get(one.parts[0].path)).hexdigest() == one.parts[0].sha256


class FullDisk:
    """A store whose disk is full when so many bytes are written, for the system's own sake tested elsewhere."""

    def __init__(self, store, room: int) -> None:
        self._store, self._room = store, room

    def open_output(self, paths, scratch):
        output, disk = self._store.open_output(paths, scratch), self

        class Limited:
            def write(self, data):
                disk._room -= len(data)
                if disk._room < 0:
                    raise RetryLater("Cannot write: no space left.", code="disk.error", remedy="make room")
                return output.write(data)

            publish = staticmethod(output.publish)
            discard = staticmethod(output.discard)

        return Limited()


@pytest.mark.parametrize("room", [0, 3_000])
def test_a_disk_that_fills_up_is_reported_as_such_and_leaves_nothing(store, begin, tmp_path, monkeypatch, room):
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 500)
    monkeypatch.setattr(parquet, "_BUFFER", 1000)
    writer = begin(to=FullDisk(store, room))
    with raises(RetryLater, "disk.error"):
        writer.add(transactions(range(2000)))
        writer.finish(Checkpoint(at(2000)))
    writer.abort()
    assert files(tmp_path) == []


def test_many_tables_that_gather_at_once_are_bounded(store, begin):
    schemas = [TableSchema("shop", f"t{n}", ORDERS.columns) for n in range(20)]
    writer = begin(row_group_buffer_bytes=20_000)
    for number in range(40):
        changes = [Change(schema, "c", {"id": number, "note": "x" * 100}) for schema in schemas]
        writer.add(block([Made(changes)], at(number)))
        assert sum(part.file.pending_bytes for part in writer._parts.values()) <= 20_000
    manifest = writer.finish(Checkpoint(at(40)))
    assert [part.rows for part in manifest.parts] == [40] * 20


def test_rows_that_wait_for_their_row_group_count_in_the_size_of_the_batch(begin):
    writer = begin()
    assert writer.size_bytes == 0
    writer.add(transactions([1]))
    assert writer.size_bytes > 0


def many(store, tables: int = 50) -> tuple[BatchWriter, Checkpoint]:
    """A writer with one row in each of many tables, and where its batch ends."""
    writer = BatchWriter(store, pipeline="p", source="shop", epoch=1, begin=Checkpoint(at(0)), window=WINDOW)
    rows = [Change(ORDERS, "c", {"id": n, "note": "x"}, None, None, f"shop.t{n}") for n in range(tables)]
    writer.add(block([Made(rows)], at(0)))
    return writer, Checkpoint(at(1))


@pytest.mark.parametrize("together", [True, False])
def test_many_parts_are_durable_before_finish_returns_and_few_are_open_at_a_time(store, monkeypatch, together):
    real_fsync, real_open = os.fsync, os.open
    synced: dict[str, int] = {}
    opened: list[int] = []

    def name(descriptor: int) -> str:
        return os.readlink(f"/proc/self/fd/{descriptor}")

    def fsync(descriptor: int) -> None:
        path = name(descriptor)
        synced[path] = os.fstat(descriptor).st_size
        real_fsync(descriptor)

    def sync_file_system(descriptor: int) -> int:
        synced.update((str(path), path.stat().st_size) for path in (store.root / "changes").rglob("*"))
        synced.update((str(path), 0) for path in (store.root, store.root / "changes"))
        return 0

    def watching_open(*arguments: Any, **options: Any) -> int:
        held = []
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # another thread has closed it meanwhile
                held.append(name(int(descriptor)))
        opened.append(len([path for path in held if path.endswith(".parquet")]))
        return real_open(*arguments, **options)

    monkeypatch.setattr(file_store, "SYNC_FILE_SYSTEM", sync_file_system if together else None)
    writer, end = many(store)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "open", watching_open)
    manifest = writer.finish(end)
    monkeypatch.undo()
    for part in manifest.parts:
        path = store.local_path(part.path)
        assert synced[str(path)] == part.size_bytes == path.stat().st_size
        assert {str(path.parent), str(path.parent.parent), str(store.root / "changes"), str(store.root)} <= set(synced)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == part.sha256
    assert max(opened) <= 16


def test_few_parts_are_each_made_durable_with_their_folders(store, monkeypatch):
    synced: set[str] = set()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.add(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    monkeypatch.setattr(file_store, "SYNC_FILE_SYSTEM", lambda _: pytest.fail("the whole file system for two parts"))
    writer, end = many(store, 2)
    for part in writer.finish(end).parts:
        path = store.local_path(part.path)
        assert {str(path), *map(str, list(path.parents)[:4])} <= synced


def test_parts_that_the_file_system_could_not_write_are_not_counted_and_leave_nothing(store, tmp_path, monkeypatch):
    def fails(_: int) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(file_store, "SYNC_FILE_SYSTEM", fails)
    writer, end = many(store)
    with raises(RetryLater, "disk.error", match="No space left"):
        writer.finish(end)
    assert [path for path in (tmp_path / "stage").rglob("*") if path.is_file()] == []
