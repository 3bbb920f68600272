"""Quality: the suites of expectations/ over the run's staged and merged rows, and over what the target now has.

The workers read the touched keys back from the target and compare values in the server; the suites judge the frames.
Above `quality.sample_rows` evenly spaced rows are read back, and the verdict says of how many.
Great Expectations takes seconds to import, which it does here while Spark starts and the frames are gathered.
Results are kept in quality/target=<t>/: <stage>.json, own-<n>.json for suites of the pipeline's own, and report.html.
A critical expectation that fails is DataAtRisk.
"""

from __future__ import annotations

import importlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
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

from cdc_core.errors import DataAtRisk
from cdc_core.model.merged import KEY_CHAIN, ORIGIN, SHARD, MergedOp
from cdc_core.model.run import (
    MergeCounts,
    MergeTable,
    counts_from_bytes,
    counts_path,
    files_to_read,
    quality_report,
)
from cdc_core.model.staged import FILE, LITERAL, OP, POS, ROW, SEQ, SOURCE, TS
from cdc_core.target.compare import SAME, outcomes
from cdc_core.target.destination import Destination, Sessions
from cdc_core.target.text import empty_literals, row_keys
from spark_jobs import table_tasks
from spark_jobs.arrow_changes import in_ranges
from spark_jobs.columns import Work, c, map_in_arrow
from spark_jobs.failures import carried
from spark_jobs.job import Job, each_table, leave, log, run
from spark_jobs.key_changes import NO_LABEL, exact
from spark_jobs.merge import read_changes
from spark_jobs.merge_rules import row_columns
from spark_jobs.multiset import copy_identity
from spark_jobs.report import page, summary
from spark_jobs.table_tasks import Piece, Place, together
from spark_jobs.write import accepted

GATHERED_ROWS = 1_000_000
"""A frame of up to this many rows is gathered with Arrow and judged in memory (see suite_runner), without the JVM; one
that a pipeline's own suite judges, only if its values fit as well."""
_TABLE, _KEY, _SHARD, _OUTCOME = "_table", "_key", "_shard", "_outcome"
_STAGED = (OP, TS, SOURCE, FILE, POS, ROW, SEQ)
_FEW_VALUES = frozenset({_TABLE, _SHARD, _OUTCOME, OP, SOURCE, FILE})
_WHOLE = {_KEY: pa.string(), SEQ: pa.int64(), ROW: pa.int64(), POS: pa.int64()}
_EXAMPLES = 20
_VALUE_BYTES = 16
_COPIES = 4
"""Of a frame that is judged in memory: Arrow's columns, those of pandas, and what an expectation makes of them."""
COMPARED_ROWS = 50_000
_TARGET_FRAME = f"`{_TABLE}` string, `{_SHARD}` string, `{_KEY}` string, `{OP}` string, `{_OUTCOME}` string"

Rows = Callable[[Job, Sequence[MergeTable]], pa.Table | None]
Frame = Callable[[Job, Sequence[MergeTable]], DataFrame | None]


def staged_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    parts = []
    for table in tables:
        for _, rows in job.staged(table):
            parts.append(rows.select(F.lit(table.table).alias(_TABLE), *[c(name) for name in _STAGED]))
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
        parts.append(rows.select(F.lit(table.table).alias(_TABLE), key.alias(_KEY), *notes))
    return reduce(DataFrame.unionAll, parts) if parts else None


def target_frame(job: Job, tables: Sequence[MergeTable]) -> DataFrame | None:
    def one(table: MergeTable) -> DataFrame:
        rows = accepted(job, table, job.read(job.filtered_files(table))).coalesce(job.target.sessions)
        return map_in_arrow(rows, _comparer(job.destination(table, writing=False)), _TARGET_FRAME)

    parts = each_table(one, tables)
    return reduce(DataFrame.unionAll, parts) if parts else None


def staged_rows(job: Job, tables: Sequence[MergeTable]) -> pa.Table | None:
    """staged_frame, in memory."""
    parts = []
    for table in tables:
        for file in files_to_read(table.files):
            with job.store.open_input(file.path) as source:
                rows = pq.ParquetFile(source).read(columns=list(_STAGED))
            if file.seqs:
                rows = rows.filter(pa.array(in_ranges(rows.column(SEQ).to_numpy(), file.seqs)))
            parts.append(_coded(pa.table({_TABLE: _repeated(table.table, rows.num_rows)} | _columns(rows, _STAGED))))
    return pa.concat_tables(parts).unify_dictionaries() if tables else None


