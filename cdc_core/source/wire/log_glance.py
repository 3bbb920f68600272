"""A passing look at the log, from a position to its current end, by a reader of its own."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress

from cdc_core.binlog.event_headers import Event
from cdc_core.config import Source
from cdc_core.model.position import Position
from cdc_core.mysql import connections
from cdc_core.process.leaving import leave_if_told
from cdc_core.source.wire.log_reader import EndOfLog, LogReader

log = logging.getLogger(__name__)

_POLL_S = 0.1


class LogGlance:
    def __init__(self, source: Source, server: connections.Server) -> None:
        self._source = source
        self._server = server

    def events_after(self, begin: Position) -> Generator[Event]:
        with self._reader(begin) as reader:
            while True:
                leave_if_told()
                yield from reader.events(_POLL_S)

    def statements_after(self, begin: Position) -> Generator[tuple[Event | None, Position]]:
        """The statements, each with the position after it, and now and then how far the log is read without one."""
        with self._reader(begin) as reader:
            while True:
                leave_if_told()
                reader.receive(_POLL_S)
                framer = reader.framer
                for event in framer.statements():
                    if event.start >= 0:  # else it names the next file, and is in none
                        yield event, Position(begin.timeline, event.file, event.start + event.header.length)
                yield None, Position(begin.timeline, framer.file, framer.offset)

    @contextmanager
    def _reader(self, begin: Position) -> Iterator[LogReader]:
        """Until it raises EndOfLog."""
        source = self._source
        log.info("%s: reading ahead in the log from %s to its end", source.name, begin)
        with (
            closing(LogReader(self._server, begin, source)) as reader,
            suppress(EndOfLog),
        ):
            yield reader
