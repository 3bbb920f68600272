"""Compressed events, unpacked to the plain events in them.

MySQL's TRANSACTION_PAYLOAD holds all events of a transaction except its GTID, perhaps more than fits into memory: they
are unpacked one after the other. MariaDB compresses the statement of a QUERY, and the images of a row event. The
unpacked events are parsed like any other.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator

import pyarrow as pa

from cdc_core.binlog.event_headers import HEADER_SIZE, LONG, LUMP, Event, EventType, Header, Rest, parse_header
from cdc_core.binlog.wire import WireCursor
from cdc_core.errors import GIVE_UP, DataAtRisk

MAX_PLAIN_BYTES = 1 << 31
"""A MariaDB event that claims more is refused: max_allowed_packet is 1 GiB at most."""

_COMPRESSION_NONE, _COMPRESSION_ZSTD = 255, 0
_ZSTD = pa.Codec("zstd")

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
    """The events inside a TRANSACTION_PAYLOAD, in order, unpacked lazily. They have neither a checksum nor a position
    of their own: `start` of each is the payload's, so that the server can seek to every position.

    Fields, each type lenenc, length lenenc, value: 1 payload size, 2 codec (0 zstd, 255 none), 3 plain size, 0 end.
    """
    read = event.cursor()
    fields: dict[int, int] = {}
    while (kind := read.lenenc()) != 0:
        value = WireCursor(read.take(read.lenenc()), event.name, event.where)
        if kind in (1, 2, 3):
            fields[kind] = value.lenenc()
            value.end()
    packed = event.rest(read.at)
    if fields.get(1, packed.left) != packed.left:
        raise read.error(f"the payload has {packed.left} bytes, but its header says {fields[1]}")
    codec = fields.get(2, _COMPRESSION_NONE)
    if codec not in (_COMPRESSION_NONE, _COMPRESSION_ZSTD):
        raise DataAtRisk(
            f"{event.name} is compressed with codec {codec}, which Lockstep does not know.",
            where=event.where,
            code="source.log_lost",
            remedy=f"SET GLOBAL binlog_transaction_compression = OFF on the source, and {GIVE_UP}",
        )
    zstd = codec == _COMPRESSION_ZSTD
    plain = _Plain(packed, fields.get(3, -1) if zstd else packed.left, read, zstd=zstd)
    held, at = b"", 0
    while plain.left or at < len(held):
        if len(held) - at < HEADER_SIZE:
            held, at = held[at:] + plain.take(LUMP), 0
        header = parse_header(held[at : at + HEADER_SIZE], event.where)
        lacking = header.length - (len(held) - at)
        if lacking > plain.left:
            raise read.error(f"{lacking - plain.left} of the {header.length} bytes of an inner event are missing")
        if lacking > 0 and header.length >= LONG:
            begin = held[at + HEADER_SIZE :] + plain.take(LUMP)
            more = Rest(plain.take, header.length - HEADER_SIZE - len(begin))
            yield Event(header, begin, event.file, event.start, more)
            while more.read():
                pass
            held, at = b"", 0
            continue
        if lacking > 0:
            held, at = held[at:] + plain.take(max(lacking, LUMP)), 0
        yield Event(header, held[at + HEADER_SIZE : at + header.length], event.file, event.start)
        at += header.length


class _Plain:
    """The plain bytes of a payload, of which `left` are still to come."""

    def __init__(self, packed: Rest, left: int, place: WireCursor, *, zstd: bool) -> None:
        if left < 0:
            raise place.error("the payload does not say how many bytes it unpacks to")
        self.left = left
        self._place = place
        self._file: pa.NativeFile | Rest | io.BytesIO = packed
        if zstd and left > LUMP:
            self._file = pa.CompressedInputStream(pa.PythonFile(packed, "r"), "zstd")
        elif zstd:  # most are small, and cheaper to unpack in one go
            self._file = io.BytesIO(self._told(lambda: _ZSTD.decompress(packed.all(), left, asbytes=True)))

    def take(self, most: int) -> bytes:
        """The next bytes, at most `most`."""
        size = min(most, self.left)
        data = self._read(size)
        self.left -= len(data)
        if len(data) != size or (not self.left and self._read(1)):
            raise self._place.error(f"the payload does not unpack to the size it says: {self.left} bytes are left")
        return data

    def _read(self, size: int) -> bytes:
        return self._told(lambda: self._file.read(size))

    def _told(self, data: Callable[[], bytes]) -> bytes:
        try:
            return data()
        except (OSError, pa.ArrowException) as error:
            raise self._place.error(f"zstd says: {error}") from error


def plain(event: Event) -> Event:
    """The plain equivalent of a MariaDB compressed event; any other event unchanged; with its whole body.

    The head is never compressed: everything before the statement of a QUERY, or before the images of a row event.
    """
    event = event.whole()
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


def _inflate(read: WireCursor) -> bytes:
    """0x80 | method << 4 (0: zlib) | n, then the plain size in n bytes big-endian, then a zlib stream."""
    first = read.u8()
    size_bytes = first & 7
    if first & 0xF0 != 0x80 or not 1 <= size_bytes <= 4:
        raise read.error(f"compression header {first:#x}")
    size = int.from_bytes(read.take(size_bytes), "big")
    if size > MAX_PLAIN_BYTES:
        raise read.error(f"{size} plain bytes")
    unpack = zlib.decompressobj()
    try:
        body = unpack.decompress(read.rest(), size + 1)
    except zlib.error as error:
        raise read.error(f"zlib says: {error}") from error
    if len(body) != size or not unpack.eof or unpack.unused_data:
        raise read.error(f"unpacks to {len(body)} bytes, not {size}")
    return body
