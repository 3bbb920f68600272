"""Copies of a pipeline's tables: the steps of a copy (steps.py), one after the other in one process."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cdc_core.errors import LeaseHeld, Paused, Refused
from cdc_core.model.coverage import How
from cdc_core.operations.copy import pending
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.copy.pending import PendingTable
from cdc_core.operations.copy.staging import Staged
from cdc_core.operations.copy.steps import read_tables, stage_read
from cdc_core.operations.extract.drained import DrainResult
from cdc_core.operations.extract.side_by_side import extract_if_free, extract_sources
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage.isolated import clear, isolated

log = logging.getLogger(__name__)

WAIT_S = 600.0
"""How long another extractor may take to pass the place that the copy waits for."""
_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Copied:
    """staged: by source. refused: by table, why it was not copied."""

    staged: Mapping[str, Staged]
    refused: Mapping[str, Refused]


def copy_sources(opened: OpenPipeline, wanted: Mapping[str, Sequence[PendingTable]]) -> Copied:
    """Copies the tables of each source and stages them; sources with nothing to copy are left alone.

    What another process has copied while this one was waiting for the lease, or copying another source, is not copied
    once more.
    """
    staged_of: dict[str, Staged] = {}
    left_out: dict[str, Refused] = {}
    for source, asked in wanted.items():
        if not asked:
            continue
        with copier_lease(opened, source) as lease:
            tables = pending.still_pending(opened.meta, source, asked)
            if not tables:
                continue
            with opened.progress.copying({table.name: table.rows for table in tables}) as report:
                refused = read_tables(opened, source, tables, lease, report)
            left_out |= {f"{source}: {table}": error for table, error in refused.items()}
            if len(refused) == len(tables):
                continue
            deadline_s = time.monotonic() + WAIT_S
            staged = Staged()
            while True:
                extract_if_free(opened, source)
                staged = staged.then(stage_read(opened, source, lease))
                if staged.waiting is None or time.monotonic() > deadline_s:
                    break
                time.sleep(_PAUSE_S)
            staged_of[source] = staged
    return Copied(staged_of, left_out)


def copy_pending(opened: OpenPipeline) -> dict[str, DrainResult]:
    """Copies what is pending of every source that has been extracted; how far each copied source is extracted then."""
    sources = [source.name for source in opened.pipeline.sources]
    read_isolated_again(opened, sources)
    done: list[str] = []
    for source in sources:
        wanted = pending.copied_by_runs(opened.meta, opened.pipeline, source)
        try:
            copied = copy_sources(opened, {source: wanted})
        except (LeaseHeld, Paused) as error:
            opened.progress.note(f"not copied here: {error.what}")
            continue
        note_refused(opened, copied)
        done += [name for name, staged in copied.staged.items() if staged.batches]
    # The coverage of the copied tables, for what is said of partial ones.
    return extract_sources(opened, done) if done else {}


def note_refused(opened: OpenPipeline, copied: Copied) -> None:
    for error in copied.refused.values():
        opened.progress.note(f"not copied: {error.what} {error.remedy}.")


def extract_before_copying(opened: OpenPipeline, sources: Sequence[str], *, known_will_do: bool) -> None:
    """Which tables there are, and what they lack, the extractor knows. Where another one is running, the copy waits for
    it later. known_will_do: what was extracted before is enough."""
    fresh = [source for source in sources if opened.meta.positions.checkpoint(source) is None]
    if fresh:
        extract_sources(opened, fresh)
    if not known_will_do:
        for source in sources:
            if source not in fresh:
                extract_if_free(opened, source)


def read_isolated_again(opened: OpenPipeline, sources: Iterable[str], tables: Collection[str] = ()) -> None:
    """Has isolated tables captured again where a copy was asked of them, or the pipeline says so; notes which cannot be
    read even now. Raises RetryLater (lease.held)."""
    for source in sources:
        if readmit(opened, source, tables):
            extract_if_free(opened, source)
            for table, why in isolated(opened.store, source).items():
                opened.progress.note(f"not copied: {table} of {source} still cannot be read: {why}")


def readmit(opened: OpenPipeline, source: str, tables: Collection[str] = ()) -> list[str]:
    """Isolated tables (`database.table`) that the next extraction reads again, from where the source is by then, so
    that the place that could not be read is passed; also those that an earlier call has readmitted, and that nothing
    was extracted of since.

    tables: that a copy was asked of; all of them under `tables.on_unreadable: resync`. None while an extractor of the
    source is running, which would not notice; raises RetryLater (lease.held) then for tables that were asked for.
    """
    wanted = _isolated(opened, source, tables)
    if wanted:
        try:
            with opened.meta.leases.held(source, opened.holder, opened.pipeline.limits.lease_s):
                # Another process may have readmitted them, and extracted since.
                for table in _isolated(opened, source, tables):
                    clear(opened.store, source, table)
        except LeaseHeld:
            if not wanted.isdisjoint(tables):
                raise
            log.info("%s: isolated tables stay so while an extractor is running: %s", source, ", ".join(sorted(wanted)))
    coverages, left = opened.meta.coverages.find(source).tables, isolated(opened.store, source)
    return sorted(table for table, coverage in coverages.items() if coverage.how is How.ISOLATED and table not in left)


def _isolated(opened: OpenPipeline, source: str, tables: Collection[str]) -> frozenset[str]:
    every = opened.pipeline.tables.on_unreadable == "resync"
    return frozenset(table for table in isolated(opened.store, source) if every or table in tables)


def tables_to_copy(
    opened: OpenPipeline, source: str, tables: Sequence[str] | None, *, everything: bool = False
) -> tuple[tuple[PendingTable, ...], dict[str, str]]:
    """The tables to copy: the named ones, all, or what is pending; of all, why others are left out.

    Raises UsageError (usage.unknown_name), Refused (table.not_captured).
    """
    if everything:
        return pending.captured(opened.meta, source)
    if tables:
        return pending.chosen(opened.meta, source, tables), {}
    return pending.pending(opened.meta, source, on_new=opened.pipeline.tables.on_new), {}
