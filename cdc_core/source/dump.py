"""The wire: a replication connection that mysql-replication opens, read as raw events with their true offsets.

mysql-replication does the handshake, checksum and heartbeat negotiation, registration and the dump command; from
there on the socket is ours. It must keep true that no byte of the log is skipped: every event's place must follow
from the one before, 64 bits wide (a header's log_pos has 32 and wraps in a file above 4 GiB, and MariaDB leaves it 0
inside a transaction). So MariaDB is asked for its ANNOTATE_ROWS events too, which it would leave out in silence.
"""

from __future__ import annotations

import logging
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.exceptions import BinLogNotEnabled

from cdc_core import connections
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
)
from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater
from cdc_core.model.position import FIRST_OFFSET, Position
from cdc_core.source.facts import DENIED, log_off

log = logging.getLogger(__name__)

MAX_DUMP_OFFSET = (1 << 32) - 1
"""COM_BINLOG_DUMP asks with 32 bits; behind that we read the file from its begin and pass over what comes before."""

_CHUNK = 1 << 20
_LONGEST_PACKET = (1 << 24) - 1
_START_ENCRYPTION_SIZE = 64
"""At least. MariaDB keeps this event of an encrypted file, behind FORMAT_DESCRIPTION, to itself."""
_COM_BINLOG_DUMP = 0x12
_SEND_ANNOTATE_ROWS = 0x02
_HEARTBEATS = frozenset({EventType.HEARTBEAT, EventType.HEARTBEAT_V2})
_STEERING = _HEARTBEATS | {EventType.ROTATE, EventType.FORMAT_DESCRIPTION}
_HEADER = struct.Struct("<IBIIIH")
_SHORTEST = 1 + HEADER_SIZE + CHECKSUM_SIZE
# A reader that waits for the ring must not be dropped by the server, which gives up after net_write_timeout.
_SESSION = (
    "SET time_zone = '+00:00', net_write_timeout = 3600, @master_binlog_checksum = 'CRC32', "
    "@source_binlog_checksum = 'CRC32', @source_heartbeat_period = {heartbeat_ns}"
)


class EndOfLog(Exception):
    """All that the server has was read; only a reader that does not wait meets it."""


