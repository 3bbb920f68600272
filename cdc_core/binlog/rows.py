"""Row images of one table, of many events, to Arrow columns.

`RowImages` keeps the bytes as they came, joined, with arrays that say where each event's images lie. The kernels
first scan all images once for the place of every value (scan.py), then fill one column after the other
(columns.py). No Python object is made per row.
Keeps true: every value is exact or stands in `literal`; bytes that do not fit the table's shape stop with the
place of their event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.binlog import scan
from cdc_core.binlog.columns import Literals, decode_column
from cdc_core.binlog.definition import SCHEMA_REMEDY, fits
from cdc_core.binlog.json import JsonError
from cdc_core.binlog.json_diff import patched
from cdc_core.binlog.partial import Defaults, Group, differing, find, groups_of, require_identity, with_default
from cdc_core.binlog.rows_event import RowsEvent
from cdc_core.binlog.table_map import TableMap, TypeCode
from cdc_core.binlog.wire import malformed
from cdc_core.errors import DataAtRisk, InternalError, Refused
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged import BEFORE_MARK, LITERAL_TYPE, LiteralEntries, row_field


@dataclass(frozen=True, slots=True)
class RowImages:
    """Images of one table map, as columns: one element an event, in stream order.

    buffer:      uint8, the images of all events.
    start, stop: int64, where each event's images lie in it.
    kind:        uint8, INSERT, UPDATE or DELETE of rows_event.
    event:       int32, the caller's number of the event, copied to its rows.
    bitmaps:     the distinct pairs of (present, present_after) bitmaps; shape: int32, index into them.
    columns:     how many columns the events say that the table has.
    offset:      int64, where each event starts in `file`, for errors.
    partial:     bool, whether an event's after images may hold differences of JSON (PARTIAL_UPDATE_ROWS).
    """

    buffer: npt.NDArray[np.uint8]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]
    event: npt.NDArray[np.int32]
    bitmaps: tuple[tuple[bytes, bytes], ...]
    shape: npt.NDArray[np.int32]
    columns: int
    offset: npt.NDArray[np.int64]
    partial: npt.NDArray[np.bool_]
    file: str = ""

    def __len__(self) -> int:
        return len(self.start)

    def where(self, event: int) -> str:
        """`file:offset` of an event, by its index here."""
        return f"{self.file}:{self.offset[event]}"

    @property
    def size_bytes(self) -> int:
        return len(self.buffer)

    @classmethod
    def of(cls, events: Sequence[RowsEvent], numbers: Sequence[int] | None = None) -> RowImages:
        """The images of `events`, which must be of one table map. numbers: the ordinal of each, 0.. by default."""
        sizes = np.array([len(event.images) for event in events], dtype=np.int64)
        stop = np.cumsum(sizes)
        pairs = [(event.present, event.present_after) for event in events]
        distinct = tuple(dict.fromkeys(pairs))
        index = {pair: i for i, pair in enumerate(distinct)}
        columns = {event.columns for event in events}
        if len(columns) > 1:
            raise malformed(f"row events of one table with {sorted(columns)} columns", events[0].event.where)
        return cls(
            buffer=np.frombuffer(b"".join(event.images for event in events), dtype=np.uint8),
            start=stop - sizes,
            stop=stop,
            kind=np.array([event.kind for event in events], dtype=np.uint8),
            event=np.array(range(len(events)) if numbers is None else numbers, dtype=np.int32),
            bitmaps=distinct,
            shape=np.array([index[pair] for pair in pairs], dtype=np.int32),
            columns=columns.pop() if columns else 0,
            offset=np.array([event.event.start for event in events], dtype=np.int64),
            partial=np.array([event.partial for event in events], dtype=np.bool_),
            file=events[0].event.file if events else "",
        )


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows in columns, n of them, in stream order.

    after:   one array per column of the schema (of its Arrow type, length n): the after image, for a delete the
             before image.
    before:  struct array of the same columns, length n: the before image of an update, else null.
    op:      dictionary<int32, string> of length n: c, u or d.
    literal: map<string, string> of length n: column -> exact text that the typed column cannot hold; a value of
             `before` is under `_before.<column>`. Null where there is none.
    absent:  dictionary<int32, string> of length n: see staged.py; null where the images hold all columns.
    event:   int32 of length n, `RowImages.event` of the event each row came from; ascending with it.
    rows_per_event: int64, rows in each event of the RowImages, in order.
    """

    after: tuple[pa.Array, ...]
    before: pa.StructArray
    op: pa.DictionaryArray
    literal: pa.MapArray
    absent: pa.DictionaryArray
    event: npt.NDArray[np.int32]
    rows_per_event: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.event)


