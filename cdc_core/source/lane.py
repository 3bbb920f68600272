"""The fast lane: wholly ordinary transactions go from the receive buffer into the gather in columns.

The assembly is the one that knows everything. The lane only takes groups that binlog.groups finds ordinary, with table
maps that the assembly has met before, and of a group that the assembly has opened, because it is large or has
something unusual in it, the row events; it leaves all else, untouched and in order, to the assembly, event by event.
It must keep true that what it adds is what the assembly would have added.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import numpy as np

from cdc_core.binlog import framing, groups
from cdc_core.binlog.events import EventType
from cdc_core.model.position import file_number, order_key
from cdc_core.source.assembly import Assembly, Steps
from cdc_core.source.frames import Frames
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
        self.slot_id = np.zeros(groups.MAP_SLOTS, np.int64)
        self.slot_map = np.full(groups.MAP_SLOTS, -1, np.int32)
        self.slot_group = np.zeros(groups.MAP_SLOTS, np.int64)
        self.bytes = np.zeros(1 << 16, np.uint8)
        self.start = np.zeros(_MAPS + 1, np.int64)
        self.use = np.zeros(_MAPS, np.int64)
        self.columns = np.zeros(_MAPS, np.int64)
        self.uses: list[TableUse] = []
        self.row_bytes = np.ones(_MAPS, np.int64)
        self._known: dict[bytes, int] = {}

    def learn(self, body: bytes, use: TableUse | None, group: int) -> bool:
        """The body of a TABLE_MAP of a group and what it was found to be; False when there is no room for more."""
        description = body[8:]
        number = self._known.get(description)
        if number is None:
            number = len(self._known)
            start = int(self.start[number])
            stop = start + len(description)
            if number == _MAPS or stop > _MAP_BYTES:
                return False
            if stop > len(self.bytes):
                self.bytes = np.concatenate([self.bytes, np.zeros(max(stop, len(self.bytes)), np.uint8)])
            self.bytes[start:stop] = np.frombuffer(description, np.uint8)
            self.start[number + 1] = stop
            self.use[number] = -1 if use is None else len(self.uses)
            if use is not None:
                self.columns[number] = use.table_map.columns
                self.row_bytes[len(self.uses)] = use.row_bytes
                self.uses.append(use)
            self._known[description] = number
        table_id = int.from_bytes(body[:6], "little")
        slot = table_id & (groups.MAP_SLOTS - 1)
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
    """Feeds `assembly` what lies in the frames of a connection."""

    def __init__(self, assembly: Assembly, tables: Tables) -> None:
        self._assembly = assembly
        self._tables = tables
        self._maps = _Maps()
        self._generation = tables.generation
        self._group = 0
        self._steps: Steps = iter(())
        """Of the last event: who stopped in the middle of them goes on there."""
        self._names = np.zeros((_NAMES, 3), np.int64)
        self._named = np.zeros(1, np.int64)
        self._prefixes: list[str] = []
        self._e_kind, self._e_begin, self._e_end, self._e_seq, self._e_ts, self._e_events, self._e_rows = (
            np.empty(_ENTRIES, np.int64) for _ in range(7)
        )
        self._runs = tuple(np.empty(_ENTRIES, np.int64) for _ in range(4))
        self._rows = tuple(np.empty(_ROWS, np.int64) for _ in range(5))
        self._r_entry, self._r_offset = np.empty(_ROWS, np.int64), np.empty(_ROWS, np.int64)
        self._result = np.zeros(8, np.int64)

    def feed(self, frames: Frames) -> Iterator[None]:
        """All that is there: ordinary groups at once, the rest event by event. Stops after each step, since
        the assembly may have closed a block. Raises what Frames.next and Assembly.feed raise."""
        assembly = self._assembly
        assembly.mariadb = frames.mariadb
        for _ in self._steps:
            yield
        while True:
            if frames.look() and self._take_inside(frames):
                yield
                continue
            if assembly.between_groups and frames.look():
                why = self._take(frames)
                yield
                if why == groups.FULL or (why == groups.OPEN and self._has_more(frames)):
                    continue
                if why == groups.OPEN and self._may_wait(frames):
                    return
            event = frames.next()
            if event is None:
                return
            assembly.mariadb = frames.mariadb
            self._group += assembly.between_groups
            self._steps = assembly.steps(event)
            for _ in self._steps:
                yield
            if event.header.type == EventType.TABLE_MAP and not assembly.between_groups:
                self._learn(event.body)
            yield

    def _has_more(self, frames: Frames) -> bool:
        """The columns had no room for the rest of the group; now they have."""
        full = frames.ordinary.stopped == framing.FULL and frames.ordinary.first > 0
        if full:
            frames.ordinary.moved(0)
        return full

    def _may_wait(self, frames: Frames) -> bool:
        return frames.ordinary.stopped == framing.MORE and frames.waiting_bytes < WAIT_BYTES

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

    def _take(self, frames: Frames) -> int:
        """Ordinary groups from the first event in the frames on; why there are no more."""
        assembly, ordinary = self._assembly, frames.ordinary
        gather = assembly.gather
        if not self._knows(frames, _BEGINS) or frames.file != gather.begin.file:
            return groups.UNUSUAL
        why = self._walk(frames, -1, assembly.block_bytes - gather.size_bytes)
        taken, entries, rows, runs, left_out, end, self._group, _ = self._result.tolist()
        if taken == ordinary.first:
            return groups.UNUSUAL if why == groups.FULL else why
        for number in range(len(self._prefixes), int(self._named[0])):
            self._prefixes.append(_prefix(*self._names[number].tolist()))
        run_entry, run_name, run_low, run_high = (column[:runs] for column in self._runs)
        assembly.take(
            Groups(
                self._e_kind[:entries], self._e_begin[:entries], self._e_end[:entries], self._e_seq[:entries],
                self._e_ts[:entries], self._e_events[:entries], run_entry, run_name, run_low, run_high, self._prefixes,
                self._row_events(frames, rows), self._r_entry[:rows], left_out, end,
            )
        )  # fmt: skip
        ordinary.first = taken
        return why

    def _take_inside(self, frames: Frames) -> bool:
        """Of the open group what is ordinary from the first event in the frames on; whether that was any."""
        assembly, ordinary = self._assembly, frames.ordinary
        inside = assembly.inside
        if inside is None or not self._knows(frames, _OF_ROWS):
            return False
        self._walk(frames, *inside)
        taken, _, rows, _, left_out, _, _, ordinal = self._result.tolist()
        if taken == ordinary.first:
            return False
        last = taken - 1
        assembly.take_inside(
            self._row_events(frames, rows).kept(), self._maps.of_group(self._group), events=taken - ordinary.first,
            ordinal=ordinal, left_out=left_out, end=int(ordinary.start[last] + ordinary.length[last]),
        )  # fmt: skip
        ordinary.first = taken
        return True

    def _knows(self, frames: Frames, codes: frozenset[EventType]) -> bool:
        """Whether the first event in the frames is of these, and what is known of table maps still holds."""
        ordinary = frames.ordinary
        return int(ordinary.code[ordinary.first]) in codes and self._generation == self._tables.generation

    def _walk(self, frames: Frames, inside: int, budget: int) -> int:
        """groups.walk over the events in the frames; why it stopped."""
        ordinary, maps, assembly = frames.ordinary, self._maps, self._assembly
        gather = assembly.gather
        base = order_key(gather.begin.timeline, file_number(frames.file), 0)
        why: int = groups.walk(  # type: ignore[call-arg]
            frames.buffer, ordinary.at, ordinary.length, ordinary.code, ordinary.start, ordinary.first, ordinary.count,
            frames.checksum_size, maps.slot_id, maps.slot_map, maps.slot_group, maps.bytes, maps.start, maps.use,
            maps.columns, maps.row_bytes, self._group, self._names, self._named, base, gather.end, budget, ENTRY_BYTES,
            ROW_BYTES, assembly.block_bytes, gather.in_passed, inside,
            self._e_kind, self._e_begin, self._e_end, self._e_seq, self._e_ts, self._e_events, self._e_rows,
            *self._runs, *self._rows, self._r_entry, self._r_offset, self._result,
        )  # fmt: skip
        return why

    def _row_events(self, frames: Frames, count: int) -> RowEvents:
        columns = (column[:count] for column in (*self._rows, self._r_offset))
        return RowEvents(frames.file, self._maps.uses, frames.buffer, *columns)


def _prefix(first: int, second: int, flavor: int) -> str:
    """What stands before the number in a GTID's text: of MariaDB `domain-server-`, else `uuid:`."""
    if flavor:
        return f"{first}-{second}-"
    halves = (half.to_bytes(8, "little", signed=True) for half in (first, second))
    return f"{UUID(bytes=b''.join(halves))}:"
