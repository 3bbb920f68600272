"""The merge of a table in memory: the twin of merge.py, rule by rule, for tables with a key.

Every decision is made on numbers: which change is the last of its key, and at which place each value of the merged row
is. Values move only at the end. So a table of a few rows costs milliseconds, where a Spark job costs half a second.
What the rules are, and why: merge.py, key_changes.py and absent.py. tests/spark/test_merge_twins.py holds both equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_core.model.merged import (
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
from cdc_core.model.places import at_places
from cdc_core.model.staged import (
    ABSENT,
    BEFORE_MARK,
    DELETE,
    INSERT,
    LITERAL,
    LITERAL_TYPE,
    OP,
    ROW,
    SEQ,
    SNAPSHOT,
    SOURCE,
    TRUNCATE,
    TS,
    UPDATE,
)
from spark_jobs.arrow_changes import Changes, Flags, Numbers, selected
from spark_jobs.arrow_parts import Parts
from spark_jobs.truncates import Truncate, TruncateRule

_TS_TYPE = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class ArrowRule:
    """As merge.MergeRule. columns: of the row, as they are written."""

    columns: pa.Schema
    key: Sequence[str]
    moving: Sequence[str] = ()
    sources: int = 1
    fill: Sequence[str] = ()
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Of the merged rows: what merge.py observes while it writes them."""

    rows: int
    key_changes: int
    superseded: int
    lost: int


NOTHING = Found(0, 0, 0, 0)


def without_undone(changes: Changes, rule: TruncateRule) -> tuple[Changes, list[Truncate]]:
    """The changes from the last truncate of their source table on, it among them, and no other truncate; the truncates
    that count. Raises Refused (spark.truncate)."""
    truncate = changes.is_op(TRUNCATE)
    if not truncate.any():
        return changes, []
    last = rule.last(_truncates(changes, truncate))
    kept, is_last = np.ones(changes.count, bool), np.zeros(changes.count, bool)
    for one in last:
        by = changes.origin if rule.shared else changes.source
        name = rule.origin(one) if rule.shared else one.source
        mine = by.codes == list(by.texts).index(name)
        same = mine & (changes.seq == one.seq) & (changes.row == one.row)
        later = (changes.seq > one.seq) | ((changes.seq == one.seq) & (changes.row > one.row))
        kept &= ~mine | later | same
        is_last |= same
    return selected(changes, kept & (~truncate | is_last)), last


def part_of_each(changes: Changes, key: Sequence[str], parts: Parts) -> Numbers:
    """The part of each key: of the rows that changes leave, then of those that they found. The first of truncates."""
    found = parts.of([changes.values[name] for name in key])
    found[: changes.count][changes.is_op(TRUNCATE)] = 0
    return found


def _truncates(changes: Changes, truncate: Flags) -> list[Truncate]:
    found: dict[tuple[int, int, bool], Truncate] = {}
    for at in np.flatnonzero(truncate).tolist():
        number = int(changes.source.codes[at]), int(changes.table.codes[at]), bool(changes.renews[at])
        source, table = changes.source.texts[number[0]], changes.table.texts[number[1]]
        order, ts_us = (int(changes.seq[at]), int(changes.row[at])), int(changes.ts[at])
        known = found.get(number)
        count = known.count + 1 if known else 1
        if known and known.order > order:
            order, ts_us = known.order, known.commit_ts_us
        found[number] = Truncate(source, table, *order, ts_us, number[2], count)
    return list(found.values())


@dataclass(slots=True)
class _Sides:
    """Each change under the keys that it touches (key_changes.py). change: its number. place: of its values.

    key: the number of the key. order: the sides by source and key, in the order of the log.
    """

    change: Numbers
    place: Numbers
    old: Flags
    key: Numbers
    arrived: Flags
    inherits: Flags
    delete: Flags
    key_change: Flags


