"""Framing: the bytes of a replication connection become events with their true places. No socket here.

It must keep true that no byte of the log is skipped: every event's place must follow from the one before, 64 bits wide
(a header's log_pos has 32 and wraps in a file above 4 GiB, and MariaDB leaves it 0 inside a transaction).
Packets (MySQL client/server protocol): length u24, number u8, payload; one of 2^24 - 1 bytes goes on in the next. A
payload is 0x00 and an event, 0xff and an error, or 0xfe and the end.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from cdc_core.binlog.events import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    Event,
    EventType,
    FormatDescription,
    Header,
    parse_format_description,
    parse_header,
    parse_rotate,
    split_event,
    type_name,
)
from cdc_core.errors import DataAtRisk, LockstepError
from cdc_core.model.position import FIRST_OFFSET, Position
from cdc_core.source import faults

MAX_DUMP_OFFSET = (1 << 32) - 1
"""COM_BINLOG_DUMP asks with 32 bits; behind that we read the file from its begin and pass over what comes before."""

_LONGEST_PACKET = (1 << 24) - 1
_START_ENCRYPTION_SIZE = 64
"""At least. MariaDB keeps this event of an encrypted file, behind FORMAT_DESCRIPTION, to itself."""
_HEARTBEATS = frozenset({EventType.HEARTBEAT, EventType.HEARTBEAT_V2})
_STEERING = _HEARTBEATS | {EventType.ROTATE, EventType.FORMAT_DESCRIPTION}
_HEADER = struct.Struct("<IBIIIH")
_SHORTEST = 1 + HEADER_SIZE + CHECKSUM_SIZE
_PACKET_HEAD = 4 + 1 + HEADER_SIZE


class Frames:
    """Events from `start` on, in order, each with its place in the log.

    file, offset: where the next event should begin; ask the server for the log from there.
    ended: the server has said that there is no more.
    """

    def __init__(self, start: Position, source: str, *, max_dump_offset: int = MAX_DUMP_OFFSET) -> None:
        self.file = start.file
        self.offset = start.offset if start.offset <= max_dump_offset else FIRST_OFFSET
        self.ended = False
        self._source = source
        self._wanted = start.offset
        self._format: FormatDescription | None = None
        self._after_format = False
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        self._failed: LockstepError | None = None

    @property
    def failed(self) -> bool:
        """An error waits to be raised by the next `take`."""
        return self._failed is not None

    @property
    def mariadb(self) -> bool:
        """Known once the first FORMAT_DESCRIPTION was read."""
        return self._format is not None and self._format.mariadb

    @property
    def where(self) -> str:
        return f"{self._source}, {self.file}:{self.offset}"

    def take(self, data: bytes) -> list[Event]:
        """The events that are complete with these bytes.

        Raises what the server's error says (see faults.dump_error); DataAtRisk (source.hole, source.protocol,
        source.bad_position, binlog.checksum, binlog.malformed).
        """
        if self._failed is not None:
            raise self._failed
        self._buffer += data
        found: list[Event] = []
        try:
            for payload in self._payloads():
                event = self._payload(payload)
                if event is not None:
                    found.append(event)
                if self.ended:
                    break
        except LockstepError as error:
            if not found:
                raise
            self._failed = error  # what came whole before it goes first
        return found

    def _payload(self, payload: bytes) -> Event | None:
        code = payload[0] if payload else -1
        if code == 0:
            return self._plain(payload)
        if code == 0xFF:
            # Number u16, '#' and five bytes of SQL state, text.
            text = payload[9:] if payload[3:4] == b"#" else payload[3:]
            number = int.from_bytes(payload[1:3], "little")
            raise faults.dump_error(number, text.decode("utf-8", "replace"), self.where)
        if code == 0xFE and len(payload) < 9:
            self.ended = True
            return None
        raise faults.protocol(f"a packet begins with byte {code}", self.where)

    def _payloads(self) -> Iterator[bytes]:
        """Whole packets: length u24, number u8, payload; one of 2^24 - 1 bytes goes on in the next."""
        buffer, at = self._buffer, 0
        try:
            while len(buffer) - at >= 4:
                size = int.from_bytes(buffer[at : at + 3], "little")
                if len(buffer) - at < 4 + size:
                    self._require_plausible(memoryview(buffer)[at : at + _PACKET_HEAD], size)
                    break
                part = bytes(memoryview(buffer)[at + 4 : at + 4 + size])
                at += 4 + size
                if size == _LONGEST_PACKET:
                    self._parts.append(part)
                elif self._parts:
                    payload = b"".join([*self._parts, part])
                    self._parts = []
                    yield payload
                else:
                    yield part
        finally:
            del buffer[:at]

    def _require_plausible(self, head: memoryview, size: int) -> None:
        """That a packet which is not whole yet is one: bytes bent on the way would make us wait for it for ever."""
        with head:
            if self._parts or size == _LONGEST_PACKET or len(head) < _PACKET_HEAD:
                return
            if head[4] != 0 or int.from_bytes(head[14:18], "little") == size - 1:
                return
        raise faults.protocol(f"a packet of {size} bytes holds an event of another length", self.where)

    def _plain(self, payload: bytes) -> Event | None:
        """An OK byte and an event. The short way for an ordinary event where all is as expected: it saves what
        parse_header and split_event cost, twenty times over for a one-row transaction. All else goes the long way."""
        known = self._format
        if known is None or self._wanted >= 0 or len(payload) < _SHORTEST:
            return self._event(payload[1:])
        timestamp, code, server_id, length, log_pos, flags = _HEADER.unpack_from(payload, 1)
        start = self.offset
        end = len(payload)
        if code in _STEERING or length != end - 1 or (log_pos and log_pos != (start + length) & 0xFFFFFFFF):
            return self._event(payload[1:])
        if known.checksum:
            end -= CHECKSUM_SIZE
            if zlib.crc32(memoryview(payload)[1:end]) != int.from_bytes(payload[end:], "little"):
                return self._event(payload[1:])
        self.offset = start + length
        self._after_format = False
        header = Header(timestamp, code, server_id, length, log_pos, flags)
        return Event(header, payload[1 + HEADER_SIZE : end], self.file, start)

    def _event(self, data: bytes) -> Event | None:
        """The event with its place; None for one without a place that only steers the stream."""
        header = parse_header(data, f"{self.file}:{self.offset}")
        code = header.type
        if code in _HEARTBEATS:
            return None
        if code == EventType.ROTATE and (header.artificial or header.log_pos == 0):
            return self._switch(data)
        if code == EventType.FORMAT_DESCRIPTION:
            takes_place = self.offset == FIRST_OFFSET
            event = split_event(data, checksum=False, file=self.file, start=self.offset if takes_place else -1)
            self._format = parse_format_description(event)
            self._after_format = True
            if not takes_place:
                return None
            self.offset += header.length
            return self._passed(event)
        if self._format is None:
            raise faults.protocol(f"{type_name(code)} comes before any FORMAT_DESCRIPTION", self.where)
        start = self._place(header.log_pos, header.length, code)
        event = split_event(data, checksum=self._format.checksum, file=self.file, start=start)
        self.offset = start + header.length
        self._after_format = False
        return self._passed(event)

    def _passed(self, event: Event) -> Event | None:
        """None for an event before the place that was asked, where the dump command could not begin."""
        if event.start >= self._wanted:
            if self._wanted >= 0 and event.start != self._wanted:
                raise DataAtRisk(
                    f"Offset {self._wanted} of {self.file} is not where an event begins.",
                    where=f"{self.file}:{self._wanted}",
                    code="source.bad_position",
                    remedy="give a position that SHOW BINLOG EVENTS prints for the begin of a transaction",
                )
            self._wanted = -1
            return event
        return None

    def _switch(self, data: bytes) -> Event | None:
        """The artificial ROTATE that names the file of what follows. Whether it has a checksum follows the file
        before it or the session, as servers differ: its own bytes tell."""
        end = len(data) - CHECKSUM_SIZE
        checked = end >= HEADER_SIZE and zlib.crc32(memoryview(data)[:end]) == int.from_bytes(data[end:], "little")
        event = split_event(data, checksum=checked)
        rotate = parse_rotate(event)
        if rotate.file == self.file:
            return None
        self.file = rotate.file
        self.offset = FIRST_OFFSET
        self._format = None
        self._wanted = -1
        return event

    def _place(self, log_pos: int, length: int, code: int) -> int:
        """Where the event starts. log_pos is the low half of where it ends; 0 where the server does not say."""
        if log_pos == 0:
            return self.offset
        gap = (log_pos - self.offset - length) & 0xFFFFFFFF
        if gap == 0:
            return self.offset
        if self.mariadb and self._after_format and gap <= _START_ENCRYPTION_SIZE:
            return self.offset + gap
        raise faults.hole(
            f"the next event should begin at {self.offset}, and {type_name(code)} of {length} bytes ends at {log_pos} "
            "(mod 2^32)",
            self.where,
        )
