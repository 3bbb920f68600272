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

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.codes import Flags, Numbers, Runs, codes, filled, numbered, whole
from cdc_core.history.events import TABLE
from cdc_core.history.order import between_sources, within_sources
from cdc_core.history.rule import TableRule
from cdc_core.history.truncates import Truncate, undone
from cdc_core.history.winners import Events
from cdc_core.model.staged_columns import OP, ROW, SEQ, SOURCE, TS


class Wrong(StrEnum):
    """Which corner a finding accuses."""

    TARGET = "target"
    STAGE = "stage"
    BOTH = "stage and target"
    UNKNOWN = "unknown"


EVENT_COLUMNS = pa.schema(
    [
        (OP, pa.string()), (TS, pa.int64()), (SOURCE, pa.string()), (TABLE, pa.string()), (SEQ, pa.int64()),
        (ROW, pa.int64()), ("key", pa.int64()), ("text", pa.string()), ("place", pa.int64()), ("partial", pa.bool_()),
        ("told", pa.bool_()), ("former", pa.string()), ("former_place", pa.int64()), ("source_has", pa.bool_()),
        ("source_may", pa.bool_()), ("target_has", pa.bool_()),
    ]
)  # fmt: skip
"""What staged changes say of keys: events as in history.events. key: its number; null of a TRUNCATE. text: of the row;
null where it is gone. place: its shard. partial: the change does not carry all values. told: what was there before the
change is known: the row `former`, or null for none. source_has, source_may: every row that was read of the source shows
the change, or a later one; some may. target_has: the target had consumed it before its rows were read."""

MOVING, UNSETTLED = "moving", "unsettled"
OUTCOMES: tuple[str, ...] = (MOVING, UNSETTLED, *Wrong)
"""By number, what becomes of keys that differ: changes explain it; a later look can judge it; findings."""
_RIGHT, _UNKNOWN, _WRONG = range(3)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the keys of a table are judged by.

    keyed: its rows have a key. shared: as in TableRule. whole: the stage knows every row, so that a key without a
    change has no row. alone: one source table has fed the rows.
    """

    keyed: bool
    shared: bool
    whole: bool
    alone: bool

    def events(self, table: pa.Table) -> Events:
        return Events(table, TableRule(table.schema, ("key",), shared=self.shared))


def outcomes(keys: int, rows: Mapping[str, pa.Table], events: pa.Table, truncates: pa.Table, by: Judged) -> Numbers:
    """The outcome of each key, as its place in OUTCOMES.

    keys: how many; they are numbered from 0. rows: by side, `key` and `g`, a hash of text and place. events, truncates:
    EVENT_COLUMNS, with the hashes `g` and `was` instead of texts: all of these keys, and those without a key.
    """
    part = _Part(keys, rows, _spread(events, truncates, keys, by) if by.keyed else events, truncates, by)
    side = part.keyed if by.keyed else part.counted
    (mine, mine_moves), (theirs, theirs_moves) = side("source"), side("target")
    cases = [
        (MOVING, (mine == _RIGHT) & (theirs == _RIGHT)),
        (Wrong.BOTH, (mine == _WRONG) & (theirs == _WRONG)),
        (Wrong.TARGET, theirs == _WRONG),
        (Wrong.STAGE, mine == _WRONG),
        (Wrong.UNKNOWN, (mine == theirs) & ~(mine_moves | theirs_moves)),
    ]
    numbers = [OUTCOMES.index(name) for name, _ in cases]
    return np.select([flags for _, flags in cases], numbers, OUTCOMES.index(UNSETTLED))


def telling(keys: int, rows: Mapping[str, pa.Table], events: pa.Table, by: Judged) -> pa.Table:
    """Those of the events of some keys that lead to the same outcomes; all of them, where rows are counted."""
    if not by.keyed:
        return events
    return events.filter(pa.array(_Part(keys, rows, events, events.slice(0, 0), by).telling()))


def telling_truncates(truncates: pa.Table, by: Judged) -> pa.Table:
    """Those that matter: of each table's that both sides have, the first and the last one."""
    events = by.events(truncates)
    both = events.flags("source_has") & events.flags("target_has")
    runs = Runs.of(numbered([events.source.codes, events.table.codes, both.astype(np.int64)]), events.seq, events.row)
    kept = ~both
    kept[runs.first()] = kept[runs.last()] = True
    return truncates.filter(pa.array(kept))


