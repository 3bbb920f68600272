"""The rows that the suites of a run judge: as frames of Spark, or as Arrow tables.

Staged and merged rows come from files. Rows of the target are read back by the workers, and compared with what they
should be in the server; above `quality.sample_rows` evenly spaced ones are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cdc_core.model.merged import KEY_CHAIN, ORIGIN, SHARD, MergedOp
from cdc_core.model.run import MergeTable, files_to_read
from cdc_core.model.staged import FILE, LITERAL, OP, POS, ROW, SEQ, SOURCE, TS
from cdc_core.stage.staged_events import in_ranges
from cdc_core.target.compare import SAME, outcomes
from cdc_core.target.destination import Destination, Sessions
from cdc_core.target.text import empty_literals, row_keys
from spark_jobs import table_tasks
from spark_jobs.columns import Work, c, map_in_arrow, spark_type
from spark_jobs.failures import carried
from spark_jobs.job import Job, each_table
from spark_jobs.merge_rules import row_columns
from spark_jobs.table_tasks import Piece, Place, together
from spark_jobs.write import accepted

TABLE, KEY, OUTCOME = "_table", "_key", "_outcome"
_SHARD = "_shard"
_STAGED = (OP, TS, SOURCE, FILE, POS, ROW, SEQ)
_FEW_VALUES = frozenset({TABLE, _SHARD, OUTCOME, OP, SOURCE, FILE})
_WHOLE = {KEY: pa.string(), SEQ: pa.int64(), ROW: pa.int64(), POS: pa.int64()}
_VALUE_BYTES = 16
COMPARED_ROWS = 50_000
_TARGET_FRAME = f"`{TABLE}` string, `{_SHARD}` string, `{KEY}` string, `{OP}` string, `{OUTCOME}` string"


def staged_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    parts = []
    for table in tables:
        for _, rows in job.staged(table):
            parts.append(rows.select(F.lit(table.table).alias(TABLE), *[c(name) for name in _STAGED]))
    return reduce(DataFrame.unionAll, parts) if parts else None


def merged_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    parts = []
    for table in tables:
        rows = job.read(job.merged_files(table))
        if table.key:
            key = F.to_json(F.struct(*[exact(rows.schema[name].dataType, name).alias(name) for name in table.key]))
            if ORIGIN in rows.columns:  # a truncate has no key, and there may be one for each source table
                key = F.when(c(OP) == MergedOp.TRUNCATE, c(ORIGIN)).otherwise(key)
        else:
            key = copy_identity(rows.schema)
        notes = [c(name) for name in (OP, SOURCE, SEQ, ROW)]
        parts.append(rows.select(F.lit(table.table).alias(TABLE), key.alias(KEY), *notes))
    return reduce(DataFrame.unionAll, parts) if parts else None


def target_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    def one(table: MergeTable) -> DataFrame:
        rows = accepted(job, table, job.read(job.filtered_files(table))).coalesce(job.target.sessions)
        return map_in_arrow(rows, _comparer(job.destination(table, writing=False)), _TARGET_FRAME)

    parts = each_table(one, tables)
    return reduce(DataFrame.unionAll, parts) if parts else None


def staged_rows(job: Job, tables: Sequence[MergeTable]) -> Iterator[pa.Table]:
    """The rows of staged_frame, file by file."""
    for table in tables:
        for file in files_to_read(table.files):
            with job.store.open_input(file.path) as source:
                rows = pq.ParquetFile(source).read(columns=list(_STAGED))
            if file.seqs:
                rows = rows.filter(pa.array(in_ranges(rows.column(SEQ).to_numpy(), file.seqs)))
            yield _coded(pa.table({TABLE: _repeated(table.table, rows.num_rows)} | _columns(rows, _STAGED)))


def merged_rows(job: Job, tables: Sequence[MergeTable]) -> Iterator[pa.Table]:
    """The rows of merged_frame, some at a time; all at once of a table without a key."""
    for table in tables:
        if not table.key:
            frame = merged_frame(job, [table])
            assert frame is not None
            yield _coded(frame.toArrow())
            continue
        for path in job.merged_files(table):
            with job.store.open_input(path) as source:
                file = pq.ParquetFile(source)
                here = set(file.schema_arrow.names)
                notes = [name for name in (OP, SOURCE, SEQ, ROW, LITERAL, ORIGIN) if name in here]
                names = list(dict.fromkeys([*table.key, *notes]))
                none = pa.RecordBatch.from_pylist(
                    [], schema=pa.schema([file.schema_arrow.field(name) for name in names])
                )
                for batch in [none, *file.iter_batches(columns=names)]:
                    columns = {TABLE: _repeated(table.table, batch.num_rows), KEY: _merged_keys(batch, table.key)}
                    yield _coded(pa.table(columns | _columns(batch, (OP, SOURCE, SEQ, ROW))))


def _merged_keys(rows: pa.RecordBatch, key: Sequence[str]) -> pa.Array:
    """Texts that differ as the keys do; of a truncate, which has no key, its origin: each source table may have one."""
    keys = row_keys(rows, key)
    labels = [row for row, name in empty_literals(rows) if name in key]
    if labels:  # an ENUM's error value has the text of the label ''
        marked = np.zeros(rows.num_rows, dtype=bool)
        marked[labels] = True
        keys = pc.if_else(pa.array(marked), pc.binary_join_element_wise(keys, pa.scalar(NO_LABEL), ""), keys)
    if ORIGIN in rows.schema.names:
        keys = pc.if_else(pc.equal(rows.column(OP), MergedOp.TRUNCATE), rows.column(ORIGIN), keys)
    return keys


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

    def taken(self, path: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Those of a file's batches."""
        if self.every == 1:
            yield from batches
            return
        at = self.first[path]
        for batch in batches:
            rows = np.arange(at, batch.num_rows, self.every)
            at += len(rows) * self.every - batch.num_rows
            yield batch.take(pa.array(rows))


