"""The staged batches of a table's sources: how far they reach, and which of them the target has consumed."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from cdc_core.errors import RetryLater
from cdc_core.model.batch import Manifest
from cdc_core.stage import coverage
from cdc_core.stage import manifest as manifests
from cdc_core.verify.job import Job
from cdc_core.verify.progress import SourceSpan

_PAUSE_S = 2.0


class StagedBatches:
    """table: the logical table that is verified. What was seen to be consumed, and chains, are not read again."""

    def __init__(self, job: Job, table: str, sources: Collection[str]) -> None:
        self._job = job
        self._table = table
        self._sources = sorted(set(sources))
        self._known: set[str] = set()
        self._chains: dict[str, list[Manifest]] = {}

    def consumed(self) -> tuple[frozenset[str], dict[str, str]]:
        """Batches that the target has consumed by now; by source, where the first that it has not begins."""
        job = self._job
        until: dict[str, str] = {}
        for source in self._sources:
            batches = job.meta.batches(source)
            open_ones = [batch.batch_id for batch in batches if batch.batch_id not in self._known]
            records: dict[str, list[bool]] = {}
            for record in job.meta.records(job.target.name, open_ones):
                records.setdefault(record.batch_id, []).append(record.state.consumed)
            self._known |= {batch for batch, states in records.items() if all(states)}
            first = next((batch for batch in batches if batch.batch_id not in self._known), None)
            place = first.begin if first is not None else batches[-1].end if batches else None
            until[source] = "" if place is None else str(place)
        return frozenset(self._known), until

    def chains_until(self, spans: Sequence[SourceSpan]) -> list[Manifest]:
        """All batches of the sources, once they reach as far as the sources were read.

        Raises RetryLater (verify.not_staged).
        """
        job, deadline_s = self._job, time.monotonic() + self._job.wait_s
        for span in spans:
            while True:
                staged = job.meta.checkpoint(span.source)
                if staged is not None and staged.position >= span.high:
                    break
                job.extract_on(span.source)
                staged = job.meta.checkpoint(span.source)
                if staged is not None and staged.position >= span.high:
                    break
                if time.monotonic() > deadline_s:
                    raise RetryLater(
                        f"The stage did not reach {span.high} within {job.wait_s:.0f} s, up to which {span.source} was "
                        "read, so that rows that differ may have changed meanwhile.",
                        where=self._table,
                        code="verify.not_staged",
                        remedy="see in `lockstep status` whether the source is extracted; then verify again",
                    )
                time.sleep(_PAUSE_S)
        for source in self._sources:
            known = {batch.batch_id for batch in self._chains.get(source, ())}
            if not known or known != {batch.batch_id for batch in job.meta.batches(source)}:
                self._chains[source] = list(manifests.chain(job.store, source))
        return [batch for source in sorted(self._chains) for batch in self._chains[source]]

    def is_whole(self, chains: Sequence[Manifest]) -> bool:
        """Whether every row of the table was staged."""
        store = self._job.store
        if coverage.purged_of(store, chains, [self._table]):
            return False
        return not coverage.missing_of(store, chains, [self._table]).get(self._table)
