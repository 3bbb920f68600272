"""Statements that the log holds after a position: what the server has now may come from one of them.

They are kept by what they do and to which names, without their texts, which may have values of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from cdc_core.binlog.event_headers import Event
from cdc_core.errors import LockstepError
from cdc_core.model.json_codec import parsed, text_of
from cdc_core.model.position import Position
from cdc_core.source.sql.statement_classes import Statement

KEEP_S = 5.0
"""How often what was found is kept."""
KEPT_BYTES = 1 << 20
"""A longer text is not kept: databases refuse long statements, and reading again costs only time."""


Statements = Generator[tuple[Event | None, Position]]
Select = Callable[[Event], Statement | None]
"""The statement of an event, if it matters."""


@dataclass(frozen=True, slots=True)
class _Selected:
    """An event that matters, which ends there: the statement of each `select`."""

    end: Position
    statements: tuple[Statement | None, ...]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A stretch of the log, as it is kept."""

    begin: Position
    end: Position
    found: tuple[_Selected, ...]


class LogAhead:
    """What was read ahead: a stretch that grows, and its statements that may matter. No event is read twice, also by
    those that begin again: what was found is kept while it is read, up to KEPT_BYTES.

    statements: of the log, from a position up to its current end, each with the position after it; None says only how
    far the log is read. keep: keeps a text. known: the last text kept, or "".
    selects: of those who look for statements, in the same order each time; an event matters if it does to one of them.
    """

    def __init__(self, statements: Callable[[Position], Statements], known: str, keep: Callable[[str], None]) -> None:
        self._statements = statements
        self._keep = keep
        self.selects: list[Select] = []
        self._begin: Position | None = None
        self._end: Position | None = None
        self._found: list[_Selected] = []
        if known:
            with suppress(ValueError, TypeError, LockstepError):  # another version has kept it
                stretch = parsed(_Stretch, known)
                self._begin, self._end, self._found = stretch.begin, stretch.end, list(stretch.found)

    def of(self, after: Position, *, fresh: bool, until: Position | None) -> Iterator[_Selected]:
        """See LaterStatements.of."""
        if self._begin is None or self._end is None or not self._begin <= after <= self._end:
            self._begin, self._end, self._found, fresh = after, after, [], True
        if fresh and (until is None or self._end < until):
            try:
                self._read_on(self._end)
            finally:
                self._keep_from(after)
        return (placed for placed in self._found if placed.end > after and (until is None or placed.end <= until))

    def _read_on(self, begin: Position) -> None:
        kept_s = time.monotonic()
        with closing(self._statements(begin)) as statements:
            for event, here in statements:
                if event is not None and here > begin:
                    selected = tuple(select(event) for select in self.selects)
                    if any(statement is not None for statement in selected):
                        self._found.append(_Selected(here, selected))
                self._end = max(self._end or begin, here)
                if time.monotonic() - kept_s > KEEP_S:
                    self._keep_from(begin)
                    kept_s = time.monotonic()

    def _keep_from(self, after: Position) -> None:
        assert self._begin is not None
        assert self._end is not None
        begin = max(self._begin, min(after, self._end))
        found = tuple(one for one in self._found if one.end > begin)
        with suppress(ValueError):  # a name that is no UTF-8: reading again costs only time, too
            text = text_of(_Stretch(begin, self._end, found))
            if len(text) <= KEPT_BYTES:
                self._keep(text)


class LaterStatements:
    """The statements of what was read ahead that `select` gives."""

    def __init__(self, ahead: LogAhead, select: Select) -> None:
        self._ahead = ahead
        self._number = len(ahead.selects)
        ahead.selects.append(select)

    def of(self, after: Position, *, fresh: bool = True, until: Position | None = None) -> Sequence[Statement]:
        """Those between a position and the log's end: its current end (fresh), or its end when it was last read. until:
        those that end there or before."""
        if until is not None and until <= after:
            return []
        statements = (placed.statements[self._number] for placed in self._ahead.of(after, fresh=fresh, until=until))
        return [statement for statement in statements if statement is not None]
