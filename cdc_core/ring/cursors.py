"""The ring's cursors over its blocks: moves and look-ups, without locks, waits or clocks.

It may assume one caller at a time. It must keep acked <= taken <= published, all on entry boundaries, and a refused
call must not move anything. cdc_core/ring/ring.py explains the rules.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdc_core.model.block import Block, EntryKind
from cdc_core.model.position import FIRST_OFFSET, Position
from cdc_core.ring.boundary import AckPoint, PositionRange, Taken


@dataclass(slots=True)
class RingBlock:
    """A block in the ring; `items[i]`, `sizes[i]` are the sums over its first i entries."""

    block: Block
    items: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, block: Block) -> RingBlock:
        entries = block.entries
        items = np.zeros(len(entries) + 1, np.int64)
        sizes = np.zeros(len(entries) + 1, np.int64)
        np.cumsum(entries.rows + 1, out=items[1:])
        np.cumsum(entries.size_bytes, out=sizes[1:])
        return cls(block, items, sizes)

    @property
    def count(self) -> int:
        return len(self.items) - 1

    def is_part(self, entry: int) -> bool:
        return bool(self.block.entries.kind[entry] == EntryKind.PART)

    def boundary(self, entry: int) -> AckPoint:
        """The boundary after an entry."""
        place = self.block.position_after(entry)
        return AckPoint(place.file, place.offset, int(self.block.entries.commit_ts_us[entry]))

    def last_whole(self, start: int, stop: int) -> int | None:
        """The last entry of start..stop-1 that is not a PART."""
        whole = np.flatnonzero(self.block.entries.kind[start:stop] != EntryKind.PART)
        return start + int(whole[-1]) if len(whole) else None


@dataclass(slots=True)
class RingCursor:
    """A boundary: `entry` entries of the `block`-th held block are before it; `item` counts since the ring's start."""

    block: int = 0
    entry: int = 0
    item: int = 0


