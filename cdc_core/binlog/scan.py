"""Where every value of every row image lies: one compiled walk over the bytes, with a check before every step.

Assumes nothing of the bytes. Keeps true: each [offset, offset + length) it writes lies inside its event, so the
column kernels, which read only there, can never leave the buffer.
An image is a bitmap of nulls (one bit per column, lowest first; MariaDB sets the unused ones), then the values of
the columns that are not null. An update is a before image and an after image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba as nb
import numpy as np
import numpy.typing as npt

from cdc_core.binlog.rows_event import UPDATE
from cdc_core.binlog.table_map import TableMap, TypeCode
from cdc_core.binlog.wire import malformed

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

_FIXED = {
    TypeCode.TINY: 1, TypeCode.SHORT: 2, TypeCode.INT24: 3, TypeCode.LONG: 4, TypeCode.LONGLONG: 8,
    TypeCode.FLOAT: 4, TypeCode.DOUBLE: 8, TypeCode.DATE: 3, TypeCode.NEWDATE: 3, TypeCode.YEAR: 1,
    TypeCode.TIMESTAMP: 4, TypeCode.DATETIME: 8, TypeCode.TIME: 3,
}  # fmt: skip
_PREFIXED = frozenset({
    TypeCode.BLOB, TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB, TypeCode.JSON, TypeCode.GEOMETRY,
    TypeCode.VECTOR, TypeCode.BLOB_COMPRESSED,
})  # fmt: skip
_STRINGS = frozenset({TypeCode.STRING, TypeCode.VARCHAR, TypeCode.VAR_STRING, TypeCode.VARCHAR_COMPRESSED})
_FRACTIONAL = {TypeCode.TIMESTAMP2: 4, TypeCode.DATETIME2: 5, TypeCode.TIME2: 3}
# MariaDB's own fractional forms of the old codes, by digits (sql/field.cc: sec_part_bytes, datetime_hires_bytes).
_HIRES = {
    TypeCode.TIMESTAMP: (4, 5, 5, 6, 6, 7, 7),
    TypeCode.DATETIME: (8, 6, 6, 7, 7, 7, 8),
    TypeCode.TIME: (3, 4, 4, 5, 5, 5, 6),
}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_bytes(precision: int, scale: int) -> int:
    """Bytes of a DECIMAL: 4 for each 9 digits, fewer for the rest, before and after the point."""
    whole = precision - scale
    return whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + scale // 9 * 4 + _DIGIT_BYTES[scale % 9]


def value_size(code: int, metadata: int, fsp: int | None) -> tuple[int, int]:
    """(size in bytes, 0), or (0, width of the length before the value). fsp: for the old temporal codes only.

    (-1, 0): a code that no server writes.
    """
    if code in _HIRES and fsp:
        return _HIRES[TypeCode(code)][fsp], 0
    if code in _FIXED:
        return _FIXED[TypeCode(code)], 0
    if code in _FRACTIONAL:
        return (_FRACTIONAL[TypeCode(code)] + (metadata + 1) // 2, 0) if metadata <= 6 else (-1, 0)
    if code in _STRINGS:
        return 0, 1 if metadata <= 255 else 2
    if code in _PREFIXED:
        return (0, metadata) if 1 <= metadata <= 4 else (-1, 0)
    if code in (TypeCode.ENUM, TypeCode.SET):
        return (metadata, 0) if 1 <= metadata <= 8 else (-1, 0)
    if code == TypeCode.BIT:
        return ((metadata + 7) // 8, 0) if 1 <= metadata <= 64 else (-1, 0)
    if code == TypeCode.DECIMAL:
        precision, scale = metadata >> 8, metadata & 255
        return (decimal_bytes(precision, scale), 0) if scale <= min(precision, 38) and 1 <= precision <= 65 else (-1, 0)
    return -1, 0


OK, TRUNCATED, OVERFLOW = 0, 1, 2


@nb.njit(nogil=True, cache=True)
def _image(buf, at, stop, size, prefix, off, length, column):  # type: ignore[no-untyped-def]
    """One image from `at`; returns where it ends, or -1 - the offset at which a value would pass `stop`.

    column < 0: writes nothing, only walks.
    """
    columns = size.shape[0]
    nulls = at
    at += (columns + 7) >> 3
    if at > stop:
        return -1 - nulls
    for c in range(columns):
        if buf[nulls + (c >> 3)] >> np.uint8(c & 7) & np.uint8(1):
            if column >= 0:
                off[c, column] = 0
                length[c, column] = -1
            continue
        n = np.int64(size[c])
        if prefix[c]:
            p = np.int64(prefix[c])
            if at + p > stop:
                return -1 - at
            n = np.int64(buf[at])
            if p > 1:
                n |= np.int64(buf[at + 1]) << 8
            if p > 2:
                n |= np.int64(buf[at + 2]) << 16
            if p > 3:
                n |= np.int64(buf[at + 3]) << 24
            at += p
        if n > stop - at:
            return -1 - at
        if column >= 0:
            off[c, column] = at
            length[c, column] = n
        at += n
    return at


@nb.njit(nogil=True, cache=True)
def _walk(  # type: ignore[no-untyped-def]
    buf,
    start,
    stop,
    kind,
    size,
    prefix,
    a_size,
    a_prefix,
    partial,
    fill,
    rows,
    off,
    length,
    b_off,
    b_length,
    b_row,
    b_end,
    bad,
):
    """All images of all events. rows: rows per event, written. a_size, a_prefix: of the after images of updates.

    partial: bytes of the bitmap of partial JSON columns, -1 when after images are never partial.
    fill: off, length (and b_ for the before images of updates, b_row their row, b_end where they end) are written too.
    bad: (event, offset) of what does not fit. Returns OK, TRUNCATED or OVERFLOW.
    """
    row = 0
    update = 0
    for e in range(start.shape[0]):
        at = start[e]
        end = stop[e]
        first = row
        if at < 0 or end > buf.shape[0] or at > end:
            bad[0] = e
            bad[1] = at
            return TRUNCATED
        if size.shape[0] == 0 and kind[e] != UPDATE:
            # Images without columns have no bytes; the server writes one row of them per event.
            if at != end:
                bad[0] = e
                bad[1] = at
                return TRUNCATED
            rows[e] = 1
            row += 1
            continue
        while at < end:
            row_at = at
            if fill and (row >= off.shape[1] or (kind[e] == UPDATE and update >= b_off.shape[1])):
                bad[0] = e
                bad[1] = at
                return OVERFLOW
            if kind[e] == UPDATE:
                at = _image(buf, at, end, size, prefix, b_off, b_length, update if fill else -1)
                if at >= 0:
                    if fill:
                        b_row[update] = row
                        b_end[update] = at
                    update += 1
                    if partial >= 0:
                        # Value options: 1 when a bitmap of the partial JSON columns follows, else 0.
                        if at >= end or buf[at] > 1:
                            at = -1 - at
                        elif buf[at] == 1:
                            at += 1 + partial
                        else:
                            at += 1
                if at >= 0:
                    at = _image(buf, at, end, a_size, a_prefix, off, length, row if fill else -1)
            else:
                at = _image(buf, at, end, size, prefix, off, length, row if fill else -1)
            if at == row_at:
                at = -1 - at
            if at < 0:
                bad[0] = e
                bad[1] = -1 - at
                return TRUNCATED
            row += 1
        rows[e] = row - first
    return OK


@dataclass(frozen=True, slots=True)
class Places:
    """Places of values: offset and length (-1: null), [column, row].

    before_*: of the before images of updates only, [column, update], with the row of each in `before_row`, and where
    the image ends in `before_end`.
    """

    rows_per_event: Longs
    offset: Longs
    length: Ints
    before_offset: Longs
    before_length: Ints
    before_row: Longs
    before_end: Longs

    @property
    def rows(self) -> int:
        return int(self.offset.shape[1])


@dataclass(frozen=True, slots=True)
class Shape:
    """Size and prefix width of each column in an image (for the walk), and in the after image of an update."""

    size: Ints
    prefix: Ints
    after_size: Ints
    after_prefix: Ints
    partial: int = -1


def shape_of(table_map: TableMap, fsps: Sequence[int | None], present: bytes, after: bytes, partial: bool) -> Shape:
    """The shape of images with these bitmaps of present columns (after: b"" but for updates).

    fsps: digits of old temporal columns, None where unknown.
    """
    size = np.zeros(table_map.columns, np.int32)
    prefix = np.zeros(table_map.columns, np.int32)
    for i, (code, metadata) in enumerate(zip(table_map.types, table_map.metadata, strict=True)):
        size[i], prefix[i] = value_size(code, metadata, fsps[i])
        if size[i] < 0:
            raise malformed(
                f"Column {i} of {table_map.name} has type code {code} with metadata {metadata}, which no server writes",
                "",
            )
    has = present_columns(present, table_map.columns)
    has_after = present_columns(after or present, table_map.columns)
    json_columns = sum(code == TypeCode.JSON for code in table_map.types)
    return Shape(size[has], prefix[has], size[has_after], prefix[has_after], (json_columns + 7) // 8 if partial else -1)


def present_columns(bitmap: bytes, columns: int) -> npt.NDArray[np.bool_]:
    """Which of the table's columns an image holds."""
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[:columns]
    return bits.astype(np.bool_)


