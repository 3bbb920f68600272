"""The unconsumed bytes of a replication connection, and the events framed in them.

This is the only owner of offsets into the bytes. Receive into `get_buffer()`, then call `buffer_updated(size)`, as with
asyncio.BufferedProtocol. The bytes are in this order: used | framed events, `len(self)` of them | unframed | free.
`get_buffer` may move what is still needed to the front, so arrays of `events` are valid until its next call.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc_core.binlog import framing
from cdc_core.binlog.ordinary import OrdinaryEvents

_INITIAL_BYTES = 8 << 20
_LEAST_FREE_BYTES = 1 << 20
_EVENTS = 1 << 16
_PACKET_HEAD = 5
"""Bytes of a framed packet before its event: length, number, OK."""


class ReceiveBuffer:
    """stopped: why framing stopped (framing.MORE, UNUSUAL, FULL)."""

    def __init__(self) -> None:
        self.data: npt.NDArray[np.uint8] = np.empty(_INITIAL_BYTES, np.uint8)
        self.stopped = framing.MORE
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

    def frame(self, offset: int, *, checked: bool) -> int:
        """Frames ordinary events, the first of which should begin at `offset` of its file; returns the offset after the
        last.

        checked: events carry checksums.
        """
        if self._settled and (len(self) or self.stopped != framing.FULL):
            return offset
        if self._first and (not len(self) or self.stopped == framing.FULL):
            self._move(0)
        self._head, self._count, offset, self.stopped = framing.frame(
            self.data, self._head, self._tail, offset, checked, framing.CRC_TABLES, self._at, self._length, self._code,
            self._start, self._count,
        )  # fmt: skip
        self._settled = True
        return offset

    def events(self, checksum_size: int) -> OrdinaryEvents:
        """The framed events, as the kernels read them."""
        return OrdinaryEvents(
            self.data, self._at, self._length, self._code, self._start, self._first, self._count, checksum_size
        )

    def consume(self, count: int) -> None:
        """Drops the first `count` framed events."""
        assert 0 <= count <= len(self)
        self._first += count

    def make_space(self) -> bool:
        """Whether more events can be framed now: the columns were full, and some of them were consumed."""
        full = self.stopped == framing.FULL and self._first > 0
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