def count_rows(table_map: TableMap, images: RowImages, schema: TableSchema | None = None) -> npt.NDArray[np.int64]:
    """Rows in each event, without decoding a value, whatever columns the images hold.

    `schema` is needed only for temporal columns of the old codes (7, 11, 12), whose width MariaDB does not log.
    Raises DataAtRisk `binlog.malformed`.
    """
    _check_columns(table_map, images)
    extent = _extent(images)
    rows = np.zeros(len(images), np.int64)
    for group in _groups(images, table_map):
        events = group.events
        shape = scan.shape_of(table_map, _fsps(schema, table_map), *group.bitmaps, group.differences)
        counted, misfit = scan.count(extent.of(events), shape)
        if misfit.why != scan.OK:
            event = int(events[misfit.event])
            raise malformed(
                f"A row image of {table_map.name} does not fit the table's shape, "
                f"{misfit.offset - images.start[event]} bytes "
                f"into the {images.stop[event] - images.start[event]} bytes of images",
                images.where(event),
            )
        rows[events] = counted
    return rows


def decode_rows(
    schema: TableSchema, table_map: TableMap, images: RowImages, defaults: Defaults | None = None
) -> DecodedRows:
    """All rows of `images`, as `schema` (of `schema_of` for this table map) types them.

    defaults: asked only where an INSERT's image lacks columns.
    Raises Refused `binlog.row_image` when an image lacks the key, or the default of a column is not to be had,
    DataAtRisk `binlog.partial_update` for a difference of JSON from a value that is not there, DataAtRisk
    `binlog.malformed` for bytes of another shape, Refused `binlog.charset` for a character set that no server has.
    """
    _check(schema, table_map, images)
    extent = _extent(images)
    buffer = extent.buffer
    groups = _groups(images, table_map)
    places = _places(schema, table_map, images, extent, groups)
    rows = places.rows_per_event
    row_of_update = places.before_row
    ends = np.cumsum(rows)

    def where(row: int) -> str:
        return images.where(int(np.searchsorted(ends, row, side="right")))

    def where_before(update: int) -> str:
        return where(int(row_of_update[update]))

    group_of_row = np.repeat(_group_of_event(groups, len(images)), rows)
    omitted: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for name in group.omitted(schema):
            omitted.setdefault(name, []).append(number)
    given = _given(defaults, sorted(omitted), schema, images)
    absent = pa.array([group.absent(schema) for group in groups], pa.string()).dictionary_encode()
    after: list[pa.Array] = []
    before: list[pa.Array] = []
    literals: list[tuple[str, Literals]] = []
    for i, column in enumerate(schema.columns):
        code, metadata = table_map.types[i], table_map.metadata[i]
        length, texts = places.length[i], None
        if code == TypeCode.JSON and images.partial.any():
            number = sum(code == TypeCode.JSON for code in table_map.types[:i])
            patches = differing(groups, buffer, places, rows, number)
            length, texts = _patched(column, i, buffer, places, patches, where_before)
        array, found = decode_column(column, code, metadata, buffer, places.offset[i], length, where)
        if texts is not None:
            array = pc.replace_with_mask(array, *texts)
        if column.name in omitted:
            taken, text = np.isin(group_of_row, omitted[column.name]), given[column.name]
            array, literal = with_default(column, array, taken, text)
            if literal is not None:
                at = np.flatnonzero(taken)
                literals.append((column.name, Literals(at, pa.array([literal]).take(pa.array(np.zeros_like(at))))))
        after.append(array)
        if found is not None:
            literals.append((column.name, found))
        if len(places.before_row):
            array, found = decode_column(
                column, code, metadata, buffer, places.before_offset[i], places.before_length[i], where_before
            )
            before.append(array)
            if found is not None:
                literals.append((BEFORE_MARK + column.name, Literals(places.before_row[found.row], found.text)))
    kinds = np.repeat(images.kind, rows).astype(np.int32)
    return DecodedRows(
        after=tuple(after),
        before=_before(schema, before, places.before_row, places.rows),
        op=pa.DictionaryArray.from_arrays(pa.array(kinds), pa.array(["c", "u", "d"])),
        literal=_literal_map(literals, places.rows),
        absent=absent.take(pa.array(group_of_row)),
        event=np.repeat(images.event, rows),
        rows_per_event=rows,
    )


def _extent(images: RowImages) -> scan.Images:
    """The images as the kernels take them, which are compiled for a buffer that cannot be written, and only once."""
    buffer = images.buffer.view()
    buffer.flags.writeable = False
    return scan.Images(buffer, images.start, images.stop, images.kind)


def _fsps(schema: TableSchema | None, table_map: TableMap) -> list[int | None]:
    return [None] * table_map.columns if schema is None else [column.type.fsp for column in schema.columns]


def _check_columns(table_map: TableMap, images: RowImages) -> None:
    if len(images) and images.columns != table_map.columns:
        raise malformed(
            f"Rows of {images.columns} columns behind a table map of {table_map.name} with {table_map.columns}",
            images.where(0),
        )


def _check(schema: TableSchema, table_map: TableMap, images: RowImages) -> None:
    if len(schema.columns) != table_map.columns:
        raise Refused(
            f"{table_map.name} is known with {len(schema.columns)} columns, and the log has {table_map.columns}.",
            where=images.where(0) if len(images) else "",
            code="binlog.schema_mismatch",
            remedy=SCHEMA_REMEDY,
        )
    # The kernels read as many bytes as the type has: a pair that schema_of would refuse must not come to them.
    for i, column in enumerate(schema.columns):
        if not fits(column.type, table_map, i):
            raise InternalError(
                f"Column {table_map.name}.{column.name} is typed {column.type}, and the log has type code "
                f"{table_map.types[i]} with metadata {table_map.metadata[i]}.",
                code="binlog.types",
                remedy="report this as a defect: schema_of must have refused the pair; nothing was staged",
            )
    _check_columns(table_map, images)


