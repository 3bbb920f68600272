"""Write: the filtered rows into the target, each shard table by one Spark task in one transaction.

Rows stream from Arrow batches into one text file per shard, so memory holds a batch, whatever the run's size. Rows
that moved between shards arrive first, everywhere; only then a second pass empties the places they left: a reader may
see such a row twice for a moment, never not at all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cdc_core.model.run import MergeTable, WriteCounts, counts_path, counts_to_bytes
from cdc_core.model.staged import OP
from cdc_core.target.destination import Destination
from cdc_core.target.load import LoadFile
from cdc_core.target.write import LEFT, ShardWrite, write_shard
from spark_jobs.columns import c
from spark_jobs.failures import carried
from spark_jobs.filter import SHARD
from spark_jobs.job import Job, each_table, leave, log, run

_COUNTS = ("written", "stale", "absent", "equal")
_RESULT = ", ".join(["shard string", *(f"{name} bigint" for name in _COUNTS)])


def written(rows: DataFrame, destination: Destination, run_id: str, *, arrivals: bool) -> list[WriteCounts]:
    """Writes the rows; what each shard's transaction did. arrivals: u and d rows, else x rows."""
    parallel = max(1, min(len(destination.shards), rows.sparkSession.sparkContext.defaultParallelism * 4))
    mine = rows.where(c(OP) != LEFT) if arrivals else rows.where(c(OP) == LEFT)
    placed = mine.repartitionById(parallel, F.pmod(c(SHARD), F.lit(parallel)).cast("int"))
    done = placed.mapInArrow(_writer(destination, run_id, arrivals), _RESULT).collect()
    return sorted(
        (WriteCounts(destination.logical, row["shard"], *(row[name] for name in _COUNTS)) for row in done),
        key=lambda counts: counts.shard,
    )


def _writer(
    destination: Destination, run_id: str, arrivals: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with carried(), ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-")))
            files: dict[int, LoadFile] = {}
            for batch in batches:
                shards = np.asarray(batch.column(SHARD))
                for number in np.unique(shards):
                    if number not in files:
                        files[number] = stack.enter_context(LoadFile(scratch, f"shard-{number}", destination.layout))
                    files[number].add(batch.take(pa.array(np.flatnonzero(shards == number))))
            for number, file in sorted(files.items()):
                shard = destination.shards[number]
                write = ShardWrite(
                    run_id, destination.logical, shard.facts, destination.rule.freshness, ledger=arrivals
                )
                counts = write_shard(shard.server, write, file)
                yield pa.record_batch({"shard": [counts.shard], **{name: [getattr(counts, name)] for name in _COUNTS}})

    return work


def write_table(job: Job, table: MergeTable) -> list[WriteCounts]:
    destination = job.destination(table)
    rows = job.read(job.filtered(table.table))
    counts = written(rows, destination, job.plan.run_id, arrivals=True)
    if destination.moving:
        written(rows, destination, job.plan.run_id, arrivals=False)
    return counts


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
