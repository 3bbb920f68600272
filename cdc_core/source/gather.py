"""Gathering: row events and what happened between them become one Block of columns.

It may assume entries that are told in stream order, each beginning where the one before ended. It must keep true
that the entries of a block partition its bytes without a hole, and that a block depends on the log alone: where it
is cut changes nothing in its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_core.binlog.rows import DecodedRows, RowImages, decode_rows
from cdc_core.binlog.rows_event import RowsEvent
from cdc_core.binlog.table_map import TableMap
from cdc_core.errors import DataAtRisk, InternalError
from cdc_core.model.block import Block, Entries, EntryKind, TableRows
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import MAX_ROWS_OF_EVENT, ROW_BITS, staged_schema
from cdc_core.source.gtid_sets import compact

ENTRY_BYTES = 96
"""What an entry itself takes, for the ring's limits."""
ROW_BYTES = 100
"""Bookkeeping of a row, roughly, for the decision when a block is large enough."""
NOT_INCLUDED = "table not included"


@dataclass(frozen=True, eq=False, slots=True)
class TableUse:
    """A captured table as one table map describes it; the arrow schema of its staged rows."""

    schema: TableSchema
    table_map: TableMap
    arrow: pa.Schema = field(init=False)
    row_bytes: int = field(init=False)
    """A guess at a row image's size, to guess how many rows an event holds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrow", staged_schema(self.schema))
        object.__setattr__(self, "row_bytes", 1 + 4 * len(self.schema.columns))


@dataclass(frozen=True, slots=True)
class HeldRows:
    """A row event of a captured table. ordinal: among the row events of its transaction. size_bytes: what it will
    take when decoded, roughly."""

    use: TableUse
    rows: RowsEvent
    ordinal: int
    size_bytes: int

    @classmethod
    def of(cls, use: TableUse, rows: RowsEvent, ordinal: int) -> HeldRows:
        size_bytes = len(rows.images)
        return cls(use, rows, ordinal, 2 * size_bytes + ROW_BYTES * (1 + size_bytes // use.row_bytes))


@dataclass(slots=True)
class _Table:
    rows: list[RowsEvent] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)


class Gather:
    """The block that is being filled: from `begin` up to `end`, which moves with each entry."""

    def __init__(self, source: str, begin: Position) -> None:
        self._source = source
        self.begin = begin
        self.end = begin.offset
        self.size_bytes = 0
        self._kind: list[int] = []
        self._begin: list[int] = []
        self._end: list[int] = []
        self._seq: list[int] = []
        self._ts: list[int] = []
        self._events: list[int] = []
        self._gtids: list[list[str]] = []
        self._tables: dict[TableUse, _Table] = {}
        self._passed: Counter[str] = Counter()
        self._notes: list[str] = []

    def __bool__(self) -> bool:
        """Whether the position moved."""
        return bool(self._kind)

    def add(
        self,
        kind: EntryKind,
        end: int,
        *,
        seq: int,
        commit_ts_us: int,
        events: int,
        gtid: str = "",
        rows: Sequence[HeldRows] = (),
    ) -> None:
        """An entry from where the last one ended to `end`. A stretch without rows joins the one before it."""
        if end <= self.end:
            raise InternalError(
                f"An entry ends at {end}, where the one before it ended at {self.end}.",
                where=f"{self._source}, {self.begin.file}:{self.end}",
                code="source.entry_order",
                remedy="report this as a defect; nothing behind the place was staged",
            )
        if kind == EntryKind.PASSED and self._kind and self._kind[-1] == EntryKind.PASSED:
            self._end[-1] = end
            self._ts[-1] = max(self._ts[-1], commit_ts_us)
            self._events[-1] += events
            if gtid:
                self._gtids[-1].append(gtid)
        else:
            self._append(kind, end, seq=seq, commit_ts_us=commit_ts_us, events=events, gtid=gtid)
        self.end = end
        for held in rows:
            table = self._tables.get(held.use)
            if table is None:
                table = self._tables[held.use] = _Table()
            table.rows.append(held.rows)
            table.ordinals.append(held.ordinal)
            table.entries.append(len(self._kind) - 1)
            self.size_bytes += held.size_bytes

    def _append(self, kind: EntryKind, end: int, *, seq: int, commit_ts_us: int, events: int, gtid: str) -> None:
        self._kind.append(kind)
        self._begin.append(self.end)
        self._end.append(end)
        self._seq.append(seq)
        self._ts.append(commit_ts_us)
        self._events.append(events)
        self._gtids.append([gtid] if gtid else [])
        self.size_bytes += ENTRY_BYTES

    def pass_over(self, rule: str, row_events: int = 1) -> None:
        """Counts row events that a named rule leaves out."""
        self._passed[rule] += row_events

    def note(self, text: str) -> None:
        self._notes.append(text)

    def block(self, next_file: str = "") -> Block:
        """What was gathered, decoded. next_file: the block ends with a rotation to it.

        A file may end right where the last block ended (the server stopped, or crashed, and began a new one): then the
        block has one entry of no bytes. Raises what decode_rows raises.
        """
        if not self._kind and next_file:
            self._append(EntryKind.PASSED, self.end, seq=self.begin.seq, commit_ts_us=0, events=0, gtid="")
        end = Position(self.begin.timeline, next_file, 4) if next_file else Position(
            self.begin.timeline, self.begin.file, self.end
        )  # fmt: skip
        count = len(self._kind)
        seq = np.array(self._seq, dtype=np.int64)
        commit_ts_us = np.array(self._ts, dtype=np.int64)
        gtid = pa.array([compact(gtids) for gtids in self._gtids], pa.string())
        rows = np.zeros(count, dtype=np.int64)
        size_bytes = np.full(count, ENTRY_BYTES, dtype=np.int64)
        tables = []
        for use, held in self._tables.items():
            table = self._decoded(use, held, seq, commit_ts_us, gtid)
            per_entry = np.bincount(table.entry, minlength=count)
            rows += per_entry
            if table.rows.num_rows:
                size_bytes += per_entry * (table.rows.nbytes // table.rows.num_rows + 1)
                tables.append(table)
        entries = Entries(
            kind=np.array(self._kind, dtype=np.uint8),
            begin=np.array(self._begin, dtype=np.int64),
            end=np.array(self._end, dtype=np.int64),
            seq=seq,
            commit_ts_us=commit_ts_us,
            events=np.array(self._events, dtype=np.int64),
            rows=rows,
            size_bytes=size_bytes,
            gtid=gtid,
        )
        _require_partition(entries, self.begin.offset, self.end, f"{self._source}, {self.begin}")
        return Block(self._source, self.begin, end, entries, tuple(tables), dict(self._passed), tuple(self._notes))

    def _decoded(
        self,
        use: TableUse,
        held: _Table,
        seq: npt.NDArray[np.int64],
        commit_ts_us: npt.NDArray[np.int64],
        gtid: pa.StringArray,
    ) -> TableRows:
        decoded = decode_rows(use.schema, use.table_map, RowImages.of(held.rows))
        event = decoded.event
        entry = np.array(held.entries, dtype=np.int32)[event]
        places = [row.event for row in held.rows]
        files = pa.array([place.file for place in places], pa.string()).dictionary_encode()
        arrays = [
            *decoded.after,
            decoded.before,
            decoded.op,
            pa.array(commit_ts_us[entry]).cast(pa.timestamp("us", tz="UTC")),
            pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(decoded), np.int32)), pa.array([self._source])),
            files.take(pa.array(event)),
            pa.array(np.array([place.start for place in places], dtype=np.int64)[event]),
            pa.array(self._row_numbers(held, decoded)),
            pa.array(seq[entry]),
            pa.array([text or None for text in gtid.to_pylist()], pa.string()).take(pa.array(entry)),
            decoded.literal,
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=use.arrow)
        return TableRows(use.schema, use.schema.name, rows, entry)

    def _row_numbers(self, held: _Table, decoded: DecodedRows) -> npt.NDArray[np.int64]:
        """`_cdc_row`: the event's ordinal in its transaction, then the row's in its event."""
        counts = decoded.rows_per_event
        if len(counts) and int(counts.max()) >= MAX_ROWS_OF_EVENT:
            worst = held.rows[int(counts.argmax())]
            raise DataAtRisk(
                f"A row event holds {int(counts.max())} rows, more than an order key can number.",
                where=worst.event.where,
                code="source.event_rows",
                remedy="lower binlog_row_event_max_size on the source below 16 MiB (8 KiB is the server's default), "
                "and start behind this transaction with a full copy of its tables",
            )
        first = np.cumsum(counts) - counts
        within = np.arange(len(decoded), dtype=np.int64) - np.repeat(first, counts)
        ordinals = np.array(held.ordinals, dtype=np.int64)[decoded.event]
        numbers: npt.NDArray[np.int64] = ordinals << ROW_BITS | within
        return numbers


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
        raise InternalError(
            f"The entries of a block do not cover the log from {begin} to {end}.",
            where=where,
            code="source.partition",
            remedy="report this as a defect; nothing of this block was staged",
        )
