"""Staged changes of a table that do not fit into memory, in parts that do: all changes of a key are in one part.

Each thread reads files of its own once, and appends each change to the local file of its part. A change that moves a
row to another key concerns both keys, and may be in two parts; a merge of a part then leaves out the side whose key is
in the other one (arrow_merge.py). A TRUNCATE concerns all keys: it is in every part, and counts in the first. So memory
holds a batch for each thread, and disk what the changes take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import BEFORE, OP, TRUNCATE
from spark_jobs.arrow_changes import BeforeRule, NotSmallError, StagedRows, each_batch, key_changes, key_column

Hashes = npt.NDArray[np.uint64]
_COMPRESSION = pa.ipc.IpcWriteOptions(compression="lz4")
_ODD = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)


def parts_of_keys(columns: Sequence[pa.Array], parts: int) -> npt.NDArray[np.int64]:
    """The part of each key, given its columns: the same for values with the same bits."""
    found: Hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = (found ^ _hashes(column)) * _ODD
        found ^= found >> _SHIFT
    numbers: npt.NDArray[np.int64] = (found % np.uint64(parts)).astype(np.int64)
    return numbers


def _hashes(column: pa.Array) -> Hashes:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind, found = column.type, np.zeros(len(column), np.uint64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = _hashes_of_bytes(column.cast(pa.binary()))
    elif pa.types.is_boolean(kind):
        found = np.asarray(column.fill_null(False)).astype(np.uint64)
    else:
        words = _words(column)
        for at in range(words.shape[1]):
            found = (found ^ words[:, at].astype(np.uint64)) * _ODD
            found ^= found >> _SHIFT
    found[np.asarray(column.is_null())] = 0  # whatever their slots hold
    return found


def _words(column: pa.Array) -> npt.NDArray[np.generic]:
    """The bytes of values of a fixed width, as unsigned numbers of at most 8 bytes."""
    width = column.type.bit_width // 8
    word = next(size for size in (8, 4, 2, 1) if width % size == 0)
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros((len(column), 1), np.uint8)
    values = np.frombuffer(buffer, f"u{word}", (column.offset + len(column)) * width // word)
    return values.reshape(-1, width // word)[column.offset :]


def _hashes_of_bytes(column: pa.BinaryArray) -> Hashes:
    """Of each value, the sum of its bytes, each times a number that its place gives, and its length."""
    if not len(column):
        return np.zeros(0, np.uint64)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, column.offset + len(column) + 1)[column.offset :].astype(np.int64)
    lengths = np.diff(ends)
    values = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8, ends[-1])[ends[0] :]
    places = (np.arange(len(values)) - np.repeat(ends[:-1] - ends[0], lengths)).astype(np.uint64)
    mixed = (places + np.uint64(1)) * _OTHER_ODD
    mixed = (values.astype(np.uint64) + np.uint64(1)) * (mixed ^ (mixed >> _SHIFT))
    totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    bounds = ends - ends[0]
    summed: Hashes = (totals[bounds[1:]] - totals[bounds[:-1]] + lengths.astype(np.uint64)) * _ODD
    return summed ^ (summed >> _SHIFT)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Which part a key is in. bounds: by the first column of the key, a whole number, where it has them: that of each
    part but the first begins with one of them; otherwise by the bits of all columns. Ranges of keys spare later steps
    work: a file then has rows that the target has side by side."""

    count: int
    bounds: npt.NDArray[np.generic] | None = None

    @classmethod
    def of_ranges(cls, count: int, keys: npt.NDArray[np.generic]) -> Parts:
        """Ranges with about as many of the keys each; none where some keys are too frequent for that."""
        ordered = np.sort(keys)
        bounds = ordered[np.arange(1, count) * len(ordered) // count] if len(ordered) else ordered
        return cls(count, bounds if len(bounds) == count - 1 and (bounds[1:] > bounds[:-1]).all() else None)

    def of(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
        """The parts of keys, given the key's columns."""
        if self.bounds is None:
            return parts_of_keys(columns, self.count)
        first = columns[0]
        if pa.types.is_dictionary(first.type):
            first = first.cast(first.type.value_type)
        return np.searchsorted(self.bounds, np.asarray(first.fill_null(0)), side="right").astype(np.int64)


@dataclass(frozen=True, slots=True)
class PartRule:
    """What is cut into parts. before: `every` where changes lack values that older ones have."""

    before: BeforeRule
    parts: Parts


@dataclass(frozen=True, slots=True)
class _Written:
    """A stream in the files of parts: whose rows, and their columns as in the staged file."""

    schema: TableSchema
    renews: bool | None
    rows: pa.Schema


class PartStreams:
    """A local file for each part, in which streams of Arrow follow each other. A context manager: files that are still
    open for writing are closed."""

    def __init__(self, directory: Path, parts: int) -> None:
        self.directory = directory
        self._paths = [directory / f"{number}.part" for number in range(parts)]
        self._sinks = [pa.OSFile(str(path), "wb") for path in self._paths]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def append(self, part: int, rows: pa.Table) -> None:
        """As a stream. Raises OSError where there is no space."""
        with pa.ipc.new_stream(self._sinks[part], rows.schema, options=_COMPRESSION) as stream:
            stream.write_table(rows)

    def streams_of(self, part: int) -> Iterator[pa.RecordBatchReader]:
        """In their order, each to be read before the next; after `close`."""
        with pa.OSFile(str(self._paths[part]), "rb") as source:
            while source.tell() < source.size():
                yield pa.ipc.open_stream(source)


class PartFiles(PartStreams):
    """The parts of what one thread reads.

    In the file of a part, the streams of a staged file follow each other: those with values before, and those without.
    """

    def __init__(self, directory: Path, rule: PartRule) -> None:
        super().__init__(directory, rule.parts.count)
        self._rule = rule
        self._written: list[list[_Written]] = [[] for _ in range(rule.parts.count)]

    def add(
        self, source: pq.ParquetFile, schema: TableSchema, renews: bool | None, seqs: Sequence[tuple[int, int]]
    ) -> None:
        """Appends the rows of a staged file. Raises NotSmallError for what only a merge of the whole table can do."""
        read, batches = each_batch(source, schema, seqs, before=self._rule.before.needed(source, schema, seqs))
        rows = pa.schema([_plain(field) for field in read])
        gathered: list[pa.RecordBatch] = []
        for batch in batches:
            gathered.append(batch)
            if sum(one.num_rows for one in gathered) >= CUT_ROWS or sum(one.nbytes for one in gathered) >= _CUT_BYTES:
                self._append(gathered, _Written(schema, renews, rows))
                gathered = []
        if gathered:
            self._append(gathered, _Written(schema, renews, rows))

    def _append(self, batches: Sequence[pa.RecordBatch], written: _Written) -> None:
        table = pa.Table.from_batches(batches).cast(written.rows).combine_chunks()
        for part, rows in self._cut(table, written.schema, written.renews):
            if rows.num_rows:
                try:
                    self.append(part, rows)
                except OSError as error:
                    raise NotSmallError(f"its parts are too large for {self.directory}: {error}") from error
                self._written[part].append(written)

    def _cut(self, table: pa.Table, schema: TableSchema, renews: bool | None) -> list[tuple[int, pa.Table]]:
        rule = self._rule
        truncates = np.asarray(pc.equal(table.column(OP), TRUNCATE))
        if truncates.any():
            if renews is None:
                raise NotSmallError("a file of copied rows has a truncate among them")
            of_all = table.filter(pa.array(truncates)).drop_columns([BEFORE])
            others = self._cut(table.filter(pa.array(~truncates)), schema, renews)
            return [*others, *((number, of_all) for number in range(rule.parts.count))]
        own = [key_column(table, rule.before.columns.field(name), before=False) for name in rule.before.key]
        here = rule.parts.of(own)
        moves, there = key_changes(table, schema, rule.before), here
        if moves.any():
            if rule.before.every:
                raise NotSmallError("rows change their keys and lack values, and take too much memory")
            was = [key_column(table, rule.before.columns.field(name), before=True) for name in rule.before.key]
            there = rule.parts.of(was)
        # Where the key stays, the values before count only for what they say of columns other than the key.
        slim = ~moves & (not rule.before.every and not rule.before.moving)
        without = table.drop_columns([BEFORE])
        twice = np.flatnonzero(moves & (here != there))
        found = []
        found += spread(without, np.flatnonzero(slim), here[slim], rule.parts.count)
        full = np.concatenate([np.flatnonzero(~slim), twice])
        found += spread(table, full, np.concatenate([here[~slim], there[twice]]), rule.parts.count)
        return found

    def rows_of(self, part: int, take: Callable[[int, int], None]) -> list[StagedRows]:
        """The changes of a part, after `close`. take: as in Memory.share."""
        staged = []
        for written, stream in zip(self._written[part], self.streams_of(part), strict=True):
            batches = []
            for batch in stream:
                take(batch.num_rows, batch.nbytes)
                batches.append(batch)
            rows = pa.Table.from_batches(batches)
            if BEFORE not in rows.schema.names:
                at = written.rows.get_field_index(BEFORE)
                field = written.rows.field(at)
                rows = rows.add_column(at, field, pa.nulls(rows.num_rows, field.type))
            staged.append(StagedRows(rows, written.schema, written.renews))
        return staged


CUT_ROWS, _CUT_BYTES = 1 << 18, 32 << 20
"""What is cut at once: each part then has enough of it for a stream of its own."""


def _plain(field: pa.Field) -> pa.Field:
    """A dictionary that changes from batch to batch would be written with each."""
    return pa.field(field.name, field.type.value_type) if pa.types.is_dictionary(field.type) else field


def spread(
    table: pa.Table, rows: npt.NDArray[np.int64], part: npt.NDArray[np.int64], parts: int
) -> list[tuple[int, pa.Table]]:
    """Some rows, each in its part."""
    order = np.argsort(part.astype(np.uint16), kind="stable")
    cuts = np.cumsum([0, *np.bincount(part, minlength=parts).tolist()])
    ordered = table.take(pa.array(rows[order]))
    return [(number, ordered.slice(cuts[number], cuts[number + 1] - cuts[number])) for number in range(parts)]
