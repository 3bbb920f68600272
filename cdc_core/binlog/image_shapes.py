"""Which values row images contain, and what replaces values that no image contains (binlog_row_image MINIMAL, NOBLOB,
FULL_NODUP).

An update's after image omits what did not change: the before image has it, or else the value is absent, which is not
null. An INSERT omits what it left to a literal default; expressions are logged. The images of a delete and before an
update must contain the key, or all columns of a table without a key: otherwise nobody can tell which row changed.
MariaDB omits generated columns even where they change, so that no older value may replace an absent one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.binlog import scan
from cdc_core.binlog.column_buffers import Literals
from cdc_core.binlog.row_images import RowImages
from cdc_core.binlog.rows_event import INSERT, UPDATE
from cdc_core.binlog.table_map import TableMap
from cdc_core.binlog.wire import malformed
from cdc_core.errors import RESYNC, Refused, defect
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged_columns import absent_text

Bools = npt.NDArray[np.bool_]

Defaults = Callable[[Sequence[str]], Mapping[str, str | None]]
"""Default of each named column as the server shows it: text, None for NULL; hex of bytes, seconds of a TIMESTAMP,
the number of a BIT. Raises if they are unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageShape:
    """Events of one kind with one pair of bitmaps. present: columns of the (before) image; after: of the last one.

    differences: after images of JSON may be differences from the before image.
    """

    events: scan.Longs
    kind: int
    differences: bool
    bitmaps: tuple[bytes, bytes]
    present: Bools
    after: Bools

    def unchanged(self, schema: TableSchema) -> Bools:
        """Columns that an after image omits because they did not change: the before image has their value. A generated
        column of MariaDB may have changed, as row images omit it either way."""
        found: Bools = self.present & ~self.after
        for i, column in enumerate(schema.columns):
            found[i] &= column.logged
        return found

    def known(self, schema: TableSchema) -> Bools:
        """Columns whose value after the change is in some image."""
        found: Bools = self.after | self.unchanged(schema)
        return found

    @property
    def whole(self) -> bool:
        return bool(self.present.all() and self.after.all()) and not self.differences

    def for_kernels(self, table_map: TableMap) -> scan.ScanShape:
        return scan.shape_of(table_map, *self.bitmaps, self.differences)

    def omitted(self, schema: TableSchema) -> list[str]:
        """Columns that take their default: the log does not have their values."""
        if self.kind != INSERT:
            return []
        return [column.name for column in _lacking(schema, self.known(schema)) if not column.generated]

    def absent(self, schema: TableSchema) -> str | None:
        """The columns without a value, as `_cdc_absent` names them."""
        after = _lacking(schema, self.known(schema))
        if self.kind == INSERT:
            after = [column for column in after if column.generated]
        before = _lacking(schema, self.present) if self.kind == UPDATE else []
        return absent_text([column.name for column in after], [column.name for column in before])

    def require_identity(self, schema: TableSchema, where: str) -> None:
        """Raises Refused (source.incomplete_rows) if an image does not identify its row."""
        if self.kind == INSERT:
            needed, there = set(schema.key), self.known(schema)
        else:
            needed = set(schema.key) or {column.name for column in schema.columns if not column.generated}
            there = self.present
        lacking = [column.name for column in _lacking(schema, there) if column.name in needed]
        if lacking:
            raise Refused(
                f"Row images of {schema.name} lack {', '.join(lacking)}, so they do not say which row changed.",
                where=where,
                code="source.incomplete_rows",
                remedy="SET GLOBAL binlog_row_image = FULL on the source and let sessions reconnect, or give the "
                f"table a primary key; and {RESYNC}",
            )


def _lacking(schema: TableSchema, there: Bools) -> list[Column]:
    return [column for column, present in zip(schema.columns, there[: len(schema.columns)], strict=True) if not present]


