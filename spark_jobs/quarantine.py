"""Rows that a target rejected: the write keeps them aside with the reason, and quality leaves them out.

They are few (load.MAX_UNFIT). A row is known by its version and key. Its departure from another shard has the same
ones, and is left out too: a row that did not arrive stays where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.model.merged_columns import ORIGIN, REASON, MergedOp
from cdc_core.model.row_versions import version_bytes
from cdc_core.model.run_plan import MergeTable
from cdc_core.model.staged_columns import LITERAL, OP, ROW, SEQ, SOURCE, TS
from cdc_core.stage.objects import ObjectStore
from cdc_core.targets.tables.text_columns import hex_text, row_keys
from cdc_core.targets.writing.load import Unfit
from spark_jobs.job import Job, log
from spark_jobs.step_files import clear_tables, files_in, folders_in, rows_of
from spark_jobs.table_tasks import Place, all_results, in_place, in_tasks

BATCH_ROWS = 50_000
_NAMING = (TS, SOURCE, SEQ, ROW, LITERAL, ORIGIN)
"""What the name of a row is made of, beside its key."""


@dataclass(frozen=True, slots=True)
class _Filtered:
    """A file of filtered rows. rows: about how many."""

    path: str
    rows: int
    key: tuple[str, ...]
    aside: tuple[str, ...] = ()


def row_names(rows: pa.RecordBatch, key: Sequence[str]) -> pa.StringArray:
    return pc.binary_join_element_wise(hex_text(version_bytes(rows)), row_keys(rows, key), "")


def name_of(unfit: Unfit) -> str:
    return unfit.version.hex().upper() + unfit.key.decode()


def others(rows: pa.RecordBatch, key: Sequence[str], names: Collection[str]) -> pa.RecordBatch:
    """The rows without those of these names."""
    if not names:
        return rows
    return rows.filter(pc.invert(pc.is_in(row_names(rows, key), pa.array(names, pa.string()))))


def set_aside(job: Job, table: MergeTable, unfit: Sequence[Unfit]) -> None:
    """Keeps the rows that the target rejects, with the reason; removes what an earlier attempt has kept."""
    folder, root = job.quarantine(table.table), job.plan.quarantine_folder(job.target.name)
    names = pa.array([name_of(row) for row in unfit], pa.string())
    reasons = pa.array([row.reason for row in unfit], pa.string())

    def kept(file: _Filtered, place: Place) -> Iterator[str]:
        found = []
        with place.store.open_input(file.path) as source, pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches(BATCH_ROWS):
                batch = batch.filter(pc.not_equal(batch.column(OP), MergedOp.LEFT_SHARD))
                at = pc.index_in(row_names(batch, file.key), names)
                if at.null_count < len(at):
                    found.append(batch.append_column(REASON, reasons.take(at)).filter(at.is_valid()))
        if found:
            yield place.files.write_rows(folder, pa.Table.from_batches(found))

    paths = all_results(in_tasks(job, _files(job, table), in_place(job, kept)) if unfit else [])
    clear_tables(job.store, root, [table], kept=paths)
    if unfit:
        log.warning(
            "run %s target %s: %d rows of %s set aside in %s, the first: %s",
            job.plan.run_id,
            job.target.name,
            len(unfit),
            table.table,
            folder,
            unfit[0].reason,
        )


def names_aside(job: Job) -> dict[str, tuple[str, ...]]:
    """The names of rows that were set aside, by table."""
    folders = folders_in(job.store, job.plan.quarantine_folder(job.target.name))
    found = {}
    for table in job.tables():
        folder = job.quarantine(table.table)
        paths = files_in(job.store, folder) if folder in folders else []
        if names := [name for path in paths for batch in _named(job.store, path, table.key) for name in batch]:
            found[table.table] = tuple(name.as_py() for name in names)
    return found


def accepted_rows(job: Job, tables: Sequence[MergeTable], aside: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """How many rows of each filtered file were not set aside. aside: as names_aside has them."""

    def count(file: _Filtered, place: Place) -> Iterator[int]:
        names = pa.array(file.aside, pa.string())
        yield sum(pc.invert(pc.is_in(some, names)).true_count for some in _named(place.store, file.path, file.key))

    some = [file for table in tables if table.table in aside for file in _files(job, table, aside[table.table])]
    counts = all_results(in_tasks(job, some, in_place(job, count)))
    paths = [path for table in tables if table.table not in aside for path in job.filtered_files(table)]
    counted = zip((file.path for file in some), counts, strict=True)
    return {**dict(zip(paths, rows_of(job.store, paths), strict=True)), **dict(counted)}


def _files(job: Job, table: MergeTable, aside: tuple[str, ...] = ()) -> list[_Filtered]:
    paths = job.filtered_files(table)
    return [_Filtered(path, table.rows // len(paths), table.key, aside) for path in paths]


def _named(store: ObjectStore, path: str, key: Sequence[str]) -> Iterator[pa.StringArray]:
    """The names of a file's rows, some at a time."""
    with store.open_input(path) as source, pq.ParquetFile(source) as parquet:
        here = parquet.schema_arrow.names
        columns = [name for name in dict.fromkeys((*_NAMING, *key)) if name in here]
        for batch in parquet.iter_batches(BATCH_ROWS, columns=columns):
            yield row_names(batch, key)
