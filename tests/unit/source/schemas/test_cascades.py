"""When a server is asked for its foreign keys, and what counts that no answer has (schemas/cascades.py)."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from cdc_core.model.coverage import Happened
from cdc_core.model.position import Position
from cdc_core.source.schemas.cascades import Cascades
from cdc_core.source.schemas.foreign_keys import ForeignKey
from cdc_core.source.sql.accepted_places import AcceptedPlaces
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.sql.logged_statement import ServerDialect
from cdc_core.source.sql.statement_classes import classify
from cdc_core.source.sql.statement_judge import StatementJudge
from cdc_core.source.sql.statement_reach import Reach
from cdc_core.source.transactions.fast_path import FastPath
from cdc_core.source.transactions.transaction_assembler import TransactionAssembler
from cdc_core.source.wire.event_framer import EventFramer
from tests.unit.source.transactions.made_log import registry
from tests.unit.source.transactions.test_fast_path import START, MadeWire

P, M = ("shop", "p"), ("shop", "m")
KEY = ForeignKey(M, "k", ("f",), P, ("id",), "CASCADE", "RESTRICT")
ADDS = "ALTER TABLE m ADD CONSTRAINT k FOREIGN KEY (f) REFERENCES p (id) ON DELETE CASCADE"
DROPS = "ALTER TABLE m DROP FOREIGN KEY k"


def place(offset: int) -> Position:
    return Position(0, "binlog.000001", offset)


class Server:
    """What it answers, in turn: where its log ends, and its keys then."""

    def __init__(self, *ends: int, keys: tuple[tuple[ForeignKey, ...], ...], now_us: int = 1_000) -> None:
        self.ends, self.keys = iter(ends), iter(keys)
        self.cascades = Cascades(
            lambda *name: name != P, lambda: next(self.keys), lambda: place(next(self.ends)), lambda: now_us,
            lambda: None,
        )  # fmt: skip
        self.cascades.open(logged=False, lower_case=False)

    def define(self, sql: str, after: int, began_us: int = 2_000) -> frozenset[tuple[str, str]]:
        return self.cascades.define(classify(sql.encode(), "shop"), place(after), began_us)

    @property
    def follows(self) -> bool:
        return self.cascades.changed_by(P, deleted=True) == {M}


def test_a_key_that_is_made_while_the_server_is_asked_is_asked_for_again() -> None:
    server = Server(100, 200, 300, 300, keys=((), (KEY,)))
    server.define(ADDS, after=150)
    assert server.follows


def test_a_key_that_an_answer_must_have_is_not_asked_for_again() -> None:
    server = Server(100, 200, keys=((KEY,),))
    assert server.define(ADDS, after=90) == frozenset()
    assert server.follows


def test_a_key_that_has_come_and_gone_before_an_answer_counts() -> None:
    server = Server(100, 200, keys=((),))
    assert server.define(ADDS, after=90) == {M}
    assert server.define(DROPS, after=95) == {M}
    assert not server.follows


@pytest.mark.parametrize(("began_us", "lost"), [(999, {M}), (1_001, set())])
def test_a_key_counts_that_a_server_drops_before_it_logs_it(began_us: int, lost: set[object]) -> None:
    server = Server(100, 100, keys=((),))
    assert server.define(DROPS, after=150, began_us=began_us) == lost


def test_a_key_that_ends_while_it_is_followed_needs_no_copy() -> None:
    server = Server(100, 100, 200, 200, keys=((KEY,), ()))
    assert server.define(DROPS, after=150) == frozenset()
    assert server.define("ALTER TABLE p RENAME TO q", after=160) == frozenset()
    assert server.follows


def read(wire: MadeWire, *, logged: bool = False) -> tuple[list[tuple[str, Happened]], int]:
    """What the blocks of a log say, and how often the fast path took some; a key leads from db.u to db.t, and tables
    that cannot be read are isolated."""
    tables = registry(lambda *_: True, lambda *_: None)
    key = ForeignKey(("db", "u"), "k", ("c0",), ("db", "t"), ("c0",), "CASCADE", "RESTRICT")
    cascades = Cascades(lambda *_: True, lambda: (key,), lambda: START, lambda: 0, lambda: None)
    cascades.open(logged=logged, lower_case=False)
    judge = StatementJudge(
        "src",
        tables,
        CapturePolicy("record", on_unreadable="isolate"),
        lambda *_: Reach(),
        AcceptedPlaces("src"),
        cascades=cascades,
        past=False,
    )
    assembler = TransactionAssembler("src", START, tables, judge, prepared=dict, block_bytes=1 << 20)
    assembler.dialect = ServerDialect(mariadb=b"MariaDB" in wire.data)
    framer = EventFramer(START, "src")
    framer.buffer.get_buffer()[: len(wire.data)] = wire.data
    framer.buffer.buffer_updated(len(wire.data))
    with patch.object(assembler.block, "extend", wraps=assembler.block.extend) as taken:
        blocks = [*FastPath(assembler, tables).feed(framer)]
    if (last := assembler.block.flush()) is not None:
        blocks.append(last)
    assert all(event.seq < block.end.seq for block in blocks for event in block.happened)
    return [(event.table, event.what) for block in blocks for event in block.happened], taken.call_count


@pytest.mark.parametrize("mariadb", [False, True])
def test_rows_of_a_parent_count_that_are_dropped_because_it_cannot_be_read(mariadb: bool) -> None:
    wire = MadeWire(mariadb=mariadb, checksum=True)
    wire.begin()
    wire.map("t", 3, 7)
    wire.rows(2, 3, 7, 5)  # deleted
    wire.map("t", 4, 9, named=False)  # nobody knows its columns
    wire.rows(0, 4, 9, 5)
    wire.commit()
    assert ("db.u", Happened.CASCADED) in read(wire)[0]


@pytest.mark.parametrize("flags", [0x11, 1])
def test_keys_count_from_the_first_row_event_on_that_says_that_they_are_not_logged(flags: int) -> None:
    """The others go the fast path, and what keys did with them is in the log."""
    wire = MadeWire(mariadb=False, checksum=True)
    for at in range(20):
        wire.begin()
        wire.map("t", 3, 7)
        wire.rows(2, 3, 7, 5, flags=0x11 if at < 19 else flags)
        wire.commit()
    said, taken = read(wire, logged=True)
    assert taken > 0
    assert ("db.u", Happened.CASCADED) in said if flags == 1 else said == []
