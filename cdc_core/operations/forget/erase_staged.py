"""The staged files of a table: parts of batches, copied rows, compacted ranges. A file with rows to erase is replaced.

    files       without the rows, durable; until they are named, they are orphans
    records     of compacted ranges, which name the new files
    manifests   with the new parts, their counts, and what was erased (`Manifest.erased`); then the batches in meta
    originals   that compacted files replace, if they have such rows
    orphans     the former files: nothing names them now

A manifest is replaced in place: its name, its begin and its end are what they were, and so is the chain. An erasure
that was killed is repeated, and finds what is left: rows by reading the files, and a range whose record alone was
replaced by counts that differ from those of its manifests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cdc_core.meta import Lease
from cdc_core.model.batch import ErasedRows, Manifest, Part
from cdc_core.model.compacted import BatchCounts, Compaction, bare
from cdc_core.model.schema import TableSchema
from cdc_core.operations.apply.turn import require_turn
from cdc_core.operations.forget.erased_keys import ChangesFound, ErasedKeys
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import compactions
from cdc_core.stage.compactions import Compactions
from cdc_core.stage.erasing import recounted, without
from cdc_core.stage.layout import compaction_path, parse_compacted, parse_copied, parse_part, table_prefix
from cdc_core.stage.manifest import SWEPT_AFTER_S, Copies, chain, sweep
from cdc_core.stage.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class _File:
    """A file with rows of the table. replaced: its rows are in a compacted file, and nobody reads it any more."""

    part: Part
    schema: TableSchema
    found: ChangesFound
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What is staged of a table of one source, and which files have rows to erase."""

    source: str
    manifests: Sequence[Manifest]
    ranges: Compactions
    files: Mapping[str, _File]

    @property
    def tables(self) -> set[str]:
        """The source tables that feed it."""
        return {file.schema.name for file in self.files.values()}

    @property
    def fed(self) -> set[str]:
        """All logical tables that these source tables feed."""
        tables = self.tables
        return {
            part.table
            for manifest in self.manifests
            for part in manifest.parts
            if manifest.schemas[part.schema_id].name in tables
        }

    @property
    def affected(self) -> list[_File]:
        return [file for file in self.files.values() if file.found.places]

    def batches(self, table: str) -> list[Manifest]:
        """Those with changes to erase."""
        return [
            manifest
            for manifest in self.manifests
            if any(self._concerns(manifest, part) for part in manifest.parts if part.table == table)
        ]

    def _concerns(self, manifest: Manifest, part: Part) -> bool:
        file = self.files.get(_read_part(self.ranges, manifest, part).path)
        return file is not None and any(part.min_seq <= seq <= part.max_seq for seq, _ in file.found.places)


def find(store: ObjectStore, source: str, keys: ErasedKeys) -> StagedRows:
    """Reads all staged files of the table. Raises as `chain`, and DataAtRisk (stage.damaged), Refused (stage.key)."""
    there = {info.path for info in store.list(table_prefix(keys.table))}
    manifests, ranges = list(chain(store, source)), compactions.read(store, [source])
    files: dict[str, _File] = {}
    for part, schema, replaced in _listed(there, manifests, ranges, keys.table):
        if part.path not in files:
            files[part.path] = _File(part, schema, keys.changes_in(store, part, schema), replaced)
    return StagedRows(source, manifests, ranges, files)


def _listed(
    there: Collection[str], manifests: Iterable[Manifest], ranges: Compactions, table: str
) -> Iterator[tuple[Part, TableSchema, bool]]:
    """The files that have the rows now; and those that compacted ones replace, as far as they are there."""
    for manifest in manifests:
        for part in (part for part in manifest.parts if part.table == table):
            read, schema = _read_part(ranges, manifest, part), manifest.schemas[part.schema_id]
            yield read, schema, False
            if read.path != part.path and part.path in there:
                yield part, schema, True


def _range_of(ranges: Compactions, manifest: Manifest) -> Compaction | None:
    return None if manifest.copied else ranges.at(manifest.source, manifest.begin.position.seq)


def _read_part(ranges: Compactions, manifest: Manifest, part: Part) -> Part:
    """The part that has the rows of a batch's part now."""
    range_ = _range_of(ranges, manifest)
    return (range_ and range_.part_with(part.table, part.schema_id, part.max_seq)) or part


