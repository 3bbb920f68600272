"""Where the reading of a log is: for order keys, for people, and as the proof of the log up to there (Fingerprint)."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.binlog.event_headers import TRACE_BYTES, Event, EventType, crc_of, folded
from cdc_core.model.block import NO_TRACE
from cdc_core.model.position import FIRST_OFFSET, Position
from cdc_core.source.schemas.known_definitions import LogPoint

BEGINS = frozenset({
    EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID,
})  # fmt: skip
"""Events that begin a group."""
Trace = tuple[int, int]
"""Where the trace of the log before a position begins, and its CRC; see Fingerprint."""
NOT_TRACED: Trace = (NO_TRACE, 0)


@dataclass(frozen=True, slots=True)
class EventPlace:
    """The position of an event: the file and offset that an operator can name (those of the compressed transaction, for
    an event inside one), and the position after it."""

    source: str
    file: str
    offset: int
    after: Position

    @property
    def where(self) -> str:
        return f"{self.source}, {self.file}:{self.offset}"


class ReadingPlace:
    """file, end: after the last event that was read. trace: of the log up to there.

    cut:        where a piece of the open group that leaves now ends: at `end`; before a compressed transaction while
                its events are read, which have no positions of their own.
    format_crc: of the file's FORMAT_DESCRIPTION; 0 while it is unknown.
    """

    def __init__(self, source: str, begin: Position) -> None:
        self._source = source
        self._timeline = begin.timeline
        self.file = begin.file
        self.end = self.cut = begin.offset
        self.trace = NOT_TRACED
        self.format_crc = 0

    def read(self, event: Event) -> None:
        """An event of the file. The trace begins with each group, continues after it, and begins again where it grows
        too long."""
        end = event.start + event.header.length
        begin, crc = self.trace
        if begin == NO_TRACE or event.header.type in BEGINS or end - begin > TRACE_BYTES:
            begin, crc = event.start, 0
        self.advance(end, (begin, folded(crc, crc_of(event))))

    def advance(self, end: int, trace: Trace) -> None:
        """Events up to `end`, with which the trace of the log is this."""
        self.end = self.cut = end
        self.trace = trace

    def switch(self, file: str) -> None:
        self.file, self.format_crc = file, 0
        self.advance(FIRST_OFFSET, NOT_TRACED)

    @property
    def after(self) -> Position:
        return Position(self._timeline, self.file, self.end)

    @property
    def log_point(self) -> LogPoint:
        return LogPoint(self.after.seq, self.after)

    def seq(self, event: Event) -> int:
        """The order key of a transaction that begins with an event."""
        return Position(self._timeline, event.file, event.start).seq

    def at(self, event: Event) -> EventPlace:
        return EventPlace(self._source, event.file, event.start, self.after)

    def where(self, event: Event) -> str:
        return self.at(event).where

    def position(self, offset: int) -> str:
        """An offset of this file as a position, for people."""
        return f"{Position(self._timeline, self.file, offset)}"
