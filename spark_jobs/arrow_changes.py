"""Staged changes of a table in memory, for arrow_merge.py: columns, and for each row the numbers that decide.

A value is known by its place in `values` of its column: the rows after come first, then, as far away as there are
changes, the rows before. Exact texts and names of absent values are Python objects, because few rows have them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.model.run import MergeTable
from cdc_core.model.schema import ColumnType, TableSchema
from cdc_core.model.staged import (
    ABSENT,
    BEFORE,
    BEFORE_MARK,
    FILE,
    GTID,
    LITERAL,
    OP,
    POS,
    ROW,
    SEQ,
    SOURCE,
    TRUNCATE,
    TS,
    staged_schema,
)
from cdc_core.model.version import origin_name

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_NOTES = (OP, TS, SOURCE, SEQ, ROW, LITERAL, ABSENT)
_UNUSED = frozenset({FILE, POS, GTID})
_FEWEST_ROWS, _MOST_ROWS, _BATCH_BYTES = 256, 1 << 16, 16 << 20
"""Of a batch that is read, before what it takes is known: a file may hold a long value once for many rows."""
_COPIES = 3
"""How often the values of staged rows are in memory at most: as read, together, and those of the merged rows."""
ROW_BYTES = 256
"""What a change takes beside its values: its numbers, and those that the merge derives from them."""


class NotSmallError(Exception):
    """The table is not one that is merged in memory. Its message says why."""


class Memory:
    """What the tables that are merged at the same time take, and may take."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._taken = 0
        self._lock = threading.Lock()

    @contextmanager
    def share(self) -> Iterator[Callable[[int, int], None]]:
        """For one table. The caller says how many rows it takes, and of how many bytes, before it takes more; given
        back at the end of the block.

        Raises NotSmallError, as it says, where that is more than there is.
        """
        mine = 0

        def take(rows: int, size_bytes: int) -> None:
            nonlocal mine
            more = taken_bytes(rows, size_bytes)
            with self._lock:
                if self._taken + more > self._limit_bytes:
                    raise NotSmallError("its rows take too much memory")
                self._taken += more
                mine += more

        try:
            yield take
        finally:
            with self._lock:
                self._taken -= mine


def taken_bytes(rows: int, size_bytes: int) -> int:
    """The memory in which rows are merged whose values take so many bytes."""
    return size_bytes * _COPIES + rows * ROW_BYTES


def expected_bytes(table: MergeTable, schemas: Sequence[TableSchema]) -> int:
    """About what a merge of the table takes, by its plan alone."""
    plain = max(sum(_PLAIN_BYTES for column in schema.columns if not _is_long(column.type)) for schema in schemas)
    return taken_bytes(table.rows, table.rows * plain + table.size_bytes * _DENSITY)


_DENSITY = 4
"""How many times as large as its files a table's long values are in memory, usually."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What a file holds. renews: a `t` in it begins a copy; None: it may have none."""

    rows: pa.Table
    schema: TableSchema
    renews: bool | None


def read_rows(
    source: pq.ParquetFile,
    schema: TableSchema,
    renews: bool | None,
    take: Callable[[int, int], None],
    seqs: Sequence[tuple[int, int]] = (),
) -> StagedRows:
    """The columns that a merge needs. take: as in Memory.share; what it raises ends the reading. seqs: as in
    FileToRead."""
    names, found = each_batch(source, schema, seqs)
    batches = []
    for batch in found:
        take(batch.num_rows, batch.nbytes)
        batches.append(batch)
    rows = pa.Table.from_batches(batches, schema=pa.schema([source.schema_arrow.field(name) for name in names]))
    if renews is None and TRUNCATE in rows.column(OP).unique().to_pylist():
        raise NotSmallError("a file of copied rows has a truncate among them")
    return StagedRows(rows, schema, renews)


def each_batch(
    source: pq.ParquetFile, schema: TableSchema, seqs: Sequence[tuple[int, int]] = ()
) -> tuple[list[str], Iterator[pa.RecordBatch]]:
    """(the columns that a merge needs, batches of them). Raises NotSmallError. seqs: as in FileToRead."""
    whole = staged_schema(schema)
    if source.schema_arrow.names != whole.names:
        raise NotSmallError("a file has other columns than its definition")
    names = [name for name in whole.names if name not in _UNUSED]

    def batches() -> Iterator[pa.RecordBatch]:
        for group in range(source.num_row_groups):
            size = _batch_rows(source.metadata.row_group(group), schema)
            for batch in source.iter_batches(size, row_groups=[group], columns=names):
                yield batch.filter(pa.array(in_ranges(batch.column(SEQ).to_numpy(), seqs))) if seqs else batch

    return names, batches()


