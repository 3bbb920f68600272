"""Row events that MariaDB 12.3 and newer log in fragments, because they are too large for a replica's packets.

A PARTIAL_ROW_DATA event (MDEV-32570), offsets in the body:
  0 fragments in the group u32 | 4 number of this one, from 1, u32 | 8 flags u8 | if flags & 1, in the first one:
  size of the row event u64 | a chunk of the row event
The row event begins with its own header, and has no checksum.
"""

from __future__ import annotations

from cdc_core.binlog.event_headers import HEADER_SIZE, Event, parse_header, type_name
from cdc_core.binlog.wire import malformed

_HAS_SIZE = 1


class RowFragments:
    """The fragments of one row event, in the order of the log. It must keep true that what comes out is all that was
    cut up: every count and size that the log has is compared."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._count = 0
        self._size = 0

    def add(self, event: Event) -> Event | None:
        """The row event, at the place of its last fragment; None until that has come. Raises DataAtRisk
        (source.log_damaged)."""
        read = event.cursor()
        count, number, flags = read.uint(4), read.uint(4), read.u8()
        if not self._chunks:
            self._count = count
        if count != self._count or number != len(self._chunks) + 1 or number > count:
            raise malformed(
                f"fragment {number} of {count} of a row event comes after {len(self._chunks)} of {self._count}",
                event.where,
            )
        if bool(flags & _HAS_SIZE) != (number == 1):
            raise malformed(f"fragment {number} of a row event has the flags {flags:#x}", event.where)
        if number == 1:
            self._size = read.uint(8)
        self._chunks.append(read.rest())
        return self._joined(event) if number == count else None

    def _joined(self, last: Event) -> Event:
        data = b"".join(self._chunks)
        header = parse_header(data, last.where)
        if len(data) != self._size or header.length != self._size:
            raise malformed(
                f"{type_name(header.type)} in {self._count} fragments has {len(data)} bytes, says {header.length}, and "
                f"the first fragment says {self._size}",
                last.where,
            )
        return Event(header, data[HEADER_SIZE:], last.file, last.start)
