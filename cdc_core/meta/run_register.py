"""Runs: each is planned, moves its consume records (ConsumeRecords), and ends with a closed ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Row, exists, insert, select, update

from cdc_core.errors import Refused, UsageError, defect
from cdc_core.meta import meta_schema
from cdc_core.meta.consume_records import UNCONSUMED, ConsumeRecords, unplanned
from cdc_core.meta.ledgers import Ledgers
from cdc_core.meta.meta_rows import NOTHING_LOST, Claim, PlannedRun, RunRow, StillLost
from cdc_core.meta.repository import Repository, reads, value_of, writes
from cdc_core.meta.run_states import RecordState, RunState, run_may_move
from cdc_core.meta.target_writes import TargetWrites
from cdc_core.meta.task_failures import PLAN, RUN, TaskFailures
from cdc_core.model.run_plan import LedgerEntry, WriteCounts

_run, _record = meta_schema.run, meta_schema.consume_record
_ERROR_CHARS = 4000
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class RunRegister(Repository):
    @reads
    def find(self, run_id: str, *, lock: bool = False) -> RunRow | None:
        query = select(_run).where(_run.c.run_id == run_id)
        row = self.execute(query.with_for_update() if lock else query).one_or_none()
        return None if row is None else run_of(row)

    @writes
    def mark_applied(self, run_id: str, target: str, batch_ids: Sequence[str]) -> int:
        """STAGED → APPLIED for all records that no other run has taken over; how many moved.

        Raises Refused (run.clear_task).
        """
        self._require_planned(run_id, target)
        return ConsumeRecords(self.connection).move(run_id, target, batch_ids, RecordState.APPLIED)

    @writes
    def claim(self, run: PlannedRun, claims: Sequence[Claim]) -> None:
        """Registers a run, and makes it the owner of these records: new ones STAGED, others in the state they have. A
        record that another run has not committed is taken over (run_states).

        Raises RetryLater (run.taken_over) when one of them is committed, Refused (usage.argument).
        """
        now = self.now_us()
        row = self.find(run.run_id, lock=True)
        if row is not None and row.window != run.window:
            raise UsageError(
                f"The run {run.run_id!r} exists for window {row.window}, not for {run.window}.",
                where=run.run_id,
                code="usage.argument",
                remedy="use another run id for another window",
            )
        state = RunState.PLANNED if claims or run.replays else RunState.COMMITTED
        if row is None:
            start, end = run.window or (None, None)
            self.execute(
                insert(_run).values(
                    run_id=run.run_id,
                    window_start_us=start,
                    window_end_us=end,
                    state=state,
                    plan_path=run.plan_path,
                    plan_sha256=run.plan_sha256,
                    airflow_run_id=run.airflow_run_id,
                    by_driver=run.by_driver,
                    created_us=now,
                    updated_us=now,
                )
            )
        else:
            self._move(
                row,
                state,
                now,
                plan_path=run.plan_path,
                plan_sha256=run.plan_sha256,
                by_driver=run.by_driver,
                last_error=None,
            )
        if not run.replays:
            TaskFailures(self.connection).clear(PLAN, "")
        for target in sorted({claim.target for claim in claims}):
            ConsumeRecords(self.connection).claim(
                run.run_id, target, [claim for claim in claims if claim.target == target]
            )

    @writes
    def commit(
        self,
        run_id: str,
        target: str,
        batch_ids: Sequence[str],
        entries: Sequence[LedgerEntry],
        shards: Sequence[WriteCounts],
        *,
        plan: tuple[str, str] | None = None,
        spans: Mapping[str, Mapping[str, tuple[str, str]]] = _NOTHING,
        lost: StillLost = NOTHING_LOST,
    ) -> int:
        """APPLIED → COMMITTED for all of them, together with the ledger; how many moved. Again: 0, no change.

        plan: path and sha256 of the one that was carried out: no other may be registered by now. spans: RunPlan.spans.
        lost: as in TargetWrites.keep.
        Raises RetryLater (run.taken_over), Refused (run.clear_task)."""
        if plan is not None:
            require_plan(self.find(run_id, lock=True), run_id, *plan)
        self._require_planned(run_id, target)
        moved = ConsumeRecords(self.connection).move(run_id, target, batch_ids, RecordState.COMMITTED)
        if not moved and Ledgers(self.connection).find(run_id, target):
            return 0
        Ledgers(self.connection).close(run_id, target, entries, shards, spans)
        TargetWrites(self.connection).keep(target, run_id, shards, lost)
        open_records = exists().where(_record.c.run_id == run_id, _record.c.state.in_(UNCONSUMED))
        row = self.find(run_id, lock=True)
        if row is not None and not self.execute(select(open_records)).scalar_one():
            self._move(row, RunState.COMMITTED, self.now_us(), last_error=None)
        return moved

    def closed(self, run_id: str, target: str) -> bool:
        """Whether this run has committed this target: it then takes no further batches for it."""
        of_run = (_record.c.run_id == run_id) & (_record.c.target == target) & _record.c.state.not_in(UNCONSUMED)
        if self.execute(select(exists().where(of_run))).scalar_one():
            return True
        return bool(Ledgers(self.connection).find(run_id, target))

    @reads
    def finished(self, before_us: int) -> tuple[str, ...]:
        """Runs that committed before a time, and whose rows set aside no target lacks any more."""
        query = select(_run.c.run_id).where(self._ended(before_us)).order_by(_run.c.run_id)
        return tuple(self.execute(query).scalars())

    @reads
    def unfinished(self, since_us: int) -> tuple[RunRow, ...]:
        """Runs that are not committed and were planned, or failed, since a time."""
        still = (_run.c.state != RunState.COMMITTED) & (_run.c.updated_us >= since_us)
        return tuple(run_of(row) for row in self.execute(select(_run).where(still).order_by(_run.c.run_id)))

    @reads
    def holding(self, targets: Sequence[str]) -> frozenset[str]:
        """Runs that have batches for one of these targets and have not committed them."""
        held = _record.c.state.in_(UNCONSUMED) & _record.c.target.in_(targets)
        return frozenset(self.execute(select(_record.c.run_id).distinct().where(held)).scalars())

    def _ended(self, before_us: int) -> ColumnElement[bool]:
        """The condition for runs that committed before a time, and whose rows set aside no target lacks any more."""
        lacking = {rejected.run_id for rejected in Ledgers(self.connection).set_aside()}
        old = (_run.c.state == RunState.COMMITTED) & (_run.c.updated_us < before_us)
        return old & _run.c.run_id.not_in(lacking)

    @writes
    def record_failure(self, run_id: str, error: str, *, target: str | None = None) -> None:
        """Keep why a task of the run failed; states stay. Does nothing for a run that has committed."""
        row = self.find(run_id, lock=True)
        if row is None or row.state is RunState.COMMITTED:
            return
        now, error = self.now_us(), error[:_ERROR_CHARS]
        self._move(row, RunState.FAILED, now, last_error=error)
        mine = (_record.c.run_id == run_id) & _record.c.state.in_(UNCONSUMED)
        if target is not None:
            mine &= _record.c.target == target
        self.execute(update(_record).where(mine).values(last_error=error, updated_us=now))

    @writes
    def forget(self, before_us: int, *, dry_run: bool = False) -> int:
        """Drops the `finished` ones of before a time, with their ledgers; how many runs."""
        return self.delete(_run, self._ended(before_us), (meta_schema.apply_ledger,), dry_run=dry_run)

    def _require_planned(self, run_id: str, target: str) -> None:
        """Locks the run's row. Raises Refused (run.clear_task)."""
        if self.find(run_id, lock=True) is None:
            raise unplanned(run_id, target, "no plan of this run was registered")

    def _move(self, row: RunRow, goal: RunState, now: int, **values: str | bool | None) -> None:
        if not run_may_move(row.state, goal):
            raise defect(
                f"A run cannot move from {row.state} to {goal}.",
                where=row.run_id,
            )
        self.execute(update(_run).where(_run.c.run_id == row.run_id).values(state=goal, updated_us=now, **values))
        if goal is not RunState.FAILED:
            TaskFailures(self.connection).clear(RUN, row.run_id)


def require_plan(row: RunRow | None, run_id: str, path: str, sha256: str) -> None:
    """row: what meta has of the run. path, sha256: of the plan that a task works on. Raises Refused
    (run.clear_task)."""
    if row is None or row.plan_sha256 != sha256:
        raise Refused(
            f"The plan of run {run_id!r} differs from the one that is registered in meta.",
            where=path,
            code="run.clear_task",
            remedy="clear the run from its plan task on; the guard in the target makes a repeated write harmless",
        )


def run_of(row: Row[tuple[object, ...]]) -> RunRow:
    window = None if row.window_start_us is None else (row.window_start_us, row.window_end_us)
    return value_of(RunRow, row, window=window, state=RunState(row.state), by_driver=bool(row.by_driver))