def count(buffer: Bytes, start: Longs, stop: Longs, kind: Bytes, shape: Shape) -> tuple[Longs, Longs]:
    """Rows per event, and (-1, -1) or (event, offset in the buffer) of the first bytes that do not fit."""
    rows = np.zeros(len(start), np.int64)
    bad = np.full(2, -1, np.int64)
    _walk(
        buffer, start, stop, kind, shape.size, shape.prefix, shape.after_size, shape.after_prefix, shape.partial,
        False, rows, np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int32), np.zeros((0, 0), np.int64),
        np.zeros((0, 0), np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64), bad,
    )  # fmt: skip
    return rows, bad


def find(buffer: Bytes, start: Longs, stop: Longs, kind: Bytes, shape: Shape, capacity: int) -> Places | None:
    """The place of every value, with room for `capacity` rows; None when that is not enough, or something does not
    fit: `count` tells which."""
    updates = capacity if bool((kind == UPDATE).any()) else 0
    columns, before = len(shape.after_size), len(shape.size)
    rows = np.zeros(len(start), np.int64)
    offset, length = np.empty((columns, capacity), np.int64), np.empty((columns, capacity), np.int32)
    before_offset, before_length = np.empty((before, updates), np.int64), np.empty((before, updates), np.int32)
    before_row, before_end = np.empty(updates, np.int64), np.empty(updates, np.int64)
    status = _walk(
        buffer, start, stop, kind, shape.size, shape.prefix, shape.after_size, shape.after_prefix, shape.partial,
        True, rows, offset, length, before_offset, before_length, before_row, before_end,
        np.full(2, -1, np.int64),
    )  # fmt: skip
    if status != OK:
        return None
    total, updated = int(rows.sum()), int(rows[kind == UPDATE].sum())
    return Places(
        rows, offset[:, :total], length[:, :total], before_offset[:, :updated], before_length[:, :updated],
        before_row[:updated], before_end[:updated],
    )  # fmt: skip


def likely_rows(buffer: Bytes, start: Longs, stop: Longs, kind: Bytes, shape: Shape) -> int:
    """Rows that all events may hold, by the size of those in the first few. Memory in excess is never touched."""
    few = slice(0, 8)
    rows, _ = count(buffer, start[few], stop[few], kind[few], shape)
    size = int((stop[few] - start[few]).sum())
    whole = int((stop - start).sum())
    return 64 if size == 0 else int(1.25 * int(rows.sum()) * whole / size) + 64
