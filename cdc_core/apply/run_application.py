"""The Spark application that the tasks of one run share, although each task is a process of its own.

The first task that needs it starts it (spark_jobs/serve_run.py), in a session of its own; the tasks that follow find it
by its socket, if they run on the same machine as the same user. It takes one job at a time. It ends

    when the task whose job it does goes away, however that ends: the job ends with the task
    after a job that failed, after the run's last job, and when the run is over (`end`)
    when no task has come for `idle_s`
    when a task comes with other settings, logins or code.

A task that finds it busy waits about as long as a start takes, and then starts another one. Where none can be had,
`Unreachable` is raised before anything was ordered: the caller then submits the job by itself.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from cdc_core.apply.job_errors import error_of
from cdc_core.apply.jobs import SparkJob, application_of
from cdc_core.apply.run_slots import IDENTITY, MAX_SLOTS, Slot, locked, peer_is_this_user, remove_ended, slots, sweep
from cdc_core.apply.spark_application import end_group

log = logging.getLogger(__name__)

BEGUN, OTHER = b"begun\n", b"other\n"
"""Answers to an order: it is being carried out; it is for an application with another identity."""
_LOOK_S = 0.1
_BUSY_S = 10.0
"""How long to wait for a busy application before another one is started, which takes about as long."""
_LEAVE_S = 60.0
"""How long an application may take to answer or to end before it is killed."""
_OF_ONE_TASK = ("AIRFLOW_CTX_", "_AIRFLOW_", "__AIRFLOW_")
"""Prefixes of the variables that Airflow sets for one task: they do not make an application another one."""
_KEPT = 256 << 10
"""How much of a job's output is searched for the error that ended it."""


class Unreachable(Exception):
    """No application could be had; nothing was ordered."""


