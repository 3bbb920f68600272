"""Rows of a copy in the columns of staged changes, at the order key just before a place of the log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import (
    ABSENT,
    BEFORE,
    BOOKKEEPING,
    DELETE,
    FILE,
    GTID,
    LITERAL,
    OP,
    POS,
    ROW,
    SEQ,
    SNAPSHOT,
    SOURCE,
    TRUNCATE,
    TS,
    absent_text,
    staged_schema,
)


@dataclass(frozen=True, slots=True)
class CopiedAt:
    """What all rows of a copy say. place: whatever the log brings from there on is newer. ts_us: their `_cdc_ts`."""

    source: str
    place: Position
    ts_us: int

    def rows(self, schema: TableSchema, rows: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """rows: the columns of the definition, and `_cdc_literal`. first: `_cdc_row` of the first one."""
        n, arrow = rows.num_rows, staged_schema(schema)
        notes = {
            OP: _coded(SNAPSHOT, n),
            TS: pa.array(np.full(n, self.ts_us), pa.timestamp("us", tz="UTC")),
            SOURCE: _coded(self.source, n),
            FILE: _coded(self.place.file, n),
            POS: pa.array(np.full(n, self.place.offset)),
            ROW: pa.array(np.arange(first, first + n)),
            SEQ: pa.array(np.full(n, self.place.seq - 1)),
            GTID: pa.nulls(n, pa.string()),
            LITERAL: rows.column(LITERAL),
            ABSENT: _coded(None, n),
        }
        values = [rows.column(column.name).cast(arrow.field(column.name).type) for column in schema.columns]
        before = pa.nulls(n, arrow.field(BEFORE).type)
        return pa.RecordBatch.from_arrays(
            [*values, before, *(notes[column.name] for column in BOOKKEEPING)], schema=arrow
        )

    def deletes(self, schema: TableSchema, keys: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Changes `d` of rows of which only the key is known. keys: the columns of the key, and `_cdc_literal`."""
        n, arrow = keys.num_rows, staged_schema(schema)
        none = {column.name: pa.nulls(n, arrow.field(column.name).type) for column in schema.columns}
        rows = pa.RecordBatch.from_pydict({**none, **{name: keys.column(name) for name in keys.schema.names}})
        staged = self.rows(schema, rows, first)
        absent = absent_text(column.name for column in schema.columns if column.name not in schema.key)
        for name, text in ((OP, DELETE), (ABSENT, absent)):
            at = staged.schema.get_field_index(name)
            staged = staged.set_column(at, staged.schema.field(at), _coded(text, n))
        return staged

    def truncate(self, schema: TableSchema, row: int) -> pa.RecordBatch:
        """A change `t`. row: its `_cdc_row`."""
        notes = {
            OP: TRUNCATE,
            TS: self.ts_us,
            SOURCE: self.source,
            FILE: self.place.file,
            POS: self.place.offset,
            ROW: row,
            SEQ: self.place.seq - 1,
        }
        return pa.RecordBatch.from_pylist([notes], schema=staged_schema(schema))


def _coded(text: str | None, n: int) -> pa.DictionaryArray:
    if text is None:
        return pa.DictionaryArray.from_arrays(pa.nulls(n, pa.int32()), pa.array([], pa.string()))
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([text], pa.string()))
