"""Merges tables in memory: in the driver, if the job fits into its memory; otherwise small tables, all of them in one
Spark job. A worker reads a table's files, merges them (arrow_merge.py), and writes files of merged rows. Where Spark
would have no other machine, the driver merges a large table too: in parts that fit into its memory (arrow_parts.py).

Left to Spark (merge.py): large tables; tables without a key, whose rows are counted; a key whose type has equal values
with different bits, or is a list; definitions that spell a column in two ways; rows that do not fit into memory, or
that Arrow does not convert.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_type

from cdc_core.errors import LockstepError
from cdc_core.model.merged import merged_schema
from cdc_core.model.run import FileToRead, MergeCounts, MergeTable, files_to_read
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import TRUNCATE
from cdc_core.stage.layout import parse_copied
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_stage
from spark_jobs import table_tasks
from spark_jobs.arrow_changes import (
    BeforeRule,
    Changes,
    Memory,
    NotSmallError,
    StagedRows,
    changes_of,
    expected_bytes,
    key_column,
    read_rows,
    selected,
)
from spark_jobs.arrow_merge import NOTHING, ArrowRule, Found, merged, part_of_each, without_undone
from spark_jobs.arrow_parts import PartFiles, PartRule, Parts
from spark_jobs.job import Job, log
from spark_jobs.merge_rules import checked, fillable, moving_keys, row_columns, source_names, truncate_rule
from spark_jobs.session import is_on_this_machine
from spark_jobs.step_files import StepFiles
from spark_jobs.truncates import TruncateRule, may_have

SMALL_ROWS, SMALL_BYTES = 20_000, 8 << 20
"""Of a table's changes and their files: what a task of Spark merges in memory."""
TASK_BYTES = 192 << 20
"""What the changes may take there: a file may hold a long value once for many rows."""
THREADS = min(os.cpu_count() or 1, 4)
"""Of the driver, for the parts of a large table."""
SPARE, MOST_PARTS = 2, 512
"""A part is planned to take half of what it may: keys have different numbers of changes."""
LOOKED_AT = 1_000_000
"""About so many keys say where a table's parts are cut."""
PART_ROWS = 250_000
"""Of a file of merged rows. The later steps have a task for each."""


@dataclass(frozen=True, slots=True)
class _SmallTable:
    """folder: for the merged rows. files: with the definition of each."""

    table: str
    folder: str
    files: tuple[tuple[FileToRead, TableSchema], ...]
    rule: ArrowRule
    truncates: TruncateRule
    rows: int


@dataclass(frozen=True, slots=True)
class _Merged:
    """What became of a table. paths: of its merged rows; none if it is left to Spark, because of `why`."""

    paths: tuple[str, ...]
    why: str
    found: Found
    undone: int = 0
    winners: int = 0
    removing: tuple[str, ...] = ()


def merge_small(job: Job, tables: Sequence[MergeTable]) -> dict[str, MergeCounts]:
    """Writes the winners of those tables that fit into memory; their counts, by table.

    Raises the first error of a table, after all others are done: DataAtRisk (spark.rows_differ, spark.absent_values),
    Refused (spark.truncate).
    """
    small = [one for table in tables if (one := _small(job, table)) is not None]
    if not small:
        return {}
    by_name = {table.table: table for table in tables}
    root, theirs = job.plan.merged_folder(job.merge_set.name), [by_name[one.table] for one in small]
    job.clear_tables(root, theirs)
    stage = job.pipeline.stage
    # Threads of the driver share its memory; a task of Spark may be anywhere.
    shared = Memory(job.driver_bytes) if job.small else None

    @contextmanager
    def begin() -> Iterator[Callable[[_SmallTable], Iterator[_Merged]]]:
        store, memory = open_stage(stage), shared or Memory(TASK_BYTES)
        with StepFiles(store) as files:
            yield lambda table: merge_in_memory(store, files, table, memory)

    results = table_tasks.in_tasks(job, small, begin)
    counts: dict[str, MergeCounts] = {}
    paths: set[str] = set()
    for table, result in zip(small, results, strict=True):
        if isinstance(result, LockstepError):
            raise result
        (done,) = result
        if done.why:
            log.info("run %s: %s is merged by itself: %s", job.plan.run_id, table.table, done.why)
            continue
        paths.update(done.paths)
        counts[table.table] = _counts(job, by_name[table.table], done)
    job.clear_tables(root, theirs, kept=paths)
    return counts


def _counts(job: Job, table: MergeTable, done: _Merged) -> MergeCounts:
    """Raises what `checked` raises."""
    return checked(
        table,
        job.plan.run_id,
        rows=done.found.rows,
        undone=done.undone,
        key_changes=done.found.key_changes,
        superseded=done.found.superseded,
        lost=done.found.lost,
        winners=done.winners,
        removing=done.removing,
        files=[path.rpartition("/")[2] for path in done.paths],
    )


