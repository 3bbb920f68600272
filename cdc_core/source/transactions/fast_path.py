"""The fast path: ordinary transactions go from the receive buffer into the block builder in columns.

The transaction assembler knows every kind of event. The fast path only takes transactions that binlog.ordinary finds
ordinary, with table maps that the assembler has seen before; and the row events of a group that the assembler has
opened because it is large or contains something unusual. It leaves the rest, untouched and in order, to the assembler,
event by event. It must keep true that what it adds is what the assembler would have added.
"""

from __future__ import annotations

from collections.abc import Generator
from uuid import UUID

import numpy as np

from cdc_core.binlog import framing, ordinary
from cdc_core.binlog.event_headers import EventType
from cdc_core.model.block import Block
from cdc_core.model.position import file_number, order_key
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.transactions.block_builder import ENTRY_BYTES, OrdinaryTransactions
from cdc_core.source.transactions.open_block import Blocks
from cdc_core.source.transactions.pending_changes import ROW_BYTES, MappedTable, PendingRowEvents
from cdc_core.source.transactions.reading_place import BEGINS
from cdc_core.source.transactions.transaction_assembler import TransactionAssembler
from cdc_core.source.wire.event_framer import EventFramer

WAIT_BYTES = 2 << 20
"""The fast path waits for the rest of a smaller incomplete group; the assembler opens a larger one as it arrives."""

_ENTRIES = 1 << 14
_ROWS = 1 << 15
_NAMES = 256
_MAPS = 1 << 12
_MAP_BYTES = 8 << 20
_BEGINS = BEGINS - {EventType.GTID_TAGGED}
_OF_ROWS = frozenset({
    EventType.TABLE_MAP, EventType.ROWS_QUERY, EventType.MARIADB_ANNOTATE_ROWS, EventType.WRITE_ROWS_V1,
    EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1, EventType.WRITE_ROWS, EventType.UPDATE_ROWS,
    EventType.DELETE_ROWS,
})  # fmt: skip
"""What `ordinary.take_row_events` takes inside a group."""


class _KnownMaps:
    """Table maps that the assembler has seen, as the kernels look them up; all dropped when a definition changes."""

    def __init__(self) -> None:
        self.slot_id = np.zeros(ordinary.MAP_SLOTS, np.int64)
        self.slot_map = np.full(ordinary.MAP_SLOTS, -1, np.int32)
        self.slot_group = np.zeros(ordinary.MAP_SLOTS, np.int64)
        self.bytes = np.zeros(1 << 16, np.uint8)
        self.offset = np.zeros(_MAPS + 1, np.int64)
        self.table = np.zeros(_MAPS, np.int64)
        self.columns = np.zeros(_MAPS, np.int64)
        self.tables: list[MappedTable] = []
        self.row_bytes = np.ones(_MAPS, np.int64)
        self._known: dict[bytes, int] = {}

    def columns_of(self, flags: int) -> ordinary.KnownMaps:
        """As the kernels look them up. flags: of every ordinary row event."""
        return ordinary.KnownMaps(
            self.slot_id,
            self.slot_map,
            self.slot_group,
            self.bytes,
            self.offset,
            self.table,
            self.columns,
            self.row_bytes,
            flags,
        )

    def learn(self, body: bytes, table: MappedTable | None, group: int) -> bool:
        """Adds the body of a TABLE_MAP of a group and its meaning; False when there is no space for it."""
        description = body[8:]
        number = self._known.get(description)
        if number is None:
            number = len(self._known)
            start = int(self.offset[number])
            stop = start + len(description)
            if number == _MAPS or stop > _MAP_BYTES:
                return False
            if stop > len(self.bytes):
                self.bytes = np.concatenate([self.bytes, np.zeros(max(stop, len(self.bytes)), np.uint8)])
            self.bytes[start:stop] = np.frombuffer(description, np.uint8)
            self.offset[number + 1] = stop
            self.table[number] = -1 if table is None else len(self.tables)
            if table is not None:
                self.columns[number] = table.table_map.columns
                self.row_bytes[len(self.tables)] = table.row_bytes
                self.tables.append(table)
            self._known[description] = number
        table_id = int.from_bytes(body[:6], "little")
        slot = table_id & (ordinary.MAP_SLOTS - 1)
        self.slot_id[slot] = table_id
        self.slot_map[slot] = number
        self.slot_group[slot] = group
        return True

    def of_group(self, group: int) -> dict[bytes, MappedTable | None]:
        """What table ids mean in a group."""
        slots = np.flatnonzero(self.slot_group == group)
        numbers = self.table[self.slot_map[slots]]
        return {
            table_id.to_bytes(6, "little"): None if number < 0 else self.tables[number]
            for table_id, number in zip(self.slot_id[slots].tolist(), numbers.tolist(), strict=True)
        }