class RunApplication:
    """Runs jobs of a run in the application that its tasks share.

    folder: run_slots.run_folder of the run. command: the spark-submit command of a job, to which the application's own
    arguments are added. environ: of the application. idle_s: how long it waits for the next job. show: receives each
    line that it prints.
    """

    def __init__(
        self,
        folder: Path,
        *,
        command: Callable[[SparkJob], Sequence[str]],
        environ: Mapping[str, str],
        idle_s: float,
        show: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._command = command
        self._environ = {name: value for name, value in environ.items() if not name.startswith(_OF_ONE_TASK)}
        self._idle_s = idle_s
        self._show = show
        self._channel: socket.socket | None = None
        self._cancelled = False

    def submit(self, job: SparkJob, name: str, *, last: bool) -> None:
        """Run a job to its end. name: of the application. last: no job follows it, so that the application ends.

        Raises the error that the job reports, RetryLater (run.spark_ended), Unreachable.
        """
        if sys.platform != "linux":
            raise Unreachable("the processes at both ends of a socket are verified on Linux only")
        command = list(self._command(job.hosted_by(application_of("serve_run"), name)))
        order = {
            "identity": identity_of(command, self._environ),
            "job": Path(job.application).stem,
            "arguments": job.arguments,
            "last": last,
        }
        with ExitStack() as held:
            try:
                slot = held.enter_context(self._slot())
                output = held.enter_context(_Output(slot.output, self._show))
                self._channel = held.enter_context(self._ordered(slot, command, order, output))
            except OSError as error:
                raise Unreachable(f"{error.filename or self._folder}: {error.strerror or error}") from None
            status = self._status(self._channel, output)
        if status != 0:
            raise error_of(output.said, job=job.name, status=status, seen="the driver's output above")

    def cancel(self) -> None:
        """Ends a job that is being done, from a signal handler: `submit` then raises."""
        self._cancelled = True
        if self._channel is not None:
            with suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _slot(self) -> Iterator[Slot]:
        """A slot that nobody else uses, for the block."""
        busy_until = time.monotonic() + _BUSY_S
        while True:
            self._require_wanted()
            found = slots(self._folder)
            if time.monotonic() > busy_until:
                found += [Slot(self._folder, number) for number in range(len(found), MAX_SLOTS)]
            for slot in found:
                with slot.used() as held:
                    if held:
                        yield slot
                        return
            if len(found) >= MAX_SLOTS:
                raise Unreachable(f"all {MAX_SLOTS} applications of the run are busy")
            time.sleep(_LOOK_S)

    def _require_wanted(self) -> None:
        """Raises RetryLater (run.spark_ended) after `cancel`: nothing is to be submitted in another way."""
        if self._cancelled:
            raise error_of("", job="of the run", status=None, seen="the task was told to end")

    def _ordered(
        self, slot: Slot, command: Sequence[str], order: Mapping[str, object], output: _Output
    ) -> socket.socket:
        """The connection to an application that has begun with the order."""
        patience = time.monotonic() + _LEAVE_S
        while (alive := locked(slot.alive)) is None:
            self._require_wanted()
            answer, channel = _asked(slot, order)
            if channel is not None:
                log.info("the Spark application of the run takes the job")
                return channel
            if answer == OTHER:
                log.info("the Spark application of the run ends: settings, logins or code are not those it began with")
            if time.monotonic() > patience:
                _kill(slot)
                patience = time.monotonic() + _LEAVE_S
            output.show()
            time.sleep(_LOOK_S)
        process = self._started(slot, command, str(order["identity"]), alive, output)
        try:
            while process.poll() is None:
                self._require_wanted()
                _, channel = _asked(slot, order)
                if channel is not None:
                    return channel
                output.show()
                time.sleep(_LOOK_S)
        except BaseException:
            end_group(process)
            raise
        output.show(whole=True)
        raise Unreachable(f"it ended with status {process.returncode} before it took the job")

    def _started(
        self, slot: Slot, command: Sequence[str], identity: str, alive: int, output: _Output
    ) -> subprocess.Popen[bytes]:
        """A new application in the slot. alive: the lock that it inherits, which is closed here."""
        try:
            sweep(self._folder)
            slot.socket.unlink(missing_ok=True)
            output.clear()
            log.info("starting the Spark application of the run, which its next tasks use, too")
            with open(slot.output, "ab", opener=_private) as file:
                process = subprocess.Popen(
                    [*command, str(slot.folder), str(slot.number), str(self._idle_s)],
                    env={**self._environ, IDENTITY: identity},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    # Airflow ends a task's process group with the task; this process ends when its connection does.
                    start_new_session=True,
                    pass_fds=(alive,),
                )
            os.pwrite(alive, b"%d" % process.pid, 0)
        finally:
            os.close(alive)
        return process

    def _status(self, channel: socket.socket, output: _Output) -> int | None:
        """The exit status of the job that was ordered; None if the application ended without an answer."""
        answer = b""
        while not answer.endswith(b"\n"):
            output.show()
            try:
                received = channel.recv(64)
            except TimeoutError:
                continue
            except ConnectionError:
                received = b""
            if not received:
                break
            answer += received
        output.show(whole=True)
        output.clear()
        return int(answer) if answer.endswith(b"\n") else None


def end(folder: Path) -> None:
    """Ends the applications of a run that do no job. One that does a job belongs to the task that ordered it."""
    for slot in slots(folder):
        with slot.used() as held:
            if held and not remove_ended(slot):
                _asked(slot, {"identity": ""})


def identity_of(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """A digest of all that a job takes from its application: settings, environment with the logins, and code."""
    return sha256(json.dumps([list(command), sorted(environ.items()), _code()]).encode()).hexdigest()


def _code() -> list[tuple[str, int, int]]:
    """The files of the code that jobs import: path, size, time of change."""
    files: list[tuple[str, int, int]] = []
    for package in ("cdc_core", "spark_jobs", "lockstep_expectations"):
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            for path in sorted(Path(folder).rglob("*.py")):
                found = path.stat()
                files.append((str(path), found.st_size, found.st_mtime_ns))
    return files


def _asked(slot: Slot, order: Mapping[str, object]) -> tuple[bytes, socket.socket | None]:
    """The answer of the slot's application to an order, b"" if there is none; the connection once it has begun."""
    answer = b""
    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.settimeout(_LEAVE_S)
        channel.connect(str(slot.socket))
        if not peer_is_this_user(channel):
            raise Unreachable(f"{slot.socket} is answered by another user")
        channel.sendall(json.dumps(order).encode() + b"\n")
        while not answer.endswith(b"\n") and (received := channel.recv(1)):
            answer += received
        if answer == BEGUN:
            channel.settimeout(_LOOK_S)
            return answer, channel
    except OSError:
        answer = b""
    except BaseException:
        channel.close()
        raise
    channel.close()
    return answer, None


def _kill(slot: Slot) -> None:
    """Kills the application that holds the slot's lock: it neither answers nor ends."""
    pid = slot.pid()
    if pid is not None:
        log.warning("the Spark application of the run, process %d, does not answer: it is killed", pid)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


class _Output:
    """What an application prints, line by line, while a task uses it. said: the end of it."""

    def __init__(self, path: Path, show: Callable[[str], None]) -> None:
        self._file = open(path, "a+b", opener=_private)  # noqa: SIM115  closed by __exit__
        self._file.seek(0)
        self._show = show
        self._rest = b""
        self._said = b""

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    @property
    def said(self) -> str:
        return self._said.decode(errors="replace")

    def show(self, *, whole: bool = False) -> None:
        """Shows the lines that are complete; whole: the last one, too."""
        while read := self._file.read(1 << 16):
            self._said = (self._said + read)[-_KEPT:]
            *lines, self._rest = (self._rest + read).split(b"\n")
            for line in lines:
                self._show(line.decode(errors="replace").rstrip())
        if whole and self._rest:
            self._show(self._rest.decode(errors="replace"))
            self._rest = b""

    def clear(self) -> None:
        """Empties the file: what is in it has been shown, or is of an application that has ended."""
        self._file.truncate(0)
        self._file.seek(0)
