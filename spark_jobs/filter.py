"""Filter: chooses the winners that the target should take, classifies each, and says why the others are left out.

The workers read the versions that the target holds, shard by shard, for the touched keys only. Files under
filtered/ hold the rows to write with `_cdc_shard` and `_cdc_class`, all rows of a shard in one file; files under
rejected/ the stale ones with `_cdc_reason`. A row that left a shard (its shard key changed, its key did not) appears
again with operation x for the shard that it left: also if its winner is stale, because the old place must be emptied
in any case. Rows without a key have no versions: only the write knows which of them the target already has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cdc_core.model.merged import (
    BORN,
    CLASS,
    FILTER_ONLY,
    FORMER_SHARD_KEYS,
    LIVE_ORIGINS,
    REASON,
    SHARD,
    MergedOp,
    RowClass,
)
from cdc_core.model.run import FilterCounts, MergeCounts, MergeTable, counts_from_bytes, counts_path, counts_to_bytes
from cdc_core.model.staged import OP
from cdc_core.target.destination import Destination, Sessions
from cdc_core.target.keys import shared_key
from cdc_core.target.row_lookup import LocatedRows, locate_rows
from cdc_core.target.text import row_keys, version_hex
from cdc_core.target.truncates import Truncates
from cdc_core.target.versions import classify, versions_of, without_removed
from spark_jobs.columns import Work, c, map_in_arrow
from spark_jobs.failures import carried, found
from spark_jobs.job import Job, each_table, leave, log, run
from spark_jobs.session import size_shuffles
from spark_jobs.unfinished_writes import end_writes

Batches = Iterable[pa.RecordBatch]
NO_TRUNCATES = Truncates()


def classified(winners: DataFrame, destination: Destination, removing: Truncates = NO_TRUNCATES) -> DataFrame:
    """The winners, and a row for each shard left, with shard, class and reason. removing: the truncates of the run."""
    kept = [field for field in winners.schema if field.name not in FILTER_ONLY]
    schema = T.StructType(
        [
            *kept,
            T.StructField(SHARD, T.IntegerType()),
            T.StructField(CLASS, T.StringType()),
            T.StructField(REASON, T.StringType()),
        ]
    )
    return map_in_arrow(winners, _classifier(destination, removing), schema)


def _classifier(destination: Destination, removing: Truncates) -> Work:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with carried(), tempfile.TemporaryDirectory(prefix="lockstep-") as scratch, Sessions(destination) as sessions:
            for batch in batches:
                truncates = pc.equal(batch.column(OP), MergedOp.TRUNCATE)
                if truncates.true_count:
                    yield _everywhere(destination, batch.filter(truncates))
                    batch = batch.filter(pc.invert(truncates))
                if not destination.key:
                    classes = [
                        RowClass.INSERT if op == MergedOp.UPSERT else RowClass.DELETE
                        for op in batch.column(OP).to_pylist()
                    ]
                    yield _with_notes(batch, destination.shard_numbers(batch), classes, [None] * batch.num_rows)
                elif batch.num_rows:
                    _require_one_live(destination, batch)
                    located = locate_rows(destination, sessions, Path(scratch), batch)
                    yield _judged(destination, sessions, Path(scratch), located, removing)
                    if destination.moving:
                        yield from _departures(destination, located)

    return work


def _require_one_live(destination: Destination, batch: pa.RecordBatch) -> None:
    """Raises DataAtRisk (target.shared_key) for rows that two source tables have under one key."""
    if not destination.shared or LIVE_ORIGINS not in batch.schema.names:
        return
    several = batch.filter(pc.greater(batch.column(LIVE_ORIGINS), 1))
    if several.num_rows:
        key = row_keys(several.slice(0, 1), destination.key)[0].as_py()
        raise shared_key(destination.logical, key.encode(), where=destination.target)


def _judged(
    destination: Destination, sessions: Sessions, scratch: Path, located: LocatedRows, removing: Truncates
) -> pa.RecordBatch:
    batch, shards = located.rows, located.shards
    verdicts = np.empty(batch.num_rows, dtype=object)
    for number in np.unique(shards):
        rows = np.flatnonzero(shards == number)
        part = batch.take(pa.array(rows))
        shard = destination.shards[number]
        held = versions_of(
            sessions.of(shard),
            shard.facts,
            part,
            key=destination.key,
            freshness=destination.rule.freshness,
            scratch=scratch,
            tolerant=destination.quarantine,
        )
        versions = version_hex(part).to_pylist()
        upserts = [op == MergedOp.UPSERT for op in part.column(OP).to_pylist()]
        born = part.column(BORN).to_pylist()
        for at, row in enumerate(rows):
            verdicts[row] = classify(
                without_removed(held[at], removing),
                bytes.fromhex(versions[at]),
                upsert=upserts[at],
                born=bool(born[at]),
                by_column=destination.rule.freshness is not None,
            )
    return _with_notes(
        batch, shards, [verdict[0] for verdict in verdicts], [verdict[1] or None for verdict in verdicts]
    )


def _everywhere(destination: Destination, truncates: pa.RecordBatch) -> pa.RecordBatch:
    """Each truncate for each shard, counted in the first."""
    count, several = len(destination.shards), truncates.num_rows
    rows = truncates.take(pa.array(np.repeat(np.arange(several), count)))
    rows = _with_op(rows, [MergedOp.TRUNCATE, *[MergedOp.TRUNCATE_UNCOUNTED] * (count - 1)] * several)
    classes = [RowClass.DELETE, *[RowClass.UNCOUNTED] * (count - 1)] * several
    return _with_notes(rows, np.tile(np.arange(count), several), classes, [None] * (count * several))


def _with_op(rows: pa.RecordBatch, ops: Sequence[str]) -> pa.RecordBatch:
    at = rows.schema.get_field_index(OP)
    return rows.set_column(at, rows.schema.field(at), pa.array(ops))


def _departures(destination: Destination, located: LocatedRows) -> Iterator[pa.RecordBatch]:
    """Rows with operation x: the winner's key and version at each shard that it was in and is no longer."""
    batch, name = located.rows, destination.moving
    assert name is not None
    moved = batch.column(FORMER_SHARD_KEYS).field(name)
    values, places = moved.flatten(), batch.schema.field(name)
    owner = np.repeat(np.arange(batch.num_rows), np.diff(np.asarray(moved.offsets)))
    once = destination.shard_numbers(pa.record_batch([values.cast(places.type)], schema=pa.schema([places])))
    gone = {(int(row), int(shard)) for row, shard in zip(owner, once, strict=True) if shard != located.shards[row]}
    left = sorted(gone | set(located.left))
    if left:
        there = _with_op(batch.take(pa.array([row for row, _ in left])), [MergedOp.LEFT_SHARD] * len(left))
        yield _with_notes(
            there, np.array([shard for _, shard in left]), [RowClass.UNCOUNTED] * len(left), [None] * len(left)
        )


