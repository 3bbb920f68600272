"""What `lockstep status` shows of a pipeline. Read only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import and_, case, exists, func, or_, select, true

from cdc_core.meta import meta_schema
from cdc_core.meta.coverages import Coverages
from cdc_core.meta.cutovers import Cutovers
from cdc_core.meta.leases import Leases, ring_of
from cdc_core.meta.ledgers import Ledgers
from cdc_core.meta.meta_rows import Failure, RingDepth, SourceStatus, StateCount, Status, TargetStatus
from cdc_core.meta.plan_views import lacks
from cdc_core.meta.positions import checkpoint_of
from cdc_core.meta.repository import Repository, reads
from cdc_core.meta.rollouts import Rollouts
from cdc_core.meta.run_register import RunRegister, run_of
from cdc_core.meta.run_states import RecordState
from cdc_core.meta.table_copies import TableCopies, copier_of
from cdc_core.meta.task_failures import TaskFailures
from cdc_core.meta.verifications import Verifications

_ack, _batch, _record = meta_schema.ack_position, meta_schema.batch, meta_schema.consume_record
_run, _ledger = meta_schema.run, meta_schema.apply_ledger
_RECENT = 20


class StatusViews(Repository):
    @reads
    def find(self, targets: Sequence[str] = ()) -> Status:
        """targets: names to show even if nothing was planned for them yet."""
        now = self.now_us()
        failed = TaskFailures(self.connection).find()
        sources = tuple(
            self._source_status(source, now, failed, targets)
            for source in self.execute(select(_ack.c.source).order_by(_ack.c.source)).scalars()
        )
        known = self.execute(select(_record.c.target).distinct().order_by(_record.c.target)).scalars()
        names = tuple(dict.fromkeys([*targets, *known]))
        run_rows = self.execute(select(_run).order_by(_run.c.created_us.desc()).limit(_RECENT))
        latest = self.execute(
            select(_ledger.c.run_id).order_by(_ledger.c.closed_us.desc(), _ledger.c.run_id.desc()).limit(1)
        ).scalar_one_or_none()
        holding = RunRegister(self.connection).holding(targets)
        return Status(
            pipeline=self.pipeline,
            now_us=now,
            watermark_us=min((source.checkpoint.watermark_us for source in sources), default=0),
            sources=sources,
            targets=tuple(self._target_status(name) for name in names),
            runs=tuple(run_of(row) for row in run_rows),
            ledgers=() if latest is None else Ledgers(self.connection).find(latest),
            failures=failed,
            verifications=Verifications(self.connection).all(),
            cutovers=Cutovers(self.connection).standing(),
            rollouts=Rollouts(self.connection).standing(),
            holding=holding,
            set_aside=Ledgers(self.connection).set_aside(),
        )

    def _source_status(self, source: str, now: int, failed: Sequence[Failure], targets: Sequence[str]) -> SourceStatus:
        row = self.execute(select(_ack).where(_ack.c.source == source)).one()
        holder, copier = Leases(self.connection).find(source), Leases(self.connection).find(copier_of(source))
        covered = Coverages(self.connection).find(source).tables
        pause = TableCopies(self.connection).paused(source)
        gone = and_(_record.c.batch_id == _batch.c.batch_id, _record.c.state == RecordState.PURGED)
        totals = self.execute(
            select(
                func.count(),
                func.coalesce(func.sum(_batch.c.row_count), 0),
                func.coalesce(func.sum(_batch.c.size_bytes), 0),
            ).where(_batch.c.source == source, ~exists().where(gone))
        ).one()
        lacking = or_(*(lacks(target) for target in targets)) if targets else true()
        noted = self.execute(
            select(_batch.c.notes, _batch.c.begin_seq, _batch.c.end_seq, lacking.label("lacking"))
            .where(_batch.c.source == source, _batch.c.notes != "[]")
            .order_by(_batch.c.begin_seq.desc())
            .limit(_RECENT)
        ).all()
        # What is lacking, and since when.
        open_seqs = [coverage.seq for coverage in covered.values() if not coverage.whole]
        latest = [
            row.notes for row in noted if row.lacking or any(row.begin_seq <= seq < row.end_seq for seq in open_seqs)
        ]
        checkpoint = checkpoint_of(row)
        reader = holder.holder if holder is not None and holder.expires_us > now and holder.holder else None
        ring = RingDepth() if holder is None else ring_of(holder)
        return SourceStatus(
            source=source,
            checkpoint=checkpoint,
            lag_us=now - checkpoint.watermark_us if checkpoint.watermark_us else None,
            updated_us=row.updated_us,
            epoch=0 if holder is None else holder.epoch,
            holder=reader,
            ring=ring if reader else replace(ring, items=0, size_bytes=0),  # it was lost with the process
            batches=int(totals[0]),
            rows=int(totals[1]),
            size_bytes=int(totals[2]),
            notes=tuple(dict.fromkeys(note for notes in latest for note in json.loads(notes))),
            retention_s=0 if holder is None else holder.retention_s,
            partial={table: coverage for table, coverage in covered.items() if not coverage.whole},
            copies=TableCopies(self.connection).status(source, covered, failed),
            copier=copier.holder if copier is not None and copier.expires_us > now and copier.holder else None,
            copies_paused_us=pause.since_us if pause is not None else 0,
            copies_paused_by=pause.holder if pause is not None else "",
        )

    def _target_status(self, target: str) -> TargetStatus:
        untaken = ~exists().where(_record.c.target == target, _record.c.batch_id == _batch.c.batch_id)
        copied_rows = case((_batch.c.begin_seq == _batch.c.end_seq, _batch.c.row_count), else_=0)
        batches, rows, copied = self.execute(
            select(
                func.count(),
                func.coalesce(func.sum(_batch.c.row_count), 0),
                func.coalesce(func.sum(copied_rows), 0),
            ).where(untaken)
        ).one()
        oldest = self.execute(select(func.min(_batch.c.window_start_us)).where(lacks(target))).scalar_one_or_none()
        by_state = self.execute(
            select(_record.c.state, func.count(_record.c.batch_id.distinct()), func.sum(_record.c.row_count))
            .where(_record.c.target == target)
            .group_by(_record.c.state)
        )
        last_error = self.execute(
            select(_record.c.last_error)
            .where(_record.c.target == target, _record.c.last_error.is_not(None))
            .order_by(_record.c.updated_us.desc())
            .limit(1)
        ).scalar_one_or_none()
        return TargetStatus(
            target,
            StateCount(int(batches), int(rows)),
            {RecordState(row[0]): StateCount(int(row[1]), int(row[2])) for row in by_state},
            last_error,
            oldest,
            int(copied),
        )
