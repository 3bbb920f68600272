"""The right to move a cutover, and its moves: each is a compare-and-set in meta under the cutover's lease."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from cdc_core.cutover.states import HELD, MOVES, OPEN, State
from cdc_core.cutover.undoing import close_again, patiently, release, undo_made
from cdc_core.cutover.work import Work
from cdc_core.errors import Refused, RetryLater, UsageError, defect
from cdc_core.extract.extractor import default_holder
from cdc_core.meta import Cutover, Lease
from cdc_core.meta.kept_lease import kept_lease

LEASE_S = 10.0


def cutover_lease(work: Work) -> AbstractContextManager[Lease]:
    """The right to move a pipeline's cutover. Raises RetryLater (cutover.running)."""
    # One for both directions: whoever goes back does not meet one who goes there.
    name = work.pair
    taken = RetryLater(
        f"Another process is at a cutover of {work.pipeline.pipeline!r}.",
        where=work.pipeline.pipeline,
        code="cutover.running",
        remedy=f"wait until it has ended or, if it is dead, {LEASE_S:g} s for its lease to expire",
    )
    key = "cutover:" + hashlib.sha256(name.encode()).hexdigest()[:16]
    return kept_lease(work.meta, key, name, default_holder(), LEASE_S, taken=taken)


def taken_up(work: Work, lease: Lease) -> Cutover:
    require_no_other(work)
    known = work.meta.latest_cutover(work.pipeline.pipeline)
    if known is not None and known.state in OPEN:
        return known
    over = [state for state in State if state not in OPEN]
    now = work.meta.now_us()
    identity = hashlib.sha256(f"{work.pipeline.pipeline}/{now}".encode()).hexdigest()[:16]
    new = Cutover(identity, work.pipeline.pipeline, work.way_back.name, State.PREPARED, details={"back": work.back})
    return work.meta.begin_cutover(lease, new, over)


def require_no_other(work: Work) -> None:
    """Raises Refused (cutover.other_open)."""
    other = work.meta.latest_cutover(work.way_back.name)
    if other is not None and other.state in OPEN and not (work.back and other.state == State.WATCH):
        raise Refused(
            f"A cutover of {other.pipeline!r}, in the other direction, is open: it is {other.state}.",
            where=work.pipeline.pipeline,
            code="cutover.other_open",
            remedy=f"end it first: `lockstep cutover status`, `resume` or `abort` with {other.pipeline}",
        )


def open_cutover(work: Work) -> Cutover:
    known = work.meta.latest_cutover(work.pipeline.pipeline)
    if known is None or known.state not in OPEN:
        raise UsageError(
            f"No cutover of {work.pipeline.pipeline!r} is open.",
            where=work.pipeline.pipeline,
            code="cutover.nothing_open",
            remedy="begin one by `lockstep cutover run`",
        )
    return known


class Moving:
    """A cutover and the right to move it. token: names what this process makes for it."""

    def __init__(self, work: Work, lease: Lease, cutover: Cutover) -> None:
        self.work = work
        self._lease = lease
        self.cutover = cutover
        made = f"{cutover.cutover_id}/{lease.epoch}"
        self.token = hashlib.sha256(made.encode()).hexdigest()[:8]

    @property
    def state(self) -> State:
        return State(self.cutover.state)

    def to(self, state: State, *, error: str = "", **details: Any) -> None:
        """A meta database that does not answer is waited for, but not while writes are stopped. Raises RetryLater
        (meta.lease_lost, cutover.moved), and what reaching meta raises."""
        if state is not self.state and state not in MOVES[self.state]:
            raise defect(f"A cutover does not move from {self.state} to {state}.", code="cutover.move")
        former = self.state
        move = partial(self._moved, state, error, details)
        self.cutover = move() if state in HELD else patiently(move, self.work.told)
        if state is not former:
            self.work.told(str(state))

    def _moved(self, state: State, error: str, details: Mapping[str, Any]) -> Cutover:
        try:
            return self.work.meta.move_cutover(self._lease, self.cutover, state, details, error)
        except RetryLater as failed:
            if failed.code != "cutover.moved":
                raise
            # This process has the lease. So it has moved the cutover itself, and did not get the answer.
            there = self.work.meta.latest_cutover(self.cutover.pipeline)
            made = {**self.cutover.details, **details}
            if there is None or (there.cutover_id, there.state, there.details) != (
                self.cutover.cutover_id, state, json.loads(json.dumps(made)),
            ):  # fmt: skip
                raise
            return there

    def end_other(self, state: State) -> None:
        """Ends the cutover by which the application came here. Safe to repeat."""
        other = self.work.meta.latest_cutover(self.work.way_back.name)
        if other is not None and other.state == State.WATCH:
            patiently(partial(self.work.meta.move_cutover, self._lease, other, state), self.work.told)

    def undo_held(self, why: str) -> None:
        """From a state that another process has left: back to CHASE."""
        if self.state in HELD:
            self.undo(why)

    def undo(self, why: str, **details: Any) -> None:
        """Frees what was stopped, fenced and gated, in any order of what was done; then CHASE. Safe to repeat."""
        self.freed()
        self.to(State.CHASE, error=why, arming="", opened={}, **details)

    def freed(self) -> None:
        """What the cutover has made is undone, even if this process has lost it meanwhile. Raises as `require`, and
        RetryLater (cutover.not_undone)."""
        undo_made(self.work, self.cutover)
        release(self.work, self.cutover)
        patiently(self.require, self.work.told)  # whoever has the lease now may be further
        close_again(self.work, self.cutover, self.token)

    def require(self) -> None:
        """Before a step beside meta: raises RetryLater (meta.lease_lost, cutover.moved) if another process may be at
        it."""
        self.to(self.state, error=self.cutover.error)