def merged_rows(job: Job, tables: Sequence[MergeTable]) -> pa.Table | None:
    """merged_frame, in memory."""
    parts = []
    for table in tables:
        if not table.key:
            frame = merged_frame(job, [table])
            assert frame is not None
            parts.append(_coded(frame.toArrow()))
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
                    columns = {_TABLE: _repeated(table.table, batch.num_rows), _KEY: _merged_keys(batch, table.key)}
                    parts.append(_coded(pa.table(columns | _columns(batch, (OP, SOURCE, SEQ, ROW)))))
    return pa.concat_tables(parts).unify_dictionaries() if tables else None


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


def target_rows(job: Job, tables: Sequence[MergeTable], sample: Sample) -> pa.Table | None:
    """target_frame, in memory: one job of Spark for all tables; tables with rows that were set aside have their own,
    and are compared as a whole."""
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
            found = pa.Table.from_batches(list(compared), _compared_schema())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema) as stream:
            stream.write_table(found)
        yield sink.getvalue().to_pybytes()

    found, error = together(table_tasks.done(job, pieces, work))
    if error:
        raise error
    parts = [_coded(pa.ipc.open_stream(one).read_all()) for one in found]
    if aside:
        frame = target_frame(job, aside)
        assert frame is not None
        parts.append(_coded(frame.toArrow().select(_compared_schema().names)))
    return pa.concat_tables(parts).unify_dictionaries() if tables else None


def _compared_schema() -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in (_TABLE, _SHARD, _KEY, OP, _OUTCOME)])


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
                    _TABLE: pa.repeat(destination.logical, rows.num_rows),
                    _SHARD: pa.repeat(shard.table.name, rows.num_rows),
                    _KEY: _keys_to_show(rows, destination.key, found),
                    OP: rows.column(OP),
                    _OUTCOME: pa.array(found, pa.string()),
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
    rows = job.read(job.merged_files(table)) if merged else read_changes(job, table, row_columns(job, table))
    nested = [
        field.name
        for field in rows.schema
        if isinstance(field.dataType, T.StructType | T.MapType) or field.name == KEY_CHAIN
    ]
    return rows.drop(*[c(name) for name in nested])


def size_bytes(frame: DataFrame, rows: int) -> int:
    """What the values of a frame with so many rows take in memory, to within a few bytes for each."""
    texts = [f.name for f in frame.schema if isinstance(f.dataType, T.StringType | T.BinaryType)]
    lengths = [F.coalesce(F.sum(F.octet_length(c(name))), F.lit(0)) for name in texts]
    (found,) = frame.agg(reduce(Column.__add__, lengths, F.lit(0)).alias("bytes")).collect()
    return int(found["bytes"]) + rows * len(frame.schema) * _VALUE_BYTES


def check(job: Job) -> None:
    """Runs the three suites and the pipeline's own. Raises DataAtRisk (quality.failed) after all have run and their
    results are kept, UsageError (quality.suite), Refused (plan.purged) for staged files that were purged meanwhile."""
    with job.reading_staged():
        _check(job)


