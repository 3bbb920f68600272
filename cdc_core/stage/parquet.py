"""One Parquet part: rows of one logical table under one definition, gathered into row groups and hashed on the way out.

The bytes of a part are a function of its rows alone, however they were cut into blocks: row groups end at a row
count or at a weight of rows, dictionaries are numbered by first appearance, chunks are joined before they are
written. (Only a batch that gathers more than its memory allows ends row groups early.)

Encodings, all of which Spark's vectorised reader and DuckDB read: DELTA_BINARY_PACKED for positions, ordinals, times,
integer keys, and columns of integers or times whose first values follow each other evenly; DELTA_BYTE_ARRAY for GTIDs;
dictionaries for `_cdc_op`, `_cdc_source`, `_cdc_file`, `_cdc_absent`, and for row columns whose first values repeat;
PLAIN otherwise. Compression is zstd.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.model.staged_columns import (
    ABSENT,
    BEFORE,
    BOOKKEEPING,
    FILE,
    GTID,
    LITERAL,
    OP,
    POS,
    ROW,
    SEQ,
    SOURCE,
    TS,
    LiteralEntries,
)
from cdc_core.stage.encodings import SAMPLE, even, repeats
from cdc_core.stage.objects import PartOutput

ROW_GROUP_ROWS = 122_880
"""DuckDB's own row group; a Spark task reads several."""
ROW_GROUP_BYTES = 64 << 20
"""Weight of rows (values, before compression) at which a row group ends sooner."""

_BOOKKEEPING_BYTES = 100
"""About what the bookkeeping of a row takes in memory."""
_BUFFER = 1 << 20
_CODED = (OP, SOURCE, FILE, ABSENT)
_DELTA = (POS, ROW, SEQ, TS)


class PartFile:
    """A part being written. Nothing is opened before the first row group is full.

    key:         names of key columns, for statistics and encodings.
    group_bytes: weight of a row group.
    """

    def __init__(
        self,
        schema: pa.Schema,
        key: tuple[str, ...],
        open_output: Callable[[], PartOutput],
        level: int,
        group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        self._schema = schema
        self._key = key
        self._open_output = open_output
        self._level = level
        self._group_bytes = group_bytes
        self._pending: list[pa.RecordBatch] = []
        self._weights: list[npt.NDArray[np.int64]] = []
        self._pending_rows = 0
        self._output: PartOutput | None = None
        self._sink: _HashingSink | None = None
        self._writer: pq.ParquetWriter | None = None
        self.pending_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._sink.size_bytes if self._sink else 0

    @property
    def sha256(self) -> str:
        assert self._sink is not None
        return self._sink.sha256

    def add(self, rows: pa.RecordBatch) -> int:
        """Adds rows; what they take in memory."""
        weights = row_weights(rows)
        size = int(weights.sum())
        self._pending.append(rows)
        self._weights.append(weights)
        self._pending_rows += len(weights)
        self.pending_bytes += size
        if self._pending_rows >= ROW_GROUP_ROWS or self.pending_bytes >= self._group_bytes:
            self._write_full_groups()
        return size

    def flush(self) -> None:
        """Writes the gathered rows as a row group, full or not."""
        if self._pending_rows:
            self._write_group(pa.Table.from_batches(self._pending, self._schema))
            self._keep([], np.empty(0, np.int64))

    def close(self) -> None:
        """Writes the last row group and the footer; the part is not durable yet. It may have no rows."""
        self.flush()
        if self._writer is None:
            self._open(self._schema.empty_table())
        assert self._writer is not None
        assert self._sink is not None
        self._writer.close()
        self._sink.flush()

    def publish(self, *, settled: bool = True) -> str:
        """Makes the closed part durable, or `settled` False, closes its file only; its path. Its memory is released."""
        assert self._output is not None
        path = self._output.publish(settled=settled)
        self._writer = None
        return path

    def discard(self) -> None:
        """Removes the part, whatever state it is in."""
        self._pending.clear()
        if self._sink is not None:
            self._sink.deaf = True
        if self._writer is not None:
            # A writer that has failed refuses to write its footer, which is not needed.
            with contextlib.suppress(OSError, ValueError):
                self._writer.close()
        if self._output is not None:
            self._output.discard()

    def _write_full_groups(self) -> None:
        table = pa.Table.from_batches(self._pending, self._schema)
        weights = np.concatenate(self._weights)
        ends = np.cumsum(weights)
        start, gone = 0, 0
        while True:
            by_weight = int(np.searchsorted(ends, gone + self._group_bytes)) + 1
            stop = min(start + ROW_GROUP_ROWS, by_weight)
            if stop > len(weights):
                break
            self._write_group(table.slice(start, stop - start))
            start, gone = stop, int(ends[stop - 1])
        self._keep(table.slice(start).to_batches(), weights[start:])

    def _keep(self, rest: list[pa.RecordBatch], weights: npt.NDArray[np.int64]) -> None:
        self._pending = rest
        self._weights = [weights]
        self._pending_rows = len(weights)
        self.pending_bytes = int(weights.sum())

    def _write_group(self, table: pa.Table) -> None:
        table = _canonical(table)
        if self._writer is None:
            self._open(table)
        assert self._writer is not None
        self._writer.write_table(table, row_group_size=len(table))

    def _open(self, first: pa.Table) -> None:
        coded, delta = _encodings(first, self._key)
        self._output = self._open_output()
        self._sink = _HashingSink(self._output)
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            compression_level=self._level,
            use_dictionary=coded,
            column_encoding=delta,
            write_statistics=_with_statistics(self._schema, self._key),
        )