def _sides(changes: Changes, key: Sequence[str], part: tuple[int, Parts] | None = None) -> _Sides:
    """part: which of them. Sides whose keys are in another part are left out."""
    count = changes.count
    key_of_value = _numbered([changes.codes(name) for name in key])
    update = changes.is_op(UPDATE)
    key_change = update & changes.has_before & (key_of_value[:count] != key_of_value[count:])
    second = np.flatnonzero(key_change)
    change = np.concatenate([np.arange(count), second])
    place = np.concatenate([np.arange(count), second + count])
    old = np.arange(len(change)) >= count
    if part is not None:
        number, parts = part
        mine = part_of_each(changes, key, parts)[place] == number
        change, place, old = change[mine], place[mine], old[mine]
    brings = changes.is_op(INSERT) | changes.is_op(SNAPSHOT)
    partial = np.array([*(any(not name.startswith(BEFORE_MARK) for name in names) for names in changes.lacking), False])
    return _Sides(
        change, place, old, key_of_value[place],
        brings[change] | (key_change[change] & ~old),
        (key_change & partial[changes.lack])[change],
        changes.is_op(DELETE)[change] | old,
        key_change,
    )  # fmt: skip


def _numbered(columns: Sequence[Numbers]) -> Numbers:
    """One number for each different combination."""
    found = columns[0] + 1  # -1: no value
    for codes in columns[1:]:
        span = int(codes.max(initial=0)) + 2
        if int(found.max(initial=0)) >= _MOST // span:
            found = _dense(found)
            if int(found.max(initial=0)) >= _MOST // span:
                codes = _dense(codes)
                span = int(codes.max(initial=0)) + 2
        found = found * span + codes + 1
    return found


_MOST = 1 << 62


def _dense(numbers: Numbers) -> Numbers:
    _, found = np.unique(numbers, return_inverse=True)
    return found


def _ascending(first: Numbers, *more: Numbers) -> bool:
    """Whether rows are in the order of these numbers, the most significant first."""
    step = np.diff(first)
    if not more:
        return bool((step >= 0).all())
    same = step == 0
    return bool((step >= 0).all()) and (not same.any() or bool((np.diff(more[0])[same] >= 0).all() and len(more) == 1))


@dataclass(slots=True)
class _Runs:
    """Rows in an order, cut into groups. order: their numbers. starts, ends: of each group, as places in the order."""

    order: Numbers
    starts: Numbers
    ends: Numbers = field(init=False)

    def __post_init__(self) -> None:
        self.ends = np.append(self.starts[1:], len(self.order)) - 1

    @classmethod
    def of(cls, groups: Numbers, *ascending: Numbers) -> _Runs:
        """ascending: what orders the rows of a group, the most significant first."""
        if _ascending(*ascending):
            order = np.argsort(groups, kind="stable")  # as they are staged, mostly
        else:
            order = np.lexsort((*reversed(ascending), groups))
        sorted_ = groups[order]
        return cls(order, np.flatnonzero(np.append(True, sorted_[1:] != sorted_[:-1])) if len(order) else order)

    def last(self) -> Numbers:
        return self.order[self.ends]

    def last_where(self, flags: Flags) -> Numbers:
        """The last row of each group that has the flag; -1: none."""
        return self._rows(np.maximum.reduceat(self._marked(flags), self.starts) if len(self.order) else self.order)

    def so_far(self, flags: Flags) -> Numbers:
        """By row: the last one of its group, up to itself, that has the flag; -1: none."""
        marked = np.maximum.accumulate(self._marked(flags))
        begins = np.repeat(self.starts, self.ends - self.starts + 1)
        found = np.empty(len(self.order), np.int64)
        found[self.order] = self._rows(np.where(marked >= begins, marked, -1))
        return found

    def total(self, numbers: npt.NDArray[np.generic]) -> Numbers:
        counted = numbers.astype(np.int64)[self.order]
        return np.add.reduceat(counted, self.starts) if len(counted) else counted

    def members(self, group: int) -> list[int]:
        found: list[int] = self.order[self.starts[group] : self.ends[group] + 1].tolist()
        return found

    def any(self, flags: Flags) -> Flags:
        return self.total(flags) > 0

    def _marked(self, flags: Flags) -> Numbers:
        return np.where(flags[self.order], np.arange(len(self.order)), -1)

    def _rows(self, places: Numbers) -> Numbers:
        return np.where(places >= 0, self.order[places], -1) if len(self.order) else places


