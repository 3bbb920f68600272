"""The fast lane: wholly ordinary transactions go from the receive buffer into the gather in columns.

The assembly is the one that knows everything. The lane only takes groups that binlog.groups finds ordinary, with table
maps that the assembly has met before, and of a group that the assembly has opened, because it is large or has
something unusual in it, the row events; it leaves all else, untouched and in order, to the assembly, event by event.
It must keep true that what it adds is what the assembly would have added.
"""

from __future__ import annotations

from collections.abc import Generator
from uuid import UUID

import numpy as np

from cdc_core.binlog import framing, ordinary
from cdc_core.binlog.events import EventType
from cdc_core.model.block import Block
from cdc_core.model.position import file_number, order_key
from cdc_core.source.assembly import Assembly, Blocks
from cdc_core.source.event_framer import EventFramer
from cdc_core.source.gather import ENTRY_BYTES, ROW_BYTES, Groups, RowEvents, TableUse
from cdc_core.source.tables import Tables

WAIT_BYTES = 2 << 20
"""A group that is not whole yet is waited for while it is smaller; the assembly opens a larger one as it comes."""

_ENTRIES = 1 << 14
_ROWS = 1 << 15
_NAMES = 256
_MAPS = 1 << 12
_MAP_BYTES = 8 << 20
_BEGINS = frozenset({EventType.GTID, EventType.ANONYMOUS_GTID, EventType.MARIADB_GTID})
_OF_ROWS = frozenset({
    EventType.TABLE_MAP, EventType.ROWS_QUERY, EventType.MARIADB_ANNOTATE_ROWS, EventType.WRITE_ROWS_V1,
    EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1, EventType.WRITE_ROWS, EventType.UPDATE_ROWS,
    EventType.DELETE_ROWS,
})  # fmt: skip
"""What `groups.walk` takes inside a group."""


class _Maps:
    """Table maps that the assembly has met, as groups.walk looks them up; all are dropped when a definition changes."""

    def __init__(self) -> None:
        self.slot_id = np.zeros(ordinary.MAP_SLOTS, np.int64)
        self.slot_map = np.full(ordinary.MAP_SLOTS, -1, np.int32)
        self.slot_group = np.zeros(ordinary.MAP_SLOTS, np.int64)
        self.bytes = np.zeros(1 << 16, np.uint8)
        self.offset = np.zeros(_MAPS + 1, np.int64)
        self.use = np.zeros(_MAPS, np.int64)
        self.columns = np.zeros(_MAPS, np.int64)
        self.uses: list[TableUse] = []
        self.row_bytes = np.ones(_MAPS, np.int64)
        self._known: dict[bytes, int] = {}

    def columns_of(self) -> ordinary.KnownMaps:
        """As the kernels look them up."""
        return ordinary.KnownMaps(
            self.slot_id,
            self.slot_map,
            self.slot_group,
            self.bytes,
            self.offset,
            self.use,
            self.columns,
            self.row_bytes,
        )

    def learn(self, body: bytes, use: TableUse | None, group: int) -> bool:
        """The body of a TABLE_MAP of a group and what it was found to be; False when there is no room for more."""
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
            self.use[number] = -1 if use is None else len(self.uses)
            if use is not None:
                self.columns[number] = use.table_map.columns
                self.row_bytes[len(self.uses)] = use.row_bytes
                self.uses.append(use)
            self._known[description] = number
        table_id = int.from_bytes(body[:6], "little")
        slot = table_id & (ordinary.MAP_SLOTS - 1)
        self.slot_id[slot] = table_id
        self.slot_map[slot] = number
        self.slot_group[slot] = group
        return True

    def of_group(self, group: int) -> dict[bytes, TableUse | None]:
        """What table ids mean in a group."""
        slots = np.flatnonzero(self.slot_group == group)
        uses = self.use[self.slot_map[slots]]
        return {
            table_id.to_bytes(6, "little"): None if use < 0 else self.uses[use]
            for table_id, use in zip(self.slot_id[slots].tolist(), uses.tolist(), strict=True)
        }