def read_rows(file: BinaryIO, most: int) -> Iterator[pa.RecordBatch]:
    """The rows of a part, at most so many at a time and only those of one row group, whose weight bounds the memory."""
    parquet = pq.ParquetFile(file)
    for group in range(parquet.num_row_groups):
        yield from parquet.iter_batches(most, row_groups=[group])


def row_weights(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Bytes of values of each row, the same however the rows are sliced. Bookkeeping weighs the same in each, but for
    literals, which may be whole texts."""
    names = [field.name for field in BOOKKEEPING]
    weights = np.full(rows.num_rows, _BOOKKEEPING_BYTES, np.int64)
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.name not in names:
            _add_weight(weights, column)
    literal = rows.column(LITERAL)
    if literal.null_count < len(literal):
        entries = LiteralEntries.of(literal)
        sizes = pc.add(pc.binary_length(entries.name), pc.binary_length(entries.text))
        np.add.at(weights, entries.row, sizes.to_numpy(zero_copy_only=False))
    return weights


def _add_weight(weights: npt.NDArray[np.int64], column: pa.Array) -> None:
    kind = column.type
    if pa.types.is_struct(kind):
        if column.null_count < len(column):
            inside = np.zeros(len(column), np.int64)
            for child in column.flatten():  # the children as the struct's slice sees them
                _add_weight(inside, child)
            # A null struct weighs nothing, whatever its children hold: most `_before` are null.
            weights += np.where(column.is_valid().to_numpy(zero_copy_only=False), inside, 0)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_list(kind):
        buffer = column.buffers()[1]
        if buffer is not None and len(column):
            offsets = np.frombuffer(buffer, np.int32, len(column) + 1, column.offset * 4)
            scale = 1 if not pa.types.is_list(kind) else kind.value_type.bit_width // 8
            weights += np.diff(offsets) * scale + 4
    else:
        weights += max(kind.bit_width // 8, 1)


def _canonical(table: pa.Table) -> pa.Table:
    """The same rows in one chunk a column, dictionaries numbered by first appearance and without unused values."""
    table = table.unify_dictionaries().combine_chunks()
    for name in _CODED:
        index = table.schema.get_field_index(name)
        column = table.column(index).chunk(0)
        if len(column.dictionary) == 1 and column.null_count < len(column):
            continue
        used = column.indices.dictionary_encode()
        coded = pa.DictionaryArray.from_arrays(used.indices, column.dictionary.take(used.dictionary))
        table = table.set_column(index, table.schema.field(index), coded)
    return table


def _encodings(first: pa.Table, key: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """(columns to dictionary-encode, encodings of others), decided from the first row group."""
    coded = list(_CODED)
    delta = dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED")
    delta[GTID] = "DELTA_BYTE_ARRAY"
    sample = first.slice(0, SAMPLE)
    for field in first.schema:
        if field.name == BEFORE or field.name in delta or field.name in (*_CODED, LITERAL):
            continue
        leaves = (field.name, f"{BEFORE}.{field.name}")
        if repeats(sample.column(field.name)):
            coded += leaves
        elif (field.name in key and field.type in (pa.int32(), pa.int64())) or even(sample.column(field.name)):
            delta |= dict.fromkeys(leaves, "DELTA_BINARY_PACKED")
    return coded, delta


def _with_statistics(schema: pa.Schema, key: tuple[str, ...]) -> list[str]:
    """Statistics help to skip by key, by number, by time and by order; long texts would only pay for them."""
    return [
        field.name
        for field in schema
        if field.name in (*key, *_CODED) or (pa.types.is_primitive(field.type) and field.name != LITERAL)
    ]


class _HashingSink:
    """The file object that the Parquet writer writes to: buffers, hashes, passes on."""

    def __init__(self, output: PartOutput) -> None:
        self._output = output
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self.size_bytes = 0
        self.closed = False
        self.deaf = False

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: Any) -> int:
        size = len(data)
        if self.deaf:
            return size
        self.size_bytes += size
        self._buffer += data
        if len(self._buffer) >= _BUFFER:
            self._drain()
        return size

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """pyarrow flushes for itself at the end; small writes are gathered until then."""
        self._drain()

    def close(self) -> None:
        self.closed = True

    def _drain(self) -> None:
        if self._buffer and not self.deaf:
            data, self._buffer = self._buffer, bytearray()
            self._hash.update(data)
            self._output.write(memoryview(data))
