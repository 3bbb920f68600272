"""What a row could have been while it was read, and which side is wrong: keys whose rows differ are judged by the
events of the staged changes (cdc_core/history), some of the keys at a time.

It must keep true that no key is left out: each is equal, explained by a change that the reader or the target had not
seen, unsettled, or a finding.

    source  target   verdict
    right   right    equal, as far as each had come
    right   wrong    the target is wrong
    wrong   right    the stage is wrong: a change was missed, and the target has what was staged
    wrong   wrong    both are wrong
    ?       ?        the rows differ, and the stage has never seen the key: nothing says which is wrong

A side is right if its row is one of the states that the key had while the side was read, and unknown ("?") if it is
not, and the stage does not know the state before. Where no earlier change was read, what the first change of the key
says of the row before it (an insert: none) is one of these states: either the stage has no earlier change, or
`known_from` has found that this says enough. If the stage lacks rows, a side that has none of these states is still
unknown: a target may not have the rows of a table that was not copied. Where one side is unknown, the key is unsettled
if a change of it was under way, else judged by the other side.

If changes that the target has not consumed move a row to another shard, a run may have made one of its two steps: the
target is right, too, if the row is in none of the shards, or in several as one of its states each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

import numpy as np
import pyarrow as pa

from cdc_core.history.codes import Coded, Flags, Numbers, Runs, numbered
from cdc_core.history.order import between_sources, within_sources
from cdc_core.history.truncates import Places, Truncate, undone
from cdc_core.model.version import origin_name


class Wrong(StrEnum):
    """Which corner a finding accuses."""

    TARGET = "target"
    STAGE = "stage"
    BOTH = "stage and target"
    UNKNOWN = "unknown"


EVENT_COLUMNS = pa.schema(
    [
        ("key", pa.int64()), ("text", pa.string()), ("place", pa.int64()), ("gone", pa.bool_()),
        ("partial", pa.bool_()), ("of_source", pa.string()), ("of_table", pa.string()), ("ts", pa.int64()),
        ("seq", pa.int64()), ("ordinal", pa.int64()), ("sure_seq", pa.int64()), ("consumed", pa.bool_()),
        ("told", pa.bool_()), ("former", pa.string()), ("former_place", pa.int64()),
    ]
)  # fmt: skip
"""What staged changes say of keys. key: its number; null: of all keys, a TRUNCATE. text: of the row; null where it is
gone. place: its shard. gone: the row leaves; without a key, one copy of it. partial: the change does not carry all
values. ordinal: `_cdc_row`. sure_seq: a source that is read after this place has the change, or a later one: the
change's own place; of a copied row, the place that its chunk waited for. consumed: by the target, before its rows were
read. told: what was there before the change is known: the row `former`, or null for none."""

MOVING, UNSETTLED = "moving", "unsettled"
OUTCOMES: tuple[str, ...] = (MOVING, UNSETTLED, *Wrong)
"""By number. Of keys that differ: changes explain it; a later look can judge it; findings."""
_RIGHT, _UNKNOWN, _WRONG = range(3)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the keys of a table are judged by.

    keyed: its rows have a key. shared: as in TableRule. whole: the stage knows every row, so that a key without a
    change has no row. bounds: by source, order keys of `low`, of its earliest read, and `high`, of its latest. tables:
    source and source table, by number.
    """

    keyed: bool
    shared: bool
    whole: bool
    bounds: Mapping[str, tuple[int, int]]
    tables: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Events:
    """Columns as in EVENT_COLUMNS; rows are numbers, equal where text and shard are; -1: none. place: -1 where the row
    is gone, or not known."""

    key: Numbers
    row: Numbers
    place: Numbers
    gone: Flags
    partial: Flags
    origin: Numbers
    ts: Numbers
    seq: Numbers
    ordinal: Numbers
    sure_seq: Numbers
    consumed: Flags
    told: Flags
    former: Numbers
    former_place: Numbers

    @classmethod
    def together(cls, some: Sequence[Events]) -> Events:
        return cls(*(np.concatenate([getattr(one, it.name) for one in some]) for it in fields(cls)))

    def take(self, rows: Numbers | Flags) -> Events:
        return Events(*(getattr(self, it.name)[rows] for it in fields(self)))

    def of(self, keys: Numbers) -> Events:
        """The only event, as one of each of these keys."""
        return replace(self.take(np.zeros(len(keys), np.int64)), key=keys)


@dataclass(frozen=True, slots=True)
class Rows:
    """Of a side: the key of each, and its number, as in Events."""

    key: Numbers
    row: Numbers


