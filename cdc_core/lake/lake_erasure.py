"""Rows that go from all that a table of a lake keeps, by their keys.

    heirs       each snapshot that has such rows, and that readers, a tag, a branch or a cut name, gets an heir without
                them, which takes its place under these names
    files       that only the former snapshots name go: rows first, then manifests, which have bounds of values
    snapshots   the former ones expire
    strays      go: files of attempts that were killed, which no snapshot names, if they may have such rows

Killed between any two steps, it is repeated, and finds what is left: an heir says whose it is, and a snapshot without
its files counts as one that has the rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, RemoveSnapshotsUpdate, SetSnapshotRefUpdate
from pyroaring import BitMap

from cdc_core.history.codes import whole
from cdc_core.lake.catalogs import name_of
from cdc_core.lake.commits import TableCommit, commit
from cdc_core.lake.compaction import Rewrite, rewritten
from cdc_core.lake.data_files import KeyedFiles, NewFile, OpenFile, deleted_rows, flagged_rows, positions_in
from cdc_core.lake.expiry import files_of, unnamed_files
from cdc_core.lake.ordered_rows import Apart, Flags, Mask, comparable, wanted_rows
from cdc_core.lake.snapshots import (
    MAIN,
    NUMBER,
    PLAN,
    RUN,
    WITH_CHANGES,
    WITH_TOMBSTONES,
    FileChange,
    LiveFiles,
    as_compaction,
    at_main,
    bounds_of,
    foreign,
    head,
    latest_schema,
    own,
    said,
    snapshot_of,
    table_files,
)

HEIR_OF = "lockstep.heir_of"
"""In the summary of an heir: the number of the snapshot whose place it takes."""


@dataclass(frozen=True)
class LakeRows:
    """What a table keeps of some keys. files: by their columns. order: the columns that order its rows. positions: of
    their rows, by data file. present: those that readers see now, which stay. snapshots: those that have such rows, or
    may, and how many. strays: files that no snapshot names."""

    table: Table
    files: KeyedFiles
    order: tuple[str, ...]
    positions: Mapping[str, BitMap]
    present: Mapping[str, BitMap]
    snapshots: Mapping[int, int]
    strays: tuple[str, ...]

    @property
    def places(self) -> Iterator[tuple[str, str, int]]:
        """Kind, name and rows of each."""
        for path, rows in self.positions.items():
            if left := rows - self.present.get(path, BitMap()):
                yield "lake file", path, len(left)
        for number, count in self.snapshots.items():
            yield "lake snapshot", f"{name_of(self.table.name())} {number}", count
        for path in self.strays:
            yield "lake file", path, 0

    @property
    def keys(self) -> Iterator[pa.Table]:
        """Of the rows, some at a time."""
        for path, rows in self.positions.items():
            yield from _rows_at(self.files, path, rows, self.files.key)


class _Look:
    """At data files, each of them once."""

    def __init__(self, files: KeyedFiles, mask: Mask, apart: Apart) -> None:
        self._files, self._mask, self._apart = files, mask, apart
        self.rows: dict[str, BitMap | None] = {}

    def at(self, path: str) -> BitMap | None:
        """The positions of the rows in a file; None if it is gone."""
        if path not in self.rows:
            try:
                self.rows[path] = wanted_rows(self._files, path, self._mask, self._apart)
            except FileNotFoundError:
                self.rows[path] = None
        return self.rows[path]

    def may_have(self, entry: ManifestEntry) -> bool:
        """Whether a manifest may say something about such rows, by bounds of the values of their file."""
        rows = self.at(entry.data_file.file_path)
        if rows is not None:
            return bool(rows)
        field = self._files.schema.find_field(self._files.key[0])
        bounds = bounds_of(entry, field)
        if None in bounds:
            return True
        low, high = comparable(pa.array(bounds, self._files.columns.field(field.name).type)).to_pylist()
        return not self._apart((low,), (high,))


def find(
    table: Table,
    key: tuple[str, ...],
    mask: Mask,
    apart: Apart,
    *,
    order: tuple[str, ...] = (),
    spares_present: bool = False,
) -> LakeRows:
    """Reads all files of all snapshots, as far as their statistics do not say that they have none of the keys.

    order: the columns that order the table's rows, if these are not the key. spares_present: rows that readers see now,
    and that do not say that they are deleted, stay there. Raises DataAtRisk (lake.foreign_write), and what the catalog
    raises."""
    files = table_files(table, latest_schema(table), key)
    look, present, snapshots = _Look(files, mask, apart), dict[str, BitMap](), dict[int, int]()
    seen = head(table)
    if seen is not None and spares_present:
        for file in LiveFiles(table, seen, key).files:
            if rows := look.at(file.path):
                gone = deleted_rows(files, file) | (flagged_rows(files, file) if files.flagged else BitMap())
                present[file.path] = rows - gone
    for snapshot in table.metadata.snapshots:
        spared = present if seen is not None and snapshot.snapshot_id == seen.snapshot_id else {}
        concerned, count = False, 0
        try:
            for entry in _entries(table, snapshot):
                path, live = entry.data_file.file_path, entry.status != ManifestEntryStatus.DELETED
                rows = (look.at(path) or BitMap()) - spared.get(path, BitMap()) if live else BitMap()
                concerned |= bool(rows) or ((not live or look.at(path) is None) and look.may_have(entry))
                count += len(rows)
        except FileNotFoundError:
            concerned = True
        if concerned:
            snapshots[snapshot.snapshot_id] = count
    positions = {path: rows for path, rows in look.rows.items() if rows}
    strays = tuple(path for path, _ in unnamed_files(table, whole=False) if _is_stray(files, look, path))
    return LakeRows(table, files, order or key, positions, present, snapshots, strays)


def other_sides(found: LakeRows, place: Sequence[str]) -> Iterator[pa.Table]:
    """The other keys of changes that rows of a changes table are one side of: an update of a key is two rows at one
    place of the log. place: the columns that say it. Reads what readers see now, as far as its statistics do not say
    that it has none of these places."""
    table, first = found.table, place[0]
    files = table_files(table, latest_schema(table), tuple(place))
    places = [
        rows.select(place) for path, some in found.positions.items() for rows in _rows_at(files, path, some, place)
    ]
    if not places:
        return
    wanted = _places(pa.concat_tables(places), place)
    numbers = sorted(pa.concat_tables(places).column(first).unique().to_pylist())

    def mask(rows: pa.Table) -> Flags:
        return np.asarray(pc.is_in(_places(rows, place), value_set=wanted))

    def apart(low: tuple[Any, ...], high: tuple[Any, ...]) -> bool:
        at = bisect_left(numbers, low[0])
        return at == len(numbers) or bool(numbers[at] > high[0])

    for file in LiveFiles(table, head(table), tuple(place)).files:
        if others := wanted_rows(files, file.path, mask, apart) - found.positions.get(file.path, BitMap()):
            yield from _rows_at(found.files, file.path, others, found.files.key)


def _places(rows: pa.Table, names: Sequence[str]) -> pa.StringArray:
    return pc.binary_join_element_wise(*(whole(rows.column(name)).cast(pa.string()) for name in names), "/")


def _rows_at(files: KeyedFiles, path: str, positions: BitMap, names: Sequence[str]) -> Iterator[pa.Table]:
    """Columns of the rows at these positions of a file, some at a time."""
    with OpenFile(files, path) as opened:
        for group in opened.groups:
            start, end = int(opened.starts[group]), int(opened.starts[group + 1])
            if len(here := positions_in(positions, start, end)):
                yield opened.read(group, names).take(pa.array(here - start))


def _entries(table: Table, snapshot: Snapshot) -> Iterator[ManifestEntry]:
    """Those of data files, also of files that the snapshot has removed."""
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                raise foreign(table, snapshot, "has deletes by equality, which have values of rows")
            if entry.data_file.content == DataFileContent.DATA:
                yield entry


def _is_stray(files: KeyedFiles, look: _Look, path: str) -> bool:
    """Whether a file that nothing names may have such rows, or bounds of their values. Half of a file may."""
    try:
        if path.endswith(".parquet"):
            return bool(look.at(path))
        if path.endswith(".avro") and not path.rpartition("/")[2].startswith("snap-"):
            if not _is_whole_avro(files, path):
                return True
            manifest = ManifestFile.from_args(manifest_path=path, partition_spec_id=0, content=ManifestContent.DATA)
            entries = manifest.fetch_manifest_entry(files.io, discard_deleted=False)
            return any(entry.data_file.content == DataFileContent.DATA and look.may_have(entry) for entry in entries)
    except FileNotFoundError:
        return False
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - half of a file can be anything to its decoder
        return True
    return False


def _is_whole_avro(files: KeyedFiles, path: str) -> bool:
    """Whether the file ends as each part of it ends. PyIceberg's own decoder reads memory beyond half of a file."""
    with files.io.new_input(path).open() as file:
        content = file.read()
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(StreamingBinaryDecoder(content))
    return content.count(header.sync) > 1 and content.endswith(header.sync)


