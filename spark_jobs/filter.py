"""Filter: chooses the winners that the target should take, classifies each, and says why the others are left out.

A worker reads a file of merged rows, and the versions that the target holds, shard by shard, for their keys only. Files
under filtered/ hold the rows to write with `_cdc_shard` and `_cdc_class` (filtered_files.py); files under rejected/ the
stale ones with `_cdc_reason`. No row passes through the JVM, and the target is queried once: a second answer could
differ. A row that left a shard (its shard key changed, its key did not) appears again with operation x for the shard
that it left: also if its winner is stale, because the old place must be emptied in any case. Rows without a key have no
versions: only the write knows which of them the target already has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.errors import LockstepError, ValuesAbsent
from cdc_core.history.guard import classify_each
from cdc_core.model.merged_columns import (
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
from cdc_core.model.places import rows_where
from cdc_core.model.row_versions import version_bytes
from cdc_core.model.run_plan import FilterCounts, MergeTable, counts_path, counts_to_bytes
from cdc_core.model.staged_columns import OP
from cdc_core.model.version import latest_places
from cdc_core.targets.reading.destination import Destination, ShardSessions
from cdc_core.targets.tables.target_keys import shared_key
from cdc_core.targets.tables.text_columns import row_keys
from cdc_core.targets.writing.multiset import marks_of
from cdc_core.targets.writing.row_lookup import LocatedRows, locate_rows
from cdc_core.targets.writing.versions import versions_of
from spark_jobs import table_tasks
from spark_jobs.filtered_files import RUN_BYTES, write_run
from spark_jobs.filtered_parts import FilteredPart, counts_of, later, latest_of
from spark_jobs.job import Job, log
from spark_jobs.staged_ends import StagedEnds
from spark_jobs.step_files import clear_tables
from spark_jobs.table_tasks import Piece, Place, together
from spark_jobs.unfinished_writes import end_writes

BATCH_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class Classified:
    """Winners, and rows for shards that were left, with shard, class and reason. latest: as in FilteredPart."""

    rows: pa.RecordBatch
    latest: Mapping[str, int] = field(default_factory=dict)


def classified(
    batches: Iterable[pa.RecordBatch],
    destination: Destination,
    sessions: ShardSessions,
    scratch: Path,
    removing: Sequence[bytes],
) -> Iterator[Classified]:
    """removing: the versions of the run's truncates."""
    for batch in batches:
        truncates = pc.equal(batch.column(OP), MergedOp.TRUNCATE)
        if truncates.true_count:
            yield Classified(_everywhere(destination, batch.filter(truncates)))
            batch = batch.filter(pc.invert(truncates))
        if not destination.key:
            classes = [
                RowClass.INSERT if op == MergedOp.UPSERT else RowClass.DELETE for op in batch.column(OP).to_pylist()
            ]
            yield Classified(_with_notes(batch, destination.shard_numbers(batch), pa.array(classes, pa.string())))
        elif batch.num_rows:
            _require_one_live(destination, batch)
            located = locate_rows(destination, sessions, scratch, batch)
            yield _judged(destination, sessions, scratch, located, removing)
            if destination.moving:
                yield from map(Classified, _departures(destination, located))


def _marks(destination: Destination, sessions: ShardSessions) -> dict[str, int]:
    """The latest batch of each source whose changes a shard has."""
    marks: dict[str, int] = {}
    for shard in destination.shards:
        with sessions.of(shard).cursor() as cursor:
            marks = later(marks, marks_of(cursor, shard.facts))
    return marks


def _require_one_live(destination: Destination, batch: pa.RecordBatch) -> None:
    """Raises DataAtRisk (target.shared_key) for rows that two source tables have under one key."""
    if not destination.shared or LIVE_ORIGINS not in batch.schema.names:
        return
    several = batch.filter(pc.greater(batch.column(LIVE_ORIGINS), 1))
    if several.num_rows:
        key = row_keys(several.slice(0, 1), destination.key)[0].as_py()
        raise shared_key(destination.logical, key.encode(), where=destination.target)


