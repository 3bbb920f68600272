"""Runs and their consume records: which run works on which batch for which target, and what is final.

Keeps true: a record moves only as states.py draws it, only by the run whose id it carries, and all of a run's records
for a target move in one transaction or none does. What another run has committed meanwhile counts as done and is left
alone; what another run has taken over and not committed keeps the run that lost it from committing the rest.
Locks are taken in one order (run, then records by batch and table), so that runs wait rather than deadlock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, Row, bindparam, exists, insert, or_, select, update

from cdc_core.errors import BatchesTaken, Refused, RetryLater, UsageError, defect
from cdc_core.meta import failures, layouts, tables, writes
from cdc_core.meta.database import now_us
from cdc_core.meta.rows import BatchRow, Claim, LedgerRow, PlannedRun, RecordRow, Renewals, RunRow, SetAside
from cdc_core.meta.states import RecordState, RunState, before, run_may_move
from cdc_core.model.run import LedgerEntry, WriteCounts

_run, _record, _ledger = tables.run, tables.consume_record, tables.apply_ledger
_CHUNK = 500
_ERROR_CHARS = 4000
_SEEDED = "seeded"
_LEDGER_FIGURES = ("staged_rows", "key_changes", "winners", "superseded", "written", "stale", "absent")

UNCONSUMED = tuple(state.value for state in RecordState if not state.consumed)


def find(connection: Connection, run_id: str, *, lock: bool = False) -> RunRow | None:
    query = select(_run).where(_run.c.run_id == run_id)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else run_of(row)


def records(
    connection: Connection, target: str, batch_ids: Sequence[str], *, lock: bool = False
) -> tuple[RecordRow, ...]:
    """The target's records of these batches, by batch and table."""
    found = []
    ordered = sorted(batch_ids)
    for start in range(0, len(ordered), _CHUNK):
        chosen = (_record.c.target == target) & _record.c.batch_id.in_(ordered[start : start + _CHUNK])
        query = select(_record).where(chosen).order_by(_record.c.batch_id, _record.c.table_name)
        found += [record_of(row) for row in connection.execute(query.with_for_update() if lock else query)]
    return tuple(found)


def committed_by(connection: Connection, run_id: str, target: str) -> tuple[str, ...]:
    """See Meta.committed_by."""
    mine = (_record.c.run_id == run_id) & (_record.c.target == target) & _record.c.state.not_in(UNCONSUMED)
    return tuple(
        connection.execute(select(_record.c.batch_id).distinct().where(mine).order_by(_record.c.batch_id)).scalars()
    )


def left_out(connection: Connection, target: str, names: Collection[str]) -> dict[str, list[str]]:
    """See Meta.left_out."""
    mine = (_record.c.target == target) & _record.c.taken.is_(False) & _record.c.state.not_in(UNCONSUMED)
    query = select(_record.c.table_name, _record.c.batch_id).where(mine, _record.c.table_name.in_(sorted(names)))
    found: dict[str, list[str]] = {}
    for table, batch_id in connection.execute(query.order_by(_record.c.begin_seq, _record.c.batch_id)):
        found.setdefault(table, []).append(batch_id)
    return found


def take(connection: Connection, target: str, batches: Mapping[str, Collection[str]]) -> None:
    """See Meta.take."""
    for table, ids in batches.items():
        ordered = sorted(ids)
        mine = (_record.c.target == target) & (_record.c.table_name == table) & _record.c.taken.is_(False)
        for start in range(0, len(ordered), _CHUNK):
            some = _record.c.batch_id.in_(ordered[start : start + _CHUNK])
            connection.execute(update(_record).where(mine, some, _record.c.state.not_in(UNCONSUMED)).values(taken=True))


