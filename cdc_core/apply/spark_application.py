"""One Spark application for all jobs of a run: Spark starts once, instead of once for each job.

The application is spark_jobs/run_jobs.py. Its driver connects to a Unix socket of this process, is sent one job at a
time, and answers each with the job's exit status. It ends when this process closes the socket, or ends itself. After a
job that failed, the application ends: the next job gets a new one.

spark-submit starts a JVM, and the JVM the driver. A driver that may do all jobs itself (spark.driver_rows) is started
alone: the JVM comes with the first job that needs Spark, below the driver, and ends with it. For a Spark Connect
endpoint there is no JVM at all.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cdc_core.apply.job_errors import error_of
from cdc_core.apply.jobs import REMOTE, SparkJob, application_of, is_local, is_remote
from cdc_core.errors import Refused

_LOOK_S = 0.1
"""While an answer is awaited, how often to look whether spark-submit still runs."""
_SHORT = "/tmp"
"""The path of a Unix socket has at most 107 bytes (unix(7)); TMPDIR may be any."""
_TERMINATE_S = 2.0
"""How long spark-submit may take to end by SIGTERM before it is killed."""
_LEAVE_S = 60.0
"""The time an application has for its own end once no job is left."""


class SparkApplication:
    """Runs Spark jobs one after the other, in one application as long as their settings are the same.

    name: of the application. output: the file that receives its output. environ: of its driver. driver_first: the JVM
    is started when it is needed. local: whether its executors are on this machine. A context manager: leaving it ends
    the application.
    """

    def __init__(
        self, name: str, *, master: str, output: Path, environ: Mapping[str, str], driver_first: bool = False
    ) -> None:
        self._name = name
        self._driver_first = driver_first
        self._master = master
        self.local = is_local(master)
        self._output = output
        # spark-submit finds its home only when it is called by name, with the environment's bin on the path.
        self._bin = str(Path(sys.executable).parent)
        self._environ = {**environ, "PATH": f"{self._bin}{os.pathsep}{environ.get('PATH', '')}"}
        if is_remote(master):
            self._environ[REMOTE] = master
        self._driver: _Driver | None = None
        self._settings: object = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def start_ahead(self, job: SparkJob) -> None:
        """Starts a driver that comes first, for jobs with the settings of this one, and does not wait for it: it loads
        its libraries meanwhile. Whether that went well is seen by the first job. Raises Refused (run.no_spark_submit).
        """
        if self._driver_first and self._driver is None:
            self._driver, self._settings = self._start(job), _settings(job)

    def submit(self, job: SparkJob) -> None:
        """Run a job to its end.

        Raises the error that the job reports, or RetryLater (run.spark_ended), Refused (run.no_spark_submit).
        """
        if self._settings != _settings(job):
            self._end()
        if self._driver is None:
            self._driver, self._settings = self._start(job), _settings(job)
        printed = self._printed() if self._driver.has_run else self._driver.printed
        try:
            status = self._driver.run(job)
        except BaseException:
            self._driver.kill()
            raise
        if status == 0:
            return
        self._end()
        with self._output.open("rb") as file:
            file.seek(printed)
            said = file.read().decode(errors="replace")
        raise error_of(said, job=job.name, status=status, seen=str(self._output))

    def _printed(self) -> int:
        return self._output.stat().st_size if self._output.exists() else 0

    @property
    def warm(self) -> bool:
        """Whether a driver has done a job, so that the next one begins at once."""
        return self._driver is not None and self._driver.has_run

    def forget_output(self, above: int) -> None:
        """Empties the file of the output, between two jobs, if it has more bytes."""
        if self._printed() > above:
            os.truncate(self._output, 0)

    def _end(self) -> None:
        if self._driver is not None:
            self._driver.end()
            if not self._driver.has_run:  # nothing refers to what it has printed
                os.truncate(self._output, self._driver.printed)
                if not self._driver.printed:
                    self._output.unlink()
        self._driver = self._settings = None

    def _start(self, job: SparkJob) -> _Driver:
        """An application with the settings of a job."""
        with ExitStack() as entrance:
            private = entrance.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-", dir=_SHORT))
            listener = entrance.enter_context(socket.socket(socket.AF_UNIX))
            address = str(Path(private) / "jobs")
            listener.bind(address)
            listener.listen(1)
            listener.settimeout(_LOOK_S)
            host = job.hosted_by(application_of("run_jobs"), self._name, address, str(self._output))
            command, variables = (
                host.driver(self._master) if self._driver_first else (host.command(self._master), dict[str, str]())
            )
            printed = self._printed()
            with self._output.open("ab") as file:
                try:
                    process = subprocess.Popen(
                        command,
                        env=self._environ | variables,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # Ctrl-C is for the command, which ends its application itself
                    )
                except OSError as error:
                    raise Refused(
                        f"Cannot run spark-submit: {error.strerror}.",
                        where=self._bin,
                        code="run.no_spark_submit",
                        remedy="install pyspark in this Python (`make setup`), and Java 17",
                    ) from None
            return _Driver(process, printed, listener, entrance.pop_all())


def _settings(job: SparkJob) -> object:
    return job.conf, job.jars, job.packages, job.excluded


@dataclass(slots=True)
class _Driver:
    """An application's driver, as its submitter sees it.

    printed: how many bytes the output had before it. listener: where it connects; `entrance` closes and removes that.
    has_run: whether it was given a job. orders: None before that, and if the application ended before it connected.
    """

    process: subprocess.Popen[bytes]
    printed: int
    listener: socket.socket
    entrance: ExitStack
    has_run: bool = False
    orders: socket.socket | None = None

    def run(self, job: SparkJob) -> int | None:
        """The exit status of a job, or of an application that ended without an answer: None instead of 0."""
        if not self.has_run:
            self.has_run = True
            self.orders = self._accepted()
            self.entrance.close()
        if self.orders is not None:
            answer = b""
            with suppress(ConnectionError):
                order = {"job": Path(job.application).stem, "arguments": job.arguments}
                self.orders.sendall(json.dumps(order).encode() + b"\n")
                while received := self._received(self.orders):
                    answer += received
                    if answer.endswith(b"\n"):
                        return int(answer)
        return self.process.wait() or None

    def _accepted(self) -> socket.socket | None:
        """The driver's connection; None if the process ends before there is one."""
        while self.process.poll() is None:
            try:
                orders, _ = self.listener.accept()
            except TimeoutError:
                continue
            orders.settimeout(_LOOK_S)
            return orders
        return None

    def _received(self, orders: socket.socket) -> bytes:
        """The next bytes of an answer; b"" if none come any more."""
        while True:
            try:
                return orders.recv(64)
            except TimeoutError:
                if self.process.poll() is not None:
                    return b""

    def end(self) -> None:
        if self.has_run:
            self._leave()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_LEAVE_S)
                return
        self.kill()  # without a job, it may still be loading what nothing will use

    def kill(self) -> None:
        self._leave()
        end_group(self.process)

    def _leave(self) -> None:
        self.entrance.close()
        if self.orders is not None:
            self.orders.close()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a spark-submit that was started in a session of its own, with what it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATE_S)
            return