def _judged(
    destination: Destination, sessions: ShardSessions, scratch: Path, located: LocatedRows, removing: Sequence[bytes]
) -> Classified:
    latest: dict[str, int] = {}
    batch, shards = located.rows, located.shards
    places, classes, reasons = [], [], []
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
        each, why = classify_each(
            held,
            version_bytes(part),
            np.asarray(pc.equal(part.column(OP), MergedOp.UPSERT)),
            np.asarray(part.column(BORN).fill_null(False)),
            by_column=destination.rule.freshness is not None,
            removing=removing,
        )
        stale = pc.equal(each, RowClass.STALE)
        if stale.true_count:
            for versions in (held.rows, held.tombstones):
                latest = later(latest, latest_places(versions.filter(stale)))
        places.append(rows)
        classes.append(each)
        reasons.append(why)
    order = pa.array(np.argsort(np.concatenate(places)))
    notes = (pa.concat_arrays(column).take(order) for column in (classes, reasons))
    return Classified(_with_notes(batch, shards, *notes), latest)


def _everywhere(destination: Destination, truncates: pa.RecordBatch) -> pa.RecordBatch:
    """Each truncate for each shard, counted in the first."""
    count, several = len(destination.shards), truncates.num_rows
    rows = truncates.take(pa.array(np.repeat(np.arange(several), count)))
    rows = _with_op(rows, [MergedOp.TRUNCATE, *[MergedOp.TRUNCATE_UNCOUNTED] * (count - 1)] * several)
    classes = [RowClass.DELETE, *[RowClass.UNCOUNTED] * (count - 1)] * several
    return _with_notes(rows, np.tile(np.arange(count), several), pa.array(classes, pa.string()))


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
        uncounted = pa.array([RowClass.UNCOUNTED] * len(left), pa.string())
        yield _with_notes(there, np.array([shard for _, shard in left]), uncounted)


def _with_notes(
    batch: pa.RecordBatch, shards: np.ndarray, classes: pa.StringArray, reasons: pa.StringArray | None = None
) -> pa.RecordBatch:
    columns = {name: batch.column(name) for name in batch.schema.names if name not in FILTER_ONLY}
    notes = {CLASS: classes, REASON: pa.nulls(batch.num_rows, pa.string()) if reasons is None else reasons}
    return pa.record_batch({**columns, SHARD: pa.array(shards.astype(np.int32)), **notes})


@dataclass(frozen=True, slots=True)
class _MergedFile:
    """A file of merged rows, and where its table's files go: paths in the stage. removing: versions of the run's
    truncates."""

    path: str
    filtered: str
    rejected: str
    removing: tuple[bytes, ...]


