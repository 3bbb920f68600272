"""Packets to events, compiled: the ordinary ones, each with its position, length and checksum verified.

Assumes the receive buffer of a replication connection (source/wire/receive_buffer.py). Keeps true: an event is reported
only when it is complete in one packet, has the length it says, begins where the previous one ended, and its CRC32
matches. At anything else the kernel stops and leaves it to the EventFramer: stream control, errors, its end, split
packets. Packet: length u24, number u8, 0x00, then the event: timestamp u32, type u8, server id u32, length u32, log_pos
u32, flags u16, body, CRC32 u32 where the log has checksums.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc_core.binlog.compiled import kernel
from cdc_core.binlog.event_headers import EventType

# mypy: disable-error-code="no-untyped-def"

MORE, UNUSUAL, FULL = 0, 1, 2
"""Why `frame` stopped: the next packet is incomplete; it is for the EventFramer; the columns are full."""

_ROTATE, _FORMAT, _HEARTBEAT, _HEARTBEAT_V2 = (
    int(code) for code in (EventType.ROTATE, EventType.FORMAT_DESCRIPTION, EventType.HEARTBEAT, EventType.HEARTBEAT_V2)
)
_LONGEST = (1 << 24) - 1
_HEAD = 20  # the OK byte and a header


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
def frame(buf, head, tail, offset, checked, tables, at, length, code, start, first):
    """Frames ordinary events of buf[head:tail], the first of which should begin at `offset` of its file.

    checked: the log has checksums. at, length, code, start: outputs for each event, from index `first` on: its header's
    offset in buf, its length, its type, its offset in the file.
    Returns (where the next packet begins, how many events the columns hold, offset after the last, why it stopped).
    """
    k = first
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
        if k == at.shape[0]:
            return head, k, offset, FULL
        if checked and crc32(buf, p, p + long - 4, tables) != little32(buf, p + long - 4):
            return head, k, offset, UNUSUAL
        at[k] = p
        length[k] = long
        code[k] = kind
        start[k] = offset
        offset += long
        head += 4 + size
        k += 1
