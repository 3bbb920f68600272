"""Builds a block: entries, and the rows in them, become one Block of columns.

It may assume entries that are added in stream order, each beginning where the one before ended. It must keep true
that the entries of a block partition its bytes without a hole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.binlog import ordinary
from cdc_core.binlog.gtid_text import written
from cdc_core.errors import defect
from cdc_core.model.block import NO_TRACE, Block, Entries, EntryKind
from cdc_core.model.coverage import TableEvent
from cdc_core.model.position import Position
from cdc_core.source.host.gtid_sets import compact
from cdc_core.source.transactions.pending_changes import PendingChange, PendingRowEvents, PendingRows, PendingTruncate
from cdc_core.source.transactions.row_batches import EntryColumns, Isolates, RowBatches
from cdc_core.source.wire.growable import Int64Columns, Longs

ENTRY_BYTES = 96
"""Size of an entry itself, for the ring's limits."""
NOT_INCLUDED = "table not included"
ISOLATED = "table isolated"
Trace = tuple[int, int]
"""Where the trace of the log before a position begins, and its CRC; see Fingerprint."""
NOT_TRACED: Trace = (NO_TRACE, 0)

_NO_NAME = -1
_ENTRY_COLUMNS = ("kind", "begin", "end", "seq", "ts", "events", "name", "low", "high", "trace", "trace_crc")
"""name, low, high: an entry's GTID as a run of numbers after a prefix; _NO_NAME where it has none, or texts."""


@dataclass(frozen=True, slots=True)
class OrdinaryTransactions:
    """Whole transactions in columns, as binlog.ordinary.take_transactions finds them.

    entries: a first UNCAPTURED one may join the entry before. runs: their GTIDs; of a name the text is prefixes[name].
    rows: copied from, not kept; entry: for each, its index into the entries here. left_out: row events of tables that
    are not captured.
    """

    entries: ordinary.EntryArrays
    runs: ordinary.GtidRuns
    prefixes: Sequence[str]
    rows: PendingRowEvents
    entry: Longs
    left_out: int
    reached: int


