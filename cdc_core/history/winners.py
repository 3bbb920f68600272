"""The last event of each key: within a source by the order of its log, then between sources.

Every decision is made on numbers: which event is the last of its key, and which one has each value of the merged row.
Values move only at the end. The columns of a merged row: model/merged_columns.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_core.history.codes import Coded, Flags, Numbers, codes, exact_codes, filled, numbered, whole
from cdc_core.history.events import (
    ARRIVED,
    FORMER,
    INHERITS,
    LOST,
    RENEWS,
    TABLE,
    lacking,
    was,
)
from cdc_core.history.order import between_sources, within_sources
from cdc_core.history.rule import TableRule
from cdc_core.history.truncates import Counting, Truncate, TruncatePlaces, truncates_of, undone
from cdc_core.history.values import KeyChains, Lives, numbers_of_changes, through_key_changes
from cdc_core.model.merged_columns import (
    BORN,
    ENDED_ORIGINS,
    FORMER_SHARD_KEYS,
    KEY_CHAIN,
    LIVE_ORIGINS,
    ORIGIN,
    SHARD_UNKNOWN,
    MergedOp,
    key_chain_type,
    merged_schema,
)
from cdc_core.model.places import at_places, rows_where
from cdc_core.model.staged_columns import (
    ABSENT,
    DELETE,
    LITERAL,
    OP,
    ROW,
    SEQ,
    SOURCE,
    TRUNCATE,
    TS,
    LiteralEntries,
    absent_text,
)
from cdc_core.model.version import origin_name

_TS_TYPE = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Merged:
    """rows: the last event of each key, as merged_schema has them. superseded: how many events became none of them.
    lost: how many do not have their key. truncates: those that count."""

    rows: pa.Table
    superseded: int
    lost: int = 0
    truncates: Sequence[Truncate] = ()


class Events:
    """Events of a table, and the numbers that decide."""

    def __init__(self, table: pa.Table, rule: TableRule) -> None:
        self.rule = rule
        self.count = table.num_rows
        self._table = table
        self._whole: dict[str, pa.Array] = {}
        self.op, self.source, self.table = (Coded.of(self[name]) for name in (OP, SOURCE, TABLE))
        self.ts, self.seq, self.row = (filled(self[name]) for name in (TS, SEQ, ROW))
        self.truncate, self.delete = self.op.has(TRUNCATE), self.op.has(DELETE)
        names = [origin_name(source, table) for source in self.source.texts for table in self.table.texts]
        numbers = self.source.codes * len(self.table.texts) + self.table.codes
        self.origin = Coded.numbered(names, numbers) if rule.shared else Coded([""], np.zeros(self.count, np.int64))

    def __getitem__(self, name: str) -> pa.Array:
        """A column that a decision needs, in one piece."""
        if name not in self._whole:
            self._whole[name] = whole(self._table.column(name))
        return self._whole[name]

    def at(self, name: str, places: Numbers) -> pa.ChunkedArray:
        """Values that only move, at these places; null at -1."""
        values = self._table.column(name)
        return values.take(pa.array(places, mask=places < 0)) if (places < 0).any() else at_places(values, places)

    def flags(self, name: str) -> Flags:
        return np.asarray(self[name])

    @property
    def former(self) -> Flags:
        return self.flags(FORMER)

    @property
    def places(self) -> TruncatePlaces:
        return TruncatePlaces(self.source, self.table, self.seq, self.row, self.ts)

    def key(self) -> Numbers:
        """The number of each event's key. A truncate has none: those of several source tables are apart."""
        every = [exact_codes(self[name], self[LITERAL], name) for name in self.rule.key]
        if self.truncate.any():
            every.append(np.where(self.truncate, self.origin.codes, -1))
        return numbered(every)

    def lacks(self, columns: Sequence[str]) -> dict[str, Flags]:
        """The events that lack a column, by column."""
        return {name: lacking(self[ABSENT], lambda names, name=name: name in names) for name in columns}  # type: ignore[misc]


