"""The state of a cutover as a document: what `lockstep cutover status --json` answers, and the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdc_core.cli.output import duration, moment
from cdc_core.cutover.states import HELD, OPEN, State
from cdc_core.meta import Cutover, Meta
from cdc_core.windows import parse_moment, to_us
from cdc_core.words import counted

LATE_S = 60.0
"""A way back that is further behind is not ready."""


def cutover_document(meta: Meta, found: Cutover, budget_s: float) -> dict[str, Any]:
    """budget_s: cutover.budget_s of its pipeline."""
    details, now_us = found.details, meta.now_us()
    state = State(found.state)
    since_us = found.at_us(state) or found.updated_us
    stopped_us = found.at_us(State.STOPPED)
    return {
        "pipeline": found.pipeline,
        "cutover": found.cutover_id,
        "direction": "back" if details.get("back") else "there",
        "state": found.state,
        "open": state in OPEN,
        "in_state_s": round(max(0, now_us - since_us) / 1e6, 3),
        "steps": [{"state": name, "at": moment(at)} for name, at in found.steps],
        "stopping_s": round((now_us - stopped_us) / 1e6, 3) if state in HELD and stopped_us is not None else None,
        "stopped_s": details.get("stopped_s"),
        "stop_steps_s": dict(details.get("stop_steps_s", {})),
        "budget_s": budget_s,
        "findings": list(details.get("findings", ())),
        "proofs": list(details.get("proofs", ())),
        "answer": details.get("answer"),
        "said": details.get("said"),
        "unchecked": details.get("unchecked") or None,
        "slipped": details.get("slipped", 0),
        "last_error": found.error or None,
        "way_back": way_back_document(meta, found) if state in (State.SWITCHED, State.WATCH) else None,
    }


def way_back_document(meta: Meta, found: Cutover) -> dict[str, Any]:
    """Whether the application could go back now, from what the way back's runs and verifications have noted."""
    status = meta.status(found.way_back)
    if not status.sources:
        said = f"way back: not ready: {found.way_back} has not run yet"
        return {"pipeline": found.way_back, "ready": False, "lag_s": None, "evidence_age_s": None, "said": said}
    lag_s = max(one.lag_us for one in status.sources) / 1e6
    pending = sum(one.pending.batches for one in status.targets)
    ordered = [one.evidence["ordered"] for one in status.verifications if "ordered" in one.evidence]
    newest = max(ordered, key=lambda one: str(one["ended"]), default=None)
    age_s = None if newest is None else (status.now_us - to_us(parse_moment(newest["ended"]))) / 1e6
    equal = newest is not None and newest["equal"] is True
    problem = status.failures[0].what if status.failures else ""
    ready = equal and not problem and lag_s < LATE_S
    why = [
        f"lag {duration(lag_s)}",
        f"{counted(pending, 'batch')} to apply" if pending else "",
        "never verified" if age_s is None else f"evidence {duration(age_s)} old{'' if equal else ', not equal'}",
        f"last error: {problem}" if problem else "",
    ]
    said = f"way back: {'ready' if ready else 'not ready'}: {', '.join(filter(None, why))}"
    return {"pipeline": found.way_back, "ready": ready, "lag_s": lag_s, "evidence_age_s": age_s, "said": said}


def clock_line(document: Mapping[str, Any]) -> str:
    """For how long writes are, or were, stopped, and what for; "" if they were not."""
    budget = f"of at most {document['budget_s']:g} s"
    if document["stopping_s"] is not None:
        return f"writes have been stopped for {document['stopping_s']:.1f} s {budget}"
    if document["stopped_s"] is None:
        return ""
    steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in document["stop_steps_s"].items())
    return f"writes were stopped for {document['stopped_s']:.1f} s {budget}{f' ({steps})' if steps else ''}"
