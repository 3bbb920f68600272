"""Batches of copied rows on their way into the chain: which chunks go into which manifest is decided once.

The text of the manifest is kept before it is written, so that whoever writes it writes the same one, and no chunk is
ever in two.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, func, insert, select, update

from cdc_core.meta import meta_schema
from cdc_core.meta.leases import Leases
from cdc_core.meta.meta_rows import Lease
from cdc_core.meta.repository import Repository, reads, writes
from cdc_core.meta.table_copies import TableCopies, moved_meanwhile
from cdc_core.model.batch import Manifest
from cdc_core.model.position import Position

_ack, _copy, _chunk = meta_schema.ack_position, meta_schema.table_copy, meta_schema.copied_chunk
_planned, _repaired, _batch = meta_schema.copy_batch, meta_schema.repaired_batch, meta_schema.batch

_REPAIRED_KEPT_US = 7 * 86_400_000_000


class CopiedBatches(Repository):
    @writes
    def decide(self, lease: Lease, manifest: Manifest, done: Sequence[str], *, exact: bool = False) -> None:
        """These chunks go into this manifest. done: their tables, whose copies end with it.

        exact: some are what a table without a key has at the manifest's place. A target counts such rows batch by
        batch: no run may take a later batch before this one, so until it is recorded, plans end there (held_seq).

        Raises RetryLater (lease.lost).
        """
        Leases(self.connection).require_held(lease)
        ack = select(_ack.c.seq, _ack.c.purged_seq).where(_ack.c.source == manifest.source).with_for_update()
        reached = self.execute(ack).one()
        if min(chunk.low.seq for chunk in manifest.chunks) < reached.purged_seq:
            raise moved_meanwhile(f"A purge has removed changes of {manifest.source} meanwhile.", manifest.batch_id)
        if exact and reached.seq != manifest.begin.position.seq:
            raise moved_meanwhile(
                f"The chain of {manifest.source} has passed the place of the copy.", manifest.batch_id
            )
        numbers = [
            chunk.number for chunk in manifest.chunks if not chunk.by_key
        ]  # the others are in the manifest alone
        for number in numbers:
            mine = (_chunk.c.source == manifest.source) & (_chunk.c.chunk == number)
            if self.execute(delete(_chunk).where(mine)).rowcount != 1:
                raise moved_meanwhile(
                    f"Another process has staged or dropped the chunk {number} of {manifest.source}.", manifest.batch_id
                )
        for table in done:
            self.execute(delete(_copy).where((_copy.c.source == manifest.source) & (_copy.c.source_table == table)))
        self.execute(
            insert(_planned).values(
                batch_id=manifest.batch_id,
                source=manifest.source,
                manifest=manifest.to_bytes().decode(),
                held_seq=manifest.begin.position.seq if exact else 0,
            )
        )
        if manifest.repairs:
            self.count_repaired(manifest, self.now_us())

    @reads
    def decided(self, source: str) -> tuple[Manifest, ...]:
        """The manifests that are decided and not recorded as batches, by id."""
        rows = self.execute(
            select(_planned.c.manifest).where(_planned.c.source == source).order_by(_planned.c.batch_id)
        )
        return tuple(Manifest.from_bytes(row.manifest.encode()) for row in rows)

    def record(self, manifest: Manifest) -> None:
        """The manifest is durable, and about to be a batch."""
        self.execute(delete(_planned).where(_planned.c.batch_id == manifest.batch_id))
        TableCopies(self.connection).give_out_above(manifest.source, max(chunk.number for chunk in manifest.chunks))

    def held_seq(self, source: str) -> int | None:
        """Where the first batch begins that no run may take yet; None where nothing holds them."""
        held = select(func.min(_planned.c.held_seq)).where(_planned.c.source == source, _planned.c.held_seq > 0)
        found: int | None = self.execute(held).scalar()
        return found

    def count_repaired(self, manifest: Manifest, at_us: int) -> None:
        """Counts the rows of a batch by key, once. at_us: when it was decided, µs UTC."""
        known = select(_repaired.c.batch_id).where(_repaired.c.batch_id == manifest.batch_id)
        if self.execute(known).first() is None:
            self.execute(delete(_repaired).where(_repaired.c.decided_us < at_us - _REPAIRED_KEPT_US))
            self.execute(
                insert(_repaired).values(
                    batch_id=manifest.batch_id, source=manifest.source, row_count=manifest.rows, decided_us=at_us
                )
            )

    @reads
    def repaired(self, source: str, within_s: float) -> int:
        """Rows of a source that repairs have staged in the last seconds, by the database's clock."""
        since_us = self.now_us() - int(within_s * 1_000_000)
        rows = select(func.coalesce(func.sum(_repaired.c.row_count), 0)).where(
            _repaired.c.source == source, _repaired.c.decided_us > since_us
        )
        return int(self.execute(rows).scalar_one())

    @reads
    def repaired_batches(self, source: str) -> frozenset[str]:
        """Ids of the batches that repairs have staged in the last days, and of those that are decided."""
        return frozenset(self.execute(select(_repaired.c.batch_id).where(_repaired.c.source == source)).scalars())

    def mark_purged(self, source: str, end: Position, staged: Collection[str]) -> None:
        """From now on what is before `end` counts as purged. staged: ids of the batches of copied rows that its caller
        has looked at.

        A copied row must be followed in the stage by all that happened since it was read. `decide` asks whether that is
        purged, this asks whether such rows are on their way, and each holds the lock of the ack position meanwhile.

        Raises RetryLater (lease.lost).
        """
        self.execute(select(_ack.c.seq).where(_ack.c.source == source).with_for_update())
        waiting = [chunk.chunk for chunk in TableCopies(self.connection).chunks(source)]
        waiting += [chunk for manifest in self.decided(source) for chunk in manifest.chunks]
        lows = [chunk.low for chunk in waiting] + [
            copy.low for copy in TableCopies(self.connection).find(source) if copy.low is not None
        ]
        later = (_batch.c.source == source) & (_batch.c.chunk > 0) & (_batch.c.begin_seq >= end.seq)
        recorded = self.execute(select(_batch.c.batch_id).where(later)).scalars()
        if any(low < end for low in lows) or any(batch_id not in staged for batch_id in recorded):
            raise moved_meanwhile(f"Rows of {source} were copied while the purge decided what to remove.", source)
        earlier = (_ack.c.source == source) & (_ack.c.purged_seq < end.seq)
        self.execute(update(_ack).where(earlier).values(purged_seq=end.seq))
