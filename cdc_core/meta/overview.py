"""What a page shows of a pipeline besides its status: latest batches, growth by window, runs with their accounts.

Read only. May assume nothing about how long the history is: every list ends at a limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from cdc_core.meta import batches, tables, views
from cdc_core.meta.rows import BatchRow, LedgerRow, RunRow, Status
from cdc_core.meta.runs import ledger_of
from cdc_core.windows import Windows

_batch, _file, _record, _ledger = tables.batch, tables.batch_file, tables.consume_record, tables.apply_ledger

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


def overview(connection: Connection, pipeline: str, targets: Sequence[str], windows: Windows) -> Overview:
    status = views.status(connection, pipeline, targets)
    return Overview(
        status,
        _latest(connection, [one.source for one in status.sources]),
        _growth(connection, pipeline, windows, status.watermark_us),
        accounts(connection, status.runs),
        _freshness(connection, pipeline),
    )


def accounts(connection: Connection, runs: Sequence[RunRow]) -> tuple[Account, ...]:
    """The account of each run, in their order."""
    run_ids = [run.run_id for run in runs]
    ledgers = _ledgers(connection, run_ids)
    claimed = connection.execute(
        select(_record.c.run_id, _record.c.target).where(_record.c.run_id.in_(run_ids)).distinct()
    )
    reached = {(row.run_id, row.target) for row in claimed}
    reached |= {(run_id, row.entry.target) for run_id, rows in ledgers.items() for row in rows}
    return tuple(
        Account(run, tuple(sorted(target for of, target in reached if of == run.run_id)), ledgers[run.run_id])
        for run in runs
    )


def _freshness(connection: Connection, pipeline: str) -> tuple[TableFreshness, ...]:
    latest, rows = func.max(_batch.c.window_end_us), func.sum(_file.c.row_count)
    staged = connection.execute(
        select(_file.c.table_name, latest.label("latest"), rows.label("rows"))
        .join(_batch, _batch.c.batch_id == _file.c.batch_id)
        .where(_batch.c.pipeline == pipeline)
        .group_by(_file.c.table_name)
        .order_by(latest.desc(), _file.c.table_name)
        .limit(TABLES)
    ).all()
    closed: dict[str, dict[str, int]] = defaultdict(dict)
    for row in connection.execute(
        select(_ledger.c.table_name, _ledger.c.target, func.max(_ledger.c.closed_us).label("closed"))
        .join(tables.run, tables.run.c.run_id == _ledger.c.run_id)
        .where(tables.run.c.pipeline == pipeline)
        .group_by(_ledger.c.table_name, _ledger.c.target)
    ):
        closed[row.table_name][row.target] = row.closed
    return tuple(
        TableFreshness(row.table_name, row.latest, int(row.rows), closed.get(row.table_name, {})) for row in staged
    )


def _latest(connection: Connection, sources: Sequence[str]) -> tuple[BatchRow, ...]:
    found = []
    for source in sources:
        query = select(_batch).where(_batch.c.source == source).order_by(_batch.c.begin_seq.desc()).limit(BATCHES)
        found += [batches.batch_of(row) for row in connection.execute(query)]
    # Stable: within a window the batches of a source keep the order of its log.
    return tuple(sorted(found, key=lambda one: one.window_start_us, reverse=True)[:BATCHES])


def _growth(connection: Connection, pipeline: str, schedule: Windows, watermark_us: int) -> tuple[WindowSums, ...]:
    mine = _batch.c.pipeline == pipeline
    ends = select(func.min(_batch.c.window_start_us), func.max(_batch.c.window_start_us)).where(mine)
    first_us, last_us = connection.execute(ends).one()
    if first_us is None:
        return ()
    spans = list(_back(schedule, first_us, max(last_us, watermark_us - 1)))[::-1]
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    by_window = connection.execute(
        select(_batch.c.window_start_us, func.count(), func.sum(_batch.c.row_count), func.sum(_batch.c.size_bytes))
        .where(mine, _batch.c.window_start_us >= spans[0][0])
        .group_by(_batch.c.window_start_us)
    )
    for start_us, *figures in by_window:
        # A batch staged under an earlier schedule counts in the window that holds its own window's start.
        start, _ = schedule.containing(start_us)
        sums[start] = [have + int(more) for have, more in zip(sums[start], figures, strict=True)]
    return tuple(WindowSums(start, end, *sums[start]) for start, end in spans)


def _back(schedule: Windows, first_us: int, last_us: int) -> Iterator[tuple[int, int]]:
    """The windows from the one that holds `last_us` back to the one that holds `first_us`, at most WINDOWS."""
    window = schedule.containing(last_us)
    for _ in range(WINDOWS):
        yield window
        if window[0] <= first_us:
            return
        window = schedule.containing(window[0] - 1)


def _ledgers(connection: Connection, run_ids: Sequence[str]) -> Mapping[str, tuple[LedgerRow, ...]]:
    found: dict[str, list[LedgerRow]] = {run_id: [] for run_id in run_ids}
    query = select(_ledger).where(_ledger.c.run_id.in_(run_ids)).order_by(_ledger.c.target, _ledger.c.table_name)
    for row in connection.execute(query):
        found[row.run_id].append(ledger_of(row))
    return {run_id: tuple(rows) for run_id, rows in found.items()}
