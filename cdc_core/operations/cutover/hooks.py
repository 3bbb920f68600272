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
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import IO

from cdc_core.errors import Refused, RetryLater

log = logging.getLogger(__name__)

STOP, RELEASE, SWITCH = "stop", "release", "switch"
NOT_SWITCHED = 3
_SHOWN = 300
_READ_BYTES = 4096


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


def require_callable(command: str) -> None:
    """Looks for a command as a call would, and does not call it. Raises Refused (hook.missing)."""
    try:
        (program, *_) = shlex.split(command)
    except ValueError as error:  # a quotation mark without another one, or nothing
        raise _not_run(str(error), "cutover.switch_with, cutover.stop_with") from None
    if shutil.which(program, path=os.environ.get("PATH")) is None:
        raise _not_run(f"there is no program {program}", "cutover.switch_with, cutover.stop_with")


def _shortened(said: str) -> str:
    return " ".join(said.split())[-_SHOWN:]


def _ended(code: int | None) -> str:
    return "no answer in time" if code is None else f"code {code}"


def _run(command: str, told: Mapping[str, str], timeout_s: float) -> tuple[int | None, str]:
    """The code of its end, None if it had to be ended, and what it said last."""
    told = {**told, "LOCKSTEP_CUTOVER_TIMEOUT_S": f"{timeout_s:.1f}"}
    # A file, and not a pipe, which would not end before what the command leaves running, such as a proxy.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                shlex.split(command),
                env={**os.environ, **told},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except (OSError, ValueError, IndexError) as error:
            where = f"cutover.{'switch' if told['LOCKSTEP_CUTOVER_PHASE'] == SWITCH else 'stop'}_with"
            raise _not_run(getattr(error, "strerror", None) or str(error), where) from None
        code: int | None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _killed(process)
            code = None
        except BaseException:  # a signal
            if told["LOCKSTEP_CUTOVER_PHASE"] != SWITCH:  # what stops the application must not do so after its release
                _killed(process)
            raise
        said = _last_said(output)
    log.info("%s: %s: %s", told["LOCKSTEP_CUTOVER_PHASE"], _ended(code), said)
    return code, said


def _not_run(why: str, where: str) -> Refused:
    return Refused(
        f"The command cannot be run: {why}.",
        where=where,
        code="hook.missing",
        remedy="give the path of a program and its arguments in one text",
    )


def _last_said(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - _READ_BYTES))
    return _shortened(output.read(_READ_BYTES).decode("utf-8", "replace"))


def _killed(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
