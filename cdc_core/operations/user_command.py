"""Runs a command of the user's. What it leaves running, such as a proxy, is neither waited for nor ended."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import IO

from cdc_core.errors import Refused

_SHOWN = 300
_READ_BYTES = 1 << 16


def require_callable(command: str, where: str) -> None:
    """Looks for a command as a call would, and does not call it. Raises Refused (hook.missing)."""
    try:
        (program, *_) = shlex.split(command)
    except ValueError as error:  # a quotation mark without another one, or nothing
        raise _not_run(str(error), where) from None
    if shutil.which(program, path=os.environ.get("PATH")) is None:
        raise _not_run(f"there is no program {program}", where)


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

    outlives_signals: a signal that ends this process does not end the command. Raises Refused (hook.missing).
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
        code: int | None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            code = None
        except BaseException:  # a signal
            if not outlives_signals:
                _kill(process)
            raise
        return code, _last_said(output, secrets)


def _not_run(why: str, where: str) -> Refused:
    return Refused(
        f"The command cannot be run: {why}.",
        where=where,
        code="hook.missing",
        remedy="give the path of a program and its arguments in one text",
    )


def _last_said(output: IO[bytes], secrets: Iterable[str]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - _READ_BYTES))
    said = output.read(_READ_BYTES).decode("utf-8", "replace")
    for secret in filter(None, secrets):
        said = said.replace(secret, "***")
    return " ".join(said.split())[-_SHOWN:]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
