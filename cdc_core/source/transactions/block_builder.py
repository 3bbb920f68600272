"""Builds a block: entries, and the rows in them, become one Block of columns.

It may assume entries that are added in stream order, each beginning where the one before ended. It must keep true
that the entries of a block partition its bytes without a hole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdc_core.binlog import ordinary
from cdc_core.errors import defect
from cdc_core.model.block import Block, Entries, EntryGtids, EntryKind
from cdc_core.model.coverage import TableEvent
from cdc_core.model.position import Position
from cdc_core.source.transactions.growable import Int64Columns, Longs
from cdc_core.source.transactions.pending_changes import PendingChange, PendingRowEvents, PendingRows, PendingTruncate
from cdc_core.source.transactions.reading_place import NOT_TRACED, Trace
from cdc_core.source.transactions.row_batches import EntryColumns, Isolates, RowBatches

ENTRY_BYTES = 96
"""Size of an entry itself, for the ring's limits."""
NOT_INCLUDED = "table not included"
ISOLATED = "table isolated"

_NO_NAME = -1
_ENTRY_COLUMNS = ("kind", "begin", "end", "seq", "ts", "events", "name", "number", "trace", "trace_crc")
"""name, number: as in EntryGtids."""


@dataclass(frozen=True, slots=True)
class OrdinaryTransactions:
    """Whole transactions in columns, as binlog.ordinary.take_transactions finds them.

    prefixes: of their GTIDs, by name. rows: copied from, not kept; entry: for each, its index into the entries here.
    left_out: row events of tables that are not captured.
    """

    entries: ordinary.EntryArrays
    prefixes: Sequence[str]
    rows: PendingRowEvents
    entry: Longs
    left_out: int
    reached: int