def _filter_file(destination: Destination, merged: _MergedFile, place: Place) -> Iterator[FilteredPart]:
    paths: list[str] = []
    classes: Counter[str] = Counter()
    latest: dict[str, int] = {}

    def rows_of(parts: Iterable[Classified]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            latest.update(later(latest, part.latest))
            yield part.rows

    def keep(folder: str, rows: pa.Table, key: Sequence[str]) -> None:
        # A task that Spark runs again writes files of its own; the driver keeps those of the one that counts.
        paths.append(place.files.write(folder, lambda file: write_run(file, rows, key)))

    with place.store.open_input(merged.path) as file:
        source = pq.ParquetFile(file)
        # An empty file needs no answers: it is there for its columns.
        rows = pa.RecordBatch.from_pylist([], schema=source.schema_arrow)
        none = _with_notes(rows, np.zeros(0), pa.array([], pa.string()))
        if source.metadata.num_rows and not destination.key:
            latest = _marks(destination, place.sessions)
        batches = source.iter_batches(BATCH_ROWS)
        judged = classified(batches, destination, place.sessions, place.scratch, merged.removing)
        for rows in _gathered(rows_of(judged)):
            for count in pc.value_counts(rows.column(CLASS)).to_pylist():
                classes[count["values"]] += count["counts"]
            stale = pc.equal(rows.column(CLASS), RowClass.STALE)
            kept = rows_where(rows, pc.invert(stale))
            if kept.num_rows:
                keep(merged.filtered, kept.drop_columns([REASON]), destination.key)
            if kept.num_rows < rows.num_rows:
                keep(merged.rejected, rows.filter(stale).drop_columns([CLASS]), destination.key)
        if not any(path.startswith(f"{merged.filtered}/") for path in paths):
            keep(merged.filtered, pa.Table.from_batches([none]).drop_columns([REASON]), ())
    yield FilteredPart(tuple(paths), dict(classes), latest)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """As much as is sorted at once."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(piece.nbytes for piece in waiting) >= RUN_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def filter_tables(job: Job, tables: Sequence[MergeTable]) -> list[FilterCounts]:
    """Writes filtered/ and rejected/ of the tables; their counts. Values that are found nowhere may be in the files of
    a run that was killed while it wrote.

    Raises the first error of a table, after all others are done."""
    counts, failed = _filtered(job, tables)
    if failed:
        again = [
            table
            for table in tables
            if table.table in failed and isinstance(failed[table.table], ValuesAbsent) and end_writes(job, table)
        ]
        more, still = _filtered(job, again)
        left = {name: error for name, error in failed.items() if name not in more} | still
        for table in tables:
            if table.table in left:
                raise left[table.table]
        counts |= more
    return [counts[table.table] for table in tables]


def _filtered(job: Job, tables: Sequence[MergeTable]) -> tuple[dict[str, FilterCounts], dict[str, LockstepError]]:
    """The counts of each table, or the error that ended it."""
    _clear(job, tables, kept=set())
    pieces: list[Piece[_MergedFile]] = []
    of_table: dict[str, list[int]] = {}
    for table, destination in zip(tables, job.destinations(tables), strict=True):
        folders = job.filtered(table.table), job.rejected(table.table)
        paths = job.merged_files(table)
        of_table[table.table] = list(range(len(pieces), len(pieces) + len(paths)))
        rows, removing = table.rows // max(len(paths), 1), job.merge_counts[table.table].removing
        pieces += [Piece(destination, rows, _MergedFile(path, *folders, removing)) for path in paths]

    done = table_tasks.done(job, pieces, _filter_file)
    counts: dict[str, FilterCounts] = {}
    failed: dict[str, LockstepError] = {}
    every: set[str] = set()
    staged = StagedEnds(job.store)
    for table in tables:
        parts, error = together(done[number] for number in of_table[table.table])
        if error is None:
            error = staged.behind(latest_of(parts), table.table, job.target.name)
        if error:
            failed[table.table] = error
            continue
        every.update(path for part in parts for path in part.paths)
        counts[table.table] = counts_of(table.table, job.filtered(table.table), parts)
    _clear(job, [table for table in tables if table.table in counts], kept=every)
    return counts, failed


def _clear(job: Job, tables: Sequence[MergeTable], *, kept: set[str]) -> None:
    """Removes the files of the tables but those that are kept."""
    plan, name = job.plan, job.target.name
    clear_tables(job.store, plan.filtered_folder(name), tables, kept=kept)
    clear_tables(job.store, plan.rejected_folder(name), tables, kept=kept)


def apply_filter(job: Job) -> None:
    """Filters a set for one target; writes counts.json last."""
    path = counts_path(job.plan.filtered_folder(job.target.name))
    job.store.delete(path)
    tables = [table for table in job.tables() if table.files]
    counts = filter_tables(job, tables)
    for count in counts:
        log.info("run %s target %s: %s", job.plan.run_id, job.target.name, count)
    job.store.put(path, counts_to_bytes(counts))
