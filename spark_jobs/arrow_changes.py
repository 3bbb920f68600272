"""Staged changes of a table in memory, for arrow_merge.py: columns, and for each row the numbers that decide.

A value is known by its place in `values` of its column: the rows after come first, then, as far away as there are
changes, the rows before. Exact texts and names of absent values are Python objects, because few rows have them.
Most changes keep their keys, and then the values before of other columns decide nothing: those are not read.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    LITERAL_TYPE,
    OP,
    POS,
    ROW,
    SEQ,
    SOURCE,
    TRUNCATE,
    TS,
    UPDATE,
    staged_schema,
)
from cdc_core.model.version import origin_name

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_UNUSED = frozenset({FILE, POS, GTID})
_FEWEST_ROWS, _MOST_ROWS, _BATCH_BYTES = 256, 1 << 16, 16 << 20
"""Of a batch that is read, before what it takes is known: a file may hold a long value once for many rows."""
FEW_ROWS = 1_000
"""Of a file: to read all values before takes less time than to look first which are needed."""
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


@dataclass(frozen=True, slots=True)
class BeforeRule:
    """Which values before a change are needed: of these columns, and of all of them where a row changes its key.
    every: of all columns in any case. columns: of the row, as unified."""

    columns: pa.Schema
    key: Sequence[str]
    moving: Sequence[str]
    every: bool

    def needed(
        self, source: pq.ParquetFile, schema: TableSchema, seqs: Sequence[tuple[int, int]] = ()
    ) -> Collection[str] | None:
        """Of a staged file; None: all."""
        if source.metadata.num_rows <= FEW_ROWS:
            return None
        if self.every or any(
            np.any(key_changes(pa.Table.from_batches([batch]), schema, self))
            for batch in each_batch(source, schema, seqs, only=(OP, LITERAL, *self.key), before=self.key)[1]
        ):
            return None
        return (*self.key, *self.moving)


def key_changes(rows: pa.Table, schema: TableSchema, rule: BeforeRule) -> Flags:
    """Which staged rows move to another key, or may."""
    has_before = _whole(rows.column(BEFORE)).is_valid()
    if not has_before.true_count:
        return np.zeros(rows.num_rows, bool)
    ops = rows.column(OP)
    moves = np.asarray(_whole(pc.equal(ops, UPDATE))) & _differ(
        [key_column(rows, rule.columns.field(name), before=False) for name in rule.key],
        [key_column(rows, rule.columns.field(name), before=True) for name in rule.key],
    )
    # An exact text may tell keys apart whose values are equal.
    moves |= np.asarray(_whole(rows.column(LITERAL)).is_valid())
    found: Flags = moves & np.asarray(has_before)
    return found


def key_column(rows: pa.Table, field: pa.Field, *, before: bool) -> pa.Array:
    """The values of a column, as unified; nulls where the rows do not have it."""
    if not before:
        own = rows.schema.get_field_index(field.name)
        return pa.nulls(rows.num_rows, field.type) if own < 0 else converted(_whole(rows.column(own)), field.type)
    was = _whole(rows.column(BEFORE))
    own = was.type.get_field_index(field.name)
    if own < 0:
        return pa.nulls(rows.num_rows, field.type)
    return converted(pc.struct_field(was, [own]), field.type)


def _differ(own: Sequence[pa.Array], was: Sequence[pa.Array]) -> Flags:
    found = np.zeros(len(own[0]), bool)
    for one, other in zip(own, was, strict=True):
        equal = np.asarray(pc.equal(one, other).fill_null(False))
        both_null = np.asarray(pc.and_(one.is_null(), other.is_null()))
        found |= ~(equal | both_null)
    return found


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def read_rows(
    source: pq.ParquetFile,
    schema: TableSchema,
    renews: bool | None,
    take: Callable[[int, int], None],
    rule: BeforeRule,
    seqs: Sequence[tuple[int, int]] = (),
) -> StagedRows:
    """The columns that a merge needs. take: as in Memory.share; what it raises ends the reading. seqs: as in
    FileToRead."""
    read, found = each_batch(source, schema, seqs, before=rule.needed(source, schema, seqs))
    batches = []
    for batch in found:
        take(batch.num_rows, batch.nbytes)
        batches.append(batch)
    rows = pa.Table.from_batches(batches, schema=read)
    if renews is None and TRUNCATE in rows.column(OP).unique().to_pylist():
        raise NotSmallError("a file of copied rows has a truncate among them")
    return StagedRows(rows, schema, renews)


def each_batch(
    source: pq.ParquetFile,
    schema: TableSchema,
    seqs: Sequence[tuple[int, int]] = (),
    *,
    only: Collection[str] | None = None,
    before: Collection[str] | None = None,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """(the columns that a merge needs, batches of them). seqs: as in FileToRead. only: of these columns, and the values
    before. before: whose values before are read; None: those of all columns. Raises NotSmallError."""
    whole = staged_schema(schema)
    if source.schema_arrow.names != whole.names:
        raise NotSmallError("a file has other columns than its definition")
    names = [name for name in whole.names if name not in _UNUSED and (only is None or name in (*only, BEFORE, SEQ))]
    read = {name: source.schema_arrow.field(name) for name in names}
    inside = [field.name for field in read[BEFORE].type]
    paths = {name: [name] for name in names}
    if before is not None:
        chosen = [name for name in inside if name in before] or inside[:1]
        paths[BEFORE] = [f"{BEFORE}.{name}" for name in chosen]
        read[BEFORE] = pa.field(BEFORE, pa.struct([read[BEFORE].type.field(name) for name in chosen]))
    wanted = [path for name in names for path in paths[name]]

    def batches() -> Iterator[pa.RecordBatch]:
        for group in range(source.num_row_groups):
            size = _batch_rows(source.metadata.row_group(group), schema)
            for batch in source.iter_batches(size, row_groups=[group], columns=wanted):
                yield batch.filter(pa.array(in_ranges(batch.column(SEQ).to_numpy(), seqs))) if seqs else batch

    return pa.schema(list(read.values())), batches()


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
    def of(cls, chunks: Sequence[pa.Array]) -> Coded:
        number: dict[str, int] = {}
        parts = [np.zeros(0, np.int64)]
        for chunk in chunks:
            if chunk.null_count == len(chunk):
                parts.append(np.full(len(chunk), -1))
                continue
            coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
            texts = coded.dictionary.to_pylist()
            codes = [-1 if text is None else number.setdefault(text, len(number)) for text in texts]
            parts.append(np.array([*codes, -1], np.int64)[_filled(coded.indices)])
        return cls.numbered(list(number), np.concatenate(parts))

    @classmethod
    def numbered(cls, given: Sequence[str], codes: Numbers) -> Coded:
        """From texts in any order, some perhaps twice or unused, and their numbers; -1: null."""
        used = np.flatnonzero(np.bincount(codes + 1, minlength=len(given) + 1)[1:])
        texts = sorted({given[code] for code in used.tolist()}, key=str.encode)
        number = {text: at for at, text in enumerate(texts)}
        return cls(texts, np.array([*(number.get(text, -1) for text in given), -1], np.int64)[codes])


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
        return table[self.lack]

    def literal(self, place: int, name: str) -> str | None:
        """The exact text of the value at a place of a column."""
        mark, change = ("", place) if place < self.count else (BEFORE_MARK, place - self.count)
        return self.literals.get(change, {}).get(mark + name)

    def codes_of_values(self, name: str) -> Numbers:
        """Of each value of a column: equal for equal values; -1: null. They may not be altered."""
        values = self.values[name]
        if pa.types.is_integer(values.type):
            low, high = (one.as_py() for one in pc.min_max(values).values())
            if low is not None and high - low < _NEAR and high < 1 << 63:
                return _filled(pc.subtract(values.cast(pa.int64()), pa.scalar(low, pa.int64())))
        return _filled(values.dictionary_encode().indices)

    def codes(self, name: str) -> Numbers:
        """Of each value of a column: equal for values that a key or a shard treats as equal; -1: null.

        A date or time counts by its exact text, and so do the error value of an ENUM, whose text is '', and bytes that
        are not text, which have no value.
        """
        values = self.values[name]
        kind = values.type
        codes = self.codes_of_values(name)
        if not self.literals:
            return codes
        codes = codes.copy()
        by_text = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
        if by_text or pa.types.is_string(kind):
            texts: dict[str, int] = {}
            for change, entries in self.literals.items():
                for place, mark in ((change, ""), (change + self.count, BEFORE_MARK)):
                    text = entries.get(mark + name)
                    if text is not None:
                        codes[place] = len(values) + texts.setdefault(text, len(texts))
        return codes


_NEAR = 1 << 30
"""Integers no farther apart are numbers by themselves. Those of two columns together still fit into 64 bits."""


def changes_of(files: Sequence[StagedRows], columns: pa.Schema) -> Changes:
    """The rows of all files, with the row's columns as unified. Raises NotSmallError for a value that Arrow does not
    convert."""
    _require_one_spelling(files, columns)
    try:
        values = {field.name: _values(files, field) for field in columns}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise NotSmallError(str(error)) from error
    counts = [one.rows.num_rows for one in files]
    count = sum(counts)
    source = Coded.of(_chunks(files, SOURCE))
    names = [one.schema.name for one in files]
    table = Coded.numbered(names, np.repeat(np.arange(len(files)), counts))
    origins = [origin_name(text, name) for text in source.texts for name in table.texts]
    origin = Coded.numbered(origins, source.codes * len(table.texts) + table.codes)
    literal = pa.chunked_array(_chunks(files, LITERAL), LITERAL_TYPE)
    literals = {int(at): dict(literal[int(at)].as_py()) for at in np.flatnonzero(np.asarray(pc.is_valid(literal)))}
    lacking: list[frozenset[str]] = []
    lack = _lack([one.rows.column(ABSENT) for one in files], [one.schema for one in files], lacking)
    return Changes(
        count,
        values,
        np.concatenate([np.asarray(chunk.is_valid()) for chunk in _chunks(files, BEFORE)] or [np.zeros(0, bool)]),
        Coded.of(_chunks(files, OP)),
        _numbers(files, TS),
        source,
        _numbers(files, SEQ),
        _numbers(files, ROW),
        origin,
        table,
        np.repeat(np.array([one.renews is True for one in files], bool), counts),
        {at: entries for at, entries in literals.items() if entries},
        lack,
        lacking,
    )


def _chunks(files: Sequence[StagedRows], name: str) -> list[pa.Array]:
    return [chunk for one in files for chunk in one.rows.column(name).chunks]


def _numbers(files: Sequence[StagedRows], name: str) -> Numbers:
    return np.concatenate([np.zeros(0, np.int64), *(_filled(chunk) for chunk in _chunks(files, name))])


def selected(changes: Changes, kept: Flags) -> Changes:
    """Some of the changes."""
    rows = np.flatnonzero(kept)
    number = {int(old): new for new, old in enumerate(rows)} if changes.literals else {}
    after = pa.array(rows)
    both = pa.array(np.concatenate([rows, rows + changes.count]))

    def of(coded: Coded) -> Coded:
        return Coded(coded.texts, coded.codes[rows])

    return Changes(
        len(rows),
        {name: one.take(after if len(one) == changes.count else both) for name, one in changes.values.items()},
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
    """The values after, and, if they are of any file, those before."""
    after, before, is_read = [], [], False
    for one in files:
        names = [column.name for column in one.schema.columns]
        none = pa.nulls(one.rows.num_rows, field.type)
        at = names.index(field.name) if field.name in names else -1
        after += [none] if at < 0 else [converted(chunk, field.type) for chunk in one.rows.column(at).chunks]
        inside = one.rows.schema.field(BEFORE).type.get_field_index(field.name)
        is_read = is_read or inside >= 0 or at < 0
        if inside < 0:
            before.append(none)
            continue
        for chunk in one.rows.column(BEFORE).chunks:
            before.append(converted(pc.struct_field(chunk, [inside]), field.type))
    return pa.concat_arrays([*after, *(before if is_read else ())]) if after else pa.nulls(0, field.type)


def converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values as a column of the merged rows has them."""
    return values if values.type == kind else values.cast(kind)


def _lack(columns: Sequence[pa.ChunkedArray], schemas: Sequence[TableSchema], sets: list[frozenset[str]]) -> Numbers:
    """Adds the sets of names to `sets`. Nothing can fill a virtual column that MariaDB does not log: it is in none."""
    known: dict[frozenset[str], int] = {}
    parts = [np.zeros(0, np.int64)]
    for column, schema in zip(columns, schemas, strict=True):
        computed = {mark + one.name for one in schema.columns if not one.logged for mark in ("", BEFORE_MARK)}
        coded = Coded.of(column.chunks)
        numbers = []
        for text in coded.texts:
            names = frozenset(json.loads(text)) - computed
            if names not in known:
                known[names] = len(sets)
                sets.append(names)
            numbers.append(known[names])
        parts.append(np.array([*numbers, -1], np.int64)[coded.codes])
    return np.concatenate(parts)


def _filled(numbers: pa.Array) -> Numbers:
    """They may not be altered."""
    plain = numbers.cast(pa.int64())
    found: Numbers = (pc.fill_null(plain, -1) if plain.null_count else plain).to_numpy(zero_copy_only=False)
    return found
