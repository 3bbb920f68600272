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

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from cdc_core import config
from cdc_core.config import Pipeline, Target
from cdc_core.cutover import hooks
from cdc_core.cutover.gates import closed_gates, closing, open_gates, require_few
from cdc_core.cutover.hooks import Answer
from cdc_core.cutover.locks import Locks, Places, locked
from cdc_core.cutover.proof import Proof, Prover, Since, prover, reference_of
from cdc_core.cutover.readiness import Pair, failed, look, places_of, raise_ids, require_ids
from cdc_core.cutover.states import HELD, MOVES, OPEN, State
from cdc_core.errors import DataAtRisk, Refused, RetryLater, UsageError, defect
from cdc_core.extract.extractor import default_holder
from cdc_core.meta import BatchRow, Cutover, Lease, Meta
from cdc_core.meta.kept_lease import kept_lease
from cdc_core.model.position import Position
from cdc_core.target.fence import lower_fences, raise_fences
from cdc_core.target.sharding import shard_tables
from cdc_core.verify.job import Job

log = logging.getLogger(__name__)

QUICK_RUNS = 3
_ROUNDS = 5
"""How often changed keys are compared, at most, until a comparison is quick."""
LEASE_S = 10.0
_HELD_BEYOND_S = 2.0
"""How much longer than the budget a server keeps the locks of a process that says nothing."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A run. staged: changes that it read from the sources. reached: up to where, by source. took_s: from the end of
    the logs, as it was at the beginning, to the closed ledger."""

    staged: int
    reached: Mapping[str, Position]
    took_s: float


class Hands(Protocol):
    """What a cutover has done for it: the same code by which runs and verifications are made otherwise."""

    def catch_up(self) -> CaughtUp:
        """Reads the sources up to now, and applies all that is staged to the targets."""

    def extract(self) -> None:
        """Reads the sources up to now."""

    def verify(self, target: str) -> Mapping[str, Any]:
        """Compares every row; the evidence."""

    def newest_evidence(self, target: str) -> Mapping[str, Any] | None:
        """Of a full verification of this definition of the pipeline that found all tables equal, and is not older than
        `cutover.evidence`."""


class WayBack(Protocol):
    """The pipeline in the other direction."""

    @property
    def name(self) -> str: ...

    def check(self) -> None:
        """Raises Refused (cutover.no_way_back, cutover.way_back_differs)."""

    def preview(self) -> Pipeline | None:
        """As `arm` would make it now; None for one that exists already."""

    def arm(self) -> Pipeline:
        """From now on it reads what is written to the targets. Safe to repeat. Raises as `check`."""

    def disarm(self) -> None:
        """Takes back what `arm` has made, if nobody has used it. Safe to repeat."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a cutover works with. jobs: by target, what its rows are compared with. told: takes a line for people."""

    pipeline: Pipeline
    targets: tuple[Target, ...]
    jobs: Mapping[str, Job]
    meta: Meta
    hands: Hands
    way_back: WayBack
    back: bool = False
    environ: Mapping[str, str] | None = None
    told: Callable[[str], None] = log.info

    @property
    def options(self) -> config.Cutover:
        return self.pipeline.cutover


@dataclass(frozen=True, slots=True)
class Tables:
    """What is switched. pairs: of logical tables. sources, targets: physical tables, by server. logical: names."""

    sources: Places
    targets: Places
    logical: tuple[str, ...]
    pairs: tuple[Pair, ...] = ()


def cutover_lease(work: Work) -> AbstractContextManager[Lease]:
    """The right to move a pipeline's cutover. Raises RetryLater (cutover.running)."""
    # One for both directions: whoever goes back does not meet one who goes there.
    name = min(work.pipeline.pipeline, work.way_back.name)
    taken = RetryLater(
        f"Another process is at a cutover of {work.pipeline.pipeline!r}.",
        where=work.pipeline.pipeline,
        code="cutover.running",
        remedy=f"wait until it has ended or, if it is dead, {LEASE_S:g} s for its lease to expire",
    )
    key = "cutover:" + hashlib.sha256(name.encode()).hexdigest()[:16]
    return kept_lease(work.meta, key, name, default_holder(), LEASE_S, taken=taken)


def run(work: Work, lease: Lease, *, rehearse: bool = False) -> Cutover:
    """Begins a cutover, or continues the one that is open, until the application is switched.

    rehearse: stops writes, proves, and lets them continue; nothing is switched, and the result is ROLLED_BACK.

    Raises RetryLater (cutover.rolled_back) when nothing has happened; DataAtRisk (cutover.unknown) when the hook did
    not say what it has done; Refused (cutover.not_switched) when it surely did nothing; and what the steps raise.
    """
    require_hooks(work)
    moving = _Moving(work, lease, _taken_up(work, lease))
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
                    since = {**since, target.name: _verified(work, target)}
            if not attempt:
                _require_ready(work, tables)
            moving.to(State.CHASE, tables=_noted(tables))
            for name in raise_ids(tables.pairs, work.environ):
                work.told(f"raised AUTO_INCREMENT of {name}")
            since = _chase(moving, provers, since)
            try:
                if not _held(moving, provers, tables, since, rehearse=rehearse):
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


