"""Statements that the log holds after a position: what the server has now may come from one of them."""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import astuple

from cdc_core.binlog.event_headers import Event, Header
from cdc_core.model.position import Position
from cdc_core.source.sql.statement_classes import Statement

KEEP_S = 5.0
"""How often what was found is kept."""
KEPT_BYTES = 1 << 20
"""A longer text is not kept: databases refuse long statements, and reading again costs only time."""


Statements = Generator[tuple[Event | None, Position]]


class LogAhead:
    """What was read ahead: a stretch that grows, and its events that may matter. No event is read twice, also by those
    that begin again: what was found is kept while it is read, up to KEPT_BYTES.

    statements: of the log, from a position up to its current end, each with the position after it; None says only how
    far the log is read. keep: keeps a text. known: the last text kept, or "".
    matter: whether an event is among those to be found; one of these is enough.
    """

    def __init__(self, statements: Callable[[Position], Statements], known: str, keep: Callable[[str], None]) -> None:
        self._statements = statements
        self._keep = keep
        self.matter: list[Callable[[Event], bool]] = []
        self._begin: Position | None = None
        self._end: Position | None = None
        self._found: list[tuple[Position, Event]] = []
        if known:
            begin, end, found = json.loads(known)
            self._begin, self._end = Position.from_json(begin), Position.from_json(end)
            self._found = [
                (Position.from_json(here), Event(Header(*header), b64decode(body), file, start))
                for here, header, body, file, start in found
            ]

    def of(self, after: Position, *, fresh: bool, until: Position | None) -> Iterator[tuple[Position, Event]]:
        """See LaterStatements.of; each with its end."""
        if self._begin is None or self._end is None or not self._begin <= after <= self._end:
            self._begin, self._end, self._found, fresh = after, after, [], True
        if fresh and (until is None or self._end < until):
            try:
                self._read_on(self._end)
            finally:
                self._keep_from(after)
        return (placed for placed in self._found if placed[0] > after and (until is None or placed[0] <= until))

    def _read_on(self, begin: Position) -> None:
        kept_s = time.monotonic()
        with closing(self._statements(begin)) as statements:
            for event, here in statements:
                if event is not None and here > begin and any(matters(event) for matters in self.matter):
                    self._found.append((here, event))
                self._end = max(self._end or begin, here)
                if time.monotonic() - kept_s > KEEP_S:
                    self._keep_from(begin)
                    kept_s = time.monotonic()

    def _keep_from(self, after: Position) -> None:
        assert self._begin is not None
        assert self._end is not None
        begin, found = max(self._begin, min(after, self._end)), self._found
        text = json.dumps(
            [
                begin.to_json(),
                self._end.to_json(),
                [
                    (here.to_json(), astuple(event.header), b64encode(event.body).decode(), event.file, event.start)
                    for here, event in found
                    if here > begin
                ],
            ]
        )
        if len(text) <= KEPT_BYTES:
            self._keep(text)


class LaterStatements:
    """The statements of what was read ahead. select: the statement of an event, if it matters."""

    def __init__(self, ahead: LogAhead, select: Callable[[Event], Statement | None]) -> None:
        self._ahead = ahead
        self._select = select
        self._selected: dict[Position, Statement | None] = {}
        ahead.matter.append(lambda event: select(event) is not None)

    def of(self, after: Position, *, fresh: bool = True, until: Position | None = None) -> Sequence[Statement]:
        """Those between a position and the log's end: its current end (fresh), or its end when it was last read. until:
        those that end there or before."""
        if until is not None and until <= after:
            return []
        statements = []
        for here, event in self._ahead.of(after, fresh=fresh, until=until):
            if here not in self._selected:
                self._selected[here] = self._select(event)
            statements.append(self._selected[here])
        return [statement for statement in statements if statement is not None]
