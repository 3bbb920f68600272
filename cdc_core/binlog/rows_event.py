"""The head of a row event: its table, the columns in its images, and the span of the images.

Source: MySQL libs/mysql/binlog/event/rows_event.h. V1 (MariaDB) has a post-header of 8 bytes, V2 of 10 and an
extra part; both are followed by the column count, one bitmap of present columns (UPDATE: two), and the images.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.binlog.event_headers import Event, EventType

INSERT, UPDATE, DELETE = 0, 1, 2
"""Kinds of row events, and values of `RowImages.kind`."""

_KINDS: dict[int, int] = {
    EventType.WRITE_ROWS_V1: INSERT, EventType.WRITE_ROWS: INSERT,
    EventType.UPDATE_ROWS_V1: UPDATE, EventType.UPDATE_ROWS: UPDATE, EventType.PARTIAL_UPDATE_ROWS: UPDATE,
    EventType.DELETE_ROWS_V1: DELETE, EventType.DELETE_ROWS: DELETE,
}  # fmt: skip
_V1 = frozenset({EventType.WRITE_ROWS_V1, EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1})
ROW_EVENTS = frozenset(_KINDS)
"""Types that `parse_rows` reads; MariaDB's compressed ones become these in `compressed.plain`."""

FLAG_LOGS_CASCADES = 0x10
"""USE_SQL_FOREIGN_KEY_F: what foreign keys change with the rows is logged too. MySQL sets it in each row event since
9.6, unless innodb_native_foreign_keys is on. A replica writes it as its source did, and logs what its source logged."""
DUMMY_TABLE_ID = 0xFFFFFF
"""A row event without rows that only ends a statement."""


@dataclass(frozen=True, slots=True)
class RowsEvent:
    """kind: INSERT, UPDATE or DELETE. columns: how many the table has, present or not.

    present, present_after: bitmaps, lowest bit first, of the columns in the (before) image, and for an UPDATE in
    the after image (else b""). partial: after images of JSON columns may be differences (PARTIAL_UPDATE_ROWS).
    images: the row images alone. event: where it came from, for errors.
    """

    kind: int
    table_id: int
    flags: int
    columns: int
    present: bytes
    present_after: bytes
    partial: bool
    images: bytes
    event: Event


def parse_rows(event: Event) -> RowsEvent:
    """The head of a WRITE, UPDATE, DELETE or PARTIAL_UPDATE rows event, V1 or V2."""
    kind = _KINDS.get(event.header.type)
    body, code = event.body, event.header.type
    at = 8 if code in _V1 else 10
    # The usual head, at once: large transactions have many. No extra part, fewer than 251 columns.
    if kind is not None and len(body) > at and body[at] < 251 and (at == 8 or body[8:10] == b"\2\0"):
        bitmap = (body[at] + 7) // 8
        middle = at + 1 + bitmap
        end = middle + bitmap if kind == UPDATE else middle
        if end <= len(body):
            return RowsEvent(
                kind,
                int.from_bytes(body[:6], "little"),
                int.from_bytes(body[6:8], "little"),
                body[at],
                body[at + 1 : middle],
                body[middle:end],
                code == EventType.PARTIAL_UPDATE_ROWS,
                body[end:],
                event,
            )
    read = event.cursor()
    if kind is None:
        raise read.error("not a row event")
    table_id, flags = read.uint(6), read.uint(2)
    if event.header.type not in _V1:
        extra = read.uint(2)
        if extra < 2:
            raise read.error(f"an extra part of {extra} bytes, too short for its own length field")
        read.take(extra - 2)
    columns = read.lenenc()
    bitmap = (columns + 7) // 8
    present = read.take(bitmap)
    after = read.take(bitmap) if kind == UPDATE else b""
    partial = event.header.type == EventType.PARTIAL_UPDATE_ROWS
    return RowsEvent(kind, table_id, flags, columns, present, after, partial, read.rest(), event)
