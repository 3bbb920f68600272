"""States of a cutover, and every move between them.

    PREPARED ─► CHASE ─► STOPPED ─► DRAINED ─► PROVED ─► ARMED ─► SWITCHING ─► SWITCHED ─► WATCH ─► COMPLETE
       │          ▲ │       │          │          │        │          │ │                    │
       │          │ └───────┴──────────┴──────────┴────────┤          │ │ not switched       └─► BACK
       │          └────────────────────────────────────────┼──────────┘ │
       └───────────────────────────────────────────────────┴────────────┴──► ROLLED_BACK

PREPARED     nothing speaks against it; nothing was changed.
CHASE        runs follow each other until one takes less than the limit, three times.
STOPPED      the hook has stopped the application, and all tables are locked against writes.
DRAINED      the target has everything up to the final position.
PROVED       every key that changed since the last full verification was compared at that position.
ARMED        the target is fenced against Lockstep's own writes, the way back has its start, and the old tables have
             gates. From here on an application that still writes to the old tables gets an error.
SWITCHING    the switch hook is called, once. Only its answer, or a person's, moves the cutover on. The process that
             came here goes back to CHASE if writes were stopped for too long meanwhile, and does not call the hook.
SWITCHED     the application writes to the new tables; the way back is let in.
WATCH        the way back carries the application's writes to the old tables, and is verified.
COMPLETE     nobody goes back any more.
BACK         a cutover in the other direction has been switched.
ROLLED_BACK  nothing has happened: whatever was locked, fenced or gated is free again.

From STOPPED to ARMED a cutover lives only in its process: its locks go with the process. Another one that finds such a
state undoes it, and begins again with CHASE.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    PREPARED = "PREPARED"
    CHASE = "CHASE"
    STOPPED = "STOPPED"
    DRAINED = "DRAINED"
    PROVED = "PROVED"
    ARMED = "ARMED"
    SWITCHING = "SWITCHING"
    SWITCHED = "SWITCHED"
    WATCH = "WATCH"
    COMPLETE = "COMPLETE"
    BACK = "BACK"
    ROLLED_BACK = "ROLLED_BACK"


HELD = (State.STOPPED, State.DRAINED, State.PROVED, State.ARMED)
"""States that end with their process."""

MOVES: Mapping[State, frozenset[State]] = {
    State.PREPARED: frozenset({State.CHASE, State.ROLLED_BACK}),
    State.CHASE: frozenset({State.STOPPED, State.ROLLED_BACK}),
    State.STOPPED: frozenset({State.DRAINED, State.CHASE, State.ROLLED_BACK}),
    State.DRAINED: frozenset({State.PROVED, State.CHASE, State.ROLLED_BACK}),
    State.PROVED: frozenset({State.ARMED, State.CHASE, State.ROLLED_BACK}),
    State.ARMED: frozenset({State.SWITCHING, State.CHASE, State.ROLLED_BACK}),
    State.SWITCHING: frozenset({State.SWITCHED, State.CHASE, State.ROLLED_BACK}),
    State.SWITCHED: frozenset({State.WATCH}),
    State.WATCH: frozenset({State.COMPLETE, State.BACK}),
    State.COMPLETE: frozenset(),
    State.BACK: frozenset(),
    State.ROLLED_BACK: frozenset(),
}

LED_AWAY = (State.SWITCHING, State.SWITCHED, State.WATCH, State.COMPLETE)
"""States in which the application may write to the new tables."""

OPEN = frozenset(state for state, moves in MOVES.items() if moves)
"""States of which a pipeline has at most one cutover."""
