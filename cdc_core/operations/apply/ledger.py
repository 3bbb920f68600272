"""The account of a run, per table of a target: it adds up, or the run stops (G9 of docs/guarantees.md).

    changes staged (a key change counts as two) = winners + superseded
    winners = written + stale + already absent + quarantined

May assume that each task counted on its own. Keeps true: the number of staged rows comes from the manifests, through
the plan, and never from the task that read them; each handover between two tasks is checked, so that the message
names the task that lost something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from cdc_core.errors import DataAtRisk
from cdc_core.model.run_plan import FilterCounts, LedgerEntry, MergeCounts, MergeTable, RunPlan, WriteCounts


def close(
    plan: RunPlan,
    target: str,
    merge_counts: Sequence[MergeCounts],
    filter_counts: Sequence[FilterCounts],
    write_counts: Sequence[WriteCounts],
) -> list[LedgerEntry]:
    """One entry per table of the target's merge set, in the plan's order.

    Raises DataAtRisk (run.unbalanced) with every figure that does not fit.
    """
    tables = plan.merge_set(plan.target(target).merge_set).tables
    names = {table.table for table in tables}
    problems = [
        *_strangers("merge", merge_counts, names),
        *_strangers("filter", filter_counts, names),
        *_strangers("write", write_counts, names),
        *_twice("merge", [count.table for count in merge_counts]),
        *_twice("filter", [count.table for count in filter_counts]),
        *_twice("write", [f"{count.table} on {count.shard}" for count in write_counts]),
        *_negative([*merge_counts, *filter_counts, *write_counts]),
    ]
    merged = {count.table: count for count in merge_counts}
    filtered = {count.table: count for count in filter_counts}
    entries = []
    for table in tables:
        name = table.table
        if name not in merged or name not in filtered:
            problems += [f"{name}: merge counted nothing"] if name not in merged else []
            problems += [f"{name}: filter counted nothing"] if name not in filtered else []
            continue
        written = [count for count in write_counts if count.table == name]
        entry, found = _entry(plan.run_id, target, table, merged[name], filtered[name], written)
        entries.append(entry)
        problems += [f"{name}: {problem}" for problem in found]
    if problems:
        raise DataAtRisk(
            f"The ledger of run {plan.run_id!r} does not add up: {'; '.join(problems)}.",
            where=f"target {target}",
            code="run.unbalanced",
            remedy="no batch was marked as consumed. Clear the run from its merge task on; if the figures stay wrong, "
            f"keep {plan.root} and report the figures",
        )
    return entries


def _entry(
    run_id: str,
    target: str,
    table: MergeTable,
    merge: MergeCounts,
    filtered: FilterCounts,
    written: Sequence[WriteCounts],
) -> tuple[LedgerEntry, list[str]]:
    to_write = filtered.insert + filtered.update + filtered.delete + filtered.revived + filtered.absent
    wrote, stale, absent, equal, quarantined = (
        sum(getattr(counts, what) for counts in written)
        for what in ("written", "stale", "absent", "equal", "quarantined")
    )
    entry = LedgerEntry(
        run_id=run_id,
        target=target,
        table=table.table,
        staged_rows=table.rows,
        key_changes=merge.key_changes,
        winners=merge.winners,
        superseded=merge.superseded,
        written=wrote,
        stale=filtered.stale + stale,
        absent=absent,
        equal=equal,
        quarantined=quarantined,
    )
    problems = []
    if merge.rows != table.rows:
        problems.append(f"merge read {merge.rows} rows of {table.rows} staged")
    if to_write + filtered.stale != merge.winners:
        problems.append(f"filter saw {to_write + filtered.stale} of {merge.winners} winners")
    done = wrote + stale + absent + quarantined
    if done != to_write:
        problems.append(f"write did {done} of the {to_write} rows that filter gave it")
    return entry, [*problems, *entry.problems()]


def _strangers(
    task: str, counts: Sequence[MergeCounts] | Sequence[FilterCounts] | Sequence[WriteCounts], names: set[str]
) -> list[str]:
    return [f"{task} counted {table!r}, which the plan does not have" for table in {c.table for c in counts} - names]


def _twice(task: str, things: Iterable[str]) -> list[str]:
    return [f"{task} counted {thing} {times} times" for thing, times in Counter(things).items() if times > 1]


def _negative(counts: Sequence[MergeCounts | FilterCounts | WriteCounts]) -> list[str]:
    return [
        f"{count.table}: {name} is {figure}"
        for count in counts
        for name, figure in asdict(count).items()
        if isinstance(figure, int) and figure < 0
    ]
