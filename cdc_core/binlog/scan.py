"""Locates every value of every row image: one compiled walk over the bytes, with a check before every step.

Assumes nothing about the bytes. Keeps true: each [offset, offset + length) it writes is inside its event, so the column
kernels, which read only there, can never leave the buffer.
An image is a bitmap of nulls (one bit per column, lowest first; MariaDB sets the unused ones), then the values of
the columns that are not null. An update is a before image and an after image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc_core.binlog import decimal
from cdc_core.binlog.compiled import inlined, kernel
from cdc_core.binlog.rows_event import UPDATE
from cdc_core.binlog.table_map import TableMap, TypeCode
from cdc_core.binlog.wire import malformed

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

_FIXED = {
    TypeCode.TINY: 1, TypeCode.SHORT: 2, TypeCode.INT24: 3, TypeCode.LONG: 4, TypeCode.LONGLONG: 8,
    TypeCode.FLOAT: 4, TypeCode.DOUBLE: 8, TypeCode.DATE: 3, TypeCode.NEWDATE: 3, TypeCode.YEAR: 1,
}  # fmt: skip
_PREFIXED = frozenset({
    TypeCode.BLOB, TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB, TypeCode.JSON, TypeCode.GEOMETRY,
    TypeCode.VECTOR, TypeCode.BLOB_COMPRESSED,
})  # fmt: skip
_STRINGS = frozenset({TypeCode.STRING, TypeCode.VARCHAR, TypeCode.VAR_STRING, TypeCode.VARCHAR_COMPRESSED})
_FRACTIONAL = {TypeCode.TIMESTAMP2: 4, TypeCode.DATETIME2: 5, TypeCode.TIME2: 3}


def value_size(code: int, metadata: int) -> tuple[int, int]:
    """(size in bytes, 0), or (0, width of the length before the value). (-1, 0): a code that no server writes."""
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
        return (
            (decimal.size_bytes(precision, scale), 0)
            if scale <= min(precision, 38) and 1 <= precision <= 65
            else (-1, 0)
        )
    return -1, 0


OK, TRUNCATED, OVERFLOW = 0, 1, 2


class ImageSpans(NamedTuple):
    """Row images of events: those of event e are buffer[start[e]:stop[e]]; kind: INSERT, UPDATE or DELETE."""

    buffer: Bytes
    start: Longs
    stop: Longs
    kind: Bytes

    def of(self, events: Longs | slice) -> ImageSpans:
        """The images of some events."""
        return ImageSpans(self.buffer, self.start[events], self.stop[events], self.kind[events])


class ScanShape(NamedTuple):
    """Size and prefix width of each column that is in an image, and in the after image of an update.

    partial: bytes of the bitmap of partial JSON columns, -1 where after images are never partial.
    """

    size: Ints
    prefix: Ints
    after_size: Ints
    after_prefix: Ints
    partial: int = -1


class ValueSpans(NamedTuple):
    """Offset in the buffer and length (-1: null) of each value, [column, row]."""

    offset: Longs
    length: Ints


class BeforeSpans(NamedTuple):
    """The same for the before images of updates, [column, update]. row: of each update. end: where its image ends."""

    offset: Longs
    length: Ints
    row: Longs
    end: Longs


class Misfit(NamedTuple):
    """Why a walk stopped: OK, TRUNCATED or OVERFLOW; at which event, and where in the buffer."""

    why: int
    event: int
    offset: int


@inlined
def _image(buf, at, stop, size, prefix, offset, length, column):
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
                offset[c, column] = 0
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
            offset[c, column] = at
            length[c, column] = n
        at += n
    return at


@inlined
def _value_options(buf, at, stop, bitmap):
    """Where the after image of PARTIAL_UPDATE_ROWS begins, after its value options: 1 and a bitmap of the partial JSON
    columns, or 0. For anything else, -1 - the offset."""
    if at >= stop or buf[at] > 1:
        return -1 - at
    return at + 1 + (bitmap if buf[at] == 1 else 0)


@inlined
def _row(images, e, at, shape, spans, before, row, update):
    """One row of event e: a before and an after image, or one image. Where it ends, or -1 - the offset of a misfit.

    row, update: where spans and before are written; -1: they are not.
    """
    buf = images.buffer
    stop = images.stop[e]
    if images.kind[e] != UPDATE:
        return _image(buf, at, stop, shape.size, shape.prefix, spans.offset, spans.length, row)
    at = _image(buf, at, stop, shape.size, shape.prefix, before.offset, before.length, update)
    if at >= 0 and update >= 0:
        before.row[update] = row
        before.end[update] = at
    if at >= 0 and shape.partial >= 0:
        at = _value_options(buf, at, stop, shape.partial)
    if at >= 0:
        at = _image(buf, at, stop, shape.after_size, shape.after_prefix, spans.offset, spans.length, row)
    return at


@kernel
def _walk(
    images: ImageSpans, shape: ScanShape, rows: Longs, spans: ValueSpans, before: BeforeSpans, fill: bool
) -> Misfit:
    """All images of all events. rows: how many each event holds, written; with `fill`, spans and before too."""
    row = 0
    update = 0
    for e in range(images.start.shape[0]):
        at = images.start[e]
        stop = images.stop[e]
        first = row
        if at < 0 or stop > images.buffer.shape[0] or at > stop:
            return Misfit(TRUNCATED, e, at)
        if shape.size.shape[0] == 0 and images.kind[e] != UPDATE:
            # Images without columns have no bytes; the server writes one row of them per event.
            if at != stop:
                return Misfit(TRUNCATED, e, at)
            rows[e] = 1
            row += 1
            continue
        while at < stop:
            updates = images.kind[e] == UPDATE
            if fill and (row >= spans.offset.shape[1] or (updates and update >= before.offset.shape[1])):
                return Misfit(OVERFLOW, e, at)
            end = _row(images, e, at, shape, spans, before, row if fill else -1, update if fill else -1)
            if end < 0:
                return Misfit(TRUNCATED, e, -1 - end)
            if end == at:
                return Misfit(TRUNCATED, e, at)
            at = end
            row += 1
            update += updates
        rows[e] = row - first
    return Misfit(OK, -1, -1)


@dataclass(frozen=True, slots=True)
class RowSpans:
    """Spans of values: offset and length (-1: null), [column, row].

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


