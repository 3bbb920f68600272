"""Write: the filtered rows into the target, each shard table by one Spark task in one transaction.

Rows stream from Arrow batches into one text file per shard, so memory holds a batch, whatever the run's size. Rows
that moved between shards arrive first, everywhere; only then a second pass empties the places they left: a reader may
see such a row twice for a moment, never not at all - unless another row takes over its unique value where it leaves.
Rows that the target does not take are set aside, where the table's policy says so; their old places stay as they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from cdc_core.apply.guard import decode
from cdc_core.model.run import MergeTable, WriteCounts, counts_path, counts_to_bytes
from cdc_core.model.staged import OP, ROW, SEQ, SOURCE
from cdc_core.target.destination import Destination
from cdc_core.target.load import LoadFile
from cdc_core.target.multiset import write_copies
from cdc_core.target.write import LEFT, ShardResult, ShardWrite, write_shard
from spark_jobs.columns import Work, c, map_in_arrow
from spark_jobs.failures import carried
from spark_jobs.filter import REASON, SHARD
from spark_jobs.job import Job, each_table, leave, log, run
from spark_jobs.multiset import last_batches

_COUNTS = ("written", "stale", "absent", "equal", "quarantined")
_UNFIT = f"`{OP}` string, `{SOURCE}` string, `{SEQ}` bigint, `{ROW}` bigint, `{REASON}` string"
_RESULT = ", ".join(["shard string", *(f"{name} bigint" for name in _COUNTS), f"unfit array<struct<{_UNFIT}>>"])


def written(
    rows: DataFrame, destination: Destination, run_id: str, *, arrivals: bool, upto: Mapping[str, int] | None = None
) -> tuple[list[WriteCounts], list[Row]]:
    """Writes the rows; what each shard's transaction did, and the rows that it left out. arrivals: all but x rows, who
    are there for the unique values that they free; else x rows. upto: of rows without a key, as in write_copies."""
    parallel = max(1, min(len(destination.shards), rows.sparkSession.sparkContext.defaultParallelism * 4))
    mine = rows
    if not arrivals:
        mine = rows.where(c(OP) == LEFT)
    elif destination.quarantine:
        mine = rows.where(c(OP) != LEFT)  # who does not arrive has not left
    placed = mine.repartitionById(parallel, F.pmod(c(SHARD), F.lit(parallel)).cast("int"))
    # In the order of their key rows lie side by side in the target.
    placed = placed.sortWithinPartitions(c(SHARD), *[c(name) for name in destination.key])
    done = map_in_arrow(placed, _writer(destination, run_id, arrivals, upto or {}), _RESULT).collect()
    counts = sorted(
        (WriteCounts(destination.logical, row["shard"], *(row[name] for name in _COUNTS)) for row in done),
        key=lambda counts: counts.shard,
    )
    return counts, [one for row in done for one in row["unfit"]]


def _writer(destination: Destination, run_id: str, arrivals: bool, upto: Mapping[str, int]) -> Work:
    transact = None if destination.key else partial(write_copies, upto=upto)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with carried(), ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-")))
            files: dict[int, LoadFile] = {}
            for batch in batches:
                shards = np.asarray(batch.column(SHARD))
                for number in np.unique(shards):
                    if number not in files:
                        files[number] = stack.enter_context(LoadFile(scratch, destination.layout))
                    files[number].add(batch.take(pa.array(np.flatnonzero(shards == number))))
            for number, file in sorted(files.items()):
                shard = destination.shards[number]
                write = ShardWrite(
                    run_id,
                    destination.logical,
                    shard.facts,
                    destination.rule.freshness,
                    ledger=arrivals,
                    quarantine=destination.quarantine,
                )
                yield _result(write_shard(shard.server, write, file, transact=transact))

    return work


def _result(done: ShardResult) -> pa.RecordBatch:
    unfit = []
    for one in done.unfit:
        version = decode(one.version)
        unfit.append({OP: one.op, SOURCE: version.source, SEQ: version.seq, ROW: version.row, REASON: one.reason})
    kinds = {OP: pa.string(), SOURCE: pa.string(), SEQ: pa.int64(), ROW: pa.int64(), REASON: pa.string()}
    return pa.record_batch(
        {
            "shard": [done.counts.shard],
            **{name: [getattr(done.counts, name)] for name in _COUNTS},
            "unfit": pa.array([unfit], pa.list_(pa.struct(list(kinds.items())))),
        }
    )


def write_table(job: Job, table: MergeTable) -> list[WriteCounts]:
    destination = job.destination(table)
    rows = job.read(job.filtered(table.table))
    upto = None if table.key else last_batches(table)
    counts, unfit = written(rows, destination, job.plan.run_id, arrivals=True, upto=upto)
    _set_aside(job, table, rows, unfit)
    if destination.moving:
        written(accepted(job, table, rows), destination, job.plan.run_id, arrivals=False)
    return counts


def _set_aside(job: Job, table: MergeTable, rows: DataFrame, unfit: Sequence[Row]) -> None:
    """Keeps the rows that the target does not take, with the reason."""
    folder = job.quarantine(table.table)
    if not unfit:
        job.clear(folder)
        return
    reasons = F.broadcast(job.spark.createDataFrame(list(unfit), _UNFIT))
    aside = rows.join(reasons, [OP, SOURCE, SEQ, ROW]).select(*[c(name) for name in rows.columns], c(REASON))
    aside.write.mode("overwrite").parquet(job.store.spark_uri(folder))
    log.warning("run %s target %s: %d rows of %s set aside in %s, the first: %s", job.plan.run_id, job.target.name,
                len(unfit), table.table, folder, unfit[0][REASON])  # fmt: skip


def accepted(job: Job, table: MergeTable, rows: DataFrame) -> DataFrame:
    """The filtered rows without those set aside, and without the departures that belong to them: who did not arrive
    has not left."""
    folder = job.quarantine(table.table)
    if not job.rows_in(folder):
        return rows
    names = {name: f"_aside{at}" for at, name in enumerate((OP, SOURCE, SEQ, ROW, *table.key))}
    aside = F.broadcast(job.read(folder).select(*[c(name).alias(alias) for name, alias in names.items()]))
    same = (c(OP) == c(names[OP])) | (c(OP) == LEFT)
    for name in (SOURCE, SEQ, ROW, *table.key):
        same = same & c(name).eqNullSafe(c(names[name]))
    return rows.join(aside, same, "left_anti")


def write(job: Job) -> None:
    """Writes a set to one target; counts.json comes last, when every shard has committed."""
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
