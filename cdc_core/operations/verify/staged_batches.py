"""The staged batches of a table's sources: how far they reach, and which of them the target has consumed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cdc_core.model.batch import Manifest
from cdc_core.operations.extract.side_by_side import extract_up_to
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.operations.verify.verify_progress import SourceSpan
from cdc_core.stage import manifest as manifests
from cdc_core.stage import staged_coverage


@dataclass(frozen=True, slots=True)
class Consumed:
    """batches: ids of those that the target has consumed. until: by source, where the first that it has not begins."""

    batches: frozenset[str]
    until: Mapping[str, str]


class StagedBatches:
    """table: the logical table that is verified. What was seen to be consumed, and chains, are not read again."""

    def __init__(self, job: VerifyJob, table: str, sources: Collection[str]) -> None:
        self._job = job
        self._table = table
        self._sources = sorted(set(sources))
        self._known: set[str] = set()
        self._chains: dict[str, list[Manifest]] = {}

    def consumed(self) -> Consumed:
        """What the target has by now."""
        job = self._job
        until: dict[str, str] = {}
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
        return Consumed(frozenset(self._known), until)

    def chains_until(self, spans: Sequence[SourceSpan]) -> list[Manifest]:
        """All batches of the sources, once they reach as far as the sources were read.

        Raises RetryLater (stage.behind).
        """
        job = self._job
        for span in spans:
            extract_up_to(job.opened, span.source, span.high, job.wait_s, where=self._table)
        for source in self._sources:
            batch_ids = {batch.batch_id for batch in self._chains.get(source, ())}
            if not batch_ids or batch_ids != {batch.batch_id for batch in job.meta.batches.find(source)}:
                self._chains[source] = list(manifests.chain(job.opened.store, source))
        return [batch for source in sorted(self._chains) for batch in self._chains[source]]

    def is_whole(self, chains: Sequence[Manifest]) -> bool:
        """Whether every row of the table was staged."""
        store = self._job.opened.store
        if staged_coverage.purged_of(store, chains, [self._table]):
            return False
        return not staged_coverage.missing_of(store, chains, [self._table]).get(self._table)
