"""The block that is being filled: groups become its entries, and closing it adds what it says of tables.

It must keep true that no row of a table that is isolated leaves with a group that ends afterwards.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace

from cdc_core.model.block import Block, EntryKind
from cdc_core.model.coverage import Happened, TableEvent
from cdc_core.model.schema import TableName
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.sql.statement_judge import StatementJudge
from cdc_core.source.transactions.block_builder import ISOLATED, BlockBuilder, OrdinaryTransactions
from cdc_core.source.transactions.open_group import OpenGroup
from cdc_core.source.transactions.pending_changes import PendingChange
from cdc_core.source.transactions.reading_place import ReadingPlace

Blocks = Generator[Block, None, None]
"""The blocks that an event completes; each leaves before the rest of the event is read."""


class OpenBlock:
    """builder: its columns. limit_bytes: it is closed at about this size.

    What it says of tables in the past (StatementJudge) was said when the log was first read, and is not said again.
    """

    def __init__(
        self,
        builder: BlockBuilder,
        place: ReadingPlace,
        tables: TableRegistry,
        judge: StatementJudge,
        *,
        limit_bytes: int,
    ) -> None:
        self.builder = builder
        self.limit_bytes = limit_bytes
        self._place = place
        self._tables = tables
        self._judge = judge
        self._cascades = judge.cascades
        self._past = judge.past

    def add(self, group: OpenGroup, kind: EntryKind, rows: list[PendingChange], end: int) -> None:
        """Ends a group, or a piece of it (PART), with an entry up to `end`."""
        if self._tables.isolated:
            # A table may have been isolated after its rows came: then all its rows in the transaction are left out.
            kept = [left for pending in rows if (left := pending.without(self._tables.isolated)) is not None]
            if lost := sum(map(len, rows)) - sum(map(len, kept)):
                group.left_out[ISOLATED] += lost
                group.cascaded(self._changed_with(self._tables.isolated))
            rows = kept
        builder = self.builder
        builder.add(
            kind,
            end,
            seq=group.seq,
            commit_ts_us=group.commit_ts_us,
            events=group.events,
            gtid=group.gtid,
            rows=rows,
            trace=self._place.trace,
        )
        for rule, count in group.left_out.items():
            builder.leave_out(rule, count)
        for note in group.notes:
            builder.note(note)
        for table, what in group.happened:
            builder.happened(TableEvent(table, what, group.seq, group.commit_ts_us, self._place.position(group.start)))

    def extend(self, groups: OrdinaryTransactions) -> Blocks:
        """Takes whole ordinary groups at once, while no group is open."""
        self._place.advance(groups.reached, (int(groups.entries.trace[-1]), int(groups.entries.trace_crc[-1])))
        self.builder.extend(groups)
        yield from self.close_full()

    def close_full(self) -> Blocks:
        if self.builder.size_bytes >= self.limit_bytes:
            yield self.close()

    def flush(self) -> Block | None:
        """A block of all complete groups, if the position moved."""
        return self.close() if self.builder else None

    def close(self, next_file: str = "") -> Block:
        """Ends the block; the next one begins where it ended. next_file: the log continues in it."""
        before = set(self._tables.isolated)
        block = self.builder.build(next_file, lambda name, error, begin: self._judge.isolates(name, error, f"{begin}"))
        block = replace(block, isolated=dict(self._tables.isolated), format_crc=self._place.format_crc)
        if not self._past:
            unread = self._unread(block, self._tables.isolated.keys() - before)
            happened = (*block.happened, *self._cascades.of_rows(block), *unread)
            block = replace(block, happened=happened, definitions=self._tables.learned(block.end))
        if next_file:
            self._place.switch(next_file)
        return block

    def _unread(self, block: Block, isolated: Iterable[str]) -> Iterator[TableEvent]:
        """What rows of tables that turned out to be unreadable in a block may have done to others by foreign keys."""
        for child in sorted(self._changed_with(isolated)):
            moment_us = int(block.entries.commit_ts_us.max())
            yield TableEvent(".".join(child), Happened.CASCADED, block.end.seq - 1, moment_us, f"{block.end}")

    def _changed_with(self, isolated: Iterable[str]) -> frozenset[TableName]:
        """The captured tables that foreign keys may change with rows of isolated ones."""
        names = (name.partition(".") for name in isolated)
        return frozenset().union(*(self._cascades.changed_with((one, other)) for one, _, other in names))
