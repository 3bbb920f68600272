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
from cdc_core.ring.boundary import AckPoint


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

    def boundary(self, entry: int) -> AckPoint:
        """The boundary after an entry."""
        place = self.block.position_after(entry)
        return AckPoint(place.file, place.offset, int(self.block.entries.commit_ts_us[entry]))


@dataclass(slots=True)
class RingCursor:
    """A boundary: `entry` entries of the `block`-th held block are before it; `item` counts since the ring's start."""

    block: int = 0
    entry: int = 0
    item: int = 0


class Cursors:
    """The held blocks and the three cursors.

    bytes_published, bytes_acked: the cursors' twins in bytes.
    latest: after the newest published entry.
    """

    def __init__(self) -> None:
        self._held: deque[RingBlock] = deque()
        self._acked = RingCursor()
        self._taken = RingCursor()
        self.published = 0
        self.bytes_published = 0
        self.bytes_acked = 0
        self.latest: Position | None = None

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
        if latest is None or begin == latest:
            return True
        if begin.timeline != latest.timeline:
            return begin.timeline > latest.timeline
        return begin.number > latest.number and begin.offset == FIRST_OFFSET

    def publish(self, held: RingBlock) -> None:
        block = held.block
        self._held.append(held)
        self.published += int(held.items[-1])
        self.bytes_published += int(held.sizes[-1])
        self.latest = block.end

    def rollback(self) -> None:
        self._taken = RingCursor(0, self._acked.entry, self._acked.item)

    def advance(self) -> tuple[Block, ...]:
        """Moves `taken` up to the next entry of DDL, over one that it is at, or to the end; what it passed."""
        blocks: list[Block] = []
        while self._taken.block < len(self._held):
            at, held = self._taken, self._held[self._taken.block]
            ddl = np.flatnonzero(held.block.entries.kind[at.entry :] == EntryKind.DDL)
            stop = at.entry + int(ddl[0]) if len(ddl) else held.count
            if stop == at.entry and not blocks:
                stop += 1
            if stop > at.entry:
                blocks.append(held.block.slice(at.entry, stop))
                ends, item = stop == held.count, at.item + int(held.items[stop] - held.items[at.entry])
                self._taken = RingCursor(at.block + ends, 0 if ends else stop, item)
            if len(ddl):
                break
        return tuple(blocks)

    def find(self, point: AckPoint) -> tuple[int, int] | None:
        """(block, entry) whose boundary is exactly the point, between acked and taken: the last one, as a PART may have
        no bytes."""
        for index in range(min(self._taken.block, len(self._held) - 1), -1, -1):
            held = self._held[index]
            start = self._acked.entry if index == 0 else 0
            stop = self._taken.entry if index == self._taken.block else held.count
            inner = stop - (stop == held.count)  # the boundary after a block's last entry is the block's end
            if start <= inner < stop and held.boundary(inner) == point:
                return index, inner
            if held.block.begin.file == point.file:
                entries = held.block.entries
                low = start + int(np.searchsorted(entries.end[start:inner], point.offset, "left"))
                high = start + int(np.searchsorted(entries.end[start:inner], point.offset, "right"))
                same = np.flatnonzero(entries.commit_ts_us[low:high] == point.timestamp)
                if len(same):
                    return index, low + int(same[-1])
        return None

    def free(self, found: tuple[int, int]) -> None:
        """Moves `acked` to after an entry of a held block."""
        index, entry = found
        for k in range(index + 1):
            held = self._held[0]
            start = self._acked.entry
            stop = entry + 1 if k == index else held.count
            self._acked.item += int(held.items[stop] - held.items[start])
            self.bytes_acked += int(held.sizes[stop] - held.sizes[start])
            if stop == held.count:
                self._held.popleft()
                self._taken.block -= 1
                self._acked.entry = 0
            else:
                self._acked.entry = stop
