"""Framing: the bytes of a replication connection become events with their true places. No socket here.

It must keep true that no byte of the log is skipped: every event's place must follow from the one before, 64 bits wide
(a header's log_pos has 32 and wraps in a file above 4 GiB, and MariaDB leaves it 0 inside a transaction).
Packets (MySQL client/server protocol): length u24, number u8, payload; one of 2^24 - 1 bytes goes on in the next. A
payload is 0x00 and an event, 0xff and an error, or 0xfe and the end. An event that goes on waits in a temporary file.
"""

from __future__ import annotations

import struct
import tempfile
import weakref
import zlib

import numpy as np
import numpy.typing as npt

from cdc_core.binlog import framing
from cdc_core.binlog.events import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    LONG,
    Event,
    EventType,
    FormatDescription,
    Header,
    Rest,
    crc_of,
    folded,
    format_crc,
    parse_format_description,
    parse_header,
    parse_rotate,
    require_checksum,
    require_length,
    split_event,
    type_name,
)
from cdc_core.binlog.ordinary import Events
from cdc_core.errors import DataAtRisk, LockstepError
from cdc_core.model.position import FIRST_OFFSET, Fingerprint, Position, file_number
from cdc_core.source import faults

MAX_DUMP_OFFSET = (1 << 32) - 1
"""COM_BINLOG_DUMP asks with 32 bits; behind that we read the file from its begin and pass over what comes before."""

_LONGEST_PACKET = LONG
_BEGIN = 64 << 10
"""So much of a longer event is held in memory."""
_START_ENCRYPTION_SIZE = 64
"""At least. MariaDB keeps this event of an encrypted file, behind FORMAT_DESCRIPTION, to itself."""
_HEARTBEATS = frozenset({EventType.HEARTBEAT, EventType.HEARTBEAT_V2})
_HEADER = struct.Struct("<IBIIIH")
_PACKET_HEAD = 4 + 1 + HEADER_SIZE
_BUFFER = 8 << 20
_LEAST_ROOM = 1 << 20
_EVENTS = 1 << 16


class Ordinary:
    """Columns of the ordinary events that lie in the buffer, verified, from `first` up to `count`.

    at: where the header lies in the buffer. length: of the whole event. code: its type. start: its place in the file.
    stopped: why there are no more (framing.MORE, UNUSUAL, FULL). looked: nothing has changed since.
    """

    def __init__(self) -> None:
        self.at = np.empty(_EVENTS, np.int64)
        self.length = np.empty(_EVENTS, np.int64)
        self.code = np.empty(_EVENTS, np.uint8)
        self.start = np.empty(_EVENTS, np.int64)
        self.first = 0
        self.count = 0
        self.stopped = framing.MORE
        self.looked = False

    def __len__(self) -> int:
        return self.count - self.first

    def moved(self, down: int) -> None:
        """The bytes lie lower in the buffer by so much. Makes room for more events, too."""
        here, count = slice(self.first, self.count), len(self)
        self.at[:count] = self.at[here] - down
        for column in (self.length, self.code, self.start):
            column[:count] = column[here].copy()
        self.first, self.count, self.looked = 0, count, False


class _Long:
    """An event that the protocol has cut into packets: all but its begin waits in a file.

    lacking: bytes that are still to come of the packet that is coming. goes_on: another one follows.
    """

    def __init__(self) -> None:
        self.lacking = 0
        self.goes_on = True
        self.begin = b""
        self._size = 0
        with faults.scratch():
            self._file = tempfile.TemporaryFile(prefix="lockstep-")  # noqa: SIM115 - the event reads it
        weakref.finalize(self, self._file.close)

    def add(self, part: memoryview) -> None:
        self.lacking -= len(part)
        self._size += len(part)
        room = _BEGIN - len(self.begin)
        if room > 0:
            self.begin += part[:room]
            part = part[room:]
        with faults.scratch():
            self._file.write(part)

    def event(self, *, checksum: bool, file: str, start: int) -> Event:
        """As split_event."""
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


