"""Events to transactions, compiled: the wholly ordinary ones.

A group is ordinary when it is whole in the buffer and reads
  GTID | ANONYMOUS_GTID as MySQL 8 lays it out, QUERY BEGIN   or   MARIADB_GTID of a transaction without XA or ALTER
  { ROWS_QUERY | ANNOTATE_ROWS | TABLE_MAP that is known, byte by byte | WRITE, UPDATE, DELETE rows of such a map }
  XID
with all columns in every image. Everything else is for source/assembly.py, which knows all there is: the kernel stops
before the first group that is not ordinary. Of a group that the assembly has opened it takes what stands between `GTID,
BEGIN` and the end. It must keep true that what it takes means what Assembly would make of the same events, entry for
entry.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from cdc_core.binlog.events import EventType
from cdc_core.binlog.framing import little32
from cdc_core.binlog.rows_event import DELETE, INSERT, UPDATE

# mypy: disable-error-code="no-untyped-def"

DONE, UNUSUAL, OPEN, FULL = 0, 1, 2, 3
"""Why `walk` stopped: all events are taken; the next group is not ordinary; is not whole yet; a limit is reached."""

TRANSACTION, PASSED = 0, 3
"""Of model.block.EntryKind."""

MAP_SLOTS = 1 << 14

(
    _GTID, _ANONYMOUS, _MARIADB_GTID, _QUERY, _XID, _TABLE_MAP, _ROWS_QUERY, _ANNOTATE, _WRITE_V1, _UPDATE_V1,
    _DELETE_V1, _WRITE, _UPDATE, _DELETE,
) = (
    int(code)
    for code in (
        EventType.GTID, EventType.ANONYMOUS_GTID, EventType.MARIADB_GTID, EventType.QUERY, EventType.XID,
        EventType.TABLE_MAP, EventType.ROWS_QUERY, EventType.MARIADB_ANNOTATE_ROWS, EventType.WRITE_ROWS_V1,
        EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1, EventType.WRITE_ROWS, EventType.UPDATE_ROWS,
        EventType.DELETE_ROWS,
    )
)  # fmt: skip
_INSERT_KIND, _UPDATE_KIND, _DELETE_KIND = INSERT, UPDATE, DELETE
_GTID_HEAD = 49
_MARIADB_STRANGE = 1 | 32 | 64 | 128  # standalone, DDL, XA prepared, XA completed
_MARIADB_COMMIT_ID = 2
_MARIADB_ALTER = 2 | 4 | 8


@nb.njit(nogil=True, cache=True)
def _little(buf, at, n):
    v = np.int64(0)
    for k in range(n):
        v |= np.int64(buf[at + k]) << (8 * k)
    return v


@nb.njit(nogil=True, cache=True)
def _name(names, known, a, b, flavor):
    """Index of a GTID's name, the last used first; -1 when there is no room for a new one."""
    for k in range(known[0] - 1, -1, -1):
        if names[k, 0] == a and names[k, 1] == b and names[k, 2] == flavor:
            return k
    k = known[0]
    if k == names.shape[0]:
        return -1
    names[k, 0] = a
    names[k, 1] = b
    names[k, 2] = flavor
    known[0] = k + 1
    return k


