"""States of a consume record and of a run, and every move between them.

A record is one table of one batch as one target sees it. It is made by a plan and only goes forward:

    STAGED ──mark_applied──► APPLIED ──commit──► COMMITTED ──purge──► PURGED

STAGED     planned by the run that its run_id names; the target may or may not hold some of it.
APPLIED    that run wrote every table and shard of it.
COMMITTED  quality passed and the ledger added up; no later run takes it again.
PURGED     its files are gone, because every target had committed it.

A run may take over a record of another run before COMMITTED: only the run_id changes, never the state. The run that
lost it can no longer move anything (every move is a compare-and-set on run_id), though it may still be writing: the
target's own version guard makes that harmless.

A run is PLANNED, then COMMITTED when the last of its targets is. FAILED is a PLANNED run whose latest task raised;
a retry continues from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from cdc_core.errors import defect


class RecordState(StrEnum):
    STAGED = "STAGED"
    APPLIED = "APPLIED"
    COMMITTED = "COMMITTED"
    PURGED = "PURGED"

    @property
    def consumed(self) -> bool:
        """Whether no run takes the record again."""
        return self in (RecordState.COMMITTED, RecordState.PURGED)


class RunState(StrEnum):
    PLANNED = "PLANNED"
    FAILED = "FAILED"
    COMMITTED = "COMMITTED"


RECORD_MOVES: Mapping[RecordState, RecordState | None] = {
    RecordState.STAGED: RecordState.APPLIED,
    RecordState.APPLIED: RecordState.COMMITTED,
    RecordState.COMMITTED: RecordState.PURGED,
    RecordState.PURGED: None,
}

RUN_MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.PLANNED: frozenset({RunState.FAILED, RunState.COMMITTED}),
    RunState.FAILED: frozenset({RunState.PLANNED, RunState.COMMITTED}),
    # A run cleared after its commit is planned again, for the targets that it had not committed, or for none.
    RunState.COMMITTED: frozenset({RunState.PLANNED}),
}


def before(state: RecordState) -> RecordState:
    """The one state that a record may come from. Raises InternalError for STAGED, where records begin."""
    for origin, goal in RECORD_MOVES.items():
        if goal is state:
            return origin
    raise defect(
        f"No consume record moves to {state}.",
    )


def run_may_move(origin: RunState, goal: RunState) -> bool:
    """Whether a run may go from one state to the other."""
    return origin is goal or goal in RUN_MOVES[origin]