class BlockBuilder:
    """The block that is being filled: from `begin` up to `end`, which moves with each entry."""

    def __init__(self, source: str, begin: Position, built: BlockBuilder | None = None) -> None:
        """built: a builder whose block was built; its row memory is used again."""
        self._source = source
        self.begin = begin
        self.end = begin.offset
        self.size_bytes = 0
        self._entries = Int64Columns(_ENTRY_COLUMNS)
        self._gtids: dict[int, list[str]] = {}
        """Of entries that have no name: their GTIDs as texts."""
        self._prefixes: Sequence[str] = ()
        self._rows: RowBatches = RowBatches() if built is None else built._rows
        self._rows.clear()
        self._left_out: Counter[str] = Counter()
        self._notes: list[str] = []
        self._happened: list[TableEvent] = []

    def __bool__(self) -> bool:
        """Whether the position moved."""
        return bool(len(self._entries))

    @property
    def in_uncaptured(self) -> bool:
        """The last entry is a stretch that a next one would join."""
        return bool(self) and self._entries["kind"][-1] == EntryKind.UNCAPTURED

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
        """An entry from where the last one ended to `end`. A stretch without rows joins the one before it; only a
        PART may have no bytes."""
        if end < self.end or (end == self.end and kind != EntryKind.PART):
            raise defect(
                f"An entry ends at {end}, but the one before it ended at {self.end}.",
                where=f"{self._source}, {self.begin.file}:{self.end}",
                first="nothing after this position was staged",
            )
        if kind == EntryKind.UNCAPTURED and self.in_uncaptured:
            self._join(end, commit_ts_us, events, [gtid] if gtid else [], trace)
        else:
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
        if gtid:
            self._gtids[len(self._entries)] = [gtid]
        self._entries.append(kind, self.end, end, seq, commit_ts_us, events, _NO_NAME, 0, 0, *trace)
        self.size_bytes += ENTRY_BYTES

    def _join(self, end: int, commit_ts_us: int, events: int, gtids: Sequence[str], trace: Trace) -> None:
        entries, last = self._entries, len(self._entries) - 1
        entries["end"][last] = end
        entries["ts"][last] = max(entries["ts"][last], commit_ts_us)
        entries["events"][last] += events
        entries["trace"][last], entries["trace_crc"][last] = trace
        if entries["name"][last] != _NO_NAME:
            # A run has one prefix and no gaps, and the GTIDs of what joins need not continue it: as texts, all of them
            # are put into one set when the block is built.
            name, low, high = (int(entries[column][last]) for column in ("name", "low", "high"))
            self._gtids[last] = [_run_text(self._prefixes[name], low, high)]
            entries["name"][last] = _NO_NAME
        if gtids:
            self._gtids.setdefault(last, []).extend(gtids)

    def extend(self, groups: OrdinaryTransactions) -> None:
        """Like `add`, for many whole transactions of the block's file at once."""
        first = 0
        new, runs = groups.entries, groups.runs
        named = np.bincount(runs.entry, minlength=len(new.kind))
        self._prefixes = groups.prefixes
        if len(new.kind) and new.kind[0] == EntryKind.UNCAPTURED and self.in_uncaptured:
            joining = _run_texts(groups, 0, int(named[0]))
            trace = (int(new.trace[0]), int(new.trace_crc[0]))
            self._join(int(new.end[0]), int(new.commit_ts_us[0]), int(new.events[0]), joining, trace)
            first = 1
        base = len(self._entries) - first
        name, low, high = (np.full(len(named), _NO_NAME, np.int64) for _ in range(3))
        single = named[runs.entry] == 1
        at = runs.entry[single]
        name[at], low[at], high[at] = runs.name[single], runs.low[single], runs.high[single]
        starts = np.cumsum(named) - named
        for entry in np.flatnonzero(named > 1):
            if entry >= first:
                self._gtids[base + int(entry)] = _run_texts(groups, int(starts[entry]), int(named[entry]))
        added = len(named) - first
        self._entries.extend(
            added, kind=new.kind[first:], begin=new.begin[first:], end=new.end[first:], seq=new.seq[first:],
            ts=new.commit_ts_us[first:], events=new.events[first:], name=name[first:], low=low[first:],
            high=high[first:], trace=new.trace[first:], trace_crc=new.trace_crc[first:],
        )  # fmt: skip
        self.size_bytes += ENTRY_BYTES * added
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
        """The block of all that was added, decoded. next_file: the block ends with a rotation to it.

        A file may end right where the last block ended (the server stopped, or crashed, and began a new one): then the
        block has one entry of no bytes. Raises what decode_rows raises.
        """
        if not self and next_file:
            self._append(
                EntryKind.UNCAPTURED, self.end, seq=self.begin.seq, commit_ts_us=0, events=0, gtid="", trace=NOT_TRACED
            )
        end = Position(self.begin.timeline, next_file, 4) if next_file else Position(
            self.begin.timeline, self.begin.file, self.end
        )  # fmt: skip
        columns, count = self._entries, len(self._entries)
        gtid = self._gtid_texts()
        rows = np.zeros(count, dtype=np.int64)
        size_bytes = np.full(count, ENTRY_BYTES, dtype=np.int64)
        named = pc.if_else(pc.equal(gtid, ""), pa.scalar(None, pa.string()), gtid)
        built, isolated = self._rows.build(
            EntryColumns(columns["seq"], columns["ts"], named), self._source, self.begin, isolates
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
            gtid=gtid,
            trace=columns["trace"],
            trace_crc=columns["trace_crc"],
        )
        _require_partition(entries, self.begin.offset, self.end, f"{self._source}, {self.begin}")
        return Block(
            self._source, self.begin, end, entries, tuple(tables), dict(self._left_out), tuple(self._notes),
            happened=tuple(self._happened),
        )  # fmt: skip

    def _gtid_texts(self) -> pa.StringArray:
        """The GTID of each entry, "" where there is none."""
        name, low, high = self._entries["name"], self._entries["low"], self._entries["high"]
        joined = written(self._prefixes, name, low, high)
        if not self._gtids:
            return joined
        mask = np.zeros(len(self._entries), np.bool_)
        mask[list(self._gtids)] = True
        others = [compact(self._gtids[entry]) for entry in sorted(self._gtids)]
        return pc.replace_with_mask(joined, pa.array(mask), pa.array(others, pa.string()))


def _run_text(prefix: str, low: int, high: int) -> str:
    return f"{prefix}{low}" if low == high else f"{prefix}{low}-{high}"


def _run_texts(groups: OrdinaryTransactions, first: int, count: int) -> list[str]:
    return [
        _run_text(groups.prefixes[int(groups.runs.name[k])], int(groups.runs.low[k]), int(groups.runs.high[k]))
        for k in range(first, first + count)
    ]


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