class BlockBuilder:
    """The columns of one block after the other: from `begin` up to `end`, which moves with each entry."""

    def __init__(self, source: str, begin: Position) -> None:
        self._source = source
        self._rows = RowBatches()
        self.restart(begin)

    def restart(self, begin: Position) -> None:
        """Drops what was added; the block begins here."""
        self.begin = begin
        self.end = begin.offset
        self.size_bytes = 0
        self._entries = Int64Columns(_ENTRY_COLUMNS)
        self._prefixes: dict[str, int] = {}
        """Prefixes of GTIDs, numbered."""
        self._rows.clear()
        self._left_out: Counter[str] = Counter()
        self._notes: list[str] = []
        self._happened: list[TableEvent] = []

    def __bool__(self) -> bool:
        """Whether the position moved."""
        return bool(len(self._entries))

    def add(
        self,
        kind: EntryKind,
        end: int,
        *,
        seq: int,
        commit_ts_us: int,
        events: int,
        gtid: str = "",
        rows: Sequence[PendingChange] = (),
        trace: Trace = NOT_TRACED,
    ) -> None:
        """An entry from where the last one ended to `end`. Only a PART may have no bytes."""
        if end < self.end or (end == self.end and kind != EntryKind.PART):
            raise defect(
                f"An entry ends at {end}, but the one before it ended at {self.end}.",
                where=f"{self._source}, {self.begin.file}:{self.end}",
                first="nothing after this position was staged",
            )
        self._append(kind, end, seq=seq, commit_ts_us=commit_ts_us, events=events, gtid=gtid, trace=trace)
        self.end = end
        last = len(self._entries) - 1
        for pending in rows:
            if isinstance(pending, PendingRows):
                self._rows.append(pending, last)
                self.size_bytes += pending.size_bytes
            elif isinstance(pending, PendingTruncate):
                self._rows.add_truncate(pending, last)
            elif len(pending):
                self._rows.extend(pending, last)
                self.size_bytes += pending.size_bytes

    def _append(
        self, kind: EntryKind, end: int, *, seq: int, commit_ts_us: int, events: int, gtid: str, trace: Trace
    ) -> None:
        name, number = _NO_NAME, 0
        if gtid:
            digits = gtid[max(gtid.rfind(":"), gtid.rfind("-")) + 1 :]
            name, number = self._name(gtid.removesuffix(digits)), int(digits)
        self._entries.append(kind, self.end, end, seq, commit_ts_us, events, name, number, *trace)
        self.size_bytes += ENTRY_BYTES

    def _name(self, prefix: str) -> int:
        return self._prefixes.setdefault(prefix, len(self._prefixes))

    def extend(self, groups: OrdinaryTransactions) -> None:
        """Like `add`, for many whole transactions of the block's file at once."""
        new, base = groups.entries, len(self._entries)
        names = np.array([*map(self._name, groups.prefixes), _NO_NAME])  # the last one is at -1, too
        self._entries.extend(
            len(new.kind),
            kind=new.kind,
            begin=new.begin,
            end=new.end,
            seq=new.seq,
            ts=new.commit_ts_us,
            events=new.events,
            name=names[new.name],
            number=new.number,
            trace=new.trace,
            trace_crc=new.trace_crc,
        )
        self.size_bytes += ENTRY_BYTES * len(new.kind)
        self.end = groups.reached
        if groups.left_out:
            self._left_out[NOT_INCLUDED] += groups.left_out
        if len(groups.rows):
            self._rows.extend(groups.rows, groups.entry + base)
            self.size_bytes += groups.rows.size_bytes

    def leave_out(self, rule: str, row_events: int) -> None:
        """Counts row events that a rule, by its name, leaves out."""
        self._left_out[rule] += row_events

    def note(self, text: str) -> None:
        self._notes.append(text)

    def happened(self, event: TableEvent) -> None:
        self._happened.append(event)

    def build(self, next_file: str = "", isolates: Isolates = lambda *_: False) -> Block:
        """The block of all that was added, decoded; the next one begins where it ends. next_file: the block ends with
        a rotation to it.

        A file may end right where the last block ended (the server stopped, or crashed, and began a new one): then the
        block has one entry of no bytes. Raises what decode_rows raises.
        """
        if not self and next_file:
            self._append(
                EntryKind.UNCAPTURED, self.end, seq=self.begin.seq, commit_ts_us=0, events=0, gtid="", trace=NOT_TRACED
            )
        end = (
            Position(self.begin.timeline, next_file, 4)
            if next_file
            else Position(self.begin.timeline, self.begin.file, self.end)
        )
        columns, count = self._entries, len(self._entries)
        gtids = EntryGtids(tuple(self._prefixes), columns["name"], columns["number"])
        rows = np.zeros(count, dtype=np.int64)
        size_bytes = np.full(count, ENTRY_BYTES, dtype=np.int64)
        built, isolated = self._rows.build(
            EntryColumns(columns["seq"], columns["ts"], gtids.texts()), self._source, self.begin, isolates
        )
        if isolated:
            self.leave_out(ISOLATED, isolated)
        tables = []
        for table in built:
            per_entry = np.bincount(table.entry, minlength=count)
            rows += per_entry
            if table.rows.num_rows:
                size_bytes += per_entry * (table.rows.nbytes // table.rows.num_rows + 1)
                tables.append(table)
        entries = Entries(
            kind=columns["kind"].astype(np.uint8),
            begin=columns["begin"],
            end=columns["end"],
            seq=columns["seq"],
            commit_ts_us=columns["ts"],
            events=columns["events"],
            rows=rows,
            size_bytes=size_bytes,
            gtids=gtids,
            trace=columns["trace"],
            trace_crc=columns["trace_crc"],
        )
        _require_partition(entries, self.begin.offset, self.end, f"{self._source}, {self.begin}")
        block = Block(
            self._source,
            self.begin,
            end,
            entries,
            tuple(tables),
            dict(self._left_out),
            tuple(self._notes),
            happened=tuple(self._happened),
        )
        self.restart(end)
        return block


def _require_partition(entries: Entries, begin: int, end: int, where: str) -> None:
    """The rule that no byte of the log is unaccounted for, checked where a block is made."""
    whole = (
        len(entries) > 0
        and entries.begin[0] == begin
        and entries.end[-1] == end
        and bool((entries.begin[1:] == entries.end[:-1]).all())
        and bool((entries.begin <= entries.end).all())
    )
    if not whole:
        raise defect(
            f"The entries of a block do not cover the log from {begin} to {end}.",
            where=where,
            first="nothing of this block was staged",
        )
