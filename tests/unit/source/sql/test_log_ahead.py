"""What was read ahead in the log, and what of it is kept for who begins again."""

from __future__ import annotations

import pytest

from cdc_core.binlog.event_headers import HEADER_SIZE, Event, EventType, Header
from cdc_core.model.position import Position
from cdc_core.source.sql.log_ahead import KEPT_BYTES, LogAhead, Statements

BEGIN = Position(0, "binlog.000001", 4)


@pytest.mark.parametrize("long", [False, True])
def test_what_was_read_ahead_is_kept_unless_it_is_longer_than_a_database_takes(long: bool) -> None:
    body = b"x" * (KEPT_BYTES // 3)
    events, offset = [], BEGIN.offset
    for _ in range(3 if long else 2):
        length = HEADER_SIZE + len(body)
        events.append(Event(Header(0, EventType.QUERY, 1, length, 0, 0), body, BEGIN.file, offset))
        offset += length

    def statements(after: Position) -> Statements:
        for event in events:
            if event.start >= after.offset:
                yield event, Position(0, BEGIN.file, event.start + event.header.length)

    kept: list[str] = []
    ahead = LogAhead(statements, "", kept.append)
    ahead.matter.append(lambda event: True)
    assert [event for _, event in ahead.of(BEGIN, fresh=True, until=None)] == events
    assert [len(text) <= KEPT_BYTES for text in kept] == ([] if long else [True])
