"""A block: consecutive events of one source, in columns. `source` emits blocks, and the ring holds them.

A block accounts for every byte of the log between its begin and its end. Its entries partition that range:
entry i ends where entry i + 1 begins. An entry is a transaction with captured rows, a statement of DDL, or a
stretch in which nothing was captured (another table's transaction, an event of the file, a rolled-back group). A
transaction larger than a block goes over several: all but the last piece are entries of kind PART.
A block is within one binlog file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.coverage import TableEvent
from cdc_core.model.position import Fingerprint, Position
from cdc_core.model.schema import DefinedSince, TableSchema

NO_TRACE = -1


class EntryKind(IntEnum):
    TRANSACTION = 0
    """A committed transaction, or its last piece."""
    PART = 1
    """A piece of a transaction that continues in the next entry; never a place to resume from. It may have no bytes:
    pieces of one event of the log have no positions of their own."""
    DDL = 2
    """A statement that changed a definition; isolated in a take where DDL isolation is on."""
    UNCAPTURED = 3
    """A stretch without captured rows; may be resumed after."""


@dataclass(frozen=True, slots=True)
class EntryGtids:
    """The GTID of each entry: prefixes[name], `uuid:` or `domain-server-`, then number. name: -1 without one."""

    prefixes: Sequence[str]
    name: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]

    def __getitem__(self, part: slice) -> EntryGtids:
        return EntryGtids(self.prefixes, self.name[part], self.number[part])

    def texts(self) -> pa.StringArray:
        """Null where there is none."""
        prefix = pa.array(self.prefixes, pa.string()).take(pa.array(self.name, mask=self.name < 0))
        return pc.binary_join_element_wise(prefix, pa.array(self.number).cast(pa.string()), "")


@dataclass(frozen=True, slots=True)
class Entries:
    """Columns, one element an entry, in stream order. All arrays have the same length.

    kind:         uint8, an EntryKind.
    begin, end:   int64, offsets in the block's file.
    seq:          int64, order key of the transaction: of its first event, for every piece of it.
    commit_ts_us: int64, commit time in µs UTC as the log says it; 0 for an event of the file.
    events:       int64, binlog events in the entry.
    rows:         int64, captured rows in the entry.
    size_bytes:   int64, memory that the entry holds, for the ring's limits.
    trace, trace_crc: int64, where the trace of the log that ends with the entry begins, and its CRC (see Fingerprint);
                  NO_TRACE if it is unknown.
    """

    kind: npt.NDArray[np.uint8]
    begin: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int64]
    commit_ts_us: npt.NDArray[np.int64]
    events: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int64]
    gtids: EntryGtids
    trace: npt.NDArray[np.int64]
    trace_crc: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)

    def slice(self, start: int, stop: int) -> Entries:
        part = slice(start, stop)
        return Entries(
            self.kind[part],
            self.begin[part],
            self.end[part],
            self.seq[part],
            self.commit_ts_us[part],
            self.events[part],
            self.rows[part],
            self.size_bytes[part],
            self.gtids[part],
            self.trace[part],
            self.trace_crc[part],
        )


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one table definition in a block.

    schema:  the source table's definition as of these rows.
    logical: name of the logical table they belong to; the source's `database.table` until the sink routes it.
    rows:    a record batch with exactly `staged_schema(schema)`'s columns, in stream order.
    entry:   int32, index into the block's entries of each row; ascending.
    """

    schema: TableSchema
    logical: str
    rows: pa.RecordBatch
    entry: npt.NDArray[np.int32]

    def slice(self, start: int, stop: int) -> TableRows:
        """The rows of entries start..stop-1, renumbered from 0; no copy of values."""
        low, high = np.searchsorted(self.entry, [start, stop])
        return TableRows(
            self.schema,
            self.logical,
            self.rows.slice(low, high - low),
            self.entry[low:high] - np.int32(start),
        )


@dataclass(frozen=True, slots=True)
class Block:
    """See the module's docstring.

    begin, end: positions; `end` may name the next file (offset 4) when the block ends with a rotation.
    left_out:   row events that a named rule left out, by rule (such as "table not included"); whole block only. Events,
                not rows: what is not captured is not decoded. Of rows that the sink leaves out it counts the rows.
    isolated:   source tables that are left out because they cannot be read, as of the block's end, -> since where, why.
    definitions: of source tables whose names the log does not carry, as they became known in this block.
    happened:   what statements did to captured tables, for their coverage, in stream order.
    notes:      what an operator should know of this block ("needs re-sync of table X: ..."), in stream order.
    format_crc: of the FORMAT_DESCRIPTION of the block's file; 0 where it is not known.
    """

    source: str
    begin: Position
    end: Position
    entries: Entries
    tables: tuple[TableRows, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    isolated: Mapping[str, str] = field(default_factory=dict)
    definitions: tuple[DefinedSince, ...] = ()
    format_crc: int = 0
    happened: tuple[TableEvent, ...] = ()

    @property
    def size_bytes(self) -> int:
        return int(self.entries.size_bytes.sum())

    def fingerprint(self, before: Fingerprint | None) -> Fingerprint | None:
        """The fingerprint of the log before the block's end; None where it is not known. before: that of its begin."""
        if self.entries.end[-1] == self.begin.offset:
            return before
        if not self.format_crc:
            return None
        begin, end = int(self.entries.trace[-1]), int(self.entries.end[-1])
        if begin == NO_TRACE:
            return Fingerprint(self.format_crc, self.begin.file)
        return Fingerprint(self.format_crc, self.begin.file, begin, end, int(self.entries.trace_crc[-1]))

    def position_after(self, entry: int) -> Position:
        """The position after an entry."""
        if entry == len(self.entries) - 1:
            return self.end
        return Position(self.begin.timeline, self.begin.file, int(self.entries.end[entry]))

    def slice(self, start: int, stop: int) -> Block:
        """Entries start..stop-1 as a block of their own. `left_out` and `notes` go with the block's last entry,
        `definitions` with its first, what happened with the entry in which it did."""
        if start == 0 and stop == len(self.entries):
            return self
        last = stop == len(self.entries)
        tables = (table.slice(start, stop) for table in self.tables)
        return replace(
            self,
            begin=self.begin if start == 0 else self.position_after(start - 1),
            end=self.position_after(stop - 1),
            entries=self.entries.slice(start, stop),
            tables=tuple(table for table in tables if table.rows.num_rows),
            left_out=self.left_out if last else {},
            notes=self.notes if last else (),
            definitions=self.definitions if start == 0 else (),
            happened=tuple(
                event
                for event in self.happened
                if (start == 0 or event.seq >= self.entries.seq[start]) and (last or event.seq < self.entries.seq[stop])
            ),
        )
