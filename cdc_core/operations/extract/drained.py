"""How far an extractor is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc_core.model.coverage import TableCoverage
from cdc_core.model.position import Position


@dataclass(frozen=True, slots=True)
class StagingTotals:
    """Totals since the stager was created."""

    batches: int = 0
    files: int = 0
    rows: int = 0
    events: int = 0
    size_bytes: int = 0


NOTHING = StagingTotals()


@dataclass(frozen=True, slots=True)
class DrainStats:
    """Waits and losses of a drain.

    put_waits, take_waits: of the ring. A reader that waits is faster than staging, a stager that waits faster than
    the source.
    losses:                connections to the source that were lost and opened again.
    """

    put_waits: int = 0
    take_waits: int = 0
    losses: int = 0


@dataclass(frozen=True, slots=True)
class DrainResult:
    """What a drain has reached. `done`: everything requested is staged; otherwise call again.

    Counts are totals since the extractor was opened. partial: captured source tables of which rows are missing.
    """

    done: bool
    staged: StagingTotals
    position: Position
    watermark_us: int
    stats: DrainStats = DrainStats()
    partial: Mapping[str, TableCoverage] = field(default_factory=dict)
