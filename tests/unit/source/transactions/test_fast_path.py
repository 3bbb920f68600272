"""The fast path makes of the same bytes what the assembler alone makes of them: block for block, or the same error."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_core.binlog.event_headers import EventType
from cdc_core.errors import LockstepError
from cdc_core.model.block import Block, EntryKind
from cdc_core.model.position import Position
from cdc_core.source.schemas.cascades import Cascades
from cdc_core.source.sql.accepted_places import AcceptedPlaces
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.sql.logged_statement import ServerDialect
from cdc_core.source.sql.statement_judge import StatementJudge
from cdc_core.source.sql.statement_reach import Reach
from cdc_core.source.transactions import fast_path
from cdc_core.source.transactions.fast_path import FastPath
from cdc_core.source.transactions.open_block import Blocks
from cdc_core.source.transactions.transaction_assembler import TransactionAssembler
from cdc_core.source.wire.event_framer import EventFramer
from tests.unit.binlog.reading import raw_events
from tests.unit.source.transactions.made_log import registry
from tests.unit.source.wire.made_wire import Wire, event, format_description, give, ok, rotate

START = Position(0, "binlog.000007", 1000)
SIDS = (bytes(range(16)), bytes(range(200, 216)))
Policy = Literal["stop", "isolate"]
CAPTURED = Path(__file__).parents[2] / "binlog" / "captured"


class ByHand(EventFramer):
    """Every event goes the long way, in Python."""

    def ordinary(self) -> int:
        return 0


class Reading:
    """Reads bytes with the fast path or without it."""

    def __init__(self, start: Position, *, fast: bool, block_bytes: int, on_unreadable: Policy = "stop") -> None:
        tables = registry(lambda database, table: database != "other", lambda *_: None)
        judge = StatementJudge(
            "src",
            tables,
            CapturePolicy("record", on_unreadable=on_unreadable),
            lambda *_: Reach(),
            AcceptedPlaces("src"),
            cascades=Cascades.without_keys(tables.captures, start),
            past=False,
        )
        self.assembler = TransactionAssembler(
            "src", start, tables, judge, prepared=lambda _: None, block_bytes=block_bytes
        )
        self.framer = EventFramer(start, "src") if fast else ByHand(start, "src")
        self.fast_path = FastPath(self.assembler, tables)
        self.blocks: list[Block] = []
        self.taken = 0
        self.error = ("", "")

    def read(self, pieces: Sequence[bytes]) -> list[Block]:
        extend = self.assembler.block.extend
        self.assembler.dialect = ServerDialect(mariadb=b"MariaDB" in b"".join(pieces))

        def counted(groups: object) -> Blocks:
            self.taken += 1
            return extend(groups)

        with patch.object(self.assembler.block, "extend", counted):
            try:
                for piece in pieces:
                    give(self.framer, piece)
                    self._read_on()
                # What the fast path waits for, the assembler holds in an open group: neither is in a block.
                self._flush()
            except LockstepError as error:
                self.error = (error.code, error.where)
                try:
                    self._flush()
                except LockstepError as again:
                    self.error += (again.code,)
        return self.blocks

    def _read_on(self) -> None:
        for block in self.fast_path.feed(self.framer):
            self.blocks.append(block)  # one by one: those before an error are kept

    def _flush(self) -> None:
        block = self.assembler.block.flush()
        if block is not None:
            self.blocks.append(block)


def told(blocks: Sequence[Block]) -> list[object]:
    """All that blocks say, as things that can be compared with ==."""
    return [
        (
            block.source, block.begin, block.end, dict(block.left_out), block.notes,
            [column.tolist() for column in (
                block.entries.kind, block.entries.begin, block.entries.end, block.entries.seq,
                block.entries.commit_ts_us, block.entries.events, block.entries.rows, block.entries.size_bytes,
                block.entries.trace, block.entries.trace_crc,
            )],
            block.format_crc,
            block.entries.gtids.texts().to_pylist(),
            [(part.schema, part.logical, part.entry.tolist(), part.rows) for part in block.tables],
        )
        for block in blocks
    ]  # fmt: skip


def compare(
    wire: bytes,
    cuts: Sequence[int],
    *,
    start: Position = START,
    block_bytes: int = 1 << 20,
    on_unreadable: Policy = "stop",
) -> Reading:
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    pieces = [wire[a:b] for a, b in pairwise(edges)]
    fast, slow = (
        Reading(start, fast=fast, block_bytes=block_bytes, on_unreadable=on_unreadable) for fast in (True, False)
    )
    expected = told(slow.read([wire]))
    assert told(fast.read(pieces)) == expected
    assert fast.error == slow.error
    assert slow.taken == 0
    return fast


# Logs


class MadeWire(Wire):
    """OrdinaryTransactions of a server, ordinary ones and others."""

    def __init__(self, *, mariadb: bool, checksum: bool) -> None:
        super().__init__(START, mariadb=mariadb, checksum=checksum)
        self.mariadb = mariadb
        self.gtids = [0, 0]

    def begin(
        self, *, sid: int = 0, skip: int = 0, anonymous: bool = False, commit_ts: int = 0, flags: int = 0
    ) -> None:
        self.gtids[sid] += 1 + skip
        number = self.gtids[sid]
        if self.mariadb:
            body = struct.pack("<QIB", number, sid, flags | (2 if skip else 0)) + (bytes(8) if skip else b"")
            self.send(EventType.MARIADB_GTID, body.ljust(19, b"\0"))
            return
        times = struct.pack("<Q", commit_ts)[:7] * (2 if commit_ts >> 55 else 1)
        body = b"\1" + SIDS[sid] + struct.pack("<qBqq", number, 2, 3, 4) + times + b"\xfc\x10\x01"
        self.send(EventType.ANONYMOUS_GTID if anonymous else EventType.GTID, body)
        if not flags & 1:
            self.query("BEGIN")

    def query(self, sql: str) -> None:
        self.send(EventType.QUERY, struct.pack("<IIBHH", 1, 0, 2, 0, 0) + b"db\0" + sql.encode())

    def map(self, table: str, columns: int, table_id: int, *, named: bool = True) -> None:
        database = b"other" if table == "x" else b"db"
        names = bytes([len(database)]) + database + b"\0" + bytes([len(table)]) + table.encode() + b"\0"
        shape = bytes([columns]) + b"\x03" * columns + b"\x00" + bytes((columns + 7) // 8)
        labels = b"".join(b"\x02c" + bytes([97 + i]) for i in range(columns))
        optional = b"\x01\x02\x00\x00"[:1] + bytes([(columns + 7) // 8]) + bytes((columns + 7) // 8)
        optional += b"\x04" + bytes([len(labels)]) + labels + b"\x08\x01\x00"
        optional = optional if named else b""
        # MariaDB says 0 for the place of events inside a transaction.
        self.send(EventType.TABLE_MAP, table_id.to_bytes(6, "little") + b"\1\0" + names + shape + optional,
                  says=not self.mariadb)  # fmt: skip

    def rows(self, kind: int, columns: int, table_id: int, count: int, present: int = -1, flags: int = 1) -> None:
        codes = (EventType.WRITE_ROWS_V1, EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1)
        modern = (EventType.WRITE_ROWS, EventType.UPDATE_ROWS, EventType.DELETE_ROWS)
        present &= (1 << columns) - 1
        bitmap = present.to_bytes((columns + 7) // 8, "little") * (2 if kind == 1 else 1)
        values = present.bit_count() or columns
        image = bytes((values + 7) // 8) + struct.pack("<i", self.at) * values
        head = table_id.to_bytes(6, "little") + bytes([flags, 0]) + (b"" if self.mariadb else b"\2\0")
        head += bytes([columns])
        body = head + bitmap + image * count * (2 if kind == 1 else 1)
        self.send((codes if self.mariadb else modern)[kind], body, says=not self.mariadb)

    def commit(self) -> None:
        self.send(EventType.XID, struct.pack("<Q", 9))


changes = st.tuples(st.sampled_from(["t", "u", "x"]), st.integers(0, 2), st.sampled_from([1, 1, 2, 40]), st.booleans())
begins = st.fixed_dictionaries(
    {},
    optional={
        "sid": st.just(1),
        "skip": st.integers(0, 2),
        "anonymous": st.booleans(),
        "commit_ts": st.sampled_from([0, 1_700_000_000_000_000, 1_800_000_000_000_007 | 1 << 55]),
    },
)
transactions = st.tuples(
    st.just("transaction"),
    begins,
    st.one_of(st.lists(changes, max_size=4), st.lists(changes, max_size=30)),
    st.sampled_from(["xid", "xid", "xid", "COMMIT"]),
)
others = st.tuples(
    st.sampled_from([
        "ddl", "ddl of another", "rolled back", "heartbeat", "new definition", "savepoint", "minimal", "annotated",
        "rotate", "unmapped", "empty statement end", "drop", "hole",
    ]),
    begins,
)  # fmt: skip
scripts = st.lists(st.one_of(transactions, transactions, transactions, others), min_size=1, max_size=14)


def written(script: Sequence[tuple[object, ...]], *, mariadb: bool, checksum: bool) -> bytes:
    wire = MadeWire(mariadb=mariadb, checksum=checksum)
    columns = {"t": 1, "u": 9, "x": 3}
    ids = {"t": 7, "u": 8, "x": 9}
    file = 7
    for what, begin, *rest in script:
        if what == "heartbeat":
            wire.raw(ok(event(EventType.HEARTBEAT, b"binlog.000007", end=wire.at, timestamp=0, checksum=checksum)))
        elif what == "rotate":
            file += 1
            name = f"binlog.{file:06d}"
            wire.send(EventType.ROTATE, struct.pack("<Q", 4) + name.encode())
            wire.raw(ok(rotate(name, checksum=checksum)))
            description = format_description(mariadb=mariadb, checksum=checksum)
            wire.at = 4 + len(description)
            wire.raw(ok(format_description(mariadb=mariadb, end=wire.at, checksum=checksum)))
        elif what == "hole":
            wire.at += 5
        elif what in ("ddl", "ddl of another", "drop"):
            wire.begin(**begin, flags=1)
            wire.query(
                {"ddl": "ALTER TABLE t ADD INDEX (ca)", "drop": "DROP TABLE db.u"}.get(
                    what, "CREATE TABLE other.y (i INT)"
                )
            )
        elif what == "new definition":
            columns["t"] = 1 + columns["t"] % 3
            ids["t"] += 1 << 14  # takes the place of the old id where maps are looked up
        else:
            wire.begin(**begin)
            parts, end = rest if what == "transaction" else ([("t", 0, 1, True)], "xid")
            if what == "annotated":
                wire.send(EventType.MARIADB_ANNOTATE_ROWS if mariadb else EventType.ROWS_QUERY, b"\5INSERT")
            if what == "savepoint":
                wire.query("SAVEPOINT a")
            for table, kind, count, mapped in parts:
                if what != "unmapped":
                    wire.map(table, columns[table], ids[table])
                present = 0 if what == "minimal" else -1
                wire.rows(kind, columns[table], ids[table], count, present)
                if not mapped:
                    wire.rows(0, columns[table], ids[table], 1)
            if what == "savepoint":
                wire.query("ROLLBACK TO a")
                wire.rows(0, columns["t"], ids["t"], 2)
            if what == "empty statement end":
                wire.send(EventType.WRITE_ROWS_V1, b"\xff\xff\xff\0\0\0\1\0\0", says=not mariadb)
            if what == "rolled back":
                wire.query("ROLLBACK")
            elif end == "COMMIT":
                wire.query("COMMIT")
            else:
                wire.commit()
    return wire.data


@pytest.mark.slow
@given(
    scripts,
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 1 << 20), max_size=6),
    st.sampled_from([300, 1500, 1 << 20]),
    st.sampled_from([0, 100, 1 << 21]),
)
@settings(max_examples=300, deadline=None)
def test_the_fast_path_and_the_assembler_make_equal_blocks_however_the_bytes_are_cut(
    script: list[tuple[object, ...]], mariadb: bool, checksum: bool, cuts: list[int], block_bytes: int, wait: int
) -> None:
    with patch.object(fast_path, "WAIT_BYTES", wait):
        compare(written(script, mariadb=mariadb, checksum=checksum), cuts, block_bytes=block_bytes)


ORDINARY = [
    ("transaction", {}, [("t", kind, 2, True), ("x", 0, 1, True), ("u", 1, 1, False)], "xid") for kind in (0, 1, 2)
]


@given(st.booleans(), st.integers(0, 1 << 20), st.integers(1, 255), st.booleans())
@example(False, 100, 1, True)
@example(True, 599, 1, False)
@example(True, 14200, 128, False)
@example(False, 1024, 1, False)  # the length of a transaction says that it has three bytes, and has two
@example(False, 1023, 128, False)  # a second commit time is announced and absent
@settings(max_examples=300, deadline=None)
def test_bent_bytes_end_both_in_the_same_error_at_the_same_place(
    mariadb: bool, at: int, bits: int, checksum: bool
) -> None:
    wire = bytearray(written(ORDINARY * 2, mariadb=mariadb, checksum=checksum))
    wire[at % len(wire)] ^= bits
    compare(bytes(wire), [])


@pytest.mark.parametrize("mariadb", [False, True])
@pytest.mark.parametrize("columns", [2, 7, 8, 9, 16])
def test_rows_that_lack_a_column_are_not_taken_for_whole_ones(mariadb: bool, columns: int) -> None:
    wire = MadeWire(mariadb=mariadb, checksum=True)
    for present in (-1, -1, ~(1 << columns - 1), -1):
        wire.begin()
        wire.map("t", columns, 7)
        for kind in (1, 2):
            wire.rows(kind, columns, 7, 3, present)
        wire.commit()
    reading = compare(wire.data, [])
    assert (reading.error, reading.taken > 0) == (("", ""), True)


@pytest.mark.parametrize("mariadb", [False, True])
def test_each_transaction_of_which_nothing_is_captured_keeps_its_gtid(mariadb: bool) -> None:
    of_others = [("transaction", {"sid": sid}, [("x", 0, 1, True)], "xid") for sid in (0, 0, 1, 1, 0)]
    reading = compare(written([*ORDINARY, *of_others, *ORDINARY], mariadb=mariadb, checksum=True), [])
    [block] = reading.blocks
    assert block.entries.kind.tolist().count(EntryKind.UNCAPTURED) == len(of_others)
    assert None not in block.entries.gtids.texts().to_pylist()


@pytest.mark.parametrize("mariadb", [False, True])
def test_a_gtid_keeps_its_number_however_large(mariadb: bool) -> None:
    wire = MadeWire(mariadb=mariadb, checksum=True)
    wire.gtids = [1 << 62, 0]
    for _ in range(3):
        wire.begin()
        wire.map("t", 3, 7)
        wire.rows(0, 3, 7, 1)
        wire.commit()
    assert compare(wire.data, []).taken > 0


@pytest.mark.parametrize("cascades", [False, True], ids=["all is logged", "cascades are not logged"])
@pytest.mark.parametrize("mariadb", [False, True])
def test_once_its_maps_are_known_an_ordinary_log_takes_the_fast_path(mariadb: bool, cascades: bool) -> None:
    wire = written([ORDINARY[0]] + ORDINARY * 20, mariadb=mariadb, checksum=True)
    reading = Reading(START, fast=True, block_bytes=1 << 20)
    if cascades:
        reading.assembler.cascades.open(logged=False, lower_case=False)
    fed: list[int] = []
    feed = reading.assembler.feed
    with patch.object(reading.assembler, "feed", lambda framed: (fed.append(framed.header.type), feed(framed))[1]):
        reading.read([wire])
    assert reading.taken > 0
    assert fed.count(EventType.XID) == 1


@pytest.mark.parametrize("mariadb", [False, True])
def test_a_transaction_that_is_not_waited_for_goes_event_by_event_only_where_it_must(mariadb: bool) -> None:
    changes = [(table, kind, 40, kind > 0) for table in ("t", "u", "x") for kind in (0, 1, 2)]
    wire = written([("transaction", {}, changes * 20, "xid")], mariadb=mariadb, checksum=True)
    with patch.object(fast_path, "WAIT_BYTES", 0):
        compare(wire, [len(wire) // 3, len(wire) // 2], block_bytes=20_000)
        reading = Reading(START, fast=True, block_bytes=20_000)
        fed: list[int] = []
        feed = reading.assembler.feed
        with patch.object(reading.assembler, "feed", lambda framed: (fed.append(framed.header.type), feed(framed))[1]):
            blocks = reading.read([wire])
    assert sum(int(block.entries.kind[-1] == EntryKind.PART) for block in blocks) > 3
    begin = [EventType.MARIADB_GTID] if mariadb else [EventType.GTID, EventType.QUERY]
    assert fed == [*begin, *[EventType.TABLE_MAP] * 3, EventType.XID]


@pytest.mark.parametrize("mariadb", [False, True])
def test_a_table_isolated_in_a_transaction_leaves_it_whole_whoever_read_its_rows(mariadb: bool) -> None:
    wire = MadeWire(mariadb=mariadb, checksum=True)
    wire.begin()
    for _ in range(3):
        wire.map("t", 3, 7)
        wire.rows(0, 3, 7, 5)
        wire.map("u", 2, 8)
        wire.rows(1, 2, 8, 5)
    wire.map("t", 4, 9, named=False)
    wire.rows(0, 4, 9, 5)
    wire.map("t", 3, 7)
    wire.rows(0, 3, 7, 5)
    wire.rows(2, 2, 8, 5)
    wire.commit()
    with patch.object(fast_path, "WAIT_BYTES", 0):
        reading = compare(wire.data, [], on_unreadable="isolate")
    [block] = reading.blocks
    assert [(part.logical, part.rows.num_rows) for part in block.tables] == [("db.u", 20)]
    assert block.left_out == {"table isolated": 5}


@pytest.mark.parametrize("server", ["mysql", "mariadb"])
@pytest.mark.parametrize("step", [61, 1000, 1 << 20])
def test_logs_of_real_servers_make_equal_blocks(server: str, step: int) -> None:
    data = (CAPTURED / f"{server}.binlog").read_bytes()
    start = Position(0, "binlog.000001", 4)
    wire = ok(rotate(start.file))
    for raw_event in raw_events(data):
        wire += ok(data[raw_event.start : raw_event.start + raw_event.header.length])
    compare(wire, range(0, len(wire), step), start=start)
