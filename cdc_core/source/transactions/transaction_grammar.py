"""The grammar of a log: which events a group consists of, as the table that drives the assembler.

A group is the part of the log between two positions to resume from. A GTID event of any kind begins it and says how it
continues; the table says where each event leads from there, and which step the assembler takes with it. A pair that is
not in the table stops the stream: the log does not consist of whole transactions.

A group ends when its next state is NONE. Without a step that ends it (as COMMIT and DROP do) it was a single statement:
the assembler ends it with an entry of DDL, or one without captured rows.
"""

from __future__ import annotations

from enum import Enum

from cdc_core.source.sql.statement_classes import Action


class GroupState(Enum):
    """The state of a group being read; the value completes "a transaction that ..."."""

    NONE = "has not begun"
    STATEMENT = "is a single statement"
    """Unless the statement opens a transaction: MySQL says only then that there is one."""
    FIRST_OF_ALTER = "is the first of the two of an ALTER"
    """MariaDB logs an ALTER when it begins and again when it has succeeded (or failed): the second one counts."""
    TRANSACTION = "is open"
    XA = "is open and may stay prepared"
    UNDONE = "was rolled back when it was read before"
    """After pieces of it had left. Its changes are not held this time."""

    __hash__ = object.__hash__  # members are looked up for each event, and Enum's own hash is slow

    @property
    def goes_on(self) -> bool:
        """Whether the group lasts until an explicit end: a statement in it does not end it."""
        return self in _OPEN


_OPEN = frozenset({GroupState.TRANSACTION, GroupState.XA, GroupState.UNDONE})


class Mark(Enum):
    """What an event without a statement means for its group."""

    GTID_OF_STATEMENT = "a GTID of a single statement"
    GTID_OF_FIRST_ALTER = "a GTID of the first of two of an ALTER"
    GTID_OF_TRANSACTION = "a GTID of a transaction"
    GTID_OF_XA = "a GTID of an XA transaction"
    GTID_OF_UNDONE = "a GTID"
    CHANGE = "a row event or what comes with it"
    PREPARE = "XA PREPARE"
    ACCEPTED = "an event that was accepted unread"
    OF_FILE = "an event of the file"
    FILE_ENDS = "the end of the file"
    """Without a ROTATE: the server crashed, and never committed what it was writing."""

    __hash__ = object.__hash__


Meaning = Action | Mark


class Step(Enum):
    """What the assembler does with an event."""

    NOTHING = "nothing"
    BEGIN = "begin"
    CHANGE = "change"
    COMMIT = "commit"
    COMMIT_PREPARED = "commit prepared"
    DROP = "drop"
    """The changes of the group never happened."""
    DROP_UNFINISHED = "drop unfinished"
    """As DROP: the file ends in it."""
    DROP_PREPARED = "drop prepared"
    KEEP_PREPARED = "keep prepared"
    ADD_ENTRY = "add entry"
    """Adds the entry of an event outside of all groups."""
    SET_SAVEPOINT = "set savepoint"
    UNDO_TO_SAVEPOINT = "undo to savepoint"
    JUDGE_DEFINITION = "judge definition"
    JUDGE_ROWS = "judge rows"
    """Judges a statement whose rows are not in the log."""

    __hash__ = object.__hash__


_N, _S, _F, _T, _X, _U = GroupState
_A, _M = Action, Mark
_Cell = GroupState | tuple[GroupState, Step] | None

# The next state from each state; with a step of its own where that differs from the row's. None stops.
# fmt: off
_GRID: dict[Meaning, tuple[Step, tuple[_Cell, ...]]] = {
    # meaning                step                      NONE  STATEMENT FIRST_OF_ALTER     TRANSACTION XA UNDONE
    _M.GTID_OF_STATEMENT:    (Step.BEGIN,             (_S,   None,    None,               None,       None, None)),
    _M.GTID_OF_FIRST_ALTER:  (Step.BEGIN,             (_F,   None,    None,               None,       None, None)),
    _M.GTID_OF_TRANSACTION:  (Step.BEGIN,             (_T,   None,    None,               None,       None, None)),
    _M.GTID_OF_XA:           (Step.BEGIN,             (_X,   None,    None,               None,       None, None)),
    _M.GTID_OF_UNDONE:       (Step.BEGIN,             (_U,   None,    None,               None,       None, None)),
    _A.BEGIN:                (Step.NOTHING,           (None, _T,      None,               _T,         _X,   _U)),
    _A.XA_START:             (Step.NOTHING,           (None, _X,      None,               _X,         _X,   None)),
    _A.XA_END:               (Step.NOTHING,           (None, _S,      None,               _T,         _X,   _U)),
    _M.CHANGE:               (Step.CHANGE,            (None, _S,      _F,                 _T,         _X,   _U)),
    _A.SAVEPOINT:            (Step.SET_SAVEPOINT,     (None, _S,      _F,                 _T,         _X,   _U)),
    _A.ROLLBACK_TO:          (Step.UNDO_TO_SAVEPOINT, (None, _S,      _F,                 _T,         _X,   _U)),
    _A.DATA:                 (Step.JUDGE_ROWS,        (None, _N,      _N,                 _T,         _X,   _U)),
    _A.DEFINITION:           (Step.JUDGE_DEFINITION,  (None, _N,      (_N, Step.NOTHING), _T,         _X,   _U)),
    _A.HARMLESS:             (Step.NOTHING,           (None, _N,      _N,                 _T,         _X,   _U)),
    _A.UNKNOWN:              (Step.JUDGE_ROWS,        (None, _N,      _N,                 _T,         _X,   _U)),
    _M.ACCEPTED:             (Step.NOTHING,           ((_N, Step.ADD_ENTRY), _N, _N,     _T,         _X,   _U)),
    _A.COMMIT:               (Step.COMMIT,            (None, _N,      _N,                 _N,         _N,   None)),
    _A.ROLLBACK:             (Step.DROP,              (None, _N,      _N,                 _N,         _N,   _N)),
    _M.PREPARE:              (Step.KEEP_PREPARED,     (None, None,    None,               None,       _N,   None)),
    _A.XA_COMMIT:            (Step.COMMIT_PREPARED,   (None, _N,      None,               _N,         _N,   None)),
    _A.XA_ROLLBACK:          (Step.DROP_PREPARED,     (None, _N,      None,               _N,         _N,   _N)),
    _M.OF_FILE:              (Step.ADD_ENTRY,        (_N,   None,    None,               None,       None, None)),
    _M.FILE_ENDS:            (Step.DROP_UNFINISHED,   ((_N, Step.NOTHING), _N, _N,        _N,         _N,   _N)),
}
# fmt: on

GRAMMAR: dict[tuple[GroupState, Meaning], tuple[GroupState, Step]] = {
    (state, seen): cell if isinstance(cell, tuple) else (cell, step)
    for seen, (step, cells) in _GRID.items()
    for state, cell in zip(GroupState, cells, strict=True)
    if cell is not None
}
"""(state of the open group, what an event means) -> (its next state, the step with the event)."""
