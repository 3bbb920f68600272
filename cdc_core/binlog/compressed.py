"""Compressed events as the plain events that they stand for.

MySQL's TRANSACTION_PAYLOAD holds all events of a transaction but its GTID. MariaDB compresses the statement of a
QUERY, and the images of a row event. What comes out is parsed like any other event.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pyarrow as pa

from cdc_core.binlog.events import HEADER_SIZE, Event, EventType, Header, parse_header
from cdc_core.binlog.wire import Cursor
from cdc_core.errors import DataAtRisk

MAX_PAYLOAD_BYTES = 1 << 31
"""A payload that claims more is not believed: max_allowed_packet limits a transaction's cache to less."""

_COMPRESSION_NONE, _COMPRESSION_ZSTD = 255, 0

_PLAIN: dict[int, EventType] = {
    EventType.MARIADB_QUERY_COMPRESSED: EventType.QUERY,
    EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1: EventType.WRITE_ROWS_V1,
    EventType.MARIADB_UPDATE_ROWS_COMPRESSED_V1: EventType.UPDATE_ROWS_V1,
    EventType.MARIADB_DELETE_ROWS_COMPRESSED_V1: EventType.DELETE_ROWS_V1,
    EventType.MARIADB_WRITE_ROWS_COMPRESSED: EventType.WRITE_ROWS,
    EventType.MARIADB_UPDATE_ROWS_COMPRESSED: EventType.UPDATE_ROWS,
    EventType.MARIADB_DELETE_ROWS_COMPRESSED: EventType.DELETE_ROWS,
}
MARIADB_COMPRESSED = frozenset(_PLAIN)


def payload_events(event: Event) -> Iterator[Event]:
    """The events inside a TRANSACTION_PAYLOAD, in order. They have no checksum of their own and no place in the
    log: `start` of each is the payload's, so that positions name what the server can seek to.

    Fields, each type lenenc, length lenenc, value: 1 payload size, 2 codec (0 zstd, 255 none), 3 plain size, 0 end.
    """
    read = event.cursor()
    fields: dict[int, int] = {}
    while (kind := read.lenenc()) != 0:
        value = Cursor(read.take(read.lenenc()), event.name, event.where)
        if kind in (1, 2, 3):
            fields[kind] = value.lenenc()
            value.end()
    packed = read.rest()
    if fields.get(1, len(packed)) != len(packed):
        raise read.error(f"a payload of {len(packed)} bytes that says {fields[1]}")
    codec = fields.get(2, _COMPRESSION_NONE)
    if codec == _COMPRESSION_ZSTD:
        plain = _unzstd(packed, fields.get(3, -1), read)
    elif codec == _COMPRESSION_NONE:
        plain = packed
    else:
        raise DataAtRisk(
            f"{event.name} is compressed with codec {codec}, which Lockstep does not know.",
            where=event.where,
            code="binlog.compression",
            remedy="SET GLOBAL binlog_transaction_compression = OFF on the source, then a new start position after "
            "this transaction with a full sync of its tables",
        )
    at = 0
    while at < len(plain):
        header = parse_header(plain[at : at + HEADER_SIZE], event.where)
        end = at + header.length
        if end > len(plain):
            raise read.error(f"an inner event of {header.length} bytes where {len(plain) - at} are left")
        yield Event(header, plain[at + HEADER_SIZE : end], event.file, event.start)
        at = end


def _unzstd(packed: bytes, size: int, read: Cursor) -> bytes:
    if not 0 <= size <= MAX_PAYLOAD_BYTES:
        raise read.error(f"a payload that unpacks to {size} bytes")
    try:
        plain: bytes = pa.Codec("zstd").decompress(packed, decompressed_size=size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise read.error(f"zstd says: {error}") from error
    if len(plain) != size:
        raise read.error(f"the payload unpacks to {len(plain)} bytes, not {size}")
    return plain


def plain(event: Event) -> Event:
    """A MariaDB compressed event as its plain equivalent; any other event as it is.

    The head stays plain: of a QUERY all before the statement, of a row event all before the images.
    """
    kind = _PLAIN.get(event.header.type)
    if kind is None:
        return event
    read = event.cursor()
    if kind == EventType.QUERY:
        head = read.take(13)
        read.take(int.from_bytes(head[11:13], "little") + head[8] + 1)
    else:
        read.take(8)
        if kind in (EventType.WRITE_ROWS, EventType.UPDATE_ROWS, EventType.DELETE_ROWS):
            extra = read.uint(2)
            read.take(max(extra - 2, 0))
        columns = read.lenenc()
        bitmaps = 2 if kind in (EventType.UPDATE_ROWS, EventType.UPDATE_ROWS_V1) else 1
        read.take((columns + 7) // 8 * bitmaps)
    head = event.body[: read.at]
    body = head + _inflate(read)
    old = event.header
    header = Header(old.timestamp, kind, old.server_id, HEADER_SIZE + len(body), old.log_pos, old.flags)
    return Event(header, body, event.file, event.start)


def _inflate(read: Cursor) -> bytes:
    """0x80 | method << 4 (0: zlib) | n, then the plain size in n bytes big-endian, then a zlib stream."""
    first = read.u8()
    size_bytes = first & 7
    if first & 0xF0 != 0x80 or not 1 <= size_bytes <= 4:
        raise read.error(f"compression header {first:#x}")
    size = int.from_bytes(read.take(size_bytes), "big")
    if size > MAX_PAYLOAD_BYTES:
        raise read.error(f"{size} plain bytes")
    unpack = zlib.decompressobj()
    try:
        body = unpack.decompress(read.rest(), size + 1)
    except zlib.error as error:
        raise read.error(f"zlib says: {error}") from error
    if len(body) != size or not unpack.eof or unpack.unused_data:
        raise read.error(f"unpacks to {len(body)} bytes, not {size}")
    return body
