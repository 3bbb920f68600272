"""Snapshots of a keyed table: which files a snapshot has, and a new one made of it on a branch.

A snapshot has one manifest of data files and one of deletes, which list every file: PyIceberg writes the manifests and
computes no summary for deletes, so the totals are computed here. Tables have few files (compaction.py), so that
rewriting the lists costs less than the reader of many manifests would pay, at every scan.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from pyiceberg.types import NestedField

from cdc_core.errors import DataAtRisk
from cdc_core.lake.catalogs import name_of
from cdc_core.lake.commits import TableCommit, commit
from cdc_core.lake.data_files import KeyedFiles, LiveFile, NewFile, path_of_deletes

MAIN = "main"
RUN, NUMBER, PLAN = "lockstep.run", "lockstep.number", "lockstep.plan"
"""In the summary of each of our snapshots: the run, its number among all of them, and the digest of its plan. The
number that was published last is a property of the table, too."""
WITH_TOMBSTONES = "lockstep.tombstones"
"""In the summary of a mirror's snapshot: the number of the snapshot of its tombstones that belongs to it."""
WITH_CHANGES = "lockstep.changes"
"""The same of its changes table."""
SINCE = "lockstep.since"
"""A property of a changes table: the number of the mirror's snapshot after which it was made."""
SCHEMAS = "lockstep.schemas"
"""A property of each of our tables."""
_OF_CATALOG = re.compile(r"(uri|token|credential|scope|oauth2-server-uri|header\..*|auth\..*)$")
"""Properties that PyIceberg gives to a table's storage as well."""
_ATTEMPTS = 10


class _ManifestOfDeletes(ManifestWriterV2):
    """PyIceberg writes manifests of data files only."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


@dataclass(frozen=True)
class LiveFiles:
    """The files of a snapshot."""

    table: Table
    snapshot: Snapshot | None
    key: tuple[str, ...]

    @cached_property
    def data(self) -> dict[str, ManifestEntry]:
        """The entries of data files, by path."""
        return {
            entry.data_file.file_path: entry
            for entry in self._entries
            if entry.data_file.content == DataFileContent.DATA
        }

    @cached_property
    def deletes(self) -> dict[str, ManifestEntry]:
        """The entries of files with positions of deleted rows, by path. Raises DataAtRisk (lake.foreign_write)."""
        entries = [entry for entry in self._entries if entry.data_file.content != DataFileContent.DATA]
        for entry in entries:
            if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                raise foreign(self.table, self.snapshot, "has deletes by equality, which no position can be told of")
        return {entry.data_file.file_path: entry for entry in entries}

    @cached_property
    def _entries(self) -> list[ManifestEntry]:
        if self.snapshot is None:
            return []
        return [
            entry
            for manifest in self.snapshot.manifests(self.table.io)
            for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
        ]

    @cached_property
    def files(self) -> list[LiveFile]:
        """As workers need them, in the order of their paths."""
        of_file: dict[str, list[ManifestEntry]] = {}
        several: list[ManifestEntry] = []
        for entry in self.deletes.values():
            path = path_of_deletes(entry.data_file)
            (of_file.setdefault(path, []) if path else several).append(entry)
        return [
            self._live(self.data[path], [*of_file.get(path, ()), *_not_older(several, self.data[path])])
            for path in sorted(self.data)
        ]

    def _live(self, entry: ManifestEntry, deletes: Sequence[ManifestEntry]) -> LiveFile:
        file, field = entry.data_file, latest_schema(self.table).find_field(self.key[0])
        low, high = bounds_of(entry, field)
        deleted = sum(delete.data_file.record_count for delete in deletes if path_of_deletes(delete.data_file))
        paths = tuple(delete.data_file.file_path for delete in deletes)
        keyless = bool((file.null_value_counts or {}).get(field.field_id, 1))
        size, groups = file.file_size_in_bytes, len(file.split_offsets or ()) or 1
        return LiveFile(file.file_path, file.record_count, size, groups, deleted, paths, low, high, keyless)


def bounds_of(entry: ManifestEntry, field: NestedField) -> tuple[Any, Any]:
    """Not above and not below any value of a column, in Iceberg's form; None where the manifest does not say."""
    low, high = (
        from_bytes(field.field_type, bound) if (bound := (each or {}).get(field.field_id)) else None  # type: ignore[arg-type]
        for each in (entry.data_file.lower_bounds, entry.data_file.upper_bounds)
    )
    return low, high


def _not_older(deletes: Iterable[ManifestEntry], file: ManifestEntry) -> Iterator[ManifestEntry]:
    """Deletes of several data files apply to those that were written before them."""
    return (delete for delete in deletes if (delete.sequence_number or 0) >= (file.sequence_number or 0))


