"""Gathering: row events and what happened between them become one Block of columns.

It may assume entries that are told in stream order, each beginning where the one before ended. It must keep true
that the entries of a block partition its bytes without a hole, and that a block depends on the log alone: where it
is cut changes nothing in its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.binlog import ordinary
from cdc_core.binlog.gtid_text import written
from cdc_core.binlog.partial import Defaults
from cdc_core.binlog.rows import DecodedRows, RowImages, decode_rows
from cdc_core.binlog.rows_event import UPDATE, RowsEvent
from cdc_core.binlog.table_map import TableMap
from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused
from cdc_core.model.block import NO_TRACE, Block, Entries, EntryKind, TableRows
from cdc_core.model.coverage import TableEvent
from cdc_core.model.position import OFFSET_BITS, Position
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import (
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
from cdc_core.source.gtid_sets import compact

ENTRY_BYTES = 96
"""What an entry itself takes, for the ring's limits."""
ROW_BYTES = 100
"""Bookkeeping of a row, roughly, for the decision when a block is large enough."""
NOT_INCLUDED = "table not included"
ISOLATED = "table isolated"
Name = tuple[str, str]
Trace = tuple[int, int]
"""Where the trace of the log before a place begins, and its CRC; see Fingerprint."""
NOT_TRACED: Trace = (NO_TRACE, 0)

Longs = npt.NDArray[np.int64]
Isolates = Callable[[Name, LockstepError, Position], bool]


@dataclass(frozen=True, eq=False, slots=True)
class TableUse:
    """A captured table as one table map describes it; the arrow schema of its staged rows."""

    schema: TableSchema
    table_map: TableMap
    defaults: Defaults | None = None
    arrow: pa.Schema = field(init=False)
    row_bytes: int = field(init=False)
    """A guess at a row image's size, to guess how many rows an event holds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrow", staged_schema(self.schema))
        object.__setattr__(self, "row_bytes", 1 + 4 * len(self.schema.columns))

    @property
    def name(self) -> Name:
        return self.schema.database, self.schema.table


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

    def __len__(self) -> int:
        return 1

    def without(self, isolated: Container[str]) -> HeldRows | None:
        return None if self.use.schema.name in isolated else self


@dataclass(frozen=True, slots=True)
class RowEvents:
    """Row events of captured tables in columns, all with all columns in their images, of one file.

    start, stop: where the images lie in `buffer`. use: index into `uses`. change: INSERT, UPDATE or DELETE. ordinal:
    among the row events of the transaction. offset: where the event starts in the file.
    """

    file: str
    uses: Sequence[TableUse]
    buffer: npt.NDArray[np.uint8]
    use: Longs
    start: Longs
    stop: Longs
    change: Longs
    ordinal: Longs
    offset: Longs

    def __len__(self) -> int:
        return len(self.use)

    @property
    def size_bytes(self) -> int:
        """As HeldRows weighs them."""
        sizes = self.stop - self.start
        row_bytes = np.array([use.row_bytes for use in self.uses], np.int64)
        return int(2 * sizes.sum() + ROW_BYTES * (1 + sizes // row_bytes[self.use]).sum())

    def kept(self) -> RowEvents:
        """With images and columns of its own: what it was made of is about to be used again."""
        start, stop = self.start.copy(), self.stop.copy()
        images = np.empty(int((stop - start).sum()), np.uint8)
        ordinary.pack(self.buffer, start, stop, len(self), images, 0)
        own = (column.copy() for column in (self.change, self.ordinal, self.offset))
        return RowEvents(self.file, self.uses, images, self.use.copy(), start, stop, *own)

    def without(self, isolated: Container[str]) -> RowEvents | None:
        stays = np.array([use.schema.name not in isolated for use in self.uses])[self.use]
        columns = (self.use, self.start, self.stop, self.change, self.ordinal, self.offset)
        return RowEvents(self.file, self.uses, self.buffer, *(column[stays] for column in columns))


@dataclass(frozen=True, slots=True)
class HeldTruncate:
    """A TRUNCATE of a captured table: a change without a row. file, offset: of its event. ordinal: as in HeldRows."""

    schema: TableSchema
    file: str
    offset: int
    ordinal: int
    size_bytes: int = ROW_BYTES

    def __len__(self) -> int:
        return 1

    def without(self, isolated: Container[str]) -> HeldTruncate | None:
        return None if self.schema.name in isolated else self


Held = HeldRows | RowEvents | HeldTruncate
"""Changes of captured tables that wait for the end of their transaction. `without`: those of other tables."""

_NO_NAME = -1


class _Columns:
    """Named int64 columns of one length, that grow."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._all = np.empty((len(names), 256), np.int64)
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, name: str) -> Longs:
        return self._all[self._names.index(name), : self.count]

    def append(self, *values: int) -> None:
        """One element, a value for each name."""
        self.room(1)
        self._all[:, self.count] = values
        self.count += 1

    def room(self, more: int) -> None:
        need = self.count + more
        if need > self._all.shape[1]:
            grown = np.empty((len(self._names), max(need, 2 * self._all.shape[1])), np.int64)
            grown[:, : self.count] = self._all[:, : self.count]
            self._all = grown

    def extend(self, count: int, **values: npt.NDArray[np.integer] | int) -> None:
        """`count` elements: a value for all of them, or one for each."""
        self.room(count)
        part = self._all[:, self.count : self.count + count]
        for number, name in enumerate(self._names):
            part[number] = values[name]
        self.count += count


