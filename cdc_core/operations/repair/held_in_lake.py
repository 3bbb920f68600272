"""What a mirror and its tombstones have under some keys, and how it gives way to what the source has.

A row that says that it is deleted is its key's tombstone. It must keep true that a row becomes older than all changes,
or a tombstone goes, only while it has the version that was seen. No value changes, so that the snapshot that does it
counts as a compaction: a run under way begins again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table.update import AddSnapshotUpdate

from cdc_core.lake.catalogs import catalog_answers
from cdc_core.lake.commits import TableCommit, commit
from cdc_core.lake.data_files import KeyedFiles, NewFile, bitmap, deleted_rows, write_deletes, write_rows
from cdc_core.lake.held_rows import held_rows
from cdc_core.lake.lake_schema import DELETED
from cdc_core.lake.lake_tables import tombstones_of
from cdc_core.lake.ordered_rows import SnapshotRows
from cdc_core.lake.snapshots import (
    MAIN,
    FileChange,
    LiveFiles,
    as_compaction,
    at_main,
    head,
    latest_schema,
    pointing,
    snapshot_of,
    table_files,
)
from cdc_core.model.places import in_order
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.operations.repair.held import Held
from cdc_core.operations.verify.canonical import row_texts
from cdc_core.operations.verify.lake_rows import LakeSide, fitted, matching
from cdc_core.operations.verify.shape import Shape


@dataclass(frozen=True)
class _Seen:
    """Rows of a table of the lake under some keys, and the texts of these."""

    live: LiveFiles
    files: KeyedFiles
    rows: pa.Table
    texts: Sequence[str]

    @property
    def deleted(self) -> Sequence[bool]:
        """Of each row, whether it says that it is deleted."""
        return self.rows.column(DELETED).to_pylist() if self.files.flagged else [False] * self.rows.num_rows

    def versions(self, *, deleted: bool = False) -> dict[str, bytes]:
        every = zip(self.texts, self.rows.column(VERSION_COLUMN).to_pylist(), self.deleted, strict=True)
        return {key: version for key, version, flag in every if flag == deleted}

    def at(self, wanted: Collection[tuple[str, bytes]]) -> pa.Table:
        """The rows with these keys and versions."""
        found = zip(self.texts, self.rows.column(VERSION_COLUMN).to_pylist(), strict=True)
        return self.rows.filter(pa.array([pair in wanted for pair in found], pa.bool_()))


def held(shape: Shape, keys: Sequence[str]) -> list[Held]:
    """As held.held."""
    side = _lake(shape)
    with catalog_answers(side.config):
        mirror, buried = _both(side, shape, keys)
        rows, tombstones = mirror.versions(), buried.versions() | mirror.versions(deleted=True)
    return [Held(0, key, rows.get(key), tombstones.get(key)) for key in sorted({*rows, *tombstones})]


def give_way(shape: Shape, seen: Sequence[Held]) -> int:
    """Makes the rows older than everything, and removes the tombstones, that still have these versions; how many.

    Raises RetryLater (target.busy), if somebody else publishes meanwhile, and as `catalog_answers`."""
    side = _lake(shape)
    with catalog_answers(side.config):
        rows, tombstones = _both(side, shape, [holding.key for holding in seen])
        buried = {(holding.key, holding.tombstone) for holding in seen if holding.tombstone}
        older = rows.at(
            {(holding.key, holding.row) for holding in seen if holding.row} | (buried if rows.files.flagged else set())
        )
        dug_up = tombstones.at(buried)
        place = older.schema.get_field_index(VERSION_COLUMN)
        unversioned = older.set_column(place, VERSION_COLUMN, pa.array([b""] * older.num_rows, pa.binary()))
        _replace(rows, older, list(write_rows(rows.files, in_order(unversioned, side.mirror.key))))
        _replace(tombstones, dug_up, [])
    return int(older.num_rows + dug_up.num_rows)


def _lake(shape: Shape) -> LakeSide:
    assert isinstance(shape.side, LakeSide)  # callers have looked
    return shape.side


def _both(side: LakeSide, shape: Shape, keys: Sequence[str]) -> tuple[_Seen, _Seen]:
    """The keys in the mirror and in its tombstones, as readers see them now."""
    catalog, name, key = side.mirror.table.catalog, side.mirror.table.name(), side.mirror.key
    found = []
    for table in (catalog.load_table(name), catalog.load_table(tombstones_of(name))):
        live, files = LiveFiles(table, head(table), key), table_files(table, latest_schema(table), key)
        every = SnapshotRows(files, live.files, flagged=True)
        parts = list(every.select(files.columns.names, *matching(shape, keys)))
        rows = pa.concat_tables(parts) if parts else files.columns.empty_table()
        own = fitted(rows.select(list(key)), shape.key_columns)
        found.append(_Seen(live, files, rows, row_texts(own, shape.key_columns, shape.errors).to_pylist()))
    return found[0], found[1]


def _replace(seen: _Seen, gone: pa.Table, added: list[NewFile]) -> None:
    """Publishes a snapshot without these rows, and with these files."""
    if not gone.num_rows:
        return
    files, table = seen.files, seen.live.table
    places = held_rows(files, seen.live.files, gone.select(list(files.key)))
    for number in np.unique(places.file).tolist():
        file = seen.live.files[number]
        positions = bitmap(places.row[places.file == number])
        added.append(write_deletes(files, file.path, positions | deleted_rows(files, file)))
    made = as_compaction(snapshot_of(seen.live, FileChange(tuple(added)), files.schema, {}))
    updates = (AddSnapshotUpdate(snapshot=made.listed(table)), pointing(MAIN, made.number))
    commit(table.catalog, [TableCommit(table, (at_main(seen.live.snapshot),), updates)])
