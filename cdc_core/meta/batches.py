"""What is staged: the batches of each source.

Keeps true: the batches of a source and its position form one chain without gaps. A batch is recorded, together with its
files, its definitions and the position it ends at, in one transaction of the lease's holder, and only when the stored
position is where the batch begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import Row, and_, delete, func, insert, or_, select, update

from cdc_core.errors import DataAtRisk, LeaseLost, defect
from cdc_core.meta import meta_schema
from cdc_core.meta.copied_batches import CopiedBatches
from cdc_core.meta.coverages import Coverages
from cdc_core.meta.leases import Leases
from cdc_core.meta.meta_rows import BatchRow, FileRow, Lease
from cdc_core.meta.positions import SourcePositions
from cdc_core.meta.repository import Repository, reads, slices, value_of, writes
from cdc_core.meta.schemas import SchemaVersions
from cdc_core.meta.table_copies import TableCopies
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import NO_SURVEY, TableCoverage, settled
from cdc_core.model.json_codec import parsed, text_of
from cdc_core.model.position import Position

_batch, _file = meta_schema.batch, meta_schema.batch_file
_Notes = tuple[str, ...]

IN_ORDER = (_batch.c.begin_seq, _batch.c.end_seq, _batch.c.chunk)
"""The order of the chain: copied rows before the batch of the log that begins at the same place."""


class Batches(Repository):
    @writes
    def commit(self, lease: Lease, manifest: Manifest) -> None:
        """Records a batch whose manifest is durable, and moves the position to its end. Idempotent.

        Serves adoption too: a manifest found in the chain after the stored position, of this or an older epoch.

        Raises RetryLater (lease.lost), DataAtRisk (meta.gap) where the batch does not begin at the position.
        """
        Leases(self.connection).require_held(lease)
        _belongs(lease, manifest, any_epoch=manifest.copied)  # that of the copier's lease, not of this one
        stored = SourcePositions(self.connection).checkpoint(lease.source)
        if self._is_recorded(manifest):
            return
        if manifest.copied:
            CopiedBatches(self.connection).record(manifest)
            self._insert(manifest)
            return
        begin = manifest.begin.position
        if stored is not None and stored.position != begin:
            raise DataAtRisk(
                f"The batch begins at {begin}, but the source {lease.source!r} is staged up to {stored.position}.",
                where=f"{manifest.path}",
                code="meta.gap",
                remedy="nothing has moved. Check which one is right: `lockstep stage ls` shows the chain of manifests, "
                "`lockstep meta rebuild` restores batches and positions from it",
            )
        SourcePositions(self.connection).move(lease, stored, manifest.end)
        self._insert(manifest)

    @writes
    def record_copied(self, lease: Lease, manifest: Manifest) -> None:
        """Record a batch of copied rows whose manifest is durable. Idempotent. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        CopiedBatches(self.connection).record(manifest)
        if not self._is_recorded(manifest):
            self._insert(manifest)

    @writes
    def rebuild(
        self, lease: Lease, manifests: Sequence[Manifest], purged: Mapping[str, TableCoverage]
    ) -> tuple[Lease, int]:
        """See Meta.rebuild."""
        Leases(self.connection).require_held(lease)
        stored = SourcePositions(self.connection).checkpoint(lease.source)
        recorded = set(self.execute(select(_batch.c.batch_id).where(_batch.c.source == lease.source)).scalars())
        previous: Manifest | None = None
        added, highest, reached = 0, 0, stored is None
        coverage, surveyed, chunks = dict(purged), NO_SURVEY, 0
        for manifest in manifests:
            _belongs(lease, manifest, any_epoch=True)
            if previous is not None and previous.end.position != manifest.begin.position:
                raise _broken(manifest, f"the manifest before it ends at {previous.end.position}")
            reached = reached or stored is None or stored.position in (manifest.begin.position, manifest.end.position)
            highest = max(highest, manifest.epoch)
            if manifest.batch_id not in recorded or not self._is_recorded(manifest):
                self._insert(manifest)
                added += 1
            if manifest.repairs:
                CopiedBatches(self.connection).count_repaired(manifest, manifest.created_us)
            coverage = settled(coverage, manifest.coverage)
            chunks = max([chunks, *(chunk.number for chunk in manifest.chunks)])
            if manifest.surveyed.captured and manifest.surveyed.seq >= surveyed.seq:
                surveyed = manifest.surveyed
            previous = manifest
        if previous is None:
            return lease, 0
        if not reached or (stored is not None and stored.position > previous.end.position):
            place = stored.position if stored is not None else None
            raise _broken(previous, f"the stored position {place} is not on the chain, which ends with this manifest")
        if stored is None or stored.position != previous.end.position:
            SourcePositions(self.connection).move(lease, stored, previous.end)
        Coverages(self.connection).cover(lease.source, coverage, surveyed, settling=False)
        TableCopies(self.connection).give_out_above(lease.source, chunks)
        return Leases(self.connection).raise_epoch(lease, highest), added

    @writes
    def renew(self, turn: Lease, manifests: Sequence[Manifest]) -> None:
        """The batches have the files that their manifests name now: rows were erased from them. turn: the right to
        change what is staged. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(turn)
        for manifest in manifests:
            self._renew(manifest)

    @reads
    def find(
        self, source: str, *, after: Position | None = None, until: Position | None = None
    ) -> tuple[BatchRow, ...]:
        """The batches of a source that begin at or after `after` and end at or before `until`, in stream order."""
        query = select(_batch).where(_batch.c.source == source)
        if after is not None:
            query = query.where(_batch.c.begin_seq >= after.seq)
        if until is not None:
            query = query.where(_batch.c.end_seq <= until.seq)
        return tuple(batch_of(row) for row in self.execute(query.order_by(*IN_ORDER)))

    @reads
    def staged_since(self, source: str, created_us: int, *, window_start_us: int | None = None) -> tuple[BatchRow, ...]:
        """The batches of a source that were staged at this time or later, or belong to a window that begins at
        `window_start_us` or later; in stream order."""
        chosen = _batch.c.created_us >= created_us
        if window_start_us is not None:
            chosen |= _batch.c.window_start_us >= window_start_us
        query = select(_batch).where(_batch.c.source == source, chosen)
        return tuple(batch_of(row) for row in self.execute(query.order_by(*IN_ORDER)))

    @reads
    def by_id(self, batch_id: str) -> BatchRow | None:
        """A purged one too, until `forget`."""
        row = self.execute(select(_batch).where(_batch.c.batch_id == batch_id)).one_or_none()
        return None if row is None else batch_of(row)

    @reads
    def copied_manifests(self, source: str) -> tuple[str, ...]:
        """The paths of its manifests of copied rows: without one of them, the chain of manifests has no gap."""
        of_copies = and_(_batch.c.source == source, _batch.c.begin_seq == _batch.c.end_seq)
        return tuple(self.execute(select(_batch.c.manifest).where(of_copies)).scalars())

    @reads
    def files(self, batch_ids: Sequence[str]) -> Mapping[str, tuple[FileRow, ...]]:
        """The files of each batch, in their manifest's order; () for a batch without rows."""
        files: dict[str, list[FileRow]] = defaultdict(list)
        for some in slices(batch_ids):
            chosen = _file.c.batch_id.in_(some)
            for row in self.execute(select(_file).where(chosen).order_by(_file.c.batch_id, _file.c.part)):
                file = value_of(FileRow, row, table=row.table_name, rows=row.row_count)
                files[row.batch_id].append(file)
        return {batch_id: tuple(files[batch_id]) for batch_id in batch_ids}

    @writes
    def forget(self, horizons: Mapping[str, Position], before_us: int, *, dry_run: bool = False) -> int:
        """Drops what is known of the first batches of each source, those before its horizon whose windows ended by
        `before_us`, with their files and records; how many batches. Definitions stay: later batches use them too.

        Assumes that every batch before its source's horizon is purged.
        """
        forgotten = 0
        for source, horizon in horizons.items():
            mine = _batch.c.source == source
            kept = self.execute(
                select(func.min(_batch.c.begin_seq)).where(mine, _batch.c.window_end_us > before_us)
            ).scalar_one()
            end_seq = horizon.seq if kept is None else min(kept, horizon.seq)
            forgotten += self.delete(
                _batch,
                mine & or_(_batch.c.end_seq < end_seq, and_(_batch.c.end_seq == end_seq, _batch.c.chunk == 0)),
                (meta_schema.batch_file, meta_schema.consume_record),
                dry_run=dry_run,
            )
        return forgotten

    def _is_recorded(self, manifest: Manifest) -> bool:
        """Whether exactly this batch is recorded. Raises DataAtRisk when another one has its place."""
        row = self.execute(select(_batch).where(_batch.c.batch_id == manifest.batch_id)).one_or_none()
        if row is None:
            return False
        files = self.files([manifest.batch_id])[manifest.batch_id]
        had = [(file.path, file.sha256, file.rows) for file in files]
        has = [(part.path, part.sha256, part.rows) for part in manifest.parts]
        erased = {(rows.path, rows.sha256) for rows in manifest.erased}
        same = len(had) == len(has) and all(was == now or was[:2] in erased for was, now in zip(had, has, strict=True))
        if batch_of(row).end == manifest.end.position and same:
            if had != has:  # the erasure was killed before it came here
                self._renew(manifest)
            return True
        raise DataAtRisk(
            f"Meta has the batch {manifest.batch_id} with different contents: up to {batch_of(row).end}, {len(files)} "
            f"files; the manifest goes up to {manifest.end.position} with {len(manifest.parts)} files.",
            where=manifest.path,
            code="stage.chain",
            remedy="nothing has moved. A manifest was changed or replaced after it was written: compare the stage with "
            "its backup before you continue",
        )

    def _insert(self, manifest: Manifest) -> None:
        begin, end = manifest.begin.position, manifest.end.position
        self.execute(
            insert(_batch).values(
                batch_id=manifest.batch_id,
                source=manifest.source,
                epoch=manifest.epoch,
                begin_timeline=begin.timeline,
                begin_file=begin.file,
                begin_pos=begin.offset,
                begin_seq=begin.seq,
                end_timeline=end.timeline,
                end_file=end.file,
                end_pos=end.offset,
                end_seq=end.seq,
                window_start_us=manifest.window_start_us,
                window_end_us=manifest.window_end_us,
                row_count=manifest.rows,
                event_count=manifest.events,
                transaction_count=manifest.transactions,
                size_bytes=manifest.size_bytes,
                manifest=manifest.path,
                notes=text_of(manifest.notes, _Notes),
                created_us=manifest.created_us,
                chunk=manifest.chunks[0].number if manifest.chunks else 0,
            )
        )
        self._insert_files(manifest)
        SchemaVersions(self.connection).record(manifest)
        Coverages(self.connection).cover(manifest.source, manifest.coverage, manifest.surveyed)

    def _renew(self, manifest: Manifest) -> None:
        mine = _batch.c.batch_id == manifest.batch_id
        self.execute(update(_batch).where(mine).values(row_count=manifest.rows, size_bytes=manifest.size_bytes))
        self.execute(delete(_file).where(_file.c.batch_id == manifest.batch_id))
        self._insert_files(manifest)

    def _insert_files(self, manifest: Manifest) -> None:
        if manifest.parts:
            self.execute(
                insert(_file),
                [
                    {
                        "batch_id": manifest.batch_id,
                        "part": number,
                        "table_name": part.table,
                        "path": part.path,
                        "schema_id": part.schema_id,
                        "row_count": part.rows,
                        "key_changes": part.key_changes,
                        "size_bytes": part.size_bytes,
                        "plain_bytes": part.plain_bytes,
                        "sha256": part.sha256,
                        "min_seq": part.min_seq,
                        "max_seq": part.max_seq,
                        "absent_rows": part.absent_rows,
                    }
                    for number, part in enumerate(manifest.parts)
                ],
            )