def prepare(work: Work) -> dict[str, Since]:
    """What each target is proven to have, verified now if the evidence is missing or old.

    Raises DataAtRisk (cutover.not_equal), and what verifying raises.
    """
    found = {}
    for target in work.targets:
        evidence = work.hands.newest_evidence(target.name)
        found[target.name] = _verified(work, target) if evidence is None else Since.of_evidence(evidence)
    return found


def _verified(work: Work, target: Target) -> Since:
    work.told(f"{target.name}: verifying every row first; the evidence is missing, old, or of other rules or tables")
    evidence = work.hands.verify(target.name)
    if evidence["equal"] is not True:
        raise DataAtRisk(
            f"The full verification of {target.name!r} has not found all tables equal.",
            where=target.name,
            code="cutover.not_equal",
            remedy="see `lockstep verify --show`; repair what differs (`lockstep repair`), then begin again",
        )
    return Since.of_evidence(evidence)


def _require_ready(work: Work, tables: Tables) -> None:
    findings = look(tables.pairs, work.way_back.preview(), work.environ)
    for one in findings:
        if one.status == "warn":
            work.told(f"{one.subject}: {one.what}")
    error = failed(findings)
    if error is not None:
        raise error


def require_hooks(work: Work) -> None:
    """Raises UsageError (cutover.no_hook)."""
    if work.options.switch_with is None:
        raise UsageError(
            "Nothing says how the application is switched.",
            where=f"{work.pipeline.pipeline}: cutover.switch_with",
            code="cutover.no_hook",
            remedy="name a command in the pipeline file, as in cutover: {switch_with: ./switch.sh}; "
            "docs/move.md says what it is told, and what it answers",
        )


def tables_of(work: Work, provers: Sequence[Prover]) -> Tables:
    """Raises Refused (cutover.too_many_tables)."""
    pairs = []
    for target, one in zip(work.targets, provers, strict=True):
        for name, feeding in one.feeding.items():
            old = [
                (reference_of(work.pipeline, source, work.environ), schema.database, schema.table)
                for source, schema in feeding
            ]
            new = [(target.connections[at.connection], at.database, at.table) for at in shard_tables(target, name)]
            pairs.append(Pair(name, tuple(old), tuple(new)))
    found = Tables(
        _unique(places_of(one for pair in pairs for one in pair.old)),
        _unique(places_of(one for pair in pairs for one in pair.new)),
        tuple(dict.fromkeys(pair.logical for pair in pairs)),
        tuple(pairs),
    )
    require_few(found.sources)
    return found


def _unique(places: Mapping[str, Sequence[tuple[str, str]]]) -> Places:
    return {reference: tuple(sorted(set(tables))) for reference, tables in places.items()}


def _noted(tables: Tables) -> dict[str, Any]:
    return {
        "sources": {name: [list(one) for one in found] for name, found in tables.sources.items()},
        "targets": {name: [list(one) for one in found] for name, found in tables.targets.items()},
        "logical": list(tables.logical),
    }


def _read(noted: Mapping[str, Any]) -> Tables:
    def places(found: Mapping[str, Any]) -> Places:
        return {name: tuple((str(database), str(table)) for database, table in some) for name, some in found.items()}

    return Tables(places(noted["sources"]), places(noted["targets"]), tuple(noted["logical"]))


class _Moving:
    """A cutover and the right to move it. held: what this process keeps while writes are stopped."""

    def __init__(self, work: Work, lease: Lease, cutover: Cutover) -> None:
        self.work = work
        self._lease = lease
        self.cutover = cutover

    @property
    def state(self) -> State:
        return State(self.cutover.state)

    def to(self, state: State, *, error: str = "", **details: Any) -> None:
        """Raises RetryLater (meta.lease_lost, cutover.moved)."""
        if state is not self.state and state not in MOVES[self.state]:
            raise defect(f"A cutover does not move from {self.state} to {state}.", code="cutover.move")
        former = self.state
        self.cutover = self.work.meta.move_cutover(self._lease, self.cutover, state, details, error)
        if state is not former:
            self.work.told(str(state))

    def end_other(self, state: State) -> None:
        """Ends the cutover by which the application came here. Safe to repeat."""
        other = self.work.meta.latest_cutover(self.work.way_back.name)
        if other is not None and other.state == State.WATCH:
            self.work.meta.move_cutover(self._lease, other, state)

    def undo_held(self, why: str) -> None:
        """From a state that another process has left: back to CHASE."""
        if self.state in HELD:
            self.undo(why)

    def undo(self, why: str) -> None:
        """Frees what was stopped, fenced and gated, in any order of what was done; then CHASE. Safe to repeat."""
        self.require()  # whoever has the lease now may be further
        undo(self.work, self.cutover)
        self.to(State.CHASE, error=why, arming=False, opened={})

    def require(self) -> None:
        """Before a step beside meta: raises RetryLater (meta.lease_lost, cutover.moved) if another process may be at
        it."""
        self.to(self.state, error=self.cutover.error)