def _settles(changes: Changes, sides: _Sides, name: str) -> tuple[Flags, Flags]:
    """(which sides settle a column; which have its value). See absent.known_value."""
    own, before = changes.lacks(name)[sides.change], changes.lacks(BEFORE_MARK + name)[sides.change]
    has = ~sides.delete & ~np.where(sides.old, before, own)
    return has | sides.arrived, has


@dataclass(slots=True)
class _Chains:
    """What rows that came under a new key without all values have from their older keys.

    node: by change, the number of its departure; -1: none. change, next: by node.
    """

    node: Numbers
    change: list[int]
    next: list[int]

    def of(self, node: int) -> list[int]:
        """The changes of a chain, newest first."""
        found = []
        while node >= 0:
            found.append(self.change[node])
            node = self.next[node]
        return found


def _through_key_changes(changes: Changes, sides: _Sides, rule: ArrowRule) -> tuple[_Chains | None, dict[str, Numbers]]:
    """The chains, if there are any; by column, the place of the value of each change, which it may have from an older
    one. Removes what was found from the names that the changes lack."""
    fill = rule.fill
    place = {name: np.arange(changes.count) for name in fill}
    if not fill or not sides.inherits.any():
        return None, place
    row = [changes.source.codes[sides.change], sides.key]
    if rule.shared:
        row.append(changes.origin.codes[sides.change])
    life = _Runs.of(_numbered(row), *_log_order(changes, sides))
    birth = life.so_far(sides.arrived)
    leaving = np.flatnonzero(sides.old & sides.inherits)
    # A birth is older than the departure from the key: what a node needs of its next one is there.
    leaving = leaving[np.lexsort((changes.row[sides.change[leaving]], changes.seq[sides.change[leaving]]))]
    chains = _Chains(np.full(changes.count, -1), sides.change[leaving].tolist(), [])
    chains.node[sides.change[leaving]] = np.arange(len(leaving))
    for side in leaving.tolist():
        born = int(birth[side])
        chains.next.append(int(chains.node[sides.change[born]]) if born >= 0 and sides.inherits[born] else -1)
    found: dict[int, set[str]] = {}
    for name in fill:
        settles, has = _settles(changes, sides, name)
        last = life.so_far(settles)[leaving]
        own = np.where((last >= 0) & has[last], sides.place[last], -1)
        values: list[int] = own.tolist()
        lacks = changes.lacks(name)
        for node, further in enumerate(chains.next):
            if values[node] < 0 <= further:
                values[node] = values[further]
            change = chains.change[node]
            if lacks[change] and values[node] >= 0:
                place[name][change] = values[node]
                found.setdefault(change, set()).add(name)
    for change, names in found.items():
        rest = changes.lacking[changes.lack[change]] - names
        changes.lacking.append(rest)
        changes.lack[change] = len(changes.lacking) - 1
    return chains, place


def _log_order(changes: Changes, sides: _Sides) -> tuple[Numbers, Numbers]:
    return changes.seq[sides.change], changes.row[sides.change]


@dataclass(slots=True)
class _Last:
    """By key (and first, by source and origin too): the last side, and what is known of all of them.

    filled: by column, the place of the last older value; -1: none. was: by shard key, the places of former values.
    ended: of groups that have them, the origins without a row.
    """

    winner: Numbers
    filled: dict[str, Numbers]
    chain: Numbers
    born: Flags
    unknown: Flags
    was: dict[str, list[list[int]]]
    changes: Numbers
    key_changes: Numbers
    lost: Numbers
    live: Numbers
    ended: dict[int, list[int]]