class Lane:
    """Feeds `assembly` the events of a framer."""

    def __init__(self, assembly: Assembly, tables: Tables) -> None:
        self._assembly = assembly
        self._tables = tables
        self._maps = _Maps()
        self._generation = tables.generation
        self._group = 0
        self._names = ordinary.GtidNames(np.zeros((_NAMES, 3), np.int64), np.zeros(1, np.int64))
        self._prefixes: list[str] = []
        self._entries = ordinary.Entries(*(np.empty(_ENTRIES, np.int64) for _ in ordinary.Entries._fields))
        self._runs = ordinary.GtidRuns(*(np.empty(_ENTRIES, np.int64) for _ in ordinary.GtidRuns._fields))
        self._rows = ordinary.RowEvents(*(np.empty(_ROWS, np.int64) for _ in ordinary.RowEvents._fields))

    def feed(self, framer: EventFramer) -> Blocks:
        """All that is there: ordinary groups at once, the rest event by event. Whoever leaves in the middle must go on
        with the same generator. Raises what EventFramer.next_event and Assembly.feed raise."""
        assembly = self._assembly
        assembly.mariadb = framer.mariadb
        assembly.format_crc = framer.format_crc or assembly.format_crc
        while True:
            if framer.ordinary() and (yield from self._take_inside(framer)):
                continue
            if assembly.between_groups and framer.ordinary():
                why = yield from self._take(framer)
                if why == ordinary.FULL or (why == ordinary.OPEN and framer.buffer.make_space()):
                    continue
                if why == ordinary.OPEN and framer.incomplete and framer.buffer.waiting_bytes < WAIT_BYTES:
                    return
            event = framer.next_event()
            if event is None:
                return
            assembly.mariadb = framer.mariadb
            assembly.format_crc = framer.format_crc or assembly.format_crc
            self._group += assembly.between_groups
            yield from assembly.feed(event)
            if event.header.type == EventType.TABLE_MAP and not assembly.between_groups:
                self._learn(event.body)

    def _learn(self, body: bytes) -> None:
        if self._generation != self._tables.generation:
            self._generation = self._tables.generation
            self._maps = _Maps()
        use = self._tables.known_use(body)
        if use is None and self._tables.is_isolated(body):
            return  # the assembly counts what is left out under its own rule
        if not self._maps.learn(body, use, self._group):
            self._maps = _Maps()
            self._maps.learn(body, use, self._group)

    def _take(self, framer: EventFramer) -> Generator[Block, None, int]:
        """Ordinary groups from the first framed event on; why there are no more."""
        assembly, events = self._assembly, framer.events
        gather = assembly.gather
        if not self._knows(events, _BEGINS) or framer.file != gather.begin.file:
            return ordinary.UNUSUAL
        base = order_key(gather.begin.timeline, file_number(framer.file), 0)
        found = ordinary.take_transactions(
            events,
            self._maps.columns_of(),
            self._names,
            self._limits(assembly.block_bytes - gather.size_bytes),
            self._entries,
            self._runs,
            self._rows,
            self._group,
            base,
            gather.end,
            gather.in_passed,
            framing.CRC_TABLES,
        )
        self._group = found.group
        if found.reached == events.first:
            return ordinary.UNUSUAL if found.why == ordinary.FULL else found.why
        for number in range(len(self._prefixes), int(self._names.used[0])):
            self._prefixes.append(_prefix(*self._names.rows[number].tolist()))
        entries = ordinary.Entries(*(column[: found.entries] for column in self._entries))
        runs = ordinary.GtidRuns(*(column[: found.runs] for column in self._runs))
        rows = self._row_events(framer, found.rows)
        entry = self._rows.entry[: found.rows]
        yield from assembly.extend(Groups(entries, runs, self._prefixes, rows, entry, found.left_out, found.end))
        framer.buffer.consume(found.reached - events.first)
        return found.why

    def _take_inside(self, framer: EventFramer) -> Generator[Block, None, bool]:
        """Of the open group what is ordinary from the first framed event on; whether that was any."""
        assembly, events = self._assembly, framer.events
        inside = assembly.inside
        if inside is None or not self._knows(events, _OF_ROWS):
            return False
        next_ordinal, budget = inside
        found = ordinary.take_row_events(
            events, self._maps.columns_of(), self._limits(budget), self._rows, self._group, next_ordinal,
            *assembly.trace, framing.CRC_TABLES,
        )  # fmt: skip
        if found.reached == events.first:
            return False
        last = found.reached - 1
        yield from assembly.extend_group(
            self._row_events(framer, found.rows).kept(), self._maps.of_group(self._group),
            events=found.reached - events.first, ordinal=found.ordinal, left_out=found.left_out,
            trace=(found.trace, found.trace_crc),
            end=int(events.start[last] + events.length[last]),
        )  # fmt: skip
        framer.buffer.consume(found.reached - events.first)
        return True

    def _knows(self, events: ordinary.Events, codes: frozenset[EventType]) -> bool:
        """Whether the first event is of these types, and what is known of table maps still holds."""
        return int(events.code[events.first]) in codes and self._generation == self._tables.generation

    def _limits(self, budget: int) -> ordinary.Limits:
        return ordinary.Limits(budget, ENTRY_BYTES, ROW_BYTES, self._assembly.block_bytes)

    def _row_events(self, framer: EventFramer, count: int) -> RowEvents:
        rows = self._rows
        columns = (rows.table, rows.start, rows.stop, rows.change, rows.ordinal, rows.offset)
        return RowEvents(framer.file, self._maps.uses, framer.buffer.data, *(column[:count] for column in columns))


def _prefix(first: int, second: int, flavor: int) -> str:
    """What stands before the number in a GTID's text: of MariaDB `domain-server-`, else `uuid:`."""
    if flavor:
        return f"{first}-{second}-"
    halves = (half.to_bytes(8, "little", signed=True) for half in (first, second))
    return f"{UUID(bytes=b''.join(halves))}:"
