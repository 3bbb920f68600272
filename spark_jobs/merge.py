"""Merge: finds the last change of each key among all staged changes of a run; cdc_core/history says what that is.

All tables of a set are one Spark job of two stages. A task of the first reads a staged file of a large table, or a
share of a large one, and splits its events by key; Spark shuffles these pieces, which it does not look into; a task of
the second has a part of a large table's keys, or several small tables, whose files it reads itself, and writes files of
merged rows. The driver does a small run itself, by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.history.history import Counts, History
from cdc_core.history.keyless_rows import each_copy
from cdc_core.history.parts import Parts, key_links, split
from cdc_core.history.rule import TableRule
from cdc_core.history.truncates import TruncateRule
from cdc_core.model.places import in_order
from cdc_core.model.run_plan import MergeCounts, MergeTable, counts_path, counts_to_bytes
from cdc_core.stage.horizon import require_unpurged
from cdc_core.stage.intact import damage
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.staged_events import FileOfEvents, file_events, may_change_key
from cdc_core.stage.stores import open_stage
from spark_jobs.job import Job, log
from spark_jobs.merge_rules import checked, files_of_events, table_rule, truncate_rule, versions
from spark_jobs.shuffle import shuffled
from spark_jobs.step_files import StepFiles, clear_tables
from spark_jobs.table_tasks import THREADS, Place, all_results, in_place, in_tasks, most_tasks, packed

WHOLE_ROWS, WHOLE_BYTES = 20_000, 32 << 20
"""A table with at most so many changes, which take at most so much memory, is merged by one task."""
PART_ROWS, PART_BYTES = 250_000, 96 << 20
"""A part of a large table has about so many changes, which take about so much memory."""
PIECE_ROWS, LEAST_CUT_ROWS, MOST_CUT_ROWS = 1_000, 1 << 16, 1 << 18
"""So many events are cut at once that each part gets a piece of about so many, within limits: memory holds them."""
FILE_ROWS = 300_000
"""At most so many different rows has a merged file. The later steps have a task for each file."""
LOOKED_AT_ROWS, LOOKED_AT_GROUPS = 1_000_000, 64
"""About so many keys, of so many row groups, say where a large table's parts are cut."""


@dataclass(frozen=True, slots=True)
class _Table:
    """What a worker needs to merge a table. folder: for the merged rows."""

    folder: str
    files: tuple[FileOfEvents, ...]
    rule: TableRule
    truncates: TruncateRule
    parts: Parts
    rows: int


@dataclass(frozen=True, slots=True)
class _Merged:
    """The result of a table, or of a part of one. paths: of its files. truncates: versions of those that count."""

    paths: tuple[str, ...] = ()
    counts: Counts = field(default_factory=Counts)
    winners: int = 0
    truncates: tuple[str, ...] = ()

    def __add__(self, other: _Merged) -> _Merged:
        counts = replace(self.counts)
        counts += other.counts
        return _Merged(
            (*self.paths, *other.paths), counts, self.winners + other.winners, self.truncates or other.truncates
        )


def merge_tables(job: Job, tables: Sequence[MergeTable]) -> list[MergeCounts]:
    """Writes the winners of the tables; their counts.

    Raises the first error of a table: DataAtRisk (stage.damaged, target.absent_values), Refused (config.table_rule).
    """
    given = [_table(job, table) for table in tables]
    root = job.plan.merged_folder(job.merge_set.name)
    clear_tables(job.store, root, tables)
    done = _each(job, given)
    counts = []
    with StepFiles(job.store) as files:
        for table, one, of_table in zip(tables, given, done, strict=True):
            paths = of_table.paths or _written(files, one, History(one.rule, one.truncates.last).merged().rows)
            names = [path.removeprefix(f"{one.folder}/") for path in paths]
            counts.append(checked(table, job.plan.run_id, of_table.counts, of_table.winners, of_table.truncates, names))
    kept = {f"{one.folder}/{name}" for one, of_table in zip(given, counts, strict=True) for name in of_table.files}
    clear_tables(job.store, root, tables, kept=kept)
    return counts


