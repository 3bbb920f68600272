"""Row images of one table, of many events, to Arrow columns.

`RowImages` keeps the bytes as they came, joined, with arrays of each event's span. The kernels first scan all images
once to locate every value (scan.py), then fill one column after the other (column_buffers.py). No Python object is
created per row. Keeps true: every value is exact or has its text in `literal`; bytes that do not match the table's
shape raise an error with the position of their event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.binlog import scan
from cdc_core.binlog.column_buffers import Literals, decode_column, literal_map
from cdc_core.binlog.image_shapes import Defaults, locate_values, require_columns
from cdc_core.binlog.json import JsonError
from cdc_core.binlog.json_diff import patched
from cdc_core.binlog.row_definition import SCHEMA_REMEDY, fits, is_hidden
from cdc_core.binlog.row_images import RowImages
from cdc_core.binlog.table_map import TableMap, TypeCode
from cdc_core.binlog.wire import malformed
from cdc_core.errors import RESYNC, Refused, defect
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged_columns import BEFORE_MARK, row_field


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows in columns, n of them, in stream order.

    after:   one array per column of the schema (of its Arrow type): the after image, for a delete the before image.
    before:  struct array of the same columns: the before image of an update, else null.
    op:      dictionary<int32, string>: c, u or d.
    literal: map<string, string>: column -> exact text that the typed column cannot hold; a value of `before` is under
             `_before.<column>`. Null where there is none.
    absent:  dictionary<int32, string>: see staged_columns.py; null where the images hold all columns.
    event:   int32, `RowImages.event` of the event each row came from; ascending with it.
    rows_per_event: int64, one for each event of the RowImages, in order.
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


def decode_rows(
    schema: TableSchema, table_map: TableMap, images: RowImages, defaults: Defaults | None = None
) -> DecodedRows:
    """All rows of `images`, with the types of `schema` (from `schema_of` for this table map).

    defaults: asked only where an INSERT's image lacks columns.
    Raises Refused `source.incomplete_rows` when an image lacks the key, or the default of a column is unknown,
    DataAtRisk `source.incomplete_rows` for a difference of JSON from a value that is missing, DataAtRisk
    `source.log_damaged` for bytes of another shape, Refused `source.unsupported_table` for a character set that no
    server has.
    """
    _check(schema, table_map, images)
    buffer = images.for_kernels().buffer
    located = locate_values(schema, table_map, images, defaults)
    places = located.places
    rows = places.rows_per_event
    row_of_update = places.before_row
    ends = np.cumsum(rows)

    def where(row: int) -> str:
        return images.where(int(np.searchsorted(ends, row, side="right")))

    def where_before(update: int) -> str:
        return where(int(row_of_update[update]))

    after: list[pa.Array] = []
    before: list[pa.Array] = []
    literals: list[tuple[str, Literals]] = []
    for i, column in enumerate(schema.columns):
        code, metadata = table_map.types[i], table_map.metadata[i]
        length, texts = places.length[i], None
        if code == TypeCode.JSON and images.partial.any():
            number = sum(code == TypeCode.JSON for code in table_map.types[:i])
            patches = located.json_differences(buffer, number)
            length, texts = _patched(column, i, buffer, places, patches, where_before)
        array, found = decode_column(column, code, metadata, buffer, places.offset[i], length, where)
        if texts is not None:
            array = pc.replace_with_mask(array, *texts)
        if (defaulted := located.defaulted.get(column.name)) is not None:
            array, literal = defaulted.fill(column, array)
            if literal is not None:
                literals.append((column.name, literal))
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
        literal=literal_map(literals, places.rows),
        absent=located.absent,
        event=np.repeat(images.event, rows),
        rows_per_event=rows,
    )


def _check(schema: TableSchema, table_map: TableMap, images: RowImages) -> None:
    own = len(schema.columns)
    if own > table_map.columns or (own < table_map.columns and not is_hidden(table_map, own)):
        raise Refused(
            f"{table_map.name} has {table_map.columns} columns in the log, and {len(schema.columns)} by its "
            "definition.",
            where=images.where(0) if len(images) else "",
            code="source.incomplete_rows",
            remedy=SCHEMA_REMEDY,
        )
    # The kernels read as many bytes as the type has: a pair that schema_of would refuse must not reach them.
    for i, column in enumerate(schema.columns):
        if not fits(column.type, table_map, i):
            raise defect(
                f"Column {table_map.name}.{column.name} has type {column.type}, but the log has type code "
                f"{table_map.types[i]} with metadata {table_map.metadata[i]}.",
                first="nothing was staged",
                attach="the table's SHOW CREATE TABLE",
            )
    require_columns(table_map, images)


def _patched(
    column: Column,
    i: int,
    buffer: scan.Bytes,
    places: scan.RowSpans,
    updates: scan.Longs,
    where: Callable[[int], str],
) -> tuple[scan.Ints, tuple[pa.BooleanArray, pa.StringArray]]:
    """The lengths of a JSON column without its differences; the rows with differences, and their texts."""
    row, length = places.before_row[updates], places.length[i].copy()
    texts: list[str | None] = []
    for update, at in zip(updates.tolist(), row.tolist(), strict=True):
        if length[at] < 0:
            texts.append(None)
            continue
        if places.before_length[i, update] < 0:
            raise Refused(
                f"Column {column.name!r} was logged as a difference from a value that its before image lacks.",
                where=where(update),
                code="source.incomplete_rows",
                remedy="on the source and in its sessions, SET binlog_row_image = FULL or binlog_row_value_options "
                f"= ''; and {RESYNC}",
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
