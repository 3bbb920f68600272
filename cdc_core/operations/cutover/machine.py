"""One cutover, step by step (cutover_states.py has the states).

    prepare   what must be true beforehand; a full verification, if the last one is too old
    chase     runs, one after the other, until one takes less than cutover.max_lag_s, three times
    hold      stop, drain, prove, arm: within cutover.budget_s, or everything is released and nothing has happened
    switch    the hook, once; then the way back is let in

The order is what keeps writes from being lost. The final position is read once no transaction is open any more. The
target is fenced, and the way back has its start, before anybody can write to the new tables. The gates of the old
tables are closed before their locks are released, and whether a write slipped through is looked up in the log itself,
not concluded. The call of the hook is written down before it is made.

A process that is killed leaves nothing that needs it: its locks go with it, and what else it made is undone by the next
one (`undo`), unless the hook may have been called. Then only a person says what has happened.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from cdc_core.errors import DataAtRisk, LockstepError, NotCaughtUp, Refused, RetryLater, RolledBack, UsageError
from cdc_core.meta import Cutover, Lease
from cdc_core.model.windows import age_us
from cdc_core.operations.cutover import hooks
from cdc_core.operations.cutover.chase import chase
from cdc_core.operations.cutover.clock import Clock
from cdc_core.operations.cutover.cutover_states import OPEN, State
from cdc_core.operations.cutover.hold import held
from cdc_core.operations.cutover.hooks import Answer
from cdc_core.operations.cutover.moving import Moving, open_cutover, require_its_target, require_no_other, taken_up
from cdc_core.operations.cutover.old_log import found_in, look_again
from cdc_core.operations.cutover.preparing import (
    prepare,
    require_hooks,
    require_ready,
    require_unrefuted,
    undisturbed,
    verified,
)
from cdc_core.operations.cutover.proof import prover
from cdc_core.operations.cutover.readiness import raise_ids
from cdc_core.operations.cutover.undoing import (
    close_lost,
    fenced_in,
    hook_variables,
    note,
    patiently,
    tidy,
    undo_left,
    unless_it_fails,
)
from cdc_core.operations.cutover.work import CutoverWork, Tables, noted, read, tables_of
from cdc_core.process.leaving import uninterrupted
from cdc_core.targets.bookkeeping.fence import admit, raise_fences
from cdc_core.targets.bookkeeping.gates import Places, gated_tables, lost_gates, make_gates, open_gates, require_gates
from cdc_core.targets.bookkeeping.takeover import take_over


def run(work: CutoverWork, lease: Lease, *, rehearse: bool = False) -> Cutover:
    """Begins a cutover, or continues the one that is open, until the application is switched.

    rehearse: stops writes, proves, and lets them continue; nothing is switched, and the result is ROLLED_BACK.

    Raises RetryLater (cutover.rolled_back) when nothing has happened; DataAtRisk (cutover.unknown) when the hook did
    not say what it has done; Refused (cutover.not_switched) when it surely did nothing; and what the steps raise.
    """
    require_hooks(work)
    moving = Moving(work, lease, taken_up(work, lease, rehearsal=rehearse))
    if moving.state is State.SWITCHING:
        return _answered_before(moving)
    if moving.state in (State.SWITCHED, State.WATCH):
        return _finished(moving)
    moving.undo_held("another process left it half done")
    if moving.cutover.details.get("rehearsal", False) != rehearse:
        moving.to(moving.state, rehearsal=rehearse)
    try:
        return _attempted(moving, rehearse=rehearse)
    except LockstepError as error:
        if moving.state in (State.PREPARED, State.CHASE):  # for whoever asks later why it is open
            keep = partial(moving.to, moving.state, error=str(error), patience_s=0.0)
            unless_it_fails(work, "why the cutover does not continue is not written down", keep, None)
        raise


def _attempted(moving: Moving, *, rehearse: bool) -> Cutover:
    """From PREPARED or CHASE. Raises as `run`."""
    work = moving.work
    work.way_back.check()
    prepared = prepare(work)
    since, seen = prepared.since, prepared.seen
    chase_end_s = time.monotonic() + age_us(work.options.chase) / 1e6
    for attempt in range(work.options.attempts):
        if moving.cutover.details.get("left") is not None:  # the last attempt has opened the new tables
            prepared = prepare(work)
            since, seen = prepared.since, prepared.seen
        with ExitStack() as opened:
            provers = [opened.enter_context(prover(work.jobs[target.name])) for target in work.targets]
            tables = tables_of(work, provers)
            for target, target_prover in zip(work.targets, provers, strict=True):
                if not since[target.name].tables >= set(target_prover.feeding):  # some are new
                    since = {**since, target.name: verified(work, target)}
            require_gates(tables.targets)
            findings = moving.cutover.details["findings"] if attempt else require_ready(work, tables)
            moving.to(State.CHASE, tables=noted(tables), findings=findings, left=None)
            for name in raise_ids(tables.pairs):
                work.opened.progress.note(f"raised AUTO_INCREMENT of {name}")
            try:
                since = chase(moving, provers, since, chase_end_s)
                seen = undisturbed(work, seen)  # little of the log is left for the time without writes
                require_unrefuted(work)
                if not rehearse:
                    moving.require()  # another process may have let the way back in during this chase
                    make_gates(tables.sources, work.options.patience_s)
                    work.way_back.keep_out()
                with _stopped(moving) as clock:
                    armed = held(moving, provers, tables, since, seen, clock, rehearse=rehearse)
                    if armed:
                        _opened(moving, tables, clock)
                if not armed:
                    moving.to(State.ROLLED_BACK, error="it was a rehearsal")
                    return moving.cutover
                return _switched(moving)
            except RetryLater as error:
                if moving.state is not State.CHASE:
                    raise
                work.opened.progress.note(f"rolled back, attempt {attempt + 1} of {work.options.attempts}: {error}")
                failed = error
                if isinstance(error, NotCaughtUp):
                    break
    moving.to(State.ROLLED_BACK, error=str(failed))
    _tidy(moving)
    raise RolledBack(
        f"The cutover was rolled back, and nothing was switched. The last attempt: {failed.what}",
        where=work.opened.name,
        remedy=f"{failed.remedy}; then begin again",
    )


@contextmanager
def _stopped(moving: Moving) -> Iterator[Clock]:
    """The time without writes. Whatever ends it too soon, an error or a signal, nothing has happened: the switch hook
    is not called yet. Raises that, or what undoing it raises."""
    clock = Clock(moving.work.options.budget_s)
    try:
        yield clock
    except BaseException as error:
        with uninterrupted():
            clock.end()
            why = str(error) if isinstance(error, Exception) else "it was interrupted by a signal"
            moving.undo(why, **clock.noted())
        raise
    clock.end()


def _opened(moving: Moving, tables: Tables, clock: Clock) -> None:
    """The new tables are open, and it is written down that the hook is called. Meta may be slow: the budget is asked
    after that."""
    gated = gated_tables(tables.targets)  # by an earlier cutover
    moving.to(State.ARMED, opened=_of(tables.targets, gated))
    if gated:
        clock.laps.begin("new gates")
        open_gates(tables.targets)
    clock.laps.begin("note")
    moving.to(State.SWITCHING, patience_s=clock.left_s, **clock.noted())
    clock.decide("the call of cutover.switch_with")


def back(work: CutoverWork, lease: Lease) -> Cutover:
    """Leads the application back, or continues what was begun. work: of the way back. Nothing is done if that was the
    last thing that was done. Raises UsageError (usage.nothing_open), and as `run`."""
    cutover, led = (work.meta.cutovers.latest(name) for name in (work.opened.name, work.way_back.name))
    if (cutover is not None and cutover.state in OPEN) or (led is not None and led.state == State.WATCH):
        return run(work, lease)
    if cutover is not None and cutover.state == State.COMPLETE and led is not None and led.state == State.BACK:
        work.opened.progress.note("the application was led back before")
        return cutover
    completed = led is not None and led.state == State.COMPLETE
    raise UsageError(
        f"The cutover of {work.way_back.name!r} was completed, so there is no way back."
        if completed
        else f"No cutover of {work.way_back.name!r} has switched the application.",
        where=work.way_back.name,
        code="usage.nothing_open",
        remedy="see `lockstep cutover status PIPELINE`"
        + ("; another pipeline, which copies the new tables, can lead the application elsewhere" if completed else ""),
    )


def _switched(moving: Moving) -> Cutover:
    """Raises RetryLater (cutover.not_switched), DataAtRisk (cutover.unknown), Refused (hook.missing)."""
    work = moving.work
    command = work.options.switch_with
    assert command is not None
    try:
        answer, said = hooks.switch(command, hook_variables(work, moving.cutover, hooks.SWITCH), work.options.hook_s)
    except Refused as error:
        moving.to(State.SWITCHING, answer=str(Answer.NOT_SWITCHED), said=str(error))
        _not_switched(moving, "the command could not be run", called=False)
        raise
    work.opened.progress.note(f"the command ended with {said}")
    moving.to(State.SWITCHING, answer=str(answer), said=said)
    if answer is Answer.UNKNOWN:
        raise unknown(moving.cutover, _why_unknown(moving.cutover))
    return answered(moving, answer)


def _answered_before(moving: Moving) -> Cutover:
    """From an answer that was written down. Raises DataAtRisk (cutover.unknown) if there is none."""
    details = moving.cutover.details
    answer = Answer(details.get("answer", Answer.UNKNOWN))
    if answer is Answer.UNKNOWN:
        raise unknown(moving.cutover, _why_unknown(moving.cutover))
    return answered(moving, answer)


def _why_unknown(cutover: Cutover) -> str:
    said = cutover.details.get("said")
    return f"the command ended with {said}" if said else "the process that called the command is gone"


def answered(moving: Moving, answer: Answer) -> Cutover:
    """What the hook has done is known, from itself or from a person. Raises RetryLater (cutover.not_switched)."""
    if answer is Answer.SWITCHED:
        moving.to(State.SWITCHED)
        return _finished(moving)
    _not_switched(moving, "the application was not switched")
    raise Refused(
        "The command did not switch the application. Everything is as before.",
        where="cutover.switch_with",
        code="cutover.not_switched",
        remedy=f"see what the command said (`lockstep cutover status {moving.cutover.pipeline}`), then begin again",
    )


def _of(places: Places, chosen: Collection[str]) -> dict[str, list[list[str]]]:
    return {name: [list(table) for table in tables if ".".join(table) in chosen] for name, tables in places.items()}


def _tidy(moving: Moving) -> None:
    if "tables" in moving.cutover.details:
        tidy(moving.work, _left_places(moving.cutover))


def _left_places(cutover: Cutover) -> Places:
    return read(cutover.details["tables"]).sources


def _not_switched(moving: Moving, why: str, *, called: bool | None = None) -> None:
    """called: whether the hook may have been; None: as the state says. Raises DataAtRisk (cutover.slipped_before)."""
    with uninterrupted():
        moving.freed(called=moving.state is State.SWITCHING if called is None else called)
        left = moving.cutover.details.get("left") or {}
        behind = f"; {left['rows']:,} changes were left behind: {left['named']}" if left.get("rows") else ""
        moving.to(State.ROLLED_BACK, error=f"{why}{behind}", arming="", opened={})
        _tidy(moving)
    if behind:
        raise left_behind(moving.cutover)


def _finished(moving: Moving) -> Cutover:
    """The way back is let in. Safe to repeat. Raises RetryLater (cutover.unchecked), DataAtRisk
    (cutover.slipped_before)."""
    work = moving.work
    if moving.state is State.SWITCHED:
        look_again(moving)
        pipeline = work.way_back.armed(moving.cutover.details["starts"])
        tables = read(moving.cutover.details["tables"])
        moving.require()
        sources = [source.name for source in pipeline.sources]
        for target in pipeline.databases:
            named = fenced_in(target, tables)
            patiently(partial(take_over, target, named, sources), work.opened.progress.note)
            patiently(partial(admit, target, named, pipeline.pipeline, work.pair), work.opened.progress.note)
        if work.back:
            moving.end_other(State.BACK)
        moving.to(State.WATCH, error=moving.cutover.error)
        tidy(work, tables.targets)
        found = found_in(moving.cutover)
        if found is not None and work.back:
            moving.to(State.COMPLETE, error=moving.cutover.error)
        if found is not None:
            raise found
    if work.back:  # nothing is left to be watched: the pipeline there carries changes as before
        moving.to(State.COMPLETE, error=moving.cutover.error)
    return moving.cutover


def left_behind(cutover: Cutover) -> DataAtRisk:
    left = cutover.details["left"]
    return DataAtRisk(
        f"The application was not switched, but somebody made {left['rows']:,} changes in the new tables while they "
        f"were open, and the old tables lack them. Rows: {left['named']}.",
        where=f"cutover {cutover.cutover_id}",
        code="cutover.slipped_before",
        remedy=f"carry over by hand the changes that you need; then `lockstep verify {cutover.pipeline}`, and "
        f"`lockstep repair {cutover.pipeline}` makes the tables equal again",
    )


def unknown(cutover: Cutover, why: str) -> DataAtRisk:
    return DataAtRisk(
        f"It is unknown whether the application was switched: {why}. The old tables take no writes, and the new ones "
        "do.",
        where=f"cutover {cutover.cutover_id}",
        code="cutover.unknown",
        remedy="look where the application writes, make sure that the command has ended, and answer: `lockstep "
        f"cutover resume {cutover.pipeline} --answer switched` or `--answer not-switched`",
    )


def resume(work: CutoverWork, lease: Lease, answer: Answer | None) -> Cutover:
    """Continues the cutover that is open, a rehearsal as a rehearsal; closes gates that are gone. answer: what a person
    knows of the hook. Raises UsageError (usage.nothing_open, usage.argument), and as `run`."""
    left = work.meta.cutovers.latest(work.opened.name)
    over = answer is None and left is not None and left.state in (State.WATCH, State.COMPLETE, State.ROLLED_BACK)
    if left is not None and over and close_lost(work, lease, left):
        return left
    cutover = open_cutover(work)
    if answer is None:
        return run(work, lease, rehearse=cutover.details.get("rehearsal", False))
    if cutover.state != State.SWITCHING:
        raise UsageError(
            f"The cutover is {cutover.state}, so it needs no answer.",
            where=work.opened.name,
            code="usage.argument",
            remedy="leave --answer out",
        )
    if answer is Answer.NOT_SWITCHED and cutover.details.get("answer") == Answer.SWITCHED:
        # What the application has written to the new tables since would be lost.
        raise UsageError(
            "The command said that it has switched the application.",
            where=f"cutover {cutover.cutover_id}",
            code="usage.argument",
            remedy="leave --answer out, which ends this cutover as switched; then `lockstep cutover back` leads the "
            "application back, and no write is lost",
        )
    moving = Moving(work, lease, cutover)
    if answer is Answer.SWITCHED:
        return _switched_by_word(moving)
    # The command may be called yet, by a process that was paused before it did: an application that it leads to the new
    # tables is to get errors there, and not to write to tables that take part in nothing.
    tables = read(cutover.details["tables"])
    opened = {name: [list(place) for place in places] for name, places in tables.targets.items()}
    moving.to(State.SWITCHING, opened=opened, answer=str(answer))
    return answered(moving, answer)


def _switched_by_word(moving: Moving) -> Cutover:
    """A person says that the application writes to the new tables. The fences around these may have been lowered
    meanwhile, and are raised again. Raises as `_finished`."""
    work, details = moving.work, moving.cutover.details
    tables, token = read(details["tables"]), details["arming"]
    for target in work.targets:
        raise_fences(target, fenced_in(target, tables), note(moving.cutover, token), owner=work.pair)
    moving.to(State.SWITCHED, unchecked="it was not looked up yet")
    return _finished(moving)


def abort(work: CutoverWork, lease: Lease) -> Cutover:
    """Ends the cutover that is open; nothing has happened then. Raises UsageError (usage.nothing_open), Refused
    (cutover.switched), DataAtRisk (cutover.unknown)."""
    cutover = work.meta.cutovers.latest(work.opened.name)
    if cutover is not None and cutover.state == State.ROLLED_BACK:
        require_its_target(work, cutover)
        undo_left(work, cutover)
        return cutover
    moving = Moving(work, lease, open_cutover(work))
    answer = moving.cutover.details.get("answer")
    if moving.state is State.SWITCHING and answer not in (Answer.SWITCHED, Answer.NOT_SWITCHED):
        raise unknown(moving.cutover, _why_unknown(moving.cutover))
    if moving.state in (State.SWITCHED, State.WATCH) or (moving.state is State.SWITCHING and answer == Answer.SWITCHED):
        raise Refused(
            "The application was switched, so there is nothing to abort.",
            where=work.opened.name,
            code="cutover.switched",
            remedy="`lockstep cutover resume` ends an open cutover, `lockstep cutover back` leads the application "
            "back, `lockstep cutover complete` gives the way back up",
        )
    _not_switched(moving, "aborted")
    return moving.cutover


def complete(work: CutoverWork, lease: Lease) -> Cutover:
    """Ends the time in which the application can go back. Raises UsageError (usage.nothing_open), DataAtRisk
    (cutover.gates_gone)."""
    require_no_other(work)
    moving = Moving(work, lease, open_cutover(work))
    if moving.state is State.SWITCHED:
        _finished(moving)
    if moving.state is not State.WATCH:
        raise UsageError(
            f"The cutover is {moving.state}; the application was not switched.",
            where=work.opened.name,
            code="usage.nothing_open",
            remedy="`lockstep cutover resume` continues it, `lockstep cutover abort` ends it",
        )
    lost = unless_it_fails(
        work,
        "whether gates are closed is not known",
        partial(lost_gates, _left_places(moving.cutover)),
        None,
    )
    if lost is not None:
        raise lost
    moving.to(State.COMPLETE)
    return moving.cutover