def target_rows(job: Job, tables: Sequence[MergeTable], sample: Sample, most: int) -> Iterator[pa.Table]:
    """The rows of target_frame, about `most` at a time: a job of Spark for all tables of a part. Tables with rows that
    were set aside have their own, and are compared as a whole."""
    names = job.tables_aside
    aside = [table for table in tables if table.table in names]
    plain = [table for table in tables if table.table not in names]
    pieces = []
    for table, destination in zip(plain, job.destinations(plain, writing=False), strict=True):
        paths = job.filtered_files(table)
        pieces += [Piece(destination, table.rows // len(paths), path) for path in paths]

    def work(destination: Destination, path: str, place: Place) -> Iterator[bytes]:
        with place.store.open_input(path) as source:
            batches = sample.taken(path, pq.ParquetFile(source).iter_batches(COMPARED_ROWS))
            compared = _compared(destination, batches, place.sessions, place.scratch)
            parts = [_coded(pa.Table.from_batches([one])) for one in compared]
        found = whole([*parts, _coded(_compared_schema().empty_table())])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema) as stream:
            stream.write_table(found)
        yield sink.getvalue().to_pybytes()

    for some in _groups(pieces, most * sample.every):
        found, error = together(table_tasks.done(job, some, work))
        if error:
            raise error
        yield whole([pa.ipc.open_stream(one).read_all() for one in found])
    if aside:
        frame = target_frame(job, aside)
        assert frame is not None
        yield _coded(frame.toArrow().select(_compared_schema().names))


def _groups(pieces: Sequence[Piece[str]], most: int) -> list[list[Piece[str]]]:
    """Pieces that follow each other, with about so many rows at most."""
    groups: list[list[Piece[str]]] = []
    rows = most
    for piece in pieces:
        if rows + piece.rows > most:
            groups.append([])
            rows = 0
        groups[-1].append(piece)
        rows += piece.rows
    return groups


def _compared_schema() -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in (TABLE, _SHARD, KEY, OP, OUTCOME)])


def whole(parts: Sequence[pa.Table]) -> pa.Table:
    """One table of one or more."""
    return pa.concat_tables(parts).unify_dictionaries()


def _repeated(value: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value]))


