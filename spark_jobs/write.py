"""Write: writes the filtered rows to the target, each shard table by one Spark task in one transaction, or in parts.

A task has some of a table's shards, or several small tables (table_tasks.py): the worker reads their rows from the
files of filtered/ itself, in the order of their key, and streams batches into one text file per shard. So memory holds
a batch, whatever the run's size, and no row passes through the JVM. Rows that moved between shards are first written to
all new shards; then, when all tables have theirs, a second pass empties the places they left: a reader may briefly see
such a row twice, but always sees it, unless another row takes over its unique value in the shard that it leaves. Rows
that the target rejects are set aside if the table's policy says so; their old places stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import LockstepError
from cdc_core.model.merged_columns import MergedOp
from cdc_core.model.run_plan import MergeTable, WriteCounts, counts_path, counts_to_bytes
from cdc_core.model.staged_columns import OP
from cdc_core.stage.layout import parse_copied
from cdc_core.targets.bookkeeping import indexes
from cdc_core.targets.bookkeeping.indexes import IndexedTable, built_after
from cdc_core.targets.reading.destination import Destination
from cdc_core.targets.writing.multiset import write_copies
from cdc_core.targets.writing.shard_write import ShardResult, ShardWrite
from cdc_core.targets.writing.write_parts import why_whole, write_rows
from spark_jobs import table_tasks
from spark_jobs.filtered_files import FilteredFiles
from spark_jobs.job import Job, log
from spark_jobs.merge_rules import begin_of
from spark_jobs.quarantine import name_of, others, set_aside
from spark_jobs.step_files import folders_in
from spark_jobs.table_tasks import Piece, Place, together

BATCH_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class FilteredRows:
    """Rows of one table's filtered files, to write.

    arrivals: all but x rows, which are read for the unique values that they free; otherwise the x rows, except those of
    `stay`: rows that were not written to their new shard, by name. upto: for rows without a key, as in write_copies.
    part_rows: as in write_parts.write_rows. after: by shard, the number of the transaction with its arrivals. shards:
    only these, by their numbers; None for all.
    """

    paths: Sequence[str]
    arrivals: bool = True
    stay: Sequence[str] = ()
    upto: Mapping[str, int] = field(default_factory=dict)
    part_rows: int = 0
    after: Mapping[str, int] = field(default_factory=dict)
    shards: Sequence[int] | None = None


def shard_pieces(job: Job, destination: Destination, rows: FilteredRows, count: int = 0) -> list[Piece[FilteredRows]]:
    """The work of writing these rows. count: about how many there are."""
    shards = range(len(destination.shards)) if rows.shards is None else rows.shards
    several = max(min(len(shards), table_tasks.most_tasks(job)), 1)
    return [
        Piece(destination, count // several, replace(rows, shards=tuple(shards[at::several]))) for at in range(several)
    ]


def write_pieces(job: Job, pieces: Sequence[Piece[FilteredRows]]) -> list[list[ShardResult] | LockstepError]:
    """Writes the pieces; returns what each shard's transaction did."""
    run_id = job.plan.run_id

    def work(destination: Destination, rows: FilteredRows, place: Place) -> Iterator[ShardResult]:
        return _write_shards(run_id, destination, rows, place)

    return table_tasks.done(job, pieces, work)


def _write_shards(run_id: str, destination: Destination, rows: FilteredRows, place: Place) -> Iterator[ShardResult]:
    transact = None if destination.key else partial(write_copies, upto=rows.upto)

    def taken(batch: pa.RecordBatch) -> pa.RecordBatch:
        if rows.arrivals and not destination.quarantine:
            return batch
        left = pc.equal(batch.column(OP), MergedOp.LEFT_SHARD)
        if rows.arrivals:
            return batch.filter(pc.invert(left))  # a row that did not arrive stays
        return others(batch.filter(left), destination.key, rows.stay)

    assert rows.shards is not None  # shard_pieces has named them
    with FilteredFiles(place.store, rows.paths) as filtered:
        for number in rows.shards:
            shard = destination.shards[number]
            write = ShardWrite(
                run_id,
                destination.logical,
                shard.facts,
                shard.table.placement,
                freshness=destination.rule.freshness,
                ledger=rows.arrivals,
                quarantine=destination.quarantine,
                pipeline=shard.writer,
                after=rows.after.get(shard.facts.name, 0),
            )
            result = write_rows(
                shard.server,
                write,
                destination.layout_of(shard),
                map(taken, filtered.rows_of(number, destination.key, BATCH_ROWS)),
                place.scratch,
                part_rows=rows.part_rows,
                transact=transact,
                session=partial(place.sessions.of, shard),
            )
            if result:
                yield result