def merge_large(job: Job, table: MergeTable) -> MergeCounts | None:
    """Writes the winners of a table, part by part; its counts. None: it is left to Spark, which has other machines, or
    rules that parts do not have. Raises DataAtRisk (spark.rows_differ, spark.absent_values)."""
    if not job.driver_bytes or not is_on_this_machine():
        return None
    one = _in_memory(job, table)
    if one is None:
        return None
    root = job.plan.merged_folder(job.merge_set.name)
    job.clear_tables(root, [table])
    parts = -(-expected_bytes(table, job.schemas(table)) * SPARE * THREADS // job.driver_bytes)
    try:
        done = merge_in_parts(job.store, one, job.driver_bytes, min(max(parts, THREADS), MOST_PARTS))
    except NotSmallError as error:
        log.info("run %s: Spark merges %s: %s", job.plan.run_id, table.table, error)
        return None
    job.clear_tables(root, [table], kept=done.paths)
    return _counts(job, table, done)


def merge_in_parts(store: ObjectStore, table: _SmallTable, driver_bytes: int, parts: int) -> _Merged:
    """Merges a table by its keys' parts. Raises NotSmallError, for what only a merge of the whole table can do."""
    with (
        StepFiles(store) as merged_files,
        tempfile.TemporaryDirectory(prefix="lockstep-") as scratch,
        ThreadPoolExecutor(THREADS, thread_name_prefix="part") as pool,
    ):
        readers = [table.files[at::THREADS] for at in range(THREADS)]
        cutting = _ranges(table, parts, pool.map(lambda files: _first_keys(store, table, files), readers))
        rule = PartRule(_before(table.rule), cutting)
        folders = [Path(scratch) / str(at) for at in range(THREADS)]
        cut = list(pool.map(lambda folder, files: _cut(store, folder, rule, files), folders, readers))

        def one(part: int, memory: Memory) -> _Merged | None:
            """None: it takes more than the memory."""
            try:
                with memory.share() as take:
                    rows = [rows for files in cut for rows in files.rows_of(part, take)]
                    return _merged_part(merged_files, table, rows, (part, cutting))
            except NotSmallError:
                return None

        share = driver_bytes // THREADS
        found = list(pool.map(lambda part: one(part, Memory(share)), range(parts)))
        for part in [number for number, done in enumerate(found) if done is None]:
            found[part] = one(part, Memory(driver_bytes))  # alone
        merged_parts = [done for done in found if done is not None]
        if len(merged_parts) < parts:
            raise NotSmallError("its rows take too much memory, in parts too")
        paths = tuple(path for done in merged_parts for path in done.paths)
        if not paths:
            paths = _written(merged_files, table.folder, _nothing(table.rule))
    total = Found(*(sum(getattr(done.found, name) for done in merged_parts) for name in Found.__slots__))
    undone, winners = (sum(getattr(done, name) for done in merged_parts) for name in ("undone", "winners"))
    return _Merged(paths, "", total, undone, winners, merged_parts[0].removing)


def _ranges(table: _SmallTable, parts: int, keys: Iterable[Sequence[pa.Array]]) -> Parts:
    """By ranges of the key, if it begins with a whole number that the files have; else by all of it."""
    found = [one for some in keys for one in some]
    if len(found) < len(table.files):
        return Parts(parts)
    return Parts.of_ranges(parts, pa.chunked_array(found, _first_key(table).type).to_numpy())


def _first_keys(
    store: ObjectStore, table: _SmallTable, files: Sequence[tuple[FileToRead, TableSchema]]
) -> list[pa.Array]:
    """Of each file evenly spaced values of the key's first column; of no file where it is not a whole number."""
    field = _first_key(table)
    found: list[pa.Array] = []
    if not pa.types.is_integer(field.type):
        return found
    every = max(table.rows // LOOKED_AT, 1)
    for file, _ in files:
        with store.open_input(file.path) as source, pq.ParquetFile(source) as parquet:
            if field.name in parquet.schema_arrow.names:
                values = key_column(parquet.read(columns=[field.name]), field, before=False)
                found.append(values[::every].drop_null())
    return found


def _first_key(table: _SmallTable) -> pa.Field:
    return table.rule.columns.field(table.rule.key[0])


def _cut(
    store: ObjectStore, folder: Path, rule: PartRule, files: Sequence[tuple[FileToRead, TableSchema]]
) -> PartFiles:
    """The parts of some files."""
    folder.mkdir()
    with PartFiles(folder, rule) as parts:
        for file, schema in files:
            with store.open_input(file.path) as source, pq.ParquetFile(source) as parquet:
                parts.add(parquet, schema, _renews(file), file.seqs)
    return parts


def _merged_part(
    files: StepFiles, table: _SmallTable, staged: Sequence[StagedRows], part: tuple[int, Parts]
) -> _Merged:
    if not staged:
        return _Merged((), "", NOTHING)
    every = changes_of(staged, table.rule.columns)
    kept, last = without_undone(every, table.truncates)
    undone = _counted_here(every, table, part) - _counted_here(kept, table, part) if kept is not every else 0
    if part[0]:  # they count in the first
        kept, last = selected(kept, ~kept.is_op(TRUNCATE)) if last else kept, []
    removing = tuple(table.truncates.version(one) for one in last)
    if not kept.count:
        return _Merged((), "", NOTHING, undone, removing=removing)
    rows, found = merged(kept, table.rule, part)
    return _Merged(_written(files, table.folder, rows), "", found, undone, rows.num_rows, removing)


def _counted_here(changes: Changes, table: _SmallTable, part: tuple[int, Parts]) -> int:
    """A change that moves a row may be in two parts; it counts where the key is that it leaves the row."""
    number, parts = part
    return int((part_of_each(changes, table.rule.key, parts)[: changes.count] == number).sum())


def _small(job: Job, table: MergeTable) -> _SmallTable | None:
    """What a worker needs to merge the table; None if it is not one for memory. Raises Refused
    (stage.schema_conflict)."""
    large = not job.small and (table.rows > SMALL_ROWS or table.size_bytes > SMALL_BYTES)
    return None if large else _in_memory(job, table)


def _in_memory(job: Job, table: MergeTable) -> _SmallTable | None:
    """As `_small`, of any size."""
    if not table.key:
        return None
    columns = pa.schema([pa.field(field.name, to_arrow_type(field.dataType)) for field in row_columns(job, table)])
    moving = moving_keys(job, table)
    if any(
        name not in columns.names or not _has_plain_values(columns.field(name).type) for name in (*table.key, *moving)
    ):
        return None
    rule = ArrowRule(
        columns,
        table.key,
        tuple(moving),
        len(source_names(table)),
        tuple(fillable(job, table, columns.names)),
        job.shared(table),
    )
    files = tuple((file, job.plan.schemas[file.schema_id]) for file in files_to_read(table.files))
    folder = job.merged(table.table)
    return _SmallTable(table.table, folder, files, rule, truncate_rule(job, table), table.rows)


def _has_plain_values(kind: pa.DataType) -> bool:
    """Whether values of the type are equal if and only if their bits are."""
    return not pa.types.is_floating(kind) and not pa.types.is_nested(kind)


def merge_in_memory(store: ObjectStore, files: StepFiles, table: _SmallTable, memory: Memory) -> Iterator[_Merged]:
    """Merges a table; writes files of merged rows, which the driver keeps if this is the attempt that counts."""
    try:
        with memory.share() as take:
            rows, found, undone, removing = merged_rows(store, table, take)
            paths = _written(files, table.folder, rows)
    except NotSmallError as error:
        yield _Merged((), str(error), NOTHING)
        return
    yield _Merged(paths, "", found, undone, rows.num_rows, removing)


def _written(files: StepFiles, folder: str, rows: pa.Table) -> tuple[str, ...]:
    """The paths of the files; there is at least one, if only an empty one."""

    def write(some: pa.Table, file: Any) -> None:
        # Read once, and whole: statistics and dictionaries would cost a third of the time, and save no bytes.
        pq.write_table(some, file, compression="zstd", write_statistics=False, use_dictionary=False)

    starts = range(0, max(rows.num_rows, 1), PART_ROWS)
    # Arrow writes a file in one thread.
    with ThreadPoolExecutor(min(len(starts), THREADS), thread_name_prefix="file") as pool:
        return tuple(pool.map(lambda low: files.write(folder, partial(write, rows.slice(low, PART_ROWS))), starts))


def merged_rows(
    store: ObjectStore, table: _SmallTable, take: Callable[[int, int], None]
) -> tuple[pa.Table, Found, int, tuple[str, ...]]:
    """(the merged rows, what was found, how many changes truncates undid, the versions of these truncates)."""
    staged = []
    for file, schema in table.files:
        with store.open_input(file.path) as source, pq.ParquetFile(source) as parquet:
            staged.append(read_rows(parquet, schema, _renews(file), take, _before(table.rule), file.seqs))
    every = changes_of(staged, table.rule.columns)
    kept, last = without_undone(every, table.truncates)
    removing = tuple(table.truncates.version(one) for one in last)
    undone = every.count - kept.count
    if not kept.count:
        return _nothing(table.rule), NOTHING, undone, removing
    rows, found = merged(kept, table.rule)
    return rows, found, undone, removing


def _before(rule: ArrowRule) -> BeforeRule:
    return BeforeRule(rule.columns, rule.key, rule.moving, bool(rule.fill))


def _renews(file: FileToRead) -> bool | None:
    copied = parse_copied(file.path) is not None
    return copied if may_have(file, renews=copied) else None


def _nothing(rule: ArrowRule) -> pa.Table:
    return merged_schema(list(rule.columns), rule.key, moving=rule.moving, shared=rule.shared).empty_table()
