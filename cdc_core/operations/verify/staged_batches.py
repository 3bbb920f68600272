"""The staged batches of a table's sources: how far they reach, and which of them the target has consumed.

Runs record what they have applied (consume records). Only replays feed a target that is `replay_only`, and its own
records may end long before what it has: there, what replays have applied counts as well. It must keep true that a
change is only taken for one that such a target lacks where it is known what it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cdc_core.errors import LockstepError
from cdc_core.model.batch import Manifest
from cdc_core.operations.apply.plan import load
from cdc_core.operations.extract.side_by_side import extract_up_to
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.operations.verify.verify_progress import SourceSpan
from cdc_core.stage import manifest as manifests
from cdc_core.stage import staged_coverage


@dataclass(frozen=True, slots=True)
class Consumed:
    """batches: ids of those that the target has consumed. until: by source, where the first that it has not begins.
    known: it has none of the others, or only what was written to it in between; else nothing tells what it has."""

    batches: frozenset[str]
    until: Mapping[str, str]
    known: bool = True


class _Replayed:
    """The replays of one logical table to the job's target. They move no consume record, but a ledger is closed once
    all that its run takes is written, and its plan lists the batches. A plan is read once. A purge removes the plans of
    what it purges: then a replay is not known any more."""

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


class StagedBatches:
    """table: the logical table that is verified. What was seen to be consumed, and chains, are not read again."""

    def __init__(self, job: VerifyJob, table: str, sources: Collection[str]) -> None:
        self._job = job
        self._table = table
        self._sources = sorted(set(sources))
        self._known: set[str] = set()
        self._chains: dict[str, list[Manifest]] = {}
        self._replayed = _Replayed(job, table) if job.target.replay_only else None
        self._with_changes: dict[str, bool] = {}

    def consumed(self) -> Consumed:
        """What the target has by now."""
        job = self._job
        until: dict[str, str] = {}
        known = True
        if self._replayed is not None:
            self._known |= self._replayed.batches()
        for source in self._sources:
            batches = job.meta.batches.find(source)
            open_ones = [batch.batch_id for batch in batches if batch.batch_id not in self._known]
            records: dict[str, list[bool]] = {}
            for record in job.meta.records.find(job.target.name, open_ones):
                records.setdefault(record.batch_id, []).append(record.state.consumed)
            self._known |= {batch for batch, states in records.items() if all(states)}
            first = next((batch for batch in batches if batch.batch_id not in self._known), None)
            place = first.begin if first is not None else batches[-1].end if batches else None
            until[source] = "" if place is None else str(place)
            known = known and (self._replayed is None or self._from_the_start([one.batch_id for one in batches]))
        return Consumed(frozenset(self._known), until, known)

    def _from_the_start(self, batches: Sequence[str]) -> bool:
        """Whether those of these batches with changes of the table that the target has are the first ones, if there are
        any. batches: of one source, in order."""
        asked = [one for one in batches if one not in self._with_changes]
        files = self._job.meta.batches.files(asked)
        self._with_changes |= {one: any(file.table == self._table for file in files.get(one, ())) for one in asked}
        has = [one in self._known for one in batches if self._with_changes[one]]
        return not has or (has[0] and has == sorted(has, reverse=True))

    def chains_until(self, spans: Sequence[SourceSpan]) -> list[Manifest]:
        """All batches of the sources, once they reach as far as the sources were read.

        Raises RetryLater (stage.behind).
        """
        job = self._job
        for span in spans:
            extract_up_to(job.opened, span.source, span.high, job.wait_s, where=self._table)
        for source in self._sources:
            known = {batch.batch_id for batch in self._chains.get(source, ())}
            if not known or known != {batch.batch_id for batch in job.meta.batches.find(source)}:
                self._chains[source] = list(manifests.chain(job.opened.store, source))
        return [batch for source in sorted(self._chains) for batch in self._chains[source]]

    def is_whole(self, chains: Sequence[Manifest]) -> bool:
        """Whether every row of the table was staged."""
        store = self._job.opened.store
        if staged_coverage.purged_of(store, chains, [self._table]):
            return False
        return not staged_coverage.missing_of(store, chains, [self._table]).get(self._table)
