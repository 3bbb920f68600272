"""The state of a cutover as a document: what `lockstep cutover status --json` answers, and the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cdc_core import config
from cdc_core.errors import DataAtRisk
from cdc_core.meta import Cutover, Meta, Status
from cdc_core.meta.health import Level, Problem, standing
from cdc_core.meta.task_failures import RUN
from cdc_core.model.readable import counted, duration, moment
from cdc_core.operations.cutover.cutover_states import HELD, OPEN, State
from cdc_core.operations.cutover.hooks import Answer
from cdc_core.operations.cutover.valid_evidence import Summaries, ended_us, lacking
from cdc_core.operations.verify.modes import Mode

_SWITCHED = (State.SWITCHED, State.WATCH)
LATE_S = 60.0
"""A way back that is further behind is not ready."""


def cutover_document(meta: Meta, cutover: Cutover, options: config.CutoverOptions) -> dict[str, Any]:
    """options: of its pipeline."""
    details, now_us = cutover.details, meta.now_us()
    state = State(cutover.state)
    since_us = cutover.at_us(state) or cutover.updated_us
    stopped_us = cutover.at_us(State.STOPPED)
    return {
        "pipeline": cutover.pipeline,
        "cutover": cutover.cutover_id,
        "direction": "back" if details.get("back") else "there",
        "state": cutover.state,
        "open": state in OPEN,
        "in_state_s": round(max(0, now_us - since_us) / 1e6, 3),
        "steps": [{"state": name, "at": moment(at)} for name, at in cutover.steps],
        "stopping_s": round((now_us - stopped_us) / 1e6, 3) if state in HELD and stopped_us is not None else None,
        "stopped_s": details.get("stopped_s"),
        "stop_steps_s": dict(details.get("stop_steps_s", {})),
        "budget_s": options.budget_s,
        "findings": list(details.get("findings", ())),
        "proofs": list(details.get("proofs", ())),
        "answer": details.get("answer"),
        "said": details.get("said"),
        "unchecked": details.get("unchecked") or None,
        "slipped": details.get("slipped", 0),
        "last_error": cutover.error or None,
        "way_back": way_back_document(meta, cutover, options.evidence) if state in _SWITCHED else None,
    }


def left_alone(cutover: Cutover, *, stops: bool) -> Problem | None:
    """What a person must end: a cutover that no process is at, and that keeps an application from something.

    stops: whether the application was told to stop (cutover.stop_with).
    """
    state, answer, pipeline = State(cutover.state), cutover.details.get("answer"), cutover.pipeline
    armed = bool(cutover.details.get("arming"))
    since_us = (cutover.at_us(State.ARMED) or cutover.at_us(State.PROVED)) if armed else cutover.at_us(State.STOPPED)
    resume, asked = f"`lockstep cutover resume {pipeline}`", state is State.SWITCHING
    if state is State.SWITCHED or (asked and answer == Answer.SWITCHED):
        what, code = "the application is switched, but the way back may not write yet", "cutover.unchecked"
        remedy = f"{resume} finishes it"
    elif asked and answer != Answer.NOT_SWITCHED:
        what = "nobody knows whether the application is switched, and writes to the old tables fail"
        code = "cutover.unknown"
        remedy = f"look where the application writes; then {resume} `--answer switched`, or `--answer not-switched`"
    elif (asked or state in HELD) and (armed or stops):
        may = "writes to the old tables may fail" if armed else "the application may still be stopped"
        what, code = f"the application is not switched, not everything is undone, and {may}", "cutover.not_undone"
        remedy = f"`lockstep cutover abort {pipeline}`, as soon as the servers answer"
    else:
        return None
    return Problem(
        Level.FAILED,
        f"cutover {pipeline}",
        f"No process is moving it, and it is {state}: {what}.",
        where=f"cutover {cutover.cutover_id}",
        remedy=remedy,
        code=code,
        since_us=since_us or cutover.updated_us,
        kind=DataAtRisk,
    )


def way_back_document(meta: Meta, cutover: Cutover, oldest: str) -> dict[str, Any]:
    """Whether the application could go back now, from what the way back's runs and verifications have noted.

    oldest: the age above which a cutover back would verify every row first.
    """
    meta = meta.of(cutover.way_back)
    status, reads = meta.status.find(), cutover.details.get("starts")
    if reads:  # it may have led back from other tables before
        status = replace(status, sources=tuple(source for source in status.sources if source.source in reads))
    if not status.sources:
        said = f"way back: not ready: {cutover.way_back} has not run yet"
        return {"pipeline": cutover.way_back, "ready": False, "lag_s": None, "evidence_age_s": None, "said": said}
    behind_s, waiting = _behind(meta, status)
    lags_us = [source.lag_us for source in status.sources if source.lag_us is not None]
    known = len(lags_us) == len(status.sources)
    lag_s = max(behind_s, *(lag / 1e6 for lag in lags_us)) if known else None
    age_s, doubt = _proven(status, oldest, cutover.at_us(State.SWITCHED) or 0)
    runs = standing(status)
    problem = next((failure.what for failure in status.failures if failure.task != RUN or failure.subject in runs), "")
    ready = not doubt and not problem and lag_s is not None and lag_s < LATE_S
    why = [
        "lag unknown" if lag_s is None else f"lag {duration(lag_s)}",
        f"{counted(waiting, 'batch')} to apply" if waiting else "",
        "" if age_s is None else f"evidence {duration(age_s)} old",
        doubt,
        f"last error: {problem}" if problem else "",
    ]
    said = f"way back: {'ready' if ready else 'not ready'}: {', '.join(filter(None, why))}"
    return {"pipeline": cutover.way_back, "ready": ready, "lag_s": lag_s, "evidence_age_s": age_s, "said": said}


def _behind(meta: Meta, status: Status) -> tuple[float, int]:
    """For how many seconds the oldest batch that some target does not have has been staged, and how many there are."""
    view = meta.plans.find(
        "", [source.source for source in status.sources], [target.target for target in status.targets], None
    )
    waiting = {batch for batch_ids in view.pending.values() for batch in batch_ids}
    staged_us = [
        manifest.created_us for chain in view.chain.values() for manifest in chain if manifest.batch_id in waiting
    ]
    return max(0, status.now_us - min(staged_us, default=status.now_us)) / 1e6, len(waiting)


def _proven(status: Status, oldest: str, switched_us: int) -> tuple[float | None, str]:
    """The age of the evidence, in seconds: of the target that was verified first. And what speaks against it; "" for
    nothing. switched_us: as `since_us` in `lacking`."""
    evidence: dict[str, Summaries] = {target.target: {} for target in status.targets}
    evidence |= {verification.target: verification.evidence for verification in status.verifications}
    ended = [ended_us(summaries[Mode.ORDERED]) for summaries in evidence.values() if Mode.ORDERED in summaries]
    why = {
        target: lacking(summaries, oldest, status.now_us, since_us=switched_us)
        for target, summaries in evidence.items()
    }
    doubt = next(
        (f"{target}: {reason}" for target, reason in why.items() if reason), "" if evidence else "never verified"
    )
    return ((status.now_us - min(ended)) / 1e6 if ended else None), doubt


def expected_stop(earlier: Cutover | None) -> tuple[float | None, str]:
    """For how many seconds writes would be stopped, and how that is known, for people.

    earlier: the latest cutover or rehearsal of the pipeline.
    """
    steps = {} if earlier is None else earlier.details.get("stop_steps_s", {})
    if earlier is None or "ids" not in steps:  # none has come so far
        return None, "how long that takes is not known: rehearse it (lockstep cutover rehearse)"
    measured_s = float(earlier.details["stopped_s"])
    at = moment(earlier.updated_us)
    which = "cutover" if "gates" in steps else "rehearsal"
    return measured_s, f"the last {which} stopped them for {measured_s:.1f} s ({at})"


def clock_line(document: Mapping[str, Any]) -> str:
    """How long writes are, or were, stopped, and what for, for people; "" if they were not."""
    budget = f"of at most {document['budget_s']:g} s"
    if document["stopping_s"] is not None:
        return f"writes have been stopped for {document['stopping_s']:.1f} s {budget}"
    if document["stopped_s"] is None:
        return ""
    steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in document["stop_steps_s"].items())
    return f"writes were stopped for {document['stopped_s']:.1f} s {budget}{f' ({steps})' if steps else ''}"
