"""The kernel that walks the packets of a binary result set and locates every value of every row.

Assumes nothing about the bytes. Keeps true: each [offset, offset + length) it writes is inside its row, a row is
reported only when all of its packets have come, and a packet out of sequence stops it.

A packet: length u24, sequence u8, payload. A payload of 2^24 - 1 bytes continues in the next packet. A row: 0x00, a
bitmap of nulls (its first two bits are unused), then the values of the columns that are not null
(dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_binary_resultset.html).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc_core.binlog.compiled import kernel

# mypy: disable-error-code="no-untyped-def,assignment"

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

SIZED, MOMENT, DURATION = 0, -1, -2
"""Forms of a value besides a fixed number of bytes. SIZED: a length-encoded string. MOMENT: a length byte (0, 4, 7 or
11), then year u16, month, day, hour, minute, second, microsecond u32, as far as the length goes. DURATION: a length
byte (0, 8 or 12), then sign, days u32, hour, minute, second, microsecond u32."""

MORE, FULL, OTHER, DISORDER, MALFORMED = range(5)
"""Why it stopped: a packet is incomplete; the batch is; a whole packet that is not a row; a packet out of sequence; a
row that does not have the columns' forms."""

MAX_PAYLOAD = (1 << 24) - 1


class Located(NamedTuple):
    """Values of some rows in `buffer`. offset, length: [column, row]; length -1: null."""

    buffer: Bytes
    offset: Longs
    length: Ints

    @property
    def rows(self) -> int:
        return int(self.offset.shape[1])


@kernel
def locate(located, head, tail, sequence, full_at, forms, count):
    """Locates the rows in located.buffer[head:tail] from index `count` on. Packets of one row are joined in place.

    full_at: the batch ends with the row that reaches it.
    Returns (where the next packet begins, its sequence number, how many rows are located, why it stopped).
    """
    buf, offset, length = located
    columns = forms.shape[0]
    bitmap = (columns + 9) >> 3
    while True:
        if count == offset.shape[1] or head >= full_at:
            return head, sequence, count, FULL
        if tail - head < 4:
            return head, sequence, count, MORE
        size = np.int64(buf[head]) | np.int64(buf[head + 1]) << 8 | np.int64(buf[head + 2]) << 16
        if np.int64(buf[head + 3]) != sequence:
            return head, sequence, count, DISORDER
        p = head + 4
        if tail - p < size:
            return head, sequence, count, MORE
        end = p + size
        after = end
        following = (sequence + 1) & 255
        if size == MAX_PAYLOAD:
            # All of the row's packets must be here before the first is moved.
            last = False
            at = end
            number = following
            while not last:
                if tail - at < 4:
                    return head, sequence, count, MORE
                n = np.int64(buf[at]) | np.int64(buf[at + 1]) << 8 | np.int64(buf[at + 2]) << 16
                if np.int64(buf[at + 3]) != number:
                    return head, sequence, count, DISORDER
                if tail - at - 4 < n:
                    return head, sequence, count, MORE
                last = n < MAX_PAYLOAD
                at += 4 + n
                number = (number + 1) & 255
            if buf[p] != 0:
                return head, sequence, count, OTHER
            at = end
            last = False
            while not last:
                n = np.int64(buf[at]) | np.int64(buf[at + 1]) << 8 | np.int64(buf[at + 2]) << 16
                for k in range(n):
                    buf[end + k] = buf[at + 4 + k]
                last = n < MAX_PAYLOAD
                end += n
                at += 4 + n
            after = at
            following = number
        if size == 0:
            return head, sequence, count, MALFORMED
        if buf[p] != 0:
            return head, sequence, count, OTHER
        nulls = p + 1
        p = nulls + bitmap
        if p > end:
            return head, sequence, count, MALFORMED
        for c in range(columns):
            offset[c, count] = p
            if buf[nulls + ((c + 2) >> 3)] >> np.uint8((c + 2) & 7) & np.uint8(1):
                length[c, count] = -1
                continue
            form = forms[c]
            n = np.int64(form)
            if form <= 0:
                if p >= end:
                    return head, sequence, count, MALFORMED
                n = np.int64(buf[p])
                p += 1
                if form == SIZED:
                    if n > 250:
                        width = 2 if n == 252 else 3 if n == 253 else 8 if n == 254 else 0
                        if width == 0 or end - p < width:
                            return head, sequence, count, MALFORMED
                        n = np.int64(0)
                        for k in range(width):
                            n |= np.int64(buf[p + k]) << (8 * k)
                        p += width
                elif form == MOMENT:
                    if n != 0 and n != 4 and n != 7 and n != 11:
                        return head, sequence, count, MALFORMED
                elif n != 0 and n != 8 and n != 12:
                    return head, sequence, count, MALFORMED
                offset[c, count] = p
            if n < 0 or n > end - p:
                return head, sequence, count, MALFORMED
            length[c, count] = n
            p += n
        if p != end:
            return head, sequence, count, MALFORMED
        count += 1
        head = after
        sequence = following