def _check(job: Job) -> None:
    folder = job.plan.quality_folder(job.target.name)
    job.clear(folder)
    tables = [table for table in job.tables() if table.files]
    counts = counts_from_bytes(job.store.get(counts_path(job.plan.merged_folder(job.merge_set.name))), MergeCounts)
    winners = {one.table: one.winners for one in counts}
    names = job.tables_aside
    aside = [table for table in tables if table.table in names]
    paths = [path for table in tables if table.table not in names for path in job.filtered_files(table)]
    files = dict(zip(paths, job.rows_of(paths), strict=True))
    sample = Sample.of(job.plan.run_id, files, job.pipeline.quality.sample_rows)
    compared_whole = sum(accepted(job, table, job.read(job.filtered_files(table))).count() for table in aside)
    rows = {
        "staged": sum(table.rows for table in tables),
        "merged": sum(winners[table.table] for table in tables),
        "target": sample.rows + compared_whole,
    }
    in_memory: dict[str, Rows] = {
        "staged": staged_rows, "merged": merged_rows, "target": partial(target_rows, sample=sample)
    }  # fmt: skip
    by_spark: dict[str, Frame] = {"staged": staged_frame, "merged": merged_frame, "target": target_frame}
    with ThreadPoolExecutor(len(rows), thread_name_prefix="gather") as pool:
        gathered = {
            stage: pool.submit(gather, job, tables)
            for stage, gather in in_memory.items()
            if rows[stage] <= GATHERED_ROWS or (stage == "target" and sample.every > 1)
        }
        from spark_jobs.suite_runner import GOOD, SUITES, judge

    verdicts: dict[str, dict[str, Any]] = {}
    for stage in SUITES:
        frame = gathered[stage].result() if stage in gathered else by_spark[stage](job, tables)
        if frame is None:
            verdicts[stage] = {"success": True, "suite": stage, "rows": 0, "expectations": []}
        else:
            data = frame if isinstance(frame, DataFrame) else frame.to_pandas()
            verdicts[stage] = judge(data, SUITES[stage](rows[stage]), rows[stage])
            if not verdicts[stage]["success"] and stage == "target":
                verdicts[stage]["examples"] = _examples(frame, GOOD)
        if stage == "target":
            verdicts[stage]["of"] = sum(files.values()) + compared_whole
        _keep(job, folder, stage, verdicts[stage])
    for name, verdict in _own_verdicts(job, tables, winners):
        verdicts[name] = verdict
        _keep(job, folder, name, verdict)
    # Comes last: without the report, no verdict counts.
    job.store.put(quality_report(folder), page(job.plan.run_id, job.target.name, verdicts).encode())
    failed = [name for name, verdict in verdicts.items() if not verdict["success"]]
    if failed:
        raise DataAtRisk(
            f"Rows fail the expectations of {', '.join(failed)}.",
            where=f"run {job.plan.run_id}, target {job.target.name}",
            code="quality.failed",
            remedy=f"read {job.store.location(quality_report(folder))}, or {failed[0]}.json beside it; the consume "
            "records have not moved",
        )


def _own_verdicts(
    job: Job, tables: Sequence[MergeTable], winners: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The verdicts of those of the pipeline's own suites whose table has rows in the run."""
    from spark_jobs.suite_runner import judge, own_suite

    by_name = {table.table: table for table in tables}
    for number, suite in enumerate(job.pipeline.quality.suites):
        table = by_name.get(suite.table)
        if table is not None:
            made = own_suite(suite)
            rows = table.rows if suite.stage == "staged" else winners[table.table]
            frame = own_frame(job, table, suite.stage)
            here = rows <= GATHERED_ROWS and size_bytes(frame, rows) <= job.driver_bytes // _COPIES
            verdict = judge(frame.toArrow().to_pandas() if here else frame, made, rows)
            yield f"own-{number}", verdict | {"table": suite.table, "stage": suite.stage, "file": suite.path}


def _keep(job: Job, folder: str, name: str, verdict: dict[str, Any]) -> None:
    """Writes the verdict to a file and to the task's log."""
    job.store.put(f"{folder}/{name}.json", json.dumps(verdict, indent=1).encode())
    met = all(one["success"] for one in verdict["expectations"])
    log.log(logging.INFO if met else logging.WARNING, "run %s %s", job.plan.run_id, summary(name, verdict))
    for example in verdict.get("examples", ()):
        log.warning("run %s %s", job.plan.run_id, example)


def _examples(frame: DataFrame | pa.Table, good: Sequence[str]) -> list[dict[str, str]]:
    if isinstance(frame, DataFrame):
        found = [row.asDict() for row in frame.where(~c(_OUTCOME).isin(*good)).limit(_EXAMPLES).collect()]
    else:
        known = pc.is_in(frame.column(_OUTCOME).cast(pa.string()), pa.array(good))
        found = frame.filter(pc.invert(known)).slice(0, _EXAMPLES).to_pylist()
    return [{name: str(value) for name, value in row.items()} for row in found]


def main(argv: Sequence[str] | None = None) -> int:
    with ThreadPoolExecutor(1, thread_name_prefix="import") as pool:
        pool.submit(importlib.import_module, "spark_jobs.suite_runner")
        return run("quality", check, argv)


if __name__ == "__main__":
    from spark_jobs import quality as this

    leave(this.main())