@dataclass(frozen=True, slots=True)
class Groups:
    """Whole transactions in columns, as binlog.ordinary.take_transactions finds them.

    entries: a first PASSED one may join the entry before. runs: their GTIDs; of a name the text is prefixes[name].
    rows: copied from, not kept; entry: of each, index into the entries here. left_out: row events of tables that are
    not captured.
    """

    entries: ordinary.Entries
    runs: ordinary.GtidRuns
    prefixes: Sequence[str]
    rows: RowEvents
    entry: Longs
    left_out: int
    reached: int


_ROW_COLUMNS = (
    "use", "start", "stop", "change", "pair", "columns", "ordinal", "entry", "offset", "file", "partial",
)  # fmt: skip


class Gather:
    """The block that is being filled: from `begin` up to `end`, which moves with each entry."""

    def __init__(self, source: str, begin: Position, spent: Gather | None = None) -> None:
        """spent: one whose block was made; what it held rows in is used again, for fresh memory costs."""
        self._source = source
        self.begin = begin
        self.end = begin.offset
        self.size_bytes = 0
        self._entries = _Columns(
            ("kind", "begin", "end", "seq", "ts", "events", "name", "low", "high", "trace", "trace_crc")
        )
        self._gtids: dict[int, list[str]] = {}
        """Of entries that have no name: their GTIDs as texts."""
        self._prefixes: Sequence[str] = ()
        self._rows: _Columns = _Columns(_ROW_COLUMNS) if spent is None else spent._rows
        self._rows.count = 0
        self._images: npt.NDArray[np.uint8] = np.empty(1 << 16, np.uint8) if spent is None else spent._images
        self._images_end = 0
        self._uses: dict[TableUse, int] = {}
        self._pairs: dict[tuple[bytes, bytes], int] = {}
        self._files: dict[str, int] = {}
        self._truncates: list[tuple[int, HeldTruncate]] = []
        self._passed: Counter[str] = Counter()
        self._notes: list[str] = []
        self._happened: list[TableEvent] = []

    def __bool__(self) -> bool:
        """Whether the position moved."""
        return bool(len(self._entries))

    @property
    def in_passed(self) -> bool:
        """The last entry is a stretch that a next one would join."""
        return bool(self) and self._entries["kind"][-1] == EntryKind.PASSED

    def add(
        self,
        kind: EntryKind,
        end: int,
        *,
        seq: int,
        commit_ts_us: int,
        events: int,
        gtid: str = "",
        rows: Sequence[Held] = (),
        trace: Trace = NOT_TRACED,
    ) -> None:
        """An entry from where the last one ended to `end`. A stretch without rows joins the one before it; only a
        PART may have no bytes."""
        if end < self.end or (end == self.end and kind != EntryKind.PART):
            raise InternalError(
                f"An entry ends at {end}, where the one before it ended at {self.end}.",
                where=f"{self._source}, {self.begin.file}:{self.end}",
                code="source.entry_order",
                remedy="report this as a defect; nothing behind the place was staged",
            )
        if kind == EntryKind.PASSED and self.in_passed:
            self._join(end, commit_ts_us, events, [gtid] if gtid else [], trace)
        else:
            self._append(kind, end, seq=seq, commit_ts_us=commit_ts_us, events=events, gtid=gtid, trace=trace)
        self.end = end
        for held in rows:
            if isinstance(held, HeldRows):
                self._add_rows(held)
            elif isinstance(held, HeldTruncate):
                self._truncates.append((len(self._entries) - 1, held))
            elif len(held):
                self._extend_rows(held, len(self._entries) - 1)

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
            name, low, high = (int(entries[column][last]) for column in ("name", "low", "high"))
            self._gtids[last] = [run_text(self._prefixes[name], low, high)]
            entries["name"][last] = _NO_NAME
        if gtids:
            self._gtids.setdefault(last, []).extend(gtids)

    def _add_rows(self, held: HeldRows) -> None:
        rows, event = held.rows, held.rows.event
        start = self._images_end
        self._require_images(len(rows.images))
        self._images_end += len(rows.images)
        self._images[start : self._images_end] = np.frombuffer(rows.images, np.uint8)
        self._rows.append(
            _number(self._uses, held.use), start, self._images_end, rows.kind,
            _number(self._pairs, (rows.present, rows.present_after)), rows.columns, held.ordinal,
            len(self._entries) - 1, event.start, _number(self._files, event.file), rows.partial,
        )  # fmt: skip
        self.size_bytes += held.size_bytes

    def _require_images(self, more: int) -> None:
        need = self._images_end + more
        if need > len(self._images):
            grown = np.empty(max(need, 2 * len(self._images)), np.uint8)
            grown[: self._images_end] = self._images[: self._images_end]
            self._images = grown

    def extend(self, groups: Groups) -> None:
        """The same for many whole transactions of the block's file at once."""
        first = 0
        new, runs = groups.entries, groups.runs
        named = np.bincount(runs.entry, minlength=len(new.kind))
        self._prefixes = groups.prefixes
        if len(new.kind) and new.kind[0] == EntryKind.PASSED and self.in_passed:
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
            self._passed[NOT_INCLUDED] += groups.left_out
        if len(groups.rows):
            self._extend_rows(groups.rows, groups.entry + base)

    def _extend_rows(self, events: RowEvents, entry: Longs | int) -> None:
        count = len(events)
        total = int((events.stop - events.start).sum())
        self._require_images(total)
        start, stop = events.start.copy(), events.stop.copy()
        ordinary.pack(events.buffer, start, stop, count, self._images, self._images_end)
        self._images_end += total
        number = np.zeros(len(events.uses), np.int64)
        columns = number.copy()
        pairs = np.zeros((len(events.uses), 3), np.int64)
        kinds = 3 * events.use + events.change
        present = np.flatnonzero(np.bincount(kinds))
        for kind in sorted(present.tolist(), key=lambda one: int(np.argmax(kinds == one))):
            use, change = divmod(kind, 3)
            table = events.uses[use]
            number[use] = _number(self._uses, table)
            columns[use] = table.table_map.columns
            full = all_columns(table.table_map.columns)
            pairs[use, change] = _number(self._pairs, (full, full if change == UPDATE else b""))
        self._rows.extend(
            count, use=number[events.use], start=start, stop=stop, change=events.change,
            pair=pairs[events.use, events.change], columns=columns[events.use], ordinal=events.ordinal,
            entry=entry, offset=events.offset, file=_number(self._files, events.file), partial=0,
        )  # fmt: skip
        self.size_bytes += events.size_bytes

    def pass_over(self, rule: str, row_events: int = 1) -> None:
        """Counts row events that a named rule leaves out."""
        self._passed[rule] += row_events

    def note(self, text: str) -> None:
        self._notes.append(text)

    def happened(self, event: TableEvent) -> None:
        self._happened.append(event)

    def block(self, next_file: str = "", isolates: Isolates = lambda *_: False) -> Block:
        """What was gathered, decoded. next_file: the block ends with a rotation to it. isolates: whether to leave out a
        table that cannot be decoded, from a transaction on.

        A file may end right where the last block ended (the server stopped, or crashed, and began a new one): then the
        block has one entry of no bytes. Raises what decode_rows raises.
        """
        if not self and next_file:
            self._append(
                EntryKind.PASSED, self.end, seq=self.begin.seq, commit_ts_us=0, events=0, gtid="", trace=NOT_TRACED
            )
        end = Position(self.begin.timeline, next_file, 4) if next_file else Position(
            self.begin.timeline, self.begin.file, self.end
        )  # fmt: skip
        count = len(self._entries)
        gtid = self._gtid_texts()
        rows = np.zeros(count, dtype=np.int64)
        size_bytes = np.full(count, ENTRY_BYTES, dtype=np.int64)
        named = pc.if_else(pc.equal(gtid, ""), pa.scalar(None, pa.string()), gtid)
        tables = []
        truncates = (self._truncated(entry, held, named) for entry, held in self._truncates)
        for table in (*self._all_decoded(named, isolates), *truncates):
            per_entry = np.bincount(table.entry, minlength=count)
            rows += per_entry
            if table.rows.num_rows:
                size_bytes += per_entry * (table.rows.nbytes // table.rows.num_rows + 1)
                tables.append(table)
        entries = Entries(
            kind=self._entries["kind"].astype(np.uint8),
            begin=self._entries["begin"],
            end=self._entries["end"],
            seq=self._entries["seq"],
            commit_ts_us=self._entries["ts"],
            events=self._entries["events"],
            rows=rows,
            size_bytes=size_bytes,
            gtid=gtid,
            trace=self._entries["trace"],
            trace_crc=self._entries["trace_crc"],
        )
        _require_partition(entries, self.begin.offset, self.end, f"{self._source}, {self.begin}")
        return Block(
            self._source, self.begin, end, entries, tuple(tables), dict(self._passed), tuple(self._notes),
            happened=tuple(self._happened),
        )  # fmt: skip

    def _all_decoded(self, gtid: pa.StringArray, isolates: Isolates) -> list[TableRows]:
        """Of a table that cannot be decoded, and is left out, the transactions before the first that cannot."""
        parts = [(use, events, self._tried(use, events, gtid)) for use, events in self._by_table()]
        since: dict[Name, int] = {}
        errors: dict[Name, LockstepError] = {}
        for use, events, found in parts:
            if not isinstance(found, TableRows):
                seq, name = self._undecodable_since(use, events, gtid), use.name
                if seq <= since.get(name, seq):
                    since[name], errors[name] = seq, found
        for name, error in errors.items():
            begin = Position(self.begin.timeline, self.begin.file, since[name] & ((1 << OFFSET_BITS) - 1))
            if not isolates(name, error, begin):
                raise error
        decoded = []
        for use, events, found in parts:
            if use.name in since:
                before = events[self._seqs(events) < since[use.name]]
                self.pass_over(ISOLATED, len(events) - len(before))
                if not len(before):
                    continue
                found = self._decoded(use, before, gtid)
            assert isinstance(found, TableRows)
            decoded.append(found)
        return decoded

    def _tried(self, use: TableUse, events: Longs, gtid: pa.StringArray) -> TableRows | LockstepError:
        try:
            return self._decoded(use, events, gtid)
        except (DataAtRisk, Refused) as error:
            return error

    def _undecodable_since(self, use: TableUse, events: Longs, gtid: pa.StringArray) -> int:
        """The order key of the first transaction that cannot be decoded, of events that cannot all be."""
        seqs = self._seqs(events)
        distinct = np.unique(seqs)
        good, bad = -1, len(distinct) - 1
        while bad - good > 1:
            middle = (good + bad) // 2
            if isinstance(self._tried(use, events[seqs <= distinct[middle]], gtid), TableRows):
                good = middle
            else:
                bad = middle
        return int(distinct[bad])

    def _seqs(self, events: Longs) -> Longs:
        found: Longs = self._entries["seq"][self._rows["entry"][events]]
        return found

    def _gtid_texts(self) -> pa.StringArray:
        """Of each entry, "" where there is none."""
        name, low, high = self._entries["name"], self._entries["low"], self._entries["high"]
        joined = written(self._prefixes, name, low, high)
        if not self._gtids:
            return joined
        mask = np.zeros(len(self._entries), np.bool_)
        mask[list(self._gtids)] = True
        others = [compact(self._gtids[entry]) for entry in sorted(self._gtids)]
        return pc.replace_with_mask(joined, pa.array(mask), pa.array(others, pa.string()))

    def _by_table(self) -> Iterator[tuple[TableUse, Longs]]:
        """Each table with the indices of its row events, in stream order."""
        use = self._rows["use"]
        if len(self._uses) == 1:
            yield next(iter(self._uses)), np.arange(len(use))
            return
        order = np.argsort(use, kind="stable")
        ends = np.cumsum(np.bincount(use, minlength=len(self._uses)))
        first = 0
        for table, end in zip(self._uses, ends.tolist(), strict=True):
            yield table, order[first:end]
            first = end

    def _images_of(self, use: TableUse, events: Longs) -> RowImages:
        """The images of row events of one table map, as decode_rows takes them."""
        rows = self._rows
        pairs, shape = np.unique(rows["pair"][events], return_inverse=True)
        known = list(self._pairs)
        columns = rows["columns"][events]
        wrong = np.flatnonzero(columns != use.table_map.columns)
        return RowImages(
            buffer=self._images[: self._images_end],
            start=rows["start"][events],
            stop=rows["stop"][events],
            kind=rows["change"][events].astype(np.uint8),
            event=np.arange(len(events), dtype=np.int32),
            bitmaps=tuple(known[pair] for pair in pairs.tolist()),
            shape=shape.astype(np.int32),
            columns=int(columns[wrong[0]]) if len(wrong) else use.table_map.columns,
            offset=rows["offset"][events],
            file=list(self._files)[int(rows["file"][events[0]])],
            partial=rows["partial"][events].astype(np.bool_),
        )

    def _decoded(self, use: TableUse, events: Longs, gtid: pa.StringArray) -> TableRows:
        images = self._images_of(use, events)
        entries = self._rows["entry"][events].astype(np.int32)
        decoded = decode_rows(use.schema, use.table_map, images, use.defaults)
        event = decoded.event
        entry = entries[event]
        file = self._rows["file"][events].astype(np.int32)[event]
        arrays = [
            *decoded.after,
            decoded.before,
            decoded.op,
            pa.array(self._entries["ts"][entry]).cast(pa.timestamp("us", tz="UTC")),
            pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(decoded), np.int32)), pa.array([self._source])),
            pa.DictionaryArray.from_arrays(pa.array(file), pa.array(list(self._files), pa.string())),
            pa.array(images.offset[event]),
            pa.array(self._row_numbers(images, self._rows["ordinal"][events], decoded)),
            pa.array(self._entries["seq"][entry]),
            gtid.take(pa.array(entry)),
            decoded.literal,
            decoded.absent,
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=use.arrow)
        return TableRows(use.schema, use.schema.name, rows, entry)

    def _truncated(self, entry: int, held: HeldTruncate, gtid: pa.StringArray) -> TableRows:
        notes = {
            OP: TRUNCATE,
            TS: int(self._entries["ts"][entry]),
            SOURCE: self._source,
            FILE: held.file,
            POS: held.offset,
            ROW: held.ordinal << ROW_BITS,
            SEQ: int(self._entries["seq"][entry]),
            GTID: gtid[entry].as_py(),
        }
        rows = pa.RecordBatch.from_pylist([notes], schema=staged_schema(held.schema))
        return TableRows(held.schema, held.schema.name, rows, np.array([entry], np.int32))

    def _row_numbers(self, images: RowImages, ordinals: Longs, decoded: DecodedRows) -> Longs:
        """`_cdc_row`: the event's ordinal in its transaction, then the row's in its event."""
        counts = decoded.rows_per_event
        if len(counts) and int(counts.max()) >= MAX_ROWS_OF_EVENT:
            raise DataAtRisk(
                f"A row event holds {int(counts.max())} rows, more than an order key can number.",
                where=images.where(int(counts.argmax())),
                code="source.event_rows",
                remedy="lower binlog_row_event_max_size on the source below 16 MiB (8 KiB is the server's default), "
                "and start behind this transaction with a full copy of its tables",
            )
        first = np.cumsum(counts) - counts
        within = np.arange(len(decoded), dtype=np.int64) - np.repeat(first, counts)
        numbers: Longs = ordinals[decoded.event] << ROW_BITS | within
        return numbers


_Thing = TypeVar("_Thing", bound=Hashable)


def _number(known: dict[_Thing, int], thing: _Thing) -> int:
    """Its number among the known ones; a new one gets the next."""
    return known.setdefault(thing, len(known))


def run_text(prefix: str, low: int, high: int) -> str:
    return f"{prefix}{low}" if low == high else f"{prefix}{low}-{high}"


def _run_texts(groups: Groups, first: int, count: int) -> list[str]:
    return [
        run_text(groups.prefixes[int(groups.runs.name[k])], int(groups.runs.low[k]), int(groups.runs.high[k]))
        for k in range(first, first + count)
    ]


def all_columns(columns: int) -> bytes:
    """The bitmap in which all of so many columns are present."""
    return ((1 << columns) - 1).to_bytes((columns + 7) // 8, "little")


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