def claim(connection: Connection, run: PlannedRun, claims: Sequence[Claim]) -> None:
    """See Meta.claim. A record that another run has not committed is taken over (`states`)."""
    for target, wanted in run.layouts.items():
        layouts.require(connection, target, wanted)
    now = now_us(connection)
    known = find(connection, run.run_id, lock=True)
    if known is not None and (known.pipeline, known.window) != (run.pipeline, run.window):
        raise UsageError(
            f"The run {run.run_id!r} exists for pipeline {known.pipeline!r} and window {known.window}, "
            f"not for {run.pipeline!r} and {run.window}.",
            where=run.run_id,
            code="usage.argument",
            remedy="use another run id for another window",
        )
    state = RunState.PLANNED if claims or run.replays else RunState.COMMITTED
    if known is None:
        start, end = run.window or (None, None)
        connection.execute(
            insert(_run).values(
                run_id=run.run_id,
                pipeline=run.pipeline,
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
        _move_run(
            connection, known, state, now, plan_path=run.plan_path, plan_sha256=run.plan_sha256,
            by_driver=run.by_driver, last_error=None,
        )  # fmt: skip
    if not run.replays:
        failures.clear(connection, run.pipeline, failures.PLAN, "")
    for target in sorted({one.target for one in claims}):
        _claim_records(connection, run, target, [one for one in claims if one.target == target], now)


def _claim_records(connection: Connection, run: PlannedRun, target: str, claims: Sequence[Claim], now: int) -> None:
    ids = sorted({one.batch_id for one in claims})
    known = {(row.batch_id, row.table): row for row in records(connection, target, ids, lock=True)}
    done = next((row for row in known.values() if row.state.consumed), None)
    if done is not None:
        raise BatchesTaken(
            f"The run {done.run_id!r} committed the batch {done.batch_id} for {target!r} while this run was planned.",
            where=run.run_id,
            remedy="nothing has moved; plan again",
        )
    fresh = [one for one in claims if (one.batch_id, one.table) not in known]
    taken = [one for one in claims if (one.batch_id, one.table) in known]
    if fresh:
        connection.execute(
            insert(_record),
            [
                {
                    "target": target,
                    "batch_id": one.batch_id,
                    "table_name": one.table,
                    "pipeline": run.pipeline,
                    "source": one.source,
                    "begin_seq": one.begin_seq,
                    "row_count": one.rows,
                    "taken": one.taken,
                    "state": RecordState.STAGED,
                    "run_id": run.run_id,
                    "attempts": 1,
                    "created_us": now,
                    "updated_us": now,
                }
                for one in sorted(fresh, key=lambda one: (one.batch_id, one.table))
            ],
        )
    if taken:
        connection.execute(
            update(_record)
            .where(
                _record.c.target == target,
                _record.c.batch_id == bindparam("of_batch"),
                _record.c.table_name == bindparam("of_table"),
                or_(*(_record.c.state == state for state in UNCONSUMED)),  # no IN list in an executemany
            )
            .values(
                run_id=run.run_id,
                attempts=_record.c.attempts + 1,
                taken=bindparam("is_taken"),
                last_error=None,
                updated_us=now,
            ),
            [{"of_batch": one.batch_id, "of_table": one.table, "is_taken": one.taken} for one in taken],
        )


def move(connection: Connection, run_id: str, target: str, batch_ids: Sequence[str], goal: RecordState) -> int:
    """Move the run's records of these batches one step to `goal`; how many moved (0: they had been there before)."""
    if find(connection, run_id, lock=True) is None:
        raise _unplanned(run_id, target, "no plan of this run was registered")
    rows = records(connection, target, batch_ids, lock=True)
    missing = set(batch_ids) - {row.batch_id for row in rows}
    if missing:
        raise _unplanned(run_id, target, f"batch {min(missing)} was not claimed by it")
    open_rows = [row for row in rows if not row.state.consumed]
    own = [row for row in open_rows if row.run_id == run_id]
    lost = next((row for row in open_rows if row.run_id != run_id), None)
    if lost is not None and goal is RecordState.COMMITTED:
        raise RetryLater(
            f"The run {lost.run_id!r} has taken over the batch {lost.batch_id} of target {target!r} from {run_id!r}.",
            where=run_id,
            code="run.taken_over",
            remedy="nothing has moved, and nothing is lost: once that run commits, a retry of this one finds the work "
            "done; if that run is dead, clear this one from its plan task on",
        )
    origin = before(goal)
    early = next((row for row in own if row.state not in (origin, goal)), None)
    if early is not None and goal is RecordState.COMMITTED:
        raise Refused(
            f"The batch {early.batch_id} of target {target!r} is {early.state}: the write task of run {run_id!r} has "
            "not finished.",
            where=run_id,
            code="run.clear_task",
            remedy="clear the run from its write task on",
        )
    now, moved = now_us(connection), 0
    due = sorted({row.batch_id for row in own if row.state is origin})
    for start in range(0, len(due), _CHUNK):
        changed = connection.execute(
            update(_record)
            .where(
                _record.c.target == target,
                _record.c.batch_id.in_(due[start : start + _CHUNK]),
                _record.c.run_id == run_id,
                _record.c.state == origin,
            )
            .values(state=goal, last_error=None, updated_us=now)
        )
        moved += changed.rowcount
    expected = sum(row.state is origin for row in own)
    if moved != expected:
        raise defect(
            f"{moved} records of run {run_id!r} would have moved to {goal}, {expected} were locked.",
            where=target,
            first="nothing has moved",
        )
    return moved


def require_plan(known: RunRow | None, run_id: str, path: str, sha256: str) -> None:
    """known: what meta has of the run. path, sha256: of the plan that a task works on. Raises Refused
    (run.clear_task)."""
    if known is None or known.plan_sha256 != sha256:
        raise Refused(
            f"The plan of run {run_id!r} differs from the one that is registered in meta.",
            where=path,
            code="run.clear_task",
            remedy="clear the run from its plan task on; the guard in the target makes a repeated write harmless",
        )


def close(
    connection: Connection,
    run_id: str,
    target: str,
    batch_ids: Sequence[str],
    entries: Sequence[LedgerEntry],
    shards: Sequence[WriteCounts],
    *,
    plan: tuple[str, str] | None,
    spans: Mapping[str, Mapping[str, tuple[str, str]]],
    lost: Mapping[str, Collection[str]],
    renewed: Renewals,
) -> int:
    """See Meta.commit_run."""
    if plan is not None:
        require_plan(find(connection, run_id, lock=True), run_id, *plan)
    moved = move(connection, run_id, target, batch_ids, RecordState.COMMITTED)
    now = now_us(connection)
    if not moved and ledger(connection, run_id, target):
        return 0
    if entries:
        connection.execute(
            insert(_ledger),
            [
                {
                    "run_id": run_id,
                    "target": target,
                    "table_name": entry.table,
                    **{figure: getattr(entry, figure) for figure in _LEDGER_FIGURES},
                    "shards": json.dumps([asdict(one) for one in shards if one.table == entry.table]),
                    "closed_us": now,
                    "spans": json.dumps(spans.get(entry.table, {})),
                    "set_aside": sum(one.quarantined for one in shards if one.table == entry.table),
                }
                for entry in entries
            ],
        )
    _settle_repeated(connection, run_id, target, spans)
    writes.keep(connection, target, run_id, shards, lost=lost, renewed=renewed)
    open_records = exists().where(_record.c.run_id == run_id, _record.c.state.in_(UNCONSUMED))
    known = find(connection, run_id, lock=True)
    if known is not None and not connection.execute(select(open_records)).scalar_one():
        _move_run(connection, known, RunState.COMMITTED, now, last_error=None)
    return moved


def set_aside(connection: Connection, target: str | None = None) -> tuple[SetAside, ...]:
    """See Meta.set_aside."""
    query = select(_ledger).where(_ledger.c.set_aside > 0).order_by(_ledger.c.closed_us, _ledger.c.table_name)
    return tuple(
        SetAside(row.run_id, row.target, row.table_name, row.set_aside, row.closed_us)
        for row in connection.execute(query if target is None else query.where(_ledger.c.target == target))
    )


def settle(connection: Connection, target: str, run_id: str | None, table: str | None, before_us: int | None) -> None:
    """See Meta.settle."""
    mine = (_ledger.c.target == target) & (_ledger.c.set_aside > 0)
    for column, value in ((_ledger.c.run_id, run_id), (_ledger.c.table_name, table)):
        mine = mine if value is None else mine & (column == value)
    if before_us is not None:
        mine &= _ledger.c.closed_us < before_us
    connection.execute(update(_ledger).where(mine).values(set_aside=0))


def _settle_repeated(
    connection: Connection, run_id: str, target: str, spans: Mapping[str, Mapping[str, tuple[str, str]]]
) -> None:
    """Rows set aside from batches that this run has taken again: its own ledger says which are lacking now."""
    query = select(_ledger).where(_ledger.c.target == target, _ledger.c.set_aside > 0, _ledger.c.run_id != run_id)
    for row in connection.execute(query).all():
        taken, former = spans.get(row.table_name, {}), json.loads(row.spans or "{}")
        whole = [taken[one] for one in former if one in taken]
        if len(whole) == len(former) and all(
            first <= begin and end <= last for (first, last), (begin, end) in zip(whole, former.values(), strict=True)
        ):
            settle(connection, target, row.run_id, row.table_name, None)


def purge(connection: Connection, targets: Sequence[str], batch_ids: Sequence[str]) -> int:
    """See Meta.purge."""
    moved, now = 0, now_us(connection)
    ordered = sorted(batch_ids)
    for start in range(0, len(ordered), _CHUNK):
        some = ordered[start : start + _CHUNK]
        held = select(_record).where(_record.c.batch_id.in_(some))
        rows = [record_of(row) for row in connection.execute(held.with_for_update())]
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
        changed = connection.execute(
            update(_record)
            .where(_record.c.batch_id.in_(some), _record.c.state == RecordState.COMMITTED)
            .values(state=RecordState.PURGED, updated_us=now)
        )
        moved += changed.rowcount
    return moved


def seed(connection: Connection, target: str, batches: Sequence[BatchRow]) -> int:
    """See Meta.seed."""
    known = {row.batch_id for row in records(connection, target, [one.batch_id for one in batches], lock=True)}
    now = now_us(connection)
    fresh = [
        {
            "target": target,
            "batch_id": one.batch_id,
            "table_name": "",
            "pipeline": one.pipeline,
            "source": one.source,
            "begin_seq": one.begin.seq,
            "row_count": one.rows,
            "taken": False,
            "state": RecordState.PURGED,
            "run_id": _SEEDED,
            "attempts": 0,
            "created_us": now,
            "updated_us": now,
        }
        for one in batches
        if one.batch_id not in known
    ]
    if fresh:
        connection.execute(insert(_record), fresh)
    return len(fresh)


def seeded(connection: Connection, target: str) -> bool:
    """See Meta.seeded."""
    mine = exists().where(_record.c.target == target, _record.c.run_id == _SEEDED)
    return bool(connection.execute(select(mine)).scalar_one())


def finished(connection: Connection, pipeline: str, before_us: int) -> tuple[str, ...]:
    """See Meta.finished_runs."""
    query = select(_run.c.run_id).where(ended(connection, pipeline, before_us)).order_by(_run.c.run_id)
    return tuple(connection.execute(query).scalars())


def ended(connection: Connection, pipeline: str, before_us: int) -> ColumnElement[bool]:
    """Of runs: committed before a time, and no target lacks rows that they set aside."""
    lacking = {one.run_id for one in set_aside(connection)}
    old = (_run.c.pipeline == pipeline) & (_run.c.state == RunState.COMMITTED) & (_run.c.updated_us < before_us)
    return old & _run.c.run_id.not_in(lacking)


def unfinished(connection: Connection, pipeline: str, since_us: int) -> tuple[RunRow, ...]:
    """See Meta.unfinished_runs."""
    still = (_run.c.pipeline == pipeline) & (_run.c.state != RunState.COMMITTED) & (_run.c.updated_us >= since_us)
    return tuple(run_of(row) for row in connection.execute(select(_run).where(still).order_by(_run.c.run_id)))


def holder(connection: Connection, batch_ids: Sequence[str]) -> tuple[str, str] | None:
    """See Meta.holder."""
    for start in range(0, len(batch_ids), _CHUNK):
        some = _record.c.batch_id.in_(batch_ids[start : start + _CHUNK])
        query = select(_record.c.target, _record.c.run_id).where(some, _record.c.state.in_(UNCONSUMED))
        row = connection.execute(query.limit(1)).one_or_none()
        if row is not None:
            return row.target, row.run_id
    return None


def record_failure(connection: Connection, run_id: str, target: str | None, error: str) -> None:
    """See Meta.record_failure."""
    known = find(connection, run_id, lock=True)
    if known is None or known.state is RunState.COMMITTED:
        return
    now, error = now_us(connection), error[:_ERROR_CHARS]
    _move_run(connection, known, RunState.FAILED, now, last_error=error)
    mine = (_record.c.run_id == run_id) & _record.c.state.in_(UNCONSUMED)
    if target is not None:
        mine &= _record.c.target == target
    connection.execute(update(_record).where(mine).values(last_error=error, updated_us=now))


def closed(connection: Connection, run_id: str, target: str) -> bool:
    """Whether this run has committed this target: it then takes no further batches for it."""
    of_run = (_record.c.run_id == run_id) & (_record.c.target == target) & _record.c.state.not_in(UNCONSUMED)
    if connection.execute(select(exists().where(of_run))).scalar_one():
        return True
    return bool(ledger(connection, run_id, target))


def ledger(connection: Connection, run_id: str, target: str | None = None) -> tuple[LedgerRow, ...]:
    """A run's ledger, of one target or of all, by target and table; empty before its commit."""
    query = select(_ledger).where(_ledger.c.run_id == run_id)
    if target is not None:
        query = query.where(_ledger.c.target == target)
    return tuple(ledger_of(row) for row in connection.execute(query.order_by(_ledger.c.target, _ledger.c.table_name)))


def _move_run(connection: Connection, known: RunRow, goal: RunState, now: int, **values: str | bool | None) -> None:
    if not run_may_move(known.state, goal):
        raise defect(
            f"A run cannot move from {known.state} to {goal}.",
            where=known.run_id,
        )
    connection.execute(update(_run).where(_run.c.run_id == known.run_id).values(state=goal, updated_us=now, **values))
    if goal is not RunState.FAILED:
        failures.clear(connection, known.pipeline, failures.RUN, known.run_id)


def _unplanned(run_id: str, target: str, why: str) -> Refused:
    return Refused(
        f"The run {run_id!r} has no claim on target {target!r}: {why}.",
        where=run_id,
        code="run.clear_task",
        remedy="clear the run from its plan task on",
    )


def run_of(row: Row[tuple[object, ...]]) -> RunRow:
    window = None if row.window_start_us is None else (row.window_start_us, row.window_end_us)
    return RunRow(
        run_id=row.run_id,
        pipeline=row.pipeline,
        window=window,
        state=RunState(row.state),
        plan_path=row.plan_path,
        plan_sha256=row.plan_sha256,
        airflow_run_id=row.airflow_run_id,
        by_driver=bool(row.by_driver),
        last_error=row.last_error,
        created_us=row.created_us,
        updated_us=row.updated_us,
    )


def record_of(row: Row[tuple[object, ...]]) -> RecordRow:
    return RecordRow(
        target=row.target,
        batch_id=row.batch_id,
        table=row.table_name,
        source=row.source,
        begin_seq=row.begin_seq,
        rows=row.row_count,
        taken=row.taken,
        state=RecordState(row.state),
        run_id=row.run_id,
        attempts=row.attempts,
        last_error=row.last_error,
        updated_us=row.updated_us,
    )


def ledger_of(row: Row[tuple[object, ...]]) -> LedgerRow:
    figures = {figure: getattr(row, figure) for figure in _LEDGER_FIGURES}
    shards = tuple(WriteCounts(**one) for one in json.loads(row.shards))
    figures |= {name: sum(getattr(one, name) for one in shards) for name in ("equal", "quarantined")}
    entry = LedgerEntry(run_id=row.run_id, target=row.target, table=row.table_name, **figures)
    return LedgerRow(entry, shards, row.closed_us)