def outcomes(keys: int, source: Rows, target: Rows, events: Events, truncates: Events, by: Judged) -> Numbers:
    """The outcome of each key, as its place in OUTCOMES.

    keys: how many; they are numbered from 0. events: all of these keys. truncates: all of the table.
    """
    part = _Part(keys, {"source": source, "target": target}, events, truncates, by)
    judged = part.counted if not by.keyed else replace(part, events=part.with_truncates()).keyed
    (mine, mine_moves), (theirs, theirs_moves) = judged("source"), judged("target")
    cases = [
        (MOVING, (mine == _RIGHT) & (theirs == _RIGHT)),
        (Wrong.BOTH, (mine == _WRONG) & (theirs == _WRONG)),
        (Wrong.TARGET, theirs == _WRONG),
        (Wrong.STAGE, mine == _WRONG),
        (Wrong.UNKNOWN, (mine == theirs) & ~(mine_moves | theirs_moves)),
    ]
    numbers = [OUTCOMES.index(name) for name, _ in cases]
    return np.select([flags for _, flags in cases], numbers, OUTCOMES.index(UNSETTLED))


@dataclass(frozen=True, slots=True)
class _Part:
    """`keyed` and `counted` say, by key, whether a side is right, and whether a change of the key was under way."""

    keys: int
    rows: Mapping[str, Rows]
    events: Events
    truncates: Events
    by: Judged

    def keyed(self, side: str) -> tuple[Numbers, Flags]:
        events, rows, whole = self.events, self.rows[side], self.by.whole
        settled, under_way = self._seen(side)
        last, moving, first = self._last(settled), np.flatnonzero(under_way), self._first()
        first = first[~np.isin(events.key[first], events.key[last])]
        known = np.append(events.key[last], events.key[first]) if whole else events.key[last]
        never = np.setdiff1d(np.arange(self.keys), known)
        none = np.full(len(never), -1)
        key = np.concatenate([events.key[last], events.key[moving], events.key[first], never])
        row = np.concatenate([events.row[last], events.row[moving], events.former[first], none])
        place = np.concatenate([events.place[last], events.place[moving], events.former_place[first], none])
        certain = [~events.partial[last], ~events.partial[moving], np.ones(len(first), bool), np.full(len(none), whole)]
        partial = ~np.concatenate(certain)
        count = np.bincount(rows.key, minlength=self.keys)
        bare = np.flatnonzero(count == 0)
        pairs, there = self._pairs(key, row), np.append(self._pairs(rows.key, rows.row), self._pairs(bare, -1))
        alike = ~partial & np.isin(pairs, there)
        right, unsure = self._among(key[alike]), self._among(key[partial])
        if side == "target":
            # Only the target's rows must be one: sources may share keys, where the newest wins. Each of theirs must be
            # explained, else the one that is would hide the others.
            right, unsure = right & (count <= 1), unsure & (count <= 1)
            # A row changes its shard in two steps, in any order: meanwhile it is in both, or in none.
            places = np.unique(np.stack([key, place])[:, place >= 0], axis=1)[0]
            same = np.unique(pairs[alike & (row >= 0)]) // self._width
            right |= (np.bincount(places, minlength=self.keys) > 1) & (np.bincount(same, minlength=self.keys) == count)
        state = np.where(right, _RIGHT, np.where(unsure, _UNKNOWN, _WRONG))
        if side == "source" and whole and (count > 1).any():
            state[self._unexplained(settled, under_way) & (count > 1)] = _WRONG
        return state, self._among(events.key[moving])

    def counted(self, side: str) -> tuple[Numbers, Flags]:
        """Without a key: how many copies there may be, each in the shard of its values.

        A count begins at the last TRUNCATE that the side has seen. A later one may be in the side or not: there are at
        most as many copies as between two of them, and perhaps none.
        """
        truncates = self.truncates
        has = truncates.consumed if side == "target" else truncates.sure_seq < self._bounds(truncates)[0]
        later = np.flatnonzero(~has).tolist()
        kept = ~self._undone(np.flatnonzero(has).tolist())
        times = np.zeros(len(kept), np.int64) + sum(self._undone([at]).astype(np.int64) for at in later)
        events, settled, under_way = self.events.take(kept), *(flags[kept] for flags in self._seen(side))
        runs = Runs.of(numbered([events.key, events.origin, times[kept]]), events.seq)
        base = runs.total(settled & ~events.gone) - runs.total(settled & events.gone)
        less, more = runs.total(under_way & events.gone), runs.total(under_way & ~events.gone)
        one = events.take(runs.first())
        of_tables = Runs.of(numbered([one.key, one.origin]), one.seq)
        key = one.key[of_tables.first()]
        least, most = np.zeros((2, self.keys), np.int64)
        np.add.at(least, key, of_tables.least(base - less))
        np.add.at(most, key, of_tables.most(base + more))
        count = np.bincount(self.rows[side].key, minlength=self.keys)
        right = (count <= most) & ((count >= least) | bool(later))
        state = np.where(right, _RIGHT, _WRONG) if self.by.whole else np.full(self.keys, _UNKNOWN)
        if side == "target":
            state[self._astray()] = _WRONG
        return state, self._among(one.key[less + more > 0]) | bool(later)

    def with_truncates(self) -> Events:
        """A TRUNCATE is an event of each key: of all where one table has fed the rows, else of those that it had, and
        perhaps of those of which nothing was staged before."""
        every, source = np.arange(self.keys), np.array([source for source, _ in self.by.tables])
        found = [self.events]
        for at in range(len(self.truncates.key)):
            one = self.truncates.take(np.array([at]))
            if len(self.by.tables) == 1:
                found.append(one.of(every))
                continue
            found.append(one.of(np.unique(self.events.key[self._undone([at])])))
            if not self.by.whole:
                earlier = (source[self.events.origin] != source[one.origin]) | self._undone([at], shared=False)
                rest = one.of(np.setdiff1d(every, self.events.key[earlier]))
                found.append(replace(rest, partial=np.ones(len(rest.key), bool)))
        return Events.together(found)

    def _last(self, settled: Flags) -> Numbers:
        """The last of these events of each key that has one."""
        at, shared = np.flatnonzero(settled), self.by.shared
        some, tables = self.events.take(at), self.by.tables
        source = Coded.numbered([source for source, _ in tables], some.origin).codes
        origin = Coded.numbered([origin_name(*one) if shared else "" for one in tables], some.origin).codes
        last = within_sources(some.key, source, origin, some.seq, some.ordinal).last()
        live = ~some.gone[last]
        runs = between_sources(some.key[last], some.ts[last], source[last], origin[last], live, shared=shared)
        found: Numbers = at[last[runs.last()]]
        return found

    def _first(self) -> Numbers:
        """The first event of each key that says what the row was before. Of a key that several tables feed, each first
        change speaks of its own table's row."""
        events = self.events
        runs = Runs.of(events.key, events.seq, events.ordinal)
        of_one = runs.least(events.origin) == runs.most(events.origin)
        found: Numbers = runs.first()[of_one & events.told[runs.first()]]
        return found

    def _unexplained(self, settled: Flags, under_way: Flags) -> Flags:
        """The keys under which the source has a row that is not a state that any of its tables gave the key."""
        rows, events, first = self.rows["source"], self.events, self._first()
        at = np.flatnonzero(settled)
        some = events.take(at)
        last = at[within_sources(some.key, some.origin, np.zeros_like(some.key), some.seq, some.ordinal).last()]
        states = np.append(last, np.flatnonzero(under_way))
        certain, unsure = states[~events.partial[states]], states[events.partial[states]]
        given = self._pairs(events.key[certain], events.row[certain])
        told = self._pairs(events.key[first], events.former[first])
        explained = np.isin(self._pairs(rows.key, rows.row), np.append(given, told))
        return self._among(rows.key[~explained]) & ~self._among(events.key[unsure])

    def _astray(self) -> Flags:
        """The keys under which the target has a row in another shard than all that were read or staged."""
        source, target, events = self.rows["source"], self.rows["target"], self.events
        events = events.take(~events.gone & ~events.partial)
        key, row = np.append(source.key, events.key), np.append(source.row, events.row)
        strange = ~np.isin(self._pairs(target.key, target.row), self._pairs(key, row))
        return self._among(target.key[strange]) & self._among(key)

    def _seen(self, side: str) -> tuple[Flags, Flags]:
        """(which changes a side surely has; which it may have)."""
        events = self.events
        if side == "target":
            return events.consumed, ~events.consumed
        low, high = self._bounds(events)
        sure = events.sure_seq < low
        return sure, ~sure & (events.seq < high)

    def _bounds(self, events: Events) -> tuple[Numbers, Numbers]:
        bounds = np.array([self.by.bounds[source] for source, _ in self.by.tables], np.int64).reshape(-1, 2)
        return bounds[events.origin, 0], bounds[events.origin, 1]

    def _undone(self, truncates: Sequence[int], *, shared: bool = True) -> Flags:
        """Which events these truncates undo. shared: only rows of their own tables, not of all tables of the source."""
        events, tables, one = self.events, self.by.tables, self.truncates
        source, table = (Coded.numbered([names[at] for names in tables], events.origin) for at in (0, 1))
        places = Places(source, table, events.seq, events.ordinal, events.ts)
        last = [
            Truncate(names[0], names[1], int(one.seq[at]), int(one.ordinal[at]), int(one.ts[at]), False, 1)
            for at, names in ((at, tables[one.origin[at]]) for at in truncates)
        ]
        return undone(places, np.zeros(len(events.key), bool), last, shared=shared)

    @property
    def _width(self) -> int:
        rows = [one.row for one in self.rows.values()]
        return 2 + max(int(one.max(initial=-1)) for one in (*rows, self.events.row, self.events.former))

    def _pairs(self, key: Numbers, row: Numbers | int) -> Numbers:
        """A number for each key with a row, or with none (-1)."""
        return key * self._width + row + 1

    def _among(self, key: Numbers) -> Flags:
        """Which keys are among these."""
        return np.bincount(key, minlength=self.keys) > 0