def _spread(events: pa.Table, truncates: pa.Table, keys: int, by: Judged) -> pa.Table:
    """A TRUNCATE is an event of each key: of all where one table has fed the rows, else of those that it had, and
    perhaps of those of which nothing was staged before."""
    found, every = [events], np.arange(keys)
    before = by.events(events)
    key = filled(before["key"])

    def add(row: pa.Table, of: Numbers, *, partial: bool) -> None:
        rows = row.take(np.zeros(len(of), np.int64))
        for name, values in (("key", pa.array(of)), ("partial", pa.array(np.full(len(of), partial)))):
            rows = rows.set_column(rows.schema.get_field_index(name), name, values)
        found.append(rows)

    for at in range(truncates.num_rows):
        truncate = truncates.slice(at, 1)
        add(truncate, every if by.alone else np.unique(key[_undone(before, truncate)]), partial=False)
        if not by.alone and not by.whole:
            others = ~before.source.has(truncate.column(SOURCE)[0].as_py())
            add(truncate, np.setdiff1d(every, key[others | _undone(before, truncate, shared=False)]), partial=True)
    return pa.concat_tables(found)


def _undone(events: Events, truncates: pa.Table, *, shared: bool = True) -> Flags:
    """Which events these truncates undo. shared: only those of their own tables, not of all tables of the source."""
    last = [
        Truncate(truncate[SOURCE], truncate[TABLE], truncate[SEQ], truncate[ROW], truncate[TS], renews=False, count=1)
        for truncate in truncates.to_pylist()
    ]
    return undone(events.places, np.zeros(events.count, bool), last, shared=shared)


