"""What the tasks report to Airflow's metrics (StatsD or OpenTelemetry, as configured there; nothing without either).

Counters grow by what a call added, so that tries, pokes and processes sum up. docs/operations.md lists the names.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cdc_core.process.informing import informing

if TYPE_CHECKING:
    from cdc_core.operations.apply.commit import CommitSummary
    from cdc_core.operations.extract import DrainResult

_APPLIED = ("winners", "written", "stale", "absent", "quarantined")


@informing("A metric")
def lag(pipeline: str, source: str, watermark_us: int) -> None:
    """How far a source lags behind this host's clock; nothing without a watermark.

    0 if a clock was ahead: StatsD reads a gauge with a minus sign as a change of the previous value.
    """
    from airflow.sdk.observability import stats

    if watermark_us:
        lag_s = max(0.0, time.time_ns() / 1e9 - watermark_us / 1e6)
        stats.gauge("lockstep.lag_seconds", lag_s, tags={"pipeline": pipeline, "source": source})


@informing("A metric")
def drained(pipeline: str, source: str, result: DrainResult, before: DrainResult | None) -> None:
    """A drain of an extractor, whose previous drain returned `before`."""
    lag(pipeline, source, result.watermark_us)
    now, then = _totals(result), _totals(before) if before is not None else {}
    for name, total in now.items():
        _count(f"lockstep.{name}", total - then.get(name, 0), pipeline=pipeline, source=source)


@informing("A metric")
def committed(pipeline: str, summary: CommitSummary) -> None:
    """The commit of a target; a repeated one counts nothing."""
    if not summary.again:
        for name in _APPLIED:
            total = sum(getattr(table, name) for table in summary.tables)
            _count(f"lockstep.rows_{name}", total, pipeline=pipeline, target=summary.target)


def _totals(result: DrainResult) -> dict[str, int]:
    staged, stats = result.staged, result.stats
    return {
        "batches_staged": staged.batches,
        "rows_staged": staged.rows,
        "events_staged": staged.events,
        "bytes_staged": staged.size_bytes,
        "ring_put_waits": stats.put_waits,
        "ring_take_waits": stats.take_waits,
        "source_retries": stats.losses,
    }


def _count(name: str, more: int, **tags: str) -> None:
    from airflow.sdk.observability import stats

    if more:
        stats.incr(name, more, tags=tags)
