"""Events to transactions, compiled: the ordinary ones, without a Python object for an event or a row.

A transaction is ordinary when it is complete in the buffer and consists of GTID | ANONYMOUS_GTID as MySQL 8 lays it
out, QUERY BEGIN   or   MARIADB_GTID of a transaction without XA or ALTER { ROWS_QUERY | ANNOTATE_ROWS | TABLE_MAP that
is known, byte by byte | WRITE, UPDATE, DELETE rows of such a map } XID with all columns in every image.
`take_transactions` stops before the first one that is not: it belongs to source/transactions/transaction_assembler.py,
which knows every kind. `take_row_events` takes the table maps and row events of a transaction that the assembler has
opened, whether because it is large or because something in it is unusual.

What these kernels take must mean exactly what the assembler would make of the same events, entry for entry. The tests
of the fast path feed both the same bytes.

GTID event of MySQL (libs/mysql/binlog/event/control_events.h), offsets in the body:
  0 flags u8 | 1 sid, 16 bytes | 17 gno i64 | 25 type of logical timestamps u8 | 26 last_committed i64
  34 sequence_number i64 | 42 immediate_commit_timestamp, 55 bits in 7 bytes; the top bit announces an original one
GTID event of MariaDB (sql/log_event.h, Gtid_log_event):
  0 seq_no u64 | 8 domain_id u32 | 12 flags2 u8 | 13 commit_id u64 if FL_GROUP_COMMIT_ID | flags_extra u8, if any
Row event (libs/mysql/binlog/event/rows_event.h):
  0 table id, 6 bytes | 6 flags u16 | version 2: length of extra data u16, itself included | width, length-encoded
  bitmap of present columns, two of them for an update | images
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc_core.binlog.compiled import inlined, kernel
from cdc_core.binlog.event_headers import HEADER_SIZE, TRACE_BYTES, EventType
from cdc_core.binlog.framing import Bytes, FramedEvents, Longs, crc32, little32
from cdc_core.binlog.rows_event import UPDATE

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

Ints = npt.NDArray[np.int32]
Crcs = npt.NDArray[np.uint32]

DONE, UNUSUAL, OPEN, FULL = 0, 1, 2, 3
"""Why a kernel stopped: every event is taken; the next transaction is not ordinary; it is incomplete; a limit is
reached."""

TRANSACTION, UNCAPTURED = 0, 3
"""Values of model.block.EntryKind."""

MAP_SLOTS = 1 << 14

(
    _GTID, _ANONYMOUS, _MARIADB_GTID, _QUERY, _XID, _TABLE_MAP, _ROWS_QUERY, _ANNOTATE, _WRITE_V1, _DELETE_V1, _WRITE,
    _DELETE,
) = (
    int(code)
    for code in (
        EventType.GTID, EventType.ANONYMOUS_GTID, EventType.MARIADB_GTID, EventType.QUERY, EventType.XID,
        EventType.TABLE_MAP, EventType.ROWS_QUERY, EventType.MARIADB_ANNOTATE_ROWS, EventType.WRITE_ROWS_V1,
        EventType.DELETE_ROWS_V1, EventType.WRITE_ROWS, EventType.DELETE_ROWS,
    )
)  # fmt: skip
_UPDATE_KIND = UPDATE
_HEADER = HEADER_SIZE
_SERVER_ID_AT = 5  # in the header

_GTID_SID_AT, _GTID_GNO_AT, _GTID_CLOCK_AT, _GTID_COMMIT_TIME_AT, _GTID_SIZE = 1, 17, 25, 42, 49
_GTID_SIZE_OF_TWO_TIMES = 56
_GTID_LOGICAL_CLOCK = 2
_GTID_COMMIT_TIME = (1 << 55) - 1

_MARIADB_DOMAIN_AT, _MARIADB_FLAGS_AT, _MARIADB_SIZE = 8, 12, 13
_MARIADB_COMMIT_ID, _MARIADB_COMMIT_ID_SIZE = 2, 8
_MARIADB_UNUSUAL = 1 | 32 | 64 | 128  # standalone, DDL, XA prepared, XA completed
_MARIADB_ALTER = 2 | 4 | 8  # in flags_extra

_ROWS_HEAD = 8  # table id and flags
_ROWS_FLAGS_AT = 6
_ROWS_EXTRA = 2  # length of empty extra data
_LENGTH_IN_TWO_BYTES = 252

_LEFT_OUT, _STRANGE, _NO_ROOM = 0, -1, -2
"""What `_row_event` returns instead of a weight."""


class KnownMaps(NamedTuple):
    """Table maps that the assembler has seen.

    slot_id, slot_map, slot_group: by table id modulo MAP_SLOTS: the id, the map that last described it, and the
    transaction that this map came in. bytes[offset[m]:offset[m + 1]]: a map's body after table id and flags.
    table: number of the map's table, -1 where it is not captured. columns: of the map. row_bytes: by table, the
    estimated size of an image. flags: those that every ordinary row event has, of the lower eight.
    """

    slot_id: Longs
    slot_map: Ints
    slot_group: Longs
    bytes: Bytes
    offset: Longs
    table: Longs
    columns: Longs
    row_bytes: Longs
    flags: int


class GtidNames(NamedTuple):
    """The parts of GTIDs before their numbers: rows of (sid, sid, 0) for MySQL or (domain, server, 1) for MariaDB, of
    which `used[0]` are in use."""

    rows: npt.NDArray[np.int64]
    used: Longs


class WeightLimits(NamedTuple):
    """Weights are the rough size of the result in memory, in bytes.

    weight: stop once the result weighs this much. entry, row: overhead of one. transaction: one that weighs this much
    is not ordinary.
    """

    weight: int
    entry: int
    row: int
    transaction: int


class EntryArrays(NamedTuple):
    """Columns for what `take_transactions` finds: one element an entry of a block (model.block.Entries). name: index
    into GtidNames, -1 where there is none."""

    kind: Longs
    begin: Longs
    end: Longs
    seq: Longs
    commit_ts_us: Longs
    events: Longs
    name: Longs
    number: Longs
    trace: Longs
    trace_crc: Longs


class RowEvents(NamedTuple):
    """Columns for row events of captured tables.

    table: its number. start, stop: of the images in the buffer. change: INSERT, UPDATE or DELETE of rows_event.
    ordinal: among the row events of the transaction. entry: index into EntryArrays, of `take_transactions` only.
    offset: of the event in the file.
    """

    table: Longs
    start: Longs
    stop: Longs
    change: Longs
    ordinal: Longs
    entry: Longs
    offset: Longs


class TransactionsTaken(NamedTuple):
    """reached: index of the first event that was not taken. entries, rows: valid elements of the columns.
    left_out: row events of tables that are not captured. end: where the last entry ends. group: number of the last
    transaction looked at."""

    why: int
    reached: int
    entries: int
    rows: int
    left_out: int
    end: int
    group: int


class RowEventsTaken(NamedTuple):
    """As TransactionsTaken; ordinal: of the transaction's next row event. trace: of the log up to `reached`, its
    beginning and its CRC."""

    why: int
    reached: int
    rows: int
    left_out: int
    ordinal: int
    trace: tuple[int, int]


@kernel
def take_transactions(
    events: FramedEvents,
    maps: KnownMaps,
    names: GtidNames,
    limits: WeightLimits,
    entries: EntryArrays,
    rows: RowEvents,
    group: int,
    base_seq: int,
    end: int,
    crc_tables: Crcs,
) -> TransactionsTaken:
    """Takes ordinary transactions from the first event on.

    group: number of the previous transaction. base_seq: the file's part of an order key. end: where the previous entry
    ended. A transaction that is not taken does not affect the result.
    """
    i = events.first
    e = 0
    n_rows = 0
    left_out = 0
    weight = 0
    why = DONE
    while i < events.stop:
        if weight >= limits.weight or e == entries.kind.shape[0]:
            why = FULL
            break
        usual, begun, name, number, commit_ts_us = _gtid(events, i, names)
        if not usual:
            why = UNUSUAL
            break
        group += 1
        why, j, n, dropped, heavy = _transaction(events, i + 1, begun, maps, limits, rows, n_rows, group)
        if why != DONE:
            break
        entries.kind[e] = TRANSACTION if n > n_rows else UNCAPTURED
        entries.begin[e] = end
        end = events.start[j - 1] + events.length[j - 1]
        entries.end[e] = end
        entries.seq[e] = base_seq | events.start[i]
        entries.commit_ts_us[e] = commit_ts_us
        entries.events[e] = j - i
        entries.name[e] = name
        entries.number[e] = number
        entries.trace[e], entries.trace_crc[e] = _traced(events, i, j, (events.start[i], np.int64(0)), crc_tables)
        rows.entry[n_rows:n] = e
        e += 1
        n_rows = n
        left_out += dropped
        weight += limits.entry + heavy
        i = j
    return TransactionsTaken(why, i, e, n_rows, left_out, end, group)


@kernel
def take_row_events(
    events: FramedEvents,
    maps: KnownMaps,
    limits: WeightLimits,
    rows: RowEvents,
    group: int,
    ordinal: int,
    trace: tuple[int, int],
    crc_tables: Crcs,
) -> RowEventsTaken:
    """Takes table maps and row events of the open transaction `group` from the first event on, up to its end or until
    they weigh `limits.weight`. ordinal: of its next row event. trace: up to the first event."""
    j = events.first
    n_rows = 0
    left_out = 0
    weight = 0
    why = OPEN
    while j < events.stop:
        if weight >= limits.weight:
            why = FULL
            break
        code = events.code[j]
        if _WRITE_V1 <= code <= _DELETE_V1 or _WRITE <= code <= _DELETE:
            taken = _row_event(events, j, maps, limits, rows, n_rows, ordinal, group)
            if taken < 0:
                why = FULL if taken == _NO_ROOM else UNUSUAL
                break
            if taken == _LEFT_OUT:
                left_out += 1
            else:
                n_rows += 1
                weight += taken
            ordinal += 1
        elif not (code == _TABLE_MAP and _is_known(events, j, maps, group)) and code not in (_ROWS_QUERY, _ANNOTATE):
            why = UNUSUAL
            break
        j += 1
    traced = _traced(events, events.first, j, trace, crc_tables)
    return RowEventsTaken(why, j, n_rows, left_out, ordinal, traced)


@inlined
def _traced(events, first, stop, trace, crc_tables):
    """A trace of the log with the events first..stop-1, as event_headers.folded and event_headers.crc_of make it."""
    begin = np.int64(trace[0])
    folded = np.int64(trace[1])
    for k in range(first, stop):
        at = events.at[k]
        if events.start[k] + events.length[k] - begin > TRACE_BYTES:
            begin = events.start[k]
            folded = np.int64(0)
        if events.checksum_size:
            crc = np.int64(little32(events.buffer, at + events.length[k] - events.checksum_size))
        else:
            crc = np.int64(crc32(events.buffer, at, at + events.length[k], crc_tables))
        folded = (folded * 16_777_619 ^ crc) & 0xFFFFFFFF
    return begin, folded


@inlined
def _transaction(events, first, begun, maps, limits, rows, n_rows, group):
    """The events after a GTID up to the XID. begun: no QUERY BEGIN is required.

    Returns (why, index after the XID, n_rows with its own, row events left out, weight).
    """
    ordinal = 0
    left_out = 0
    weight = 0
    j = first
    while j < events.stop:
        code = events.code[j]
        if code == _XID:
            return (DONE if begun else UNUSUAL), j + 1, n_rows, left_out, weight
        if code == _TABLE_MAP:
            if not _is_known(events, j, maps, group):
                return UNUSUAL, j, n_rows, left_out, weight
        elif _WRITE_V1 <= code <= _DELETE_V1 or _WRITE <= code <= _DELETE:
            taken = _row_event(events, j, maps, limits, rows, n_rows, ordinal, group)
            if taken < 0:
                return (FULL if taken == _NO_ROOM else UNUSUAL), j, n_rows, left_out, weight
            if taken == _LEFT_OUT:
                left_out += 1
            else:
                n_rows += 1
                weight += taken
                if weight >= limits.transaction:
                    return UNUSUAL, j, n_rows, left_out, weight
            ordinal += 1
        elif code == _QUERY and not begun:
            if not _is_begin(events, j):
                return UNUSUAL, j, n_rows, left_out, weight
            begun = True
        elif code != _ROWS_QUERY and code != _ANNOTATE:
            return UNUSUAL, j, n_rows, left_out, weight
        j += 1
    return OPEN, j, n_rows, left_out, weight


@inlined
def _gtid(events, i, names):
    """The event that begins a transaction: (ordinary, BEGIN is not needed, index of the GTID's name or -1, its number,
    commit time in µs)."""
    buf = events.buffer
    body = events.at[i] + _HEADER
    size = events.length[i] - _HEADER - events.checksum_size
    code = events.code[i]
    begun = False
    name = -1
    number = np.int64(0)
    commit_ts_us = np.int64(0)
    # An order key has 33 bits for the offset; the assembler says what is wrong with a longer file.
    usual = events.start[i] >> 33 == 0
    if code in (_GTID, _ANONYMOUS):
        usual = usual and size >= _GTID_SIZE and buf[body + _GTID_CLOCK_AT] == _GTID_LOGICAL_CLOCK
        if usual:
            commit_ts_us = _little(buf, body + _GTID_COMMIT_TIME_AT, 7)
            usual = commit_ts_us <= _GTID_COMMIT_TIME or size >= _GTID_SIZE_OF_TWO_TIMES
            commit_ts_us &= np.int64(_GTID_COMMIT_TIME)
            if code == _GTID:
                number = _little(buf, body + _GTID_GNO_AT, 8)
                sid = body + _GTID_SID_AT
                name = _name(names, _little(buf, sid, 8), _little(buf, sid + 8, 8), np.int64(0))
                usual = usual and name >= 0 and number >= 0
    elif code == _MARIADB_GTID:
        usual = usual and size >= _MARIADB_SIZE and buf[body + _MARIADB_FLAGS_AT] & _MARIADB_UNUSUAL == 0
        if usual:
            extra = _MARIADB_SIZE
            if buf[body + _MARIADB_FLAGS_AT] & _MARIADB_COMMIT_ID:
                extra += _MARIADB_COMMIT_ID_SIZE
            usual = size == extra or (size > extra and buf[body + extra] & _MARIADB_ALTER == 0)
        if usual:
            begun = True
            number = _little(buf, body, 8)
            domain = np.int64(little32(buf, body + _MARIADB_DOMAIN_AT))
            server = np.int64(little32(buf, events.at[i] + _SERVER_ID_AT))
            name = _name(names, domain, server, np.int64(1))
            usual = name >= 0 and number >= 0
    else:
        usual = False
    if commit_ts_us == 0:
        # MariaDB, and MySQL for what an older server has written, log whole seconds only.
        commit_ts_us = np.int64(little32(buf, events.at[i])) * 1_000_000
    return usual, begun, name, number, commit_ts_us


@inlined
def _is_begin(events, j):
    """Whether a QUERY's statement, after the NUL that ends the database's name, is BEGIN."""
    buf = events.buffer
    size = events.length[j] - _HEADER - events.checksum_size
    e = events.at[j] + _HEADER + size
    return (
        size >= 6
        and buf[e - 6] == 0
        and buf[e - 5] == 66
        and buf[e - 4] == 69
        and buf[e - 3] == 71
        and buf[e - 2] == 73
        and buf[e - 1] == 78
    )


@inlined
def _is_known(events, j, maps, group):
    """Whether a TABLE_MAP is, byte by byte, the known one of its table id; it is then valid in this transaction."""
    buf = events.buffer
    body = events.at[j] + _HEADER
    size = events.length[j] - _HEADER - events.checksum_size - _ROWS_HEAD
    if size < 0:
        return False
    table_id = _little(buf, body, 6)
    slot = table_id & (MAP_SLOTS - 1)
    m = maps.slot_map[slot]
    if m < 0 or maps.slot_id[slot] != table_id or maps.offset[m + 1] - maps.offset[m] != size:
        return False
    here = body + _ROWS_HEAD
    there = maps.offset[m]
    differs = np.uint8(0)
    for k in range(size):
        differs |= buf[here + k] ^ maps.bytes[there + k]
    if differs:
        return False
    maps.slot_group[slot] = group
    return True


@inlined
def _row_event(events, j, maps, limits, rows, k, ordinal, group):
    """Writes a row event to element k of `rows`, without its entry; its weight, or _LEFT_OUT, _STRANGE, _NO_ROOM."""
    buf = events.buffer
    code = np.int64(events.code[j])
    at = events.at[j] + _HEADER
    stop = events.at[j] + events.length[j] - events.checksum_size
    if stop - at < _ROWS_HEAD:
        return np.int64(_STRANGE)
    table_id = _little(buf, at, 6)
    slot = table_id & (MAP_SLOTS - 1)
    if maps.slot_group[slot] != group or maps.slot_id[slot] != table_id:
        return np.int64(_STRANGE)
    if np.int64(buf[at + _ROWS_FLAGS_AT]) & maps.flags != maps.flags:
        return np.int64(_STRANGE)
    m = maps.slot_map[slot]
    table = maps.table[m]
    if table < 0:
        return np.int64(_LEFT_OUT)
    at += _ROWS_HEAD
    if code >= _WRITE:
        if stop - at < _ROWS_EXTRA or buf[at] != _ROWS_EXTRA or buf[at + 1] != 0:
            return np.int64(_STRANGE)
        at += _ROWS_EXTRA
        change = code - _WRITE
    else:
        change = code - _WRITE_V1
    columns = maps.columns[m]
    bitmaps = (2 if change == _UPDATE_KIND else 1) * ((columns + 7) >> 3)
    if columns < 1 or stop - at < 3 + bitmaps:
        return np.int64(_STRANGE)
    width = np.int64(buf[at])
    at += 1
    if width == _LENGTH_IN_TWO_BYTES:
        width = np.int64(buf[at]) | np.int64(buf[at + 1]) << 8
        at += 2
    elif width > 250:
        return np.int64(_STRANGE)
    if width != columns or not _all_present(buf, at, bitmaps, columns) or at + bitmaps > stop:
        return np.int64(_STRANGE)
    at += bitmaps
    if k == rows.table.shape[0]:
        return np.int64(_NO_ROOM)
    rows.table[k] = table
    rows.start[k] = at
    rows.stop[k] = stop
    rows.change[k] = change
    rows.ordinal[k] = ordinal
    rows.offset[k] = events.start[j]
    return 2 * (stop - at) + limits.row * (1 + (stop - at) // maps.row_bytes[table])


@inlined
def _all_present(buf, at, bitmaps, columns):
    """Whether all columns are in the bitmaps, which have `bitmaps` bytes together."""
    each = (columns + 7) >> 3
    for b in range(bitmaps):
        last = b % each == each - 1 and (columns & 7) != 0
        want = np.uint8((1 << (columns & 7)) - 1) if last else np.uint8(255)
        if buf[at + b] & want != want:
            return False
    return True


@inlined
def _name(names, a, b, flavor):
    """Index of a GTID's name, the last used first; -1 when there is no space for a new one."""
    for k in range(names.used[0] - 1, -1, -1):
        if names.rows[k, 0] == a and names.rows[k, 1] == b and names.rows[k, 2] == flavor:
            return k
    k = names.used[0]
    if k == names.rows.shape[0]:
        return -1
    names.rows[k, 0] = a
    names.rows[k, 1] = b
    names.rows[k, 2] = flavor
    names.used[0] = k + 1
    return k


@inlined
def _little(buf, at, n):
    v = np.int64(0)
    for k in range(n):
        v |= np.int64(buf[at + k]) << (8 * k)
    return v


@kernel
def pack(buf: Bytes, start: Longs, stop: Longs, count: int, out: Bytes, to: int) -> int:
    """Copies buf[start[k]:stop[k]] one after the other to out[to:], and updates start and stop to their new offsets."""
    for k in range(count):
        source = buf[start[k] : stop[k]]
        n = source.shape[0]
        target = out[to : to + n]
        for b in range(n):  # in views from 0 on: a copy of many bytes at a time
            target[b] = source[b]
        start[k] = to
        to += n
        stop[k] = to
    return to
