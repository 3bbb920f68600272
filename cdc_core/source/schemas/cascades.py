"""Foreign keys by which a server changes rows of captured tables that it does not log (MariaDB, MySQL before 9.6).

A MySQL that logs them may have a log with row events that do not: of an earlier version, or of a source that it
replicates. Such events lack a flag; from the first one on, keys count.

The log has the row that causes it: a row of a parent table is deleted, or a column of it changes that a key refers to.
From there on rows of the captured tables that its keys lead to, directly or through others, may differ from what is
staged, so that their coverage says it (Happened.CASCADED), and a copy is due for them.

    the parent is captured      its rows tell: deleted ones, and updated ones with another value in a referenced column
    it is not                   the kind of a row event alone tells, as its rows are not read

The server knows its current keys only. So all keys that were ever seen count, and they are asked for again where the
log defines some. Where the log has a statement from before they were asked for that may have ended a key which nobody
has seen, the tables that it may have changed count as changed there: the table itself, and those that keys lead to from
it. A key ends where it is dropped, with its child, and where a table or a column that it names gets another name.
It must keep true that no captured table counts as whole after a row that a key may have taken with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from cdc_core.binlog.rows_event import FLAG_LOGS_CASCADES
from cdc_core.errors import Refused
from cdc_core.model.block import Block, TableRows
from cdc_core.model.coverage import Happened, TableEvent
from cdc_core.model.position import Position
from cdc_core.model.readable import counted
from cdc_core.model.schema import TableName
from cdc_core.model.staged_columns import (
    BEFORE,
    BEFORE_MARK,
    DELETE,
    LITERAL,
    OP,
    SEQ,
    TS,
    UPDATE,
    LiteralEntries,
    lacking,
)
from cdc_core.mysql.connections import answers
from cdc_core.source.host.server_facts import as_text, query
from cdc_core.source.schemas.foreign_keys import CHANGING, ForeignKey, foreign_keys
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.sql.client_text import lower_cased
from cdc_core.source.sql.statement_classes import Statement

Captures = Callable[[str, str], bool]
LOGGED_SINCE = (9, 6)
"""MySQL logs what a foreign key changes in the child table since this version, unless innodb_native_foreign_keys is on;
MariaDB and older ones never do."""


@answers("source")
def logs_cascades(connection: pymysql.Connection) -> bool:
    """Whether the server logs what foreign keys change: only where InnoDB leaves them to the server above it."""
    version = "".join(as_text(row[0]) for row in query(connection, "SELECT VERSION()"))
    number = re.match(r"(\d+)\.(\d+)", version)
    if "mariadb" in version.lower() or number is None or (int(number[1]), int(number[2])) < LOGGED_SINCE:
        return False
    rows = query(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'")
    return not any(as_text(row[1]).upper() in ("ON", "1") for row in rows)


@answers("source")
def require_seen_cascades(
    connection: pymysql.Connection,
    captures: Captures,
    *,
    source: str,
    policy: CapturePolicy,
    logged: bool | None = None,
) -> tuple[str, ...]:
    """What the pipeline's policy lets pass: foreign keys that change rows of captured tables without row events, one
    line each. logged: whether the log has them; None: as `logs_cascades` says.

    Raises Refused (source.unlogged_cascades) where `on_unlogged_change` is `stop`, and where it is `resync` and the
    account does not see every table whose keys may lead to a captured one: changes would be missed without a trace.
    """
    if logs_cascades(connection) if logged is None else logged:
        return ()
    keys = foreign_keys(connection)
    cascading = [key for key in keys if key.changes_rows and captures(*key.child)]
    if cascading and policy.on_unlogged_change == "stop":
        raise Refused(
            f"{counted(len(cascading), 'foreign key')} may change rows of captured tables without logging them: "
            f"{'; '.join(map(str, cascading))}.",
            where=source,
            code="source.unlogged_cascades",
            remedy="set tables.on_unlogged_change to resync: the tables are then copied again after such a change. Or "
            "replace the cascade with statements of the application, exclude the child table, or set it to record",
        )
    if hidden := _hidden(connection, keys, cascading):
        names = ", ".join(map(".".join, hidden))
        if policy.on_unlogged_change == "resync":
            raise Refused(
                f"Foreign keys lead from captured tables to {names}, which the account does not see. Whether rows of "
                "these change with rows of other tables, which this server does not log, is unknown.",
                where=source,
                code="source.unlogged_cascades",
                remedy="GRANT SELECT on these tables to the account (it is enough to see their definitions), or accept "
                "the difference with tables.on_unlogged_change: record",
            )
        return (*_lines(cascading), f"whether foreign keys change rows of {names} is unknown")
    return _lines(cascading)


def _lines(keys: Iterable[ForeignKey]) -> tuple[str, ...]:
    return tuple(f"{key} changes rows that this server does not log" for key in keys)


def _hidden(
    connection: pymysql.Connection, keys: Iterable[ForeignKey], cascading: Iterable[ForeignKey]
) -> list[TableName]:
    """Tables that the account does not see, on a way by which keys lead to captured tables."""
    by_child: dict[TableName, list[ForeignKey]] = {}
    for key in keys:
        if key.changes_rows:
            by_child.setdefault(key.child, []).append(key)
    parents, waiting = set[TableName](), [key.parent for key in cascading]
    while waiting:
        name = waiting.pop()
        if name not in parents:
            parents.add(name)
            waiting += [key.parent for key in by_child.get(name, ())]
    return [
        parent
        for parent in sorted(parents)
        if not query(
            connection, "SELECT 1 FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", parent
        )
    ]


_DROPS = frozenset({"DROP TABLE", "CREATE OR REPLACE TABLE", "DROP DATABASE", "CREATE OR REPLACE DATABASE"})


@dataclass(frozen=True, slots=True)
class _Asked:
    """When the server was asked for its keys. before, after: where its log ended then. at_us: its clock afterwards."""

    before: Position
    after: Position
    at_us: int

    def shows(self, place: Position) -> bool:
        """Whether the answer has what a statement that ends there did, or that it was taken back since."""
        return place.timeline == self.before.timeline and place <= self.before

    def may_lack(self, place: Position, began_us: int) -> bool:
        """Whether a key that a statement ended may be missing in the answer: the server drops keys before it logs it
        (MariaDB), so that what began before counts too."""
        return place.timeline == self.after.timeline and (place <= self.after or began_us <= self.at_us)


class Cascades:
    """ask: the server's foreign keys now. end: where its log ends now. now_us: its clock. active: see `open`.

    require: raises Refused where the pipeline does not let keys pass that change rows unlogged; asked only where `open`
    was told that all is logged, and it is not."""

    def __init__(
        self,
        captures: Captures,
        ask: Callable[[], tuple[ForeignKey, ...]],
        end: Callable[[], Position],
        now_us: Callable[[], int],
        require: Callable[[], None],
    ) -> None:
        self.active = False
        self._logged = False
        self.generation = 0
        """Grows when more is known: other answers may differ from then on."""
        self._captures = captures
        self._ask = ask
        self._end = end
        self._now_us = now_us
        self._require = require
        self._lower_case = False
        self._keys: dict[TableName, set[ForeignKey]] = {}
        """The keys by their parents."""
        self._asked: _Asked | None = None
        self._reach = cache(self._reached)

    @classmethod
    def without_keys(cls, captures: Captures, end: Position) -> Cascades:
        """For a server that has no foreign keys, and whose log ends here."""
        return cls(captures, tuple, lambda: end, lambda: 0, lambda: None)

    def open(self, *, logged: bool, lower_case: bool) -> None:
        """A stream begins. logged: the server logs what keys change, so that there is nothing to do here. lower_case:
        it compares names of tables in lower case."""
        self.active, self._logged, self._lower_case = not logged, logged, lower_case
        if self.active:
            self._learn()

    @property
    def expected_flags(self) -> int:
        """Flags that row events have: the assembler must see those that lack them."""
        return FLAG_LOGS_CASCADES if self._logged else 0

    def heed(self, flags: int) -> None:
        """Takes the flags of a row event, before its rows. Raises what `require` raises."""
        if self._logged and not flags & FLAG_LOGS_CASCADES:
            self._require()
            self.active, self._logged = True, False
            self._learn()

    def _learn(self) -> None:
        before = self._end()
        for key in self._ask():
            if key.changes_rows:
                self._keys.setdefault(self._named(key.parent), set()).add(key)
        self._asked = _Asked(before, self._end(), self._now_us())
        self._reach.cache_clear()
        self.generation += 1

    def _named(self, name: TableName) -> TableName:
        return (lower_cased(name[0]), lower_cased(name[1])) if self._lower_case else name

    def define(self, statement: Statement, after: Position, began_us: int) -> frozenset[TableName]:
        """Takes a statement that defines tables; the captured tables that unknown keys may have changed up to there.

        after: its place. began_us: when it began, by the server's clock, or later.
        """
        if not self.active:
            return frozenset()
        asked = self._asked
        columns = statement.columns
        renames = columns is not None and (columns.moved or bool(columns.dropped and columns.added))
        renames = renames or statement.verb == "RENAME TABLE" or statement.versioning
        if (renames or statement.cascades) and not (asked is not None and asked.shows(after)):
            self._learn()
        if asked is None or not asked.may_lack(after, began_us):
            return frozenset()
        names = set(statement.tables or ())
        if statement.database:
            names |= {key for key in self._keys if key[0] == statement.database}
        children = {self._named(key.child) for keys in self._keys.values() for key in keys}
        drops_key = statement.drops_constraint or (statement.cascades and not children & names)
        drops_table = statement.verb in _DROPS
        if not (drops_key or drops_table or renames):
            return frozenset()
        lost = {child for name in names for child in self.changed_with(name)}
        if drops_table:
            lost -= names
        elif drops_key:
            lost |= {name for name in names if self._captures(*name)}
        return frozenset(lost)

    def changed_with(self, parent: TableName) -> frozenset[TableName]:
        """The captured tables of which rows may change with any change of rows of this one."""
        return self._reach(parent, True, None) if self.active and self._keys else frozenset()

    def changed_by(self, parent: TableName, *, deleted: bool) -> frozenset[TableName]:
        """The captured tables whose rows may change with a row that is logged as deleted, or as updated in any
        column."""
        updated: frozenset[str] | None = frozenset() if deleted else None
        deleted = deleted or any(key.versioned for key in self._keys.get(parent, ()))
        return self._reach(parent, deleted, updated) if self.active else frozenset()

    def unread(self, captures: Captures) -> frozenset[TableName]:
        """The captured tables whose rows may change with rows of tables that are not captured. captures: without
        isolated ones."""
        parents = [key for key in self._keys if not captures(*key)] if self.active else []
        return frozenset(child for parent in parents for child in self.changed_with(parent))

    def _reached(self, parent: TableName, deleted: bool, updated: frozenset[str] | None) -> frozenset[TableName]:
        """The captured tables that keys lead to. updated: columns of the parent that have other values; None: any."""
        reached: set[TableName] = set()
        seen: set[tuple[TableName, bool, frozenset[str] | None]] = set()
        waiting = [(parent, deleted, updated)]
        while waiting:
            one = waiting.pop()
            if one in seen:
                continue
            seen.add(one)
            table, gone, changed = one
            for key in self._keys.get(table, ()):
                child = self._named(key.child)
                hit = changed is None or bool(changed & _folded(key.referenced))
                if gone and key.on_delete in CHANGING:
                    cascades = key.on_delete == "CASCADE"
                    waiting.append((child, cascades, frozenset() if cascades else _folded(key.columns)))
                    reached.add(child)
                if hit and key.on_update in CHANGING:
                    waiting.append((child, False, _folded(key.columns)))
                    reached.add(child)
        return frozenset(name for name in reached if self._captures(*name))

    def of_rows(self, block: Block) -> Iterator[TableEvent]:
        """What rows of captured parents did to other captured tables: an event for each table and transaction."""
        if not self.active or not self._keys:
            return
        for part in block.tables:
            parent = part.schema.database, part.schema.table
            keys = self._keys.get(parent)
            if not keys:
                continue
            ops = part.rows.column(OP)
            if children := self._reach(parent, True, frozenset()):
                yield from _events(block, part, pc.equal(ops, DELETE), children)
            referenced = {name for key in keys if key.on_update in CHANGING for name in _folded(key.referenced)}
            for name in sorted(referenced):
                if children := self._reach(parent, False, frozenset([name])):
                    yield from _events(block, part, pc.and_(pc.equal(ops, UPDATE), _changed(part, name)), children)


def _folded(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _changed(part: TableRows, name: str) -> pa.BooleanArray:
    """Which updated rows have another value in a column, or may have."""
    rows = part.rows
    column = next((defined.name for defined in part.schema.columns if defined.name.lower() == name), None)
    if column is None:  # it had another name then
        return pa.array(np.ones(rows.num_rows, np.bool_))
    before = rows.column(BEFORE)
    after, former = rows.column(column), pc.struct_field(before, [before.type.get_field_index(column)])
    equal = pc.or_kleene(pc.equal(after, former), pc.and_(pc.is_null(after), pc.is_null(former)))
    changed = pc.invert(pc.fill_null(equal, fill_value=False)).to_numpy(zero_copy_only=False)
    # A value that the column cannot hold is null in it, and so is one that the log does not carry.
    literal = LiteralEntries.of(rows.column(LITERAL))
    texts, former_texts = (_texts(literal, mark) for mark in (column, BEFORE_MARK + column))
    for row in texts.keys() | former_texts.keys():
        changed[row] = texts.get(row) != former_texts.get(row)
    shapes, absent = lacking(rows)
    shape = pc.fill_null(shapes, -1).to_numpy(zero_copy_only=False)
    for at, names in enumerate(absent):
        if column in names:  # it was not written
            changed[shape == at] = False
        elif BEFORE_MARK + column in names:
            changed[shape == at] = True
    return pa.array(changed)


def _texts(literal: LiteralEntries, name: str) -> dict[int, str]:
    """The exact texts of a column by row."""
    entries = literal.where(literal.among([name]))
    return dict(zip(entries.row.tolist(), entries.text.to_pylist(), strict=True))


def _events(
    block: Block, part: TableRows, which: pa.BooleanArray, children: frozenset[TableName]
) -> Iterator[TableEvent]:
    at: npt.NDArray[np.int64] = np.flatnonzero(np.asarray(which.to_numpy(zero_copy_only=False), np.bool_))
    if not len(at):
        return
    seqs, first = np.unique(part.rows.column(SEQ).to_numpy()[at], return_index=True)
    times = part.rows.column(TS).cast(pa.int64()).to_numpy()[at[first]]
    for seq, ts_us, entry in zip(seqs.tolist(), times.tolist(), part.entry[at[first]].tolist(), strict=True):
        place = str(block.position_after(entry))
        for child in sorted(children):
            yield TableEvent(".".join(child), Happened.CASCADED, seq, ts_us, place)
