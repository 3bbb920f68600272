"""Statements that the log holds after a position: what the server has now may come from one of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

from cdc_core.binlog.compressed import plain
from cdc_core.binlog.events import Event, EventType, parse_query
from cdc_core.model.position import Position
from cdc_core.source.statements import Statement, classify

_QUERIES = frozenset({EventType.QUERY, EventType.MARIADB_QUERY_COMPRESSED})
_TEMPORARY = 0x04
"""The event's flag (LOG_EVENT_THREAD_SPECIFIC_F): the statement uses temporary tables."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of the log: all its events that hold a statement other than BEGIN, and others. end: what is next."""

    events: Sequence[Event]
    end: Position


class LaterStatements:
    """Reads the log ahead, in a stretch that grows with it: no event is read twice.

    stretches: of the log, from a position up to its current end. select: the statement of an event, if it matters.
    """

    def __init__(
        self, stretches: Callable[[Position], Generator[Stretch]], select: Callable[[Event], Statement | None]
    ) -> None:
        self._stretches = stretches
        self._select = select
        self._begin: Position | None = None
        self._end: Position | None = None
        self._found: list[tuple[Position, Statement]] = []

    def of(self, after: Position, *, fresh: bool = True, until: Position | None = None) -> Sequence[Statement]:
        """Those between a position and the log's end: its current end (fresh), or its end when it was last read. until:
        those that end there or before."""
        if until is not None and until <= after:
            return []
        if self._begin is None or self._end is None or not self._begin <= after <= self._end:
            self._begin, self._end, self._found, fresh = after, after, [], True
        if fresh and (until is None or self._end < until):
            self._read_on(self._end)
        return [one for here, one in self._found if here > after and (until is None or here <= until)]

    def _read_on(self, begin: Position) -> None:
        with closing(self._stretches(begin)) as stretches:
            for stretch in stretches:
                for event in stretch.events:
                    if event.start < 0:  # it names the next file, and is in none
                        continue
                    here = Position(begin.timeline, event.file, event.start + event.header.length)
                    if here <= begin:
                        continue
                    self._end = here
                    statement = self._select(event)
                    if statement is not None:
                        self._found.append((here, statement))
                self._end = max(self._end or begin, stretch.end)


def statement_of(event: Event, *, lower_case: bool, heed_temporary: bool) -> Statement | None:
    """The statement of an event, if it has one. heed_temporary: `classify` is told where the event says `temporary`."""
    if event.header.type not in _QUERIES or event.body.endswith(b"\0BEGIN"):
        return None
    query = parse_query(plain(event))
    return classify(
        query.sql, query.database, client_collation=query.client_collation, sql_mode=query.sql_mode,
        lower_case=lower_case, temporary=heed_temporary and bool(event.header.flags & _TEMPORARY),
    )  # fmt: skip