@dataclass(frozen=True, slots=True, eq=False)
class DefaultedRows:
    """Rows whose images lack a column that the server filled with its default. default: None is NULL."""

    rows: Bools
    default: str | None

    def fill(self, column: Column, values: pa.Array) -> tuple[pa.Array, Literals | None]:
        """The column with its default in the rows (null until now), and the default's exact text where no Arrow type
        holds it."""
        if self.default is None:
            return values, None
        kind = column.type.arrow
        if column.type.base == "timestamp":
            seconds, _, fraction = self.default.partition(".")
            if not int(seconds):
                zero = "0000-00-00 00:00:00" + ("." + "0" * column.type.fsp if column.type.fsp else "")
                return values, self._literals(zero)
            scalar = pa.scalar(int(seconds) * 1_000_000 + int(fraction.ljust(6, "0")[:6]), pa.int64()).cast(kind)
        elif pa.types.is_binary(kind):
            scalar = pa.scalar(bytes.fromhex(self.default), kind)
        else:
            try:
                scalar = pa.scalar(self.default).cast(kind)
            except pa.ArrowInvalid:
                return values, self._literals(self.default)
        return pc.if_else(pa.array(self.rows), scalar, values), None

    def _literals(self, text: str) -> Literals:
        at = np.flatnonzero(self.rows)
        return Literals(at, pa.array([text]).take(pa.array(np.zeros_like(at))))


@dataclass(frozen=True, slots=True, eq=False)
class LocatedValues:
    """The spans of all values of the rows, and what replaces values that no image contains.

    absent:    dictionary<int32, string>, one a row: see DecodedRows.
    defaulted: by name of the column.
    """

    places: scan.RowSpans
    absent: pa.DictionaryArray
    defaulted: Mapping[str, DefaultedRows]
    _shapes: Sequence[ImageShape]

    def json_differences(self, buffer: scan.Bytes, json: int) -> scan.Longs:
        """The updates (by their number) whose after image of the `json`-th JSON column is a difference.

        After the before image comes a byte: 1 where a bit for each JSON column of the table follows.
        """
        events = [shape.events for shape in self._shapes if shape.differences]
        if not events:
            return np.zeros(0, np.int64)
        places, rows = self.places, self.places.rows_per_event
        event_of_row = np.repeat(np.arange(len(rows)), rows)
        update = np.flatnonzero(np.isin(event_of_row[places.before_row], np.concatenate(events)))
        at = places.before_end[update]
        marked = buffer[at] == 1
        update, at = update[marked], at[marked]
        found: scan.Longs = update[buffer[at + 1 + (json >> 3)] >> (json & 7) & 1 > 0]
        return found


def locate_values(
    schema: TableSchema, table_map: TableMap, images: RowImages, defaults: Defaults | None
) -> LocatedValues:
    """Locates all values without decoding any. `images` must have the columns of `table_map`.

    Raises what `row_columns.decode_rows` raises for images that lack something, or do not match the table's shape.
    """
    shapes = image_shapes(images, table_map)
    places = _places(schema, table_map, images, shapes)
    shape_of_event = np.zeros(len(images), np.int64)
    for number, shape in enumerate(shapes):
        shape_of_event[shape.events] = number
    shape_of_row = np.repeat(shape_of_event, places.rows_per_event)
    omitted: dict[str, list[int]] = {}
    for number, shape in enumerate(shapes):
        for name in shape.omitted(schema):
            omitted.setdefault(name, []).append(number)
    given = _ask_defaults(defaults, sorted(omitted), schema, images)
    return LocatedValues(
        places=places,
        absent=pa.array([shape.absent(schema) for shape in shapes], pa.string())
        .dictionary_encode()
        .take(pa.array(shape_of_row)),
        defaulted={
            name: DefaultedRows(np.isin(shape_of_row, numbers), given[name]) for name, numbers in omitted.items()
        },
        _shapes=shapes,
    )


def require_columns(table_map: TableMap, images: RowImages) -> None:
    """Raises DataAtRisk `source.log_damaged` where the events have another number of columns than their table map."""
    if len(images) and images.columns != table_map.columns:
        raise malformed(
            f"Rows of {images.columns} columns after a table map of {table_map.name} with {table_map.columns}",
            images.where(0),
        )


def image_shapes(images: RowImages, table_map: TableMap) -> list[ImageShape]:
    """The events by form, kind and bitmaps."""
    number = images.shape.astype(np.int64) * 8 + images.partial * 4 + images.kind
    shapes = []
    for value in np.unique(number):
        pair = present_bits, after_bits = images.bitmaps[int(value) >> 3]
        present = scan.present_columns(present_bits, table_map.columns)
        after = scan.present_columns(after_bits or present_bits, table_map.columns)
        shapes.append(
            ImageShape(np.flatnonzero(number == value), int(value) & 3, bool(value & 4), pair, present, after)
        )
    return shapes


