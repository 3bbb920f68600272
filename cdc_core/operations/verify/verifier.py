"""One verification: the tables of a pipeline at one target, one after the other, each range by range.

A range is judged as soon as it is read (table), and then in meta (verify_progress), so that a killed verification
continues after it. It must keep true that each table of the target that has a source table (feeding) is equal,
different, or said not to be proven: nothing that was not compared counts as equal, and nothing is left out unsaid.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from cdc_core.errors import LockstepError, Refused, TableUnready
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify import evidence
from cdc_core.operations.verify.counting import count_rows
from cdc_core.operations.verify.feeding import Feeding, chosen, feeding_of
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.results import TableResult, VerifyReport
from cdc_core.operations.verify.source_rows import open_sources
from cdc_core.operations.verify.table import ComparedTable
from cdc_core.operations.verify.target_rows import TargetTables
from cdc_core.operations.verify.verify_job import VerifyJob, verifier_lease
from cdc_core.operations.verify.verify_progress import KeptProgress
from cdc_core.process.informing import informing


def verify(job: VerifyJob, tables: Sequence[str] | None = None) -> VerifyReport:
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
                result = _verified(job, name, fed.feeding(name), targets, kept)
            except LockstepError as error:
                if error.retriable and not isinstance(error, TableUnready):
                    raise
                result = TableResult(name, error, job.mode, seconds=time.monotonic() - started_s)
            results.append(result)
        compared = (
            set(fed.tables) == {table_result.table for table_result in results if table_result.error is None}
            and not fed.uncompared
        )
        servers = {source.name: source.address.identity for source in sources}
        progress = kept.progress
        return VerifyReport(
            job.target.name, job.mode, tuple(results), progress.started_us, job.share, progress.seed, compared, servers
        )


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
        return count_rows(table)
    tally = kept.tally(name, table.definition)
    for latest in table.ranges(tally, kept.progress.seed, kept.bytes_left(name)):
        kept.keep(name, latest)
        tally = latest
    return table.result(tally)


def verify_target(
    opened: OpenPipeline,
    target: str,
    tables: Sequence[str] | None = None,
    *,
    mode: Mode = Mode.ORDERED,
    begun_after_us: int = 0,
    sample_percent: float | None = None,
    seed: int | None = None,
) -> VerifyReport:
    """Verifies a target under its lease, and keeps the evidence on the stage. An interrupted verification continues.

    begun_after_us, sample_percent, seed: as of `VerifyJob`. Raises as `verify`; RetryLater (lease.held).
    """
    with verifier_lease(opened, target) as lease, opened.progress.comparing() as report:
        job = VerifyJob(
            opened,
            opened.pipeline.target(target),
            lease,
            mode,
            begun_after_us,
            sample_percent,
            seed,
            report=report,
        )
        verified = verify(job, tables)
        return replace(verified, path=evidence.keep(job, verified))
