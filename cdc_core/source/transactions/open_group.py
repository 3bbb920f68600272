"""The open group: what its events have contained so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from cdc_core.binlog.fragments import RowFragments
from cdc_core.model.block import EntryKind
from cdc_core.model.coverage import Happened
from cdc_core.source.transactions.pending_changes import MappedTable
from cdc_core.source.transactions.spilled_changes import SpillableChanges
from cdc_core.source.transactions.transaction_grammar import GroupState


@dataclass(slots=True)
class OpenGroup:
    """start, seq, gtid, commit_ts_us: of its first event. rows: of captured tables, in order.

    ordinal: row events so far. pieces: PARTs emitted so far. without_rows: the kind of its entry if it contains no
    rows: DDL once it has defined a captured table. maps: what table ids mean in it, None for a table that is not
    captured; isolated: those of isolated tables. keys: the table maps of `maps`, from the names on.
    left_out, notes: of its entry, dropped with the group.
    happened: what its statements did to captured tables, for their coverage.
    fragments: of a row event that is not complete.
    """

    state: GroupState
    start: int
    seq: int
    gtid: str
    commit_ts_us: int
    rows: SpillableChanges
    ordinal: int = 0
    events: int = 1
    pieces: int = 0
    without_rows: EntryKind = EntryKind.UNCAPTURED
    maps: dict[bytes, MappedTable | None] = field(default_factory=dict)
    isolated: set[bytes] = field(default_factory=set)
    keys: dict[bytes, bytes] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    happened: list[tuple[str, Happened]] = field(default_factory=list)
    fragments: RowFragments | None = None
    _savepoints: dict[str, int] = field(default_factory=dict)
    """How many changes the group had at each savepoint, in the order of setting."""

    @property
    def undoable(self) -> bool:
        """Whether rows that come now may still be undone even if the transaction commits (savepoint), or after it was
        prepared (XA)."""
        return self.state is GroupState.XA or bool(self._savepoints)

    def cascaded(self, tables: Iterable[tuple[str, str]]) -> None:
        """Foreign keys may have changed rows of these tables with what is in it."""
        for name in sorted(tables):
            event = ".".join(name), Happened.CASCADED
            if event not in self.happened:
                self.happened.append(event)

    @property
    def cascades(self) -> list[tuple[str, str]]:
        """The tables that `cascaded` was told."""
        names = (table.partition(".") for table, what in self.happened if what is Happened.CASCADED)
        return [(database, table) for database, _, table in names]

    def set_savepoint(self, name: str) -> None:
        """A savepoint that is set again replaces the earlier one."""
        self._savepoints.pop(name, None)
        self._savepoints[name] = len(self.rows)

    def undo_to_savepoint(self, name: str) -> bool:
        """Drops the rows and savepoints after it; False where it is not set."""
        if name not in self._savepoints:
            return False
        self.rows.truncate(self._savepoints[name])
        names = list(self._savepoints)
        for later in names[names.index(name) + 1 :]:
            del self._savepoints[later]
        return True

    def piece_left(self) -> None:
        """The group's notes and counts are in a PART now."""
        self.events = 0
        self.left_out.clear()
        self.notes.clear()
        self.happened.clear()
        self.pieces += 1
