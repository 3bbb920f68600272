"""Runs a command of the user's. What it leaves running, such as a proxy, is neither waited for nor ended; the command
itself ends with this process."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import IO

from cdc_core.errors import Refused
from cdc_core.process.leaving import leave_if_told

_SHOWN = 300
_READ_BYTES = 1 << 16
_LOOKED_S = 0.2
_UNWOUND_S = 2.0
"""Less than this process has to end (process/leaving.py)."""


def require_callable(command: str, where: str) -> None:
    """Looks for a command as a call would, and does not call it. Raises Refused (hook.missing)."""
    try:
        (program, *_) = shlex.split(command)
    except ValueError as error:  # a quotation mark without another one, or nothing
        raise _not_run(str(error), where) from None
    if shutil.which(program, path=os.environ.get("PATH")) is None:
        raise _not_run(f"there is no executable program {program}", where)


def run_command(
    command: str,
    variables: Mapping[str, str],
    where: str,
    *,
    timeout_s: float | None = None,
    outlives_signals: bool = False,
    secrets: Iterable[str] = (),
) -> tuple[int | None, str]:
    """The code of its end, None if it had to be ended after the timeout, and what it said last, without the secrets.

    outlives_signals: but it does not end when this process is told to. Raises Refused (hook.missing).
    """
    # A file, and not a pipe, which would not end before what the command leaves running.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                shlex.split(command),
                env={**os.environ, **variables},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except (OSError, ValueError, IndexError) as error:
            raise _not_run(getattr(error, "strerror", None) or str(error), where) from None
        try:
            code = _waited(process, timeout_s)
        except BaseException:  # this process was told to end
            if not outlives_signals:
                _end(process)
            raise
        return code, _last_said(output, secrets)


def _waited(process: subprocess.Popen[bytes], timeout_s: float | None) -> int | None:
    """In any thread: only the main one is interrupted by a signal."""
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            return process.wait(max(0.0, min(_LOOKED_S, until_s - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= until_s:
                _kill(process)
                return None
            leave_if_told()


def _not_run(why: str, where: str) -> Refused:
    return Refused(
        f"The command cannot be run: {why}.",
        where=where,
        code="hook.missing",
        remedy="give the path of a program and its arguments in one text, and make it executable (chmod +x)",
    )


def _last_said(output: IO[bytes], secrets: Iterable[str]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - _READ_BYTES))
    said = output.read(_READ_BYTES).decode("utf-8", "replace")
    for secret in filter(None, secrets):
        said = said.replace(secret, "***")
    return " ".join(said.split())[-_SHOWN:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """It may remove what it would leave, such as a file with a password."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_UNWOUND_S)
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