def _with_notes(
    batch: pa.RecordBatch, shards: np.ndarray, classes: Sequence[str], reasons: Sequence[str | None]
) -> pa.RecordBatch:
    columns = {name: batch.column(name) for name in batch.schema.names if name not in FILTER_ONLY}
    return pa.record_batch(
        {
            **columns,
            SHARD: pa.array(shards.astype(np.int32)),
            CLASS: pa.array(list(classes), pa.string()),
            REASON: pa.array(list(reasons), pa.string()),
        }
    )


def by_shard(rows: DataFrame, destination: Destination) -> DataFrame:
    """In partitions of whole shards, and in key order, as the target will store them: `write` only has to take each
    file as it comes."""
    parts = min(len(destination.shards), rows.sparkSession.sparkContext.defaultParallelism * 4)
    placed = rows.repartitionById(parts, F.pmod(c(SHARD), F.lit(parts)).cast("int"))
    return placed.sortWithinPartitions(c(SHARD), *[c(name) for name in destination.key])


def filter_table(job: Job, table: MergeTable) -> FilterCounts:
    """Writes filtered/ and rejected/ of one table; its counts. Values that are found nowhere may be in the files of a
    run that was killed while it wrote."""
    try:
        return _filtered(job, table)
    except Exception as error:
        known = found(error)
        if known is None or known.code != "target.absent_values" or not end_writes(job, table):
            raise
    return _filtered(job, table)


def _truncates(job: Job, table: MergeTable) -> Truncates:
    counts = counts_from_bytes(job.store.get(counts_path(job.plan.merged_folder(job.merge_set.name))), MergeCounts)
    return Truncates(tuple(bytes.fromhex(one) for of in counts if of.table == table.table for one in of.truncates))


def _filtered(job: Job, table: MergeTable) -> FilterCounts:
    destination = job.destination(table)
    rows = classified(job.read(job.merged(table.table)), destination, _truncates(job, table))
    seen = Observation()
    classes = [one for one in RowClass if one is not RowClass.UNCOUNTED]
    rows = rows.observe(seen, *[F.sum((c(CLASS) == name).cast("bigint")).alias(name) for name in classes])
    # Kept, so that the target is queried once: the second answer could differ.
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        to_write = by_shard(rows.where(c(CLASS) != RowClass.STALE).drop(REASON), destination)
        # Whatever Spark's settings say, no file is split: that would split a shard's transaction.
        to_write.write.option("maxRecordsPerFile", 0).mode("overwrite").parquet(
            job.store.spark_uri(job.filtered(table.table))
        )
        counts = FilterCounts(table.table, **{name: int(seen.get[name] or 0) for name in classes})
        rejected = job.rejected(table.table)
        if counts.stale:
            stale = rows.where(c(CLASS) == RowClass.STALE).drop(CLASS)
            stale.write.mode("overwrite").parquet(job.store.spark_uri(rejected))
        else:
            job.clear(rejected)
    finally:
        rows.unpersist()
    return counts


def apply_filter(job: Job) -> None:
    """Filters a set for one target; writes counts.json last."""
    path = counts_path(job.plan.filtered_folder(job.target.name))
    job.store.delete(path)
    tables = [table for table in job.tables() if table.files]
    size_shuffles(job.spark, max((table.rows for table in tables), default=0))
    counts = each_table(lambda table: filter_table(job, table), tables)
    for one in counts:
        log.info("run %s target %s: %s", job.plan.run_id, job.target.name, one)
    job.store.put(path, counts_to_bytes(counts))


def main(argv: Sequence[str] | None = None) -> int:
    return run("filter", apply_filter, argv)


if __name__ == "__main__":
    leave(main())
