"""The time without writes: stop, drain, prove, arm, within cutover.budget_s. Else everything is released again, and
nothing has happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cdc_core.errors import RetryLater
from cdc_core.model.position import Position
from cdc_core.operations.cutover.catching_up import catch_up
from cdc_core.operations.cutover.clock import Clock, Laps
from cdc_core.operations.cutover.cutover_states import State
from cdc_core.operations.cutover.locks import locked
from cdc_core.operations.cutover.moving import Moving
from cdc_core.operations.cutover.preparing import undisturbed
from cdc_core.operations.cutover.proof import Proof, Prover, Since
from cdc_core.operations.cutover.readiness import raise_ids
from cdc_core.operations.cutover.undoing import fenced_in, note
from cdc_core.operations.cutover.unstaged import StagedTables
from cdc_core.operations.cutover.work import CutoverWork, Tables
from cdc_core.operations.extract.side_by_side import extract_sources
from cdc_core.targets.bookkeeping.fence import raise_fences
from cdc_core.targets.bookkeeping.gates import close_gates, require_gates, require_not_left

_HELD_BEYOND_S = 2.0
"""How much longer than the budget a server keeps the locks of a process that says nothing."""


def held(
    moving: Moving,
    provers: Sequence[Prover],
    tables: Tables,
    since: Mapping[str, Since],
    seen: Mapping[str, Position] | None,
    clock: Clock,
    *,
    rehearse: bool,
) -> bool:
    """From STOPPED to ARMED; a rehearsal to PROVED, and back to CHASE. Whether it is armed. seen: as in `undisturbed`.
    Raises whatever stops it; the caller undoes what was done."""
    work, options = moving.work, moving.work.options
    raise_ids(tables.pairs)  # the application may have used up the headroom during the chase
    laps = clock.laps
    moving.to(State.STOPPED)
    if options.stop_with is not None:
        clock.begin(moving.let_continue)
        laps.begin("hook")
        moving.stop(options.stop_with, min(options.hook_s, clock.left_s))
    laps.begin("lock")
    clock.require("locking the tables")
    held_s = options.budget_s + _HELD_BEYOND_S
    patience_s = options.patience_s if options.stop_with is None else min(options.patience_s, round(clock.left_s, 1))
    with locked(
        tables.sources,
        patience_s=patience_s,
        held_s=held_s,
        taking=clock.release_first,
    ) as locks:
        if options.stop_with is None:
            clock.begin(moving.let_continue)
        clock.require("the last run")
        laps.begin("")
        done = catch_up(work)
        laps.add(done.steps_s)
        laps.begin("proof")
        clock.require("the comparison")
        moving.to(State.DRAINED)
        proofs = [
            prover.prove(since[target.name], still=True) for target, prover in zip(work.targets, provers, strict=True)
        ]
        laps.begin("ids")
        raise_ids(tables.pairs)  # for the last time: the old tables give out none any more
        clock.require("arming the way back")
        moving.to(
            State.PROVED,
            proofs=[_document(proof) for proof in proofs],
            reached={source: str(place) for source, place in done.reached.items()},
        )
        if rehearse:
            locks.release()
            moving.to(State.PROVED, **clock.noted())
            moving.undo("it was a rehearsal")
            return False
        _arm(moving, tables, laps)
        laps.begin("gates")
        clock.require("closing the gates")
        close_gates(tables.sources, work.opened.name, moving.token)
        if not locks.held():
            clock.require("closing the gates")
            raise _slipped(work, "The locks had ended before the gates closed: writes may have been made in between.")
    laps.begin("last look")
    _require_nothing_slipped(moving, tables, done.reached)
    if seen is not None:  # no lock keeps TRUNCATE from the tables that the application comes back to
        laps.begin("old log")
        seen = undisturbed(work, seen)
    clock.require("the switch")
    watched = {source: str(place) for source, place in (seen or {}).items()}
    moving.to(State.ARMED, watched=watched, **clock.noted())
    return True


def _require_nothing_slipped(moving: Moving, tables: Tables, reached: Mapping[str, Position]) -> None:
    """Once the gates are closed. Raises DataAtRisk (cutover.gates_gone), Refused (cutover.left_before), RetryLater
    (cutover.slipped), and what reading the log raises."""
    work = moving.work
    require_gates(tables.sources)
    # The cutover of another pipeline may run beside this one.
    require_not_left(tables.sources, but=moving.token)
    slipped = written_since(work, reached)
    if slipped:
        raise _slipped(
            work,
            f"{slipped:,} changes were made after the final position: the locks had ended before the gates closed.",
        )
    unstaged = StagedTables(work.pipeline, work.targets, work.meta).missed(reached, work.opened.store)
    if unstaged:
        raise _slipped(
            work, f"Changes may have been made after the final position, which no staged change shows: {unstaged}."
        )


def _slipped(work: CutoverWork, what: str) -> RetryLater:
    return RetryLater(
        what,
        where=work.opened.name,
        code="cutover.slipped",
        remedy="nothing was switched. Raise cutover.budget_s, or stop the application by cutover.stop_with",
    )


def written_since(work: CutoverWork, reached: Mapping[str, Position]) -> int:
    """The changes of the targets' tables that the sources' logs have after these places, whoever has staged them. Other
    tables of the pipeline may be written at any time, and are."""
    extract_sources(work.opened)
    batches = [
        batch for source, place in reached.items() for batch in work.meta.batches.find(source) if batch.end > place
    ]
    files = work.meta.batches.files([batch.batch_id for batch in batches if not batch.copied])
    return sum(
        file.rows
        for listed in files.values()
        for file in listed
        if any(target.table(file.table) is not None for target in work.targets)
    )


def _document(proof: Proof) -> dict[str, Any]:
    return {
        "keys": dict(proof.keys),
        "counted": list(proof.counted),
        "at": {source: str(place) for source, place in proof.since.places.items()},
    }


def _arm(moving: Moving, tables: Tables, laps: Laps) -> None:
    """No write of this pipeline reaches the target any more, and then the way back begins."""
    work, token = moving.work, moving.token
    laps.begin("fences")
    moving.to(State.PROVED, arming=token)
    for target in work.targets:
        raise_fences(target, fenced_in(target, tables), note(moving.cutover, token), owner=work.pair)
    laps.begin("way back")
    moving.to(State.PROVED, starts=dict(work.way_back.arm(token)))
