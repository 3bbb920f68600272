"""The rows of a run as the snapshots on its branch have them: what quality judges before readers see anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.history.codes import whole
from cdc_core.lake.held_rows import HeldRows, held_rows, rows_at
from cdc_core.lake.mirror import Mirror, versions_of_rows
from cdc_core.lake.publication import LakeSnapshot
from cdc_core.lake.snapshots import LiveFiles
from cdc_core.model.json_codec import parsed
from cdc_core.model.merged_columns import MergedOp
from cdc_core.model.places import at_places, repeated, rows_where
from cdc_core.model.run_plan import MergeTable, lake_path
from cdc_core.model.staged_columns import ABSENT, OP
from cdc_core.model.version import VERSION_COLUMN, newer_or_equal_each
from cdc_core.targets.tables.compare_columns import DIFFERS, LEFT_BEHIND, MISSING, NEWER, OLDER, SAME
from spark_jobs.job import Job
from spark_jobs.lake_mirrors import OpenMirror, in_lake, open_mirrors
from spark_jobs.quality_rows import (
    KEY,
    OUTCOME,
    SHARD_NAME,
    TABLE,
    TARGET_ROWS,
    JudgedRows,
    Sample,
    keys_to_show,
    made_rows,
    spaced,
)
from spark_jobs.table_tasks import Place


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A file of filtered rows. first: of its rows in the sample."""

    table: str
    rows: int
    path: str
    first: int


def mirror_rows(job: Job, tables: Sequence[MergeTable], sample: Sample) -> JudgedRows:
    written = parsed(list[LakeSnapshot], job.store.get(lake_path(job.plan.written_folder(job.target.name))))
    made = {snapshot.identifier: snapshot.snapshot for snapshot in written}
    with open_mirrors(job, tables) as opened:
        mirrors = {name: _as_written(mirror, made) for name, mirror in opened.items()}

    def work(file: _Sampled, place: Place) -> Iterator[pa.Table]:
        mirror = mirrors[file.table]
        with place.store.open_input(file.path) as source, pq.ParquetFile(source) as parquet:
            # As a whole: each batch reads the row groups of the mirror that its keys are among.
            for batch in spaced(parquet.read().combine_chunks().to_batches(), file.first, sample.every):
                found = outcomes(mirror, pa.Table.from_batches([batch]))
                columns = {
                    TABLE: repeated(mirror.table, batch.num_rows),
                    SHARD_NAME: repeated(mirror.table, batch.num_rows),
                    KEY: keys_to_show(batch, mirror.key, found),
                    OUTCOME: found,
                }
                yield made_rows(TARGET_ROWS, batch, columns)

    pieces = []
    for table in tables:
        paths = job.filtered_files(table)
        pieces += [_Sampled(table.table, table.rows // len(paths), path, sample.first[path]) for path in paths]
    return JudgedRows(sample.rows, TARGET_ROWS, pieces, in_lake(job, work))


def _as_written(mirror: OpenMirror, made: Mapping[tuple[str, ...], int]) -> Mirror:
    live = []
    for base in (mirror.rows, mirror.tombstones):
        number = made.get(tuple(base.table.name()))
        snapshot = base.snapshot if number is None else base.table.metadata.snapshot_by_id(number)
        live.append(LiveFiles(base.table, snapshot, base.key))
    return mirror.tables.mirror(live[0], live[1])


_WORDS = [SAME, MISSING, NEWER, OLDER, LEFT_BEHIND, DIFFERS]
_SAME, _MISSING, _NEWER, _OLDER, _LEFT_BEHIND, _DIFFERS = np.arange(len(_WORDS), dtype=np.int8)


def outcomes(mirror: Mirror, rows: pa.Table) -> pa.DictionaryArray:
    """What a mirror has for each written row, in the words of compare_columns."""
    keyed = np.asarray(whole(pc.not_equal(rows.column(OP), MergedOp.TRUNCATE)))
    found = np.full(rows.num_rows, _SAME)
    mine = rows_where(rows, keyed)
    keys, versions = mine.select(mirror.key), versions_of_rows(mine)
    upserts = np.asarray(whole(pc.equal(mine.column(OP), MergedOp.UPSERT)))
    found_rows, buried = held_rows(mirror.rows, mirror.live, keys), held_rows(mirror.tombstones, mirror.buried, keys)
    held, tombstones = found_rows.present, found_rows.tombstones(buried)
    there, entombed = np.asarray(held.versions.is_valid()), np.asarray(tombstones.is_valid())
    newer = np.asarray(newer_or_equal_each(versions, held.versions).fill_null(True))
    equal = np.asarray(pc.equal(versions, held.versions).fill_null(False))
    judged = np.full(len(versions), _SAME)
    judged[upserts & ~there] = _MISSING
    judged[upserts & ~there & entombed & ~_newest(versions, tombstones)] = _NEWER
    judged[upserts & there & newer & ~equal] = _OLDER
    judged[upserts & there & ~newer] = _NEWER
    judged[~upserts & there] = _LEFT_BEHIND
    judged[~upserts & there & ~newer] = _NEWER
    judged[~upserts & ~there & ~entombed] = _MISSING
    as_deleted = np.asarray(pc.equal(versions, found_rows.versions).fill_null(False)) & found_rows.deleted & ~upserts
    at = np.flatnonzero((upserts & equal) | as_deleted)
    judged[at[_differ(mirror, at_places(mine, at), found_rows, at)]] = _DIFFERS
    found[np.flatnonzero(keyed)] = judged
    return pa.DictionaryArray.from_arrays(pa.array(found.astype(np.int32)), pa.array(_WORDS, pa.string()))


def _newest(versions: pa.BinaryArray, tombstones: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    newer: npt.NDArray[np.bool_] = np.asarray(newer_or_equal_each(versions, tombstones).fill_null(True))
    return newer


def _differ(mirror: Mirror, rows: pa.Table, held: HeldRows, at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the rows have other values than the mirror, under the same version."""
    names = [
        column.name
        for column in mirror.rows.columns
        if column.name in rows.column_names and column.name != VERSION_COLUMN
    ]
    there = rows_at(mirror.rows, mirror.live, held.file[at], held.row[at], names)
    found = np.zeros(len(at), bool)
    for name in names:
        kind = mirror.rows.columns.field(name).type
        found |= ~_same(whole(rows.column(name)).cast(kind), whole(there.column(name)))
    lacking = np.asarray(whole(rows.column(ABSENT).is_valid()))
    differ: npt.NDArray[np.bool_] = found & ~lacking
    return differ


def _same(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Bit by bit; null is as null."""
    if pa.types.is_list(one.type):
        return np.array([a == b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], bool)
    if pa.types.is_floating(one.type):
        bits = pa.int64() if one.type.bit_width == 64 else pa.int32()
        one, other = one.view(bits), other.view(bits)
    values: npt.NDArray[np.bool_] = np.asarray(pc.equal(one, other).fill_null(False))
    nulls: npt.NDArray[np.bool_] = np.asarray(pc.and_(one.is_null(), other.is_null()))
    return values | nulls