def in_ranges(seqs: Numbers, ranges: Sequence[tuple[int, int]]) -> Flags:
    """Which order keys are in one of the ranges (FileToRead.seqs)."""
    firsts, lasts = (np.array(side, np.int64) for side in zip(*ranges, strict=True))
    at = np.searchsorted(firsts, seqs, "right") - 1
    found: Flags = (at >= 0) & (seqs <= lasts[at])
    return found


def _batch_rows(group: pq.RowGroupMetaData, schema: TableSchema) -> int:
    """How many rows of a row group surely take no more than _BATCH_BYTES, within limits."""
    longest = sum(_longest_bytes(column.type) for column in schema.columns if column.logged)
    both = 2 * min(longest, max(int(group.total_byte_size), 1))
    return max(_FEWEST_ROWS, min(_MOST_ROWS, _BATCH_BYTES // both))


def _longest_bytes(kind: ColumnType) -> int:
    """Of a value in memory, as the type is declared."""
    if not _is_long(kind):
        return _PLAIN_BYTES
    if kind.labels:
        return sum(len(label.encode()) + 1 for label in kind.labels)
    return _BATCH_BYTES if kind.length is None else _BYTES_OF_CHARACTER * kind.length


def _is_long(kind: ColumnType) -> bool:
    return bool(pa.types.is_string(kind.arrow) or pa.types.is_binary(kind.arrow) or pa.types.is_nested(kind.arrow))


_PLAIN_BYTES, _BYTES_OF_CHARACTER = 16, 4


@dataclass(frozen=True, slots=True)
class Coded:
    """Texts by number; -1: null. The order of the numbers is that of the texts' bytes."""

    texts: Sequence[str]
    codes: Numbers

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Coded:
        plain = _combined(column.cast(pa.string()))
        texts = sorted({text for text in plain.unique().to_pylist() if text is not None}, key=str.encode)
        return cls(texts, _filled(pc.index_in(plain, pa.array(texts, pa.string()))))

    @classmethod
    def numbered(cls, given: Sequence[str], codes: Numbers) -> Coded:
        """From texts in any order, some perhaps twice or unused, and their numbers."""
        texts = sorted({given[code] for code in np.unique(codes).tolist()}, key=str.encode)
        number = {text: at for at, text in enumerate(texts)}
        return cls(texts, np.array([number.get(text, -1) for text in given], np.int64)[codes])


@dataclass(slots=True)
class Changes:
    """The changes of a table. values: see the module's docstring. lack: the number of each change's set in `lacking`,
    of names without a value; -1: none. literals: by the change's number."""

    count: int
    values: Mapping[str, pa.Array]
    has_before: Flags
    op: Coded
    ts: Numbers
    source: Coded
    seq: Numbers
    row: Numbers
    origin: Coded
    table: Coded
    renews: Flags
    literals: Mapping[int, Mapping[str, str]]
    lack: Numbers
    lacking: list[frozenset[str]] = field(default_factory=list)

    def is_op(self, op: str) -> Flags:
        found: Flags = self.op.codes == (self.op.texts.index(op) if op in self.op.texts else -2)
        return found

    def lacks(self, name: str) -> Flags:
        """Which changes lack a column (or with BEFORE_MARK, its value before)."""
        table = np.array([*(name in names for names in self.lacking), False])
        return np.isin(self.lack, np.flatnonzero(table))

    def literal(self, place: int, name: str) -> str | None:
        """The exact text of the value at a place of a column."""
        mark, change = ("", place) if place < self.count else (BEFORE_MARK, place - self.count)
        return self.literals.get(change, {}).get(mark + name)

    def codes_of_values(self, name: str) -> Numbers:
        """Of each value of a column: equal for equal values; -1: null."""
        return _filled(self.values[name].dictionary_encode().indices)

    def codes(self, name: str) -> Numbers:
        """Of each value of a column: equal for values that a key or a shard treats as equal; -1: null.

        A date or time counts by its exact text, and so does the error value of an ENUM, whose text is ''.
        """
        values = self.values[name]
        kind = values.type
        codes = self.codes_of_values(name)
        if not self.literals:
            return codes
        by_text = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
        empty = np.asarray(pc.fill_null(pc.equal(values, ""), False)) if pa.types.is_string(kind) else None
        if by_text or empty is not None:
            texts: dict[str, int] = {}
            for change, entries in self.literals.items():
                for place, mark in ((change, ""), (change + self.count, BEFORE_MARK)):
                    text = entries.get(mark + name)
                    if text is not None and (by_text or (empty is not None and empty[place])):
                        codes[place] = len(values) + texts.setdefault(text if by_text else "", len(texts))
        return codes


def changes_of(files: Sequence[StagedRows], columns: pa.Schema) -> Changes:
    """The rows of all files, with the row's columns as unified. Raises NotSmallError for a value that Arrow does not
    convert."""
    _require_one_spelling(files, columns)
    try:
        values = {field.name: _values(files, field) for field in columns}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise NotSmallError(str(error)) from error
    notes = pa.concat_tables([_plain(one.rows.select(_NOTES)) for one in files])
    count = notes.num_rows
    counts = [one.rows.num_rows for one in files]
    source = Coded.of(notes.column(SOURCE))
    names = [one.schema.name for one in files]
    table = Coded.numbered(names, np.repeat(np.arange(len(files)), counts))
    origins = [origin_name(text, name) for text in source.texts for name in table.texts]
    origin = Coded.numbered(origins, source.codes * len(table.texts) + table.codes)
    literal = _combined(notes.column(LITERAL))
    literals = {int(at): dict(literal[int(at)].as_py()) for at in np.flatnonzero(np.asarray(pc.is_valid(literal)))}
    lacking: list[frozenset[str]] = []
    lack = _lack([one.rows.column(ABSENT) for one in files], [one.schema for one in files], lacking)
    before = pa.chunked_array(
        [chunk for one in files for chunk in one.rows.column(BEFORE).is_valid().chunks], pa.bool_()
    )
    return Changes(
        count,
        values,
        np.asarray(_combined(pa.chunked_array(before, pa.bool_()))).astype(bool),
        Coded.of(notes.column(OP)),
        _filled(_combined(notes.column(TS)).cast(pa.int64())),
        source,
        _filled(_combined(notes.column(SEQ))),
        _filled(_combined(notes.column(ROW))),
        origin,
        table,
        np.repeat(np.array([one.renews is True for one in files], bool), counts),
        {at: entries for at, entries in literals.items() if entries},
        lack,
        lacking,
    )


def selected(changes: Changes, kept: Flags) -> Changes:
    """Some of the changes."""
    rows = np.flatnonzero(kept)
    number = {int(old): new for new, old in enumerate(rows)}
    both = pa.array(np.concatenate([rows, rows + changes.count]))

    def of(coded: Coded) -> Coded:
        return Coded(coded.texts, coded.codes[rows])

    return Changes(
        len(rows),
        {name: array.take(both) for name, array in changes.values.items()},
        changes.has_before[rows],
        of(changes.op),
        changes.ts[rows],
        of(changes.source),
        changes.seq[rows],
        changes.row[rows],
        of(changes.origin),
        of(changes.table),
        changes.renews[rows],
        {number[at]: entries for at, entries in changes.literals.items() if at in number},
        changes.lack[rows],
        list(changes.lacking),
    )


def _require_one_spelling(files: Sequence[StagedRows], columns: pa.Schema) -> None:
    # Exact texts and absent values are under the names that the definitions have.
    spelled = {name.lower(): name for name in columns.names}
    for one in files:
        for column in one.schema.columns:
            if spelled.get(column.name.lower(), column.name) != column.name:
                raise NotSmallError("its definitions spell a column in two ways")


def _values(files: Sequence[StagedRows], field: pa.Field) -> pa.Array:
    after, before = [], []
    for one in files:
        names = [column.name for column in one.schema.columns]
        if field.name not in names:
            none = pa.nulls(one.rows.num_rows, field.type)
            after.append(none)
            before.append(none)
            continue
        at = names.index(field.name)
        after += [converted(chunk, field.type) for chunk in one.rows.column(at).chunks]
        for chunk in one.rows.column(len(names)).chunks:
            before.append(converted(pc.struct_field(chunk, [at]), field.type))
    return pa.concat_arrays([*after, *before]) if after else pa.nulls(0, field.type)


def converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values as a column of the merged rows has them."""
    return values if values.type == kind else values.cast(kind)


def _lack(columns: Sequence[pa.ChunkedArray], schemas: Sequence[TableSchema], sets: list[frozenset[str]]) -> Numbers:
    """Adds the sets of names to `sets`. Nothing can fill a virtual column that MariaDB does not log: it is in none."""
    known: dict[frozenset[str], int] = {}
    parts = [np.zeros(0, np.int64)]
    for column, schema in zip(columns, schemas, strict=True):
        computed = {mark + one.name for one in schema.columns if not one.logged for mark in ("", BEFORE_MARK)}
        coded = Coded.of(column)
        numbers = []
        for text in coded.texts:
            names = frozenset(json.loads(text)) - computed
            if names not in known:
                known[names] = len(sets)
                sets.append(names)
            numbers.append(known[names])
        parts.append(np.array([*numbers, -1], np.int64)[coded.codes])
    return np.concatenate(parts)


def _plain(notes: pa.Table) -> pa.Table:
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in notes.columns
    ]
    return pa.table(columns, names=notes.column_names)


def _combined(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _filled(numbers: pa.Array) -> Numbers:
    found: Numbers = np.array(pc.fill_null(numbers.cast(pa.int64()), -1), dtype=np.int64)
    return found
