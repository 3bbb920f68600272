"""An event that the protocol has split into several packets: its first bytes are in memory, the rest in a file."""

from __future__ import annotations

import tempfile
import weakref
import zlib

from cdc_core.binlog.event_headers import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    Event,
    Rest,
    parse_header,
    require_checksum,
    require_length,
)
from cdc_core.source.host import source_faults

_HELD_BYTES = 64 << 10
"""How much of the event is in memory."""


class LongEvent:
    """lacking: bytes of the current packet that have not arrived. goes_on: another packet follows."""

    def __init__(self) -> None:
        self.lacking = 0
        self.goes_on = True
        self.begin = b""
        self._size = 0
        with source_faults.scratch():
            self._file = tempfile.TemporaryFile(prefix="lockstep-")  # noqa: SIM115 - the event reads it
        weakref.finalize(self, self._file.close)

    def add(self, part: memoryview) -> None:
        self.lacking -= len(part)
        self._size += len(part)
        free = _HELD_BYTES - len(self.begin)
        if free > 0:
            self.begin += part[:free]
            part = part[free:]
        with source_faults.scratch():
            self._file.write(part)

    def event(self, *, checksum: bool, file: str, start: int) -> Event:
        """As event_headers.split_event."""
        where = f"{file}:{start}"
        header = parse_header(self.begin, where)
        require_length(header, self._size, where)
        rest, crc = self._rest(checksum), zlib.crc32(self.begin)
        while data := rest.read():
            crc = zlib.crc32(data, crc)
        if checksum:
            require_checksum(crc, self._file.read(), header, where)
        return Event(header, self.begin[HEADER_SIZE:], file, start, self._rest(checksum), crc)

    def _read(self, size: int) -> bytes:
        return self._file.read(size)

    def _rest(self, checksum: bool) -> Rest:
        self._file.seek(0)
        return Rest(self._read, self._size - len(self.begin) - CHECKSUM_SIZE * checksum)
