"""Write: writes the filtered rows to the target, each shard table by one Spark task in one transaction.

A task has some of the table's shards: the worker reads their rows from the files of filtered/ itself, in the order of
their key, and streams batches into one text file per shard. So memory holds a batch, whatever the run's size, and no
row passes through the JVM. Rows that moved between shards are first written to all new shards; then a second pass
empties the places they left: a reader may briefly see such a row twice, but always sees it, unless another row takes
over its unique value in the shard that it leaves. Rows that the target rejects are set aside if the table's policy says
so; their old places stay unchanged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cdc_core.model.merged import REASON, MergedOp
from cdc_core.model.run import MergeTable, WriteCounts, counts_path, counts_to_bytes
from cdc_core.model.staged import OP, ROW, SEQ, SOURCE
from cdc_core.model.version import decode
from cdc_core.stage.stores import open_stage
from cdc_core.target.destination import Destination
from cdc_core.target.load import LoadFile, Unfit
from cdc_core.target.multiset import write_copies
from cdc_core.target.text import row_keys, version_hex
from cdc_core.target.write import ShardResult, ShardWrite, write_shard
from spark_jobs.columns import c
from spark_jobs.failures import carried
from spark_jobs.filtered_files import FilteredFiles
from spark_jobs.job import Job, each_table, leave, log, run
from spark_jobs.multiset import last_batches

BATCH_ROWS = 50_000
_UNFIT = f"`{OP}` string, `{SOURCE}` string, `{SEQ}` bigint, `{ROW}` bigint, `{REASON}` string"
TASKS_PER_CORE = 4
Work = Callable[[Sequence[int]], Iterator[ShardResult]]
"""Writes the rows of some shards, by their numbers."""


def written(
    job: Job,
    destination: Destination,
    paths: Sequence[str],
    *,
    arrivals: bool,
    unfit: Sequence[Unfit] = (),
    upto: Mapping[str, int] | None = None,
    shards: Sequence[int] | None = None,
) -> list[ShardResult]:
    """Writes the rows of filtered files; what each shard's transaction did. arrivals: write all but x rows, which are
    included for the unique values that they free; otherwise write the x rows, except those of `unfit` rows: a row that
    was not written to its new shard stays in the old one. upto: for rows without a key, as in write_copies. shards:
    only these."""
    work = _writer(job, destination, paths, arrivals, unfit, upto or {})
    numbers = list(range(len(destination.shards)) if shards is None else shards)
    context = job.spark.sparkContext
    several = max(min(len(numbers), context.defaultParallelism * TASKS_PER_CORE), 1)
    tasks = context.parallelize([numbers[at::several] for at in range(several)], several)
    return sorted(tasks.flatMap(work).collect(), key=lambda done: done.counts.shard)


def _writer(
    job: Job,
    destination: Destination,
    paths: Sequence[str],
    arrivals: bool,
    unfit: Sequence[Unfit],
    upto: Mapping[str, int],
) -> Work:
    stage, run_id = job.pipeline.stage, job.plan.run_id
    transact = None if destination.key else partial(write_copies, upto=upto)
    stay = pa.array([one.version.hex().upper() + one.key.decode() for one in unfit], pa.string())

    def taken(batch: pa.RecordBatch) -> pa.RecordBatch:
        if arrivals and not destination.quarantine:
            return batch
        left = pc.equal(batch.column(OP), MergedOp.LEFT_SHARD)
        if arrivals:
            return batch.filter(pc.invert(left))  # a row that did not arrive stays
        batch = batch.filter(left)
        names = pc.binary_join_element_wise(version_hex(batch), row_keys(batch, destination.key), "")
        return batch.filter(pc.invert(pc.is_in(names, stay)))

    def work(numbers: Sequence[int]) -> Iterator[ShardResult]:
        with carried(), ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-")))
            filtered = stack.enter_context(FilteredFiles(open_stage(stage), paths))
            for number in numbers:
                shard = destination.shards[number]
                with LoadFile(scratch, destination.layout_of(shard)) as file:
                    for batch in map(taken, filtered.rows_of(number, destination.key, BATCH_ROWS)):
                        file.add(batch)
                    if not file.rows:
                        continue
                    write = ShardWrite(
                        run_id,
                        destination.logical,
                        shard.facts,
                        destination.rule.freshness,
                        ledger=arrivals,
                        quarantine=destination.quarantine,
                    )
                    yield write_shard(shard.server, write, file, transact=transact)

    return work


def write_table(job: Job, table: MergeTable) -> list[WriteCounts]:
    destination = job.destination(table)
    paths = job.files_in(job.filtered(table.table))
    upto = None if table.key else last_batches(table)
    done = written(job, destination, paths, arrivals=True, upto=upto)
    unfit = [row for one in done for row in one.unfit]
    _set_aside(job, table, unfit)
    counts = {one.counts.shard: one.counts for one in done}
    if destination.moving:
        for one in written(job, destination, paths, arrivals=False, unfit=unfit):
            left = one.counts.shard
            first = counts.get(left) or WriteCounts(table.table, left, 0, 0, 0)
            counts[left] = replace(first, number=one.counts.number)
    return list(counts.values())


def _set_aside(job: Job, table: MergeTable, unfit: Sequence[Unfit]) -> None:
    """Keeps the rows that the target rejects, with the reason."""
    folder = job.quarantine(table.table)
    if not unfit:
        job.clear(folder)
        return
    versions = [decode(one.version) for one in unfit]
    named = [(one.op, at.source, at.seq, at.row, one.reason) for one, at in zip(unfit, versions, strict=True)]
    reasons = F.broadcast(job.spark.createDataFrame(named, _UNFIT))
    rows = job.read(job.filtered(table.table))
    aside = rows.join(reasons, [OP, SOURCE, SEQ, ROW]).select(*[c(name) for name in rows.columns], c(REASON))
    aside.write.mode("overwrite").parquet(job.store.spark_uri(folder))
    log.warning("run %s target %s: %d rows of %s set aside in %s, the first: %s", job.plan.run_id, job.target.name,
                len(unfit), table.table, folder, unfit[0].reason)  # fmt: skip


def accepted(job: Job, table: MergeTable, rows: DataFrame) -> DataFrame:
    """The filtered rows without those set aside, and without their departures: a row that did not arrive stays."""
    folder = job.quarantine(table.table)
    if not job.rows_in(folder):
        return rows
    names = {name: f"_aside{at}" for at, name in enumerate((OP, SOURCE, SEQ, ROW, *table.key))}
    aside = F.broadcast(job.read(folder).select(*[c(name).alias(alias) for name, alias in names.items()]))
    same = (c(OP) == c(names[OP])) | (c(OP) == MergedOp.LEFT_SHARD)
    for name in (SOURCE, SEQ, ROW, *table.key):
        same = same & c(name).eqNullSafe(c(names[name]))
    return rows.join(aside, same, "left_anti")


def write(job: Job) -> None:
    """Writes a set to one target; writes counts.json last, when every shard has committed."""
    path = counts_path(job.plan.written_folder(job.target.name))
    job.store.delete(path)
    tables = [table for table in job.tables() if table.files]
    counts = [one for found in each_table(lambda table: write_table(job, table), tables) for one in found]
    for one in counts:
        log.info("run %s target %s: %s", job.plan.run_id, job.target.name, one)
    job.store.put(path, counts_to_bytes(counts))


def main(argv: Sequence[str] | None = None) -> int:
    return run("write", write, argv)


if __name__ == "__main__":
    leave(main())
