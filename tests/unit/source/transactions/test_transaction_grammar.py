"""The grammar of groups: the table is whole, and what it does not have stops and changes nothing."""

from __future__ import annotations

import struct

import pytest

from cdc_core.binlog.event_headers import EventType
from cdc_core.errors import DataAtRisk
from cdc_core.model.block import EntryKind
from cdc_core.source.sql.statement_classes import Action
from cdc_core.source.transactions.transaction_grammar import GRAMMAR, GroupState, Mark, Step
from tests.lab.refusals import raises
from tests.unit.source.transactions.made_log import STANDALONE, XA_COMPLETED, XA_PREPARED, Log

XID = "X'78',X'',1"
OPEN = [state for state in GroupState if state is not GroupState.NONE]


def test_each_state_is_reached_and_left_and_each_step_is_taken() -> None:
    leaves = {(state, after) for (state, _), (after, _) in GRAMMAR.items() if state is not after}
    assert {state for state, _ in leaves} == {after for _, after in leaves} == set(GroupState)
    used = {step for _, step in GRAMMAR.values()}
    assert used == set(Step)
    assert used - {Step.BEGIN, Step.CHANGE} == set(Log().assembler._steps)


def test_no_statement_is_without_a_place_in_a_group_and_none_has_one_outside() -> None:
    for action in Action:
        assert (GroupState.NONE, action) not in GRAMMAR
        assert (GroupState.STATEMENT, action) in GRAMMAR
        assert (GroupState.TRANSACTION, action) in GRAMMAR


def test_a_group_begins_only_between_groups_and_no_event_of_the_file_is_in_one() -> None:
    begins = {seen for (_, seen), (_, step) in GRAMMAR.items() if step is Step.BEGIN}
    for state in OPEN:
        assert all((state, seen) not in GRAMMAR for seen in {*begins, Mark.OF_FILE})


@pytest.mark.parametrize("state", [state for state in OPEN if state.goes_on])
def test_nothing_but_an_end_ends_a_group_that_goes_on(state: GroupState) -> None:
    ends = {
        Step.COMMIT, Step.COMMIT_PREPARED, Step.DROP, Step.DROP_PREPARED, Step.DROP_UNFINISHED, Step.KEEP_PREPARED,
    }  # fmt: skip
    for (before, _), (after, step) in GRAMMAR.items():
        if before is state:
            assert (after is GroupState.NONE) == (step in ends)


def refused(log: Log, feed: object) -> None:
    """source.log_damaged, after which the group is as it was."""
    group, before = log.assembler._group, (len(log.assembler._group.rows), log.assembler._group.state)
    with raises(DataAtRisk, "source.log_damaged"):
        feed()
    assert log.assembler._group is group
    assert (len(group.rows), group.state) == before


def test_only_an_xa_transaction_is_prepared() -> None:
    """Pieces of another may have left already."""
    log = Log(block_bytes=300)
    log.gtid()
    log.rows(1, 2, 3, 4)
    log.rows(5)
    refused(log, lambda: log.prepare(b"x"))
    assert log.assembler.prepared.changes == {}


def test_an_xa_commit_does_not_take_the_place_of_rows() -> None:
    log = Log()
    log.gtid(XA_PREPARED, b"x")
    log.rows(1)
    log.prepare(b"x")
    log.gtid()
    log.rows(2)
    refused(log, lambda: log.query(f"XA COMMIT {XID}"))
    log.commit()
    log.gtid(XA_COMPLETED, b"x")
    log.query(f"XA COMMIT {XID}")
    assert log.ids() == [2, 1]


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (EventType.STOP, b""),
        (EventType.ROTATE, struct.pack("<Q", 4) + b"binlog.000002"),
        (EventType.MARIADB_GTID, struct.pack("<QIB", 2, 0, 0).ljust(19, b"\0")),
    ],
)
def test_a_group_is_as_it_was_after_an_event_that_cannot_be_in_it(code: EventType, body: bytes) -> None:
    log = Log()
    log.gtid()
    log.rows(1)
    refused(log, lambda: log.event(code, body))
    log.rows(2)
    log.commit()
    assert log.ids() == [1, 2]


def test_what_is_accepted_stays_accepted_when_its_transaction_is_read_again() -> None:
    log = Log()
    log.transaction(1)
    begin = log.gtid()
    statement = log.offset
    log = Log(accept=((log.file, statement),))
    log.transaction(1)
    (before,) = log.blocks()
    for _ in range(2):
        log.gtid()
        log.query("UPDATE t SET a = 'very'")
        log.rows(2)
        place = log.assembler.rewind()
        assert (place, place.offset) == (before.end, begin)
        log.offset, log.gtids = begin, 1
    log.gtid()
    log.query("UPDATE t SET a = 'very'")
    log.rows(2)
    log.commit()
    (block,) = log.blocks()
    assert [note for note in block.notes if "accepted by an operator" in note]
    assert [row["id"] for table in block.tables for row in table.rows.to_pylist()] == [2]


@pytest.mark.parametrize("first", [2, 8], ids=["begun", "failed"])
def test_of_the_two_groups_of_an_alter_the_second_one_is_judged(first: int) -> None:
    log = Log(on_unlogged_change="record")
    alter = "ALTER TABLE t ADD c INT DEFAULT 5"
    log.event(EventType.MARIADB_GTID, struct.pack("<QIBB", 1, 0, STANDALONE, first).ljust(19, b"\0"))
    log.query(alter)
    (block,) = log.blocks()
    assert (block.notes, block.entries.kind.tolist()) == ((), [EntryKind.UNCAPTURED])
    log.event(EventType.MARIADB_GTID, struct.pack("<QIBB", 2, 0, STANDALONE, 4).ljust(19, b"\0"))
    log.query(alter)
    (block,) = log.blocks()
    assert (len(block.notes), block.entries.kind.tolist()) == (1, [EntryKind.DDL])
