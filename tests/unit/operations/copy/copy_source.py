"""Servers in memory for the model of copies: a log, an engine in which a transaction of the log can be seen only later,
read views, locks; and another server that takes over, with the same history in a log of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cdc_core.model.position import Position
from cdc_core.source.host.gtid_sets import GtidSet
from cdc_core.source.host.start_position import Begin, Head, Search
from tests.unit.operations.copy.copy_keys import Key, Shape

START_US = 497_000 * 3_600_000_000
APART_US = 100
"""Between the commit times of two transactions."""
_FIRST_FILES = {1: 30, 2: 10, 3: 50, 4: 1}
"""By server_id, where its log begins: a server that takes over may be at an earlier or at a later file."""
Rows = dict[Key, int]


@dataclass(frozen=True)
class Change:
    """op: as it is staged. key, value: after it; value is None for a delete. old_key, old: before it; None for an
    insert."""

    op: str
    key: Key
    value: int | None
    old_key: Key | None
    old: int | None

    @property
    def keys(self) -> tuple[Key, ...]:
        """After it and before it."""
        return (self.key,) if self.old_key is None else (self.key, self.old_key)


@dataclass(frozen=True, eq=False)
class Entry:
    """Something in the log between two places. kind: rows, truncate, create, unlogged, rotate. then: the rows after it.
    number: of the transaction in the history that all servers have; of a rotate, of the one before. gtid: "" if it has
    none. xa: the XA COMMIT of what was prepared."""

    kind: str
    begin: Position
    end: Position
    changes: tuple[Change, ...]
    then: Rows
    number: int
    gtid: str
    xa: bool = False

    @property
    def ts_us(self) -> int:
        return START_US + APART_US * self.number


@dataclass(eq=False)
class View:
    """A read view. redefined: the table was, since, and unread until then."""

    rows: Rows
    has_read: bool = False
    redefined: bool = False


class Source:
    """A server. `rows`: by its log; `engine`: what a new read view shows, which lacks the entries `unseen`.

    dead: it does not answer.
    """

    def __init__(self, flavor: str, shape: Shape, rows: Rows, server_id: int = 1) -> None:
        self.flavor, self.shape, self.server_id = flavor, shape, server_id
        self.rows, self.engine, self.before = dict(rows), dict(rows), dict(rows)
        self.log: list[Entry] = []
        self.unseen: list[Entry] = []
        self.end = Position(0, f"binlog.{_FIRST_FILES[server_id]:06d}", 4)
        self.views: list[View] = []
        self.locked = False
        self.dead = False
        self._value = 100 * server_id

    @property
    def identity(self) -> str:
        return f"server_id={self.server_id}"

    @property
    def number(self) -> int:
        """Of the last transaction in the log."""
        return self.log[-1].number if self.log else 0

    def gtids(self, entries: list[Entry]) -> str:
        """Of these transactions, and of what was before the log, in the server's own text form."""
        first = [f"{uuid(0)}:1"] if self.flavor == "mysql" else []
        return str(GtidSet.parse(",".join([*first, *(entry.gtid for entry in entries if entry.gtid)])))

    def taken_over(self, chance: random.Random, staged: int) -> Source:
        """Another server, which has the transactions up to a number, and may lack some that came after."""
        must = sum(entry.number <= staged for entry in self.log)
        kept = self.log[: chance.choice((len(self.log), chance.randint(must, len(self.log))))]
        other = Source(self.flavor, self.shape, self.before, self.server_id + 1)
        other._value = self._value + 100
        for entry in kept:
            if entry.kind != "rotate":
                other._log(entry.kind, entry.changes, entry.then, entry.number, entry.gtid, 70, xa=entry.xa)
                other.settle_all()  # one after the other: they may change the same rows
                if chance.random() < 0.2:
                    other.rotate()
        other.before = dict(self.before)
        self.dead = chance.random() < 0.7
        return other

    def write(self, chance: random.Random) -> None:
        """A transaction. It cannot change rows of a transaction that the engine has not ended: those are locked."""
        if self.locked:
            return
        number = self.shape.number
        touched = {number(key) for entry in self.unseen for change in entry.changes for key in change.keys}
        rows = dict(self.rows)
        changes: list[Change] = []
        for _ in range(chance.randint(1, 2)):
            chosen = chance.randrange(len(self.shape.keys))
            if chosen not in touched:
                made = self._changes(chance, rows, chosen, touched)
                touched |= {number(key) for change in made for key in change.keys}
                changes += made
        if changes:
            self._add("rows", tuple(changes), rows, xa=chance.random() < 0.3)

    def _changes(self, chance: random.Random, rows: Rows, number: int, touched: set[int]) -> list[Change]:
        """Changes of the row with a key, of which `rows` then has what they leave. touched: other keys that the
        transaction cannot change."""
        key = next((key for key in rows if self.shape.number(key) == number), None)
        if key is None:
            return [self._insert(chance, rows, number)]
        if chance.random() < 0.5:
            gone = Change("d", key, None, key, rows.pop(key))
            again = self.shape.spelled and chance.random() < 0.4
            return [gone, self._insert(chance, rows, number)] if again else [gone]
        new = key
        if self.shape.spelled and chance.random() < 0.6:
            taken = {self.shape.number(row) for row in rows} | touched
            free = [free_number for free_number in range(len(self.shape.keys)) if free_number not in taken]
            new = self.shape.spelling(chance, chance.choice([number, number, *free]))
        self._value += 1
        old = rows.pop(key)
        rows[new] = self._value
        return [Change("u", new, self._value, key, old)]

    def _insert(self, chance: random.Random, rows: Rows, number: int) -> Change:
        key = self.shape.spelling(chance, number)
        self._value += 1
        rows[key] = self._value
        return Change("c", key, self._value, None, None)

    def define(self, kind: str) -> None:
        """TRUNCATE, DROP and CREATE, or a change of rows that is not logged: it waits for whoever uses the table."""
        if self.locked or any(view.has_read for view in self.views):
            return
        self.settle_all()
        odd = {key: value for key, value in self.rows.items() if self.shape.number(key) % 2}
        self._add(kind, (), odd if kind == "unlogged" else {})
        self.settle_all()
        for view in self.views:
            view.redefined = True

    def rotate(self) -> None:
        """A new file, which the extractor stages as a batch without rows."""
        begin, self.end = self.end, Position(0, f"binlog.{self.end.number + 1:06d}", 4)
        self.log.append(Entry("rotate", begin, self.end, (), dict(self.rows), self.number, ""))

    def settle(self, chosen: int) -> None:
        """The engine ends a transaction. MariaDB's ends them in the order of the log, except for an XA COMMIT."""
        able = self.unseen
        if self.flavor == "mariadb":
            able = [transaction for transaction in self.unseen if transaction.xa] + [
                transaction for transaction in self.unseen if not transaction.xa
            ][:1]
        if able:
            entry = able[chosen % len(able)]
            self.unseen.remove(entry)
            if entry.kind == "rows":
                for change in entry.changes:
                    if change.old_key is not None:
                        self.engine.pop(change.old_key, None)
                    if change.value is not None:
                        self.engine[change.key] = change.value
            else:
                self.engine = dict(entry.then)

    def settle_all(self) -> None:
        while self.unseen:
            self.settle(0)

    def settle_named(self, gtids: str) -> None:
        """The engine ends the transactions of a GTID set."""
        wanted = GtidSet.parse(gtids)
        while ready := [at for at, entry in enumerate(self.unseen) if wanted.has(entry.gtid)]:
            self.settle(ready[0])

    def open_view(self) -> View:
        self.views.append(View(dict(self.engine)))
        return self.views[-1]

    @property
    def committed(self) -> Position:
        """Of MariaDB: the begin of the first transaction that the engine has not ended; an XA COMMIT does not count."""
        return next((entry.begin for entry in self.unseen if not entry.xa), self.end)

    def at(self, place: Position) -> Rows:
        """The rows by the log up to a place, of whatever timeline."""
        own = replace(place, timeline=0)
        return next((dict(entry.then) for entry in reversed(self.log) if entry.end <= own), dict(self.before))

    def _add(self, kind: str, changes: tuple[Change, ...], rows: Rows, *, xa: bool = False) -> None:
        number = self.number + 1
        gtid = {"mysql": f"{uuid(self.server_id)}:{number}", "mariadb": f"0-{self.server_id}-{number}"}
        self._log(kind, changes, rows, number, gtid.get(self.flavor, ""), 100, xa=xa)

    def _log(
        self,
        kind: str,
        changes: tuple[Change, ...],
        rows: Rows,
        number: int,
        gtid: str,
        size: int,
        *,
        xa: bool,
    ) -> None:
        begin, self.end = self.end, replace(self.end, offset=self.end.offset + size)
        self.rows = dict(rows)
        self.log.append(Entry(kind, begin, self.end, changes, dict(rows), number, gtid, xa))
        self.unseen.append(self.log[-1])


def uuid(number: int) -> str:
    return f"{number:08d}-0000-0000-0000-000000000000"


class SearchedLog(Search):
    """The product's search for a place, in the log of a server of the model: `server` is that."""

    _server: Source

    def head(self, file: str) -> Head:
        before = [entry for entry in self._server.log if entry.begin < Position(0, file, 4)]
        begun_us = before[-1].ts_us + 1 if before else START_US - 2_000_000
        return Head(begun_us, self._server.gtids(before), 1)

    def begins(self, file: str) -> Iterator[Begin]:
        for entry in self._server.log:
            if entry.kind != "rotate" and entry.begin >= Position(0, file, 4):
                yield Begin(entry.begin, entry.ts_us, entry.gtid, entry.ts_us)
