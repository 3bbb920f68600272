"""Merges tables in memory: in the driver, if the job fits into its memory; otherwise small tables, all of them in one
Spark job. A worker reads a table's files, merges them (arrow_merge.py), and writes files of merged rows.

Left to Spark (merge.py): large tables; tables without a key, whose rows are counted; a key whose type has equal values
with different bits, or is a list; definitions that spell a column in two ways; rows that do not fit into memory, or
that Arrow does not convert.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_type

from cdc_core.errors import LockstepError
from cdc_core.model.merged import merged_schema
from cdc_core.model.run import FileToRead, MergeCounts, MergeTable, files_to_read
from cdc_core.model.schema import TableSchema
from cdc_core.stage.layout import parse_copied
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_stage
from spark_jobs import table_tasks
from spark_jobs.arrow_changes import Memory, NotSmallError, changes_of, read_rows
from spark_jobs.arrow_merge import NOTHING, ArrowRule, Found, merged, without_undone
from spark_jobs.job import Job, log
from spark_jobs.merge_rules import checked, fillable, moving_keys, row_columns, source_names, truncate_rule
from spark_jobs.truncates import TruncateRule, may_have

SMALL_ROWS, SMALL_BYTES = 20_000, 8 << 20
"""Of a table's changes and their files: what a task of Spark merges in memory."""
TASK_BYTES = 192 << 20
"""What the changes may take there: a file may hold a long value once for many rows."""
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
    _clear(job, small, kept=set())
    stage = job.pipeline.stage
    # Threads of the driver share its memory; a task of Spark may be anywhere.
    shared = Memory(job.driver_bytes) if job.small else None

    @contextmanager
    def begin() -> Iterator[Callable[[_SmallTable], Iterator[_Merged]]]:
        store, memory = open_stage(stage), shared or Memory(TASK_BYTES)
        yield lambda table: merge_in_memory(store, table, memory)

    results = table_tasks.in_tasks(job, small, begin)
    by_name = {table.table: table for table in tables}
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
        counts[table.table] = checked(
            by_name[table.table],
            job.plan.run_id,
            rows=done.found.rows,
            undone=done.undone,
            key_changes=done.found.key_changes,
            superseded=done.found.superseded,
            lost=done.found.lost,
            winners=done.winners,
            removing=done.removing,
        )
    _clear(job, small, kept=paths)
    return counts


def _small(job: Job, table: MergeTable) -> _SmallTable | None:
    """What a worker needs to merge the table; None if it is not one for memory. Raises Refused
    (stage.schema_conflict)."""
    large = not job.small and (table.rows > SMALL_ROWS or table.size_bytes > SMALL_BYTES)
    if large or not table.key:
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


def merge_in_memory(store: ObjectStore, table: _SmallTable, memory: Memory) -> Iterator[_Merged]:
    """Merges a table; writes files of merged rows, which the driver keeps if this is the attempt that counts."""
    try:
        with memory.share() as take:
            rows, found, undone, removing = merged_rows(store, table, take)
            paths = _written(store, table.folder, rows)
    except NotSmallError as error:
        yield _Merged((), str(error), NOTHING)
        return
    winners = 0
    for path in paths:
        with store.open_input(path) as file:
            winners += pq.ParquetFile(file).metadata.num_rows
    yield _Merged(paths, "", found, undone, winners, removing)


def _written(store: ObjectStore, folder: str, rows: pa.Table) -> tuple[str, ...]:
    """The paths of the files; there is at least one, if only an empty one."""
    paths = []
    for low in range(0, max(rows.num_rows, 1), PART_ROWS):
        path = f"{folder}/part-{uuid.uuid4().hex}.parquet"
        with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
            local = Path(scratch) / "merged"
            pq.write_table(rows.slice(low, PART_ROWS), local, compression="zstd")
            store.put_file(path, local)
        paths.append(path)
    return tuple(paths)


def merged_rows(
    store: ObjectStore, table: _SmallTable, take: Callable[[int, int], None]
) -> tuple[pa.Table, Found, int, tuple[str, ...]]:
    """(the merged rows, what was found, how many changes truncates undid, the versions of these truncates)."""
    staged = []
    for file, schema in table.files:
        copied = parse_copied(file.path) is not None
        renews = copied if may_have(file, renews=copied) else None
        with store.open_input(file.path) as source, pq.ParquetFile(source) as parquet:
            staged.append(read_rows(parquet, schema, renews, take, file.seqs))
    every = changes_of(staged, table.rule.columns)
    kept, last = without_undone(every, table.truncates)
    removing = tuple(table.truncates.version(one) for one in last)
    undone = every.count - kept.count
    if not kept.count:
        rule = table.rule
        schema = merged_schema(list(rule.columns), rule.key, moving=rule.moving, shared=rule.shared)
        return schema.empty_table(), NOTHING, undone, removing
    rows, found = merged(kept, table.rule)
    return rows, found, undone, removing


def _clear(job: Job, tables: Sequence[_SmallTable], *, kept: set[str]) -> None:
    """Removes the files of the tables but those that are kept. One listing for all tables."""
    folders = {table.folder for table in tables}
    root = job.plan.merged_folder(job.merge_set.name) + "/"
    for info in list(job.store.list(root)):
        folder = root + info.path.removeprefix(root).partition("/")[0]
        if folder in folders and info.path not in kept:
            job.store.delete(info.path)
