"""Row images of a block, by table, to record batches.

It must keep true that the rows of a block depend on the log alone, not on where blocks are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from cdc_core.binlog import ordinary
from cdc_core.binlog.row_columns import DecodedRows, decode_rows
from cdc_core.binlog.row_images import RowImages
from cdc_core.binlog.rows_event import UPDATE
from cdc_core.errors import GIVE_UP, DataAtRisk, LockstepError, Refused
from cdc_core.model.block import TableRows
from cdc_core.model.places import repeated
from cdc_core.model.position import OFFSET_BITS, Position
from cdc_core.model.schema import TableName
from cdc_core.model.staged_columns import (
    FILE,
    GTID,
    MAX_ROWS_OF_EVENT,
    OP,
    POS,
    ROW,
    ROW_BITS,
    SEQ,
    SOURCE,
    TRUNCATE,
    TS,
    staged_schema,
)
from cdc_core.source.transactions.growable import GrowableBytes, Int64Columns, Longs
from cdc_core.source.transactions.pending_changes import (
    MappedTable,
    PendingRowEvents,
    PendingRows,
    PendingTruncate,
)

Isolates = Callable[[TableName, LockstepError, Position], bool]
"""Whether to isolate a table from a transaction on, since its rows cannot be decoded."""

_OFFSETS = (1 << OFFSET_BITS) - 1
_COLUMNS = (
    "table", "start", "stop", "change", "pair", "columns", "ordinal", "entry", "offset", "file", "partial",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """What rows inherit from the entries of their block: one element per entry. gtid: null where there is none."""

    seq: Longs
    commit_ts_us: Longs
    gtid: pa.StringArray


class RowBatches:
    """The row events of a block, in stream order, until they are decoded together, table by table."""

    def __init__(self) -> None:
        self._events = Int64Columns(_COLUMNS)
        self._images = GrowableBytes()
        self._tables: dict[MappedTable, int] = {}
        self._pairs: dict[tuple[bytes, bytes], int] = {}
        self._files: dict[str, int] = {}
        self._truncates: list[tuple[int, PendingTruncate]] = []

    def clear(self) -> None:
        """Drops all rows. The memory is reused, as fresh memory costs page faults."""
        self._events.clear()
        self._images.clear()
        self._tables, self._pairs, self._files, self._truncates = {}, {}, {}, []

    def append(self, pending: PendingRows, entry: int) -> None:
        """One row event of an entry."""
        rows, event = pending.rows, pending.rows.event
        start = self._images.add_space(len(rows.images))
        stop = len(self._images)
        self._images.data[start:stop] = np.frombuffer(rows.images, np.uint8)
        self._events.append(
            _number(self._tables, pending.table),
            start,
            stop,
            rows.kind,
            _number(self._pairs, (rows.present, rows.present_after)),
            rows.columns,
            pending.ordinal,
            entry,
            event.start,
            _number(self._files, event.file),
            rows.partial,
        )

    def extend(self, events: PendingRowEvents, entry: Longs | int) -> None:
        """Many row events. entry: of each, or of all."""
        start, stop = events.start.copy(), events.stop.copy()
        free = self._images.add_space(int((stop - start).sum()))
        ordinary.pack(events.buffer, start, stop, len(events), self._images.data, free)
        number = np.zeros(len(events.tables), np.int64)
        columns = number.copy()
        pairs = np.zeros((len(events.tables), 3), np.int64)
        kinds = 3 * events.table + events.change
        present = np.flatnonzero(np.bincount(kinds))
        # Tables and bitmaps are numbered in the order of their first use, as in `append`: the parts of a block come in
        # that order, which must not depend on which of the two methods added the rows.
        for kind in sorted(present.tolist(), key=lambda kind: int(np.argmax(kinds == kind))):
            at, change = divmod(kind, 3)
            table = events.tables[at]
            number[at] = _number(self._tables, table)
            columns[at] = table.table_map.columns
            full = all_columns(table.table_map.columns)
            pairs[at, change] = _number(self._pairs, (full, full if change == UPDATE else b""))
        self._events.extend(
            len(events),
            table=number[events.table],
            start=start,
            stop=stop,
            change=events.change,
            pair=pairs[events.table, events.change],
            columns=columns[events.table],
            ordinal=events.ordinal,
            entry=entry,
            offset=events.offset,
            file=_number(self._files, events.file),
            partial=0,
        )

    def add_truncate(self, pending: PendingTruncate, entry: int) -> None:
        self._truncates.append((entry, pending))

    def build(
        self, entries: EntryColumns, source: str, begin: Position, isolates: Isolates
    ) -> tuple[list[TableRows], int]:
        """The rows of each table, and how many row events were left out because their table was isolated. Truncates
        come last, one part each. begin: of the block. Raises what decode_rows raises for a table that is not isolated.

        An isolated table keeps its transactions before the first that cannot be decoded.
        """
        parts = [
            (table, events, self._try_decode(table, events, entries, source)) for table, events in self._by_table()
        ]
        since: dict[TableName, int] = {}
        errors: dict[TableName, LockstepError] = {}
        for table, events, found in parts:
            # A table whose definition changed has several parts; their earliest failure counts for all of them.
            if not isinstance(found, TableRows):
                seq = self._undecodable_since(table, events, entries, source)
                if seq <= since.get(table.name, seq):
                    since[table.name], errors[table.name] = seq, found
        for name, error in errors.items():
            if not isolates(name, error, Position(begin.timeline, begin.file, since[name] & _OFFSETS)):
                raise error
        built, left_out = [], 0
        for table, events, found in parts:
            if table.name in since:
                before = events[self._seqs(events, entries) < since[table.name]]
                left_out += len(events) - len(before)
                if not len(before):
                    continue
                found = self._decode(table, before, entries, source)
            assert isinstance(found, TableRows)
            built.append(found)
        built += [_truncated(pending, entry, entries, source) for entry, pending in self._truncates]
        return built, left_out

    def _try_decode(
        self, table: MappedTable, events: Longs, entries: EntryColumns, source: str
    ) -> TableRows | LockstepError:
        try:
            return self._decode(table, events, entries, source)
        except (DataAtRisk, Refused) as error:
            return error

    def _undecodable_since(self, table: MappedTable, events: Longs, entries: EntryColumns, source: str) -> int:
        """The order key of the first transaction that cannot be decoded; at least one of the events cannot."""
        seqs = self._seqs(events, entries)
        distinct = np.unique(seqs)
        good, bad = -1, len(distinct) - 1
        while bad - good > 1:
            middle = (good + bad) // 2
            found = self._try_decode(table, events[seqs <= distinct[middle]], entries, source)
            good, bad = (middle, bad) if isinstance(found, TableRows) else (good, middle)
        return int(distinct[bad])

    def _seqs(self, events: Longs, entries: EntryColumns) -> Longs:
        found: Longs = entries.seq[self._events["entry"][events]]
        return found

    def _by_table(self) -> Iterator[tuple[MappedTable, Longs]]:
        """Each table with the indices of its row events, in stream order."""
        table = self._events["table"]
        if len(self._tables) == 1:
            yield next(iter(self._tables)), np.arange(len(table))
            return
        order = np.argsort(table, kind="stable")
        ends = np.cumsum(np.bincount(table, minlength=len(self._tables)))
        first = 0
        for mapped, end in zip(self._tables, ends.tolist(), strict=True):
            yield mapped, order[first:end]
            first = end

    def _images_of(self, table: MappedTable, events: Longs) -> RowImages:
        """The images of row events of one table map, as decode_rows takes them."""
        rows = self._events
        pairs, shape = np.unique(rows["pair"][events], return_inverse=True)
        known = list(self._pairs)
        columns = rows["columns"][events]
        wrong = np.flatnonzero(columns != table.table_map.columns)
        return RowImages(
            buffer=self._images.data[: len(self._images)],
            start=rows["start"][events],
            stop=rows["stop"][events],
            kind=rows["change"][events].astype(np.uint8),
            event=np.arange(len(events), dtype=np.int32),
            bitmaps=tuple(known[pair] for pair in pairs.tolist()),
            shape=shape.astype(np.int32),
            # One event that disagrees with its table map is enough: decode_rows refuses it.
            columns=int(columns[wrong[0]]) if len(wrong) else table.table_map.columns,
            offset=rows["offset"][events],
            file=list(self._files)[int(rows["file"][events[0]])],
            partial=rows["partial"][events].astype(np.bool_),
        )

    def _decode(self, table: MappedTable, events: Longs, entries: EntryColumns, source: str) -> TableRows:
        images = self._images_of(table, events)
        decoded = decode_rows(table.schema, table.table_map, images, table.defaults)
        event = decoded.event
        entry = self._events["entry"][events].astype(np.int32)[event]
        file = self._events["file"][events].astype(np.int32)[event]
        arrays = [
            *decoded.after,
            decoded.before,
            decoded.op,
            pa.array(entries.commit_ts_us[entry]).cast(pa.timestamp("us", tz="UTC")),
            repeated(source, len(decoded)),
            pa.DictionaryArray.from_arrays(pa.array(file), pa.array(list(self._files), pa.string())),
            pa.array(images.offset[event]),
            pa.array(_row_numbers(images, self._events["ordinal"][events], decoded)),
            pa.array(entries.seq[entry]),
            entries.gtid.take(pa.array(entry)),
            decoded.literal,
            decoded.absent,
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=table.arrow)
        return TableRows(table.schema, table.schema.name, rows, entry)


def _truncated(pending: PendingTruncate, entry: int, entries: EntryColumns, source: str) -> TableRows:
    columns = {
        OP: TRUNCATE,
        TS: int(entries.commit_ts_us[entry]),
        SOURCE: source,
        FILE: pending.file,
        POS: pending.offset,
        ROW: pending.ordinal << ROW_BITS,
        SEQ: int(entries.seq[entry]),
        GTID: entries.gtid[entry].as_py(),
    }
    rows = pa.RecordBatch.from_pylist([columns], schema=staged_schema(pending.schema))
    return TableRows(pending.schema, pending.schema.name, rows, np.array([entry], np.int32))


def _row_numbers(images: RowImages, ordinals: Longs, decoded: DecodedRows) -> Longs:
    """`_cdc_row`: the event's ordinal in its transaction, then the row's in its event."""
    counts = decoded.rows_per_event
    if len(counts) and int(counts.max()) >= MAX_ROWS_OF_EVENT:
        raise DataAtRisk(
            f"A row event has {int(counts.max())} rows, more than an order key can number.",
            where=images.where(int(counts.argmax())),
            code="source.log_lost",
            remedy="lower binlog_row_event_max_size on the source below 16 MiB (8 KiB is the server's default), and "
            f"{GIVE_UP}",
        )
    first = np.cumsum(counts) - counts
    within = np.arange(len(decoded), dtype=np.int64) - np.repeat(first, counts)
    numbers: Longs = ordinals[decoded.event] << ROW_BITS | within
    return numbers


def all_columns(columns: int) -> bytes:
    """The bitmap of an image that has all `columns` columns."""
    return ((1 << columns) - 1).to_bytes((columns + 7) // 8, "little")


_Thing = TypeVar("_Thing", bound=Hashable)


def _number(known: dict[_Thing, int], thing: _Thing) -> int:
    """The number of a thing among the known ones; a new one gets the next number."""
    return known.setdefault(thing, len(known))