def counting_events(table: pa.Table, rule: TableRule, counting: Counting) -> tuple[Events, Sequence[Truncate]]:
    """(the events that no truncate undoes, the truncates that count)."""
    events = Events(table, rule)
    if not events.truncate.any():
        return events, ()
    last = counting(truncates_of(events.places, events.truncate, events.flags(RENEWS)))
    gone = undone(events.places, events.truncate, last, shared=rule.shared)
    return (Events(table.filter(pa.array(~gone)), rule) if gone.any() else events), last


def merged(table: pa.Table, rule: TableRule, counting: Counting) -> Merged:
    """What the events of a table with a key leave."""
    events, last = counting_events(table, rule, counting)
    rows = _Merge(events).rows()
    return Merged(rows, table.num_rows - rows.num_rows, int(events.flags(LOST).sum()), last)


def reduced(table: pa.Table, rule: TableRule) -> pa.Table:
    """Events that have the same answer together with any others: of each key, source and source table the last one, and
    what later events do not say. All of them, where rows came under new keys without all values."""
    events = Events(table, rule)
    if events.flags(INHERITS).any():
        return table
    merge = _Merge(events)
    runs, kept = merge.runs, events.truncate | events.flags(LOST)
    asked = [np.ones(events.count, bool), events.flags(ARRIVED)]
    asked += [merge.lives.settles(flags)[0] for flags in merge.lacks.values()]
    if rule.moving:
        asked.append(events.flags(SHARD_UNKNOWN))
    for flags in asked:
        last = runs.last_where(flags)
        kept[last[last >= 0]] = True
    for at, name in enumerate(rule.moving):
        values, places = merge.former_values(at, name)
        group = runs.group_of()[places]
        kept[places[_last_of(numbered([group, values]))]] = True
    return rows_where(table, kept)


def _last_of(numbers: Numbers) -> Numbers:
    """The place of the last one of each number, in their order."""
    _, at = np.unique(numbers[::-1], return_index=True)
    return np.sort(len(numbers) - 1 - at)


@dataclass(slots=True)
class _Last:
    """The last event of each key (and first, of each source and origin too), and what is known of all of them.

    filled: by column, the event with the last older value; -1: none. was: by shard key, (group, value's code, event) of
    each former value. live: how many origins have a row. ended: of groups that have them, the origins without one.
    """

    winner: Numbers
    filled: dict[str, Numbers]
    chain: Numbers
    born: Flags
    unknown: Flags
    was: list[tuple[Numbers, Numbers, Numbers]]
    live: Numbers
    ended: dict[int, list[int]]


