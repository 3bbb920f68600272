"""The columns of a staged change: the row's own, then the bookkeeping.

One Parquet schema for every reader: the stage writes it, Spark and DuckDB read it, the snapshot fills it too.
Parquet field metadata (keys `source_type`, `charset`, `collation`, `key_part`, `generated`) keeps what Arrow's
types do not say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import TableRefused
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.version import VERSION_COLUMN

INSERT, UPDATE, DELETE, SNAPSHOT, TRUNCATE = "c", "u", "d", "r", "t"

BEFORE = "_before"
BEFORE_MARK = f"{BEFORE}."
"""The prefix of a column's name in `_cdc_literal` and `_cdc_absent` that means the before image."""
OP = "_cdc_op"
TS = "_cdc_ts"
SOURCE = "_cdc_source"
FILE = "_cdc_file"
POS = "_cdc_pos"
ROW = "_cdc_row"
SEQ = "_cdc_seq"
GTID = "_cdc_gtid"
LITERAL = "_cdc_literal"
ABSENT = "_cdc_absent"
SOURCE_TABLE = "_cdc_source_table"
"""Of no staged row, but of what shows several files: the name of the change's table on its source."""

_TEXT = pa.dictionary(pa.int32(), pa.string())

BOOKKEEPING: tuple[pa.Field, ...] = (
    pa.field(OP, _TEXT, nullable=False),
    pa.field(TS, pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field(SOURCE, _TEXT, nullable=False),
    pa.field(FILE, _TEXT, nullable=False),
    pa.field(POS, pa.int64(), nullable=False),
    pa.field(ROW, pa.int64(), nullable=False),
    pa.field(SEQ, pa.int64(), nullable=False),
    pa.field(GTID, pa.string()),
    pa.field(LITERAL, pa.map_(pa.string(), pa.string())),
    pa.field(ABSENT, _TEXT),
)
"""op: c u d r t. ts: commit time. pos: offset in the file where the event that holds the row starts.
row: `ordinal of the row event in its transaction << 24 | ordinal of the row in that event`, both from 0. Row events
of all tables count, captured or not, so that it is a function of the log alone and no row has to be decoded for it;
it ascends within a transaction. Row events inside a TRANSACTION_PAYLOAD or an XA PREPARE group count like others.
literal: column name -> exact text of a value that the typed column cannot hold (which is null there); an empty text
says that the '' of an ENUM is its error value (index 0) and not the label '' that it has as well;
a value of the before image is under `_before.<column>`.
absent: names, as a JSON array in the table's order, of the columns whose values the log did not carry, and which are
therefore null here without being null at the source; `_before.<column>` for the before image. Null where all are
there. One text per shape of row image, dictionary-encoded: a log of full images pays nothing for it, and a name may
hold any character."""

ROW_BITS = 24
MAX_ROWS_OF_EVENT = 1 << ROW_BITS

RESERVED_PREFIX = "_cdc_"
"""All bookkeeping has it: that of staged rows, of merged ones (model/merged_columns.py), and of what Spark adds on the
way. Not reserved is VERSION_COLUMN: target tables have it, which may be sources themselves, and no row on its way
does."""


def absent_text(after: Iterable[str], before: Iterable[str] = ()) -> str | None:
    """The `_cdc_absent` of a row without these values; None for a whole row."""
    names = [*after, *(BEFORE_MARK + name for name in before)]
    return json.dumps(names, ensure_ascii=False, separators=(",", ":")) if names else None


def renamed_in_bookkeeping(columns: Iterable[tuple[str, str]]) -> dict[str, str]:
    """New names by old ones, as `_cdc_literal` and `_cdc_absent` have them, for values and for values before. columns:
    the old and the new name of each; those that keep theirs are left out."""
    return {mark + old: mark + new for old, new in columns if old != new for mark in ("", BEFORE_MARK)}


def lacking(rows: pa.RecordBatch) -> tuple[pa.Array, list[frozenset[str]]]:
    """(index of each row's set, null for a whole row; the sets of names that `_cdc_absent` has among these rows)."""
    at = rows.schema.get_field_index(ABSENT)
    texts = rows.column(at) if at >= 0 else pa.nulls(rows.num_rows, pa.string())
    coded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    return coded.indices, [frozenset(json.loads(text)) for text in coded.dictionary.to_pylist()]


@dataclass(frozen=True, slots=True)
class LiteralEntries:
    """`_cdc_literal` of some rows in columns, an element an entry: the row's index, column's name, and exact text."""

    row: npt.NDArray[np.int64]
    name: pa.StringArray
    text: pa.StringArray

    @classmethod
    def of(cls, literal: pa.MapArray) -> LiteralEntries:
        ends = literal.offsets.to_numpy()
        low, high = int(ends[0]), int(ends[-1])
        row = np.repeat(np.arange(len(literal)), np.diff(ends))
        return cls(row, literal.keys[low:high], literal.items[low:high])

    def where(self, kept: npt.NDArray[np.bool_]) -> LiteralEntries:
        mask = pa.array(kept)
        return LiteralEntries(self.row[kept], self.name.filter(mask), self.text.filter(mask))

    def among(self, names: Iterable[str]) -> npt.NDArray[np.bool_]:
        """Which entries are of these columns."""
        found: npt.NDArray[np.bool_] = pc.is_in(self.name, pa.array(list(names), pa.string())).to_numpy(False)
        return found

    def array(self, rows: int) -> pa.MapArray:
        """The column for this many rows: null in rows without an entry."""
        if not len(self.row):
            return pa.nulls(rows, LITERAL_TYPE)
        order = np.argsort(self.row, kind="stable")
        counts = np.bincount(self.row, minlength=rows)
        ends = np.zeros(rows + 1, np.int32)
        np.cumsum(counts, out=ends[1:])
        entries = pa.StructArray.from_arrays(
            [self.name.take(pa.array(order)), self.text.take(pa.array(order))],
            fields=[LITERAL_TYPE.key_field, LITERAL_TYPE.item_field],
        )
        present = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
        return pa.Array.from_buffers(LITERAL_TYPE, rows, [present, pa.py_buffer(ends)], children=[entries])


LITERAL_TYPE: pa.MapType = next(field.type for field in BOOKKEEPING if field.name == LITERAL)


def require_unreserved(table: TableSchema) -> None:
    """Refused (source.unsupported_table) for a table with a column that is named like bookkeeping."""
    taken = sorted(column.name for column in table.columns if _is_reserved(column.name.lower()))
    if taken:
        raise TableRefused(
            f"{table.name} has a column {taken[0]!r}, a name that Lockstep reserves for its own columns.",
            where=table.name,
            code="source.unsupported_table",
            remedy="rename the column on the source, or exclude the table (tables.exclude)",
        )


def _is_reserved(name: str) -> bool:
    return name == BEFORE or (name.startswith(RESERVED_PREFIX) and name != VERSION_COLUMN)


def row_field(column: Column) -> pa.Field:
    """The Arrow field of a row's column. Always nullable: exact values may stand in `_cdc_literal` instead."""
    metadata = {"source_type": str(column.type)}
    if column.type.charset:
        metadata |= {"charset": column.type.charset, "collation": column.type.collation}
    if column.key_part is not None:
        metadata["key_part"] = str(column.key_part)
    if column.generated:
        metadata["generated"] = "1"
    return pa.field(column.name, column.type.arrow, metadata=metadata)


def staged_schema(table: TableSchema) -> pa.Schema:
    """The Arrow schema of the staged changes of `table`: row columns, `_before`, bookkeeping."""
    fields = [row_field(column) for column in table.columns]
    before = pa.field(BEFORE, pa.struct(fields))
    metadata = {"lockstep.table": table.name, "lockstep.schema_id": table.id}
    return pa.schema([*fields, before, *BOOKKEEPING], metadata=metadata)
