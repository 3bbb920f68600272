"""Values that the ring returns: boundaries, ranges, edges, and its statistics."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.model.block import Block
from cdc_core.model.position import Position


@dataclass(frozen=True, slots=True)
class AckPoint:
    """An entry boundary: the position after the entry, and the entry's commit time (µs, as in Entries)."""

    file: str
    offset: int
    timestamp: int

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}@{self.timestamp}"


@dataclass(frozen=True, slots=True)
class PositionRange:
    """What a take covers.

    start, end: positions before the first and after the last entry.
    last:       the boundary at `end`; acking it acks all of the take.
    ack:        the last boundary that is a transaction end, DDL, or the end of a stretch without captured rows:
                the furthest that moves `resume_position`; None when the whole take is inside one open transaction.
    continues:  the take ends inside an open transaction (its last entry is a PART).
    """

    start: Position
    end: Position
    last: AckPoint
    ack: AckPoint | None
    continues: bool


@dataclass(frozen=True, slots=True)
class Taken:
    blocks: tuple[Block, ...]
    range: PositionRange
    items: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Edge:
    """First or latest position of the ring. `included`: the ring still holds the entry next to it on the inside."""

    position: Position
    included: bool


@dataclass(frozen=True, slots=True)
class RingStats:
    """Depth is what is published and not acked; waits are calls that had to wait, and the seconds they did."""

    published: int
    taken: int
    acked: int
    depth_items: int
    depth_bytes: int
    high_water_items: int
    high_water_bytes: int
    oversized: int
    put_waits: int
    put_wait_s: float
    take_waits: int
    take_wait_s: float
