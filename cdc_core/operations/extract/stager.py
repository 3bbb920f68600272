"""Blocks into batches: windows, limits, and the order of durability.

Parquet parts -> manifest -> meta row -> acknowledgement, always in this order. A batch is a range of positions
within one window that ends where a transaction ends; it is closed when a limit is reached, when its window is
over, or when the caller says so. It has no thread and no clock of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdc_core.errors import LeaseLost, RetryLater
from cdc_core.meta import Lease
from cdc_core.model.batch import Manifest
from cdc_core.model.block import Block, EntryKind
from cdc_core.model.position import Checkpoint
from cdc_core.model.windows import CLOCK_TOLERANCE_US, from_us
from cdc_core.operations.extract.coverage_changes import CoverageLog
from cdc_core.operations.extract.drained import NOTHING, StagingTotals
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.ring import AckPoint
from cdc_core.source.host.gtid_sets import GtidSet, advanced, set_of
from cdc_core.stage import manifest as manifests
from cdc_core.stage.isolated import notes
from cdc_core.stage.writer import BatchWriter

log = logging.getLogger(__name__)


class Stager:
    """Turns blocks into committed batches, from `start` on, for the holder of `lease`.

    staged:      the totals to begin with. isolated: tables that are already isolated, -> since where, and why.
    coverage:    of the source's tables.
    acknowledge: called with the ring's ack point of the last entry of each batch once the batch is durable.
    """

    def __init__(
        self,
        opened: OpenPipeline,
        *,
        lease: Lease,
        start: Checkpoint,
        scratch: Path,
        acknowledge: Callable[[AckPoint], None],
        staged: StagingTotals = NOTHING,
        isolated: Mapping[str, str] | None = None,
        coverage: CoverageLog | None = None,
    ) -> None:
        self._pipeline = opened.pipeline
        self._windows = opened.pipeline.windows
        self._store = opened.store
        self._meta = opened.meta
        self._lease = lease
        self._scratch = scratch
        self._acknowledge = acknowledge
        self.durable = start
        self.reached = start
        """Where the last entry that was added ends; its watermark is the running maximum of commit times."""
        self.staged = staged
        self._isolated = dict(isolated or {})
        self.coverage = coverage or CoverageLog()
        self._writer: BatchWriter | None = None
        self._window = self._windows.containing(max(start.watermark_us, start.floor_us))
        self._now_us = 0
        self._opened_s = time.monotonic()
        self._inside_transaction = False
        self._last_point: AckPoint | None = None
        self._gtids = GtidSet()

    @property
    def inside_transaction(self) -> bool:
        """Whether the last entry was a piece of a transaction that continues: nothing can be committed here."""
        return self._inside_transaction

    def add(self, block: Block, *, now_us: int) -> None:
        """Take a block that begins where the last one ended; commits batches as windows end and limits are reached.

        now_us: the clock (Extractor). Commit times ahead of it count as now, since a session can set them, and a
        server's clock can be wrong.
        """
        self._now_us = now_us
        seen = np.minimum(block.entries.commit_ts_us, now_us)
        if self._inside_transaction:
            seen[0] = 0  # all pieces of a transaction stay in the window of its first
        seen = np.maximum.accumulate(np.maximum(seen, self.reached.watermark_us))
        times = np.maximum(seen, self.reached.floor_us)  # windows never go back: each is one range of positions
        first = 0
        while first < len(times):
            if times[first] >= self._window[1]:
                self._enter_window(int(times[first]))
            stop = int(np.searchsorted(times, self._window[1]))
            self._append(block.slice(first, stop), seen[first:stop])
            first = stop
        self.tick()

    def trust_watermark(self, now_us: int) -> bool:
        """Whether the watermark is not ahead of the clock. One that is comes from a wrong clock, and is withdrawn: only
        the next `commit` says what is complete. Windows continue from where they are."""
        if self.reached.watermark_us <= now_us + CLOCK_TOLERANCE_US:
            return True
        self.durable = self.durable.distrusted()
        self.reached = self.reached.distrusted()
        return False

    def _enter_window(self, moment_us: int) -> None:
        """A stretch without rows waits for the next window's batch; rows do not."""
        if self._writer is not None and self._writer.rows:
            self.commit()
        self._window = self._windows.containing(moment_us)
        if self._writer is not None:
            self._writer.window = self._window

    def _append(self, block: Block, seen: npt.NDArray[np.int64]) -> None:
        """seen: the watermark at each entry."""
        last = len(block.entries) - 1
        if block.entries.kind[last] == EntryKind.PART and (last or not self._inside_transaction):
            # A transaction in pieces begins a batch: what is complete before it does not wait for its end.
            if last:
                self._append(block.slice(0, last), seen[:last])
            if self.reached.position > self.durable.position:
                self.commit()
            block, seen, last = block.slice(last, last + 1), seen[last:], 0
        if self._writer is not None and not self._inside_transaction and self._writer.redefines(block):
            self.commit()  # no run could merge a batch with both definitions
        if self._writer is None:
            self._writer = BatchWriter(
                self._store,
                pipeline=self._pipeline.pipeline,
                source=block.source,
                epoch=self._lease.epoch,
                begin=self.durable,
                window=self._window,
                level=self._pipeline.stage.compression_level,
                row_group_buffer_bytes=self._pipeline.limits.row_group_buffer_bytes,
                scratch_dir=self._scratch,
            )
            self._opened_s = time.monotonic()
        self._writer.add(block)
        self.coverage.add(block)
        self._isolated |= block.isolated
        self._inside_transaction = block.entries.kind[last] == EntryKind.PART
        self._last_point = AckPoint(block.end.file, block.end.offset, int(block.entries.commit_ts_us[last]))
        self._gtids = self._gtids.union(set_of(block.entries.gtids))
        self.reached = replace(
            self.reached,
            position=block.end,
            watermark_us=int(seen[last]),
            fingerprint=block.fingerprint(self.reached.fingerprint),
        )

    def _full(self) -> bool:
        writer, limits = self._writer, self._pipeline.limits
        return writer is not None and (
            writer.rows >= limits.batch_rows
            or writer.size_bytes >= limits.batch_mib << 20
            or time.monotonic() - self._opened_s >= limits.batch_age_s
        )

    def tick(self) -> None:
        """Commit a batch that has become too old, when nothing new arrives."""
        if not self._inside_transaction and self._full():
            self.commit()

    def release(self) -> None:
        """Let the ring forget what is already in open part files, because it is full and nothing can be committed.

        Only inside a transaction that is larger than the ring; otherwise commits.
        """
        if not self._inside_transaction:
            self.commit()
        elif self._last_point is not None:
            self._acknowledge(self._last_point)
            self._last_point = None

    def commit(self, *, watermark_us: int = 0) -> Manifest | None:
        """Make all that was added durable; `watermark_us` says how far the source is known to be complete.

        Returns the manifest; None where the position did not move (the watermark in meta moves anyway).
        Raises RetryLater (lease.lost) when another writer took this batch's place in the chain.
        """
        assert not self._inside_transaction, "a batch contains only whole transactions"
        end = replace(
            self.reached,
            gtid_set=advanced(self.reached.gtid_set, self._gtids),
            watermark_us=max(self.reached.watermark_us, watermark_us),
        )
        manifest = None
        if self._writer is not None and end.position > self.durable.position:
            if not self._writer.rows and end.watermark_us:
                # A stretch without rows belongs to the window that its end completes.
                self._writer.window = max(self._window, self._windows.containing(end.watermark_us - 1))
            manifest = self._commit_batch(self._writer, end)
        elif end.watermark_us > self.durable.watermark_us:
            self._meta.positions.advance_watermark(self._lease, end)
        self.durable = self.reached = end
        if self._last_point is not None:
            self._acknowledge(self._last_point)
            self._last_point = None
        self._writer = None
        self._gtids = GtidSet()
        return manifest

    def _commit_batch(self, writer: BatchWriter, end: Checkpoint) -> Manifest:
        manifest = writer.finish(end)
        if manifest.window_start_us > self._now_us + CLOCK_TOLERANCE_US and manifest.rows:
            manifest = replace(manifest, notes=(*manifest.notes, _ahead(manifest, self._now_us)))
            log.warning("%s: %s", manifest.source, manifest.notes[-1])
        if self._isolated:
            manifest = replace(manifest, isolated=self._isolated, notes=(*manifest.notes, *notes(self._isolated)))
        manifest = replace(manifest, coverage=dict(self.coverage.pending), surveyed=self.coverage.surveyed)
        committed = manifests.commit(self._store, manifest)
        if not committed.ours:
            writer.abort()
            raise chain_moved(manifest)
        self._meta.batches.commit(self._lease, manifest)
        self.coverage.pending.clear()
        parts = manifest.parts
        self.staged = StagingTotals(
            self.staged.batches + 1,
            self.staged.files + len(parts),
            self.staged.rows + manifest.rows,
            self.staged.events + manifest.events,
            self.staged.size_bytes + manifest.size_bytes,
        )
        log.info("%s: staged up to %s: %d rows in %d files", manifest.source, end.position, manifest.rows, len(parts))
        return manifest

    def abort(self) -> None:
        """Drop what is not committed, and remove its part files."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None


def _ahead(manifest: Manifest, now_us: int) -> str:
    return (
        f"staged at {from_us(now_us).isoformat()} in the window that begins at "
        f"{from_us(manifest.window_start_us).isoformat()}, because the clocks of source and meta were ahead, and "
        "windows do not go back: a run applies it when that window ends, or now without a window"
    )


def chain_moved(manifest: Manifest) -> RetryLater:
    """The error when another manifest already has this one's place in the chain."""
    return LeaseLost(
        f"Another extractor has already staged the batch that begins at {manifest.begin.position}.",
        where=manifest.batch_id,
        remedy="nothing is lost; the next attempt adopts that batch and continues after it",
    )
