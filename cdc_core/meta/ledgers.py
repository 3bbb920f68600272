"""Ledgers: the account of each table and target in a run, closed with its commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Row, insert, select, update

from cdc_core.meta.meta_rows import LedgerRow, SetAside
from cdc_core.meta.meta_schema import apply_ledger as _ledger
from cdc_core.meta.repository import Repository, reads, writes
from cdc_core.model.json_codec import parsed, text_of
from cdc_core.model.run_plan import LedgerEntry, WriteCounts

Counts = tuple[WriteCounts, ...]
Spans = dict[str, tuple[str, str]]
"""The first and the last batch of each source."""
_FIGURES = ("staged_rows", "key_changes", "winners", "superseded", "written", "stale", "absent")


class Ledgers(Repository):
    @reads
    def find(self, run_id: str, target: str | None = None) -> tuple[LedgerRow, ...]:
        """A run's ledger, of one target or of all, by target and table; empty before its commit."""
        query = select(_ledger).where(_ledger.c.run_id == run_id)
        if target is not None:
            query = query.where(_ledger.c.target == target)
        return tuple(ledger_of(row) for row in self.execute(query.order_by(_ledger.c.target, _ledger.c.table_name)))

    @reads
    def set_aside(self, target: str | None = None) -> tuple[SetAside, ...]:
        """Rows that the target rejected, as long as it lacks them."""
        query = select(_ledger).where(_ledger.c.set_aside > 0).order_by(_ledger.c.closed_us, _ledger.c.table_name)
        return tuple(
            SetAside(row.run_id, row.target, row.table_name, row.set_aside, row.closed_us)
            for row in self.execute(query if target is None else query.where(_ledger.c.target == target))
        )

    @writes
    def settle(
        self, target: str, *, run_id: str | None = None, table: str | None = None, before_us: int | None = None
    ) -> None:
        """The target lacks no more of what was set aside: of these runs and tables, by ledgers closed before then."""
        mine = (_ledger.c.target == target) & (_ledger.c.set_aside > 0)
        for column, value in ((_ledger.c.run_id, run_id), (_ledger.c.table_name, table)):
            mine = mine if value is None else mine & (column == value)
        if before_us is not None:
            mine &= _ledger.c.closed_us < before_us
        self.execute(update(_ledger).where(mine).values(set_aside=0))

    def close(
        self,
        run_id: str,
        target: str,
        entries: Sequence[LedgerEntry],
        shards: Sequence[WriteCounts],
        spans: Mapping[str, Mapping[str, tuple[str, str]]],
    ) -> None:
        """The accounts of a run that commits a target. spans: RunPlan.spans."""
        now = self.now_us()
        if entries:
            self.execute(
                insert(_ledger),
                [
                    {
                        "run_id": run_id,
                        "target": target,
                        "table_name": entry.table,
                        **{figure: getattr(entry, figure) for figure in _FIGURES},
                        "shards": text_of(tuple(shard for shard in shards if shard.table == entry.table), Counts),
                        "closed_us": now,
                        "spans": text_of(spans.get(entry.table, {}), Spans),
                        "set_aside": sum(shard.quarantined for shard in shards if shard.table == entry.table),
                    }
                    for entry in entries
                ],
            )
        self._settle_repeated(run_id, target, spans)

    def _settle_repeated(self, run_id: str, target: str, spans: Mapping[str, Mapping[str, tuple[str, str]]]) -> None:
        """Rows set aside from batches that this run has taken again: its own ledger says which are lacking now."""
        query = select(_ledger).where(_ledger.c.target == target, _ledger.c.set_aside > 0, _ledger.c.run_id != run_id)
        for row in self.execute(query).all():
            taken, former = spans.get(row.table_name, {}), parsed(Spans, row.spans)
            whole = [taken[source] for source in former if source in taken]
            if len(whole) == len(former) and all(
                first <= begin and end <= last
                for (first, last), (begin, end) in zip(whole, former.values(), strict=True)
            ):
                self.settle(target, run_id=row.run_id, table=row.table_name)


def ledger_of(row: Row[tuple[object, ...]]) -> LedgerRow:
    figures = {figure: getattr(row, figure) for figure in _FIGURES}
    shards = parsed(Counts, row.shards)
    figures |= {name: sum(getattr(shard, name) for shard in shards) for name in ("equal", "quarantined")}
    entry = LedgerEntry(run_id=row.run_id, target=row.target, table=row.table_name, **figures)
    return LedgerRow(entry, shards, row.closed_us)