def _part_rows(job: Job, table: MergeTable, destination: Destination) -> int:
    """How many rows a transaction takes; 0 for all."""
    most = job.database.part_rows
    if not most or table.rows <= most:
        return 0
    merged = job.merge_counts[table.table]
    for shard in destination.shards:
        why = why_whole(shard.facts, destination.layout_of(shard), merged, quarantine=destination.quarantine)
        if why:
            log.info(
                "run %s target %s: all rows of %s are written in one transaction, not in parts of %d: %s",
                job.plan.run_id,
                job.target.name,
                shard.facts.name,
                most,
                why,
            )
            return 0
    return most


def write_tables(job: Job, tables: Sequence[MergeTable]) -> list[WriteCounts]:
    """Writes the tables; what each shard's transaction did. Raises the first error of a table, after all others are
    done."""
    places = {table.table: destination for table, destination in zip(tables, job.destinations(tables), strict=True)}
    paths = {table.table: job.filtered_files(table) for table in tables}
    errors: dict[str, LockstepError] = {}

    def all_written(pieces_of: Mapping[str, Sequence[Piece[FilteredRows]]]) -> dict[str, list[ShardResult]]:
        done = iter(write_pieces(job, [piece for pieces in pieces_of.values() for piece in pieces]))
        results = {}
        for name, pieces in pieces_of.items():
            found, error = together([next(done) for _ in pieces])
            if error:
                errors[name] = error
            else:
                results[name] = sorted(found, key=lambda result: result.counts.shard)
        return results

    with built_after(_large(job, places, tables)):
        arriving = {}
        for table in tables:
            upto, part_rows = {} if table.key else last_batches(table), _part_rows(job, table, places[table.table])
            rows = FilteredRows(paths[table.table], upto=upto, part_rows=part_rows)
            arriving[table.table] = shard_pieces(job, places[table.table], rows, table.rows)
        arrived = all_written(arriving)
    departing: dict[str, list[Piece[FilteredRows]]] = {}
    aside = folders_in(job.store, job.plan.quarantine_folder(job.target.name))
    for table in tables:
        if table.table in arrived:
            unfit = [row for result in arrived[table.table] for row in result.unfit]
            if unfit or job.quarantine(table.table) in aside:
                set_aside(job, table, unfit)
            if places[table.table].moving:
                after = {result.counts.shard: result.counts.number for result in arrived[table.table]}
                rows = FilteredRows(paths[table.table], arrivals=False, stay=list(map(name_of, unfit)), after=after)
                departing[table.table] = shard_pieces(job, places[table.table], rows, table.rows)
    departed = all_written(departing)
    for table in tables:
        if table.table in errors:
            raise errors[table.table]
    counts: list[WriteCounts] = []
    for table in tables:
        of_shard = {result.counts.shard: result.counts for result in arrived[table.table]}
        for result in departed.get(table.table, ()):
            left = result.counts.shard
            first = of_shard.get(left) or WriteCounts(table.table, left, 0, 0, 0)
            of_shard[left] = replace(first, number=result.counts.number)
        counts += of_shard.values()
    return counts


def last_batches(table: MergeTable) -> dict[str, int]:
    """For each source, where the last batch of the run that has changes of the table begins. Copied rows are between
    the batches of the log that end and begin at their place."""
    last: dict[str, int] = {}
    for file in table.files:
        source = file.batch_id.partition("/")[0]
        seq = begin_of(file.batch_id) - (parse_copied(file.path) is not None)
        last[source] = max(seq, last.get(source, seq))
    return last


def _large(job: Job, places: Mapping[str, Destination], tables: Sequence[MergeTable]) -> list[IndexedTable]:
    """The shards that get so many rows that their indexes wait, if nothing else speaks against it."""
    return [
        IndexedTable(
            shard.server, job.database.connections[shard.table.connection], shard.table.database, shard.table.table
        )
        for table in tables
        if table.rows >= indexes.LARGE_ROWS * len(places[table.table].shards)
        for shard in places[table.table].shards
    ]


def write(job: Job) -> None:
    """Writes a set to one target; writes counts.json last, when every shard has committed."""
    path = counts_path(job.plan.written_folder(job.target.name))
    job.store.delete(path)
    tables = [table for table in job.tables() if table.files]
    counts = write_tables(job, tables)
    for count in counts:
        log.info("run %s target %s: %s", job.plan.run_id, job.target.name, count)
    job.store.put(path, counts_to_bytes(counts))