def count_rows(table_map: TableMap, images: RowImages, shapes: Sequence[ImageShape]) -> scan.Longs:
    """Rows in each event. Raises DataAtRisk (source.log_damaged)."""
    extent = images.for_kernels()
    rows = np.zeros(len(images), np.int64)
    for shape in shapes:
        events = shape.events
        counted, misfit = scan.count(extent.of(events), shape.for_kernels(table_map))
        if misfit.why != scan.OK:
            event = int(events[misfit.event])
            raise malformed(
                f"A row image of {table_map.name} does not match the table's shape, "
                f"{misfit.offset - images.start[event]} bytes "
                f"into the {images.stop[event] - images.start[event]} bytes of images",
                images.where(event),
            )
        rows[events] = counted
    return rows


def _places(schema: TableSchema, table_map: TableMap, images: RowImages, shapes: Sequence[ImageShape]) -> scan.RowSpans:
    extent = images.for_kernels()
    if all(shape.whole for shape in shapes):
        # Inserts, updates and deletes with all columns are found in one walk, in stream order.
        full = bytes([255]) * ((table_map.columns + 7) // 8)
        whole = scan.shape_of(table_map, full, full, False)
        places = scan.find(extent, whole, scan.likely_rows(extent, whole))
        if places is None:
            places = scan.find(extent, whole, int(count_rows(table_map, images, shapes).sum()))
    else:
        for shape in shapes:
            shape.require_identity(schema, images.where(int(shape.events[0])))
        places = _find_by_shape(schema, table_map, images, shapes)
    if places is None:
        raise defect(
            f"Two passes over the row images of {table_map.name} gave different results.",
            where=images.where(0),
            first="nothing of these events was staged",
        )
    return places


def _find_by_shape(
    schema: TableSchema, table_map: TableMap, images: RowImages, shapes: Sequence[ImageShape]
) -> scan.RowSpans | None:
    """As scan.find, for several shapes: a value that is not in any image has the length of a null."""
    extent, columns = images.for_kernels(), table_map.columns
    rows = count_rows(table_map, images, shapes)
    first = np.cumsum(rows) - rows
    update = np.repeat(images.kind == UPDATE, rows)
    number = np.cumsum(update) - 1
    total, updates = len(update), int(update.sum())
    offset, length = np.zeros((columns, total), np.int64), np.full((columns, total), -1, np.int32)
    before_offset, before_length = np.zeros((columns, updates), np.int64), np.full((columns, updates), -1, np.int32)
    before_end = np.zeros(updates, np.int64)
    for shape in shapes:
        events, counts = shape.events, rows[shape.events]
        found = scan.find(extent.of(events), shape.for_kernels(table_map), int(counts.sum()))
        if found is None:
            return None
        at = np.repeat(first[events] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        now = np.ix_(np.flatnonzero(shape.after), at)
        offset[now], length[now] = found.offset, found.length
        if shape.kind == UPDATE:
            was = np.ix_(np.flatnonzero(shape.present), number[at])
            before_offset[was], before_length[was] = found.before_offset, found.before_length
            before_end[number[at]] = found.before_end
            same = np.flatnonzero(shape.unchanged(schema))
            now, was = np.ix_(same, at), np.ix_(same, number[at])
            offset[now], length[now] = before_offset[was], before_length[was]
    return scan.RowSpans(rows, offset, length, before_offset, before_length, np.flatnonzero(update), before_end)


def _ask_defaults(
    defaults: Defaults | None, names: Sequence[str], schema: TableSchema, images: RowImages
) -> Mapping[str, str | None]:
    if not names:
        return {}
    if defaults is None:
        raise Refused(
            f"Row images of {schema.name} lack {', '.join(names)}, and the columns' defaults are unknown.",
            where=images.where(0),
            code="source.incomplete_rows",
            remedy=f"SET GLOBAL binlog_row_image = FULL on the source, and {RESYNC}",
        )
    return defaults(names)