def foreign(table: Table, snapshot: Snapshot | None, what: str) -> DataAtRisk:
    """Somebody else has written to one of our tables."""
    number = snapshot.snapshot_id if snapshot is not None else "(none)"
    return DataAtRisk(
        f"Snapshot {number} of {name_of(table.name())} {what}.",
        where=name_of(table.name()),
        code="lake.foreign_write",
        remedy="nothing was published. Lockstep alone writes to this table; compactions by others are welcome, and, in "
        "a changes table, deletes by positions or of whole files. Roll it back to the last snapshot whose summary has "
        "lockstep.run (Spark: CALL system.rollback_to_snapshot), and run again",
    )


@dataclass(frozen=True, slots=True)
class FileChange:
    """What a new snapshot does to the files of another one: files that are added, and data files that go, with all
    deletes that are theirs alone. unnamed: the snapshot does not say which ones go, because that has values of their
    rows."""

    added: tuple[NewFile, ...] = ()
    removed: frozenset[str] = frozenset()
    unnamed: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def table_files(table: Table, schema: Schema, key: Sequence[str]) -> KeyedFiles:
    """For workers, who are told nothing of the catalog."""
    location = str(table.location_provider().new_data_location("x")).removesuffix("/x")
    storage = {name: value for name, value in table.io.properties.items() if not _OF_CATALOG.match(name)}
    return KeyedFiles(type(table.io)(storage), location, schema, tuple(key))


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """A snapshot that is in no catalog yet, whose manifests are written. base: the one that it was made of."""

    table: Table
    number: int
    base: int | None
    schema: int
    manifests: tuple[ManifestFile, ...]
    summary: Summary

    def listed(self, table: Table) -> Snapshot:
        """As the next one of its table. Its list of manifests has the sequence number, so that each attempt to commit
        it writes one."""
        sequence = table.metadata.next_sequence_number()
        path = table.location_provider().new_metadata_location(f"snap-{self.number}-{sequence}-{uuid.uuid4()}.avro")
        with write_manifest_list(2, table.io.new_output(path), self.number, self.base, sequence, "deflate") as writer:
            writer.add_manifests(deepcopy(list(self.manifests)))  # PyIceberg numbers those that it is given
        return Snapshot(
            snapshot_id=self.number,
            parent_snapshot_id=self.base,
            manifest_list=path,
            sequence_number=sequence,
            summary=self.summary,
            schema_id=self.schema,
        )


def snapshot_of(live: LiveFiles, change: FileChange, schema: Schema, properties: Mapping[str, str]) -> NewSnapshot:
    """Writes the manifests of a new snapshot."""
    table, base = live.table, live.snapshot
    number, token = table.metadata.new_snapshot_id(), uuid.uuid4()
    renewed = {file.deletes_of for file in change.added if file.deletes_of} | change.removed
    gone = {path for path, delete in live.deletes.items() if path_of_deletes(delete.data_file) in renewed}
    data = [_entry(number, file) for file in change.added if not file.deletes_of]
    data += _kept(number, live.data, change.removed, unnamed=change.unnamed)
    deletes = [_entry(number, file) for file in change.added if file.deletes_of]
    deletes += _kept(number, live.deletes, gone, unnamed=change.unnamed)
    provider, manifests = table.location_provider(), list[ManifestFile]()
    for kind, entries in ((ManifestWriterV2, data), (_ManifestOfDeletes, deletes)):
        if entries:
            path = provider.new_metadata_location(f"{token}-m{len(manifests)}.avro")
            manifests.append(_manifest(kind, table, schema, number, table.io.new_output(path), entries))
    parent = base.snapshot_id if base is not None else None
    summary = _summary(data, deletes, properties)
    return NewSnapshot(table, number, parent, schema.schema_id, tuple(manifests), summary)


def _entry(number: int, file: NewFile) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=number,
        sequence_number=None,
        file_sequence_number=None,
        data_file=file.entry(),
    )


def _kept(
    number: int, entries: Mapping[str, ManifestEntry], gone: Collection[str], *, unnamed: bool
) -> Iterator[ManifestEntry]:
    for path, entry in entries.items():
        if path in gone and unnamed:
            continue
        yield ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if path in gone else ManifestEntryStatus.EXISTING,
            snapshot_id=number if path in gone else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )


def _manifest(
    kind: type[ManifestWriterV2],
    table: Table,
    schema: Schema,
    number: int,
    output: OutputFile,
    entries: Iterable[ManifestEntry],
) -> ManifestFile:
    with kind(table.spec(), schema, output, number, "deflate") as writer:
        for entry in entries:
            writer.add_entry(entry)
    return writer.to_manifest_file()


