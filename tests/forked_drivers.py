"""Drivers of runs, each forked from one process that has loaded the libraries of their jobs: loading them takes longer
than most runs do, and Great Expectations most of it. It loads them when the first driver is asked for.

A driver is a process of its own, in a session of its own, that does what `spark_jobs/run_jobs.py` does when it is
started. `install` makes a command start its drivers here. Orders and answers go through a Unix socket: a line of JSON,
then a line with the process id, then one with the code of its end.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ADDRESS = "LOCKSTEP_TEST_DRIVERS"
"""The variable that says to a command where the socket is. Empty: it starts its drivers by itself."""
_ROOT = Path(__file__).parents[1]


@contextmanager
def forked_drivers() -> Iterator[str]:
    """The value of ADDRESS, for the block."""
    with tempfile.TemporaryDirectory(prefix="drivers-", dir="/tmp") as folder:
        address = str(Path(folder) / "orders")
        process = subprocess.Popen(
            [sys.executable, __file__, address], env={**os.environ, "PYTHONPATH": str(_ROOT)}, stdout=subprocess.PIPE
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield address
            process.terminate()


class Driver:
    """As much of subprocess.Popen as an application needs."""

    def __init__(self, address: str, order: Mapping[str, Any]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._socket.sendall(json.dumps(order).encode() + b"\n")
        self._answers = self._socket.makefile("rb")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._socket], [], [], 0)[0]:
            self.returncode = int(self._answers.readline())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._socket], [], [], timeout)[0]:
            assert timeout is not None
            raise subprocess.TimeoutExpired("driver", timeout)
        found = self.poll()
        assert found is not None
        return found


def install(address: str) -> None:
    """In this process, drivers are forked."""
    from cdc_core.apply import spark_application

    def started(command: Sequence[str], *, env: Mapping[str, str], stdout: Any, **rest: Any) -> Any:
        if command[0] != sys.executable:  # spark-submit
            return subprocess.Popen(command, env=env, stdout=stdout, **rest)
        order = {"arguments": command[2:], "environ": dict(env), "directory": os.getcwd(), "output": stdout.name}
        return Driver(address, order)

    spark_application.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=started, STDOUT=subprocess.STDOUT, TimeoutExpired=subprocess.TimeoutExpired
    )


def _become(order: Mapping[str, Any]) -> None:
    from spark_jobs.run_jobs import host

    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environ"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)
    status = host(order["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _keep(channel: socket.socket) -> None:
    """Starts one driver, and says how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with channel.makefile("rb") as orders:
        order = json.loads(orders.readline())
    child = os.fork()
    if child == 0:
        channel.close()
        os.setsid()
        _become(order)
    channel.sendall(b"%d\n" % child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ConnectionError):  # the command was killed
        channel.sendall(b"%d\n" % code)


def _load() -> None:
    from spark_jobs.run_jobs import import_jobs

    import_jobs()
    import spark_jobs.suite_runner  # noqa: F401

    gc.freeze()  # else the collector of each child would copy this process's memory by writing to it
    assert threading.active_count() == 1, f"a fork would lose threads: {threading.enumerate()}"


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("ready", flush=True)
        loaded = False
        while True:
            accepted, _ = listener.accept()
            if not loaded:
                _load()
                loaded = True
            if os.fork() == 0:
                listener.close()
                try:
                    _keep(accepted)
                finally:
                    os._exit(0)
            accepted.close()