class _Part:
    """Some keys. `keyed` and `counted` say of each whether a side is right, and whether a change was under way."""

    def __init__(
        self, keys: int, rows: Mapping[str, pa.Table], events: pa.Table, truncates: pa.Table, by: Judged
    ) -> None:
        self._keys, self._by, self._truncates = keys, by, truncates
        self._events = by.events(events)
        self._key, self._partial = filled(self._events["key"]), self._events.flags("partial")
        self._place, self._former_place = (filled(self._events[name]) for name in ("place", "former_place"))
        self._gone = self._events.delete | self._events.truncate
        sides = [whole(rows[side].column("g")) for side in rows]
        numbers = codes(pa.concat_arrays([self._events["g"], self._events["was"], *sides]))
        self._row, self._was, *of_sides = np.split(numbers, np.cumsum([len(self._key), len(self._key), len(sides[0])]))
        self._rows = {
            side: (filled(whole(rows[side].column("key"))), row) for side, row in zip(rows, of_sides, strict=True)
        }
        self._width = int(numbers.max(initial=-1)) + 2

    def keyed(self, side: str) -> tuple[Numbers, Flags]:
        (rows_key, rows), complete, of = self._rows[side], self._by.whole, self._key
        has, may = self._seen(side)
        last, moving, first = self._last(has), np.flatnonzero(may), self._first()
        first = first[~np.isin(of[first], of[last])]
        never = np.setdiff1d(np.arange(self._keys), np.append(of[last], of[first]) if complete else of[last])
        none = np.full(len(never), -1)
        changed = np.append(last, moving)
        key = np.concatenate([of[changed], of[first], never])
        row = np.concatenate([self._row[changed], self._was[first], none])
        partial = np.concatenate(
            [self._partial[changed], np.zeros(len(first), bool), np.full(len(never), not complete)]
        )
        count = np.bincount(rows_key, minlength=self._keys)
        bare = np.flatnonzero(count == 0)
        pairs, there = self._pairs(key, row), np.append(self._pairs(rows_key, rows), self._pairs(bare, -1))
        alike = ~partial & np.isin(pairs, there)
        right, unsure = self._among(key[alike]), self._among(key[partial])
        if side == "target":
            # Only the target's rows must be one: sources may share keys, where the newest wins. Each of theirs must be
            # explained, else the one that is would hide the others.
            right, unsure = right & (count <= 1), unsure & (count <= 1)
            # A row changes its shard in two steps, in any order: meanwhile it is in both, or in none.
            place = np.concatenate([self._place[changed], self._former_place[first], none])
            known = ~partial & (row >= 0)
            places = np.unique(np.stack([key, place])[:, known], axis=1)[0]
            same = np.unique(pairs[alike & known]) // self._width
            between = np.bincount(places, minlength=self._keys) > 1
            right |= between & (np.bincount(same, minlength=self._keys) == count)
        state = np.where(right, _RIGHT, np.where(unsure, _UNKNOWN, _WRONG))
        if side == "source" and complete:
            state[self._unexplained(has, may) & (count > 1)] = _WRONG
        return state, self._among(of[moving])

    def counted(self, side: str) -> tuple[Numbers, Flags]:
        """Without a key: how many copies there may be, each in the shard of its values.

        A count begins at the last TRUNCATE that the side has seen. A later one may be in the side or not: there are at
        most as many copies as between two of them, and perhaps none.
        """
        events, seen = self._events, self._truncates.column(f"{side}_has")
        later = self._truncates.filter(pc.invert(seen))
        kept = np.flatnonzero(~_undone(events, self._truncates.filter(seen)))
        has, may, gone = (flags[kept] for flags in (*self._seen(side), self._gone))
        key, table = self._key[kept], numbered([events.source.codes, events.table.codes])[kept]
        times = sum(
            (_undone(events, later.slice(at, 1)).astype(np.int64) for at in range(later.num_rows)), 0 * self._key
        )
        runs = Runs.of(numbered([key, table, times[kept]]), kept)
        base = runs.total(has & ~gone) - runs.total(has & gone)
        less, more = runs.total(may & gone), runs.total(may & ~gone)
        first = runs.first()
        of_tables = Runs.of(numbered([key[first], table[first]]), first)
        of = key[first][of_tables.first()]
        least, most = np.zeros((2, self._keys), np.int64)
        np.add.at(least, of, of_tables.least(base - less))
        np.add.at(most, of, of_tables.most(base + more))
        emptied = later.num_rows > 0
        count = np.bincount(self._rows[side][0], minlength=self._keys)
        right = (count <= most) & ((count >= least) | emptied)
        state = np.where(right, _RIGHT, _WRONG) if self._by.whole else np.full(self._keys, _UNKNOWN)
        if side == "target":
            state[self._astray()] = _WRONG
        return state, self._among(key[may]) | emptied

    def telling(self) -> Flags:
        """Which events say as much as all of them, together with any others: of each key and source table the first
        one, and the last one that each side has; of those that a side may have, each that gave a key the row that the
        side has, and one for each shard."""
        events, kept = self._events, np.zeros(self._events.count, bool)
        runs = within_sources(self._key, events.source.codes, events.table.codes, events.seq, events.row)
        kept[runs.first()] = True
        shown = numbered([self._key, self._place, self._gone.astype(np.int64), self._partial.astype(np.int64)])
        for side, (rows_key, rows) in self._rows.items():
            has, may = self._seen(side)
            last = runs.last_where(has)
            kept[last[last >= 0]] = True
            kept |= may & np.isin(self._pairs(self._key, self._row), self._pairs(rows_key, rows))
            at = np.flatnonzero(may)
            kept[at[Runs.of(shown[at], at).first()]] = True
        return kept

    def _seen(self, side: str) -> tuple[Flags, Flags]:
        """(which changes a side surely has; which it may have)."""
        has = self._events.flags(f"{side}_has")
        return has, self._events.flags("source_may") if side == "source" else ~has

    def _last(self, has: Flags) -> Numbers:
        """The last of these events of each key that has one."""
        events = self._events
        last = self._last_of_each(has, events.origin.codes)
        source, log = events.source.codes[last], (events.seq[last], events.row[last])
        runs = between_sources(self._key[last], events.ts[last], source, log, ~self._gone[last], shared=self._by.shared)
        found: Numbers = last[runs.last()]
        return found

    def _last_of_each(self, has: Flags, origin: Numbers) -> Numbers:
        """The last of these events of each key, source and origin."""
        events, at = self._events, np.flatnonzero(has)
        source = events.source.codes[at]
        found: Numbers = at[within_sources(self._key[at], source, origin[at], events.seq[at], events.row[at]).last()]
        return found

    def _first(self) -> Numbers:
        """The first event of each key that says what the row was before. Of a key that several tables feed, each first
        change speaks of its own table's row."""
        events = self._events
        runs = Runs.of(self._key, events.seq, events.row)
        table = numbered([events.source.codes, events.table.codes])
        first = runs.first()
        found: Numbers = first[(runs.least(table) == runs.most(table)) & events.flags("told")[first]]
        return found

    def _unexplained(self, has: Flags, may: Flags) -> Flags:
        """The keys under which the source has a row that is not a state that any of its tables gave the key."""
        (rows_key, rows), first = self._rows["source"], self._first()
        states = np.append(self._last_of_each(has, self._events.table.codes), np.flatnonzero(may))
        certain, unsure = states[~self._partial[states]], states[self._partial[states]]
        given = self._pairs(self._key[certain], self._row[certain])
        explained = np.isin(
            self._pairs(rows_key, rows), np.append(given, self._pairs(self._key[first], self._was[first]))
        )
        return self._among(rows_key[~explained]) & ~self._among(self._key[unsure])

    def _astray(self) -> Flags:
        """The keys under which the target has a row in another shard than all that were read or staged."""
        (source_key, source), (target_key, target) = self._rows["source"], self._rows["target"]
        staged = ~self._gone & ~self._partial
        key, row = np.append(source_key, self._key[staged]), np.append(source, self._row[staged])
        strange = ~np.isin(self._pairs(target_key, target), self._pairs(key, row))
        return self._among(target_key[strange]) & self._among(key)

    def _pairs(self, key: Numbers, row: Numbers | int) -> Numbers:
        """A number for each key with a row, or with none (-1)."""
        return key * self._width + row + 1

    def _among(self, key: Numbers) -> Flags:
        """Which keys are among these."""
        return np.bincount(key, minlength=self._keys) > 0