def merged(changes: Changes, rule: ArrowRule, part: tuple[int, Parts] | None = None) -> tuple[pa.Table, Found]:
    """The merged rows of a table. changes: without those that a truncate undid; they may be altered. part: these are
    the changes of one of these parts (arrow_parts.py)."""
    sides = _sides(changes, rule.key, part)
    chains, place = _through_key_changes(changes, sides, rule)
    last = _last_of_each_source(changes, sides, rule, chains, place)
    if rule.sources > 1 or rule.shared:
        last = _last_between_sources(changes, sides, rule, last)
    total = Found(
        int((last.changes - last.key_changes).sum()),
        int(last.key_changes.sum()),
        int((last.changes - 1).sum()),
        int(last.lost.sum()),
    )
    return _merged_rows(changes, sides, rule, chains, place, last), total


def _last_of_each_source(
    changes: Changes, sides: _Sides, rule: ArrowRule, chains: _Chains | None, place: dict[str, Numbers]
) -> _Last:
    groups = [sides.key]
    if rule.sources > 1:
        groups.append(changes.source.codes[sides.change])
    if rule.shared:
        groups.append(changes.origin.codes[sides.change])
    runs = _Runs.of(_numbered(groups), *_log_order(changes, sides))
    filled = {}
    for name in rule.fill:
        settles, has = _settles(changes, sides, name)
        at = runs.last_where(settles)
        values = np.where(sides.old, sides.place, place[name][sides.change])
        filled[name] = np.where((at >= 0) & has[at], values[at], -1)
    arrival = runs.last_where(sides.arrived)
    none = np.full(len(arrival), -1)
    chain = none if chains is None else np.where(arrival >= 0, chains.node[sides.change[arrival]], -1)
    lost = np.zeros(changes.count, bool)
    for name in rule.key:
        lost |= changes.lacks(name) | changes.lacks(BEFORE_MARK + name)
    return _Last(
        runs.last(),
        filled,
        chain,
        runs.any(sides.arrived),
        runs.any(_shard_unknown(changes, sides, rule.moving)),
        {name: _former(changes, sides, runs, name, place.get(name)) for name in rule.moving},
        runs.ends - runs.starts + 1,
        runs.total(sides.old),
        runs.total(lost[sides.change] & ~sides.old),
        none,
        {},
    )


def _shard_unknown(changes: Changes, sides: _Sides, moving: Sequence[str]) -> Flags:
    update, delete = changes.is_op(UPDATE), changes.is_op(DELETE)
    unknown = np.zeros(len(sides.change), bool)
    for name in moving:
        unsaid, lacks = changes.lacks(BEFORE_MARK + name), changes.lacks(name)
        own = np.where(update, unsaid & ~lacks & ~sides.key_change, delete & lacks)
        unknown |= np.where(sides.old, unsaid[sides.change], own[sides.change])
    return unknown


def _former(changes: Changes, sides: _Sides, runs: _Runs, name: str, place: Numbers | None) -> list[list[int]]:
    """By group: places of the different values that a shard key had before."""
    codes = changes.codes_of_values(name)
    now = np.arange(changes.count) if place is None else place
    moved = changes.is_op(UPDATE) & (codes[changes.count :] != codes[now])
    at = np.where(
        sides.delete,
        np.where(sides.old, sides.place, now[sides.change]),
        np.where(moved[sides.change], sides.change + changes.count, -1),
    )
    at = np.where((at >= 0) & (codes[at] >= 0), at, -1)[runs.order]
    none: list[int] = []
    found = [none] * len(runs.starts)
    for group in np.flatnonzero(np.maximum.reduceat(at, runs.starts) >= 0).tolist() if len(at) else ():
        places = at[runs.starts[group] : runs.ends[group] + 1].tolist()
        found[group] = list({int(codes[one]): one for one in places if one >= 0}.values())
    return found