class _Merge:
    def __init__(self, events: Events) -> None:
        self._events, rule = events, events.rule
        self._key = events.key()
        self.runs = within_sources(self._key, events.source.codes, events.origin.codes, events.seq, events.row)
        change = np.zeros(0, np.int64)
        inherits = events.flags(INHERITS)
        if rule.fill and inherits.any():
            change = numbers_of_changes(events.source.codes, events.seq, events.row)
        self.lives = Lives(
            self.runs.group_of(),
            change,
            events.seq,
            events.row,
            events.flags(ARRIVED),
            inherits,
            events.former,
            events.delete,
        )
        self.lacks = events.lacks(rule.fill)
        self._place = {name: np.arange(events.count) for name in rule.fill}
        self._chains: KeyChains | None = None
        if len(change):
            self._chains = through_key_changes(self.lives, self.lacks, self._place)

    def former_values(self, at: int, name: str) -> tuple[Numbers, Numbers]:
        """(codes of the values that a shard key had before, by which equal ones are known; the events that say them).
        An event of a key that is gone says its own value."""
        events = self._events
        both = codes(pa.concat_arrays([events[name], events[was(at)]]))
        value = np.where(events.delete, both[: events.count], both[events.count :])
        says = np.flatnonzero(value >= 0)
        return value[says], says

    def rows(self) -> pa.Table:
        last = self._last_of_each_source()
        if len(self._events.source.texts) > 1 or len(self._events.origin.texts) > 1:
            last = self._last_between_sources(last)
        return self._merged_rows(last)

    def _last_of_each_source(self) -> _Last:
        events, rule, runs = self._events, self._events.rule, self.runs
        filled_ = {}
        for name in rule.fill:
            settles, has = self.lives.settles(self.lacks[name])
            at = runs.last_where(settles)
            filled_[name] = np.where((at >= 0) & has[at], self._place[name][at], -1)
        winner = runs.last()
        chain = np.full(len(winner), -1)
        if self._chains is not None:
            arrival = runs.last_where(self.lives.arrived)
            chain = np.where(arrival >= 0, self._chains.node[arrival], -1)
        former = []
        for number, name in enumerate(rule.moving):
            values, places = self.former_values(number, name)
            former.append(_once(runs.group_of()[places], values, places))
        unknown = events.flags(SHARD_UNKNOWN) if rule.moving else np.zeros(events.count, bool)
        born, live = runs.any(self.lives.arrived), (~events.delete[winner]).astype(np.int64)
        return _Last(winner, filled_, chain, born, runs.any(unknown), former, live, {})

    def _last_between_sources(self, last: _Last) -> _Last:
        events, shared = self._events, self._events.rule.shared
        live, origin = last.live > 0, events.origin.codes[last.winner]
        last_seq, last_row = events.seq[last.winner], events.row[last.winner]
        ts, source = events.ts[last.winner], events.source.codes[last.winner]
        runs = between_sources(self._key[last.winner], ts, source, (last_seq, last_row), live, shared=shared)
        winner = runs.last()
        filled_ = {}
        for name, at in last.filled.items():
            # The row of another origin is another row: its values are not this one's.
            among = winner if shared else runs.last_where(at >= 0)
            filled_[name] = np.where(among >= 0, at[among], -1)
        group = runs.group_of()
        return _Last(
            last.winner[winner],
            filled_,
            last.chain[winner],
            runs.any(last.born),
            runs.any(last.unknown),
            [_once(group[of], values, places) for of, values, places in last.was],
            runs.total(live),
            {
                at: sorted({int(origin[member]) for member in runs.members(at) if not live[member]})
                for at in np.flatnonzero(runs.any(~live) if shared else np.zeros(0, bool)).tolist()
            },
        )

    def _merged_rows(self, last: _Last) -> pa.Table:
        events, rule, winner = self._events, self._events.rule, last.winner
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        at: dict[str, Numbers] = {}
        unknown: dict[str, Flags] = {}
        for name in rule.columns.names:
            if name not in last.filled:
                columns[name] = events.at(name, winner)
                continue
            lacks = self.lacks[name][winner]
            at[name] = np.where(lacks, last.filled[name], self._place[name][winner])
            columns[name] = events.at(name, at[name])
            unknown[name] = lacks & (at[name] < 0)
        absent, is_absent = absent_names(unknown, len(winner))
        kind = np.where(events.delete[winner], 0, np.where(events.truncate[winner], 1, 2))
        columns[OP] = pa.array([MergedOp.DELETE, MergedOp.TRUNCATE, MergedOp.UPSERT], pa.string()).take(pa.array(kind))
        columns |= _places(events, winner)
        columns[LITERAL] = self._literals(winner, at)
        columns[ABSENT] = absent
        columns[BORN] = pa.array(last.born)
        if rule.moving:
            lists = [
                _lists(len(winner), group, self._former_value(number, name, places))
                for number, (name, (group, _, places)) in enumerate(zip(rule.moving, last.was, strict=True))
            ]
            columns[FORMER_SHARD_KEYS] = pa.StructArray.from_arrays(lists, list(rule.moving))
            columns[SHARD_UNKNOWN] = pa.array(last.unknown)
        if self._chains is not None:
            nodes = np.where(is_absent, last.chain, -1).tolist()
            columns[KEY_CHAIN] = self._key_chains([self._chains.of(node) if node >= 0 else None for node in nodes])
        if rule.shared:
            columns[ORIGIN] = events.origin.array(winner)
            others: list[str | None] = [None] * len(winner)
            for row, ended in last.ended.items():
                own = events.origin.codes[winner[row]]
                others[row] = ",".join(events.origin.texts[code] for code in ended if code != own) or None
            columns[ENDED_ORIGINS] = pa.array(others, pa.string())
            columns[LIVE_ORIGINS] = pa.array(last.live, pa.int64())
        schema = merged_schema(
            list(rule.columns), rule.key, moving=rule.moving, chained=self._chains is not None, shared=rule.shared
        )
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _former_value(self, number: int, name: str, places: Numbers) -> pa.Array:
        events = self._events
        both = pa.concat_arrays([events[name], events[was(number)]])
        return both.take(pa.array(np.where(events.delete[places], places, places + events.count)))

    def _literals(self, winner: Numbers, at: Mapping[str, Numbers]) -> pa.Array:
        """The exact texts of each row: those of its own event, and those taken with values of older ones."""
        literal = self._events[LITERAL]
        if literal.null_count == len(literal):
            return pa.nulls(len(winner), literal.type)
        own = literal.take(pa.array(winner))
        taken = {name: places for name, places in at.items() if ((places >= 0) & (places != winner)).any()}
        if not taken:
            return own
        entries, every = LiteralEntries.of(own), LiteralEntries.of(literal)
        rows, names, texts = [entries.row], [entries.name], [entries.text]
        for name, places in taken.items():
            named = every.where(every.among([name]))
            entry = np.full(self._events.count + 1, -1)  # the last one: of no event
            entry[named.row] = np.arange(len(named.row))
            found = np.where(places != winner, entry[places], -1)
            mine = np.flatnonzero(found >= 0)
            rows.append(mine)
            names.append(pa.array([name] * len(mine), pa.string()))
            texts.append(named.text.take(pa.array(found[mine])))
        return LiteralEntries(np.concatenate(rows), pa.concat_arrays(names), pa.concat_arrays(texts)).array(len(winner))

    def _key_chains(self, links: Sequence[Sequence[int] | None]) -> pa.ListArray:
        events, rule = self._events, self._events.rule
        kind = key_chain_type(rule.columns, rule.key)
        flat = np.array([event for chain in links for event in chain or ()], np.int64)
        children = [
            *[events[name].take(pa.array(flat)) for name in rule.key],
            events[LITERAL].take(pa.array(flat)),
            *_places(events, flat).values(),
        ]
        offsets = np.cumsum([0, *(len(chain or ()) for chain in links)]).tolist()
        # A null list is one whose offset is null.
        starts = [None if chain is None else start for chain, start in zip(links, offsets, strict=False)]
        structs = pa.StructArray.from_arrays(children, fields=list(kind.value_type))
        return pa.ListArray.from_arrays(pa.array([*starts, offsets[-1]], pa.int32()), structs).cast(kind)