def undo(work: Work, cutover: Cutover) -> None:
    """Undoes what a cutover has made beside its locks; safe to repeat, also after half of it was done."""
    if cutover.details.get("arming"):
        tables = _read(cutover.details["tables"])
        if cutover.details.get("opened"):
            _close(work, _read({**cutover.details["tables"], "targets": cutover.details["opened"]}).targets)
        open_gates(tables.sources, work.environ)
        work.way_back.disarm()
        for target in work.targets:
            lower_fences(target, [name for name in tables.logical if target.table(name) is not None])
    if work.options.stop_with is not None:
        hooks.stop(work.options.stop_with, _told(work, cutover, hooks.RELEASE), work.options.hook_s, work.environ)


def _told(work: Work, cutover: Cutover, phase: str) -> dict[str, str]:
    return hooks.variables(phase, cutover.cutover_id, work.pipeline.pipeline, back=work.back)


def _require_no_other(work: Work) -> None:
    """Raises Refused (cutover.other_open)."""
    other = work.meta.latest_cutover(work.way_back.name)
    if other is not None and other.state in OPEN and not (work.back and other.state == State.WATCH):
        raise Refused(
            f"A cutover of {other.pipeline!r}, in the other direction, is open: it is {other.state}.",
            where=work.pipeline.pipeline,
            code="cutover.other_open",
            remedy=f"end it first: `lockstep cutover status`, `resume` or `abort` with {other.pipeline}",
        )


def _taken_up(work: Work, lease: Lease) -> Cutover:
    _require_no_other(work)
    known = work.meta.latest_cutover(work.pipeline.pipeline)
    if known is not None and known.state in OPEN:
        return known
    over = [state for state in State if state not in OPEN]
    now = work.meta.now_us()
    identity = hashlib.sha256(f"{work.pipeline.pipeline}/{now}".encode()).hexdigest()[:16]
    new = Cutover(identity, work.pipeline.pipeline, work.way_back.name, State.PREPARED, details={"back": work.back})
    return work.meta.begin_cutover(lease, new, over)


def _chase(moving: _Moving, provers: Sequence[Prover], since: Mapping[str, Since]) -> dict[str, Since]:
    """Until runs are quick; then the keys that changed since the verification are compared, so that few are left."""
    work, quick = moving.work, 0
    while quick < QUICK_RUNS:
        quick = quick + 1 if _caught_up(work) <= work.options.max_lag_s else 0
    found = dict(since)
    for _ in range(_ROUNDS):
        began_s = time.monotonic()
        for target, one in zip(work.targets, provers, strict=True):
            proof = one.prove(found[target.name], still=False)
            unclear = f"; {proof.unsettled:,} are not settled" if proof.unsettled else ""
            work.told(f"{target.name}: {sum(proof.keys.values()):,} keys that changed were compared{unclear}")
            found[target.name] = proof.since
        took_s = time.monotonic() - began_s
        _caught_up(work)  # while keys were compared, others have changed: the stop is to find few of them
        if took_s <= work.options.max_lag_s:
            break
    return found


def _caught_up(work: Work) -> float:
    """A run, tried until it succeeds; the seconds it took, inf for one that had to be tried again."""
    tried_again = False
    while True:
        try:
            done = work.hands.catch_up()
        except RetryLater as error:
            work.told(f"tried again: {error}")
            time.sleep(1)
            tried_again = True
            continue
        work.told(f"a run of {done.staged:,} changes took {done.took_s:.1f} s")
        return math.inf if tried_again else done.took_s


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