class FastPath:
    """Feeds an assembler the events of a framer."""

    def __init__(self, assembler: TransactionAssembler, tables: TableRegistry) -> None:
        self._assembler = assembler
        self._tables = tables
        self._maps = _KnownMaps()
        self._generation = self._knowledge
        self._group = 0
        self._names = ordinary.GtidNames(np.zeros((_NAMES, 3), np.int64), np.zeros(1, np.int64))
        self._prefixes: list[str] = []
        self._entries = ordinary.EntryArrays(*(np.empty(_ENTRIES, np.int64) for _ in ordinary.EntryArrays._fields))
        self._rows = ordinary.RowEvents(*(np.empty(_ROWS, np.int64) for _ in ordinary.RowEvents._fields))

    def feed(self, framer: EventFramer) -> Blocks:
        """Feeds everything received: ordinary groups at once, the rest event by event. A caller that stops midway must
        continue with the same generator. Raises what EventFramer.next_event and TransactionAssembler.feed raise."""
        assembler, place = self._assembler, self._assembler.place
        place.format_crc = framer.format_crc or place.format_crc
        while True:
            # First the open group, as most of a large transaction is row events. If none is open, or the next event
            # is not a row event, nothing is taken.
            if framer.ordinary() and (yield from self._take_inside(framer)):
                continue
            # Then whole transactions, which only begin where no group is open.
            if assembler.between_groups and framer.ordinary():
                why = yield from self._take(framer)
                # The columns of found groups or of framed events were full: there is more to take.
                if why == ordinary.FULL or (why == ordinary.OPEN and framer.buffer.make_space()):
                    continue
                # The last one is not whole. It may be ordinary, unless it is too large to wait for.
                if why == ordinary.OPEN and framer.incomplete and framer.buffer.waiting_bytes < WAIT_BYTES:
                    return
            # The assembler knows every event that may come next.
            event = framer.next_event()
            if event is None:
                return
            place.format_crc = framer.format_crc or place.format_crc
            if assembler.between_groups:
                self._group += 1  # the event may open one: table ids mean nothing in it yet
            yield from assembler.feed(event)
            if self._generation != self._knowledge:
                self._generation = self._knowledge
                self._maps = _KnownMaps()
            if event.header.type == EventType.TABLE_MAP and not assembler.between_groups:
                self._learn(event.body)

    @property
    def _knowledge(self) -> int:
        """Grows when what was learned of table maps may be wrong."""
        return self._tables.generation + self._assembler.cascades.generation

    def _learn(self, body: bytes) -> None:
        table = self._tables.known_use(body)
        if table is None and self._tables.is_isolated(body):
            return  # the assembler counts what is left out under its own rule
        if table is None and self._assembler.intake.heeds(body[8:]):
            return  # the assembler looks at its rows
        if not self._maps.learn(body, table, self._group):
            self._maps = _KnownMaps()
            self._maps.learn(body, table, self._group)

    def _take(self, framer: EventFramer) -> Generator[Block, None, int]:
        """Takes ordinary groups from the first framed event on; returns why there are no more."""
        assembler, events = self._assembler, framer.framed
        block, builder = assembler.block, assembler.block.builder
        if not self._knows(events, _BEGINS) or framer.file != builder.begin.file:
            return ordinary.UNUSUAL
        base = order_key(builder.begin.timeline, file_number(framer.file), 0)
        taken = ordinary.take_transactions(
            events,
            self._maps.columns_of(assembler.cascades.expected_flags),
            self._names,
            self._limits(block.limit_bytes - builder.size_bytes),
            self._entries,
            self._rows,
            self._group,
            base,
            builder.end,
            framing.CRC_TABLES,
        )
        self._group = taken.group
        if taken.reached == events.first:
            return ordinary.UNUSUAL if taken.why == ordinary.FULL else taken.why
        for number in range(len(self._prefixes), int(self._names.used[0])):
            self._prefixes.append(_prefix(*self._names.rows[number].tolist()))
        entries = ordinary.EntryArrays(*(column[: taken.entries] for column in self._entries))
        rows = self._row_events(framer, taken.rows)
        entry = self._rows.entry[: taken.rows]
        yield from block.extend(OrdinaryTransactions(entries, self._prefixes, rows, entry, taken.left_out, taken.end))
        framer.buffer.consume(taken.reached - events.first)
        return taken.why

    def _take_inside(self, framer: EventFramer) -> Generator[Block, None, bool]:
        """Takes ordinary events of the open group from the first framed event on; returns whether there were any."""
        assembler, events = self._assembler, framer.framed
        inside = assembler.inside
        if inside is None or not self._knows(events, _OF_ROWS):
            return False
        next_ordinal, budget = inside
        taken = ordinary.take_row_events(
            events,
            self._maps.columns_of(assembler.cascades.expected_flags),
            self._limits(budget),
            self._rows,
            self._group,
            next_ordinal,
            assembler.place.trace,
            framing.CRC_TABLES,
        )
        if taken.reached == events.first:
            return False
        last = taken.reached - 1
        yield from assembler.extend_group(
            self._row_events(framer, taken.rows).copied(),
            self._maps.of_group(self._group),
            events=taken.reached - events.first,
            ordinal=taken.ordinal,
            left_out=taken.left_out,
            trace=taken.trace,
            end=int(events.start[last] + events.length[last]),
        )
        framer.buffer.consume(taken.reached - events.first)
        return True

    def _knows(self, events: framing.FramedEvents, codes: frozenset[EventType]) -> bool:
        """Whether the first event is of these types, and what is known of table maps still holds."""
        return int(events.code[events.first]) in codes and self._generation == self._knowledge

    def _limits(self, budget: int) -> ordinary.WeightLimits:
        return ordinary.WeightLimits(budget, ENTRY_BYTES, ROW_BYTES, self._assembler.block.limit_bytes)

    def _row_events(self, framer: EventFramer, count: int) -> PendingRowEvents:
        rows = self._rows
        columns = (rows.table, rows.start, rows.stop, rows.change, rows.ordinal, rows.offset)
        return PendingRowEvents(
            framer.file, self._maps.tables, framer.buffer.data, *(column[:count] for column in columns)
        )


def _prefix(first: int, second: int, flavor: int) -> str:
    """The part of a GTID's text before its number: `domain-server-` on MariaDB, else `uuid:`."""
    if flavor:
        return f"{first}-{second}-"
    halves = (half.to_bytes(8, "little", signed=True) for half in (first, second))
    return f"{UUID(bytes=b''.join(halves))}:"