def appoint(rows: LakeRows, cuts: Collection[int]) -> dict[int, int]:
    """Makes the heirs; by number of a snapshot, which one has its place. cuts: the snapshots of cuts.

    Raises DataAtRisk (lake.foreign_write), and what the catalog raises."""
    table, made = rows.table, dict[tuple[object, ...], list[NewFile]]()
    known = heirs(table)
    named = {ref.snapshot_id for ref in table.metadata.refs.values()} | {known.get(cut, cut) for cut in cuts}
    for number in sorted(named & rows.snapshots.keys()):
        table = table.catalog.load_table(table.name())
        snapshot = table.metadata.snapshot_by_id(number)
        if snapshot is not None:  # else a maintenance has expired it meanwhile
            _appoint(table, snapshot, rows, made)
    return heirs(table.catalog.load_table(table.name()))


def heirs(table: Table) -> dict[int, int]:
    """By number of a snapshot, the last of its heirs."""
    known = {
        int(said(snapshot, HEIR_OF)): snapshot.snapshot_id
        for snapshot in table.metadata.snapshots
        if said(snapshot, HEIR_OF)
    }
    found = {}
    for number in known:
        last = number
        while last in known:
            last = known[last]
        found[number] = last
    return found


def _appoint(table: Table, snapshot: Snapshot, rows: LakeRows, made: dict[tuple[object, ...], list[NewFile]]) -> None:
    """made: what was written instead of files, which several snapshots may name."""
    names = {name: ref for name, ref in table.metadata.refs.items() if ref.snapshot_id == snapshot.snapshot_id}
    schema = table.schema() if snapshot.schema_id is None else table.schemas()[snapshot.schema_id]
    then = (schema.find_column_name(latest_schema(table).find_field(name).field_id) for name in rows.order)
    files = table_files(table, schema, tuple(name for name in then if name is not None))
    live, added, removed = LiveFiles(table, snapshot, rows.order), list[NewFile](), set[str]()
    spared = rows.present if MAIN in names else {}
    for file in live.files:
        if gone := rows.positions.get(file.path, BitMap()) - spared.get(file.path, BitMap()):
            of = (file.path, file.deletes, schema.schema_id, len(gone))
            if of not in made:
                made[of] = rewritten(files, Rewrite((file,), {file.path: gone}))
            added += made[of]
            removed.add(file.path)
    ours = own(table, snapshot) if MAIN in names else snapshot
    names_of_run = (RUN, NUMBER, PLAN, WITH_TOMBSTONES, WITH_CHANGES)
    properties = {name: said(ours, name) for name in names_of_run if ours and said(ours, name)}
    properties[HEIR_OF] = str(snapshot.snapshot_id)
    change = FileChange(tuple(added), frozenset(removed), unnamed=True)
    heir = as_compaction(snapshot_of(live, change, schema, properties))
    updates = [AddSnapshotUpdate(snapshot=heir.listed(table))]
    moved = [
        SetSnapshotRefUpdate.model_validate(
            {**ref.model_dump(by_alias=True, exclude_none=True), "ref-name": name, "snapshot-id": heir.number}
        )
        for name, ref in names.items()
    ]
    there = tuple(AssertRefSnapshotId(ref=name, snapshot_id=snapshot.snapshot_id) for name in names)
    commit(table.catalog, [TableCommit(table, there, (*updates, *moved))])


def expire(rows: LakeRows) -> None:
    """Removes the former snapshots and the files that they alone name, and strays. Raises what the catalog raises."""
    table = rows.table.catalog.load_table(rows.table.name())
    former = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id in rows.snapshots]
    stay = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in rows.snapshots]
    lists = {snapshot.manifest_list for snapshot in former}
    doomed = files_of(table, former, whole=False) - files_of(table, stay)
    for path in (*sorted(doomed, key=lambda place: (place in lists, place.endswith(".avro"))), *rows.strays):
        with suppress(FileNotFoundError):
            table.io.delete(path)
    if former:
        update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [snapshot.snapshot_id for snapshot in former]})
        commit(table.catalog, [TableCommit(table, (at_main(head(table)),), (update,))])