def _summary(data: Sequence[ManifestEntry], deletes: Sequence[ManifestEntry], properties: Mapping[str, str]) -> Summary:
    figures: dict[str, int] = {}
    for entries, what, rows, every in (
        (data, "data", "records", "total-data-files"),
        (deletes, "delete", "position-deletes", "total-delete-files"),
    ):
        for status, word in ((ManifestEntryStatus.ADDED, "added"), (ManifestEntryStatus.DELETED, "removed")):
            some = [entry.data_file for entry in entries if entry.status == status]
            if some:
                removed_data = what == "data" and word == "removed"
                figures[f"{'deleted' if removed_data else word}-{what}-files"] = len(some)
                figures[f"{'deleted' if removed_data else word}-{rows}"] = sum(file.record_count for file in some)
                size = sum(file.file_size_in_bytes for file in some)
                figures[f"{word}-files-size"] = figures.get(f"{word}-files-size", 0) + size
        live = [entry.data_file for entry in entries if entry.status != ManifestEntryStatus.DELETED]
        figures[every] = len(live)
        figures[f"total-{rows}"] = sum(file.record_count for file in live)
        size = sum(file.file_size_in_bytes for file in live)
        figures["total-files-size"] = figures.get("total-files-size", 0) + size
    figures["total-equality-deletes"] = 0
    operation = Operation.OVERWRITE
    if not any(name in figures for name in ("deleted-data-files", "added-delete-files", "removed-delete-files")):
        operation = Operation.APPEND
    return Summary(operation, **{name: str(figure) for name, figure in figures.items()}, **properties)


def as_compaction(made: NewSnapshot) -> NewSnapshot:
    """The snapshot as one that changes no values: runs under way begin again."""
    return replace(made, summary=Summary(Operation.REPLACE, **made.summary.additional_properties))


def on_branch(made: NewSnapshot, branch: str) -> None:
    """Adds a snapshot to its table in the catalog, as the head of a branch, whatever that was. Raises what the catalog
    raises."""
    table = made.table
    for attempt in range(_ATTEMPTS):
        snapshot = made.listed(table)
        updates: tuple[TableUpdate, ...] = (AddSnapshotUpdate(snapshot=snapshot), pointing(branch, made.number))
        try:
            commit(table.catalog, [TableCommit(table, (), updates)])
            return
        except CommitFailedException:  # another attempt of the run, or a reader's tag, at the same moment
            if attempt == _ATTEMPTS - 1:
                raise
            table = table.catalog.load_table(table.name())


def pointing(ref: str, snapshot: int, kind: str = "branch") -> SetSnapshotRefUpdate:
    """The update by which a branch or a tag is at a snapshot."""
    return SetSnapshotRefUpdate.model_validate({"ref-name": ref, "type": kind, "snapshot-id": snapshot})


def own_schemas(table: Table) -> list[int]:
    """The numbers of the schemas that we have given a table, in the order in which they came."""
    return [int(text) for text in table.properties[SCHEMAS].split(",")]


def latest_schema(table: Table) -> Schema:
    """The schema that we have added last, whether or not rows with it have been published; or that of somebody else, if
    readers see one that came later. It takes what files of all have: columns only get wider."""
    schema_ids, current = own_schemas(table), table.metadata.current_schema_id
    return table.schemas()[max(schema_ids[-1], current)]


def head(table: Table) -> Snapshot | None:
    """The snapshot that readers see."""
    return table.metadata.snapshot_by_name(MAIN)


def at_main(snapshot: Snapshot | None) -> AssertRefSnapshotId:
    """The requirement that main is still this snapshot."""
    return AssertRefSnapshotId(ref=MAIN, snapshot_id=snapshot.snapshot_id if snapshot is not None else None)


def ancestry(table: Table, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    """A snapshot and those before it, as far as the table still has them."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.metadata.snapshot_by_id(parent) if parent is not None else None


def own(table: Table, snapshot: Snapshot | None) -> Snapshot | None:
    """The newest of our snapshots in the ancestry of one. Raises as `require_welcome`."""
    for ancestor in ancestry(table, snapshot):
        if said(ancestor, RUN):
            return ancestor
        require_welcome(table, ancestor)
    return None


def require_welcome(table: Table, snapshot: Snapshot) -> None:
    """Raises DataAtRisk (lake.foreign_write) for a snapshot of somebody else that is not a compaction. From a changes
    table others may delete rows: runs ask for none of them."""
    welcome = (Operation.REPLACE, Operation.DELETE) if SINCE in table.properties else (Operation.REPLACE,)
    if snapshot.summary is None or snapshot.summary.operation not in welcome:
        raise foreign(table, snapshot, "was not written by Lockstep, and changed rows")


def number_of(table: Table, snapshot: Snapshot | None) -> int:
    """The number of our newest snapshot in the ancestry of one; 0: there is none. Raises as `own`."""
    last = own(table, snapshot)
    return int(said(last, NUMBER)) if last is not None else number_below(table, snapshot)


def next_number(table: Table, snapshot: Snapshot | None) -> int:
    """The number of a new snapshot of ours that is made of this one. No number comes twice, also where the table was
    rolled back: what a ledger says of the former would be taken for the new one."""
    return max(number_of(table, snapshot), int(table.properties.get(NUMBER, 0))) + 1


def number_below(table: Table, snapshot: Snapshot | None) -> int:
    """The number where no snapshot of ours is left: others have compacted the table, and expired what was before. The
    table has ours all the same, up to what was published last."""
    return int(table.properties.get(NUMBER, 0)) if snapshot is not None else 0


def said(snapshot: Snapshot, name: str) -> str:
    """A property of a snapshot's summary; "" without it."""
    return str(snapshot.summary[name] or "") if snapshot.summary is not None else ""