class StagedErasure:
    """Of one source. request: id of the erasure. turn: the right to change what is staged."""

    def __init__(self, opened: OpenPipeline, request: str, turn: Lease) -> None:
        self._store, self._meta, self._level = opened.store, opened.meta, opened.pipeline.stage.compression_level
        self._request, self._turn = request, turn

    def erase(self, staged: StagedRows) -> None:
        """Raises DataAtRisk (stage.damaged), RetryLater (lease.lost), and what the store raises."""
        new = {
            file.part.path: without(self._store, file.part, file.schema, file.found.places, level=self._level)
            for file in staged.affected
            if not file.replaced
        }
        ranges = Compactions(
            {
                staged.source: tuple(
                    replace(compaction, parts=_renewed(compaction.parts, new)) for compaction in staged.ranges
                )
            }
        )
        now = {**new, **self._recounted(staged, ranges)}
        manifests = {before.batch_id: self._manifest(staged, before, now) for before in staged.manifests}
        require_turn(self._meta, self._turn)  # a purge that took the turn may have removed what is named here
        for compaction, former in zip(ranges, staged.ranges, strict=True):
            batches = [manifests[batch.batch_id] for batch in compaction.batches]
            counts = tuple(BatchCounts.of(batch) for batch in batches)
            record = replace(compaction, batches=tuple(map(bare, batches)), counts=counts)
            if record != former:
                self._store.put(compaction_path(compaction.source, compaction.begin), record.to_bytes())
        for former_manifest in staged.manifests:
            manifest = manifests[former_manifest.batch_id]
            if manifest != former_manifest:
                self._store.put(manifest.path, manifest.to_bytes())
        self._meta.batches.renew(self._turn, [renewed for renewed in manifests.values() if renewed.erased])
        for path in _stale_originals(manifests.values(), ranges):
            self._store.delete(path)

    def _recounted(self, staged: StagedRows, ranges: Compactions) -> dict[str, Part]:
        """By its path, each part whose rows are in a compacted range that has another number of rows than its manifests
        say: a file was replaced now, or before a kill."""
        now: dict[str, Part] = {}
        counted: dict[str, list[Part]] = defaultdict(list)
        files: dict[str, tuple[Part, TableSchema]] = {}
        unlike = {compaction.begin for compaction in ranges if _is_unlike(compaction, staged.manifests)}
        for manifest in staged.manifests:
            range_ = _range_of(ranges, manifest)
            for part in manifest.parts if range_ is not None and range_.begin in unlike else ():
                read = _read_part(ranges, manifest, part)
                now[part.path] = read
                if parse_compacted(read.path):
                    files[read.path] = read, manifest.schemas[part.schema_id]
                    counted[read.path].append(part)
        for path, parts in counted.items():
            now |= {part.path: part for part in recounted(self._store, *files[path], parts)}
        return now

    def _manifest(self, staged: StagedRows, manifest: Manifest, now: Mapping[str, Part]) -> Manifest:
        """The manifest of what the batch has now."""
        parts = _renewed(manifest.parts, now)
        erased = [
            ErasedRows(part.path, part.sha256, part.rows - renewed.rows, self._request)
            for part, renewed in zip(manifest.parts, parts, strict=True)
            if part.rows != renewed.rows
        ]
        paths = {part.path: renewed.path for part, renewed in zip(manifest.parts, parts, strict=True)}
        chunks = tuple(
            replace(chunk, above=(), through=(), paths=tuple(paths[path] for path in chunk.paths))
            if chunk.table in staged.tables
            else chunk
            for chunk in manifest.chunks
        )
        return replace(manifest, parts=parts, erased=(*manifest.erased, *erased), chunks=chunks)


def _renewed(parts: Sequence[Part], now: Mapping[str, Part]) -> tuple[Part, ...]:
    return tuple(now.get(part.path, part) for part in parts)


def _stale_originals(manifests: Iterable[Manifest], ranges: Compactions) -> Iterator[str]:
    """Parts that compacted files replace, and from whose batches rows were erased."""
    for manifest in manifests:
        erased = {rows.path for rows in manifest.erased}
        for part in manifest.parts:
            if part.path in erased and _read_part(ranges, manifest, part).path != part.path:
                yield part.path


def _is_unlike(range_: Compaction, manifests: Sequence[Manifest]) -> bool:
    """Whether the files of a range have other numbers of rows than its manifests."""
    of_range, rows = {batch.batch_id for batch in range_.batches}, Counter[str]()
    for part in range_.parts:
        rows[part.table] += part.rows
    for part in (part for manifest in manifests if manifest.batch_id in of_range for part in manifest.parts):
        rows[part.table] -= part.rows
    return any(rows.values())


def sweep_orphans(opened: OpenPipeline, source: str, *, extractor: Lease, copier: Lease, turn: Lease) -> None:
    """Removes every file of the source that nothing names, whatever its age: all who may write any are kept away by
    these leases. Raises what `sweep` does."""
    found = sweep(
        opened.store,
        source,
        live_epoch=extractor.epoch,
        compactor_epoch=turn.epoch,
        copies=Copies(copier.epoch),
        older_than_s=-SWEPT_AFTER_S,  # the clock of the store may be ahead
        dry_run=True,
    )
    for info in found.parts:
        opened.store.delete(info.path)
    for upload in found.leftovers:  # others may be of another pipeline's writers
        name = parse_part(upload.path) or parse_copied(upload.path) or parse_compacted(upload.path)
        if name is not None and name.source == source:
            opened.store.discard(upload)
