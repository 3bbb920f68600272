"""The ring against a model that is a list, under random calls; and two threads that hammer it."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cdc_core.errors import InternalError
from cdc_core.model.block import EntryKind
from cdc_core.model.position import Position
from cdc_core.ring import AckPoint, Ring
from tests.lab.made_blocks import ENTRY_BYTES, Made, block, last_of

KINDS = st.sampled_from(list(EntryKind))
ENTRY = st.builds(
    Made, kind=KINDS, rows=st.integers(0, 6), ts=st.integers(0, 2), size_bytes=st.sampled_from([0, 500, 3000])
)


class RingAgainstAList(RuleBasedStateMachine):
    """The model: a list of all entries ever published, and three indexes into it."""

    @initialize(items=st.sampled_from([1, 8, 32]), size=st.sampled_from([1024, 8192, 1 << 20]))
    def make(self, items, size):
        self.ring = Ring(items, size)
        self.limit_items, self.limit_bytes = items, size
        self.entries: list[tuple[Made, Position, Position]] = []
        self.acked = self.taken = 0
        self.next = Position(0, "binlog.000001", 4)

    def weigh(self, start: int, stop: int) -> tuple[int, int]:
        chosen = [made for made, _, _ in self.entries[start:stop]]
        return sum(made.rows + 1 for made in chosen), sum(made.size_bytes for made in chosen)

    def boundary(self, index: int) -> AckPoint:
        made, _, end = self.entries[index]
        return AckPoint(end.file, end.offset, made.ts)

    @rule(made=st.lists(ENTRY, min_size=1, max_size=5), rotate=st.booleans())
    def put(self, made, rotate):
        begin = self.next
        end = Position(0, begin.file, begin.offset + ENTRY_BYTES * len(made))
        if rotate:
            end = Position(0, f"binlog.{begin.number + 1:06d}", 4)
        items, size = self.weigh(self.acked, len(self.entries))
        more_items = sum(transaction.rows + 1 for transaction in made)
        more_bytes = sum(transaction.size_bytes for transaction in made)
        empty = self.acked == len(self.entries)
        fits = empty or (items + more_items <= self.limit_items and size + more_bytes <= self.limit_bytes)
        assert self.ring.put(block(made, begin, end=end), timeout_s=0) is fits
        if fits:
            for index, transaction in enumerate(made):
                start = Position(0, begin.file, begin.offset + ENTRY_BYTES * index)
                last = index == len(made) - 1
                stop = end if last else Position(0, begin.file, start.offset + ENTRY_BYTES)
                self.entries.append((transaction, start, stop))
            self.next = end

    @rule()
    def take(self):
        stop = self.taken
        while stop < len(self.entries):
            is_ddl = self.entries[stop][0].kind == EntryKind.DDL
            if is_ddl and stop > self.taken:
                break
            stop += 1
            if is_ddl:
                break
        got = self.ring.take(timeout_s=0)
        if stop == self.taken:
            assert got == ()
            return
        assert (got[0].begin, got[-1].end) == (self.entries[self.taken][1], self.entries[stop - 1][2])
        assert np.concatenate([taken_block.entries.rows for taken_block in got]).tolist() == [
            made.rows for made, _, _ in self.entries[self.taken : stop]
        ]
        self.taken = stop

    @precondition(lambda self: self.acked < self.taken)
    @rule(data=st.data())
    def ack(self, data):
        index = data.draw(st.integers(self.acked, self.taken - 1))
        self.ring.ack(self.boundary(index))
        self.acked = index + 1

    @rule(
        index=st.integers(0, 60),
        shift=st.sampled_from([-1, 0, 1]),
        other_time=st.booleans(),
        other_file=st.booleans(),
    )
    def ack_anything(self, index, shift, other_time, other_file):
        if index >= len(self.entries):
            return
        point = self.boundary(index)
        wrong = AckPoint(
            "binlog.999999" if other_file else point.file, point.offset + shift, point.timestamp + other_time * 7
        )
        if wrong in [self.boundary(i) for i in range(self.acked, self.taken)]:
            return
        with pytest.raises(InternalError):
            self.ring.ack(wrong)

    @rule()
    def rollback(self):
        self.ring.rollback()
        self.taken = self.acked

    @invariant()
    def agrees(self):
        stats = self.ring.stats()
        published = len(self.entries)
        assert stats.acked <= stats.taken <= stats.published
        assert (stats.acked, stats.taken) == (self.weigh(0, self.acked)[0], self.weigh(0, self.taken)[0])
        assert stats.published == self.weigh(0, published)[0]
        assert (stats.depth_items, stats.depth_bytes) == self.weigh(self.acked, published)


TestRingAgainstAList = RingAgainstAList.TestCase
TestRingAgainstAList.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_two_threads_lose_nothing_and_keep_the_order():
    """The consumer acks behind itself, rolls back at random, and sees every row exactly once between acks."""
    ring = Ring(64, 64 * 1024)
    total = 6000
    sizes = random.Random(1)

    def produce() -> None:
        place = Position(0, "binlog.000001", 4)
        sent = 0
        while sent < total:
            count = min(sizes.randint(1, 5), total - sent)
            kinds = [EntryKind.PART if sizes.random() < 0.2 else EntryKind.TRANSACTION for _ in range(count)]
            made = [
                Made(kind=kind, rows=sizes.randint(0, 9), ts=sent + i, size_bytes=sizes.randint(0, 9000))
                for i, kind in enumerate(kinds)
            ]
            made_block = block(made, place)
            while not ring.put(made_block, timeout_s=sizes.choice([None, 0.001])):
                pass
            place, sent = made_block.end, sent + count
        ring.close()

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    choices = random.Random(2)
    acked: list[int] = []
    pending: list[tuple[AckPoint, list[int]]] = []
    while True:
        if taken := ring.take(timeout_s=choices.choice([None, 0.001])):
            stamps = [int(ts) for taken_block in taken for ts in taken_block.entries.commit_ts_us]
            pending.append((last_of(taken), stamps))
        must = ring.starved or ring.drained
        if pending and choices.random() < 0.05 and not must:
            ring.rollback()
            pending.clear()
        elif pending and (must or choices.random() < 0.3):
            ring.ack(pending[-1][0])
            acked += [stamp for _, stamps in pending for stamp in stamps]
            pending.clear()
        if ring.drained and not pending:
            break
    producer.join(20)
    assert acked == list(range(total))
    stats = ring.stats()
    assert stats.acked == stats.taken == stats.published
    assert stats.depth_bytes == 0
    assert stats.high_water_items <= 64
    assert stats.high_water_bytes <= 64 * 1024
