"""What a plan sees of a pipeline at one moment. Read only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, exists, func, or_, select

from cdc_core.meta import meta_schema
from cdc_core.meta.batches import IN_ORDER, Batches, batch_of
from cdc_core.meta.consume_records import UNCONSUMED
from cdc_core.meta.copied_batches import CopiedBatches
from cdc_core.meta.meta_rows import BatchRow, FileRow
from cdc_core.meta.positions import SourcePositions
from cdc_core.meta.repository import Repository, reads
from cdc_core.meta.run_register import RunRegister
from cdc_core.meta.schemas import SchemaVersions
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import TableSchema

_batch, _record = meta_schema.batch, meta_schema.consume_record
_ALL_TIME = 2**63 - 1


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


class PlanViews(Repository):
    @reads
    def find(
        self,
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
            checkpoint = SourcePositions(self.connection).checkpoint(source)
            if checkpoint is not None:
                checkpoints[source] = checkpoint
            lacking: dict[str, int] = {}
            held = CopiedBatches(self.connection).held_seq(source)
            for target in targets:
                in_reach = and_(_batch.c.source == source, _batch.c.window_start_us < end_us)
                if held is not None:
                    in_reach = and_(in_reach, _batch.c.begin_seq < held)
                rows = self.execute(select(_batch.c.batch_id, _batch.c.begin_seq).where(in_reach, lacks(target))).all()
                lacking |= {row.batch_id: row.begin_seq for row in rows}
                pending[target] |= {row.batch_id for row in rows}
                if window is not None:
                    done = select(_batch.c.batch_id).where(
                        in_reach, _batch.c.window_start_us >= window[0], ~lacks(target)
                    )
                    consumed[target] += self.execute(done.order_by(*IN_ORDER)).scalars()
            chain[source] = self._chain(source, min(lacking.values(), default=None))
        wanted = sorted(set().union(*pending.values()))
        files = Batches(self.connection).files(wanted)
        schema_ids = sorted({file.schema_id for of_batch in files.values() for file in of_batch})
        return PlanView(
            checkpoints,
            chain,
            {target: frozenset(ids) for target, ids in pending.items()},
            {target: tuple(ids) for target, ids in consumed.items()},
            {target: frozenset(pending[target]) & self._own(run_id, target) for target in targets},
            frozenset(target for target in targets if RunRegister(self.connection).closed(run_id, target)),
            files,
            SchemaVersions(self.connection).find(schema_ids),
        )

    @reads
    def first_lacking(self, source: str, target: str) -> str | None:
        """The id of the source's first batch that the target has not consumed."""
        query = select(_batch.c.batch_id).where(_batch.c.source == source, lacks(target))
        return self.execute(query.order_by(*IN_ORDER).limit(1)).scalar_one_or_none()

    def _own(self, run_id: str, target: str) -> frozenset[str]:
        mine = and_(_record.c.run_id == run_id, _record.c.target == target, _record.c.state.in_(UNCONSUMED))
        return frozenset(self.execute(select(_record.c.batch_id).where(mine)).scalars())

    def _chain(self, source: str, first_seq: int | None) -> tuple[BatchRow, ...]:
        of_source = _batch.c.source == source
        start = select(func.max(_batch.c.begin_seq)).where(of_source)
        if first_seq is not None:
            start = start.where(_batch.c.begin_seq < first_seq)
        begin = self.execute(start).scalar_one()
        query = select(_batch).where(of_source).order_by(*IN_ORDER)
        if begin is not None:
            query = query.where(_batch.c.begin_seq >= begin)
        return tuple(batch_of(row) for row in self.execute(query))


def lacks(target: str) -> ColumnElement[bool]:
    """A batch that the target has not consumed: no run took it, or some record of it is not committed yet."""
    mine = and_(_record.c.target == target, _record.c.batch_id == _batch.c.batch_id)
    return or_(~exists().where(mine), exists().where(mine, _record.c.state.in_(UNCONSUMED)))
