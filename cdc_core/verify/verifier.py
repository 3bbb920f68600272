"""One verification: the tables of a pipeline at one target, one after the other, each range by range.

A range is judged as soon as it is read (table), and then in meta (kept_progress), so that a killed verification
continues after it. It must keep true that each table of the target that has a source table (feeding) is equal,
different, or said not to be proven: nothing that was not compared counts as equal, and nothing is left out unsaid.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from cdc_core.errors import LockstepError, Refused, TableUnready
from cdc_core.informing import informing
from cdc_core.verify.feeding import Fed, Feeding, chosen, feeding_of
from cdc_core.verify.job import Job
from cdc_core.verify.kept_progress import KeptProgress
from cdc_core.verify.modes import Mode
from cdc_core.verify.results import TableResult, Verified
from cdc_core.verify.source_rows import open_sources
from cdc_core.verify.table import Table
from cdc_core.verify.target_rows import TargetTables


def verify(job: Job, tables: Sequence[str] | None = None) -> Verified:
    """Verifies these logical tables of the target, or all that it takes and that have, or had, a source table.

    Raises UsageError (usage.unknown_name), Refused (config.no_match), RetryLater (snapshot.paused), and what opening
    the sources raises; Refused (cutover.switched). What concerns one table alone is its result's error.
    """
    _require_before_a_switch(job)
    telling = informing("The progress of a verification")
    job = replace(job, progressed=telling(job.progressed), said=telling(job.said))
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


def _require_before_a_switch(job: Job) -> None:
    """After the switch, a verification would call the target's newer rows wrong, and a repair would remove them. Raises
    Refused (cutover.switched)."""
    led = job.meta.latest_cutover(job.pipeline.pipeline)
    if led is None or not led.switched or job.target.name not in led.details.get("target", ()):
        return
    back = job.meta.latest_cutover(led.way_back)
    if back is None or not back.switched or back.created_us < led.created_us:
        raise Refused(
            f"A cutover has led the application to {job.target.name!r}, whose rows are now newer than the sources'.",
            where=f"cutover {led.cutover_id}",
            code="cutover.switched",
            remedy=f"`lockstep verify {led.way_back}` compares in the direction in which changes flow now",
        )


def _verified(job: Job, name: str, feeding: Feeding, targets: TargetTables, kept: KeptProgress) -> TableResult:
    table = Table(job, name, feeding, targets)
    if job.mode in (Mode.COUNT, Mode.MAX_ID):
        return table.counted()
    tally = kept.tally(name, table.definition)
    earlier = tally.first
    for latest in table.ranges(tally, kept.progress.seed, kept.bytes_left(name)):
        kept.keep(name, latest)
        tally = latest
    return table.result(table.looked_at_again(tally, earlier))


class TableKeys:
    """Single rows of one logical table: what a repair looks at, and a cutover.

    feeding: the source tables that feed it, with their definitions before the pipeline's rules.
    """

    def __init__(self, job: Job, fed: Fed, table: str, targets: TargetTables) -> None:
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
        self._table = Table(job, table, self.feeding, self._targets)
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
        """See Table.ends_alike."""
        return self._table.ends_alike()
