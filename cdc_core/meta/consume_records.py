"""Consume records: which run works on which batch for which target, and what is final.

Keeps true: a record moves only as run_states.py draws it, only by the run whose id it carries, and all of a run's
records for a target move in one transaction or none does. What another run has committed meanwhile counts as done and
is left alone; what another run has taken over and not committed keeps the run that lost it from committing the rest.
Locks are taken in one order (run, then records by batch and table), so that runs wait rather than deadlock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Row, bindparam, exists, insert, or_, select, update

from cdc_core.errors import BatchesTaken, Refused, RetryLater, defect
from cdc_core.meta.copied_batches import CopiedBatches
from cdc_core.meta.meta_rows import BatchRow, Claim, RecordRow
from cdc_core.meta.meta_schema import consume_record as _record
from cdc_core.meta.repository import Repository, reads, slices, value_of, writes
from cdc_core.meta.run_states import RecordState, before
from cdc_core.model.position import Position

_SEEDED = "seeded"

UNCONSUMED = tuple(state.value for state in RecordState if not state.consumed)


class ConsumeRecords(Repository):
    @reads
    def find(self, target: str, batch_ids: Sequence[str], *, lock: bool = False) -> tuple[RecordRow, ...]:
        """The target's records of these batches, by batch and table."""
        records = []
        ordered = sorted(batch_ids)
        for part in slices(ordered):
            chosen = (_record.c.target == target) & _record.c.batch_id.in_(part)
            query = select(_record).where(chosen).order_by(_record.c.batch_id, _record.c.table_name)
            records += [record_of(row) for row in self.execute(query.with_for_update() if lock else query)]
        return tuple(records)

    @reads
    def committed_by(self, run_id: str, target: str) -> tuple[str, ...]:
        """The batches that a run has committed for a target, in stream order of each source; none of a replay."""
        mine = (_record.c.run_id == run_id) & (_record.c.target == target) & _record.c.state.not_in(UNCONSUMED)
        return tuple(
            self.execute(select(_record.c.batch_id).distinct().where(mine).order_by(_record.c.batch_id)).scalars()
        )

    @reads
    def left_out(self, target: str, names: Collection[str]) -> dict[str, list[str]]:
        """The batches that the target has consumed without one of these tables, by table, in stream order."""
        mine = (_record.c.target == target) & _record.c.taken.is_(False) & _record.c.state.not_in(UNCONSUMED)
        query = select(_record.c.table_name, _record.c.batch_id).where(mine, _record.c.table_name.in_(sorted(names)))
        found: dict[str, list[str]] = {}
        for table, batch_id in self.execute(query.order_by(_record.c.begin_seq, _record.c.batch_id)):
            found.setdefault(table, []).append(batch_id)
        return found

    @writes
    def take(self, target: str, batches: Mapping[str, Collection[str]]) -> None:
        """The target now has the changes of these tables, although it consumed the batches without them."""
        for table, ids in batches.items():
            ordered = sorted(ids)
            mine = (_record.c.target == target) & (_record.c.table_name == table) & _record.c.taken.is_(False)
            for part in slices(ordered):
                some = _record.c.batch_id.in_(part)
                self.execute(update(_record).where(mine, some, _record.c.state.not_in(UNCONSUMED)).values(taken=True))

    def claim(self, run_id: str, target: str, claims: Sequence[Claim]) -> None:
        """Makes a run the owner of these records, of which none is committed. Raises RetryLater (run.taken_over)."""
        now = self.now_us()
        ids = sorted({claim.batch_id for claim in claims})
        records = {(row.batch_id, row.table): row for row in self.find(target, ids, lock=True)}
        done = next((row for row in records.values() if row.state.consumed), None)
        if done is not None:
            raise BatchesTaken(
                f"The run {done.run_id!r} committed the batch {done.batch_id} for {target!r} while this run was "
                "planned.",
                where=run_id,
                remedy="nothing has moved; plan again",
            )
        fresh = [claim for claim in claims if (claim.batch_id, claim.table) not in records]
        taken = [claim for claim in claims if (claim.batch_id, claim.table) in records]
        if fresh:
            self.execute(
                insert(_record),
                [
                    {
                        "target": target,
                        "batch_id": claim.batch_id,
                        "table_name": claim.table,
                        "source": claim.source,
                        "begin_seq": claim.begin_seq,
                        "row_count": claim.rows,
                        "taken": claim.taken,
                        "state": RecordState.STAGED,
                        "run_id": run_id,
                        "created_us": now,
                        "updated_us": now,
                    }
                    for claim in sorted(fresh, key=lambda claim: (claim.batch_id, claim.table))
                ],
            )
        if taken:
            self.execute(
                update(_record)
                .where(
                    _record.c.target == target,
                    _record.c.batch_id == bindparam("of_batch"),
                    _record.c.table_name == bindparam("of_table"),
                    or_(*(_record.c.state == state for state in UNCONSUMED)),  # no IN list in an executemany
                )
                .values(
                    run_id=run_id,
                    taken=bindparam("is_taken"),
                    last_error=None,
                    updated_us=now,
                ),
                [{"of_batch": claim.batch_id, "of_table": claim.table, "is_taken": claim.taken} for claim in taken],
            )

    def move(self, run_id: str, target: str, batch_ids: Sequence[str], goal: RecordState) -> int:
        """Move the run's records of these batches one step to `goal`; how many moved (0: they had been there before).

        The run's row is locked.
        """
        rows = self.find(target, batch_ids, lock=True)
        missing = set(batch_ids) - {row.batch_id for row in rows}
        if missing:
            raise unplanned(run_id, target, f"batch {min(missing)} was not claimed by it")
        open_rows = [row for row in rows if not row.state.consumed]
        own = [row for row in open_rows if row.run_id == run_id]
        lost = next((row for row in open_rows if row.run_id != run_id), None)
        if lost is not None and goal is RecordState.COMMITTED:
            raise RetryLater(
                f"The run {lost.run_id!r} has taken over the batch {lost.batch_id} of target {target!r} from "
                f"{run_id!r}.",
                where=run_id,
                code="run.taken_over",
                remedy="nothing has moved, and nothing is lost: once that run commits, a retry of this one finds the "
                "work done; if that run is dead, clear this one from its plan task on",
            )
        origin = before(goal)
        early = next((row for row in own if row.state not in (origin, goal)), None)
        if early is not None and goal is RecordState.COMMITTED:
            raise Refused(
                f"The batch {early.batch_id} of target {target!r} is {early.state}: the write task of run {run_id!r} "
                "has not finished.",
                where=run_id,
                code="run.clear_task",
                remedy="clear the run from its write task on",
            )
        now, moved = self.now_us(), 0
        due = sorted({row.batch_id for row in own if row.state is origin})
        for part in slices(due):
            changed = self.execute(
                update(_record)
                .where(
                    _record.c.target == target,
                    _record.c.batch_id.in_(part),
                    _record.c.run_id == run_id,
                    _record.c.state == origin,
                )
                .values(state=goal, last_error=None, updated_us=now)
            )
            moved += changed.rowcount
        expected = sum(row.state is origin for row in own)
        if moved != expected:
            raise defect(
                f"{moved} records of run {run_id!r} would have moved to {goal}, but {expected} were locked.",
                where=target,
                first="nothing has moved",
            )
        return moved

    @writes
    def purge(
        self,
        source: str,
        end: Position,
        batch_ids: Sequence[str],
        *,
        targets: Sequence[str],
        copied: Collection[str],
    ) -> int:
        """COMMITTED → PURGED for all of them and all of these targets; how many records moved. Again: 0, no change.

        end: where the last of the batches ends. copied: ids of later batches of copied rows; these need none of them.

        Raises Refused (stage.not_committed) when a target has not committed one of them, or any still works on it;
        RetryLater (lease.lost) when rows that need one of them were copied meanwhile, or still are."""
        CopiedBatches(self.connection).mark_purged(source, end, copied)
        moved, now = 0, self.now_us()
        ordered = sorted(batch_ids)
        for some in slices(ordered):
            held = select(_record).where(_record.c.batch_id.in_(some))
            rows = [record_of(row) for row in self.execute(held.with_for_update())]
            consumed = {(row.target, row.batch_id) for row in rows if row.state.consumed}
            open_ = {(row.target, row.batch_id): row.state for row in rows if not row.state.consumed}
            lacking = [(target, one) for target in targets for one in some if (target, one) not in consumed]
            if open_ or lacking:
                target, batch_id = [*open_, *lacking][0]
                raise Refused(
                    f"The target {target!r} has not committed the batch {batch_id}: it is "
                    f"{open_.get((target, batch_id), 'not taken by any run')}.",
                    where=target,
                    code="stage.not_committed",
                    remedy="nothing was purged; let the target's run finish, then purge again",
                )
            changed = self.execute(
                update(_record)
                .where(_record.c.batch_id.in_(some), _record.c.state == RecordState.COMMITTED)
                .values(state=RecordState.PURGED, updated_us=now)
            )
            moved += changed.rowcount
        return moved

    @writes
    def seed(self, target: str, batches: Sequence[BatchRow]) -> int:
        """Count batches as PURGED for a target that was filled by other means; how many of them had no record."""
        batch_ids = {row.batch_id for row in self.find(target, [batch.batch_id for batch in batches], lock=True)}
        now = self.now_us()
        fresh = [
            {
                "target": target,
                "batch_id": batch.batch_id,
                "table_name": "",
                "source": batch.source,
                "begin_seq": batch.begin.seq,
                "row_count": batch.rows,
                "taken": False,
                "state": RecordState.PURGED,
                "run_id": _SEEDED,
                "created_us": now,
                "updated_us": now,
            }
            for batch in batches
            if batch.batch_id not in batch_ids
        ]
        if fresh:
            self.execute(insert(_record), fresh)
        return len(fresh)

    @reads
    def seeded(self, target: str) -> bool:
        """Whether `seed` has counted batches for the target."""
        mine = exists().where(_record.c.target == target, _record.c.run_id == _SEEDED)
        return bool(self.execute(select(mine)).scalar_one())

    @reads
    def holder(self, batch_ids: Sequence[str]) -> tuple[str, str] | None:
        """A target and its run that hold one of these batches and have not committed it; None if there is none."""
        for part in slices(batch_ids):
            some = _record.c.batch_id.in_(part)
            query = select(_record.c.target, _record.c.run_id).where(some, _record.c.state.in_(UNCONSUMED))
            row = self.execute(query.limit(1)).one_or_none()
            if row is not None:
                return row.target, row.run_id
        return None


def unplanned(run_id: str, target: str, why: str) -> Refused:
    """The error for a task of a run that its plan knows nothing of."""
    return Refused(
        f"The run {run_id!r} has no claim on target {target!r}: {why}.",
        where=run_id,
        code="run.clear_task",
        remedy="clear the run from its plan task on",
    )


def record_of(row: Row[tuple[object, ...]]) -> RecordRow:
    return value_of(RecordRow, row, table=row.table_name, rows=row.row_count, state=RecordState(row.state))