class LogReader:
    """Events from `start` on, in order, each with its place in the log.

    server_id: ours as a replica: the server ends an older stream of the same id. 0: a passing look at the log, which
               ends no other, and for which `events` raises EndOfLog at the end of the log instead of waiting there.
    host:      the name under which this replica registers itself; "" not to register.
    Raises while opening: Refused (connection.denied, source.missing_grant, source.log_off), RetryLater
    (connection.unreachable, source.connection_lost).
    """

    def __init__(
        self,
        server: connections.Server,
        start: Position,
        *,
        source: str,
        server_id: int = 0,
        heartbeat_s: float = 5.0,
        read_timeout_s: float = 30.0,
        host: str = "",
        max_dump_offset: int = MAX_DUMP_OFFSET,
    ) -> None:
        self._source = source
        self._read_timeout_s = read_timeout_s
        self._file = start.file
        self._wanted = start.offset
        self._offset = start.offset if start.offset <= max_dump_offset else FIRST_OFFSET
        self._format: FormatDescription | None = None
        self._after_format = False
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        self._silent_s = 0.0
        self._ended = False
        self._connection = self._open(server, server_id, heartbeat_s, host)
        self._socket: Any = self._connection._sock  # type: ignore[attr-defined]

    def _open(self, server: connections.Server, server_id: int, heartbeat_s: float, host: str) -> pymysql.Connection:
        session = _SESSION.format(heartbeat_ns=int(heartbeat_s * 1e9))
        opened: list[pymysql.Connection] = []

        def connect(**_: object) -> pymysql.Connection:
            connection = connections.connect(
                server, where=self._source, init_command=session, read_timeout=self._read_timeout_s
            )
            opened.append(connection)
            version = str(connection.get_server_info())  # type: ignore[no-untyped-call]
            if "mariadb" in version.lower():
                _ask_for_annotations(connection)
            return connection

        reader = BinLogStreamReader(
            connection_settings={"read_timeout": self._read_timeout_s},
            server_id=server_id,
            blocking=server_id != 0,
            resume_stream=True,
            log_file=self._file,
            log_pos=self._offset,
            slave_heartbeat=heartbeat_s,
            report_slave=host or None,
            # Never is_mariadb: it would ignore file and position. The plain dump command serves both flavors.
            is_mariadb=False,
            pymysql_wrapper=connect,
            enable_logging=False,
        )
        try:
            # fetchone would open it too, and read, decode and drop events: we take the connection as it is opened.
            reader._BinLogStreamReader__connect_to_stream()
        except BinLogNotEnabled:
            raise log_off() from None
        except (pymysql.err.MySQLError, OSError) as error:
            for connection in opened:
                connection._force_close()  # type: ignore[attr-defined]
            raise self._explained(error) from None
        return opened[-1]

    def close(self) -> None:
        """Ends the stream; the server notices at its next write."""
        with suppress(OSError, pymysql.err.MySQLError):
            self._connection._force_close()  # type: ignore[attr-defined]

    @property
    def mariadb(self) -> bool:
        """Known once the first FORMAT_DESCRIPTION was read."""
        return self._format is not None and self._format.mariadb

    def events(self, wait_s: float) -> list[Event]:
        """What has come, waiting at most `wait_s` for the first byte; [] when nothing did.

        Raises EndOfLog; RetryLater (source.connection_lost) when neither event nor heartbeat came for the read
        timeout or the connection ended; DataAtRisk when the server says so, or the log has a hole or an unknown
        event type.
        """
        if self._ended:
            raise EndOfLog
        self._fill(wait_s)
        found: list[Event] = []
        for payload in self._payloads():
            code = payload[0]
            if code == 0:
                event = self._plain(payload)
                if event is not None:
                    found.append(event)
            elif code == 0xFF:
                raise self._refused(payload)
            elif code == 0xFE and len(payload) < 9:
                self._ended = True
                if not found:
                    raise EndOfLog
                break
            else:
                raise self._broken(f"a packet that begins with byte {code}")
        return found

    def _fill(self, wait_s: float) -> None:
        started_s = time.monotonic()
        self._socket.settimeout(max(wait_s, 0.001))
        try:
            data = self._socket.recv(_CHUNK)
        except TimeoutError:
            self._silent_s += time.monotonic() - started_s
            if self._silent_s >= self._read_timeout_s:
                raise self._lost(f"neither event nor heartbeat for {self._silent_s:.0f} s") from None
            return
        except OSError as error:
            raise self._lost(str(error)) from None
        if not data:
            raise self._lost("the server closed it")
        self._silent_s = 0.0
        self._buffer += data

    def _payloads(self) -> Iterator[bytes]:
        """Whole packets: length u24, number u8, payload; one of 2^24 - 1 bytes goes on in the next."""
        buffer, at = self._buffer, 0
        try:
            while len(buffer) - at >= 4:
                size = int.from_bytes(buffer[at : at + 3], "little")
                if len(buffer) - at < 4 + size:
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

    def _plain(self, payload: bytes) -> Event | None:
        """An OK byte and an event. The short way for an ordinary event where all is as expected: it saves what
        parse_header and split_event cost, twenty times over for a one-row transaction. All else goes the long way."""
        known = self._format
        if known is None or self._wanted >= 0 or len(payload) < _SHORTEST:
            return self._event(payload[1:])
        timestamp, code, server_id, length, log_pos, flags = _HEADER.unpack_from(payload, 1)
        start = self._offset
        end = len(payload)
        if code in _STEERING or length != end - 1 or (log_pos and log_pos != (start + length) & 0xFFFFFFFF):
            return self._event(payload[1:])
        if known.checksum:
            end -= CHECKSUM_SIZE
            if zlib.crc32(memoryview(payload)[1:end]) != int.from_bytes(payload[end:], "little"):
                return self._event(payload[1:])
        self._offset = start + length
        self._after_format = False
        header = Header(timestamp, code, server_id, length, log_pos, flags)
        return Event(header, payload[1 + HEADER_SIZE : end], self._file, start)

    def _event(self, data: bytes) -> Event | None:
        """The event with its place; None for one without a place that only steers the stream."""
        header = parse_header(data, f"{self._file}:{self._offset}")
        code = header.type
        if code in _HEARTBEATS:
            return None
        if code == EventType.ROTATE and (header.artificial or header.log_pos == 0):
            return self._switch(data)
        if code == EventType.FORMAT_DESCRIPTION:
            takes_place = self._offset == FIRST_OFFSET
            event = split_event(data, checksum=False, file=self._file, start=self._offset if takes_place else -1)
            self._format = parse_format_description(event)
            self._after_format = True
            if not takes_place:
                return None
            self._offset += header.length
            return self._passed(event)
        if self._format is None:
            raise self._broken(f"{EventType(code).name} before any FORMAT_DESCRIPTION")
        start = self._place(header.log_pos, header.length, code)
        event = split_event(data, checksum=self._format.checksum, file=self._file, start=start)
        self._offset = start + header.length
        self._after_format = False
        return self._passed(event)

    def _passed(self, event: Event) -> Event | None:
        """None for an event before the place that was asked, where the dump command could not begin."""
        if event.start >= self._wanted:
            if self._wanted >= 0 and event.start != self._wanted:
                raise DataAtRisk(
                    f"Offset {self._wanted} of {self._file} is not where an event begins.",
                    where=f"{self._file}:{self._wanted}",
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
        if rotate.file == self._file:
            return None
        self._file = rotate.file
        self._offset = FIRST_OFFSET
        self._format = None
        self._wanted = -1
        return event

    def _place(self, log_pos: int, length: int, code: int) -> int:
        """Where the event starts. log_pos is the low half of where it ends; 0 where the server does not say."""
        if log_pos == 0:
            return self._offset
        gap = (log_pos - self._offset - length) & 0xFFFFFFFF
        if gap == 0:
            return self._offset
        if self.mariadb and self._after_format and gap <= _START_ENCRYPTION_SIZE:
            return self._offset + gap
        raise DataAtRisk(
            f"The log has a hole: the next event should begin at {self._offset}, and {_name(code)} of {length} bytes "
            f"ends at {log_pos} (mod 2^32).",
            where=f"{self._file}:{self._offset}",
            code="source.hole",
            remedy="read the place with mysqlbinlog; if the file is whole, report this as a defect with the server's "
            "version. Nothing behind the place was staged",
        )

    def _refused(self, payload: bytes) -> LockstepError:
        """An error packet: 0xff, number u16, '#' and SQL state, text."""
        number = int.from_bytes(payload[1:3], "little")
        text = (
            payload[9:].decode("utf-8", "replace") if payload[3:4] == b"#" else payload[3:].decode("utf-8", "replace")
        )
        return self._explained(pymysql.err.OperationalError(number, text))

    def _explained(self, error: Exception) -> LockstepError:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[-1]) if error.args else str(error)
        where = f"{self._source}, {self._file}:{self._offset}"
        if number in DENIED:
            return Refused(
                f"The account may not read the log: {text}.",
                where=where,
                code="source.missing_grant",
                remedy="GRANT REPLICATION SLAVE ON *.* to the account on the source",
            )
        if number == 1236:
            return _fatal(text, where)
        return self._lost(text)

    def _lost(self, why: str) -> RetryLater:
        return RetryLater(
            f"The stream of the log ended: {why}.",
            where=f"{self._source}, {self._file}:{self._offset}",
            code="source.connection_lost",
            remedy="nothing is lost; the next attempt goes on from the last durable position",
        )

    def _broken(self, what: str) -> DataAtRisk:
        return DataAtRisk(
            f"The stream is not a binlog: {what}.",
            where=f"{self._source}, {self._file}:{self._offset}",
            code="source.protocol",
            remedy="check what stands between us and the server (a proxy does not pass replication on); if it is the "
            "server itself, report its version",
        )


