"""Completes the write of a run that was killed between two shards, in the run that has taken its batches over.

If a row comes under a new key in another shard, and the log left out some of its values, one shard's transaction
removes what the other's needs: from then on only the killed run's filtered files have that row whole.
May assume that writing them is harmless at any time and in any run: no older change overwrites a newer row.
"""

from __future__ import annotations

from dataclasses import replace

from cdc_core.errors import Refused
from cdc_core.model.run_plan import PLAN, RUNS, MergeTable, RunPlan, counts_path
from spark_jobs.job import Job, log
from spark_jobs.write import write_tables


def end_writes(job: Job, table: MergeTable) -> bool:
    """Writes what other runs over any of these batches have filtered but not written whole; whether there was any."""
    found = False
    for info in list(job.store.list(RUNS)):
        if not info.path.endswith(f"/{PLAN}") or info.path == job.plan.path:
            continue
        try:
            plan = RunPlan.from_bytes(job.store.get(info.path))
        except Refused as error:
            log.warning("run %s: %s: not looked at: %s", job.plan.run_id, info.path, error)
            continue
        other = replace(job, plan=plan)
        if not _unfinished(job, plan):
            continue
        for theirs in other.tables():
            if theirs.table == table.table:
                log.warning("run %s: completing the write of run %s: %s", job.plan.run_id, plan.run_id, table.table)
                write_tables(other, [theirs])
                found = True
    return found


def _unfinished(job: Job, plan: RunPlan) -> bool:
    target = job.target.name
    batches = {batch for run in plan.targets if run.target == target for batch in run.batches}
    filtered, written = counts_path(plan.filtered_folder(target)), counts_path(plan.written_folder(target))
    return (
        not batches.isdisjoint(job.target_run.batches)
        and job.store.stat(filtered) is not None
        and job.store.stat(written) is None
    )
