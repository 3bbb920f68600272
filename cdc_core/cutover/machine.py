"""One cutover, step by step (states.py has the states).

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

from contextlib import ExitStack

from cdc_core.cutover import hooks
from cdc_core.cutover.chase import chase
from cdc_core.cutover.gates import closed_gates, open_gates
from cdc_core.cutover.hold import held
from cdc_core.cutover.hooks import Answer
from cdc_core.cutover.moving import Moving, open_cutover, require_no_other, taken_up
from cdc_core.cutover.preparing import prepare, require_hooks, require_ready, verified
from cdc_core.cutover.proof import prover
from cdc_core.cutover.readiness import raise_ids
from cdc_core.cutover.states import HELD, State
from cdc_core.cutover.undoing import told, undo
from cdc_core.cutover.work import Tables, Work, noted, tables_of
from cdc_core.errors import DataAtRisk, Refused, RetryLater, UsageError
from cdc_core.meta import Cutover, Lease
from cdc_core.target.fence import admit


def run(work: Work, lease: Lease, *, rehearse: bool = False) -> Cutover:
    """Begins a cutover, or continues the one that is open, until the application is switched.

    rehearse: stops writes, proves, and lets them continue; nothing is switched, and the result is ROLLED_BACK.

    Raises RetryLater (cutover.rolled_back) when nothing has happened; DataAtRisk (cutover.unknown) when the hook did
    not say what it has done; Refused (cutover.not_switched) when it surely did nothing; and what the steps raise.
    """
    require_hooks(work)
    moving = Moving(work, lease, taken_up(work, lease))
    if moving.state is State.SWITCHING:
        return _answered_before(moving)
    if moving.state in (State.SWITCHED, State.WATCH):
        return _finished(moving)
    moving.undo_held("another process left it half done")
    work.way_back.check()
    since = prepare(work)
    for attempt in range(work.options.attempts):
        with ExitStack() as opened:
            provers = [opened.enter_context(prover(work.jobs[one.name])) for one in work.targets]
            tables = tables_of(work, provers)
            for target, one in zip(work.targets, provers, strict=True):
                if not since[target.name].tables >= set(one.feeding):  # some are new
                    since = {**since, target.name: verified(work, target)}
            if not attempt:
                require_ready(work, tables)
            moving.to(State.CHASE, tables=noted(tables))
            for name in raise_ids(tables.pairs, work.environ):
                work.told(f"raised AUTO_INCREMENT of {name}")
            since = chase(moving, provers, since)
            try:
                if not held(moving, provers, tables, since, rehearse=rehearse):
                    moving.to(State.ROLLED_BACK, error="it was a rehearsal")
                    return moving.cutover
                return _switched(moving, tables)
            except RetryLater as error:
                if moving.state not in (*HELD, State.CHASE):
                    raise
                moving.undo_held(str(error))
                work.told(f"rolled back, attempt {attempt + 1} of {work.options.attempts}: {error}")
                failed = error
    moving.to(State.ROLLED_BACK, error=str(failed))
    raise RetryLater(
        f"The cutover was rolled back; nothing has happened. The last attempt: {failed.what}",
        where=work.pipeline.pipeline,
        code="cutover.rolled_back",
        remedy=f"{failed.remedy}; then begin again",
    )


def _switched(moving: Moving, tables: Tables) -> Cutover:
    """Raises RetryLater (cutover.not_switched), DataAtRisk (cutover.unknown), Refused (cutover.hook)."""
    work = moving.work
    command = work.options.switch_with
    assert command is not None
    closed = closed_gates(tables.targets, work.environ)  # by an earlier cutover in the other direction
    before = {name: [list(one) for one in places if ".".join(one) in closed] for name, places in tables.targets.items()}
    moving.to(State.SWITCHING, opened=before if closed else {})
    open_gates(tables.targets if closed else {}, work.environ)
    try:
        answer, said = hooks.switch(
            command, told(work, moving.cutover, hooks.SWITCH), work.options.hook_s, work.environ
        )
    except Refused:
        _not_switched(moving, "the command could not be run")
        raise
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
        "The application was not switched; everything is as before.",
        where="cutover.switch_with",
        code="cutover.not_switched",
        remedy="see what the command said (`lockstep cutover status PIPELINE`), then begin again",
    )


def _not_switched(moving: Moving, why: str) -> None:
    undo(moving.work, moving.cutover)
    moving.to(State.ROLLED_BACK, error=why)


def _finished(moving: Moving) -> Cutover:
    """The way back is let in. Safe to repeat."""
    work = moving.work
    if moving.state is State.SWITCHED:
        pipeline = work.way_back.arm()
        logical = moving.cutover.details["tables"]["logical"]
        for target in pipeline.targets:
            admit(target, [name for name in logical if target.table(name) is not None], pipeline.pipeline, work.pair)
        if work.back:
            moving.end_other(State.BACK)
        moving.to(State.WATCH)
    if work.back:  # nothing is left to be watched: the pipeline there carries changes as before
        moving.to(State.COMPLETE)
    return moving.cutover


def unknown(cutover: Cutover, why: str) -> DataAtRisk:
    return DataAtRisk(
        f"Nobody knows whether the application was switched: {why}. The old tables take no writes, the new ones do.",
        where=f"cutover {cutover.cutover_id}",
        code="cutover.unknown",
        remedy="look where the application writes, and make sure that the command is not running any more; then say "
        "so: `lockstep cutover resume PIPELINE --answer switched` or `--answer not-switched`",
    )


def resume(work: Work, lease: Lease, answer: Answer | None) -> Cutover:
    """Continues the cutover that is open. answer: what a person knows of the hook. Raises UsageError
    (cutover.nothing_open, cutover.no_question), and as `run`."""
    known = open_cutover(work)
    if answer is None:
        return run(work, lease)
    if known.state != State.SWITCHING:
        raise UsageError(
            f"The cutover is {known.state}: nobody asks what the hook has done.",
            where=work.pipeline.pipeline,
            code="cutover.no_question",
            remedy="leave --answer out",
        )
    return answered(Moving(work, lease, known), answer)


def abort(work: Work, lease: Lease) -> Cutover:
    """Ends the cutover that is open; nothing has happened then. Raises UsageError (cutover.nothing_open), Refused
    (cutover.switched), DataAtRisk (cutover.unknown)."""
    known = work.meta.latest_cutover(work.pipeline.pipeline)
    if known is not None and known.state == State.ROLLED_BACK:
        undo(work, known)  # a process that had lost it may have been at it for a while longer
        return known
    moving = Moving(work, lease, open_cutover(work))
    if moving.state is State.SWITCHING:
        raise unknown(moving.cutover, _why_unknown(moving.cutover))
    if moving.state in (State.SWITCHED, State.WATCH):
        raise Refused(
            "The application was switched: there is nothing to abort.",
            where=work.pipeline.pipeline,
            code="cutover.switched",
            remedy="`lockstep cutover back` leads it back; `lockstep cutover complete` ends the time in which it can",
        )
    undo(work, moving.cutover)
    moving.to(State.ROLLED_BACK, error="aborted")
    return moving.cutover


def complete(work: Work, lease: Lease) -> Cutover:
    """Ends the time in which the application can go back. Raises UsageError (cutover.nothing_open,
    cutover.not_switched_yet)."""
    require_no_other(work)
    moving = Moving(work, lease, open_cutover(work))
    if moving.state is State.SWITCHED:
        _finished(moving)
    if moving.state is not State.WATCH:
        raise UsageError(
            f"The cutover is {moving.state}: the application was not switched.",
            where=work.pipeline.pipeline,
            code="cutover.not_switched_yet",
            remedy="`lockstep cutover resume` continues it, `lockstep cutover abort` ends it",
        )
    moving.to(State.COMPLETE)
    return moving.cutover
