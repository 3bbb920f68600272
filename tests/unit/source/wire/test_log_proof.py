"""Logs that fork: whatever comes behind the fork, a reader knows whether its checkpoint lies before or behind it."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.binlog.event_headers import EventType
from cdc_core.errors import DataAtRisk
from cdc_core.model.block import EntryKind
from cdc_core.model.position import Fingerprint, Position
from cdc_core.source.wire.event_framer import EventFramer
from tests.unit.source.transactions.test_fast_path import SIDS, Reading
from tests.unit.source.wire.made_wire import Wire

BEGIN = Position(0, "binlog.000007", 4)


class Log:
    """Transactions of one file. Each has events of the same sizes and the same second, whatever is in it."""

    def __init__(self, values: list[int], *, mariadb: bool, checksum: bool, large: frozenset[int]) -> None:
        self.values = values
        self.mariadb, self.checksum, self.large = mariadb, checksum, large
        self.ends = [0]

    def wire(self, after: Position) -> bytes:
        """What a server sends that is asked from there; b"" where nothing begins there."""
        whole, starts = self._made(BEGIN), {}
        at, offset = 0, 0
        while at < len(whole):  # packets: length u24, number u8, OK, event with its length at 9
            size = int.from_bytes(whole[at : at + 3], "little")
            code, length = whole[at + 9], int.from_bytes(whole[at + 14 : at + 18], "little")
            if code == EventType.ROTATE:
                offset = 4
            else:
                starts[offset] = at
                offset += length
            at += 4 + size
        if after.offset not in starts:
            return b""
        if after == BEGIN:
            return whole
        return Wire(after, mariadb=self.mariadb, checksum=self.checksum).data + whole[starts[after.offset] :]

    def _made(self, begin: Position) -> bytes:
        wire = Wire(begin, mariadb=self.mariadb, checksum=self.checksum)
        for number, value in enumerate(self.values):
            if self.mariadb:
                wire.send(EventType.MARIADB_GTID, struct.pack("<QIB", number + 1, 0, 0).ljust(19, b"\0"))
            else:
                times = struct.pack("<Q", 1_700_000_000_000_000)[:7]
                body = b"\1" + SIDS[0] + struct.pack("<qBqq", number + 1, 2, 3, 4) + times + b"\xfc\x10\x01"
                wire.send(EventType.GTID, body)
                wire.send(EventType.QUERY, struct.pack("<IIBHH", 1, 0, 2, 0, 0) + b"db\0BEGIN")
            note = struct.pack("<q", value) * (10_000 if number in self.large else 1)
            wire.send(EventType.MARIADB_ANNOTATE_ROWS if self.mariadb else EventType.ROWS_QUERY, b"\5" + note)
            wire.send(EventType.XID, struct.pack("<Q", 9 if number not in self.large else value))
        return wire.data


def known_at_each_end(log: Log, cuts: list[int]) -> list[tuple[Position, Fingerprint]]:
    """All places to resume from, the transactions before them counted by their index."""
    reading = Reading(BEGIN, fast=True, block_bytes=1)
    wire = log.wire(BEGIN)
    edges = [0, *sorted(cut % len(wire) for cut in cuts), len(wire)]
    blocks = reading.read([wire[a:b] for a, b in pairwise(edges)])
    assert reading.error == ("", "")
    fingerprint: Fingerprint | None = None
    found = []
    for block in blocks:
        fingerprint = block.fingerprint(fingerprint)
        if block.entries.kind[-1] != EntryKind.PART and fingerprint is not None:
            found.append((block.end, fingerprint))
    return found


def reads_on(log: Log, place: Position, fingerprint: Fingerprint) -> bool:
    framer = EventFramer(place, "src", known=fingerprint)
    wire = log.wire(Position(0, framer.file, framer.offset))
    if not wire:
        return False
    room = framer.buffer.get_buffer()
    room[: len(wire)] = wire
    framer.buffer.buffer_updated(len(wire))
    try:
        proven = framer.prove()
    except DataAtRisk as error:
        if error.code != "source.other_log":
            raise
        return False
    assert proven
    after = framer.next_event()
    assert after is None or after.start == place.offset
    return True


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 1 << 60), min_size=1, max_size=12),
    st.integers(0, 12),
    st.booleans(),
    st.booleans(),
    st.frozensets(st.integers(0, 12), max_size=3),
    st.lists(st.integers(0, 1 << 20), max_size=5),
    st.integers(),
)
def test_a_log_is_read_on_exactly_where_it_forks_behind_the_checkpoint(
    values: list[int], fork: int, mariadb: bool, checksum: bool, large: frozenset[int], cuts: list[int], seed: int
) -> None:
    """fork: so many transactions are the same; those behind it differ in their contents, and in nothing else."""
    chance = random.Random(seed)
    first = Log(values, mariadb=mariadb, checksum=checksum, large=large)
    other = [value if k < fork else value ^ (1 + chance.getrandbits(60)) for k, value in enumerate(values)]
    second = Log(other, mariadb=mariadb, checksum=checksum, large=large)
    places = known_at_each_end(first, cuts)
    transactions = places[-len(values) :]
    assert len(transactions) == len(values)
    for count, (place, known) in enumerate(transactions, 1):
        assert reads_on(first, place, known)
        assert reads_on(second, place, known) is (count <= fork)


@pytest.mark.parametrize("mariadb", [False, True])
def test_a_file_of_another_server_is_told_by_its_first_event(mariadb: bool) -> None:
    log = Log([1, 2], mariadb=mariadb, checksum=True, large=frozenset())
    for place, fingerprint in known_at_each_end(log, []):
        assert reads_on(log, place, fingerprint)
        other = Fingerprint(
            fingerprint.format_crc ^ 1, fingerprint.file, fingerprint.begin, fingerprint.end, fingerprint.crc
        )
        assert not reads_on(log, place, other)
