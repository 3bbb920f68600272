"""Packets to events: the bytes of a replication connection, and the ordinary events in them, framed and verified.

`ReceiveBuffer` is the only owner of offsets into the bytes. Receive into `get_buffer()`, then call
`buffer_updated(size)`, as with asyncio.BufferedProtocol. The bytes are in this order: used | framed events, `len(self)`
of them | unframed | free. `get_buffer` may move what is still needed to the front, so arrays of `events` are valid
until its next call.

The kernel `frame` keeps true: an event is reported only when it is complete in one packet, has the length it says,
begins where the previous one ended, and its CRC32 matches. At anything else it stops and leaves it to the EventFramer:
stream control, errors, the end of the stream, split packets. Packet: length u24, number u8, 0x00, then the event:
timestamp u32, type u8, server id u32, length u32, log_pos u32, flags u16, body, CRC32 u32 where the log has checksums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc_core.binlog.compiled import kernel
from cdc_core.binlog.event_headers import EventType

# mypy: disable-error-code="no-untyped-def"

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

MORE, UNUSUAL, FULL = 0, 1, 2
"""Why `frame` stopped: the next packet is incomplete; it is for the EventFramer; the columns are full."""

_ROTATE, _FORMAT, _HEARTBEAT, _HEARTBEAT_V2 = (
    int(code) for code in (EventType.ROTATE, EventType.FORMAT_DESCRIPTION, EventType.HEARTBEAT, EventType.HEARTBEAT_V2)
)
_LONGEST = (1 << 24) - 1
_HEAD = 20  # the OK byte and a header
_PACKET_HEAD = 5
"""Bytes of a framed packet before its event: length, number, OK."""
_INITIAL_BYTES = 8 << 20
_LEAST_FREE_BYTES = 1 << 20
_EVENTS = 1 << 16


class FramedEvents(NamedTuple):
    """Events in the receive buffer, framed and verified; those from `first` up to `stop` are to be read.

    at: each header's offset in `buffer`. length: of the whole event. code: its type. start: its offset in the file.
    checksum_size: bytes after each body.
    """

    buffer: Bytes
    at: Longs
    length: Longs
    code: Bytes
    start: Longs
    first: int
    stop: int
    checksum_size: int


def crc_tables() -> npt.NDArray[np.uint32]:
    """For CRC32 of eight bytes at a time ("slicing by eight"): [how many bytes of the eight come after it, byte]."""
    table = np.zeros((8, 256), np.uint32)
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = (first >> np.uint32(1)) ^ np.where(first & 1, np.uint32(0xEDB88320), np.uint32(0))
    table[0] = first
    for k in range(1, 8):
        table[k] = (table[k - 1] >> np.uint32(8)) ^ first[table[k - 1] & 255]
    return table


CRC_TABLES = crc_tables()


@kernel
def little32(buf, at):
    p = np.uint64(at)
    return (
        np.uint32(buf[p])
        | np.uint32(buf[p + np.uint64(1)]) << np.uint32(8)
        | np.uint32(buf[p + np.uint64(2)]) << np.uint32(16)
        | np.uint32(buf[p + np.uint64(3)]) << np.uint32(24)
    )


@kernel
def crc32(buf, start, stop, tables):
    """zlib's CRC32 of buf[start:stop]."""
    c = np.uint32(0xFFFFFFFF)
    part = buf[start:stop]
    size = part.shape[0]
    for k in range(size >> 3):
        p = np.uint64(k) << np.uint64(3)  # unsigned: numba need not check for negative indices
        a = c ^ little32(part, p)
        b = little32(part, p + np.uint64(4))
        c = (
            tables[7, a & np.uint32(255)]
            ^ tables[6, (a >> np.uint32(8)) & np.uint32(255)]
            ^ tables[5, (a >> np.uint32(16)) & np.uint32(255)]
            ^ tables[4, a >> np.uint32(24)]
            ^ tables[3, b & np.uint32(255)]
            ^ tables[2, (b >> np.uint32(8)) & np.uint32(255)]
            ^ tables[1, (b >> np.uint32(16)) & np.uint32(255)]
            ^ tables[0, b >> np.uint32(24)]
        )
    for k in range(size & ~7, size):
        c = (c >> np.uint32(8)) ^ tables[0, (c ^ np.uint32(part[k])) & np.uint32(255)]
    return c ^ np.uint32(0xFFFFFFFF)