def _columns(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> dict[str, Any]:
    return {name: rows.column(name) for name in names}


def _coded(rows: pa.Table) -> pa.Table:
    """With columns of few values as codes, which are judged faster; all parts of a frame alike."""
    for at, field in enumerate(rows.schema):
        column = rows.column(at)
        if field.name in _FEW_VALUES:
            kind = pa.dictionary(pa.int32(), pa.string())
            if not pa.types.is_dictionary(field.type):
                column = column.cast(pa.string()).dictionary_encode()
            rows = rows.set_column(at, pa.field(field.name, kind), column.cast(kind))
        elif field.name in _WHOLE:
            kind = _WHOLE[field.name]
            rows = rows.set_column(at, pa.field(field.name, kind), column.cast(kind))
        else:
            rows = rows.set_column(at, pa.field(field.name, field.type), column)
    return rows


def _comparer(destination: Destination) -> Work:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with carried(), Sessions() as sessions, tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
            yield from _compared(destination, batches, sessions, Path(scratch))

    return work


def _compared(
    destination: Destination, batches: Iterable[pa.RecordBatch], sessions: Sessions, scratch: Path
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        shards = np.asarray(batch.column(SHARD))
        for number in np.unique(shards):
            rows = batch.take(pa.array(np.flatnonzero(shards == number)))
            shard = destination.shards[number]
            found = outcomes(sessions.of(shard), shard.facts, rows, destination.layout_of(shard), scratch=scratch)
            yield pa.record_batch(
                {
                    TABLE: pa.repeat(destination.logical, rows.num_rows),
                    _SHARD: pa.repeat(shard.table.name, rows.num_rows),
                    KEY: _keys_to_show(rows, destination.key, found),
                    OP: rows.column(OP),
                    OUTCOME: pa.array(found, pa.string()),
                }
            )


def _keys_to_show(rows: pa.RecordBatch, key: Sequence[str], found: Sequence[str]) -> pa.Array:
    """The keys of rows that are not `same`, null for the others: nobody looks at a key of theirs."""
    other = pa.array([outcome != SAME for outcome in found], pa.bool_())
    if not other.true_count:
        return pa.nulls(rows.num_rows, pa.string())
    return pc.if_else(other, row_keys(rows, key), pa.scalar(None, pa.string()))


def own_frame(job: Job, table: MergeTable, stage: str) -> DataFrame:
    """The rows that a user's suite judges: their columns and bookkeeping, without nested values."""
    merged = stage == "merged"
    rows = job.read(job.merged_files(table)) if merged else _changes(job, table)
    nested = [
        field.name
        for field in rows.schema
        if isinstance(field.dataType, T.StructType | T.MapType) or field.name == KEY_CHAIN
    ]
    return rows.drop(*[c(name) for name in nested])


def _changes(job: Job, table: MergeTable) -> DataFrame:
    """The staged rows, with the row's columns unified."""
    parts = []
    for schema, rows in job.staged(table):
        own = {column.name.lower(): column.name for column in schema.columns}
        columns = [
            (c(own[field.name.lower()]) if field.name.lower() in own else F.lit(None))
            .cast(spark_type(field.type))
            .alias(field.name)
            for field in row_columns(job, table)
        ]
        parts.append(rows.select(*columns, *[c(name) for name in (OP, TS, SOURCE, SEQ, ROW)]))
    return reduce(DataFrame.unionAll, parts)


def exact(kind: T.DataType, name: str) -> Column:
    """A key column as it is compared: by its text, if the type has values that it cannot hold."""
    value, literal = c(name), c(LITERAL)[name]
    if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType):
        return F.coalesce(literal, value.cast("string"))
    if isinstance(kind, T.StringType):
        # An ENUM's error value, which has the text of its label ''; bytes that are not text have no value.
        text = F.coalesce(value, F.concat(F.lit(NO_TEXT), literal))
        return F.when((value == "") & literal.isNotNull(), F.lit(NO_LABEL)).otherwise(text)
    return value


NO_LABEL = "\0" * 256
"""Labels of an ENUM have at most 255 characters, and may be a NUL."""
NO_TEXT = "\0" * 257
"""Before the hexadecimal digits of bytes that are not text of their character set."""


def copy_identity(merged: T.StructType) -> Column:
    """Identifies a merged copy among all others of the run by its values, batch and number, and a truncate, whose
    values are those of a row of nulls."""
    different = [field for field in merged if field.name not in (OP, TS)]
    values = [_exact(field).alias(f"v{at}") for at, field in enumerate(different)]
    return F.sha2(F.to_json(F.struct((c(OP) == MergedOp.TRUNCATE).alias("t"), *values)), 256)


def _exact(field: T.StructField) -> Column:
    """As numbers, 0.0 and -0.0 would be alike; their texts are not."""
    if isinstance(field.dataType, T.FloatType | T.DoubleType):
        return c(field.name).cast("string")
    if isinstance(field.dataType, T.ArrayType):
        return c(field.name).cast("array<string>")
    return c(field.name)


def size_bytes(frame: DataFrame, rows: int) -> int:
    """What the values of a frame with so many rows take in memory, to within a few bytes for each."""
    texts = [f.name for f in frame.schema if isinstance(f.dataType, T.StringType | T.BinaryType)]
    lengths = [F.coalesce(F.sum(F.octet_length(c(name))), F.lit(0)) for name in texts]
    (found,) = frame.agg(reduce(Column.__add__, lengths, F.lit(0)).alias("bytes")).collect()
    return int(found["bytes"]) + rows * len(frame.schema) * _VALUE_BYTES