def _last_between_sources(changes: Changes, sides: _Sides, rule: ArrowRule, last: _Last) -> _Last:
    change = sides.change[last.winner]
    live = ~sides.delete[last.winner]
    origin = changes.origin.codes[change]
    apart = np.where(changes.is_op(TRUNCATE)[change] & rule.shared, origin, -1)
    between = [changes.ts[change], changes.source.codes[change]]
    if rule.shared:
        between = [live.astype(np.int64), *between, origin]
    runs = _Runs.of(_numbered([sides.key[last.winner], apart]), *between)
    winner = runs.last()
    filled = {}
    for name, at in last.filled.items():
        # The row of another origin is another row: its values are not this one's.
        among = winner if rule.shared else runs.last_where(at >= 0)
        filled[name] = np.where(among >= 0, at[among], -1)
    several = {group: runs.members(group) for group in np.flatnonzero(runs.ends > runs.starts).tolist()}
    was = {}
    for name, places in last.was.items():
        codes = changes.codes_of_values(name)
        was[name] = [places[one] for one in runs.order[runs.starts].tolist()]
        for group, ones in several.items():
            was[name][group] = list({int(codes[place]): place for one in ones for place in places[one]}.values())
    return _Last(
        last.winner[winner],
        filled,
        last.chain[winner],
        runs.any(last.born),
        runs.any(last.unknown),
        was,
        runs.total(last.changes),
        runs.total(last.key_changes),
        runs.total(last.lost),
        runs.total(live),
        {
            group: sorted({int(origin[one]) for one in runs.members(group) if not live[one]})
            for group in np.flatnonzero(runs.any(~live)).tolist()
        },
    )


def _merged_rows(
    changes: Changes, sides: _Sides, rule: ArrowRule, chains: _Chains | None, place: dict[str, Numbers], last: _Last
) -> pa.Table:
    side, count = last.winner, len(last.winner)
    change, old = sides.change[side], sides.old[side]
    columns: dict[str, pa.Array] = {}
    taken: dict[int, dict[str, str]] = {}
    unknown: dict[str, Flags] = {}
    for name in rule.columns.names:
        if name not in place:
            columns[name] = at_places(changes.values[name], sides.place[side])
            continue
        own = np.where(old, sides.place[side], place[name][change])
        lacks = np.where(old, changes.lacks(BEFORE_MARK + name)[change], changes.lacks(name)[change])
        at = np.where(lacks, last.filled[name], own)
        columns[name] = changes.values[name].take(pa.array(at, mask=at < 0))
        unknown[name] = lacks & (at < 0)
        if changes.literals:
            for row in np.flatnonzero((at >= 0) & (at != sides.place[side])).tolist():
                if (text := changes.literal(int(at[row]), name)) is not None:
                    taken.setdefault(row, {})[name] = text
    absent, is_absent = _absent(unknown, count)
    kind = np.where(sides.delete[side], 0, np.where(changes.is_op(TRUNCATE)[change], 1, 2))
    columns[OP] = pa.array([MergedOp.DELETE, MergedOp.TRUNCATE, MergedOp.UPSERT], pa.string()).take(pa.array(kind))
    columns |= _places(changes, change)
    columns[LITERAL] = _literals(changes, change, old, taken)
    columns[ABSENT] = absent
    columns[BORN] = pa.array(last.born)
    if rule.moving:
        columns[FORMER_SHARD_KEYS] = pa.StructArray.from_arrays(
            [_lists(last.was[name], changes.values[name]) for name in rule.moving], list(rule.moving)
        )
        columns[SHARD_UNKNOWN] = pa.array(last.unknown)
    if chains is not None:
        nodes = np.where(is_absent, last.chain, -1).tolist()
        columns[KEY_CHAIN] = _key_chains(changes, rule, [chains.of(node) if node >= 0 else None for node in nodes])
    if rule.shared:
        columns[ORIGIN] = pa.array(changes.origin.texts, pa.string()).take(pa.array(changes.origin.codes[change]))
        others: list[str | None] = [None] * count
        for row, ended in last.ended.items():
            own = changes.origin.codes[change[row]]
            others[row] = ",".join(changes.origin.texts[one] for one in ended if one != own) or None
        columns[ENDED_ORIGINS] = pa.array(others, pa.string())
        columns[LIVE_ORIGINS] = pa.array(last.live, pa.int64())
    schema = merged_schema(
        list(rule.columns), rule.key, moving=rule.moving, chained=chains is not None, shared=rule.shared
    )
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _absent(unknown: Mapping[str, Flags], count: int) -> tuple[pa.Array, Flags]:
    """(the names that each row lacks, as `_cdc_absent` has them; which rows lack any). unknown: which rows, by name."""
    lacks = np.zeros(count, bool)
    for flags in unknown.values():
        lacks |= flags
    rows = np.flatnonzero(lacks)
    if not len(rows):
        return pa.nulls(count, pa.string()), lacks
    numbers = _numbered([flags[rows].astype(np.int64) for flags in unknown.values()])
    _, first, pattern = np.unique(numbers, return_index=True, return_inverse=True)
    texts = [
        json.dumps([name for name, flags in unknown.items() if flags[row]], ensure_ascii=False, separators=(",", ":"))
        for row in rows[first].tolist()
    ]
    return _sparse(pa.array(texts, pa.string()).take(pa.array(pattern)), rows, count), lacks