@kernel
def frame(events, head, tail, offset, tables):
    """Frames ordinary events of events.buffer[head:tail] behind those in the columns, from index `events.stop` on; the
    first should begin at `offset` of its file.

    Returns (where the next packet begins, how many events the columns hold, offset after the last, why it stopped).
    """
    buf = events.buffer
    checked = events.checksum_size > 0
    k = events.stop
    shortest = 24 if checked else 20
    while True:
        if tail - head < 4:
            return head, k, offset, MORE
        size = np.int64(buf[head]) | np.int64(buf[head + 1]) << 8 | np.int64(buf[head + 2]) << 16
        if size < shortest or size >= _LONGEST:
            return head, k, offset, UNUSUAL
        if tail - head < 4 + _HEAD:
            return head, k, offset, MORE
        p = head + 5
        kind = buf[p + 4]
        if buf[head + 4] != 0 or kind in (_ROTATE, _FORMAT, _HEARTBEAT, _HEARTBEAT_V2):
            return head, k, offset, UNUSUAL
        long = np.int64(little32(buf, p + 9))
        log_pos = np.int64(little32(buf, p + 13))
        if long != size - 1 or (log_pos != 0 and log_pos != (offset + long) & 0xFFFFFFFF):
            return head, k, offset, UNUSUAL
        if tail - head < 4 + size:
            return head, k, offset, MORE
        if k == events.at.shape[0]:
            return head, k, offset, FULL
        if checked and crc32(buf, p, p + long - 4, tables) != little32(buf, p + long - 4):
            return head, k, offset, UNUSUAL
        events.at[k] = p
        events.length[k] = long
        events.code[k] = kind
        events.start[k] = offset
        offset += long
        head += 4 + size
        k += 1


class ReceiveBuffer:
    """stopped: why framing stopped (MORE, UNUSUAL, FULL)."""

    def __init__(self) -> None:
        self.data: Bytes = np.empty(_INITIAL_BYTES, np.uint8)
        self.stopped = MORE
        self._head = 0
        """Where the unframed bytes begin."""
        self._tail = 0
        self._at = np.empty(_EVENTS, np.int64)
        self._length = np.empty(_EVENTS, np.int64)
        self._code = np.empty(_EVENTS, np.uint8)
        self._start = np.empty(_EVENTS, np.int64)
        self._first = 0
        self._count = 0
        self._settled = False
        """Whether framing again would find nothing new."""

    def __len__(self) -> int:
        """Framed events that are not consumed yet."""
        return self._count - self._first

    # Bytes in

    def get_buffer(self) -> memoryview:
        """Free space to receive into, at least 1 MiB."""
        begin = int(self._at[self._first]) - _PACKET_HEAD if len(self) else self._head
        kept = self._tail - begin
        if len(self.data) - self._tail < _LEAST_FREE_BYTES:
            target = self.data
            if kept + _LEAST_FREE_BYTES > len(target) // 2:
                target = np.empty(2 * len(target), np.uint8)
            target[:kept] = self.data[begin : self._tail].copy()
            self.data = target
            self._move(begin)
            self._head -= begin
            self._tail = kept
        return self.data.data[self._tail :]

    def buffer_updated(self, size: int) -> None:
        """`size` bytes were received into `get_buffer()`."""
        self._tail += size
        self._settled = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of framed events that are not consumed yet, and unframed bytes."""
        return self._tail - (int(self._at[self._first]) if len(self) else self._head)

    # Framed events

    def frame(self, offset: int, checksum_size: int) -> int:
        """Frames ordinary events, the first of which should begin at `offset` of its file; returns the offset after the
        last. checksum_size: bytes after each body."""
        if self._settled and (len(self) or self.stopped != FULL):
            return offset
        if self._first and (not len(self) or self.stopped == FULL):
            self._move(0)
        events = self.events(checksum_size)
        self._head, self._count, offset, self.stopped = frame(events, self._head, self._tail, offset, CRC_TABLES)
        self._settled = True
        return offset

    def events(self, checksum_size: int) -> FramedEvents:
        """The framed events, as the kernels read them."""
        return FramedEvents(
            self.data, self._at, self._length, self._code, self._start, self._first, self._count, checksum_size
        )

    def consume(self, count: int) -> None:
        """Drops the first `count` framed events."""
        assert 0 <= count <= len(self)
        self._first += count

    def make_space(self) -> bool:
        """Whether more events can be framed now: the columns were full, and some of them were consumed."""
        full = self.stopped == FULL and self._first > 0
        if full:
            self._move(0)
        return full

    # Unframed bytes

    @property
    def unframed_bytes(self) -> int:
        return self._tail - self._head

    def peek(self, size: int) -> bytes:
        """The first unframed bytes, at most `size`."""
        return self.data[self._head : min(self._tail, self._head + size)].tobytes()

    def read(self, size: int) -> memoryview:
        """The first unframed bytes, at most `size`, taken out; valid until the next get_buffer()."""
        part = self.data[self._head : min(self._tail, self._head + size)]
        self._head += len(part)
        self._settled = False
        return part.data

    def _move(self, down: int) -> None:
        """The bytes moved down by `down`; the columns now begin with the first event that is not consumed yet."""
        here, count = slice(self._first, self._count), len(self)
        self._at[:count] = self._at[here] - down
        for column in (self._length, self._code, self._start):
            column[:count] = column[here].copy()
        self._first, self._count, self._settled = 0, count, False
