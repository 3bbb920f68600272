"""What is written to a table of a shard at once, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.model.run_plan import WriteCounts
from cdc_core.targets.reading.table_facts import TableFacts
from cdc_core.targets.writing.load import Unfit


@dataclass(frozen=True, slots=True)
class WritePart:
    """One of several parts of the rows of a run. more: others follow. before: what those before it have done; None for
    the first. mark, after: of this one and of the one before it, a time (UTC, as text) that no other part has: the
    ledger row shows it."""

    more: bool
    mark: str
    before: WriteCounts | None = None
    after: str = ""


@dataclass(frozen=True, slots=True)
class ShardWrite:
    """What is written where. placement: which rows the table is for (ShardTable.placement). freshness: as in
    config.MysqlTable. ledger: note the counts (a second pass notes only that it was). quarantine: rows that the table
    rejects are left out, instead of an error. pipeline: the one that writes, which a fence may let through. part: None
    for all rows of the run. after: of a second pass, the number of the run's first transaction; 0 where there was none.
    """

    run_id: str
    logical: str
    facts: TableFacts
    placement: str
    freshness: str | None = None
    ledger: bool = True
    quarantine: bool = False
    pipeline: str = ""
    part: WritePart | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class ShardResult:
    """counts: of the transaction. unfit: the rows left out, as many as counts.quarantined."""

    counts: WriteCounts
    unfit: tuple[Unfit, ...] = ()