def _ask_for_annotations(connection: pymysql.Connection) -> None:
    """Sets the flag in the dump command that the library writes: it only knows it together with GTID positions.

    Packet: length u24, number u8, command u8, offset u32, flags u16, server id u32, file name.
    """
    write = connection._write_bytes  # type: ignore[attr-defined]

    def flagged(data: bytes) -> None:
        if len(data) > 11 and data[4] == _COM_BINLOG_DUMP:
            data = data[:9] + bytes([data[9] | _SEND_ANNOTATE_ROWS]) + data[10:]
        write(data)

    connection._write_bytes = flagged  # type: ignore[attr-defined]


def _name(code: int) -> str:
    try:
        return EventType(code).name
    except ValueError:
        return f"event type {code}"


def _fatal(text: str, where: str) -> LockstepError:
    """Error 1236 has one number for all: the text tells what the server could not do."""
    lower = text.lower()
    if "could not find first log" in lower or "purged" in lower:
        return DataAtRisk(
            f"The server no longer has the log from here on: {text}.",
            where=where,
            code="source.purged",
            remedy="changes are lost to the log: take a new full copy and start behind it; keep the log longer "
            "(binlog_expire_logs_seconds)",
        )
    if "> file size" in lower or "impossible position" in lower:
        return DataAtRisk(
            f"The log ends before this position: {text}.",
            where=where,
            code="source.position_beyond_end",
            remedy="the server's log was reset or lost its end: compare SHOW BINARY LOGS with the position, then take "
            "a new full copy",
        )
    if "same server_uuid/server_id" in lower or "same server-id" in lower or "same server_id" in lower:
        return Refused(
            f"Another replica came with our server_id: {text}.",
            where=where,
            code="source.server_id_taken",
            remedy="give each replica and each source of a pipeline file a server_id of its own",
        )
    if "bogus data" in lower or "event read from binlog did not pass" in lower or "read past" in lower:
        return DataAtRisk(
            f"The server cannot read its log here: {text}.",
            where=where,
            code="source.bad_position",
            remedy="if the position was given by hand, it must be where an event begins (SHOW BINLOG EVENTS); else the "
            "file is damaged (mysqlbinlog --verify-binlog-checksum): take a new full copy",
        )
    return DataAtRisk(
        f"The server stopped the stream: {text}.",
        where=where,
        code="source.dump_refused",
        remedy="mend what the server's message names; nothing behind the position was staged",
    )
