"""Commits a run for one target: checks and accounts for its work, and only then marks the batches as consumed.

May assume that the tasks before it left their counts and quality results in the run's folder.
Keeps true: consume records reach COMMITTED only together with a ledger that adds up, after quality passed, all of a
target's batches in one transaction; a second call changes nothing.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from typing import Any

from cdc_core.config import IcebergTarget, MysqlTarget
from cdc_core.errors import DataAtRisk, FilesLost, Refused, UsageError
from cdc_core.meta import LedgerRow, Meta
from cdc_core.meta.meta_rows import NOTHING_LOST
from cdc_core.meta.run_register import require_plan
from cdc_core.meta.task_failures import GATES, LOST_WRITES
from cdc_core.model.run_plan import (
    Counts,
    FilterCounts,
    LedgerEntry,
    MergeCounts,
    RunPlan,
    WriteCounts,
    counts_from_bytes,
    counts_path,
    quality_report,
)
from cdc_core.operations.apply import ledger, left_out, lost_writes
from cdc_core.operations.apply.set_aside import forget_replaced
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage.objects import ObjectStore
from cdc_core.targets.bookkeeping.gates import Table, lost_gates
from cdc_core.targets.reading.sharding import shard_tables

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """The outcome of a target's commit: ids and counts only.

    batches: of the plan. moved: consume records that this call moved; 0 if they were committed before, and of a replay.
    again: an earlier call has closed the ledger.
    """

    run_id: str
    target: str
    window_start_us: int
    window_end_us: int
    batches: int
    moved: int
    tables: tuple[LedgerEntry, ...]
    again: bool = False

    def to_json(self) -> dict[str, Any]:
        """For XCom and `--json`."""
        figures = [asdict(entry) for entry in self.tables]
        own = {"run_id", "target"}  # stated once, for all tables
        summed = {name: figure for name, figure in asdict(self).items() if name != "again"}
        return summed | {"tables": [{name: entry[name] for name in entry if name not in own} for entry in figures]}


def taken_over(meta: Meta, plan: RunPlan, target: str = "") -> str:
    """Why the run has nothing left to do for the target, or for any: other runs have all of its batches, committed or
    in progress. "" while the run still owns a batch; `commit` then waits for the runs that have the others."""
    targets = [target] if target else [configured.target for configured in plan.targets]
    holders = {record.run_id: None for name in targets for record in meta.records.find(name, plan.claimed(name))}
    if not holders or plan.run_id in holders:
        return ""
    return (
        f"The run {plan.run_id!r} has nothing left to do: {', '.join(holders)} took over all of its batches for "
        f"{target or 'every target'}. If that run fails, the next run takes them over; so does this one in Airflow, if "
        "it is cleared from its plan task on."
    )


def mark_applied(meta: Meta, plan: RunPlan, target: str) -> int:
    """Marks the target's records as applied, after the write task has written every table and shard; how many moved.

    Raises Refused (run.clear_task).
    """
    require_plan(meta.runs.find(plan.run_id), plan.run_id, plan.path, plan.digest)
    claimed = plan.claimed(target)
    moved = meta.runs.mark_applied(plan.run_id, target, claimed) if claimed else 0
    log.info("run %s: target %s: %d records applied", plan.run_id, target, moved)
    return moved


def commit(opened: OpenPipeline, plan: RunPlan, target: str) -> CommitSummary:
    """Close the ledger and move the target's records APPLIED -> COMMITTED, in one transaction.

    The target is asked whether it still has what it was given.
    Raises DataAtRisk (run.unbalanced, quality.failed, run.clear_task, target.lost_writes), Refused
    (run.clear_task, usage.argument), RetryLater (run.taken_over), and what lost_writes.find raises.
    """
    if opened.name != plan.pipeline:
        raise UsageError(
            f"The run {plan.run_id!r} belongs to the pipeline {plan.pipeline!r}, not to {opened.name!r}.",
            where=plan.path,
            code="usage.argument",
            remedy="name the pipeline that the run was planned for",
        )
    require_plan(opened.meta.runs.find(plan.run_id), plan.run_id, plan.path, plan.digest)
    batches, claimed = plan.target(target).batches, plan.claimed(target)
    closed = opened.meta.ledgers.find(plan.run_id, target)
    if not batches or (closed and all(record.state.consumed for record in opened.meta.records.find(target, claimed))):
        return replace(_summary(plan, target, 0, closed), again=bool(closed))
    entries: list[LedgerEntry] = []
    written: list[WriteCounts] = []
    still_lost = NOTHING_LOST
    if plan.merge_set(plan.target(target).merge_set).tables:
        entries, written = _account(opened.store, plan, target)
        _publish(opened, plan, target)
        lost_writes.require_own(opened, plan, target, written)
        lost = lost_writes.find(opened, opened.pipeline.target(target))
        if lost and not plan.replay:
            raise lost_writes.refusal(opened.pipeline, target, lost)
        still_lost = lost_writes.still_lost(lost, plan)
        if plan.replay:
            left_out.replayed(opened.meta, plan, target)
    else:
        # The batches have no rows, or only rows of tables that the target leaves out: nothing to write or check.
        opened.meta.runs.mark_applied(plan.run_id, target, claimed)
        _publish(opened, plan, target)
    moved = opened.meta.runs.commit(
        plan.run_id,
        target,
        claimed,
        entries,
        written,
        plan=(plan.path, plan.digest),
        spans=plan.spans(target),
        lost=still_lost,
    )
    if isinstance(rules := opened.pipeline.target(target), MysqlTarget):
        forget_replaced(opened, rules, plan)
    else:
        from cdc_core.operations.lake.maintain import maintain_hourly

        maintain_hourly(opened, rules)
    summary = _summary(plan, target, moved, opened.meta.ledgers.find(plan.run_id, target))
    log.info("run %s: target %s: %d batches committed, %d records moved", plan.run_id, target, len(batches), moved)
    return summary


def _publish(opened: OpenPipeline, plan: RunPlan, target: str) -> None:
    """What was written to a lake is shown to its readers."""
    if isinstance(opened.pipeline.target(target), IcebergTarget):
        from cdc_core.operations.lake.publish_run import publish_run

        publish_run(opened, plan, target)


def require_sound(opened: OpenPipeline, target: str, *, replay: bool = False) -> None:
    """What every run asks of a target in the end, whether or not it had changes for it.

    Nobody writes to tables that a cutover has led the application away from, and that this pipeline carries its changes
    back to; and the target has what it was given. replay: a replay may leave lost writes to others.
    Raises DataAtRisk (cutover.gates_gone, target.lost_writes), which is kept until a run finds that it has ended.
    """
    lost = lost_writes.find(opened, opened.pipeline.target(target))
    checks = {
        GATES: _lost_gates(opened, target),
        LOST_WRITES: lost_writes.refusal(opened.pipeline, target, lost) if lost else None,
    }
    for task, error in checks.items():
        if error is None:
            opened.meta.failures.clear(task, target)
        else:
            opened.meta.failures.keep(task, target, error)
    for task, error in checks.items():
        if error is not None and not (replay and task == LOST_WRITES):
            raise error


def _lost_gates(opened: OpenPipeline, target: str) -> DataAtRisk | None:
    rules, places = opened.pipeline.target(target), dict[str, list[Table]]()
    if not isinstance(rules, MysqlTarget):
        return None
    for logical in opened.meta.writes.last(target):
        if rules.table(logical) is not None:
            for place in shard_tables(rules, logical):
                places.setdefault(rules.connections[place.connection], []).append((place.database, place.table))
    return lost_gates(places)


def _account(store: ObjectStore, plan: RunPlan, target: str) -> tuple[list[LedgerEntry], list[WriteCounts]]:
    merge_set = plan.target(target).merge_set
    merged = _counts(store, "merge", counts_path(plan.merged_folder(merge_set)), MergeCounts)
    filtered = _counts(store, "filter", counts_path(plan.filtered_folder(target)), FilterCounts)
    written = _counts(store, "write", counts_path(plan.written_folder(target)), WriteCounts)
    entries = ledger.close(plan, target, merged, filtered, written)
    _require_quality(store, plan, target)
    return entries, written


def _require_quality(store: ObjectStore, plan: RunPlan, target: str) -> None:
    """Requires the report, which is written last, at least one result, and `"success": true` in each."""
    folder = f"{plan.quality_folder(target)}/"
    found = [info.path for info in store.list(folder)]
    paths = [path for path in found if path.endswith(".json")]
    if not paths or quality_report(plan.quality_folder(target)) not in found:
        raise Refused(
            f"The report of the quality results of target {target!r} is missing.",
            where=folder,
            code="run.clear_task",
            remedy="clear the run from its quality task on",
        )
    failed = [path for path in paths if not _succeeded(store, path)]
    if failed:
        raise DataAtRisk(
            f"Quality failed for target {target!r}: {', '.join(path.removeprefix(folder) for path in failed)}.",
            where=folder,
            code="quality.failed",
            remedy="no batch was marked as consumed. Read these results, which name each expectation that failed; fix "
            "the target or the suite; then clear the run from its write task on",
        )


def _succeeded(store: ObjectStore, path: str) -> bool:
    try:
        result = json.loads(store.get(path))
        return result["success"] is True
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error, "quality") from None


def _counts(store: ObjectStore, task: str, path: str, kind: type[Counts]) -> list[Counts]:
    try:
        return counts_from_bytes(store.get(path), kind)
    except FilesLost:
        raise Refused(
            f"The {task} task left no counts.",
            where=path,
            code="run.clear_task",
            remedy=f"clear the run from its {task} task on",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error, task) from None


def _unreadable(path: str, error: Exception, task: str) -> Refused:
    return Refused(
        f"The result of the {task} task cannot be read: {type(error).__name__}: {error}.",
        where=path,
        code="run.clear_task",
        remedy=f"no batch was marked as consumed; clear the run from its {task} task on",
    )


def _summary(plan: RunPlan, target: str, moved: int, rows: tuple[LedgerRow, ...]) -> CommitSummary:
    return CommitSummary(
        plan.run_id,
        target,
        plan.window_start_us,
        plan.window_end_us,
        len(plan.target(target).batches),
        moved,
        tuple(row.entry for row in rows),
    )