class Cursors:
    """The held blocks and the three cursors.

    bytes_published, bytes_acked: the cursors' twins in bytes.
    latest:         after the newest published entry.
    acked_position: after the last acked entry; where the first block begins before any ack.
    resume:         after the last acked entry that is not a PART.
    """

    def __init__(self, *, ddl_isolation: bool) -> None:
        self._isolation = ddl_isolation
        self._held: deque[RingBlock] = deque()
        self._acked = RingCursor()
        self._taken = RingCursor()
        self._restart = True
        self.published = 0
        self.bytes_published = 0
        self.bytes_acked = 0
        self.latest: Position | None = None
        self.acked_position: Position | None = None
        self.resume: Position | None = None

    @property
    def taken(self) -> int:
        return self._taken.item

    @property
    def acked(self) -> int:
        return self._acked.item

    @property
    def depth_items(self) -> int:
        return self.published - self._acked.item

    @property
    def depth_bytes(self) -> int:
        return self.bytes_published - self.bytes_acked

    def continues(self, begin: Position) -> bool:
        """Whether a block may begin there: where the last one ended, at a later file's start, or on a new timeline."""
        latest = self.latest
        if self._restart or latest is None or begin == latest:
            return True
        if begin.timeline != latest.timeline:
            return begin.timeline > latest.timeline
        return begin.number > latest.number and begin.offset == FIRST_OFFSET

    def publish(self, held: RingBlock) -> None:
        block = held.block
        self._held.append(held)
        self.published += int(held.items[-1])
        self.bytes_published += int(held.sizes[-1])
        if self._restart:
            self._restart = False
            self.acked_position = block.begin
            self.resume = self.resume or block.begin
        self.latest = block.end

    def rollback(self) -> None:
        self._taken = RingCursor(0, self._acked.entry, self._acked.item)

    def clear(self) -> None:
        self._held.clear()
        self._acked = RingCursor(item=self.published)
        self._taken = RingCursor(item=self.published)
        self.bytes_acked = self.bytes_published
        self._restart = True
        self.latest = self.acked_position = self.resume

    def advance(self, max_items: int | None, max_bytes: int | None) -> Taken:
        """Moves `taken` over what a take may return. There is at least one untaken entry."""
        blocks: list[Block] = []
        first = self.taken_position()
        assert first is not None  # published > taken
        ack: AckPoint | None = None
        left_items, left_bytes = max_items, max_bytes
        items = size = 0
        cursor = self._taken
        while cursor.block < len(self._held):
            held = self._held[cursor.block]
            stop, ends = self._reach(held, cursor.entry, left_items, left_bytes, first=not blocks)
            if stop == cursor.entry:
                break
            gained = int(held.items[stop] - held.items[cursor.entry])
            weight = int(held.sizes[stop] - held.sizes[cursor.entry])
            blocks.append(held.block.slice(cursor.entry, stop))
            whole = held.last_whole(cursor.entry, stop)
            ack = ack if whole is None else held.boundary(whole)
            last, part = held.boundary(stop - 1), held.is_part(stop - 1)
            items, size = items + gained, size + weight
            left_items = None if left_items is None else left_items - gained
            left_bytes = None if left_bytes is None else left_bytes - weight
            at_end = stop == held.count
            cursor = RingCursor(cursor.block + at_end, 0 if at_end else stop, cursor.item + gained)
            if ends or not at_end:
                break
        self._taken = cursor
        return Taken(tuple(blocks), PositionRange(first, blocks[-1].end, last, ack, part), items, size)

    def _reach(
        self, held: RingBlock, start: int, max_items: int | None, max_bytes: int | None, *, first: bool
    ) -> tuple[int, bool]:
        """(the entry before which a take from `start` stops, whether DDL isolation ends the take there)."""
        stop = held.count
        if max_items is not None:
            stop = min(stop, int(np.searchsorted(held.items, held.items[start] + max_items, "right")) - 1)
        if max_bytes is not None:
            stop = min(stop, int(np.searchsorted(held.sizes, held.sizes[start] + max_bytes, "right")) - 1)
        stop = max(stop, start + first)
        if self._isolation:
            ddl = np.flatnonzero(held.block.entries.kind[start:stop] == EntryKind.DDL)
            if len(ddl):
                cut = start + int(ddl[0])
                return (start + 1, True) if first and cut == start else (cut, True)
        return stop, False

    def taken_position(self) -> Position | None:
        """After the last taken entry."""
        cursor = self._taken
        if cursor.item == self._acked.item:
            return self.acked_position
        if cursor.entry:
            return self._held[cursor.block].block.position_after(cursor.entry - 1)
        return self._held[cursor.block - 1].block.end

    def _taken_blocks(self) -> list[tuple[int, int, int]]:
        """(index of a held block, its first and one past its last entry between acked and taken)."""
        spans = []
        for index in range(min(self._taken.block + 1, len(self._held))):
            start = self._acked.entry if index == 0 else 0
            stop = self._taken.entry if index == self._taken.block else self._held[index].count
            if start < stop:
                spans.append((index, start, stop))
        return spans

    def find(self, point: AckPoint) -> tuple[int, int] | None:
        """(block, entry) whose boundary is exactly the point, between acked and taken: the last one, as a PART may have
        no bytes."""
        for index, start, stop in reversed(self._taken_blocks()):
            held = self._held[index]
            inner = stop - (stop == held.count)  # the boundary after a block's last entry is the block's end
            if inner < stop and held.boundary(inner) == point:
                return index, inner
            if held.block.begin.file == point.file:
                entries = held.block.entries
                low = start + int(np.searchsorted(entries.end[start:inner], point.offset, "left"))
                high = start + int(np.searchsorted(entries.end[start:inner], point.offset, "right"))
                same = np.flatnonzero(entries.commit_ts_us[low:high] == point.timestamp)
                if len(same):
                    return index, low + int(same[-1])
        return None

    def last_before(self, position: Position) -> tuple[int, int] | None:
        """(block, entry) of the last taken entry that ends at or before a position."""
        found = None
        for index, start, stop in self._taken_blocks():
            block = self._held[index].block
            if block.position_after(stop - 1) <= position:
                found = index, stop - 1
                continue
            if (block.begin.timeline, block.begin.number) == (position.timeline, position.number):
                reached = start + int(np.searchsorted(block.entries.end[start:stop], position.offset, "right"))
                reached = min(reached, stop - 1)  # the last one ends beyond, see above
                found = (index, reached - 1) if reached > start else found
            break
        return found

    def free(self, found: tuple[int, int]) -> None:
        """Moves `acked` to after an entry of a held block."""
        index, entry = found
        for k in range(index + 1):
            held = self._held[0]
            start = self._acked.entry
            stop = entry + 1 if k == index else held.count
            whole = held.last_whole(start, stop)
            if whole is not None:
                self.resume = held.block.position_after(whole)
            self.acked_position = held.block.position_after(stop - 1)
            self._acked.item += int(held.items[stop] - held.items[start])
            self.bytes_acked += int(held.sizes[stop] - held.sizes[start])
            if stop == held.count:
                self._held.popleft()
                self._taken.block -= 1
                self._acked.entry = 0
            else:
                self._acked.entry = stop
