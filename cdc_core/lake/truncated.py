"""What TRUNCATEs do to the files of a keyed table: which rows they remove, and what is left where deleted rows stay.

The tombstones have a row without a key for each TRUNCATE. Older rows than it, of keys that nobody has seen, stay away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from cdc_core.history.codes import whole
from cdc_core.lake.data_files import (
    KeyedFiles,
    LiveFile,
    OpenFile,
    bitmap,
    deleted_rows,
    flagged_rows,
    gathered,
    live_rows,
)
from cdc_core.lake.lake_schema import DELETED, DELETED_AT
from cdc_core.model.places import in_order
from cdc_core.model.version import VERSION_COLUMN, decode, newer_or_equal_each, origin_of


def removed_by(files: KeyedFiles, file: LiveFile, truncates: Sequence[bytes]) -> BitMap:
    """The positions of the present rows of a file that truncates of these versions remove."""
    removed = BitMap()
    with OpenFile(files, file.path) as opened:
        for group in opened.groups:
            versions = whole(opened.read(group, [VERSION_COLUMN]).column(0))
            older = np.zeros(len(versions), bool)
            for truncate in truncates:
                older |= _removes(truncate, versions)
            removed |= bitmap(np.flatnonzero(older) + int(opened.starts[group]))
    if files.flagged and removed:
        removed -= flagged_rows(files, file)
    return removed - deleted_rows(files, file) if file.deletes else removed


def _removes(truncate: bytes, versions: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Which rows with these versions a truncate removes."""
    truncates = pa.array([truncate] * len(versions), pa.binary())
    found: npt.NDArray[np.bool_] = np.array(newer_or_equal_each(truncates, versions).fill_null(False))
    if origin_of(truncate):
        found &= np.array([origin_of(each) in (b"", origin_of(truncate)) for each in versions.to_pylist()], bool)
    return found


def left_to_truncates(ended: Mapping[str, BitMap], gone: Mapping[str, BitMap]) -> dict[str, BitMap]:
    """Of the positions of rows that truncates remove, by file, those that no winner of the run takes."""
    return {path: left for path, rows in ended.items() if (left := rows - gone.get(path, BitMap()))}


def truncated_rows(
    files: KeyedFiles, file: LiveFile, positions: BitMap, truncates: Sequence[bytes]
) -> Iterator[pa.Table]:
    """The rows of a file at these positions, which truncates of these versions remove, as deleted ones that stay; as
    many at once as `gathered` has them, in the order of the key."""
    for rows in gathered(live_rows(files, file, BitMap(range(file.rows)) - positions)):
        yield in_order(_as_deleted(rows, truncates), files.key)


def _as_deleted(rows: pa.Table, truncates: Sequence[bytes]) -> pa.Table:
    versions, times = whole(rows.column(VERSION_COLUMN)), whole(rows.column(DELETED_AT))
    for truncate in truncates:
        newer = pa.array(_removes(truncate, versions))
        versions = pc.if_else(newer, pa.scalar(truncate, versions.type), versions)
        times = pc.if_else(newer, pa.scalar(decode(truncate).commit_ts_us, pa.int64()).cast(times.type), times)
    made = {VERSION_COLUMN: versions, DELETED_AT: times, DELETED: pa.array([True] * rows.num_rows)}
    columns = [made.get(name, rows.column(name)) for name in rows.column_names]
    return pa.table(columns, rows.column_names)


def truncates_in(files: KeyedFiles, live: Sequence[LiveFile]) -> dict[bytes, tuple[str, int]]:
    """The tombstones without a key: where each version is."""
    found: dict[bytes, tuple[str, int]] = {}
    for file in live:
        if not file.keyless:
            continue
        gone = deleted_rows(files, file) if file.deletes else BitMap()
        with OpenFile(files, file.path) as opened:
            for group in opened.groups:
                rows = opened.read(group, [files.key[0], VERSION_COLUMN])
                for at in np.flatnonzero(np.asarray(whole(rows.column(0).is_null()))).tolist():
                    place = at + int(opened.starts[group])
                    if place not in gone:
                        found[rows.column(1)[at].as_py()] = (file.path, place)
    return found
