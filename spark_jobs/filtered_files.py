"""The files of filtered/: each a run of rows in the order of shard and key; read again shard by shard, in key order.

The workers write and read them with Arrow, so that no row passes through the JVM. A file holds what a worker sorts at
once. Its row groups are of one shard each: a reader of a shard skips the others by their statistics. Rows of a shard
that several files hold are merged while they are read, up to 16 files at a time, so that the target gets them nearly in
the order in which it stores them; files whose statistics say that their keys lie apart are read one after the other.
That order only saves the server work: nothing else may depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.model.merged_columns import SHARD
from cdc_core.model.places import order_of, rows_where
from cdc_core.stage.objects import ObjectStore
from spark_jobs.step_files import parquet_options

RUN_BYTES = 64 << 20
"""What a worker gathers before it sorts and writes a file; sorting takes about as much again."""
GROUP_ROWS = 1 << 16
MERGED_AT_ONCE = 16
"""Files. Each is open, and each step of the merge sorts a batch of every file again."""


_Run = tuple[pq.ParquetFile, Sequence[int]]
"""A sorted file, and its row groups that have rows of a shard."""


def write_run(file: Any, rows: pa.Table, key: Sequence[str]) -> None:
    """Writes the rows, sorted. file: a path, or a file object."""
    rows = rows.take(order_of(rows, [SHARD, *key], nulls="at_end"))
    shards = np.asarray(rows.column(SHARD))
    cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), rows.num_rows]
    with pq.ParquetWriter(file, rows.schema, **parquet_options(rows.schema, skipped_by=[SHARD, *key[:1]])) as writer:
        for low, high in pairwise(cuts):
            if low < high:
                writer.write_table(rows.slice(low, high - low), row_group_size=GROUP_ROWS)


class FilteredFiles:
    """Files of one table, opened once. A context manager."""

    def __init__(self, store: ObjectStore, paths: Sequence[str]) -> None:
        self._store, self._paths = store, paths
        self._files: list[pq.ParquetFile] = []

    def __enter__(self) -> FilteredFiles:
        for path in self._paths:
            self._files.append(pq.ParquetFile(self._store.open_input(path)))
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close(force=True)

    def rows_of(self, shard: int, key: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of a shard, in batches of at most about so many rows."""
        inside: list[_Run] = [(file, groups) for file in self._files if (groups := _groups_of(file, shard))]
        for entwined in _apart(inside, key):
            for low in range(0, len(entwined), MERGED_AT_ONCE):
                several = entwined[low : low + MERGED_AT_ONCE]
                each = max(batch_rows // len(several), 1)
                yield from merged_runs([_rows_in(file, groups, shard, each) for file, groups in several], key)


def _apart(runs: Sequence[_Run], key: Sequence[str]) -> Sequence[Sequence[_Run]]:
    """Runs in groups, one after the other by their keys: no row of a group comes after one of the next."""
    spans = [_span(run, key[0]) if key else None for run in runs]
    known = sorted(((*span, at) for at, span in enumerate(spans) if span is not None))
    if len(known) < len(runs):
        return [runs] if runs else []
    groups: list[list[_Run]] = []
    reached: int | None = None
    for low, high, at in known:
        if reached is None or low > reached:
            groups.append([])
        groups[-1].append(runs[at])
        reached = high if reached is None else max(reached, high)
    return groups


def _span(run: _Run, name: str) -> tuple[int, int] | None:
    """The least and the greatest whole number that a column has in a run, if its statistics say so."""
    file, groups = run
    known = [_statistics(file, group, name) for group in groups]
    if not known or not all(
        statistics and statistics.has_min_max and isinstance(statistics.min, int) and not statistics.null_count
        for statistics in known
    ):
        return None
    return min(statistics.min for statistics in known), max(statistics.max for statistics in known)


def _statistics(file: pq.ParquetFile, number: int, name: str) -> Any:
    """The statistics of a column in a row group, or None. Leaves count: those of nested columns before it move it."""
    group = file.metadata.row_group(number)
    column = file.schema_arrow.get_field_index(name)
    at = next(at for at in range(column, group.num_columns) if group.column(at).path_in_schema == name)
    return group.column(at).statistics


def _groups_of(file: pq.ParquetFile, shard: int) -> list[int]:
    found = []
    for number in range(file.num_row_groups):
        known = _statistics(file, number, SHARD)
        if known is None or not known.has_min_max or known.min <= shard <= known.max:
            found.append(number)
    return found


def _rows_in(file: pq.ParquetFile, groups: Sequence[int], shard: int, rows: int) -> Iterator[pa.RecordBatch]:
    for group in groups:
        for batch in file.iter_batches(rows, row_groups=[group]):
            mine = pc.equal(batch.column(SHARD), shard)
            batch = rows_where(batch, mine)
            if batch.num_rows:
                yield batch


def merged_runs(runs: Sequence[Iterator[pa.RecordBatch]], key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """All rows of sorted runs, in the order of the key; without a key, one run after the other."""
    if len(runs) == 1 or not key:
        for run in runs:
            yield from run
        return
    heads: dict[int, pa.RecordBatch] = {}
    for number, run in enumerate(runs):
        if (first := next(run, None)) is not None:
            heads[number] = first
    while heads:
        numbers = list(heads)
        sizes = [heads[number].num_rows for number in numbers]
        rows = pa.Table.from_batches(list(heads.values()))
        last = np.zeros(rows.num_rows, dtype=bool)
        last[np.cumsum(sizes) - 1] = True
        order: npt.NDArray[np.int64] = np.asarray(order_of(rows, key, nulls="at_end")).astype(np.int64)
        # What follows the first of the last rows may belong after rows that its run has not shown yet.
        whole = int(np.flatnonzero(last[order])[0]) + 1
        yield from rows.take(pa.array(order[:whole])).combine_chunks().to_batches()
        left = np.sort(order[whole:])
        starts = np.cumsum([0, *sizes])
        for at, number in enumerate(numbers):
            mine = left[(left >= starts[at]) & (left < starts[at + 1])] - starts[at]
            if len(mine):
                heads[number] = heads[number].take(pa.array(mine))
            elif (following := next(runs[number], None)) is not None:
                heads[number] = following
            else:
                del heads[number]
