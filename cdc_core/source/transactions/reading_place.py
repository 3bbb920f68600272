"""Where the reading of a log is, and how an event's place in it is named: for order keys, and for people."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.binlog.event_headers import Event
from cdc_core.model.position import FIRST_OFFSET, Position
from cdc_core.source.schemas.definition_history import LogPoint


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
    """file, end: after the last event that was read."""

    def __init__(self, source: str, begin: Position) -> None:
        self._source = source
        self._timeline = begin.timeline
        self.file = begin.file
        self.end = begin.offset
        self._outermost: Event | None = None

    def read(self, event: Event) -> None:
        """An event of the file; those inside a compressed transaction are in none."""
        self.end = event.start + event.header.length
        self._outermost = event

    def switch(self, file: str) -> None:
        self.file, self.end = file, FIRST_OFFSET

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
        outer = event if event.start >= 0 or self._outermost is None else self._outermost
        return EventPlace(self._source, outer.file, outer.start, self.after)

    def where(self, event: Event) -> str:
        return self.at(event).where

    def position(self, offset: int) -> str:
        """Of this file."""
        return f"{Position(self._timeline, self.file, offset)}"