def _literals(changes: Changes, change: Numbers, old: Flags, taken: Mapping[int, Mapping[str, str]]) -> pa.Array:
    """By row, the exact texts of its own change, and those taken with values of older ones."""
    own = np.flatnonzero(np.isin(change, np.fromiter(changes.literals, np.int64, len(changes.literals))))
    rows = np.array(sorted({*own.tolist(), *taken}), np.int64)
    entries = [
        [*_own_literals(changes, int(change[row]), old=bool(old[row])).items(), *taken.get(row, {}).items()] or None
        for row in rows.tolist()
    ]
    return _sparse(pa.array(entries, LITERAL_TYPE), rows, len(change))


def _sparse(values: pa.Array, rows: Numbers, count: int) -> pa.Array:
    """An array with these values in these rows, and nulls elsewhere."""
    if not len(rows):
        return pa.nulls(count, values.type)
    at = np.full(count, -1, np.int64)
    at[rows] = np.arange(len(rows))
    return values.take(pa.array(at, mask=at < 0))


def _own_literals(changes: Changes, change: int, *, old: bool) -> dict[str, str]:
    entries = changes.literals.get(change, {})
    if old:
        return {name[len(BEFORE_MARK) :]: text for name, text in entries.items() if name.startswith(BEFORE_MARK)}
    return {name: text for name, text in entries.items() if not name.startswith(BEFORE_MARK)}


def _places(changes: Changes, change: Numbers) -> dict[str, pa.Array]:
    return {
        TS: pa.array(changes.ts[change], pa.int64()).cast(_TS_TYPE),
        SOURCE: pa.array(changes.source.texts, pa.string()).take(pa.array(changes.source.codes[change])),
        SEQ: pa.array(changes.seq[change]),
        ROW: pa.array(changes.row[change]),
    }


def _lists(places: Sequence[Sequence[int]], values: pa.Array) -> pa.ListArray:
    offsets = np.cumsum([0, *map(len, places)])
    flat = pa.array([place for some in places for place in some], pa.int64())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values.take(flat))


def _key_chains(changes: Changes, rule: ArrowRule, links: Sequence[Sequence[int] | None]) -> pa.ListArray:
    kind = key_chain_type(rule.columns, rule.key)
    flat = np.array([change for chain in links for change in chain or ()], np.int64)
    before = pa.array(flat + changes.count)
    literals = [[*_own_literals(changes, change, old=True).items()] or None for change in flat.tolist()]
    children = [
        *[changes.values[name].take(before) for name in rule.key],
        pa.array(literals, LITERAL_TYPE),
        *_places(changes, flat).values(),
    ]
    offsets = np.cumsum([0, *(len(chain or ()) for chain in links)]).tolist()
    # A null list is one whose offset is null.
    starts = [None if chain is None else start for chain, start in zip(links, offsets, strict=False)]
    structs = pa.StructArray.from_arrays(children, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array([*starts, offsets[-1]], pa.int32()), structs).cast(kind)
