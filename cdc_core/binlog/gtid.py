"""Events in which a transaction begins and gets its name: MySQL's GTID events, MariaDB's, and the sets of them.

Sources: MySQL libs/mysql/binlog/event/control_events.h and libs/mysql/serialization; MariaDB sql/log_event.cc.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from cdc_core.binlog.event_headers import Event, EventType, XaId
from cdc_core.binlog.wire import WireCursor


@dataclass(frozen=True, slots=True)
class Gtid:
    """A MySQL transaction begins (GTID, ANONYMOUS_GTID, GTID_TAGGED).

    sid: server uuid as text; "" and gno 0 when anonymous. tag: "" mostly.
    immediate_commit_ts_us: µs UTC when this server committed it; 0 on MySQL 5.7, which does not say.
    original_commit_ts_us:  when the first server did.
    """

    sid: str
    gno: int
    tag: str
    immediate_commit_ts_us: int
    original_commit_ts_us: int

    @property
    def text(self) -> str:
        """`uuid:gno` or `uuid:tag:gno`, as the server prints it; "" when anonymous."""
        if not self.sid:
            return ""
        return f"{self.sid}:{self.tag}:{self.gno}" if self.tag else f"{self.sid}:{self.gno}"


_SID_AND_GNO = struct.Struct("<x16sQ")


def parse_gtid(event: Event) -> Gtid:
    """flags u8, sid 16, gno i64, 2 u8, last committed i64, sequence number i64; since 8.0: immediate commit time
    u56 (bit 55: the original one follows). What releases have appended is not read, here as in the fast path."""
    if event.header.type == EventType.GTID_TAGGED:
        return _parse_gtid_tagged(event)
    read = event.cursor()
    sid, gno = _SID_AND_GNO.unpack(read.take(_SID_AND_GNO.size))
    anonymous = event.header.type == EventType.ANONYMOUS_GTID
    gno = 0 if anonymous else _number(read, gno)
    immediate = original = 0
    if read.left and (kind := read.take(17)[0]) != 2:
        raise read.error(f"logical timestamps of kind {kind}, not 2")
    if read.left:
        immediate = original = read.uint(7)
        if immediate >> 55:
            immediate &= (1 << 55) - 1
            original = read.uint(7)
    return Gtid("" if anonymous else _sid_text(sid), gno, "", immediate, original)


@lru_cache(maxsize=256)
def _sid_text(sid: bytes) -> str:
    return str(UUID(bytes=sid))


def _parse_gtid_tagged(event: Event) -> Gtid:
    """libs/mysql/serialization: format version, size of the message, last mandatory field + 1, then fields, each after
    its id. Control_events.h define_fields() numbers them; the sid's bytes are 16 integers. What a later release appends
    is not read, unless the event says that it is mandatory."""
    read = event.cursor()
    version = read.varlen()
    size = read.varlen()
    if size > len(event.body):
        raise read.error(f"a message of {size} bytes in an event of {len(event.body)}")
    must_know = read.varlen()
    if must_know > 12:
        raise read.error(f"version {version} with the mandatory field {must_know - 1}, which Lockstep does not know")
    values: dict[int, int] = {}
    sid, tag, last = b"", "", -1
    while read.left:
        field = read.varlen()
        if field <= last:
            raise read.error(f"field {field} after field {last}")
        if field > 11:
            break
        last = field
        if field == 1:
            sid = bytes(_byte(read) for _ in range(16))
        elif field == 3:
            tag = read.take(read.varlen()).decode("ascii", "replace")
        elif field in (2, 4, 5):
            values[field] = read.varlen_signed()
        else:
            values[field] = read.varlen()
    missing = [field for field in (0, 2, 4, 5, 6) if field not in values]
    if missing or len(sid) != 16:
        raise read.error(f"fields {missing or [1]} are missing")
    immediate = values[6]
    return Gtid(_sid_text(sid), _number(read, values[2]), tag, immediate, values.get(7, immediate))


def _number(read: WireCursor, number: int) -> int:
    """A transaction's number, if int64 columns can hold it. MySQL's own limit; on MariaDB only bent bytes say more."""
    if not 0 <= number < 1 << 63:
        raise read.error(f"the transaction number {number}")
    return number


def _byte(read: WireCursor) -> int:
    value = read.varlen()
    if value > 255:
        raise read.error(f"{value} in a uuid")
    return value


@dataclass(frozen=True, slots=True)
class MariadbGtid:
    """A MariaDB event group begins, or, when standalone, is one statement.

    flags2, extra: the raw bytes; properties give the relevant bits. xid: the name of an XA group.
    A two-phase ALTER logs its statement twice: in a group with start_alter, then in another.
    """

    domain: int
    server_id: int
    seq_no: int
    flags2: int
    xid: XaId | None = None
    extra: int = 0

    @property
    def standalone(self) -> bool:
        return bool(self.flags2 & 1)

    @property
    def xa_prepared(self) -> bool:
        return bool(self.flags2 & 64)

    @property
    def xa_completed(self) -> bool:
        return bool(self.flags2 & 128)

    @property
    def start_alter(self) -> bool:
        return bool(self.extra & 2)

    @property
    def rollback_alter(self) -> bool:
        return bool(self.extra & 8)

    @property
    def text(self) -> str:
        return f"{self.domain}-{self.server_id}-{self.seq_no}"


_MARIADB_GROUP_COMMIT, _MARIADB_XA = 2, 64 | 128


def parse_mariadb_gtid(event: Event) -> MariadbGtid:
    """number u64, domain u32, flags u8; flag 2: commit id u64; XA flags: format i32, two length bytes, the name;
    extra flags u8 and their fields, of which newer servers add some: those are left unread; padded with zeros."""
    read = event.cursor()
    seq_no, domain, flags = _number(read, read.uint(8)), read.uint(4), read.u8()
    if flags & _MARIADB_GROUP_COMMIT:
        read.uint(8)
    xid = None
    if flags & _MARIADB_XA:
        number = int.from_bytes(read.take(4), "little", signed=True)
        gtrid_length, bqual_length = read.u8(), read.u8()
        xid = XaId(number, read.take(gtrid_length), read.take(bqual_length))
    extra = read.u8() if read.left else 0
    return MariadbGtid(domain, event.header.server_id, seq_no, flags, xid, extra)


def parse_mariadb_gtid_list(event: Event) -> tuple[str, ...]:
    """The last GTID of each domain and server before this file: count u32 (4 high bits: flags), then
    domain u32, server id u32, number u64 each. An empty list is padded to 6 bytes."""
    read = event.cursor()
    count = read.uint(4) & 0x0FFFFFFF
    if count == 0:
        read.take(min(read.left, 2))
    gtids = []
    for _ in range(count):
        domain, server, number = read.uint(4), read.uint(4), read.uint(8)
        gtids.append(f"{domain}-{server}-{number}")
    read.end()
    return tuple(gtids)


def parse_previous_gtids(event: Event) -> str:
    """The set executed before this file, in the server's text form: `uuid:1-5:7,uuid:tag:1-3`.

    u64 of entries (with tags: 1<<56 | entries<<8 | 1), then for each: uuid, with tags its tag (length<<1, text),
    u64 of intervals, each [start u64, end u64). A tag belongs to the uuid before it when that is the same.
    """
    read = event.cursor()
    count = read.uint(8)
    tagged = count >> 56 == 1
    if tagged:
        count = count >> 8 & 0xFFFFFFFFFFFF
    parts: list[str] = []
    last = ""
    for _ in range(count):
        sid = str(UUID(bytes=read.take(16)))
        tag = read.take(read.varlen()).decode("ascii", "replace") if tagged else ""
        intervals = []
        for _ in range(read.uint(8)):
            start, end = read.uint(8), read.uint(8)
            intervals.append(f"{start}-{end - 1}" if end - start > 1 else str(start))
        text = ":".join([*([tag] if tag else []), *intervals])
        if sid == last:
            parts[-1] += ":" + text
        else:
            parts.append(f"{sid}:{text}")
        last = sid
    read.end()
    return ",".join(parts)
