"""The right to move a cutover, and its moves: each is a compare-and-set in meta under the cutover's lease."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from cdc_core.config import Pipeline
from cdc_core.errors import LeaseHeld, Overtaken, Refused, RetryLater, UsageError, defect
from cdc_core.meta import Cutover, Lease
from cdc_core.meta.cutovers import lease_of
from cdc_core.model.position import Position
from cdc_core.operations.cutover import hooks
from cdc_core.operations.cutover.cutover_states import HELD, MOVES, OPEN, State
from cdc_core.operations.cutover.undoing import (
    PATIENCE_S,
    close_again,
    hook_variables,
    open_closed,
    open_made,
    patiently,
    release,
    undo_made,
    unless_it_fails,
)
from cdc_core.operations.cutover.work import CutoverWork, Written, read
from cdc_core.operations.verify.modes import DOUBT
from cdc_core.process.leaving import unhurried
from cdc_core.source.capture import Capture
from cdc_core.targets.bookkeeping.gates import Places, require_not_left

LEASE_S = 10.0


@contextmanager
def cutover_lease(work: CutoverWork) -> Iterator[Lease]:
    """The right to move a pipeline's cutover, which is undone in its own time if a signal comes. Raises RetryLater
    (lease.held)."""
    key, pair = lease_of(work.opened.name, work.way_back.name)
    taken = LeaseHeld(
        f"Another process is at a cutover of {work.opened.name!r}.",
        where=work.opened.name,
        remedy="wait until it has ended, or end it (Ctrl-C, SIGTERM): it undoes what it has made unless it has called "
        f"the switch command. If it is dead, wait {LEASE_S:g} s for its lease to expire",
    )
    with unhurried(), work.meta.of(pair).leases.held(key, work.opened.holder, LEASE_S, taken=taken) as lease:
        yield lease


def taken_up(work: CutoverWork, lease: Lease, *, rehearsal: bool) -> Cutover:
    """The cutover that is open, or a new one. rehearsal: of a new one. Raises Refused (cutover.other_open,
    cutover.left_before), UsageError (usage.argument)."""
    require_no_other(work)
    cutover = work.meta.cutovers.latest(work.opened.name)
    if cutover is not None and cutover.state in OPEN:
        require_its_target(work, cutover)
        return cutover
    if cutover is not None and cutover.state == State.COMPLETE:
        require_not_left(_still_read(work.pipeline, read(cutover.details["tables"]).sources))
    over = [state for state in State if state not in OPEN]
    now = work.meta.now_us()
    identity = hashlib.sha256(f"{work.opened.name}/{now}".encode()).hexdigest()[:16]
    led_to = {"back": work.back, "target": [target.name for target in work.targets], "rehearsal": rehearsal}
    new = Cutover(identity, work.opened.name, work.way_back.name, State.PREPARED, details=led_to)
    return work.meta.cutovers.begin(lease, new, over)


def _still_read(pipeline: Pipeline, places: Places) -> Places:
    """A way back reads other tables once the application was led to another target."""
    routes = [Capture(pipeline.tables, pipeline.routes, lower_case=lower_case).route for lower_case in (False, True)]
    kept = {
        name: [table for table in tables if any(route(*table) for route in routes)] for name, tables in places.items()
    }
    return {name: tables for name, tables in kept.items() if tables}


def require_no_other(work: CutoverWork) -> None:
    """Raises Refused (cutover.other_open)."""
    other = work.meta.cutovers.latest(work.way_back.name)
    if other is not None and other.state in OPEN and not (work.back and other.state == State.WATCH):
        raise Refused(
            f"A cutover of {other.pipeline!r}, in the other direction, is open: it is {other.state}.",
            where=work.opened.name,
            code="cutover.other_open",
            remedy=f"end it first: `lockstep cutover resume {other.pipeline}` continues it, `lockstep cutover abort "
            f"{other.pipeline}` rolls it back",
        )


def open_cutover(work: CutoverWork) -> Cutover:
    cutover = work.meta.cutovers.latest(work.opened.name)
    if cutover is None or cutover.state not in OPEN:
        raise UsageError(
            f"No cutover of {work.opened.name!r} is open.",
            where=work.opened.name,
            code="usage.nothing_open",
            remedy="begin one with `lockstep cutover run`",
        )
    require_its_target(work, cutover)
    return cutover


def require_its_target(work: CutoverWork, cutover: Cutover) -> None:
    """What a cutover has made is at its own target alone. Raises UsageError (usage.argument)."""
    led_to = cutover.details["target"]
    if led_to != [target.name for target in work.targets]:
        raise UsageError(
            f"The last cutover of {work.opened.name!r} leads to {', '.join(led_to)}, and is {cutover.state}.",
            where=f"cutover {cutover.cutover_id}",
            code="usage.argument",
            remedy=f"continue or end it first: give the same command `--target {led_to[0]}`",
        )


class Moving:
    """A cutover and the right to move it. token: names what this process makes for it."""

    def __init__(self, work: CutoverWork, lease: Lease, cutover: Cutover) -> None:
        self.work = work
        self._lease = lease
        self.cutover = cutover
        made = f"{cutover.cutover_id}/{lease.epoch}"
        self.token = hashlib.sha256(made.encode()).hexdigest()[:8]
        self._at_the_hook = threading.Lock()
        self._released = False

    @property
    def state(self) -> State:
        return State(self.cutover.state)

    def to(self, state: State, *, error: str = "", patience_s: float | None = None, **details: Any) -> None:
        """patience_s: how long a meta database that does not answer is waited for; None: not at all while writes are
        stopped, else for as long as something has to be written down. Raises RetryLater (lease.lost), and what reaching
        meta raises."""
        if state is not self.state and state not in MOVES[self.state]:
            raise defect(f"A cutover does not move from {self.state} to {state}.")
        former = self.state
        move = partial(self._moved, state, error, details)
        if patience_s is None:
            patience_s = 0.0 if state in HELD else PATIENCE_S
        self.cutover = patiently(move, self.work.opened.progress.note, patience_s)
        if state is not former:
            self.work.opened.progress.note(str(state))

    def _moved(self, state: State, error: str, details: Mapping[str, Any]) -> Cutover:
        try:
            return self.work.meta.cutovers.move(self._lease, self.cutover, state, details, error)
        except Overtaken:
            # This process has the lease. So it has moved the cutover itself, and did not get the answer.
            there = self.work.meta.cutovers.latest(self.cutover.pipeline)
            made = {**self.cutover.details, **details}
            if there is None or (there.cutover_id, there.state, there.details) != (
                self.cutover.cutover_id,
                state,
                json.loads(json.dumps(made)),
            ):
                raise
            return there

    def end_other(self, state: State) -> None:
        """Ends the cutover by which the application came here. Safe to repeat."""
        other = self.work.meta.cutovers.latest(self.work.way_back.name)
        if other is not None and other.state == State.WATCH:
            patiently(partial(self.work.meta.cutovers.move, self._lease, other, state), self.work.opened.progress.note)

    def stop(self, command: str, timeout_s: float) -> None:
        """Stops the application's writes by the hook. Raises as hooks.stop."""
        with self._at_the_hook:
            self._released = False
            told = hook_variables(self.work, self.cutover, hooks.STOP)
            hooks.stop(command, told, timeout_s)

    def release(self) -> None:
        """Lets the application write, if it was told to stop; once, and not before the hook has ended that stops it.
        Raises RetryLater (cutover.not_undone)."""
        with self._at_the_hook:
            if not self._released:
                release(self.work, self.cutover)
                self._released = True

    def let_continue(self) -> None:
        """Opens what this process has closed for the application, whatever step it is at, from another thread. The rest
        is undone when that step ends."""
        work = self.work
        unless_it_fails(work, "gates may be closed", partial(open_closed, work, self.cutover, self.token), None)
        unless_it_fails(work, "the application may not have been released", self.release, None)

    def undo_held(self, why: str) -> None:
        """From a state that another process has left: back to CHASE."""
        if self.state in HELD:
            self.undo(why)

    def undo(self, why: str, **details: Any) -> None:
        """Frees what was stopped, fenced and gated, in any order of what was done; then CHASE. Safe to repeat. From
        SWITCHING only by the process that has written that down, and not called the hook."""
        self.freed(called=False)
        self.to(State.CHASE, error=why, arming="", opened={}, **details)

    def freed(self, *, called: bool) -> None:
        """What the cutover has made is undone, even if this process has lost it meanwhile. called: the hook may have
        led the application to the new tables for a while. Raises as `require`, and RetryLater (cutover.not_undone)."""
        open_made(self.work, self.cutover)
        self.release()
        self._catch_up()
        try:
            patiently(self.require, self.work.opened.progress.note)  # whoever has the lease now may be further
        except RetryLater:
            if self._is_rolled_back():
                close_again(self.work, self.cutover, self.token)
            undo_made(self.work, self.cutover)
            raise
        close_again(self.work, self.cutover, self.token)
        self._doubt(called)  # while fences keep Lockstep's own writes out: all that the log has is somebody else's
        undo_made(self.work, self.cutover)

    def _doubt(self, called: bool) -> None:
        """Somebody may have written to the new tables while they were open: whatever has compared them before does not
        count, and what their log has from then on is named."""
        work, details = self.work, self.cutover.details
        opened = any((details.get("opened") or {}).values())
        if not (called or opened):
            return
        places = {source: Position.from_text(text) for source, text in details.get("watched", {}).items()}
        look = partial(work.way_back.written, places if opened else {})
        written = unless_it_fails(work, "what was written to the new tables is not known", look, Written({}, ""))
        why = "since then, a cutover that did not switch had opened the new tables to the application"
        for target in work.targets:
            rows = {table: count for table, count in written.rows.items() if target.table(table) is not None}
            work.meta.verifications.doubt(self._lease, target.name, DOUBT, why, rows)
        left = {"rows": sum(written.rows.values()), "named": written.named}
        if written.named:
            work.opened.progress.note(f"the new tables were written to while they were open: {written.named}")
        self.to(self.state, error=self.cutover.error, opened={}, left=left)  # if this is repeated, it names no others

    def _is_rolled_back(self) -> bool:
        """Whether another process has rolled it back, and none has begun a cutover since: then nobody else closes what
        this process has opened after it had lost the cutover."""
        there = self._in_meta()
        return there is not None and there.state == State.ROLLED_BACK

    def _in_meta(self) -> Cutover | None:
        """The cutover as meta has it; None if another has begun since."""
        there = patiently(
            partial(self.work.meta.cutovers.latest, self.cutover.pipeline), self.work.opened.progress.note
        )
        return there if there is not None and there.cutover_id == self.cutover.cutover_id else None

    def _catch_up(self) -> None:
        """A move of this process may have been made although meta gave no answer."""
        there = self._in_meta()
        if (
            there is not None
            and there.state in (*HELD, State.SWITCHING)
            and self.state in (*HELD, State.CHASE)
            and there.details.get("arming") in (None, "", self.token)
        ):
            self.cutover = there

    def require(self) -> None:
        """Before a step beside meta: raises RetryLater (lease.lost) if another process may be at it."""
        self.to(self.state, error=self.cutover.error)
