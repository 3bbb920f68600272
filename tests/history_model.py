"""What a history of changes means: one reference model in plain Python, for every reader of staged changes.

The product's kernel (cdc_core/history), the state of a table, which is read from all of its history
(cdc_core/stage/state.py), and the merge of some of it in a run (spark_jobs/merge.py) are held to `winners` and `nets`
by property tests; and these to `Server`, which does to a table what was asked and logs it, so that the model is not a
third opinion (tests/unit/history/test_history_model.py).

The rules, in the order in which `winners` applies them:

    order      of one source: (seq, ordinal), whatever order its changes are read in
    key        a change whose key differs before and after is two: a delete of the old key, an upsert of the new one
    truncate   what its source wrote before it is undone; the last one is a winner without a key
    values     that the log did not carry are those that the row had, also under older keys, back to its birth; what no
               change says is `Unknown`, with the key under which the row was when the history began
    winner     the last change of a key; between sources the one with the later (commit time, source name), of rows that
               must not share keys (`apart`) first of those that are there

A value is what a person reads: the exact text where the typed column cannot hold it.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Row = Mapping[str, Any]
Key = tuple[Any, ...]
BEFORE = "_before."


@dataclass(frozen=True)
class Change:
    """One staged change. `row` is the after image, of a delete the before image.

    literal, absent: as `_cdc_literal` and `_cdc_absent` have them.
    """

    op: str
    row: Row
    seq: int
    ordinal: int = 0
    before: Row | None = None
    source: str = "one"
    ts_us: int = 0
    literal: Mapping[str, str] | None = None
    absent: Sequence[str] = ()

    @property
    def order(self) -> tuple[int, int]:
        return self.seq, self.ordinal

    def images(self, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the row after, or of a delete before; an update's row before): the values that the log carried."""
        literal = self.literal or {}
        after = {name: literal.get(name, self.row.get(name)) for name in names if name not in self.absent}
        before = {
            name: literal.get(BEFORE + name, (self.before or {}).get(name))
            for name in names
            if BEFORE + name not in self.absent
        }
        return after, before if self.op == "u" else {}


@dataclass(frozen=True)
class Unknown:
    """A value that no change says: the row's own from before the history, when it had this key."""

    key: Key


@dataclass(frozen=True)
class Winner:
    """What is left of a key. op: u for a row, d, or t. values: of a row all, of a delete those that its image has."""

    op: str
    values: Mapping[str, Any]
    order: tuple[int, int]
    ts_us: int
    source: str


TRUNCATE_KEY: Key = ()


def winners(
    changes: Iterable[Change], names: Sequence[str], key: Sequence[str], *, apart: bool = False
) -> dict[Key, Winner]:
    """By key, what the changes leave; a truncate that counts is under TRUNCATE_KEY. apart: a row that one source has
    deleted may have moved to another before."""
    by_source: dict[str, dict[Key, Winner]] = {}
    for change in sorted(changes, key=lambda change: (change.source, change.order)):
        _apply(by_source.setdefault(change.source, {}), change, names, key)
    last: dict[Key, Winner] = {}
    for of_source in by_source.values():
        for at, winner in of_source.items():
            if at not in last or _rank(winner, apart) > _rank(last[at], apart):
                last[at] = winner
    return last


def _rank(winner: Winner, apart: bool) -> tuple[bool, int, str]:
    return apart and winner.op == "u", winner.ts_us, winner.source


def state(changes: Iterable[Change], names: Sequence[str], key: Sequence[str]) -> dict[Key, Mapping[str, Any]]:
    """The table's rows by key."""
    return {at: winner.values for at, winner in winners(changes, names, key).items() if winner.op == "u"}


def _apply(table: dict[Key, Winner], change: Change, names: Sequence[str], key: Sequence[str]) -> None:
    """What one change of a source does to what the changes before it have left."""
    by = (change.order, change.ts_us, change.source)
    if change.op == "t":
        table.clear()
        table[TRUNCATE_KEY] = Winner("t", {}, *by)
        return
    after, before = change.images(names)
    at = tuple(after[name] for name in key)
    if change.op == "d":
        table[at] = Winner("d", after, *by)
        return
    was = tuple(before[name] for name in key) if change.op == "u" else at
    had: Mapping[str, Any] = {}
    if change.op == "u":
        # A row that no change has mentioned yet is one that the history found there.
        winner = table.get(was)
        had = winner.values if winner is not None and winner.op == "u" else dict.fromkeys(names, Unknown(was))
    if was != at:
        table[was] = Winner("d", before, *by)
    table[at] = Winner("u", {**had, **after}, *by)


