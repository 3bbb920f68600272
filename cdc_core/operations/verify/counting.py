"""Verifications that only count: the rows of both sides, and the greatest key."""

from __future__ import annotations

import re
import time

from cdc_core.errors import Refused
from cdc_core.operations.copy import key_ranges
from cdc_core.operations.copy.key_ranges import Key
from cdc_core.operations.verify import target_rows
from cdc_core.operations.verify.comparison import Side
from cdc_core.operations.verify.counts import excess_of, judged
from cdc_core.operations.verify.feeding import Feeding
from cdc_core.operations.verify.judgement import Wrong
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.results import TableResult
from cdc_core.operations.verify.shape import Shape
from cdc_core.operations.verify.staged_batches import StagedBatches
from cdc_core.operations.verify.target_rows import TargetTables
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.operations.verify.verify_progress import SourceSpan, joined


class CountedTable:
    """One logical table. whole: why it cannot be cut into ranges, "" where it can."""

    def __init__(
        self, job: VerifyJob, name: str, shape: Shape, feeding: Feeding, targets: TargetTables, batches: StagedBatches,
        whole: str,
    ) -> None:  # fmt: skip
        self._job, self._name, self._shape, self._feeding = job, name, shape, feeding
        self._targets, self._batches, self._whole = targets, batches, whole

    def counted(self) -> TableResult:
        """Raises Refused (verify.mode), and what reading raises."""
        started_s = time.monotonic()
        self._require_countable()
        spans: tuple[SourceSpan, ...] = ()
        last: Key = ()
        rows = 0
        for source, schema in self._feeding:
            count, last, read = source.count(schema)
            rows += count
            self._job.report(self._name, "source", rows)
            spans = joined(spans, [SourceSpan(source.name, read.low, read.high)])
        consumed = self._batches.consumed()
        shards = self._shape.destination.shards
        there = sum(self._targets.count(self._shape, shard) for shard in shards)
        self._job.report(self._name, "target", there)
        reached = self._job.mode is not Mode.MAX_ID or not last or self.reaches(last)
        chains = self._batches.chains_until(spans)
        bounds = {one.source: (one.low, one.high) for one in spans}
        sharding = self._shape.destination.rule.sharding
        moves = sharding is not None and sharding.key not in self._shape.key
        excess = excess_of(chains, self._name, bounds, consumed.batches, moving=moves)
        verdict = judged(rows, there, excess, reached=reached)
        moving = verdict.moving if consumed.known else 0
        unsettled = verdict.unsettled + verdict.moving - moving
        return TableResult(
            self._name, mode=self._job.mode, spans=spans,
            consumed_until=consumed.until, source=Side(rows, ""), target=Side(there, ""), moving=moving,
            unsettled=unsettled, unreplayed=unsettled > 0 and not consumed.known,
            found={Wrong.UNKNOWN: verdict.differences} if verdict.differences else {}, ranges=1,
            greatest_differs=verdict.differences > 0 and not reached, seconds=time.monotonic() - started_s,
        )  # fmt: skip

    def _require_countable(self) -> None:
        """Raises Refused (verify.mode)."""
        names = [schema.name for _, schema in self._feeding]
        why = ""
        if any(re.fullmatch(rule.match, name) for rule in self._job.pipeline.tables.rows for name in names):
            why = "a filter leaves out rows of the source"
        elif len(names) > 1 and self._shape.destination.rule.shared_keys == "newest":
            why = "source tables may share keys (shared_keys: newest), so that their rows are fewer in the target"
        elif self._job.mode is Mode.MAX_ID and len(names) > 1:
            why = "several source tables feed it"
        elif self._job.mode is Mode.MAX_ID:
            why = self._whole
        if why:
            raise Refused(
                f"{self._name} cannot be verified in the mode {self._job.mode}: {why}.",
                where=self._name,
                code="verify.mode",
                remedy="verify the table with --mode ordered",
            )

    def reaches(self, last: Key) -> bool:
        """Whether the target has this key, and none after it."""
        found = False
        for shard in self._shape.destination.shards:
            schema = target_rows.schema_of(self._shape, shard)
            if self._targets.count(self._shape, shard, f"WHERE {key_ranges.after(schema, last)}"):
                return False
            found = found or bool(self._targets.count(self._shape, shard, f"WHERE {key_ranges.equal(schema, last)}"))
        return found
