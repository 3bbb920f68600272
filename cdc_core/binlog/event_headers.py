"""Events of the binlog: the header that all have, and the ones that steer a stream, each with its own parser.

Assumes one whole event at a time, as in the log: 19 bytes of header, the body, and 4 bytes of CRC32 where the log has
checksums. Keeps true: a body is read to its last byte, or DataAtRisk `source.log_damaged` is raised.
Sources: MySQL libs/mysql/binlog/event/{binlog_event,control_events,statement_events}.h; MariaDB sql/log_event.h.
In other modules: gtid, table_map, rows_event, compressed.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from cdc_core.binlog.wire import WireCursor, malformed
from cdc_core.errors import DamagedBytes, DataAtRisk

HEADER_SIZE = 19
CHECKSUM_SIZE = 4

LONG = (1 << 24) - 1
"""Only the start of an event of this size is kept in memory until all of it is needed."""
LUMP = 1 << 20
"""How many bytes of a long event are moved at a time."""

FLAG_IN_USE = 0x01
FLAG_ARTIFICIAL = 0x20
"""Made for this stream (the first ROTATE): not in the log."""


class EventType(IntEnum):
    """Every event of MySQL up to 9 and MariaDB up to 12. Any other type is unknown, and stops the stream."""

    UNKNOWN = 0
    START_V3 = 1
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    LOAD = 6
    SLAVE = 7
    CREATE_FILE = 8
    APPEND_BLOCK = 9
    EXEC_LOAD = 10
    DELETE_FILE = 11
    NEW_LOAD = 12
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    PRE_GA_WRITE_ROWS = 20
    PRE_GA_UPDATE_ROWS = 21
    PRE_GA_DELETE_ROWS = 22
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    MARIADB_ANNOTATE_ROWS = 160
    MARIADB_BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    MARIADB_GTID_LIST = 163
    MARIADB_START_ENCRYPTION = 164
    MARIADB_QUERY_COMPRESSED = 165
    MARIADB_WRITE_ROWS_COMPRESSED_V1 = 166
    MARIADB_UPDATE_ROWS_COMPRESSED_V1 = 167
    MARIADB_DELETE_ROWS_COMPRESSED_V1 = 168
    MARIADB_WRITE_ROWS_COMPRESSED = 169
    MARIADB_UPDATE_ROWS_COMPRESSED = 170
    MARIADB_DELETE_ROWS_COMPRESSED = 171
    MARIADB_PARTIAL_ROW_DATA = 172


def type_name(code: int) -> str:
    """`WRITE_ROWS (30)`, or `event type 99 (unknown)`."""
    try:
        return f"{EventType(code).name} ({code})"
    except ValueError:
        return f"event type {code} (unknown)"


@dataclass(frozen=True, slots=True)
class Header:
    """timestamp: seconds UTC. type: the raw code, maybe unknown to EventType. length: of the whole event in bytes.
    log_pos: end of the event, its lowest 32 bits only; 0 in a payload. flags: FLAG_*."""

    timestamp: int
    type: int
    server_id: int
    length: int
    log_pos: int
    flags: int

    @property
    def artificial(self) -> bool:
        return bool(self.flags & FLAG_ARTIFICIAL)


class Rest:
    """The rest of a long body: to be read once, in order, before the next event is requested."""

    closed = False

    def __init__(self, read: Callable[[int], bytes], left: int) -> None:
        self._read = read
        self.left = left

    def read(self, size: int = LUMP) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        size = min(size, self.left)
        data = self._read(size)
        if len(data) < size:
            data += self._read(size - len(data))
        self.left -= len(data)
        return data

    def close(self) -> None:
        """Does nothing: for callers that close what they have read."""

    def all(self) -> bytes:
        return b"".join(iter(self.read, b""))


@dataclass(frozen=True, slots=True)
class Event:
    """One event, its checksum verified and cut off.

    start:  offset of its first byte in `file`; -1 where it has none (artificial, or inside a payload).
    more:   of a LONG event: what follows `body`, which then is only the start.
    crc:    CRC32 of header and body if the log has it, or the body is incomplete here; else None: see `crc_of`.
    """

    header: Header
    body: bytes
    file: str = ""
    start: int = -1
    more: Rest | None = None
    crc: int | None = None

    @property
    def where(self) -> str:
        return f"{self.file}:{self.start}" if self.start >= 0 else self.file

    @property
    def name(self) -> str:
        return type_name(self.header.type)

    def cursor(self) -> WireCursor:
        return WireCursor(self.body, self.name, self.where)

    def whole(self) -> Event:
        """The event with its whole body in memory."""
        return self if self.more is None else replace(self, body=self.body + self.more.all(), more=None)

    def rest(self, at: int) -> Rest:
        """The body from byte `at` on."""
        begin, more = io.BytesIO(self.body[at:]), self.more
        if more is None:
            return Rest(begin.read, len(self.body) - at)
        return Rest(lambda size: begin.read(size) or more.read(size), len(self.body) - at + more.left)


def parse_header(data: bytes, where: str = "") -> Header:
    """The header in the first 19 bytes of `data`."""
    read = WireCursor(data, "an event's header", where)
    header = Header(
        timestamp=read.uint(4),
        type=read.u8(),
        server_id=read.uint(4),
        length=read.uint(4),
        log_pos=read.uint(4),
        flags=read.uint(2),
    )
    if header.length < HEADER_SIZE:
        raise malformed(f"{type_name(header.type)} claims a length of {header.length} bytes", where)
    return header


def split_event(data: bytes, *, checksum: bool, file: str = "", start: int = -1) -> Event:
    """Parses the bytes of one whole event.

    checksum: whether the log carries CRC32s (of the last FORMAT_DESCRIPTION; that event itself always carries one,
              verified or not). Raises DataAtRisk `source.log_damaged` when it does not match.
    """
    header = parse_header(data, f"{file}:{start}")
    require_length(header, len(data), f"{file}:{start}")
    end, crc = len(data), None
    if checksum or header.type == EventType.FORMAT_DESCRIPTION:
        end -= CHECKSUM_SIZE
        if end < HEADER_SIZE:
            raise malformed(f"{type_name(header.type)} is too short for its checksum", f"{file}:{start}")
        verify = checksum or data[end - 1] == 1
        if verify:
            crc = _crc32(data, end, header)
            require_checksum(crc, data[end:], header, f"{file}:{start}")
    return Event(header, data[HEADER_SIZE:end], file, start, crc=crc)


def require_length(header: Header, came: int, where: str) -> None:
    """came: how many bytes there are. Raises DataAtRisk (source.log_damaged) if the header names another length."""
    if header.length != came:
        raise malformed(f"{type_name(header.type)} claims a length of {header.length} bytes, but {came} came", where)


def require_checksum(crc: int, said: bytes, header: Header, where: str) -> None:
    """crc: CRC32 of the event; said: its last four bytes. Raises DataAtRisk (source.log_damaged) if they differ."""
    if crc != int.from_bytes(said, "little"):
        raise DamagedBytes(
            f"The checksum of {type_name(header.type)} does not match its bytes.",
            where=where,
            remedy="run again. If it fails at the same position, the log is damaged on the source (mysqlbinlog "
            "--verify-binlog-checksum); otherwise the network corrupts data",
        )


def _crc32(data: bytes, end: int, header: Header) -> int:
    """CRC32 of all before the checksum. A file being written sets a flag that was not set when the CRC was computed."""
    if header.type == EventType.FORMAT_DESCRIPTION and header.flags & FLAG_IN_USE:
        data = data[:17] + bytes([data[17] & ~FLAG_IN_USE]) + data[18:]
    return zlib.crc32(memoryview(data)[:end])


_HEADER = struct.Struct("<IBIIIH")
_CREATED = slice(52, 56)
"""In a FORMAT_DESCRIPTION's body: when the server started, which it sends as 0 to a reader that begins later in the
file; likewise log_pos."""


def format_crc(event: Event) -> int:
    """Identifies a file by its FORMAT_DESCRIPTION: the same number wherever in the file a reader begins, and whether or
    not the file is still being written. Never 0."""
    head, body = event.header, event.body
    said = _HEADER.pack(head.timestamp, head.type, head.server_id, head.length, 0, 0)
    return zlib.crc32(said + body[: _CREATED.start] + body[_CREATED.stop :]) or 1


def crc_of(event: Event) -> int:
    """CRC32 of an event's header and body, without its checksum: the log's, or computed from the bytes."""
    if event.header.type == EventType.FORMAT_DESCRIPTION:
        return format_crc(event)
    if event.crc is not None:
        return event.crc
    head = event.header
    said = _HEADER.pack(head.timestamp, head.type, head.server_id, head.length, head.log_pos, head.flags)
    return zlib.crc32(event.body, zlib.crc32(said))


TRACE_BYTES = 64 << 10
"""A longer trace begins again at its last event."""


def folded(trace_crc: int, crc: int) -> int:
    """The CRC of a trace with one more event; 0 is the CRC of an empty trace."""
    return (trace_crc * 16_777_619 ^ crc) & 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """checksum: every later event carries a CRC32."""

    server_version: str
    checksum: bool

    @property
    def mariadb(self) -> bool:
        return "mariadb" in self.server_version.lower()


def parse_format_description(event: Event) -> FormatDescription:
    """version u16, server version 50 bytes NUL-padded, created u32, header length u8, a byte per type, checksum u8."""
    read = event.cursor()
    version = read.uint(2)
    server = read.take(50).split(b"\0", 1)[0].decode("latin-1")
    read.uint(4)
    header_length = read.u8()
    read.take(read.left - 1)
    algorithm = read.u8()
    if version != 4 or header_length != HEADER_SIZE:
        raise event.cursor().error(f"binlog version {version} with headers of {header_length} bytes, not 4 and 19")
    if algorithm not in (0, 1):
        raise DataAtRisk(
            f"The log uses checksum algorithm {algorithm}, which Lockstep does not know.",
            where=event.where,
            code="source.log_lost",
            remedy="SET GLOBAL binlog_checksum = CRC32 on the source",
        )
    return FormatDescription(server, algorithm == 1)


@dataclass(frozen=True, slots=True)
class Rotate:
    """The log continues in `file` at `offset`."""

    file: str
    offset: int


def parse_rotate(event: Event) -> Rotate:
    read = event.cursor()
    offset = read.uint(8)
    return Rotate(read.name(read.rest()), offset)


@dataclass(frozen=True, slots=True)
class Query:
    """A statement: DDL, BEGIN, COMMIT, XA ..., SAVEPOINT, or DML of a session in statement format.

    sql: the bytes as sent. client_collation: its collation id (utf8mb4 names have 45, 255, ...); 0 where the event does
    not say. sql_mode: bits, None where the event does not say.
    """

    database: str
    sql: bytes
    client_collation: int
    sql_mode: int | None
    status: Mapping[int, bytes]


# Size in bytes of each status variable; -1: a length byte comes first, -2: that, and a NUL follows,
# -3: two such strings, -4: a count, then as many NUL-terminated names (254: none).
_STATUS_SIZES = {
    0: 4, 1: 8, 2: -2, 3: 4, 4: 6, 5: -1, 6: -1, 7: 2, 8: 2, 9: 8, 10: 4, 11: -3, 12: -4, 13: 3,
    16: 1, 17: 8, 18: 2, 19: 1, 20: 1, 128: 3, 129: 8,
}  # fmt: skip
_Q_SQL_MODE, _Q_CHARSET = 1, 4


def parse_query(event: Event) -> Query:
    """thread u32, seconds u32, database length u8, error u16, status length u16, status, database NUL, statement.

    Status variables after an unknown one are left unread, as the server itself does.
    """
    read = event.cursor()
    read.take(8)
    database_length, _, status_length = read.u8(), read.uint(2), read.uint(2)
    status = _status(WireCursor(read.take(status_length), f"the status of {event.name}", event.where))
    database = read.name(read.zero_terminated(database_length))
    collation, mode = status.get(_Q_CHARSET, b"")[:2], status.get(_Q_SQL_MODE)
    return Query(
        database,
        read.rest(),
        int.from_bytes(collation, "little"),
        None if mode is None else int.from_bytes(mode, "little"),
        status,
    )


def _status(read: WireCursor) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while read.left:
        code = read.u8()
        size = _STATUS_SIZES.get(code)
        if size is None:
            break
        if size >= 0:
            found[code] = read.take(size)
        elif size == -1:
            found[code] = read.take(read.u8())
        elif size == -2:
            found[code] = read.zero_terminated(read.u8())
        elif size == -3:
            found[code] = read.take(read.u8()) + b"@" + read.take(read.u8())
        else:
            names = []
            count = read.u8()
            for _ in range(0 if count == 254 else count):
                end = read.data.find(b"\0", read.at)
                if end < 0:
                    raise read.error("a database name without its NUL")
                names.append(read.zero_terminated(end - read.at))
            found[code] = b"\0".join(names)
    return found


@dataclass(frozen=True, slots=True)
class XaId:
    """The name of an XA transaction, the same in its prepare, commit and rollback."""

    format: int
    gtrid: bytes
    bqual: bytes

    @property
    def text(self) -> str:
        """As MySQL writes it in the statement XA COMMIT: `X'6131',X'',1`."""
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format}"


@dataclass(frozen=True, slots=True)
class XaPrepare:
    """The XA transaction is prepared; one_phase: committed in the same step."""

    one_phase: bool
    xid: XaId


def parse_xa_prepare(event: Event) -> XaPrepare:
    """one phase u8, format i32, gtrid length u32, bqual length u32, both."""
    read = event.cursor()
    one_phase = read.u8() != 0
    number = int.from_bytes(read.take(4), "little", signed=True)
    gtrid_length, bqual_length = read.uint(4), read.uint(4)
    xid = XaId(number, read.take(gtrid_length), read.take(bqual_length))
    read.end()
    return XaPrepare(one_phase, xid)


@dataclass(frozen=True, slots=True)
class Incident:
    """The source lost events, so that its replicas no longer equal it. number: 1 is LOST_EVENTS."""

    number: int
    message: str


def parse_incident(event: Event) -> Incident:
    """number u16, message (length u8). MySQL 9 writes another checksum after it."""
    read = event.cursor()
    number = read.uint(2)
    message = read.take(read.u8()).decode("utf-8", "replace")
    if read.left == CHECKSUM_SIZE:
        read.take(CHECKSUM_SIZE)
    read.end()
    return Incident(number, message)
