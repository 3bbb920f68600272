"""The rows that the suites of a run judge: Arrow tables that the work on a file gives.

Few are gathered by the driver, as one table; many are a frame of Spark, whose tasks do the same work. Staged and merged
rows come from files. Rows of the target are read back, and compared in the server with what they should be; above
`quality.sample_rows` evenly spaced ones are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from cdc_core.model.merged_columns import KEY_CHAIN, ORIGIN, SHARD, MergedOp, merged_schema
from cdc_core.model.places import repeated
from cdc_core.model.run_plan import MergeTable, files_to_read
from cdc_core.model.staged_columns import BOOKKEEPING, LITERAL, OP, ROW, SEQ, SOURCE, TS, LiteralEntries
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.staged_events import FileOfEvents, counted_rows
from cdc_core.stage.unify import align
from cdc_core.targets.reading.destination import Destination
from cdc_core.targets.tables.compare_columns import SAME, outcomes
from cdc_core.targets.tables.text_columns import column_text, escaped, row_keys
from spark_jobs.job import Job
from spark_jobs.merge_rules import files_of_events, row_columns
from spark_jobs.quarantine import others
from spark_jobs.shuffle import ipc_bytes
from spark_jobs.table_tasks import (
    Begin,
    Piece,
    Place,
    all_results,
    at_target,
    in_frame,
    in_place,
    in_tasks,
    without_logins,
)

TABLE, KEY, OUTCOME = "_table", "_key", "_outcome"
SHARD_NAME = "_shard"
_CODED = pa.dictionary(pa.int32(), pa.string())
"""The type of columns with few values, which are judged faster so."""
_STAGED = pa.schema([(TABLE, _CODED), *((column.name, column.type) for column in BOOKKEEPING if not column.nullable)])
_MERGED = pa.schema(
    [(TABLE, _CODED), (KEY, pa.string()), (OP, _CODED), (SOURCE, _CODED), (SEQ, pa.int64()), (ROW, pa.int64())]
)
TARGET_ROWS = pa.schema([(TABLE, _CODED), (SHARD_NAME, _CODED), (KEY, pa.string()), (OP, _CODED), (OUTCOME, _CODED)])
BATCH_ROWS = 50_000
_LONGEST_IDENTITY = 64
"""Characters. A longer one is hashed."""


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """Rows that a suite judges. count: how many there must be. schema: of the tables that the work on the pieces gives;
    pieces, begin and most are as in table_tasks."""

    count: int
    schema: pa.Schema
    pieces: Sequence[Any]
    begin: Begin[Any, pa.Table]
    most: int | None = None

    def table(self, job: Job) -> pa.Table:
        begin = self.begin  # without the rest, which would travel to each task

        @contextmanager
        def begun() -> Iterator[Callable[[Any], Iterable[bytes]]]:
            with begin() as work:
                yield lambda piece: map(ipc_bytes, work(piece))

        streams = all_results(in_tasks(job, self.pieces, begun, most=self.most))
        parts = [pa.ipc.open_stream(stream).read_all() for stream in streams]
        return pa.concat_tables([self.schema.empty_table(), *parts]).unify_dictionaries()

    @contextmanager
    def frame(self, job: Job) -> Iterator[DataFrame]:
        frame = in_frame(job, self.pieces, self.begin, self.schema, most=self.most)
        frame.persist(StorageLevel.MEMORY_AND_DISK)  # the rows are made once
        try:
            yield frame
        finally:
            frame.unpersist()


def made_rows(schema: pa.Schema, rows: pa.Table | pa.RecordBatch, made: Mapping[str, pa.Array]) -> pa.Table:
    """The rows under a schema, with some columns beside their own."""
    columns = [made[name] if name in made else rows.column(name) for name in schema.names]
    return pa.table([column.cast(kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema)


@dataclass(frozen=True, slots=True)
class _StagedFile:
    table: str
    rows: int
    file: FileOfEvents


def _staged_files(job: Job, table: MergeTable) -> list[_StagedFile]:
    both = zip(files_to_read(table.files), files_of_events(job, table), strict=True)
    return [
        _StagedFile(table.table, read.rows // share.share[1], share)
        for read, file in both
        for share in file.shares(job.parallelism)
    ]


def _staged(store: ObjectStore, file: FileOfEvents, names: Sequence[str]) -> Iterator[pa.Table]:
    with store.open_input(file.part.path) as source, pq.ParquetFile(source) as parquet:
        yield from counted_rows(parquet, file, names)


def staged_rows(job: Job, tables: Sequence[MergeTable]) -> JudgedRows:
    def work(file: _StagedFile, place: Place) -> Iterator[pa.Table]:
        for rows in _staged(place.store, file.file, _STAGED.names[1:]):
            yield made_rows(_STAGED, rows, {TABLE: repeated(file.table, rows.num_rows)})

    pieces = [file for table in tables for file in _staged_files(job, table)]
    return JudgedRows(sum(table.rows for table in tables), _STAGED, pieces, in_place(job, work))


@dataclass(frozen=True, slots=True)
class _JudgedFile:
    """rows: about how many. identity: the columns of which no two rows of the table have the same values."""

    table: str
    rows: int
    path: str
    identity: tuple[str, ...] = ()


def _merged_files(job: Job, table: MergeTable, identity: tuple[str, ...] = ()) -> list[_JudgedFile]:
    paths = job.merged_files(table)
    return [_JudgedFile(table.table, table.rows // len(paths), path, identity) for path in paths]


def _merged(store: ObjectStore, path: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """These columns of a file, as far as it has them."""
    with store.open_input(path) as source, pq.ParquetFile(source) as parquet:
        here = set(parquet.schema_arrow.names)
        yield from parquet.iter_batches(BATCH_ROWS, columns=[name for name in names if name in here])


def merged_rows(job: Job, tables: Sequence[MergeTable]) -> JudgedRows:
    def work(file: _JudgedFile, place: Place) -> Iterator[pa.Table]:
        for batch in _merged(place.store, file.path, [*{*file.identity, OP, SOURCE, SEQ, ROW, LITERAL, ORIGIN}]):
            table = repeated(file.table, batch.num_rows)
            yield made_rows(_MERGED, batch, {TABLE: table, KEY: identities(batch, file.identity)})

    pieces = []
    for table in tables:
        copy = (*row_columns(job, table).names, SOURCE, SEQ, ROW)
        pieces += _merged_files(job, table, table.key or copy)
    winners = sum(job.merge_counts[table.table].winners for table in tables)
    return JudgedRows(winners, _MERGED, pieces, in_place(job, work))


def identities(rows: pa.RecordBatch, names: Sequence[str]) -> pa.StringArray:
    """Texts that differ as the values of these columns do, bit by bit. Of a truncate, which has no key, each source
    table may have one."""
    found = _joined(*(_exact(rows, name) for name in names))
    truncate = pc.equal(rows.column(OP), MergedOp.TRUNCATE)
    if truncate.true_count:
        origin = rows.column(ORIGIN) if ORIGIN in rows.schema.names else pa.nulls(rows.num_rows, pa.string())
        found = pc.if_else(truncate, _joined(pa.repeat("\\T", rows.num_rows), origin, found), found)
    if (pc.max(pc.binary_length(found)).as_py() or 0) <= _LONGEST_IDENTITY:
        return found
    short = (
        identity if len(identity) <= _LONGEST_IDENTITY else sha256(identity.encode()).hexdigest()
        for identity in found.to_pylist()
    )
    return pa.array(short, pa.string())


def _joined(*texts: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(*texts, "\t", null_handling="replace", null_replacement="\\N")


def _exact(rows: pa.RecordBatch, name: str) -> pa.StringArray:
    """A value by its text, which is marked if the type cannot hold the value: the error value of an ENUM has the text
    of the label '', and the digits of bytes that are not text are text."""
    text = escaped(column_text(rows, name))
    literal = rows.column(LITERAL)
    if literal.null_count == len(literal):
        return text
    entries = LiteralEntries.of(literal)
    marked = np.zeros(rows.num_rows, bool)
    marked[entries.row[entries.among([name])]] = True
    return pc.if_else(pa.array(marked), pc.binary_join_element_wise(text, "\\L", ""), text)


@dataclass(frozen=True, slots=True)
class Sample:
    """Which rows of the files of filtered/ are read back: each `every`-th, counted through all files. The rows of a
    file are in the order of shard and key, so that they are spread over both.

    first: the number of the first such row in each file, or of rows to pass after its end. Differs by run.
    rows:  how many rows are read back.
    """

    every: int
    first: Mapping[str, int]
    rows: int

    @classmethod
    def of(cls, run_id: str, files: Mapping[str, int], most: int | None) -> Sample:
        """At most `most` of the rows of files, and at least one if there is any; None: all of them."""
        every = 1 if most is None else max(-(-sum(files.values()) // most), 1)
        first, taken, at = {}, 0, crc32(run_id.encode()) % every
        for path, rows in files.items():
            first[path] = at
            here = len(range(at, rows, every))
            taken += here
            at += here * every - rows
        return cls(every, first, taken)


def spaced(batches: Iterable[pa.RecordBatch], first: int, every: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file that are in a sample."""
    if every == 1:
        yield from batches
        return
    at = first
    for batch in batches:
        rows = np.arange(at, batch.num_rows, every)
        at += len(rows) * every - batch.num_rows
        yield batch.take(pa.array(rows))