def shape_of(table_map: TableMap, present: bytes, after: bytes, partial: bool) -> ScanShape:
    """The shape of images with these bitmaps of present columns (after: b"" but for updates)."""
    size = np.zeros(table_map.columns, np.int32)
    prefix = np.zeros(table_map.columns, np.int32)
    for i, (code, metadata) in enumerate(zip(table_map.types, table_map.metadata, strict=True)):
        size[i], prefix[i] = value_size(code, metadata)
        if size[i] < 0:
            raise malformed(
                f"Column {i} of {table_map.name} has type code {code} with metadata {metadata}, which no server writes",
                "",
            )
    has = present_columns(present, table_map.columns)
    has_after = present_columns(after or present, table_map.columns)
    json_columns = sum(code == TypeCode.JSON for code in table_map.types)
    return ScanShape(
        size[has], prefix[has], size[has_after], prefix[has_after], (json_columns + 7) // 8 if partial else -1
    )


def present_columns(bitmap: bytes, columns: int) -> npt.NDArray[np.bool_]:
    """Which of the table's columns an image contains."""
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[:columns]
    return bits.astype(np.bool_)


def _spans(columns: int, rows: int) -> ValueSpans:
    return ValueSpans(np.empty((columns, rows), np.int64), np.empty((columns, rows), np.int32))


def _before_spans(columns: int, updates: int) -> BeforeSpans:
    return BeforeSpans(*_spans(columns, updates), np.empty(updates, np.int64), np.empty(updates, np.int64))


def count(images: ImageSpans, shape: ScanShape) -> tuple[Longs, Misfit]:
    """Rows per event, and the first bytes that do not match, if any."""
    rows = np.zeros(len(images.start), np.int64)
    return rows, _walk(images, shape, rows, _spans(0, 0), _before_spans(0, 0), False)


def find(images: ImageSpans, shape: ScanShape, capacity: int) -> RowSpans | None:
    """The span of every value, with space for `capacity` rows; None when that is not enough, or when bytes do not
    match: `count` says which."""
    updating = images.kind == UPDATE
    rows = np.zeros(len(images.start), np.int64)
    spans = _spans(len(shape.after_size), capacity)
    before = _before_spans(len(shape.size), capacity if bool(updating.any()) else 0)
    if _walk(images, shape, rows, spans, before, True).why != OK:
        return None
    total, updated = int(rows.sum()), int(rows[updating].sum())
    return RowSpans(
        rows,
        spans.offset[:, :total],
        spans.length[:, :total],
        before.offset[:, :updated],
        before.length[:, :updated],
        before.row[:updated],
        before.end[:updated],
    )


def likely_rows(images: ImageSpans, shape: ScanShape) -> int:
    """Estimated rows of all events, from the row sizes in the first few. Excess memory is never touched."""
    few = images.of(slice(0, 8))
    rows, _ = count(few, shape)
    size = int((few.stop - few.start).sum())
    whole = int((images.stop - images.start).sum())
    return 64 if size == 0 else int(1.25 * int(rows.sum()) * whole / size) + 64
