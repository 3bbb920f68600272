"""Queries over several tables: what a plan sees, what `lockstep status` shows. Read only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select, true

from cdc_core.meta import batches, copies, cutovers, failures, leases, runs, tables, verifications
from cdc_core.meta.copies import copier_of
from cdc_core.meta.database import now_us
from cdc_core.meta.rows import (
    BatchRow,
    Failure,
    FileRow,
    RingDepth,
    SourceStatus,
    StateCount,
    Status,
    TargetStatus,
)
from cdc_core.meta.states import RecordState
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import TableSchema

_ack, _batch, _record = tables.ack_position, tables.batch, tables.consume_record
_ALL_TIME = 2**63 - 1
_RECENT = 20


@dataclass(frozen=True, slots=True)
class PlanView:
    """The pipeline at one moment, as far as a plan needs it.

    checkpoints: of each source that has one.
    chain:       batches by source, in stream order: from the one before the first that any target lacks, to the last.
    pending:     ids of the batches in reach that each target has not consumed.
    consumed:    ids of the batches of the window that each target has consumed, in stream order.
    own:         ids of the batches in reach whose open records this run holds, by target.
    closed:      targets that this run has committed already.
    files, schemas: of the pending batches; definitions that meta does not know are missing.
    """

    checkpoints: Mapping[str, Checkpoint]
    chain: Mapping[str, tuple[BatchRow, ...]]
    pending: Mapping[str, frozenset[str]]
    consumed: Mapping[str, tuple[str, ...]]
    own: Mapping[str, frozenset[str]]
    closed: frozenset[str]
    files: Mapping[str, tuple[FileRow, ...]]
    schemas: Mapping[str, TableSchema]


def plan_view(
    connection: Connection,
    run_id: str,
    sources: Sequence[str],
    targets: Sequence[str],
    window: tuple[int, int] | None,
) -> PlanView:
    end_us = _ALL_TIME if window is None else window[1]
    checkpoints, chain = {}, {}
    pending: dict[str, set[str]] = {target: set() for target in targets}
    consumed: dict[str, list[str]] = {target: [] for target in targets}
    for source in sources:
        checkpoint = batches.checkpoint(connection, source)
        if checkpoint is not None:
            checkpoints[source] = checkpoint
        lacking: dict[str, int] = {}
        held = copies.held_seq(connection, source)
        for target in targets:
            in_reach = and_(_batch.c.source == source, _batch.c.window_start_us < end_us)
            if held is not None:
                in_reach = and_(in_reach, _batch.c.begin_seq < held)
            rows = connection.execute(
                select(_batch.c.batch_id, _batch.c.begin_seq).where(in_reach, _lacks(target))
            ).all()
            lacking |= {row.batch_id: row.begin_seq for row in rows}
            pending[target] |= {row.batch_id for row in rows}
            if window is not None:
                done = select(_batch.c.batch_id).where(in_reach, _batch.c.window_start_us >= window[0], ~_lacks(target))
                consumed[target] += connection.execute(done.order_by(*batches.IN_ORDER)).scalars()
        chain[source] = _chain(connection, source, min(lacking.values(), default=None))
    wanted = sorted(set().union(*pending.values()))
    files = batches.files(connection, wanted)
    schema_ids = sorted({file.schema_id for of_batch in files.values() for file in of_batch})
    return PlanView(
        checkpoints,
        chain,
        {target: frozenset(ids) for target, ids in pending.items()},
        {target: tuple(ids) for target, ids in consumed.items()},
        {target: frozenset(pending[target]) & _own(connection, run_id, target) for target in targets},
        frozenset(target for target in targets if runs.closed(connection, run_id, target)),
        files,
        batches.schemas(connection, schema_ids),
    )


def _lacks(target: str) -> ColumnElement[bool]:
    """A batch that the target has not consumed: no run took it, or some record of it is not committed yet."""
    mine = and_(_record.c.target == target, _record.c.batch_id == _batch.c.batch_id)
    return or_(~exists().where(mine), exists().where(mine, _record.c.state.in_(runs.UNCONSUMED)))


def first_lacking(connection: Connection, source: str, target: str) -> str | None:
    """See Meta.first_lacking."""
    query = select(_batch.c.batch_id).where(_batch.c.source == source, _lacks(target))
    return connection.execute(query.order_by(*batches.IN_ORDER).limit(1)).scalar_one_or_none()


def _own(connection: Connection, run_id: str, target: str) -> frozenset[str]:
    mine = and_(_record.c.run_id == run_id, _record.c.target == target, _record.c.state.in_(runs.UNCONSUMED))
    return frozenset(connection.execute(select(_record.c.batch_id).where(mine)).scalars())


def _chain(connection: Connection, source: str, first_seq: int | None) -> tuple[BatchRow, ...]:
    of_source = _batch.c.source == source
    start = select(func.max(_batch.c.begin_seq)).where(of_source)
    if first_seq is not None:
        start = start.where(_batch.c.begin_seq < first_seq)
    begin = connection.execute(start).scalar_one()
    query = select(_batch).where(of_source).order_by(*batches.IN_ORDER)
    if begin is not None:
        query = query.where(_batch.c.begin_seq >= begin)
    return tuple(batches.batch_of(row) for row in connection.execute(query))


def status(connection: Connection, pipeline: str, targets: Sequence[str]) -> Status:
    now = now_us(connection)
    failed = failures.find(connection, pipeline)
    sources = tuple(
        _source_status(connection, source, now, failed, targets)
        for source in connection.execute(
            select(_ack.c.source).where(_ack.c.pipeline == pipeline).order_by(_ack.c.source)
        ).scalars()
    )
    known = connection.execute(
        select(_record.c.target).distinct().where(_record.c.pipeline == pipeline).order_by(_record.c.target)
    ).scalars()
    names = tuple(dict.fromkeys([*targets, *known]))
    run_rows = connection.execute(
        select(tables.run)
        .where(tables.run.c.pipeline == pipeline)
        .order_by(tables.run.c.created_us.desc())
        .limit(_RECENT)
    )
    latest = connection.execute(
        select(tables.apply_ledger.c.run_id)
        .join(tables.run, tables.run.c.run_id == tables.apply_ledger.c.run_id)
        .where(tables.run.c.pipeline == pipeline)
        .order_by(tables.apply_ledger.c.closed_us.desc(), tables.apply_ledger.c.run_id.desc())
        .limit(1)
    ).scalar_one_or_none()
    held = and_(_record.c.pipeline == pipeline, _record.c.state.in_(runs.UNCONSUMED), _record.c.target.in_(targets))
    holding = connection.execute(select(_record.c.run_id).distinct().where(held)).scalars()
    return Status(
        pipeline=pipeline,
        now_us=now,
        watermark_us=min((one.checkpoint.watermark_us for one in sources), default=0),
        sources=sources,
        targets=tuple(_target_status(connection, pipeline, name) for name in names),
        runs=tuple(runs.run_of(row) for row in run_rows),
        ledgers=() if latest is None else runs.ledger(connection, latest),
        failures=failed,
        verifications=verifications.find(connection, pipeline),
        cutovers=cutovers.standing(connection, pipeline),
        holding=frozenset(holding),
        set_aside=runs.set_aside(connection),
    )


def _source_status(
    connection: Connection, source: str, now: int, failed: Sequence[Failure], targets: Sequence[str]
) -> SourceStatus:
    row = connection.execute(select(_ack).where(_ack.c.source == source)).one()
    holder, copier = leases.find(connection, source), leases.find(connection, copier_of(source))
    covered = batches.coverage(connection, source).tables
    pause = copies.paused(connection, source)
    gone = and_(_record.c.batch_id == _batch.c.batch_id, _record.c.state == RecordState.PURGED)
    totals = connection.execute(
        select(
            func.count(),
            func.coalesce(func.sum(_batch.c.row_count), 0),
            func.coalesce(func.sum(_batch.c.size_bytes), 0),
        ).where(_batch.c.source == source, ~exists().where(gone))
    ).one()
    lacking = or_(*(_lacks(target) for target in targets)) if targets else true()
    noted = connection.execute(
        select(_batch.c.notes, _batch.c.begin_seq, _batch.c.end_seq, lacking.label("lacking"))
        .where(_batch.c.source == source, _batch.c.notes != "[]")
        .order_by(_batch.c.begin_seq.desc())
        .limit(_RECENT)
    ).all()
    # What is lacking, and since when.
    open_seqs = [one.seq for one in covered.values() if not one.whole]
    latest = [row.notes for row in noted if row.lacking or any(row.begin_seq <= seq < row.end_seq for seq in open_seqs)]
    checkpoint = batches.checkpoint_of(row)
    reader = holder.holder if holder is not None and holder.expires_us > now and holder.holder else None
    ring = RingDepth() if holder is None else leases.ring_of(holder)
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
        partial={table: one for table, one in covered.items() if not one.whole},
        copies=copies.status(connection, source, covered, failed),
        copier=copier.holder if copier is not None and copier.expires_us > now and copier.holder else None,
        copies_paused_us=pause.since_us if pause is not None else 0,
        copies_paused_by=pause.holder if pause is not None else "",
    )


def _target_status(connection: Connection, pipeline: str, target: str) -> TargetStatus:
    pending = connection.execute(
        select(func.count(), func.coalesce(func.sum(_batch.c.row_count), 0)).where(
            _batch.c.pipeline == pipeline,
            ~exists().where(_record.c.target == target, _record.c.batch_id == _batch.c.batch_id),
        )
    ).one()
    oldest = connection.execute(
        select(func.min(_batch.c.window_start_us)).where(_batch.c.pipeline == pipeline, _lacks(target))
    ).scalar_one_or_none()
    by_state = connection.execute(
        select(_record.c.state, func.count(_record.c.batch_id.distinct()), func.sum(_record.c.row_count))
        .where(_record.c.target == target, _record.c.pipeline == pipeline)
        .group_by(_record.c.state)
    )
    last_error = connection.execute(
        select(_record.c.last_error)
        .where(_record.c.target == target, _record.c.pipeline == pipeline, _record.c.last_error.is_not(None))
        .order_by(_record.c.updated_us.desc())
        .limit(1)
    ).scalar_one_or_none()
    copied = connection.execute(
        select(func.coalesce(func.sum(_batch.c.row_count), 0)).where(
            _batch.c.begin_seq == _batch.c.end_seq,
            ~exists().where(_record.c.target == target, _record.c.batch_id == _batch.c.batch_id),
        )
    ).scalar_one()
    return TargetStatus(
        target,
        StateCount(int(pending[0]), int(pending[1])),
        {RecordState(row[0]): StateCount(int(row[1]), int(row[2])) for row in by_state},
        last_error,
        oldest,
        int(copied),
    )