@dataclass(frozen=True, slots=True)
class _FilteredFile:
    """first: of its rows in the sample. aside: the names of rows that are left out."""

    path: str
    first: int
    aside: tuple[str, ...]


def target_rows(
    job: Job, tables: Sequence[MergeTable], sample: Sample, aside: Mapping[str, tuple[str, ...]]
) -> JudgedRows:
    """aside: as in quarantine.names_aside."""
    every = sample.every

    def work(destination: Destination, file: _FilteredFile, place: Place) -> Iterator[pa.Table]:
        with place.store.open_input(file.path) as source, pq.ParquetFile(source) as parquet:
            batches = (others(batch, destination.key, file.aside) for batch in parquet.iter_batches(BATCH_ROWS))
            for batch in spaced(batches, file.first, every):
                yield from _compared(destination, batch, place)

    pieces = []
    for table, destination in zip(tables, job.destinations(tables, writing=False), strict=True):
        paths, names = job.filtered_files(table), aside.get(table.table, ())
        files = [_FilteredFile(path, sample.first[path], names) for path in paths]
        pieces += [Piece(destination, table.rows // len(paths), file) for file in files]
    begin = at_target(job, pieces, work)
    return JudgedRows(sample.rows, TARGET_ROWS, without_logins(pieces), begin, job.database.sessions)


def _compared(destination: Destination, batch: pa.RecordBatch, place: Place) -> Iterator[pa.Table]:
    shards = np.asarray(batch.column(SHARD))
    for number in np.unique(shards):
        rows = batch.take(pa.array(np.flatnonzero(shards == number)))
        shard = destination.shards[number]
        session, layout = place.sessions.of(shard), destination.layout_of(shard)
        found = pa.array(outcomes(session, shard.facts, rows, layout, scratch=place.scratch), pa.string())
        made = {
            TABLE: repeated(destination.logical, rows.num_rows),
            SHARD_NAME: repeated(shard.table.name, rows.num_rows),
            KEY: keys_to_show(rows, destination.key, found),
            OUTCOME: found,
        }
        yield made_rows(TARGET_ROWS, rows, made)


def keys_to_show(rows: pa.RecordBatch, key: Sequence[str], found: pa.Array) -> pa.Array:
    """The keys of rows that are not `same`, null for the others: nobody looks at a key of theirs."""
    other = pc.not_equal(found, SAME)
    if not other.true_count:
        return pa.nulls(rows.num_rows, pa.string())
    return pc.if_else(other, row_keys(rows, key), pa.scalar(None, pa.string()))


def own_rows(job: Job, table: MergeTable, stage: str) -> JudgedRows:
    """The rows that a user's suite judges: their columns and bookkeeping, without nested values."""
    if stage == "merged":
        return _own_merged(job, table)
    schema = _flat(merged_schema(list(row_columns(job, table)), ()))
    wanted = {name.lower() for name in schema.names}

    def work(file: _StagedFile, place: Place) -> Iterator[pa.Table]:
        own = [column.name for column in file.file.schema.columns if column.name.lower() in wanted]
        for rows in _staged(place.store, file.file, [*own, OP, TS, SOURCE, SEQ, ROW]):
            yield align(rows, schema)

    return JudgedRows(table.rows, schema, _staged_files(job, table), in_place(job, work))


def _own_merged(job: Job, table: MergeTable) -> JudgedRows:
    files = _merged_files(job, table)
    with job.store.open_input(files[0].path) as source, pq.ParquetFile(source) as parquet:
        schema = _flat(parquet.schema_arrow)

    def work(file: _JudgedFile, place: Place) -> Iterator[pa.Table]:
        for batch in _merged(place.store, file.path, schema.names):
            yield made_rows(schema, batch, {})

    return JudgedRows(job.merge_counts[table.table].winners, schema, files, in_place(job, work))


def _flat(schema: pa.Schema) -> pa.Schema:
    nested = (pa.StructType, pa.MapType)
    return pa.schema([field for field in schema if not isinstance(field.type, nested) and field.name != KEY_CHAIN])
