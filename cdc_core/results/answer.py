"""The bytes of one statement's answer between the socket and the kernel that locates rows in them.

The only owner of offsets into the buffer. Its bytes are in this order: used | located rows | unframed | free. What the
rows of a batch refer to stays where it is until `next_batch`. A packet or a row that does not fit makes the buffer
grow, up to the largest that a server sends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc_core.mysql.connections import SafeConnection
from cdc_core.results import row_packets
from cdc_core.results.reading_faults import malformed
from cdc_core.results.row_packets import Located

_LEAST_FREE_BYTES = 256 << 10
_MAX_ROW_BYTES = (1 << 30) + (1 << 24)
"""A row is a packet of the server's, of at most max_allowed_packet: 1 GiB."""
_SPAN_BYTES = 12
"""The size of a value's place: offset and length."""


class Buffer:
    """Memory for one answer after the other: fresh memory costs page faults.

    rows, size_bytes: where a batch ends. columns: of the rows; their places take no more memory than the bytes may.
    """

    def __init__(self, columns: int, rows_: int, size_bytes: int) -> None:
        capacity = max(1, min(rows_, size_bytes // (_SPAN_BYTES * columns)))
        self.rows = rows_
        self.size_bytes = size_bytes
        self.data: row_packets.Bytes = np.empty(size_bytes + _LEAST_FREE_BYTES, np.uint8)
        self.offset: row_packets.Longs = np.empty((columns, capacity), np.int64)
        self.length: row_packets.Ints = np.empty((columns, capacity), np.int32)

    def located(self, rows: int | None = None) -> Located:
        """The places of its first rows; of as many as it has space for."""
        return Located(self.data, self.offset[:, :rows], self.length[:, :rows])

    @property
    def has_grown(self) -> bool:
        return len(self.data) > self.size_bytes + _LEAST_FREE_BYTES


class ResultAnswer:
    """The packets of one answer, the first of which has the sequence number 1.

    Raises RetryLater (connection.unreachable), and OperationalError as the connection does.
    """

    def __init__(self, connection: SafeConnection, buffer: Buffer, where: str) -> None:
        self._connection = connection
        self._buffer = buffer
        self._where = where
        self._head = self._tail = 0
        self._sequence = 1

    def continue_in(self, buffer: Buffer) -> None:
        """Continues in other memory, with what was received and not read."""
        left = self._buffer.data[self._head : self._tail]
        if len(left) > len(buffer.data):
            buffer.data = np.empty(2 * len(left), np.uint8)
        buffer.data[: len(left)] = left
        self._buffer, self._head, self._tail = buffer, 0, len(left)

    def packet(self) -> bytes:
        """The next packet that is not a row."""
        while True:
            data, left = self._buffer.data, self._tail - self._head
            if left >= 4:
                size = int.from_bytes(data[self._head : self._head + 3].tobytes(), "little")
                if data[self._head + 3] != self._sequence or size >= row_packets.MAX_PAYLOAD:
                    raise malformed(
                        f"a packet of {size} bytes where number {self._sequence} should be", where=self._where
                    )
                if left >= 4 + size:
                    found = data[self._head + 4 : self._head + 4 + size].tobytes()
                    self._head += 4 + size
                    self._sequence = (self._sequence + 1) & 255
                    return found
            self._make_space()
            self._receive()

    def next_batch(self, forms: npt.NDArray[np.int8]) -> tuple[Located, bool]:
        """The rows of the next batch, waiting for them; and whether a packet that is not a row follows.

        The rows are valid until the next call.
        """
        buffer = self._buffer
        if len(buffer.data) - self._tail < _LEAST_FREE_BYTES:
            self._make_space()
        begin, count, stopped = self._head, 0, row_packets.MORE
        while True:
            self._head, self._sequence, count, stopped = row_packets.locate(
                buffer.located(), self._head, self._tail, self._sequence, begin + buffer.size_bytes, forms, count
            )
            if stopped != row_packets.MORE:
                break
            if self._tail == len(buffer.data):
                if count:
                    break
                self._make_space()
                begin = self._head
            self._receive()
        if stopped == row_packets.DISORDER:
            raise malformed(f"a packet that is not number {self._sequence}", where=self._where)
        if stopped == row_packets.MALFORMED:
            raise malformed("a row that does not have the columns that were announced", where=self._where)
        return buffer.located(count), stopped == row_packets.OTHER

    @property
    def left_bytes(self) -> int:
        """Received and not read."""
        return self._tail - self._head

    def _make_space(self) -> None:
        """Moves what is unframed to the front; doubles a buffer of which that is half or more."""
        target, kept = self._buffer.data, self._tail - self._head
        if kept > _MAX_ROW_BYTES:
            raise malformed(f"a row of more than {_MAX_ROW_BYTES} bytes", where=self._where)
        if kept > len(target) // 2:
            target = np.empty(2 * len(target), np.uint8)
        elif not self._head:
            return
        target[:kept] = self._buffer.data[self._head : self._tail].copy()
        self._buffer.data = target
        self._head, self._tail = 0, kept

    def _receive(self) -> None:
        self._tail += self._connection.receive_into(self._buffer.data.data[self._tail :])
