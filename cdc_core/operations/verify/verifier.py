"""One verification: the tables of a pipeline at one target, one after the other, each range by range.

A range is judged as soon as it is read (table), and then in meta (kept_progress), so that a killed verification
continues after it. It must keep true that each table of the target that has a source table (feeding) is equal,
different, or said not to be proven: nothing that was not compared counts as equal, and nothing is left out unsaid.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from cdc_core.errors import LockstepError, Refused, TableUnready
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify import evidence
from cdc_core.operations.verify.feeding import Fed, Feeding, chosen, feeding_of
from cdc_core.operations.verify.kept_progress import KeptProgress
from cdc_core.operations.verify.lease import verifier_lease
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.results import TableResult, Verified, outcome
from cdc_core.operations.verify.source_rows import open_sources
from cdc_core.operations.verify.table import ComparedTable
from cdc_core.operations.verify.target_rows import TargetTables
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.operations.verify.verify_progress import VerifyProgress
from cdc_core.process.informing import informing


def verify(job: VerifyJob, tables: Sequence[str] | None = None) -> Verified:
    """Verifies these logical tables of the target, or all that it takes and that have, or had, a source table.

    Raises UsageError (usage.unknown_name), Refused (config.no_match), RetryLater (snapshot.paused), and what opening
    the sources raises; Refused (cutover.switched). What concerns one table alone is its result's error.
    """
    _require_before_a_switch(job)
    job = replace(job, report=informing("The progress of a verification")(job.report))
    with ExitStack() as opened:
        sources = opened.enter_context(open_sources(job))
        targets = opened.enter_context(TargetTables())
        fed = feeding_of(job, sources)
        wanted = chosen(job, fed, tables)
        if not wanted:
            raise Refused(
                f"No table of a source feeds the target {job.target.name!r}, so there is nothing to compare.",
                where=f"targets.{job.target.name}.tables",
                code="config.no_match",
                remedy="compare tables.include, the routes and the target's rules with the tables of the source "
                "(`lockstep check`); if the source has none yet, verify later",
            )
        kept = KeptProgress(job, wanted)
        results = []
        for name in wanted:
            started_s = time.monotonic()
            try:
                if name in fed.uncompared:
                    raise fed.uncompared[name]
                result = _verified(job, name, fed.tables[name], targets, kept)
            except LockstepError as error:
                if error.retriable and not isinstance(error, TableUnready):
                    raise
                result = TableResult(name, error, job.mode, seconds=time.monotonic() - started_s)
            results.append(result)
        compared = set(fed.tables) == {one.table for one in results if one.error is None} and not fed.uncompared
        servers = {one.name: one.address.identity for one in sources}
        return Verified(tuple(results), kept.progress.started_us, kept.progress.seed, compared, servers)


def _require_before_a_switch(job: VerifyJob) -> None:
    """After the switch, a verification would call the target's newer rows wrong, and a repair would remove them. Raises
    Refused (cutover.switched)."""
    led = job.meta.cutovers.latest(job.opened.name)
    if led is None or not led.switched or job.target.name not in led.details.get("target", ()):
        return
    back = job.meta.cutovers.latest(led.way_back)
    if back is None or not back.switched or back.created_us < led.created_us:
        raise Refused(
            f"A cutover has led the application to {job.target.name!r}, whose rows are now newer than the sources'.",
            where=f"cutover {led.cutover_id}",
            code="cutover.switched",
            remedy=f"`lockstep verify {led.way_back}` compares in the direction in which changes flow now",
        )


def _verified(job: VerifyJob, name: str, feeding: Feeding, targets: TargetTables, kept: KeptProgress) -> TableResult:
    table = ComparedTable(job, name, feeding, targets)
    if job.mode in (Mode.COUNT, Mode.MAX_ID):
        return table.counted()
    tally = kept.tally(name, table.definition)
    earlier = tally.first
    for latest in table.ranges(tally, kept.progress.seed, kept.bytes_left(name)):
        kept.keep(name, latest)
        tally = latest
    return table.result(table.looked_at_again(tally, earlier))


FROM_THE_START = 1 << 62
"""For `begun_after_us`: no interrupted verification continues."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """share: of the ranges that were read, if the mode takes a sample. path: of the evidence on the stage."""

    target: str
    mode: Mode
    share: float
    verified: Verified
    path: str

    @property
    def results(self) -> tuple[TableResult, ...]:
        return self.verified.results

    @property
    def error(self) -> LockstepError | None:
        """See results.outcome."""
        return outcome(self.results, self.target)

    @property
    def differences(self) -> int:
        return sum(one.differences for one in self.results)


def verify_target(
    opened: OpenPipeline,
    target: str,
    tables: Sequence[str] | None = None,
    *,
    mode: Mode = Mode.ORDERED,
    begun_after_us: int | None = None,
    sample_percent: float | None = None,
    seed: int | None = None,
) -> VerifyReport:
    """Verifies a target under its lease, and keeps the evidence on the stage. An interrupted verification continues.

    begun_after_us: continues only one that was begun after this time. sample_percent, seed: as of `VerifyJob`. Raises
    as `verify`; RetryLater (lease.held).
    """
    with verifier_lease(opened, target) as lease, opened.progress.comparing() as report:
        job = VerifyJob(
            opened, opened.pipeline.target(target), lease, mode, _is_older(opened, target, begun_after_us),
            sample_percent, seed, report=report,
        )  # fmt: skip
        verified = verify(job, tables)
        return VerifyReport(target, mode, job.share, verified, evidence.keep(job, verified))


def _is_older(opened: OpenPipeline, target: str, moment_us: int | None) -> bool:
    """Whether the verification that was interrupted was begun before a moment."""
    known = opened.meta.verifications.find(target)
    if moment_us is None or known is None or not known.progress:
        return False
    begun = VerifyProgress.from_text(known.progress)
    return begun is not None and begun.started_us < moment_us


class TableKeys:
    """Single rows of one logical table: what a repair looks at, and a cutover.

    feeding: the source tables that feed it, with their definitions before the pipeline's rules.
    """

    def __init__(self, job: VerifyJob, fed: Fed, table: str, targets: TargetTables) -> None:
        """targets: the target's sessions, which several tables may share; the caller closes them.

        Raises UsageError (usage.unknown_name), Refused (verify.not_comparable, verify.source_gone), and what opening
        the
        destination raises.
        """
        chosen(job, fed, [table])
        if table in fed.uncompared:
            raise fed.uncompared[table]
        self.feeding: Feeding = fed.tables[table]
        self._targets = targets
        self._table = ComparedTable(job, table, self.feeding, self._targets)
        self.shape = self._table.shape

    def verify(self, keys: Sequence[str]) -> TableResult:
        """Compares the rows with these keys, texts of `row_texts`, in one range, of which nothing is kept in meta.

        Raises what verifying a table raises.
        """
        return self._table.compared(keys)

    def counts(self) -> tuple[int, int]:
        """How many rows the sources have, and the target: one after the other, so that they are of the same place of
        the log only if nothing is written. Raises what verifying a table raises."""
        return (
            sum(source.count(schema)[0] for source, schema in self.feeding),
            sum(self._targets.count(self.shape, shard) for shard in self.shape.destination.shards),
        )

    def ends_alike(self) -> bool | None:
        """See ComparedTable.ends_alike."""
        return self._table.ends_alike()