@nb.njit(nogil=True, cache=True)
def walk(
    buf, at, length, code, start, first, count, tail_size,
    slot_id, slot_map, slot_group, map_bytes, map_start, map_use, map_columns,
    row_bytes, group_number, names, known, base_seq, end, budget, entry_bytes, row_weight, block_bytes, joins, inside,
    e_kind, e_begin, e_end, e_seq, e_ts, e_events, e_rows,
    run_entry, run_name, run_low, run_high,
    r_use, r_start, r_stop, r_kind, r_ordinal, r_entry, r_offset, result,
):  # fmt: skip
    """Takes ordinary groups among events first..count-1, from the first on.

    tail_size: bytes of checksum behind each event's body.
    slot_id, slot_map, slot_group: by table id modulo MAP_SLOTS: the id, the map it was last described by, and the group
    that did. map_bytes[map_start[m]:map_start[m + 1]]: a map's body behind table id and flags. map_use: its table's
    number, -1 when not captured. row_bytes: by table, see gather.TableUse. end: where the entry before ended.
    inside: the ordinal of the next row event of a group that is open: then what belongs to it is taken, up to its end
    or until that weighs `budget`, and makes no entry; -1 where none is open.
    budget: stop when the entries weigh as much; block_bytes: a group that weighs as much is not ordinary.
    joins: the entry before is PASSED, so that a first PASSED one will join it.
    e_*: entries; r_*: row events; run_*: GTIDs of entries, as runs of consecutive numbers (low..high) of a name.
    result: how many (events taken, entries, row events, runs, row events not captured), the end reached, the last
    group's number, the next ordinal of the open one.
    Returns why it stopped. A group that is not taken leaves no trace in what `result` counts.
    """
    i = first
    entries = 0
    rows = 0
    runs = 0
    passed = 0
    weight = 0
    why = DONE
    while i < count:
        if weight >= budget or entries == e_kind.shape[0] or runs == run_entry.shape[0]:
            why = FULL
            break
        # The group's first event.
        p = at[i] + 19
        size = length[i] - 19 - tail_size
        kind = code[i]
        ts = np.int64(0)
        number = np.int64(0)
        name = -1
        opened = False
        if inside >= 0:
            opened = True
        elif kind in (_GTID, _ANONYMOUS):
            if size < _GTID_HEAD or buf[p + 25] != 2:
                why = UNUSUAL
                break
            ts = _little(buf, p + 42, 7) & ((np.int64(1) << 55) - 1)
            if kind == _GTID:
                number = _little(buf, p + 17, 8)
                name = _name(names, known, _little(buf, p + 1, 8), _little(buf, p + 9, 8), np.int64(0))
        elif kind == _MARIADB_GTID:
            if size < 13 or buf[p + 12] & _MARIADB_STRANGE:
                why = UNUSUAL
                break
            extra = 13
            if buf[p + 12] & _MARIADB_COMMIT_ID:
                extra += 8
            if size < extra or (size > extra and buf[p + extra] & _MARIADB_ALTER):
                why = UNUSUAL
                break
            number = _little(buf, p, 8)
            name = _name(names, known, np.int64(little32(buf, p + 8)), np.int64(little32(buf, p - 14)), np.int64(1))
            opened = True
        else:
            why = UNUSUAL
            break
        if inside < 0:
            if (name < 0 and kind != _ANONYMOUS) or number < 0 or start[i] >> 33:
                why = UNUSUAL
                break
            if ts == 0:
                ts = np.int64(little32(buf, p - 19)) * 1_000_000
            group_number += 1
        ordinal = max(inside, 0)
        heavy = 0
        captured = rows
        left_out = 0
        closed = False
        why = OPEN
        j = i if inside >= 0 else i + 1
        while j < count:
            if inside >= 0 and heavy >= budget:
                why = FULL
                break
            p = at[j] + 19
            size = length[j] - 19 - tail_size
            kind = code[j]
            if kind == _XID:
                if inside >= 0:
                    why = UNUSUAL
                    break
                closed = opened
                why = DONE if closed else UNUSUAL
                j += 1
                break
            if kind == _TABLE_MAP and size >= 8:
                table = _little(buf, p, 6)
                slot = table & (MAP_SLOTS - 1)
                m = slot_map[slot]
                if m < 0 or slot_id[slot] != table or map_start[m + 1] - map_start[m] != size - 8:
                    why = UNUSUAL
                    break
                q = map_start[m]
                differs = np.uint8(0)
                for k in range(size - 8):
                    differs |= buf[p + 8 + k] ^ map_bytes[q + k]
                if differs:
                    why = UNUSUAL
                    break
                slot_group[slot] = group_number
            elif (_WRITE_V1 <= kind <= _DELETE_V1 or _WRITE <= kind <= _DELETE) and size >= 8:
                table = _little(buf, p, 6)
                slot = table & (MAP_SLOTS - 1)
                if slot_group[slot] != group_number or slot_id[slot] != table:
                    why = UNUSUAL
                    break
                use = map_use[slot_map[slot]]
                if use < 0:
                    left_out += 1
                else:
                    stop = p + size
                    q = p + 8
                    if kind >= _WRITE:
                        if size < 10 or buf[q] != 2 or buf[q + 1] != 0:
                            why = UNUSUAL
                            break
                        q += 2
                    change = (kind - _WRITE_V1) if kind < _WRITE else (kind - _WRITE)
                    bitmaps = 2 if change == _UPDATE_KIND else 1
                    columns = map_columns[slot_map[slot]]
                    bitmap = (columns + 7) >> 3
                    if columns < 1 or stop - q < 3 + bitmaps * bitmap:
                        why = UNUSUAL
                        break
                    said = np.int64(buf[q])
                    q += 1
                    if said == 252:
                        said = np.int64(buf[q]) | np.int64(buf[q + 1]) << 8
                        q += 2
                    elif said > 250:
                        said = np.int64(-1)
                    whole = said == columns
                    for b in range(bitmaps * bitmap):
                        last = b % bitmap == bitmap - 1 and (columns & 7) != 0
                        want = np.uint8((1 << (columns & 7)) - 1) if last else np.uint8(255)
                        if buf[q + b] & want != want:
                            whole = False
                            break
                    q += bitmaps * bitmap
                    if not whole or q > stop:
                        why = UNUSUAL
                        break
                    if rows == r_use.shape[0]:
                        why = FULL
                        break
                    heavy += 2 * (stop - q) + row_weight * (1 + (stop - q) // row_bytes[use])
                    if heavy >= block_bytes and inside < 0:
                        why = UNUSUAL
                        break
                    r_use[rows] = use
                    r_start[rows] = q
                    r_stop[rows] = stop
                    r_kind[rows] = change
                    r_ordinal[rows] = ordinal
                    r_entry[rows] = entries
                    r_offset[rows] = start[j]
                    rows += 1
                ordinal += 1
            elif kind == _QUERY and not opened:
                # ... NUL behind the database's name, then the statement.
                e = p + size
                if (
                    size < 6
                    or buf[e - 6] != 0
                    or buf[e - 5] != 66
                    or buf[e - 4] != 69
                    or buf[e - 3] != 71
                    or buf[e - 2] != 73
                    or buf[e - 1] != 78
                ):
                    why = UNUSUAL
                    break
                opened = True
            elif kind != _ROWS_QUERY and kind != _ANNOTATE:
                why = UNUSUAL
                break
            j += 1
        if inside >= 0:
            passed = left_out
            inside = ordinal
            i = j
            break
        if not closed:
            rows = captured
            break
        passed += left_out
        after = start[j - 1] + length[j - 1]
        if rows > captured:
            e = entries
        elif entries and e_kind[entries - 1] == PASSED:
            e = entries - 1
            e_end[e] = after
            e_ts[e] = max(e_ts[e], ts)
            e_events[e] += j - i
        else:
            e = entries
        if e == entries:
            e_kind[e] = TRANSACTION if rows > captured else PASSED
            e_begin[e] = end
            e_end[e] = after
            e_seq[e] = base_seq | start[i]
            e_ts[e] = ts
            e_events[e] = j - i
            e_rows[e] = rows - captured
            if rows > captured or e or not joins:
                weight += entry_bytes
            entries += 1
        weight += heavy
        end = after
        if name >= 0:
            r = runs - 1
            together = runs and run_entry[r] == e and run_name[r] == name
            if together and names[name, 2] == 1 and number >= run_high[r]:
                run_low[r] = run_high[r] = number  # of a MariaDB domain the last one stands for all before it
            elif together and names[name, 2] == 0 and number == run_high[r] + 1:
                run_high[r] = number
            else:
                run_entry[runs] = e
                run_name[runs] = name
                run_low[runs] = number
                run_high[runs] = number
                runs += 1
        i = j
    result[0] = i
    result[1] = entries
    result[2] = rows
    result[3] = runs
    result[4] = passed
    result[5] = end
    result[6] = group_number
    result[7] = inside
    return why


@nb.njit(nogil=True, cache=True)
def pack(buf, start, stop, count, out, to):
    """Copies buf[start[k]:stop[k]] one behind the other to out[to:], and says in start and stop where they lie now."""
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