class Frames:
    """Events from `start` on, in order, each with its place in the log.

    file, offset: where the next event should begin; ask the server for the log from there.
    ended: the server has said that there is no more.
    known: of the log before `start`: then reading begins where its trace does, and what belongs to it is compared, not
           told. Another log raises DataAtRisk (source.history_changed).
    """

    def __init__(
        self,
        start: Position,
        source: str,
        *,
        known: Fingerprint | None = None,
        max_dump_offset: int = MAX_DUMP_OFFSET,
    ) -> None:
        self.file = start.file
        begin = start.offset
        if known is not None and known.traced:
            self.file, begin = known.file, known.begin
        elif known is not None and known.file != start.file:
            known = None
        self.offset = begin if begin <= max_dump_offset else FIRST_OFFSET
        self.ended = False
        self.ordinary = Ordinary()
        self._source = source
        self._start = start
        self._known = known
        self._crossing = self.file != start.file
        """What comes lies in the file before `start`."""
        self._trace_crc = 0
        self._kept: Event | None = None
        self._wanted = begin
        self._format: FormatDescription | None = None
        self._format_crc = 0
        self._after_format = False
        self._buffer = np.empty(_BUFFER, np.uint8)
        self._head = 0
        self._tail = 0
        self._long: _Long | None = None
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
    def checksum_size(self) -> int:
        """Bytes behind each event's body."""
        return CHECKSUM_SIZE if self._format is not None and self._format.checksum else 0

    @property
    def format_crc(self) -> int:
        """Of the file's FORMAT_DESCRIPTION (binlog.events.format_crc); 0 before it came."""
        return self._format_crc

    @property
    def proven(self) -> bool:
        """The log is the one that `known` was taken of, or nothing is known of it."""
        return self._known is None

    @property
    def where(self) -> str:
        return f"{self._source}, {self.file}:{self.offset}"

    # Bytes in

    def room(self) -> memoryview:
        """Where to receive the next bytes; say with `came` how many did. Views of `ordinary` end here."""
        begin = int(self.ordinary.at[self.ordinary.first]) - 5 if self.ordinary else self._head
        kept = self._tail - begin
        if len(self._buffer) - self._tail < _LEAST_ROOM:
            grown = self._buffer
            if kept + _LEAST_ROOM > len(grown) // 2:
                grown = np.empty(2 * len(grown), np.uint8)
            grown[:kept] = self._buffer[begin : self._tail].copy()
            self._buffer = grown
            self.ordinary.moved(begin)
            self._head -= begin
            self._tail = kept
        return self._buffer.data[self._tail :]

    def came(self, size: int) -> None:
        self._tail += size
        self.ordinary.looked = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes received and not told yet."""
        return self._tail - (int(self.ordinary.at[self.ordinary.first]) if self.ordinary else self._head)

    def prove(self) -> bool:
        """Whether it is proven, with what has come so far. What comes first behind it is kept for `next`."""
        while not self.proven and not self.ended:
            payload = self._payload()
            if payload is None:
                break
            self._kept = self._unusual(payload)
        return self.proven

    # Events out

    def take(self, data: bytes) -> list[Event]:
        """The events that are complete with these bytes.

        Raises what the server's error says (see faults.dump_error); DataAtRisk (source.hole, source.protocol,
        source.bad_position, binlog.checksum, binlog.malformed).
        """
        if self._failed is not None:
            raise self._failed
        while data:
            room = self.room()
            part, data = data[: len(room)], data[len(room) :]
            room[: len(part)] = part
            self.came(len(part))
        found: list[Event] = []
        try:
            while (event := self.next()) is not None:
                found.append(event)
        except LockstepError as error:
            if not found:
                raise
            self._failed = error  # what came whole before it goes first
        return found

    def next(self) -> Event | None:
        """The next event; None when it is not whole yet, or the stream has ended. Raises as `take` does."""
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        while not self.ended:
            if self.look():
                return self._told()
            payload = self._payload()
            if payload is None:
                return None
            event = self._unusual(payload)
            if event is not None:
                return event
        return None

    def look(self) -> int:
        """How many ordinary events lie in the buffer, verified, before what only `next` can judge."""
        ordinary, known = self.ordinary, self._format
        if ordinary.looked and (ordinary or ordinary.stopped != framing.FULL):
            return len(ordinary)
        if known is None or self._wanted >= 0 or self._long is not None or self._kept is not None:
            return 0
        if self._known is not None or self._crossing:
            return 0
        if ordinary.first and (not ordinary or ordinary.stopped == framing.FULL):
            ordinary.moved(0)
        before = ordinary.count
        self._head, ordinary.count, self.offset, ordinary.stopped = framing.frame(
            self._buffer, self._head, self._tail, self.offset, known.checksum, framing.CRC_TABLES, ordinary.at,
            ordinary.length, ordinary.code, ordinary.start, before,
        )  # fmt: skip
        ordinary.looked = True
        if ordinary.count > before:
            self._after_format = False
        return len(ordinary)

    @property
    def verified(self) -> Events:
        """The ordinary events, as the compiled walk reads them."""
        found = self.ordinary
        return Events(
            self._buffer, found.at, found.length, found.code, found.start, found.first, found.count, self.checksum_size
        )

    @property
    def buffer(self) -> npt.NDArray[np.uint8]:
        """In which `ordinary.at` counts."""
        return self._buffer

    def _told(self) -> Event:
        ordinary = self.ordinary
        k = ordinary.first
        ordinary.first += 1
        at = int(ordinary.at[k])
        length = int(ordinary.length[k])
        header = Header(*_HEADER.unpack_from(self._buffer.data, at))
        end = at + length - self.checksum_size
        body = self._buffer[at + HEADER_SIZE : end].tobytes()
        crc = int.from_bytes(self._buffer[end : at + length].tobytes(), "little") if self.checksum_size else None
        return Event(header, body, self.file, int(ordinary.start[k]), crc=crc)

    def _payload(self) -> bytes | _Long | None:
        """The next packet, or packets where the protocol has split it; None when it is not whole yet."""
        while True:
            long = self._long
            if long is not None and (long.lacking or not long.goes_on):
                part = self._buffer[self._head : min(self._tail, self._head + long.lacking)]
                self._head += len(part)
                long.add(part.data)
                if long.lacking:
                    return None
                if not long.goes_on:
                    self._long = None
                    return long
            head, came = self._head, self._tail - self._head
            if came < 4:
                return None
            size = int.from_bytes(self._buffer[head : head + 3].tobytes(), "little")
            if long is None and size < _LONGEST_PACKET:
                if came < 4 + size:
                    self._require_plausible(size)
                    return None
                self._head += 4 + size
                return self._buffer[head + 4 : head + 4 + size].tobytes()
            begins = long is None
            if begins and came < 5:
                return None
            if begins and self._buffer[head + 4]:
                raise self._no_event(int(self._buffer[head + 4]))
            self._head += 4 + begins
            self._long = long = long or _Long()
            long.lacking, long.goes_on = size - begins, size == _LONGEST_PACKET

    def _unusual(self, payload: bytes | _Long) -> Event | None:
        self.ordinary.looked = False
        if isinstance(payload, _Long):
            return self._event(payload.begin, payload)
        code = payload[0] if payload else -1
        if code == 0:
            return self._event(payload[1:])
        if code == 0xFF:
            # Number u16, '#' and five bytes of SQL state, text.
            text = payload[9:] if payload[3:4] == b"#" else payload[3:]
            number = int.from_bytes(payload[1:3], "little")
            raise faults.dump_error(number, text.decode("utf-8", "replace"), self.where)
        if code == 0xFE and len(payload) < 9:
            self.ended = True
            return None
        raise self._no_event(code)

    def _no_event(self, code: int) -> LockstepError:
        return faults.protocol(f"a packet begins with byte {code}", self.where)

    def _require_plausible(self, size: int) -> None:
        """That a packet which is not whole yet is one: bytes bent on the way would make us wait for it for ever."""
        head = self._buffer[self._head : min(self._tail, self._head + _PACKET_HEAD)].tobytes()
        if len(head) < _PACKET_HEAD:
            return
        if head[4] != 0 or int.from_bytes(head[14:18], "little") == size - 1:
            return
        raise faults.protocol(f"a packet of {size} bytes holds an event of another length", self.where)

    def _event(self, data: bytes, long: _Long | None = None) -> Event | None:
        """The event with its place; None for one without a place that only steers the stream. data: of a long one its
        begin."""
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
            self._compare_format()
            if not takes_place:
                return None
            self.offset += header.length
            return self._passed(event)
        if self._format is None:
            raise faults.protocol(f"{type_name(code)} comes before any FORMAT_DESCRIPTION", self.where)
        start = self._place(header.log_pos, header.length, code)
        if long is not None:
            event = long.event(checksum=self._format.checksum, file=self.file, start=start)
        else:
            event = split_event(data, checksum=self._format.checksum, file=self.file, start=start)
        self.offset = start + header.length
        self._after_format = False
        return self._passed(event)

    def _passed(self, event: Event) -> Event | None:
        """None for an event of the trace, and for one before the place that was asked, where no dump could begin."""
        if event.start >= self._wanted:
            if self._wanted >= 0 and event.start != self._wanted:
                raise DataAtRisk(
                    f"Offset {self._wanted} of {self.file} is not where an event begins.",
                    where=f"{self.file}:{self._wanted}",
                    code="source.bad_position",
                    remedy="give a position that SHOW BINLOG EVENTS prints for the begin of a transaction",
                )
            self._wanted = -1
            if self._known is not None:
                self._compare(event)
            elif self._crossing:
                raise faults.history_changed(f"{self.file} goes on behind its end", self._place_known)
            else:
                return event
        return None

    def _compare_format(self) -> None:
        known = self._known
        if known is None or known.file != self.file:
            return
        if known.format_crc != self._format_crc:
            raise faults.history_changed(f"{self.file} is another file than the one that was read", self._place_known)
        if not known.traced:
            self._known = None

    def _compare(self, event: Event) -> None:
        """An event of the trace. The last one proves the log: what comes next is told."""
        known = self._known
        assert known is not None
        self._trace_crc = folded(self._trace_crc, crc_of(event))
        end = event.start + event.header.length
        if end < known.end:
            return
        if end > known.end or self._trace_crc != known.crc:
            raise faults.history_changed(
                f"the events of {known.file} from {known.begin} to {known.end} are not those that were read",
                self._place_known,
            )
        self._known = None
        if known.file == self._start.file:
            self._wanted = self._start.offset

    @property
    def _place_known(self) -> str:
        return f"{self._source}, {self._start}"

    def _switch(self, data: bytes) -> Event | None:
        """The artificial ROTATE that names the file of what follows. Whether it has a checksum follows the file
        before it or the session, as servers differ: its own bytes tell."""
        end = len(data) - CHECKSUM_SIZE
        checked = end >= HEADER_SIZE and zlib.crc32(memoryview(data)[:end]) == int.from_bytes(data[end:], "little")
        event = split_event(data, checksum=checked)
        rotate = parse_rotate(event)
        if rotate.file == self.file:
            return None
        backwards = file_number(rotate.file) < file_number(self.file)
        if self._known is not None or backwards or (self._crossing and rotate.file != self._start.file):
            raise faults.history_changed(f"behind {self.where} the log goes on in {rotate.file}", self._place_known)
        self._crossing = False
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
        if self.mariadb and self._after_format and gap <= _START_ENCRYPTION_SIZE:
            return self.offset + gap
        raise faults.hole(
            f"the next event should begin at {self.offset}, and {type_name(code)} of {length} bytes ends at {log_pos} "
            "(mod 2^32)",
            self.where,
        )
