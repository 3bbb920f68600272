"""Framing: the bytes of a replication connection become events with their true positions. No I/O here.

No byte of the log may be skipped: every event's position must follow from the one before, 64 bits wide (a header's
log_pos has 32 and wraps in a file above 4 GiB, and MariaDB leaves it 0 inside a transaction).
Packets (MySQL client/server protocol): length u24, number u8, payload; one of 2^24 - 1 bytes continues in the next. A
payload is 0x00 and an event, 0xff and an error, or 0xfe and the end.
A kernel frames the ordinary events in the receive buffer; the framer itself judges what the kernel stops at.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

from cdc_core.binlog import framing
from cdc_core.binlog.event_headers import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    LONG,
    Event,
    EventType,
    FormatDescription,
    Header,
    format_crc,
    parse_format_description,
    parse_header,
    parse_rotate,
    split_event,
    type_name,
)
from cdc_core.errors import LockstepError, NoEventHere
from cdc_core.model.position import FIRST_OFFSET, Fingerprint, Position
from cdc_core.source.host import source_faults
from cdc_core.source.wire.log_proof import LogProof
from cdc_core.source.wire.long_event import LongEvent

MAX_DUMP_OFFSET = (1 << 32) - 1
"""COM_BINLOG_DUMP takes a 32-bit offset; for a later position we read the file from its start and skip the events
before it."""

_LONGEST_PACKET = LONG
_START_ENCRYPTION_SIZE = 64
"""At least. Not every MariaDB sends this event of an encrypted file, which comes after FORMAT_DESCRIPTION."""
_HEARTBEATS = frozenset({EventType.HEARTBEAT, EventType.HEARTBEAT_V2})
_BEGIN = np.frombuffer(b"\0BEGIN", np.uint8)
"""The end of a QUERY that only begins a transaction: the database's NUL, and the statement."""
_HEADER = struct.Struct("<IBIIIH")
_PACKET_HEAD = 4 + 1 + HEADER_SIZE