def nets(changes: Iterable[Change], names: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """Of a table without a key: how many copies of each row come (or go) by the changes since the last truncate.

    What an update did not log of the row after is as in the row before.
    """
    net: Counter[tuple[Any, ...]] = Counter()
    for change in sorted(changes, key=lambda change: (change.source, change.order)):
        if change.op == "t":
            net.clear()
            continue
        after, before = change.images(names)
        net[tuple((before | after)[name] for name in names)] += -1 if change.op == "d" else 1
        if change.op == "u":
            net[tuple(before[name] for name in names)] -= 1
    return Counter({row: count for row, count in net.items() if count})


NAMES = ("a", "b", "n", "y", "d")
KEY = ("a", "b")
COLUMNS = {"a": "int", "b": "varchar(10)", "n": "int", "y": "varchar(10)", "d": "date"}
"""The table of the histories below, with a key of two columns, or none."""


@dataclass
class Server:
    """One table of a source, which refuses what a database would, and the log that it writes.

    minimal: images have only the key and what was set (binlog_row_image = MINIMAL).
    """

    source: str = "one"
    minimal: bool = False
    keyed: bool = True
    rows: list[dict[str, Any]] = field(default_factory=list)
    log: list[Change] = field(default_factory=list)

    def at(self, a: int, b: str) -> dict[str, Any] | None:
        return next((row for row in self.rows if (row["a"], row["b"]) == (a, b)), None)

    def insert(self, seq: int, ts_us: int, row: dict[str, Any], *, op: str = "c") -> None:
        if self.keyed and self.at(row["a"], row["b"]) is not None:
            return
        self.rows.append(row)
        self._write(op, seq, ts_us, row)

    def update(self, seq: int, ts_us: int, a: int, b: str, setting: dict[str, Any]) -> None:
        old = self.at(a, b)
        if old is None:
            return
        new = old | setting
        if self.keyed and (new["a"], new["b"]) != (a, b) and self.at(new["a"], new["b"]) is not None:
            return
        self.rows[self.rows.index(old)] = new
        own = {*KEY, *setting} if self.minimal else set(NAMES)
        self._write("u", seq, ts_us, {name: new[name] for name in NAMES if name in own}, old)

    def delete(self, seq: int, ts_us: int, a: int, b: str) -> None:
        old = self.at(a, b)
        if old is None:
            return
        self.rows.remove(old)
        self._write("d", seq, ts_us, {name: old[name] for name in KEY} if self.minimal else old)

    def truncate(self, seq: int, ts_us: int) -> None:
        self.rows.clear()
        self._write("t", seq, ts_us, {})

    def _write(self, op: str, seq: int, ts_us: int, row: Row, before: Row | None = None) -> None:
        if before is not None and self.minimal:
            before = {name: before[name] for name in KEY}
        absent = [name for name in NAMES if name not in row] if op != "t" else []
        if before is not None:
            absent += [BEFORE + name for name in NAMES if name not in before]
        # A date that is no date of the calendar is null in its column and a literal beside it.
        literal = {
            mark + "d": image["d"]
            for mark, image in (("", row), (BEFORE, before or {}))
            if isinstance(image.get("d"), str)
        }
        typed = [
            {name: value for name, value in image.items() if not (name == "d" and isinstance(value, str))}
            for image in (row, before or {})
        ]
        ordinal = sum(change.seq == seq for change in self.log)
        after, old = typed[0], typed[1] if before is not None else None
        self.log.append(Change(op, after, seq, ordinal, old, self.source, ts_us, literal or None, absent))


@dataclass(frozen=True)
class History:
    """changes: of all sources. found: the rows that were there before, which no insert of the history says."""

    changes: list[Change]
    servers: list[Server]
    found: list[dict[str, Any]]


STEP = st.tuples(
    st.sampled_from("crudkt"),  # k: an update that changes the key
    st.integers(0, 3),
    st.sampled_from("xy"),
    st.integers(0, 3),
    st.sets(st.sampled_from("nyd"), min_size=1),
    st.booleans(),  # odd: null, and a date that is none
    st.booleans(),  # a new transaction begins
    st.booleans(),  # at the second source, where there are two
)


def histories(
    *, sources: int = 1, minimal: bool = False, truncates: bool = False, keyed: bool = True, most: int = 60
) -> st.SearchStrategy[History]:
    """Histories of one table as servers log them, each source's own; keys collide between sources."""

    def play(steps: Sequence[Any]) -> History:
        servers = [Server(f"s{number}", minimal, keyed) for number in range(sources)]
        found = [_drawn(a, b, 100 + a, odd=False) for a in (0, 1) for b in "x"] if minimal else []
        for server in servers:
            server.rows = [dict(row) for row in found]
        seqs, ts_us = [0] * sources, 1000
        for number, (op, a, b, other, setting, odd, begins, second) in enumerate(steps):
            at = int(second) % sources
            if begins or ts_us == 1000:
                # Commit times of sources are equal now and then; within one they never go back.
                ts_us += number % 2
                seqs = [seq + 1 for seq in seqs]
            server, when = servers[at], (seqs[at], ts_us)
            row = _drawn(a, b, number, odd=odd)
            values = {name: row[name] for name in setting}
            if op in "cr":
                server.insert(*when, row, op=op)
            elif op == "u":
                server.update(*when, a, b, values)
            elif op == "k":
                server.update(*when, a, b, {"a": other, **values})
            elif op == "d":
                server.delete(*when, a, b)
            elif truncates:
                seqs = [seq + 1 for seq in seqs]
                server.truncate(seqs[at], ts_us)
                seqs = [seq + 1 for seq in seqs]
        for server in servers:
            server.insert(max(seqs) + 1, ts_us + 1, _drawn(9, "z", 9, odd=False))
        return History([change for server in servers for change in server.log], servers, found)

    return st.lists(STEP, max_size=most).map(play)


def _drawn(a: int, b: str, number: int, *, odd: bool) -> dict[str, Any]:
    if odd:
        return {"a": a, "b": b, "n": None, "y": f"v{number}", "d": f"2026-02-{30 + number % 2}"}
    return {"a": a, "b": b, "n": number, "y": None, "d": dt.date(2026, 1, 1) + dt.timedelta(number)}
