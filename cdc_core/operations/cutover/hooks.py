"""The commands of a user by which an application is stopped and switched (`cutover.stop_with`,
`cutover.switch_with`).

A command is called with these variables in its environment:

    LOCKSTEP_CUTOVER_PHASE      stop, release or switch
    LOCKSTEP_CUTOVER_ID         the same in all calls of one cutover, so that a command can ignore a repeated call
    LOCKSTEP_CUTOVER_PIPELINE   the pipeline whose sources the application leaves
    LOCKSTEP_CUTOVER_TARGET     the target whose tables it moves to; several targets of a way back, with commas
    LOCKSTEP_CUTOVER_DIRECTION  there, or back
    LOCKSTEP_CUTOVER_TIMEOUT_S  how long this call may take

stop_with is called to stop the application's writes and, if the cutover is undone, to release them again: code 0 means
that it is done. switch_with is called once: code 0 means that the application was switched, and 3 that it certainly was
not. After any other code, or no end in time, only a person can find out what has happened.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import StrEnum

from cdc_core.errors import RetryLater
from cdc_core.operations.user_command import run_command

log = logging.getLogger(__name__)

STOP, RELEASE, SWITCH = "stop", "release", "switch"
NOT_SWITCHED = 3


class Answer(StrEnum):
    """What is known of the application."""

    SWITCHED = "switched"
    NOT_SWITCHED = "not-switched"
    UNKNOWN = "unknown"


def variables(phase: str, cutover_id: str, pipeline: str, targets: Iterable[str], *, back: bool) -> dict[str, str]:
    """What a command is told."""
    return {
        "LOCKSTEP_CUTOVER_PHASE": phase,
        "LOCKSTEP_CUTOVER_ID": cutover_id,
        "LOCKSTEP_CUTOVER_PIPELINE": pipeline,
        "LOCKSTEP_CUTOVER_TARGET": ",".join(targets),
        "LOCKSTEP_CUTOVER_DIRECTION": "back" if back else "there",
    }


def stop(command: str, told: Mapping[str, str], timeout_s: float) -> None:
    """Stops or releases the application's writes. Raises Refused (hook.missing), RetryLater (hook.failed)."""
    code, said = _run(command, told, timeout_s)
    if code != 0:
        raise RetryLater(
            f"cutover.stop_with ended with {_ended(code)} (phase {told['LOCKSTEP_CUTOVER_PHASE']}): {said}",
            where="cutover.stop_with",
            code="hook.failed",
            remedy="fix what it reports; the next attempt calls it again",
        )


def switch(command: str, told: Mapping[str, str], timeout_s: float) -> tuple[Answer, str]:
    """Switches the application; the answer, and what the command said. Raises Refused (hook.missing) for a command that
    could not be called at all."""
    code, said = _run(command, told, timeout_s)
    answer = {0: Answer.SWITCHED, NOT_SWITCHED: Answer.NOT_SWITCHED}.get(-1 if code is None else code, Answer.UNKNOWN)
    return answer, f"{_ended(code)}{f': {said}' if said else ''}"


def _ended(code: int | None) -> str:
    return "no answer in time" if code is None else f"code {code}"


def _run(command: str, told: Mapping[str, str], timeout_s: float) -> tuple[int | None, str]:
    """The code of its end, None if it had to be ended, and what it said last."""
    phase = told["LOCKSTEP_CUTOVER_PHASE"]
    code, said = run_command(
        command,
        {**told, "LOCKSTEP_CUTOVER_TIMEOUT_S": f"{timeout_s:.1f}"},
        f"cutover.{'switch' if phase == SWITCH else 'stop'}_with",
        timeout_s=timeout_s,
        # What stops the application must not do so after its release.
        outlives_signals=phase == SWITCH,
    )
    log.info("%s: %s: %s", phase, _ended(code), said)
    return code, said