class EventFramer:
    """Events from `start` on, in order, each with its position in the log.

    buffer: receive into it.
    file, offset: where the next event should begin; ask the server for the log from there.
    ended: the server has ended the stream.
    known: of the log before `start` (source.log_proof). Another log raises DataAtRisk (source.other_log).
    """

    def __init__(
        self,
        start: Position,
        source: str,
        *,
        known: Fingerprint | None = None,
        max_dump_offset: int = MAX_DUMP_OFFSET,
    ) -> None:
        self.buffer = framing.ReceiveBuffer()
        self.ended = False
        self._source = source
        self._proof = LogProof(start, source, known)
        self.file = self._proof.file
        self.offset = self._proof.offset if self._proof.offset <= max_dump_offset else FIRST_OFFSET
        self._wanted = self._proof.offset
        """Events before it are skipped; -1 once it was reached."""
        self._kept: Event | None = None
        self._format: FormatDescription | None = None
        self._format_crc = 0
        self._after_format = False
        self._repeats_head = False
        """A dump that begins inside a file sends the file's first events too: FORMAT_DESCRIPTION and, in an encrypted
        file of MariaDB, START_ENCRYPTION. They have no position there."""
        self._long: LongEvent | None = None

    @property
    def checksum_size(self) -> int:
        """Bytes after each event's body."""
        return CHECKSUM_SIZE if self._format is not None and self._format.checksum else 0

    @property
    def format_crc(self) -> int:
        """The CRC of the file's FORMAT_DESCRIPTION (event_headers.format_crc); 0 before it came."""
        return self._format_crc

    @property
    def proven(self) -> bool:
        """The log is the known one, or nothing is known of it."""
        return self._proof.proven

    @property
    def where(self) -> str:
        return f"{self._source}, {self.file}:{self.offset}"

    def prove(self) -> bool:
        """Whether the log is proven, with what has come so far. The first event after the proof is kept for
        `next_event`."""
        while not self.proven and not self.ended:
            payload = self._payload()
            if payload is None:
                break
            self._kept = self._unusual(payload)
        return self.proven

    # Ordinary events, in the buffer

    def ordinary(self) -> int:
        """How many ordinary events are framed and verified, before what only `next_event` can judge."""
        description = self._format
        # The kernel must know whether events carry checksums, and has no place to stop at one before the start.
        if description is None or self._wanted >= 0:
            return 0
        # What was begun or read already comes first: packets of a long event, the event after the proof.
        if self._long is not None or self._kept is not None:
            return 0
        # Until the log is proven, events are compared with what was read before, one by one.
        if not self.proven or self._proof.crossing:
            return 0
        before = self.offset
        self.offset = self.buffer.frame(before, self.checksum_size)
        if self.offset > before:
            self._after_format = self._repeats_head = False
        return len(self.buffer)

    @property
    def framed(self) -> framing.FramedEvents:
        """The ordinary events, as the kernels read them."""
        return self.buffer.events(self.checksum_size)

    @property
    def incomplete(self) -> bool:
        """Framing stopped at an event of which more bytes have to come."""
        return self.buffer.stopped == framing.MORE

    # One event

    def events(self) -> Iterator[Event]:
        """The events that are complete with the bytes in the buffer. Raises as `next_event`."""
        while (event := self.next_event()) is not None:
            yield event

    def statements(self) -> Iterator[Event]:
        """Like `events`, without most that hold no statement and without those that only begin a transaction.

        They are verified like any other, but cost little: this is for reading ahead through a long log.
        """
        while True:
            while self.ordinary():
                yield from self._framed_statements()
            event = self.next_event()
            if event is None:
                return
            yield event

    def next_event(self) -> Event | None:
        """The next event; None when it is not complete yet, or the stream has ended.

        Raises what the server's error says (see source_faults.dump_error); DataAtRisk (source.log_damaged,
        source.bad_position, source.other_log).
        """
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        while not self.ended:
            if self.ordinary():
                return self._framed()
            payload = self._payload()
            if payload is None:
                return None
            event = self._unusual(payload)
            if event is not None:
                return event
        return None

    def _framed_statements(self) -> list[Event]:
        """The framed events that have a statement other than BEGIN; drops all framed events."""
        events = self.framed
        these = slice(events.first, events.stop)
        code, length, end = events.code[these], events.length[these], events.at[these] + events.length[these]
        end = end - events.checksum_size
        numbers = np.flatnonzero((code == EventType.QUERY) | (code == EventType.MARIADB_QUERY_COMPRESSED))
        last = events.buffer[end[numbers, None] + np.arange(-len(_BEGIN), 0)]
        begins = (last == _BEGIN).all(axis=1) & (code[numbers] == EventType.QUERY)
        begins &= length[numbers] >= HEADER_SIZE + len(_BEGIN) + events.checksum_size
        framed = [self._framed_event(events, events.first + number) for number in numbers[~begins].tolist()]
        self.buffer.consume(len(code))
        return framed

    def _framed(self) -> Event:
        """The first of the framed events."""
        events = self.framed
        event = self._framed_event(events, events.first)
        self.buffer.consume(1)
        return event

    def _framed_event(self, events: framing.FramedEvents, k: int) -> Event:
        buffer = events.buffer
        at, end = int(events.at[k]), int(events.at[k] + events.length[k])
        header = Header(*_HEADER.unpack_from(buffer.data, at))
        body_end = end - events.checksum_size
        body = buffer[at + HEADER_SIZE : body_end].tobytes()
        crc = int.from_bytes(buffer[body_end:end].tobytes(), "little") if events.checksum_size else None
        return Event(header, body, self.file, int(events.start[k]), crc=crc)

    def _payload(self) -> bytes | LongEvent | None:
        """The next packet, or packets where the protocol has split it; None when it is not complete yet."""
        buffer = self.buffer
        while True:
            long = self._long
            if long is not None and (long.lacking or not long.goes_on):
                long.add(buffer.read(long.lacking))
                if long.lacking:
                    return None
                if not long.goes_on:
                    self._long = None
                    return long
            head = buffer.peek(5)
            if len(head) < 4:
                return None
            size = int.from_bytes(head[:3], "little")
            if long is None and size < _LONGEST_PACKET:
                if buffer.unframed_bytes < 4 + size:
                    self._require_plausible(size)
                    return None
                return bytes(buffer.read(4 + size)[4:])
            begins = long is None
            if begins and len(head) < 5:
                return None
            if begins and head[4]:
                raise self._no_event(head[4])
            buffer.read(4 + begins)
            self._long = long = long or LongEvent()
            long.lacking, long.goes_on = size - begins, size == _LONGEST_PACKET

    def _unusual(self, payload: bytes | LongEvent) -> Event | None:
        if isinstance(payload, LongEvent):
            return self._event(payload.begin, payload)
        code = payload[0] if payload else -1
        if code == 0:
            return self._event(payload[1:])
        if code == 0xFF:
            # Number u16, '#' and five bytes of SQL state, text.
            text = payload[9:] if payload[3:4] == b"#" else payload[3:]
            number = int.from_bytes(payload[1:3], "little")
            raise source_faults.dump_error(number, text.decode("utf-8", "replace"), self.where)
        if code == 0xFE and len(payload) < 9:
            self.ended = True
            return None
        raise self._no_event(code)

    def _no_event(self, code: int) -> LockstepError:
        return source_faults.protocol(f"a packet begins with byte {code}", self.where)

    def _require_plausible(self, size: int) -> None:
        """Rejects a packet that cannot be one: with a damaged length we would wait for its end forever."""
        head = self.buffer.peek(_PACKET_HEAD)
        if len(head) < _PACKET_HEAD:
            return
        if head[4] != 0 or int.from_bytes(head[14:18], "little") == size - 1:
            return
        raise source_faults.protocol(f"a packet of {size} bytes contains an event of another length", self.where)

    def _event(self, data: bytes, long: LongEvent | None = None) -> Event | None:
        """The event with its position; None for one without a position that only steers the stream. data: for a long
        event, its first bytes."""
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
            self._format_crc = format_crc(event)
            self._after_format = True
            self._proof.compare_format(self.file, self._format_crc)
            self._repeats_head = not takes_place
            if not takes_place:
                return None
            self.offset += header.length
            return self._passed(event)
        if self._format is None:
            raise source_faults.protocol(f"{type_name(code)} comes before any FORMAT_DESCRIPTION", self.where)
        if code == EventType.MARIADB_START_ENCRYPTION and header.log_pos == 0 and self._repeats_head:
            return None
        start = self._place(header.log_pos, header.length, code)
        if long is not None:
            event = long.event(checksum=self._format.checksum, file=self.file, start=start)
        else:
            event = split_event(data, checksum=self._format.checksum, file=self.file, start=start)
        self.offset = start + header.length
        self._after_format = self._repeats_head = False
        return self._passed(event)

    def _passed(self, event: Event) -> Event | None:
        """None for an event of the trace, and for one before the position asked for, where no dump could begin."""
        if event.start >= self._wanted:
            if self._wanted >= 0 and event.start != self._wanted:
                raise NoEventHere(
                    f"No event begins at offset {self._wanted} of {self.file}.",
                    where=f"{self.file}:{self._wanted}",
                    remedy="give a position that SHOW BINLOG EVENTS prints for the start of a transaction",
                )
            self._wanted = -1
            if self.proven:
                self._proof.require_end(self.file)
                return event
            self._wanted = self._proof.compare(event)
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
        self._proof.switch(self.where, self.file, rotate.file)
        self.file = rotate.file
        self.offset = FIRST_OFFSET
        self._format = None
        self._format_crc = 0
        self._wanted = -1
        return event

    def _place(self, log_pos: int, length: int, code: int) -> int:
        """Where the event starts. log_pos is the low half of where it ends; 0 where the server does not say."""
        if log_pos == 0:
            return self.offset
        gap = (log_pos - self.offset - length) & 0xFFFFFFFF
        if gap == 0:
            return self.offset
        mariadb = self._format is not None and self._format.mariadb
        if mariadb and self._after_format and gap <= _START_ENCRYPTION_SIZE:
            return self.offset + gap
        raise source_faults.hole(
            f"the next event should begin at {self.offset}, and {type_name(code)} of {length} bytes ends at {log_pos} "
            "(mod 2^32)",
            self.where,
        )
