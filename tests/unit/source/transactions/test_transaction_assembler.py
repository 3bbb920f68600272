"""Transactions out of raw events: what servers write rarely, or never, on logs made by hand."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cdc_core.binlog.event_headers import HEADER_SIZE, Event, EventType, Header
from cdc_core.binlog.gtid import parse_gtid
from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater, UndoneAfterParts
from cdc_core.model.block import Block, EntryKind
from cdc_core.model.position import Position
from cdc_core.source.sql.statement_reach import Reach
from cdc_core.source.transactions.block_builder import ISOLATED, NOT_INCLUDED
from cdc_core.source.transactions.spilled_changes import SpillableChanges
from tests.lab.refusals import raises
from tests.unit.source.transactions.made_log import SECOND, STANDALONE, XA_COMPLETED, XA_PREPARED, Log, ids_of

XID = "X'78',X'',1"


def kinds(blocks: list[Block]) -> list[EntryKind]:
    return [EntryKind(kind) for block in blocks for kind in block.entries.kind]


def assert_partition(blocks: list[Block]) -> None:
    for block in blocks:
        entries = block.entries
        assert entries.begin[0] == block.begin.offset
        assert (entries.begin[1:] == entries.end[:-1]).all()
    for one, other in pairwise(blocks):
        assert one.end == other.begin


def refused(code: str, log: Log, feed: object) -> LockstepError:
    """The error of a call, and that it left nothing of it to hand on."""
    before = log.assembler.block.builder.end
    with pytest.raises((DataAtRisk, UndoneAfterParts)) as raised:
        feed()
    assert raised.value.code == code
    assert log.assembler.block.builder.end == before
    assert log.file in raised.value.where
    return raised.value


def test_a_transaction_is_one_entry_with_its_order_key_and_commit_time() -> None:
    log = Log()
    start = log.transaction(1, 2)
    (block,) = log.blocks()
    entries = block.entries
    assert kinds([block]) == [EntryKind.TRANSACTION]
    assert entries.seq[0] == Position(0, log.file, start).seq
    assert entries.commit_ts_us[0] == SECOND * 1_000_000
    assert (entries.rows[0], entries.events[0], entries.gtids.texts()[0].as_py()) == (2, 4, "0-1-1")
    assert block.tables[0].rows.column("_cdc_row").to_pylist() == [0, 1]
    assert block.end == Position(0, log.file, log.offset)


def test_row_numbers_count_row_events_of_all_tables_and_rows_within_them() -> None:
    log = Log()
    log.gtid()
    log.rows(1, 2)
    log.rows(3, database="other", table_id=8)
    log.rows(4, 5)
    log.commit()
    (block,) = log.blocks()
    assert block.tables[0].rows.column("_cdc_row").to_pylist() == [0, 1, 2 << 24, (2 << 24) + 1]
    assert block.left_out == {"table not included": 1}


def test_what_has_no_captured_rows_is_an_entry_with_its_gtid() -> None:
    log = Log()
    log.transaction(1, database="other")
    log.event(EventType.MARIADB_BINLOG_CHECKPOINT, b"x")
    log.transaction(2, database="other")
    log.transaction(3)
    (block,) = log.blocks()
    assert kinds([block]) == [*[EntryKind.UNCAPTURED] * 3, EntryKind.TRANSACTION]
    assert block.entries.gtids.texts().to_pylist() == ["0-1-1", None, "0-1-2", "0-1-3"]
    assert block.entries.commit_ts_us.tolist() == [SECOND * 1_000_000, 0, SECOND * 1_000_000, SECOND * 1_000_000]
    assert block.entries.events[0] == 4
    assert log.asked == [("db", "t")]


def test_interleaved_table_maps_are_told_apart_by_table_id() -> None:
    log = Log()
    log.gtid()
    log.rows(1, table="a", table_id=1)
    log.rows(2, table="b", table_id=2)
    log.rows(3, table_id=1, mapped=False)
    log.rows(4, table_id=2, mapped=False)
    log.commit()
    (block,) = log.blocks()
    assert {t.schema.table: t.rows.column("id").to_pylist() for t in block.tables} == {"a": [1, 3], "b": [2, 4]}


def test_a_table_map_is_forgotten_when_its_transaction_ends() -> None:
    log = Log()
    log.transaction(1)
    log.gtid()
    refused("source.bad_position", log, lambda: log.rows(2, mapped=False))


def test_a_rolled_back_group_is_passed_and_its_rows_never_happened() -> None:
    log = Log()
    log.gtid()
    log.rows(1)
    log.query("ROLLBACK")
    log.transaction(2)
    blocks = log.blocks()
    assert kinds(blocks) == [EntryKind.UNCAPTURED, EntryKind.TRANSACTION]
    assert ids_of(blocks) == [2]


def test_rollback_to_a_savepoint_takes_back_what_came_after_it() -> None:
    log = Log()
    log.gtid()
    log.rows(1)
    log.query("SAVEPOINT `a`")
    log.rows(2)
    log.query("SAVEPOINT `b`")
    log.rows(3)
    log.query("ROLLBACK TO `a`")
    log.rows(4)
    log.query("COMMIT")
    assert log.ids() == [1, 4]


def test_a_savepoint_set_again_is_the_later_one() -> None:
    log = Log()
    log.gtid()
    log.query("SAVEPOINT `a`")
    log.rows(1)
    log.query("SAVEPOINT `a`")
    log.rows(2)
    log.query("ROLLBACK TO `a`")
    log.commit()
    assert log.ids() == [1]


def test_rollback_to_a_savepoint_that_is_gone_stops() -> None:
    log = Log()
    log.gtid()
    log.query("SAVEPOINT `a`")
    log.query("SAVEPOINT `b`")
    log.query("ROLLBACK TO `a`")
    refused("source.log_damaged", log, lambda: log.query("ROLLBACK TO `b`"))


def test_xa_rows_come_at_the_place_of_the_commit_under_their_own_file_and_place() -> None:
    log = Log()
    log.gtid(XA_PREPARED, b"x")
    place = log.rows(1)
    log.prepare(b"x")
    log.transaction(2)
    log.rotate("binlog.000002")
    log.rotate("binlog.000002", artificial=True)
    start = log.gtid(XA_COMPLETED, b"x")
    log.query(f"XA COMMIT {XID}")
    blocks = log.blocks()
    assert_partition(blocks)
    assert kinds(blocks) == [EntryKind.UNCAPTURED, EntryKind.TRANSACTION, EntryKind.UNCAPTURED, EntryKind.TRANSACTION]
    row = blocks[-1].tables[0].rows.to_pylist()[0]
    assert (row["id"], row["_cdc_file"], row["_cdc_pos"]) == (1, "binlog.000001", place)
    assert row["_cdc_seq"] == Position(0, "binlog.000002", start).seq


def test_an_xa_commit_in_one_phase_is_a_commit() -> None:
    log = Log()
    log.gtid()
    log.rows(1)
    log.prepare(b"x", one_phase=True)
    assert log.ids() == [1]


def test_an_xa_commit_without_its_prepare_asks_and_stops_when_nobody_knows() -> None:
    asked: list[dict[str, SpillableChanges]] = []

    def prepared() -> dict[str, SpillableChanges]:
        asked.append({})
        return asked[-1]

    log = Log(prepared=prepared)
    log.gtid(XA_COMPLETED, b"x")
    refused("source.log_lost", log, lambda: log.query(f"XA COMMIT {XID}"))
    assert len(asked) == 1


def test_a_group_that_is_read_again_after_a_loss_is_counted_once() -> None:
    log, whole = Log(), Log()
    for one in (log, whole):
        one.transaction(1)
        one.gtid()
        one.rows(2)
        one.rows(3, database="other", table_id=8)
    (before,) = log.blocks()
    place = log.assembler.rewind()
    assert place == before.end
    log.offset, log.gtids = place.offset, log.gtids - 1
    log.gtid()
    log.rows(2)
    log.rows(3, database="other", table_id=8)
    for one in (log, whole):
        one.commit()
    blocks, (all_in_one,) = [before, *log.blocks()], whole.blocks()
    assert_partition(blocks)
    assert [block.left_out for block in blocks] == [{}, {NOT_INCLUDED: 1}]
    assert blocks[-1].entries.events.tolist() == all_in_one.entries.events[1:].tolist()
    rows = [row for block in blocks for table in block.tables for row in table.rows.to_pylist()]
    assert rows == all_in_one.tables[0].rows.to_pylist()


def test_a_group_of_which_pieces_have_left_cannot_be_read_again() -> None:
    log = Log(block_bytes=500)
    log.gtid()
    log.rows(*range(50))
    assert log.assembler.rewind() is None


def test_what_is_not_captured_is_not_even_parsed() -> None:
    log = Log()
    log.gtid()
    number = (9).to_bytes(6, "little")
    log.event(EventType.TABLE_MAP, number + b"\1\0\5other\0\3odd\0" + b"\xff" * 9)
    log.event(EventType.WRITE_ROWS_V1, number + b"\xff" * 5)
    log.event(EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1, number + b"\xff" * 5)
    log.rows(1)
    log.commit()
    (block,) = log.blocks()
    assert ids_of([block]) == [1]
    assert block.left_out == {NOT_INCLUDED: 2}


def test_a_row_that_cannot_be_decoded_isolates_its_table_and_no_other() -> None:
    log = Log(on_unreadable="isolate")
    log.transaction(1)
    log.gtid()
    log.rows(2)
    log.rows(3, table="bad", table_id=8)
    log.commit()
    begin = log.offset
    log.gtid()
    log.rows(4, table="bad", table_id=8, cut=2)
    log.rows(5)
    log.commit()
    (block,) = log.blocks()
    log.gtid()
    log.rows(6, table="bad", table_id=8)
    log.rows(7)
    log.commit()
    (after,) = log.blocks()
    rows = [
        (table.logical, row["id"]) for one in (block, after) for table in one.tables for row in table.rows.to_pylist()
    ]
    assert sorted(rows) == [("db.bad", 3), ("db.t", 1), ("db.t", 2), ("db.t", 5), ("db.t", 7)]
    assert list(block.isolated) == list(after.isolated) == ["db.bad"]
    assert block.isolated["db.bad"].startswith(f"since binlog.000001:{begin}: ")
    assert (block.left_out, after.left_out) == ({ISOLATED: 1}, {ISOLATED: 1})
    assert_partition([block, after])


def test_an_xa_transaction_leaves_out_what_was_isolated_while_it_was_prepared() -> None:
    log = Log(on_unreadable="isolate")
    log.gtid(XA_PREPARED, b"x")
    log.query("XA START X'78',X'',1")
    log.rows(1, table="bad", table_id=8)
    log.rows(2)
    log.query("XA END X'78',X'',1")
    log.prepare(b"x")
    log.gtid()
    log.rows(3, table="bad", table_id=8, cut=2)
    log.commit()
    first = log.blocks()
    log.gtid(XA_COMPLETED, b"x")
    log.query("XA COMMIT X'78',X'',1")
    blocks = first + log.blocks()
    assert ids_of(blocks) == [2]


def test_a_large_transaction_leaves_in_pieces_that_have_its_order_key() -> None:
    log = Log(block_bytes=2000)
    log.transaction(0)
    start = log.gtid()
    for first in range(0, 200, 10):
        log.rows(*range(first, first + 10))
    log.commit()
    blocks = log.blocks()
    assert_partition(blocks)
    pieces = kinds(blocks)
    assert pieces[0] == EntryKind.TRANSACTION
    assert pieces.count(EntryKind.PART) >= 5
    assert pieces[-1] == EntryKind.TRANSACTION
    seqs = np.concatenate([block.entries.seq for block in blocks])
    assert set(seqs[1:]) == {Position(0, log.file, start).seq}
    rows = ids_of(blocks)
    assert rows == [0, *range(200)]
    numbers = [v for b in blocks for t in b.tables for v in t.rows.column("_cdc_row").to_pylist()][1:]
    assert numbers == sorted(numbers)


def test_what_is_undone_after_pieces_of_it_have_left_stops_and_is_left_out_when_it_is_read_again() -> None:
    undone: set[int] = set()

    def begun() -> Log:
        log = Log(block_bytes=300, undone=undone)
        log.gtid()
        log.rows(1, 2, 3, 4)
        return log

    log = begun()
    assert kinds(log.blocks()) == [EntryKind.PART]
    refused("source.undone_after_parts", log, lambda: log.query("ROLLBACK"))
    log = begun()
    refused("source.log_damaged", log, log.commit)
    log = begun()
    log.query("ROLLBACK")
    log.transaction(5)
    blocks = log.blocks()
    assert_partition(blocks)
    assert kinds(blocks) == [EntryKind.UNCAPTURED, EntryKind.TRANSACTION]
    assert ids_of(blocks) == [5]


def test_what_may_still_be_undone_does_not_leave_in_pieces() -> None:
    log = Log(block_bytes=300)
    log.gtid()
    log.query("SAVEPOINT `a`")
    log.rows(*range(50))
    log.query("ROLLBACK TO `a`")
    log.commit()
    log.gtid(XA_PREPARED, b"x")
    log.rows(*range(50))
    log.prepare(b"x")
    blocks = log.blocks()
    assert EntryKind.PART not in kinds(blocks)
    assert sum(int(block.entries.rows.sum()) for block in blocks) == 0


def test_what_follows_a_savepoint_waits_in_files_and_leaves_in_pieces_at_the_commit() -> None:
    log = Log(block_bytes=700)
    log.gtid()
    log.rows(*range(10))
    log.query("SAVEPOINT `a`")
    for first in range(10, 40, 3):
        log.rows(*range(first, first + 3))
    log.query("SAVEPOINT `b`")
    log.rows(*range(40, 60))
    log.query("ROLLBACK TO `b`")
    log.rows(60)
    spilled = list(Path(log.assembler._spill_files.directory).iterdir())
    before = log.blocks()
    commit = log.commit()
    log.transaction(61)
    after = log.blocks()
    assert kinds(before) == [EntryKind.PART]
    assert_partition([*before, *after])
    assert len(spilled) > 2
    assert not any(path.exists() for path in spilled)
    assert kinds(after) == [EntryKind.PART] * (len(after) - 1) + [EntryKind.TRANSACTION] * 2
    assert {block.end.offset for block in after[:-1]} == {commit}
    rows = ids_of([*before, *after])
    assert rows == [*range(40), 60, 61]


@pytest.mark.parametrize("savepoint", ["a", "b"])
def test_rollback_to_a_savepoint_takes_back_what_is_in_files(savepoint: str) -> None:
    log = Log(block_bytes=500)
    log.gtid()
    log.query("SAVEPOINT `a`")
    for first in range(0, 20, 2):
        log.rows(first, first + 1)
    log.query("SAVEPOINT `b`")
    log.rows(*range(20, 40))
    log.rows(40)
    log.query(f"ROLLBACK TO `{savepoint}`")
    log.rows(50)
    log.commit()
    assert log.ids() == [*(range(20) if savepoint == "b" else ()), 50]


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_a_prepared_transaction_waits_in_files_and_leaves_in_pieces_at_its_commit(ending: str) -> None:
    log = Log(block_bytes=500)
    log.gtid(XA_PREPARED, b"x")
    for first in range(0, 40, 2):
        log.rows(first, first + 1)
    log.prepare(b"x")
    log.transaction(40)
    before = log.blocks()
    start = log.gtid(XA_COMPLETED, b"x")
    log.query(f"XA {ending} {XID}")
    blocks = log.blocks()
    assert EntryKind.PART not in kinds(before)
    assert_partition([*before, *blocks])
    assert kinds(blocks).count(EntryKind.PART) >= 3 * (ending == "COMMIT")
    rows = [row for block in blocks for table in block.tables for row in table.rows.to_pylist()]
    assert [row["id"] for row in rows] == [*range(40)] * (ending == "COMMIT")
    assert {row["_cdc_seq"] for row in rows} <= {Position(0, log.file, start).seq}
    assert not list(Path(log.assembler._spill_files.directory).iterdir())


def test_many_small_prepared_transactions_do_not_fill_the_memory() -> None:
    log = Log(block_bytes=2000)
    for number in range(40):
        log.gtid(XA_PREPARED, b"%d" % number)
        log.rows(*range(10))
        log.prepare(b"%d" % number)
    assert sum(pile.memory_bytes for pile in log.assembler.prepared.changes.values()) < 2000
    assert len(log.assembler.prepared.changes) == 40


def test_of_the_past_only_what_stays_prepared_is_kept() -> None:
    log = Log(prepared=None, block_bytes=500)
    log.transaction(*range(99))
    log.gtid()
    log.rows(*range(99))
    log.query("INSERT INTO t VALUES (1)")
    log.commit()
    for xid in (b"x", b"y"):
        log.gtid(XA_PREPARED, xid)
        log.rows(1, 2)
        log.prepare(xid)
    log.gtid(XA_COMPLETED, b"y")
    log.query("XA COMMIT X'79',X'',1")
    log.gtid(XA_COMPLETED, b"z")
    log.query("XA COMMIT X'7a',X'',1")
    assert log.ids() == []
    assert {xid: len(pile) for xid, pile in log.assembler.prepared.changes.items()} == {XID: 1}


def test_where_there_is_no_room_for_what_must_wait_the_task_may_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(block_bytes=100)
    log.gtid(XA_PREPARED, b"x")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    with raises(RetryLater, "disk.error"):
        log.rows(*range(50))


def test_a_file_that_ends_in_a_transaction_never_committed_it() -> None:
    log = Log()
    log.transaction(1)
    log.gtid()
    log.rows(2)
    log.rotate("binlog.000002", artificial=True)
    log.transaction(3)
    blocks = log.blocks()
    assert_partition(blocks)
    assert kinds(blocks) == [EntryKind.TRANSACTION, EntryKind.UNCAPTURED, EntryKind.TRANSACTION]
    assert ids_of(blocks) == [1, 3]


def test_a_file_that_ends_where_the_last_block_ended_still_moves_the_position_on() -> None:
    log = Log()
    log.transaction(1)
    first = log.blocks()
    log.rotate("binlog.000002", artificial=True)
    second = log.blocks()
    assert_partition([*first, *second])
    assert second[0].end == Position(0, "binlog.000002", 4)


def test_a_rotation_ends_a_block_in_the_next_file() -> None:
    log = Log()
    log.transaction(1)
    log.rotate("binlog.000002")
    (block,) = log.blocks()
    assert block.end == Position(0, "binlog.000002", 4)
    assert block.entries.end[-1] == log.offset


@pytest.mark.parametrize("code", [0, 1, 20, 28, 99, 173, 255])
def test_an_unknown_event_stops_wherever_it_stands(code: int) -> None:
    log = Log()
    log.transaction(1)
    error = refused("source.unknown_event", log, lambda: log.event(code, b"??"))
    assert str(code) in error.what
    log = Log()
    log.gtid()
    refused("source.unknown_event", log, lambda: log.event(code, b"??"))


def fragments(body: bytes, sizes: Sequence[int], *, code: int = EventType.WRITE_ROWS_V1, said: int = 0) -> list[bytes]:
    """The bodies of PARTIAL_ROW_DATA events of a row event, by the published layout. said: the size, if it is wrong."""
    length = HEADER_SIZE + len(body)
    event = struct.pack("<IBIIIH", SECOND, code, 1, length, 0, 0) + body
    cuts = [sum(sizes[:number]) for number in range(len(sizes) + 1)] + [length]
    chunks = [event[begin:end] for begin, end in pairwise(cuts)]
    return [
        struct.pack("<IIB", len(chunks), number, number == 1)
        + (struct.pack("<Q", said or length) if number == 1 else b"")
        + chunk
        for number, chunk in enumerate(chunks, 1)
    ]


INSERT = b"\x07\0\0\0\0\0\x01\0\x01\xff" + b"".join(b"\xfe" + struct.pack("<i", value) for value in (2, 3))


@pytest.mark.parametrize("sizes", [(), (19,), (1, 18, 3), (30,)])
def test_a_row_event_in_fragments_is_that_row_event(sizes: tuple[int, ...]) -> None:
    log = Log()
    log.gtid()
    log.rows(1)
    for body in fragments(INSERT, sizes):
        log.event(EventType.MARIADB_PARTIAL_ROW_DATA, body)
    log.rows(4, mapped=False)
    log.commit()
    assert log.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "feed",
    [
        lambda parts: parts[1:],
        lambda parts: [parts[0], parts[2]],
        lambda parts: [parts[0], parts[0]],
        lambda parts: [*parts[:2], parts[2][:-1]],
        lambda parts: fragments(INSERT, (19, 3), said=99),
        lambda parts: [parts[0], struct.pack("<IIB", 4, 2, 0) + parts[1][9:]],
        lambda parts: [parts[0], struct.pack("<IIBQ", 3, 2, 1, 9) + parts[1][9:]],
    ],
)
def test_fragments_that_do_not_make_the_row_event_stop(feed: Callable[[list[bytes]], list[bytes]]) -> None:
    log = Log()
    log.gtid()
    log.rows(1)

    def fed() -> None:
        for body in feed(fragments(INSERT, (19, 3))):
            log.event(EventType.MARIADB_PARTIAL_ROW_DATA, body)

    refused("source.log_damaged", log, fed)


def test_nothing_comes_between_fragments_and_a_group_does_not_end_in_them() -> None:
    for other in (lambda log: log.rows(5, mapped=False), lambda log: log.commit()):
        log = Log()
        log.gtid()
        log.rows(1)
        log.event(EventType.MARIADB_PARTIAL_ROW_DATA, fragments(INSERT, (19, 3))[0])
        refused("source.log_damaged", log, lambda log=log, other=other: other(log))
    log = Log()
    log.gtid()
    log.rows(1)
    (body,) = fragments(INSERT, (), code=EventType.XID)
    refused("source.unknown_event", log, lambda: log.event(EventType.MARIADB_PARTIAL_ROW_DATA, body))


def test_an_incident_stops_with_the_servers_words() -> None:
    log = Log()
    error = refused("source.log_lost", log, lambda: log.event(EventType.INCIDENT, b"\x01\x00\x04lost"))
    assert "lost" in error.what


LOAD = b"\1\0\0\0\0\0\0\0\2\0\0\0\0" + b"\0" * 13 + b"db\0LOAD DATA INFILE 'x' INTO TABLE `t` (a)"
STOPS: list[tuple[str, int | None, Callable[[Log], object]]] = [
    *(
        ("source.bad_position", None, lambda log, code=code: log.event(code, b"\x07" + b"\0" * 20))
        for code in (EventType.TABLE_MAP, EventType.WRITE_ROWS_V1, EventType.XID, EventType.INTVAR)
    ),
    ("source.bad_position", None, lambda log: log.query("BEGIN")),
    ("source.log_damaged", 0, lambda log: log.gtid()),
    *(
        ("source.unlogged_change", 0, lambda log, sql=sql: log.query(sql))
        for sql in ("UPDATE other.x, t SET a = 1", "CALL p()", "DELETE FROM z USING other.z JOIN t", "FROB TABLE t")
    ),
    ("source.unlogged_change", 0, lambda log: log.event(EventType.EXECUTE_LOAD_QUERY, LOAD)),
    ("source.unlogged_change", STANDALONE, lambda log: log.query("RENAME TABLE other.ghost TO db.t")),
    ("source.unlogged_change", STANDALONE, lambda log: log.query("TRUNCATE TABLE t")),  # a table that nobody knows
]


@pytest.mark.parametrize(("code", "flags", "feed"), STOPS)
def test_what_a_group_cannot_have_or_its_tables_cannot_be_told_of_stops(
    code: str, flags: int | None, feed: Callable[[Log], object]
) -> None:
    """flags: of the group that has begun."""
    log = Log(on_truncate="stage")
    if flags is not None:
        log.gtid(flags)
    refused(code, log, lambda: feed(log))


def test_dml_as_a_statement_on_a_captured_table_stops_with_the_statement() -> None:
    log = Log()
    log.gtid()
    error = refused("source.unlogged_change", log, lambda: log.query("UPDATE t SET a = 'very'"))
    assert "UPDATE db.t …" in error.what


def test_dml_as_a_statement_on_a_table_that_is_not_captured_is_passed_unless_it_may_change_others() -> None:
    log = Log()
    log.gtid()
    log.query("UPDATE other.x SET a = 1")
    log.commit()
    (block,) = log.blocks()
    assert (kinds([block]), block.left_out) == ([EntryKind.UNCAPTURED], {"statement on a table not included": 1})
    log = Log(reach=lambda *_: Reach(("db.t",)))
    log.gtid()
    refused("source.unlogged_change", log, lambda: log.query("UPDATE other.x SET a = 1"))


def test_ddl_of_a_captured_table_is_an_entry_that_ends_its_block() -> None:
    log = Log()
    log.transaction(1)
    log.ddl("ALTER TABLE t ADD INDEX (id)")
    log.transaction(2)
    blocks = log.blocks()
    assert [kinds([block]) for block in blocks] == [[EntryKind.TRANSACTION, EntryKind.DDL], [EntryKind.TRANSACTION]]
    assert log.asked == [("db", "t")] * 3


def test_ddl_of_other_tables_is_passed_and_forgets_nothing() -> None:
    log = Log()
    log.transaction(1)
    log.ddl("TRUNCATE other.t")
    log.ddl("CREATE USER x")
    log.transaction(2)
    (block,) = log.blocks()
    assert kinds([block]) == [EntryKind.TRANSACTION, *[EntryKind.UNCAPTURED] * 2, EntryKind.TRANSACTION]
    assert len(block.tables) == 1
    assert log.asked == [("db", "t")]


def test_an_unlogged_change_stops_and_names_table_and_statement() -> None:
    log = Log()
    log.gtid(1)
    error = refused("source.unlogged_change", log, lambda: log.query("ALTER TABLE t ADD c INT DEFAULT 5"))
    assert "db.t" in error.what
    assert "ADD c INT DEFAULT ?" in error.what


def test_an_unlogged_change_is_recorded_where_the_pipeline_says_so() -> None:
    log = Log(on_unlogged_change="record")
    log.ddl("TRUNCATE TABLE t")
    (block,) = log.blocks()
    assert kinds([block]) == [EntryKind.DDL]
    (note,) = block.notes
    assert note.startswith("needs re-sync of table db.t: all rows were removed")


def test_a_truncate_is_a_change_of_its_own_where_the_pipeline_says_so() -> None:
    log = Log(on_truncate="stage")
    log.transaction(2)
    log.ddl("TRUNCATE TABLE t")
    log.ddl("TRUNCATE TABLE other.t")
    first, second = log.blocks()
    assert [kinds([block]) for block in (first, second)] == [
        [EntryKind.TRANSACTION, EntryKind.DDL],
        [EntryKind.UNCAPTURED],
    ]
    (rows, truncate), entries = first.tables, first.entries
    assert truncate.schema == rows.schema
    (change,) = truncate.rows.to_pylist()
    assert {name: value for name, value in change.items() if value is not None} == {
        "_cdc_op": "t",
        "_cdc_ts": change["_cdc_ts"],
        "_cdc_source": "made",
        "_cdc_file": first.begin.file,
        "_cdc_pos": change["_cdc_pos"],
        "_cdc_row": 0,
        "_cdc_seq": int(entries.seq[1]),
        "_cdc_gtid": entries.gtids.texts()[1].as_py(),
    }
    assert entries.begin[1] < change["_cdc_pos"] < entries.end[1]
    assert (truncate.entry.tolist(), entries.rows.tolist()) == ([1], [1, 1])
    assert not first.notes


def test_a_dropped_table_is_noted() -> None:
    log = Log()
    log.ddl("DROP TABLE t, other.x")
    (block,) = log.blocks()
    assert "db.t" in block.notes[0]
    assert "other.x" not in block.notes[0]


def test_a_captured_table_with_a_reserved_column_is_refused() -> None:
    log = Log()
    log.gtid()
    body = b"\x07\0\0\0\0\0\1\0\2db\0\1t\0\x01\x03\x00\x00" + b"\x01\x01\x00" + b"\x04\x09\x08_cdc_seq"
    with raises(Refused, "source.unsupported_table"):
        log.event(EventType.TABLE_MAP, body)


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("code", [EventType.GTID, EventType.ANONYMOUS_GTID])
def test_the_short_way_through_a_mysql_gtid_reads_what_the_long_way_reads(code: EventType, replicated: bool) -> None:
    moment = 1_795_260_391_484_877
    times = struct.pack("<Q", moment | replicated << 55)[:7] + (
        struct.pack("<Q", moment - 5)[:7] if replicated else b""
    )
    body = b"\1" + bytes(range(16)) + struct.pack("<qBqq", 7_000_000_001, 2, 3, 4) + times + b"\xfc\x10\x01"
    log = Log()
    log.event(code, body)
    log.query("BEGIN")
    log.rows(1)
    log.commit()
    (block,) = log.blocks()
    header = Header(SECOND, code, 1, 0, 0, 0)
    gtid = parse_gtid(Event(header, body))
    assert gtid.immediate_commit_ts_us == moment
    assert block.entries.commit_ts_us[0] == moment
    assert block.entries.gtids.texts()[0].as_py() == (gtid.text or None)
    assert (gtid.text == "") == (code == EventType.ANONYMOUS_GTID)
