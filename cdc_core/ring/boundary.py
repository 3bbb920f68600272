"""Values that the ring takes and returns: boundaries, and its statistics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AckPoint:
    """An entry boundary: the position after the entry, and the entry's commit time (µs, as in Entries)."""

    file: str
    offset: int
    timestamp: int

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}@{self.timestamp}"


@dataclass(frozen=True, slots=True)
class RingStats:
    """The cursors; depth: what is published and not acked. waits: calls that had to wait."""

    published: int
    taken: int
    acked: int
    depth_items: int
    depth_bytes: int
    high_water_items: int
    high_water_bytes: int
    put_waits: int
    take_waits: int
