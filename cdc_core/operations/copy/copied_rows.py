"""Rows of a copy in the columns of staged changes, at the order key just before a place of the log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_core.model.places import repeated
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
        """rows: columns of the definition, of which others are absent, and `_cdc_literal`. first: `_cdc_row` of the
        first one."""
        n, arrow, there = rows.num_rows, staged_schema(schema), set(rows.schema.names)
        columns = [arrow.field(column.name) for column in schema.columns]
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
            ABSENT: _coded(absent_text(field.name for field in columns if field.name not in there), n),
        }
        values = [
            rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(n, field.type)
            for field in columns
        ]
        before = pa.nulls(n, arrow.field(BEFORE).type)
        return pa.RecordBatch.from_arrays(
            [*values, before, *(notes[column.name] for column in BOOKKEEPING)], schema=arrow
        )

    def deletes(self, schema: TableSchema, keys: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Changes `d` of rows of which only the key is known. keys: the columns of the key, and `_cdc_literal`."""
        staged = self.rows(schema, keys, first)
        at = staged.schema.get_field_index(OP)
        return staged.set_column(at, staged.schema.field(at), _coded(DELETE, keys.num_rows))

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
    return repeated(text, n)