def _held(
    moving: _Moving, provers: Sequence[Prover], tables: Tables, since: Mapping[str, Since], *, rehearse: bool
) -> bool:
    """From STOPPED to ARMED; a rehearsal to PROVED, and back to CHASE. Whether it is armed. Undoes itself, whatever
    stops it; raises what did."""
    work, options = moving.work, moving.work.options
    clock = _Clock(options.budget_s)
    try:
        moving.to(State.STOPPED)
        if options.stop_with is not None:
            hooks.stop(options.stop_with, _told(work, moving.cutover, hooks.STOP), options.hook_s, work.environ)
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
            moving.to(State.PROVED, proofs=[_document(one) for one in proofs])
            if rehearse:
                locks.release()
                clock.end()
                moving.to(State.PROVED, stopped_s=round(clock.stopped_s, 3))
                moving.undo("it was a rehearsal")
                return False
            _arm(moving, tables)
            clock.require("closing the gates")
            with closing(tables.sources, _message(work), work.environ) as closed:
                locks.release()
                closed()
        clock.end()
        work.hands.extract()
        slipped = sum(one.rows for source, place in reached.items() for one in _since(work, source, place))
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


def _since(work: Work, source: str, place: Position) -> list[BatchRow]:
    """Batches that go beyond a place, whoever has staged them."""
    return [one for one in work.meta.batches(source) if one.end > place]


def _document(proof: Proof) -> dict[str, Any]:
    return {
        "keys": dict(proof.keys),
        "counted": list(proof.counted),
        "at": {source: str(place) for source, place in proof.since.places.items()},
    }


def _arm(moving: _Moving, tables: Tables) -> None:
    """No write of this pipeline reaches the target any more, and then the way back begins."""
    work = moving.work
    moving.to(State.PROVED, arming=True)
    note = f"switched by the cutover {moving.cutover.cutover_id}"
    for target in work.targets:
        raise_fences(target, [name for name in tables.logical if target.table(name) is not None], note)
    work.way_back.arm()
    moving.require()


def _message(work: Work) -> str:
    return f"moved by Lockstep ({work.pipeline.pipeline}): write to the new tables"


def _close(work: Work, places: Places) -> None:
    with closing(places, _message(work), work.environ) as closed:
        closed()


def _switched(moving: _Moving, tables: Tables) -> Cutover:
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
            command, _told(work, moving.cutover, hooks.SWITCH), work.options.hook_s, work.environ
        )
    except Refused:
        _not_switched(moving, "the command could not be run")
        raise
    moving.to(State.SWITCHING, answer=str(answer), said=said)
    if answer is Answer.UNKNOWN:
        raise unknown(moving.cutover, _why_unknown(moving.cutover))
    return answered(moving, answer)


def _answered_before(moving: _Moving) -> Cutover:
    """From an answer that was written down. Raises DataAtRisk (cutover.unknown) if there is none."""
    details = moving.cutover.details
    answer = Answer(details.get("answer", Answer.UNKNOWN))
    if answer is Answer.UNKNOWN:
        raise unknown(moving.cutover, _why_unknown(moving.cutover))
    return answered(moving, answer)


def _why_unknown(cutover: Cutover) -> str:
    said = cutover.details.get("said")
    return f"the command ended with {said}" if said else "the process that called the command is gone"


def answered(moving: _Moving, answer: Answer) -> Cutover:
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


def _not_switched(moving: _Moving, why: str) -> None:
    undo(moving.work, moving.cutover)
    moving.to(State.ROLLED_BACK, error=why)


def _finished(moving: _Moving) -> Cutover:
    """The way back is let in. Safe to repeat."""
    work = moving.work
    if moving.state is State.SWITCHED:
        pipeline = work.way_back.arm()
        logical = moving.cutover.details["tables"]["logical"]
        for target in pipeline.targets:
            lower_fences(target, [name for name in logical if target.table(name) is not None])
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
    known = _open(work)
    if answer is None:
        return run(work, lease)
    if known.state != State.SWITCHING:
        raise UsageError(
            f"The cutover is {known.state}: nobody asks what the hook has done.",
            where=work.pipeline.pipeline,
            code="cutover.no_question",
            remedy="leave --answer out",
        )
    return answered(_Moving(work, lease, known), answer)


def abort(work: Work, lease: Lease) -> Cutover:
    """Ends the cutover that is open; nothing has happened then. Raises UsageError (cutover.nothing_open), Refused
    (cutover.switched), DataAtRisk (cutover.unknown)."""
    known = work.meta.latest_cutover(work.pipeline.pipeline)
    if known is not None and known.state == State.ROLLED_BACK:
        undo(work, known)  # a process that had lost it may have been at it for a while longer
        return known
    moving = _Moving(work, lease, _open(work))
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
    _require_no_other(work)
    moving = _Moving(work, lease, _open(work))
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


def _open(work: Work) -> Cutover:
    known = work.meta.latest_cutover(work.pipeline.pipeline)
    if known is None or known.state not in OPEN:
        raise UsageError(
            f"No cutover of {work.pipeline.pipeline!r} is open.",
            where=work.pipeline.pipeline,
            code="cutover.nothing_open",
            remedy="begin one by `lockstep cutover run`",
        )
    return known