def _groups(images: RowImages, table_map: TableMap) -> list[Group]:
    return groups_of(images.kind, images.shape, images.partial, images.bitmaps, table_map.columns)


def _places(
    schema: TableSchema, table_map: TableMap, images: RowImages, extent: scan.Images, groups: list[Group]
) -> scan.Places:
    def shape_of(group: Group) -> scan.Shape:
        return scan.shape_of(table_map, _fsps(schema, table_map), *group.bitmaps, group.differences)

    places = None
    if all(group.whole for group in groups):
        full = bytes([255]) * ((table_map.columns + 7) // 8)
        shape = scan.shape_of(table_map, _fsps(schema, table_map), full, full, False)
        places = scan.find(extent, shape, scan.likely_rows(extent, shape))
        if places is None:
            places = scan.find(extent, shape, int(count_rows(table_map, images, schema).sum()))
    else:
        for group in groups:
            require_identity(schema, group, images.where(int(group.events[0])))
        rows = count_rows(table_map, images, schema)
        places = find(groups, extent, shape_of, rows, table_map.columns)
    if places is None:
        raise InternalError(
            f"Row images of {table_map.name} changed between two walks over them.",
            where=images.where(0),
            code="binlog.walk",
            remedy="report this as a defect; nothing was staged from these events",
        )
    return places


def _patched(
    column: Column, i: int, buffer: scan.Bytes, places: scan.Places, updates: scan.Longs, where: Callable[[int], str]
) -> tuple[scan.Ints, tuple[pa.BooleanArray, pa.StringArray]]:
    """The lengths of a JSON column without its differences; which rows those are, and their texts."""
    row, length = places.before_row[updates], places.length[i].copy()
    texts: list[str | None] = []
    for update, at in zip(updates.tolist(), row.tolist(), strict=True):
        if length[at] < 0:
            texts.append(None)
            continue
        if places.before_length[i, update] < 0:
            raise DataAtRisk(
                f"Column {column.name!r} was logged as a difference from a value that its before image lacks.",
                where=where(update),
                code="binlog.partial_update",
                remedy="SET GLOBAL binlog_row_image = FULL, or binlog_row_value_options = '', on the source (and in "
                "sessions that set them), then start after this transaction with a full sync of the table; or go on "
                "without the table until then: tables.on_unreadable: isolate",
            )
        before, after = places.before_offset[i, update], places.offset[i, at]
        old = buffer[before : before + places.before_length[i, update]].tobytes()
        try:
            texts.append(patched(old, buffer[after : after + length[at]].tobytes(), where(update)))
        except JsonError as error:
            raise malformed(f"Column {column.name!r}: {error}", where(update)) from error
    length[row] = -1
    mask = np.zeros(len(length), np.bool_)
    mask[row] = True
    return length, (pa.array(mask), pa.array(texts, pa.string()))


def _group_of_event(groups: list[Group], events: int) -> npt.NDArray[np.int64]:
    found = np.zeros(events, np.int64)
    for number, group in enumerate(groups):
        found[group.events] = number
    return found


def _given(
    defaults: Defaults | None, names: list[str], schema: TableSchema, images: RowImages
) -> Mapping[str, str | None]:
    if not names:
        return {}
    if defaults is None:
        raise Refused(
            f"Row images of {schema.name} lack {', '.join(names)}, and nobody knows the columns' defaults.",
            where=images.where(0),
            code="binlog.row_image",
            remedy="SET GLOBAL binlog_row_image = FULL on the source, then start after this transaction with a full "
            "sync of the table",
        )
    return defaults(names)


def _before(schema: TableSchema, columns: list[pa.Array], row: npt.NDArray[np.int64], rows: int) -> pa.StructArray:
    fields = [row_field(column) for column in schema.columns]
    if not len(row):
        return pa.nulls(rows, pa.struct(fields))
    images = pa.StructArray.from_arrays(columns, fields=fields)
    if len(row) == rows:
        return images
    index = np.zeros(rows, np.int64)
    index[row] = np.arange(len(row))
    absent = np.ones(rows, np.bool_)
    absent[row] = False
    return images.take(pa.array(index, mask=absent))


def _literal_map(literals: list[tuple[str, Literals]], rows: int) -> pa.MapArray:
    if not literals:
        return pa.nulls(rows, LITERAL_TYPE)
    names = pa.array([name for name, _ in literals])
    number = np.repeat(np.arange(len(literals)), [len(found.row) for _, found in literals])
    row = np.concatenate([found.row for _, found in literals])
    text = pa.concat_arrays([found.text for _, found in literals])
    return LiteralEntries(row, names.take(pa.array(number)), text).array(rows)
