"""What a page shows of a pipeline besides its status: latest batches, growth by window, runs with their accounts.

Read only. May assume nothing about how long the history is: every list ends at a limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from cdc_core.meta import meta_schema
from cdc_core.meta.batches import batch_of
from cdc_core.meta.ledgers import ledger_of
from cdc_core.meta.meta_rows import BatchRow, LedgerRow, RunRow, Status
from cdc_core.meta.repository import Repository, reads
from cdc_core.meta.run_register import RunRegister
from cdc_core.meta.status_views import StatusViews
from cdc_core.model.windows import Windows

_batch, _file, _record = meta_schema.batch, meta_schema.batch_file, meta_schema.consume_record
_run, _ledger = meta_schema.run, meta_schema.apply_ledger

BATCHES = 50
WINDOWS = 48
TABLES = 200


@dataclass(frozen=True, slots=True)
class WindowSums:
    """What all sources of a pipeline staged in one window [start, end)."""

    start_us: int
    end_us: int
    batches: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TableFreshness:
    """A logical table. window_end_us: end of the latest window with changes of it. rows: of changes staged in all.

    applied: by target, when the latest ledger with changes of it was closed, µs UTC.
    """

    table: str
    window_end_us: int
    rows: int
    applied: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Account:
    """A run with the targets that it took batches for or closed a ledger of, and all of its ledgers."""

    run: RunRow
    targets: tuple[str, ...]
    ledgers: tuple[LedgerRow, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """A pipeline at one moment.

    batches: the latest of all its sources, newest first, at most BATCHES.
    windows: the last WINDOWS of the schedule, oldest first, without holes, none before the first batch.
    accounts: of each run in `status`, in that order.
    tables: staged tables, those with the latest changes first, at most TABLES.
    """

    status: Status
    batches: tuple[BatchRow, ...]
    windows: tuple[WindowSums, ...]
    accounts: tuple[Account, ...]
    tables: tuple[TableFreshness, ...]


class Overviews(Repository):
    @reads
    def find(self, targets: Sequence[str], windows: Windows) -> Overview:
        status = StatusViews(self.connection).find(targets)
        return Overview(
            status,
            self._latest([source.source for source in status.sources]),
            self._growth(windows, status.watermark_us),
            self.accounts(status.runs),
            self._freshness(),
        )

    @reads
    def account(self, run_id: str) -> Account | None:
        """A run with its targets and ledgers; None for one that was never planned."""
        run = RunRegister(self.connection).find(run_id)
        return None if run is None else self.accounts([run])[0]

    def accounts(self, runs: Sequence[RunRow]) -> tuple[Account, ...]:
        """The account of each run, in their order."""
        run_ids = [run.run_id for run in runs]
        ledgers = self._ledgers(run_ids)
        claimed = self.execute(
            select(_record.c.run_id, _record.c.target).where(_record.c.run_id.in_(run_ids)).distinct()
        )
        reached = {(row.run_id, row.target) for row in claimed}
        reached |= {(run_id, row.entry.target) for run_id, rows in ledgers.items() for row in rows}
        return tuple(
            Account(run, tuple(sorted(target for of, target in reached if of == run.run_id)), ledgers[run.run_id])
            for run in runs
        )

    def _freshness(self) -> tuple[TableFreshness, ...]:
        latest, rows = func.max(_batch.c.window_end_us), func.sum(_file.c.row_count)
        staged = self.execute(
            select(_file.c.table_name, latest.label("latest"), rows.label("rows"))
            .join(_batch, _batch.c.batch_id == _file.c.batch_id)
            .group_by(_file.c.table_name)
            .order_by(latest.desc(), _file.c.table_name)
            .limit(TABLES)
        ).all()
        closed: dict[str, dict[str, int]] = defaultdict(dict)
        for row in self.execute(
            select(_ledger.c.table_name, _ledger.c.target, func.max(_ledger.c.closed_us).label("closed")).group_by(
                _ledger.c.table_name, _ledger.c.target
            )
        ):
            closed[row.table_name][row.target] = row.closed
        return tuple(
            TableFreshness(row.table_name, row.latest, int(row.rows), closed.get(row.table_name, {})) for row in staged
        )

    def _latest(self, sources: Sequence[str]) -> tuple[BatchRow, ...]:
        batches = []
        for source in sources:
            query = select(_batch).where(_batch.c.source == source).order_by(_batch.c.begin_seq.desc()).limit(BATCHES)
            batches += [batch_of(row) for row in self.execute(query)]
        # Stable: within a window the batches of a source keep the order of its log.
        return tuple(sorted(batches, key=lambda batch: batch.window_start_us, reverse=True)[:BATCHES])

    def _growth(self, schedule: Windows, watermark_us: int) -> tuple[WindowSums, ...]:
        ends = select(func.min(_batch.c.window_start_us), func.max(_batch.c.window_start_us))
        first_us, last_us = self.execute(ends).one()
        if first_us is None:
            return ()
        spans = list(_back(schedule, first_us, max(last_us, watermark_us - 1)))[::-1]
        sums: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        by_window = self.execute(
            select(_batch.c.window_start_us, func.count(), func.sum(_batch.c.row_count), func.sum(_batch.c.size_bytes))
            .where(_batch.c.window_start_us >= spans[0][0])
            .group_by(_batch.c.window_start_us)
        )
        for start_us, *figures in by_window:
            # A batch staged under an earlier schedule counts in the window that holds its own window's start.
            start, _ = schedule.containing(start_us)
            sums[start] = [have + int(more) for have, more in zip(sums[start], figures, strict=True)]
        return tuple(WindowSums(start, end, *sums[start]) for start, end in spans)

    def _ledgers(self, run_ids: Sequence[str]) -> Mapping[str, tuple[LedgerRow, ...]]:
        ledgers: dict[str, list[LedgerRow]] = {run_id: [] for run_id in run_ids}
        query = select(_ledger).where(_ledger.c.run_id.in_(run_ids)).order_by(_ledger.c.target, _ledger.c.table_name)
        for row in self.execute(query):
            ledgers[row.run_id].append(ledger_of(row))
        return {run_id: tuple(rows) for run_id, rows in ledgers.items()}


def _back(schedule: Windows, first_us: int, last_us: int) -> Iterator[tuple[int, int]]:
    """The windows from the one that holds `last_us` back to the one that holds `first_us`, at most WINDOWS."""
    window = schedule.containing(last_us)
    for _ in range(WINDOWS):
        yield window
        if window[0] <= first_us:
            return
        window = schedule.containing(window[0] - 1)