def batch_of(row: Row[tuple[object, ...]]) -> BatchRow:
    return value_of(
        BatchRow,
        row,
        begin=Position(row.begin_timeline, row.begin_file, row.begin_pos),
        end=Position(row.end_timeline, row.end_file, row.end_pos),
        rows=row.row_count,
        events=row.event_count,
        transactions=row.transaction_count,
        notes=parsed(_Notes, row.notes),
    )


def _belongs(lease: Lease, manifest: Manifest, *, any_epoch: bool = False) -> None:
    if (manifest.source, manifest.pipeline) != (lease.source, lease.pipeline):
        raise defect(
            f"A batch of {manifest.pipeline}/{manifest.source} cannot be recorded under a lease of {lease.pipeline}/"
            f"{lease.source}.",
            where=manifest.path,
            first="if two pipelines share one stage directory, give each its own; otherwise",
        )
    if not (manifest.copied or manifest.begin.position < manifest.end.position):
        raise defect(
            f"A batch must move forward, not from {manifest.begin.position} to {manifest.end.position}.",
            where=manifest.path,
        )
    # A batch of copied rows has the epoch of its copier's lease, which says nothing about this one.
    if not (any_epoch or manifest.copied) and manifest.epoch > lease.epoch:
        raise LeaseLost(
            f"The batch was written under epoch {manifest.epoch}; the lease of {lease.holder} has epoch {lease.epoch}.",
            where=manifest.path,
            remedy="start the extractor again. If no other one runs, meta is older than the stage: "
            "`lockstep meta rebuild`",
        )


def _broken(manifest: Manifest, why: str) -> DataAtRisk:
    return DataAtRisk(
        f"The manifests of source {manifest.source!r} do not form one chain with meta: {why}.",
        where=manifest.path,
        code="stage.chain",
        remedy="nothing has moved. A manifest is missing or meta belongs to another stage: restore the missing "
        "manifest from a backup, or start the source under a new name: its tables are copied again",
    )
