"""The time without writes: stop, drain, prove, arm, within cutover.budget_s. Else everything is released again, and
nothing has happened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cdc_core.cutover import hooks
from cdc_core.cutover.gates import closing
from cdc_core.cutover.locks import Locks, locked
from cdc_core.cutover.moving import Moving
from cdc_core.cutover.proof import Proof, Prover, Since
from cdc_core.cutover.readiness import require_ids
from cdc_core.cutover.states import State
from cdc_core.cutover.undoing import fenced_in, hook_variables, note
from cdc_core.cutover.work import Tables, Work, message
from cdc_core.errors import RetryLater
from cdc_core.model.position import Position
from cdc_core.target.fence import raise_fences

_HELD_BEYOND_S = 2.0
"""How much longer than the budget a server keeps the locks of a process that says nothing."""


def held(
    moving: Moving, provers: Sequence[Prover], tables: Tables, since: Mapping[str, Since], *, rehearse: bool
) -> bool:
    """From STOPPED to ARMED; a rehearsal to PROVED, and back to CHASE. Whether it is armed. Undoes itself, whatever
    stops it; raises what did."""
    work, options = moving.work, moving.work.options
    clock = _Clock(options.budget_s)
    try:
        moving.to(State.STOPPED)
        if options.stop_with is not None:
            hooks.stop(
                options.stop_with, hook_variables(work, moving.cutover, hooks.STOP), options.hook_s, work.environ
            )
        held_s = options.budget_s + _HELD_BEYOND_S
        with locked(tables.sources, patience_s=options.patience_s, held_s=held_s, environ=work.environ) as locks:
            if options.stop_with is None:
                clock.begin()
            clock.watch(locks)
            reached = work.hands.catch_up().reached
            clock.require("the comparison")
            moving.to(State.DRAINED)
            proofs = [
                one.prove(since[target.name], still=True) for target, one in zip(work.targets, provers, strict=True)
            ]
            require_ids(tables.pairs, work.environ)
            clock.require("arming the way back")
            moving.to(
                State.PROVED,
                proofs=[_document(one) for one in proofs],
                reached={source: str(place) for source, place in reached.items()},
            )
            if rehearse:
                locks.release()
                clock.end()
                moving.to(State.PROVED, stopped_s=round(clock.stopped_s, 3))
                moving.undo("it was a rehearsal")
                return False
            _arm(moving, tables)
            clock.require("closing the gates")
            with closing(tables.sources, message(work), moving.token, work.environ) as closed:
                locks.release()
                closed()
        clock.end()
        slipped = written_since(work, reached)
        if slipped:
            raise RetryLater(
                f"{slipped:,} changes were made after the final position: the locks had ended before the gates closed.",
                where=work.pipeline.pipeline,
                code="cutover.slipped",
                remedy="nothing was switched. Raise cutover.budget_s, or stop the application by cutover.stop_with",
            )
        clock.require("the switch")
        moving.to(State.ARMED, stopped_s=round(clock.stopped_s, 3))
        return True
    except BaseException as error:
        clock.end()
        moving.undo(str(error))
        raise


class _Clock:
    """How long writes are stopped. Above the budget, the locks are released, whatever this process is doing."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._began_s = time.monotonic()
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        self._began_s = time.monotonic()

    def watch(self, locks: Locks) -> None:
        self._timer = threading.Timer(max(0.0, self._budget_s - self.stopped_s), locks.release)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def stopped_s(self) -> float:
        return time.monotonic() - self._began_s

    def require(self, next_step: str) -> None:
        """Raises RetryLater (cutover.over_budget)."""
        if self.stopped_s > self._budget_s:
            raise RetryLater(
                f"Writes were stopped for {self.stopped_s:.1f} s, longer than cutover.budget_s ({self._budget_s:g}), "
                f"and {next_step} was still to be done.",
                where=next_step,
                code="cutover.over_budget",
                remedy="see in `lockstep cutover status PIPELINE` which step took how long, or raise the budget",
            )


def written_since(work: Work, reached: Mapping[str, Position]) -> int:
    """The changes that the sources' logs have after these places, whoever has staged them."""
    work.hands.extract()
    return sum(one.rows for source, place in reached.items() for one in work.meta.batches(source) if one.end > place)


def _document(proof: Proof) -> dict[str, Any]:
    return {
        "keys": dict(proof.keys),
        "counted": list(proof.counted),
        "at": {source: str(place) for source, place in proof.since.places.items()},
    }


def _arm(moving: Moving, tables: Tables) -> None:
    """No write of this pipeline reaches the target any more, and then the way back begins."""
    work, token = moving.work, moving.token
    moving.to(State.PROVED, arming=token)
    for target in work.targets:
        raise_fences(target, fenced_in(target, tables), note(moving.cutover, token), owner=work.pair)
    moving.to(State.PROVED, starts=dict(work.way_back.arm(token)))
