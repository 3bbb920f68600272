"""Up to where each source is staged, durably: its position, which moves only under the lease of its extractor.

Keeps true: a position moves from the place where it is stored, and no other, by the holder of the latest epoch.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Row, exists, insert, select, update

from cdc_core.errors import DataAtRisk, defect
from cdc_core.meta.leases import Leases, held_by
from cdc_core.meta.meta_rows import Lease
from cdc_core.meta.meta_schema import ack_position as _ack
from cdc_core.meta.repository import Repository, reads, writes
from cdc_core.meta.task_failures import EXTRACT, TaskFailures
from cdc_core.model.json_codec import parsed, text_of
from cdc_core.model.position import Checkpoint, Fingerprint, Position


class SourcePositions(Repository):
    @reads
    def checkpoint(self, source: str) -> Checkpoint | None:
        """Up to where the source is staged; None before its first batch."""
        row = self.execute(select(_ack).where(_ack.c.source == source)).one_or_none()
        return None if row is None else checkpoint_of(row)

    @reads
    def checkpoints(self) -> Mapping[str, Checkpoint]:
        """The checkpoints of sources that were extracted before."""
        rows = self.execute(select(_ack).order_by(_ack.c.source))
        return {row.source: checkpoint_of(row) for row in rows}

    @writes
    def advance_watermark(self, lease: Lease, seen: Checkpoint) -> None:
        """The source has nothing more up to the watermark of `seen`, at an unchanged position. The watermark never
        falls unless it was withdrawn. The first call sets the position.

        Raises RetryLater (lease.lost), DataAtRisk (meta.gap) if the position is another one.
        """
        Leases(self.connection).require_held(lease)
        stored = self.checkpoint(lease.source)
        if stored is not None and stored.position != seen.position:
            raise DataAtRisk(
                f"The position cannot move from {stored.position} to {seen.position} without a batch.",
                where=lease.source,
                code="meta.gap",
                remedy="nothing has moved; start the extractor again, it continues from the stored position",
            )
        self.move(lease, stored, seen)

    def move(self, lease: Lease, stored: Checkpoint | None, to: Checkpoint) -> None:
        """Moves the position from the stored place; the caller holds the lease."""
        watermark_us, before_us = to.watermark_us, stored.watermark_us if stored is not None else 0
        taken_back = to.floor_us >= before_us  # it came from a clock that was ahead
        values = {
            "timeline": to.position.timeline,
            "file": to.position.file,
            "pos": to.position.offset,
            "seq": to.position.seq,
            "gtid_set": to.gtid_set,
            "server": to.server,
            "watermark_us": watermark_us if taken_back else max(watermark_us, before_us),
            "floor_us": to.floor_us,
            "epoch": lease.epoch,
            "updated_us": self.now_us(),
            "fingerprint": None if to.fingerprint is None else text_of(to.fingerprint),
        }
        TaskFailures(self.connection).clear(EXTRACT, lease.source)
        if stored is None:
            self.execute(insert(_ack).values(source=lease.source, **values))
            return
        # The lease's row is locked, so the guard cannot fail; it also covers every other path to this statement.
        mine = exists().where(held_by(lease))
        moved = self.execute(
            update(_ack)
            .where(
                _ack.c.source == lease.source,
                _ack.c.seq == stored.position.seq,
                _ack.c.file == stored.position.file,
                _ack.c.epoch <= lease.epoch,
                mine,
            )
            .values(**values)
        )
        if moved.rowcount != 1:
            raise defect(
                f"The position of source {lease.source!r} moved under a held lease.",
                where=lease.source,
                first="nothing of this call has moved",
            )

    @reads
    def read_ahead(self, source: str) -> str:
        """The part of the source's log that was read ahead, as it was kept; "" for nothing."""
        return self.execute(select(_ack.c.read_ahead).where(_ack.c.source == source)).scalar() or ""

    @writes
    def keep_read_ahead(self, lease: Lease, kept: str) -> None:
        """Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        self.execute(update(_ack).where(_ack.c.source == lease.source).values(read_ahead=kept))

    @reads
    def purged_seq(self, source: str) -> int:
        """The order key before which every batch is purged; 0 where none is."""
        known = self.execute(select(_ack.c.purged_seq).where(_ack.c.source == source)).scalar()
        return int(known or 0)


def checkpoint_of(row: Row[tuple[object, ...]]) -> Checkpoint:
    return Checkpoint(
        Position(row.timeline, row.file, row.pos),
        gtid_set=row.gtid_set,
        server=row.server,
        watermark_us=row.watermark_us,
        fingerprint=None if row.fingerprint is None else parsed(Fingerprint, row.fingerprint),
        floor_us=row.floor_us,
    )