def _places(events: Events, rows: Numbers) -> dict[str, pa.Array]:
    return {
        TS: pa.array(events.ts[rows], pa.int64()).cast(_TS_TYPE),
        SOURCE: events.source.array(rows),
        SEQ: pa.array(events.seq[rows]),
        ROW: pa.array(events.row[rows]),
    }


def _once(group: Numbers, values: Numbers, places: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Each value of a group once, group by group."""
    if not len(group):
        return group, values, places
    kept = _last_of(numbered([group, values]))
    kept = kept[np.argsort(group[kept], kind="stable")]
    return group[kept], values[kept], places[kept]


def _lists(count: int, group: Numbers, values: pa.Array) -> pa.ListArray:
    """A list of values for each group. The values come in the order of the groups."""
    ends = np.cumsum(np.bincount(group, minlength=count)) if count else np.zeros(0, np.int64)
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), values)


def absent_names(unknown: Mapping[str, Flags], count: int) -> tuple[pa.Array, Flags]:
    """(the names that each row lacks, as `_cdc_absent` has them; which rows lack any). unknown: which rows, by name."""
    lacks = np.zeros(count, bool)
    for flags in unknown.values():
        lacks |= flags
    rows = np.flatnonzero(lacks)
    if not len(rows):
        return pa.nulls(count, pa.string()), lacks
    shapes = numbered([flags[rows].astype(np.int64) for flags in unknown.values()])
    _, first, shape = np.unique(shapes, return_index=True, return_inverse=True)
    texts = [absent_text(name for name, flags in unknown.items() if flags[row]) for row in rows[first].tolist()]
    at = np.full(count, -1, np.int64)
    at[rows] = shape
    return pa.array(texts, pa.string()).take(pa.array(at, mask=at < 0)), lacks
