"""Filter, for a lake: classifies each winner by the versions that mirror and tombstones hold, and notes where they are.

A worker reads a file of merged rows, and of the mirror only the columns of the key and, where a key was found, the
version. Files under filtered/ have the rows in the order of their key, with the positions that the write deletes
(cdc_core/lake/mirror.py); files under rejected/ the stale ones with `_cdc_reason`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.lake.mirror import Mirror, judged
from cdc_core.model.merged_columns import CLASS, FILTER_ONLY, REASON, RowClass
from cdc_core.model.places import in_order, rows_where
from cdc_core.model.run_plan import counts_path, counts_to_bytes
from spark_jobs.filtered_parts import FilteredPart, counts_of, latest_of
from spark_jobs.job import Job, log
from spark_jobs.lake_mirrors import in_lake, keep_bases, open_mirrors
from spark_jobs.staged_ends import StagedEnds
from spark_jobs.step_files import clear_tables
from spark_jobs.table_tasks import Place, all_results, in_tasks


@dataclass(frozen=True, slots=True)
class _MergedRows:
    """A file of merged rows, and where its table's files go. removing: versions of the run's truncates."""

    table: str
    rows: int
    path: str
    filtered: str
    rejected: str
    removing: tuple[bytes, ...]


def apply_filter(job: Job) -> None:
    """Filters a set for a lake; writes counts.json last."""
    path = counts_path(job.plan.filtered_folder(job.target.name))
    job.store.delete(path)
    tables = [table for table in job.tables() if table.files]
    plan, name = job.plan, job.target.name
    clear_tables(job.store, plan.filtered_folder(name), tables)
    clear_tables(job.store, plan.rejected_folder(name), tables)
    with open_mirrors(job, tables) as mirrors:
        keep_bases(job, mirrors)
        places = {name: mirror.mirror for name, mirror in mirrors.items()}

    def work(piece: _MergedRows, place: Place) -> Iterator[tuple[str, FilteredPart]]:
        for part in _judged(places[piece.table], piece, place):
            yield piece.table, part

    pieces = []
    for table in tables:
        paths, removing = job.merged_files(table), job.merge_counts[table.table].removing
        folders = job.filtered(table.table), job.rejected(table.table)
        pieces += [
            _MergedRows(table.table, table.rows // len(paths), merged_path, *folders, removing) for merged_path in paths
        ]
    parts = all_results(in_tasks(job, pieces, in_lake(job, work)))
    counts, staged = [], StagedEnds(job.store)
    for table in tables:
        mine = [part for of_table, part in parts if of_table == table.table]
        if (ahead := staged.behind(latest_of(mine), table.table, name)) is not None:
            raise ahead
        counts.append(counts_of(table.table, job.filtered(table.table), mine))
        log.info("run %s target %s: %s", plan.run_id, name, counts[-1])
    job.store.put(path, counts_to_bytes(counts))


def _judged(mirror: Mirror, piece: _MergedRows, place: Place) -> Iterator[FilteredPart]:
    with place.store.open_input(piece.path) as file:
        winners = pq.read_table(file)
    for rows, latest in judged(mirror, winners, piece.removing):
        yield _kept(rows, latest, mirror, piece, place)


def _kept(rows: pa.Table, latest: dict[str, int], mirror: Mirror, piece: _MergedRows, place: Place) -> FilteredPart:
    rows = rows.drop_columns([name for name in FILTER_ONLY if name in rows.column_names])
    classes = {count["values"]: count["counts"] for count in pc.value_counts(rows.column(CLASS)).to_pylist()}
    stale = pc.equal(rows.column(CLASS), RowClass.STALE)
    paths = []
    for folder, some, other in (
        (piece.filtered, rows_where(rows, pc.invert(stale)), REASON),
        (piece.rejected, rows.filter(stale), CLASS),
    ):
        if some.num_rows or folder == piece.filtered:
            kept = in_order(some.drop_columns([other]), mirror.key)
            paths.append(place.files.write_rows(folder, kept))
    return FilteredPart(tuple(paths), classes, latest)
