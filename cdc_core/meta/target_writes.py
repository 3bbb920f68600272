"""What a target must still have: for each of its tables, the last transaction that a closed ledger counts.

A ledger is closed here, in another database than its rows. A target that fails over to a replica that lagged, or that
is restored from a backup, may lack transactions that ledgers count: the tasks compare these rows with the target.
Keeps true: an entry is replaced only by a later transaction, or where `renewed` says that the target was looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from cdc_core.meta.ledgers import Counts, Spans
from cdc_core.meta.meta_rows import ClosedWrite, LastWrite, LastWrites, Renewal, Renewals, StillLost
from cdc_core.meta.meta_schema import apply_ledger as _ledger
from cdc_core.meta.meta_schema import last_write as _last
from cdc_core.meta.repository import Repository, reads, writes
from cdc_core.model.json_codec import parsed, text_of
from cdc_core.model.run_plan import WriteCounts

_Shards = dict[str, LastWrite]


class TargetWrites(Repository):
    @reads
    def last(self, target: str) -> LastWrites:
        """The last transactions that closed ledgers count: the target must have them."""
        query = select(_last).where(_last.c.target == target).order_by(_last.c.table_name)
        return {row.table_name: parsed(_Shards, row.shards) for row in self.execute(query)}

    @reads
    def closed(self, target: str, table: str) -> tuple[ClosedWrite, ...]:
        """The closed ledgers of one table that meta still has, in the order of their closing."""
        query = (
            select(_ledger.c.run_id, _ledger.c.shards, _ledger.c.spans)
            .where(_ledger.c.target == target, _ledger.c.table_name == table)
            .order_by(_ledger.c.closed_us, _ledger.c.run_id)
        )
        closed_writes = []
        for run_id, shards, spans in self.execute(query):
            counts = parsed(Counts, shards)
            numbers = {count.shard: count.number for count in counts if count.number}
            rows = {count.shard: count.written for count in counts}
            closed_writes.append(ClosedWrite(run_id, numbers, rows, parsed(Spans, spans)))
        return tuple(closed_writes)

    def keep(self, target: str, run_id: str, counts: Iterable[WriteCounts], lost: StillLost) -> None:
        """A ledger that is closed now counts these transactions. The entries of shards that lack writes stay; renewed
        ones are written where those that were looked for still are."""
        mine: dict[str, dict[str, LastWrite]] = {}
        for count in counts:
            if count.number:
                mine.setdefault(count.table, {})[count.shard] = LastWrite(run_id, count.number)
        for table in sorted({*mine, *lost.renewed}):
            known = self._entries(target, table)
            entries = dict(known)
            for shard, write in mine.get(table, {}).items():
                stays = shard in entries and entries[shard].number > write.number
                if not stays and shard not in lost.lacking.get(table, ()):
                    entries[shard] = write
            self._store(target, table, _renewed(entries, known, lost.renewed.get(table, {})))

    @writes
    def accept(self, target: str, shown: Renewals) -> None:
        """The target need have nothing of these tables' shards but what it shows, if nothing was written since."""
        for table in sorted(shown):
            entries = self._entries(target, table)
            self._store(target, table, _renewed(entries, entries, shown[table]))

    def _entries(self, target: str, table: str) -> dict[str, LastWrite]:
        """The entries of a table, locked until the transaction ends."""
        chosen = select(_last.c.shards).where(_last.c.target == target, _last.c.table_name == table).with_for_update()
        known = self.execute(chosen).scalar_one_or_none()
        if known is None:
            with suppress(IntegrityError), self.connection.begin_nested():  # another run may insert it at this moment
                self.execute(insert(_last).values(target=target, table_name=table, shards="{}", updated_us=0))
            known = self.execute(chosen).scalar_one()
        return parsed(_Shards, known)

    def _store(self, target: str, table: str, entries: Mapping[str, LastWrite]) -> None:
        text = text_of(dict(sorted(entries.items())), _Shards)
        self.execute(
            update(_last)
            .where(_last.c.target == target, _last.c.table_name == table)
            .values(shards=text, updated_us=self.now_us())
        )


def _renewed(
    entries: Mapping[str, LastWrite], known: Mapping[str, LastWrite], by: Mapping[str, Renewal]
) -> dict[str, LastWrite]:
    """known: the entries so far. What another process has written since the shard was looked at stays."""
    due = {shard: renewal.last for shard, renewal in by.items() if known.get(shard) == renewal.due}
    kept = {shard: entry for shard, entry in entries.items() if shard not in due}
    return kept | {shard: last for shard, last in due.items() if last is not None}
