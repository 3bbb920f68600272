"""What replays have applied to a target. They move no consume record; their ledgers and plans tell.

A ledger is closed once all that its run takes is written, and its plan lists the batches. A purge removes the plans of
what it purges: then a replay is not known any more.
"""

from __future__ import annotations

from cdc_core.errors import LockstepError
from cdc_core.operations.apply.plan import load
from cdc_core.operations.verify.verify_job import VerifyJob


class Replayed:
    """The replays of one logical table to the job's target. A plan is read once."""

    def __init__(self, job: VerifyJob, table: str) -> None:
        self._job = job
        self._table = table
        self._runs: dict[str, frozenset[str]] = {}

    def batches(self) -> frozenset[str]:
        """The ids of the batches whose changes of the table have been replayed by now."""
        job = self._job
        for write in job.meta.writes.closed(job.target.name, self._table):
            if write.run_id not in self._runs:
                self._runs[write.run_id] = self._batches_of(write.run_id)
        return frozenset().union(*self._runs.values())

    def _batches_of(self, run_id: str) -> frozenset[str]:
        job = self._job
        known = job.meta.runs.find(run_id)
        if known is None or job.opened.store.stat(known.plan_path) is None:
            return frozenset()
        try:
            plan = load(job.meta, job.opened.store, run_id)
        except LockstepError as error:
            if error.retriable:
                raise
            return frozenset()  # of another version, for instance
        return frozenset(plan.target(job.target.name).batches) if plan.replay else frozenset()