def _table(job: Job, table: MergeTable) -> _Table:
    rule, files = table_rule(job, table), files_of_events(job, table)
    made = _Table(job.merged(table.table), tuple(files), rule, truncate_rule(job, table), Parts(1), table.rows)
    count = _parts(job, table)
    return made if count == 1 else replace(made, parts=_cutting(job.store, made, count, by_hash=not job.small))


def _parts(job: Job, table: MergeTable) -> int:
    """In how many parts a table is merged."""
    if table.rows <= WHOLE_ROWS and table.plain_bytes <= WHOLE_BYTES:
        return 1
    return max(-(-table.rows // PART_ROWS), -(-table.plain_bytes // PART_BYTES), job.parallelism)


def _cutting(store: ObjectStore, table: _Table, count: int, *, by_hash: bool) -> Parts:
    """Cuts a table by ranges of its key, if that begins with a whole number; else by a hash of the whole key, or not at
    all: rows by hash are everywhere in the target, and the driver, which has all of a table's, sorts them instead."""
    rule = table.rule
    parts = Parts(count)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="keys") as pool:
        if rule.key and pa.types.is_integer(rule.columns.field(rule.key[0]).type):
            every = max(len(table.files) // LOOKED_AT_GROUPS, 1)
            keys = pool.map(lambda file: _keys(store, table, file), table.files[::every])
            parts = Parts.of_ranges(count, np.concatenate([np.zeros(0, np.int64), *keys]))
        if rule.fill and (by_hash or parts.bounds is not None):
            links = pool.map(lambda file: _links(store, table, file), table.files)
            parts = parts.with_links(np.concatenate(list(links)))
    return parts if by_hash or parts.bounds is not None else Parts(1)


def _keys(store: ObjectStore, table: _Table, file: FileOfEvents) -> npt.NDArray[np.int64]:
    """Evenly spaced values of the key's first column in a file."""
    name = table.rule.key[0].lower()
    own = next((column.name for column in file.schema.columns if column.name.lower() == name), None)
    if own is None:
        return np.zeros(0, np.int64)
    try:
        with store.open_input(file.part.path) as source, pq.ParquetFile(source) as parquet:
            every = max(parquet.num_row_groups * len(table.files) // LOOKED_AT_GROUPS, 1)
            groups = list(range(0, parquet.num_row_groups, every))
            values = parquet.read_row_groups(groups, columns=[own]).column(own)
    except (pa.ArrowException, OSError) as error:
        raise (damage(store, file.part) or error) from error
    some = values.combine_chunks()[:: max(table.rows // LOOKED_AT_ROWS, 1)].drop_null()
    return np.asarray(some)


def _links(store: ObjectStore, table: _Table, file: FileOfEvents) -> npt.NDArray[np.uint64]:
    if not may_change_key(file, table.rule):
        return np.zeros((0, 2), np.uint64)
    return np.concatenate([key_links(events, table.rule) for events in file_events(store, file, table.rule)])


def _each_whole(job: Job, tables: Sequence[_Table]) -> list[_Merged]:
    def work(table: _Table, place: Place) -> Iterator[_Merged]:
        yield _whole(place.store, place.files, table)

    return all_results(in_tasks(job, tables, in_place(job, work)))


def _each(job: Job, tables: Sequence[_Table]) -> list[_Merged]:
    """Large tables as one job, and all others as another one, however many there are."""
    large = [at for at, table in enumerate(tables) if table.parts.count > 1]
    small = [at for at, table in enumerate(tables) if table.parts.count == 1]
    done = dict(zip(small, _each_whole(job, [tables[at] for at in small]), strict=True))
    done |= dict(zip(large, _shuffled(job, [tables[at] for at in large]), strict=True)) if large else {}
    return [done[at] for at in range(len(tables))]


def _shuffled(job: Job, tables: Sequence[_Table]) -> list[_Merged]:
    stage = job.pipeline.stage
    firsts = np.cumsum([0, *(table.parts.count for table in tables)]).tolist()
    reads = [
        _Read(number, share)
        for number, table in enumerate(tables)
        for file in table.files
        for share in file.shares(job.parallelism)
    ]
    units = packed(reads, most_tasks(job))

    def cut(unit: Sequence[tuple[int, _Read]]) -> Iterator[Iterator[tuple[int, pa.Table]]]:
        store = open_stage(stage)
        for _, read in unit:
            table = tables[read.table]
            at_once = min(max(PIECE_ROWS * table.parts.count, LEAST_CUT_ROWS), MOST_CUT_ROWS)
            for events in file_events(store, read.file, table.rule, at_once=at_once):
                yield ((firsts[read.table] + at, piece) for at, piece in split(events, table.rule, table.parts))

    def work(part: int, pieces: Iterator[pa.Table]) -> Iterator[tuple[int, _Merged]]:
        number = int(np.searchsorted(firsts, part, "right")) - 1
        table = tables[number]
        history = History(table.rule, table.truncates.last, first=part == firsts[number])
        for events in pieces:
            history.add(events)
        with StepFiles(open_stage(stage)) as files:
            done = _merged(files, table, history)
        yield number, done

    results = [_Merged() for _ in tables]
    for number, merged in shuffled(job, units, cut, firsts[-1], work):
        results[number] += merged
    return results


@dataclass(frozen=True, slots=True)
class _Read:
    """A file of a large table, or a share of one; by the table's number."""

    table: int
    file: FileOfEvents

    @property
    def rows(self) -> int:
        return self.file.about_rows


def _whole(store: ObjectStore, files: StepFiles, table: _Table) -> _Merged:
    """A table that is merged at once."""
    history = History(table.rule, table.truncates.last)
    for file in table.files:
        for events in file_events(store, file, table.rule):
            history.add(events)
    return _merged(files, table, history)


def _merged(files: StepFiles, table: _Table, history: History) -> _Merged:
    merged = history.merged()
    removing = versions(table.truncates, merged.truncates)
    rows = merged.rows if table.rule.key else each_copy(merged.rows)
    paths = tuple(_written(files, table, merged.rows)) if rows.num_rows else ()
    return _Merged(paths, history.counts, rows.num_rows, removing)


def _written(files: StepFiles, table: _Table, rows: pa.Table) -> Iterator[str]:
    """The paths of the files of merged rows; at least one, if only an empty one. Each of several has a range of the
    keys, as those of parts have: what is there already for its rows is side by side, too."""
    count = max(-(-rows.num_rows // FILE_ROWS), 1)
    if count > 1 and table.rule.key:
        rows = in_order(rows, table.rule.key)
    for at in range(count):
        low, high = rows.num_rows * at // count, rows.num_rows * (at + 1) // count
        some = rows.slice(low, high - low)
        yield files.write_rows(table.folder, some if table.rule.key else each_copy(some))


def merge(job: Job) -> None:
    """Merges a set; writes counts.json last, and only then does the set count as merged.

    Raises DataAtRisk (stage.damaged) for a file that is not as it was staged; Refused (plan.purged) for files that were
    purged, also while they were read.
    """
    require_unpurged(job.store, [file.batch_id for table in job.merge_set.tables for file in table.files])
    tables = [table for table in job.merge_set.tables if table.files]
    with job.reading_staged():
        job.store.delete(counts_path(job.plan.merged_folder(job.merge_set.name)))
        counts = merge_tables(job, tables)
    for count in counts:
        log.info("run %s set %s: %s", job.plan.run_id, job.merge_set.name, count)
    job.store.put(counts_path(job.plan.merged_folder(job.merge_set.name)), counts_to_bytes(counts))
