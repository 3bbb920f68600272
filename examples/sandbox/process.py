"""One server process: started under its guard, waited for until it answers, ended by its own pid."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.sandbox.cache import SandboxError

_GUARD = Path(__file__).with_name("guard.py")
HOST = "127.0.0.1"
LOG = "server.log"
"""What a server prints, in its directory."""
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
# A port is free when we look and may be taken when the server binds it: then another one is tried.
_PORT_ATTEMPTS = 5


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody holds at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Directory:
    """Where a server keeps everything: the given folder, which stays, or a temporary one, which goes with it."""

    def __init__(self, given: Path | str | None, name: str) -> None:
        self.temporary = given is None
        if given is None:
            self.path = Path(tempfile.mkdtemp(prefix=f"lockstep-{name}-")).resolve()
        else:
            self.path = Path(given).resolve()
            self.path.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)


class ServerProcess:
    """A command that can be started, stopped, killed and started again; nothing of it survives this process."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        directory: Directory,
        ready: Callable[[], bool],
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._command = list(command)
        self._directory = directory
        self._log = directory.path / LOG
        self._ready = ready
        self._user = user
        self._stop_signal = stop_signal
        self._env = dict(env) if env is not None else None
        self._guard: subprocess.Popen[str] | None = None
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """The server's own pid (not the guard's), or None when it does not run."""
        return self._pid if self.running else None

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Returns when the server answers; SandboxError with the log's end when it does not come up."""
        if self.running:
            return
        remove = str(self._directory.path) if self._directory.temporary else "-"
        with self._log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), self._user or "-", remove, *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._directory.path,
                env=self._env,
                start_new_session=True,  # Ctrl-C in the terminal is the parent's to handle
            )
        assert self._guard.stdout is not None
        self._pid = int(self._guard.stdout.readline() or 0)
        self._guard.stdout.close()
        try:
            self._await_ready(timeout_s)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Asks it to end, and sends SIGKILL when that takes too long; a no-op when it does not run."""
        self._end(self._stop_signal, STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL: what a crash of the server leaves is on disk; returns when the process is gone."""
        self._end(signal.SIGKILL, STOP_TIMEOUT_S)

    def log_tail(self, lines: int = 15) -> str:
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return f"The last lines of {self._log}:\n" + "\n".join(text.splitlines()[-lines:])

    def _await_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not (self.running and self._ready()):
            if not self.running:
                raise SandboxError(f"{self._name} ended while starting.\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise SandboxError(f"{self._name} did not answer within {timeout_s:.0f} s.\n{self.log_tail()}")
            time.sleep(0.02)

    def _end(self, how: signal.Signals, timeout_s: float) -> None:
        guard = self._guard
        if guard is None:
            return
        assert guard.stdin is not None
        for order in (how, signal.SIGKILL):
            if guard.poll() is not None:
                break
            with suppress(BrokenPipeError, subprocess.TimeoutExpired):
                guard.stdin.write(chr(order))
                guard.stdin.flush()
                guard.wait(timeout_s)
        with suppress(BrokenPipeError):
            guard.stdin.close()
        guard.wait(timeout_s)
        self._guard = self._pid = None


def launch(place: Directory, process_on: Callable[[int], ServerProcess]) -> tuple[int, ServerProcess]:
    """Port and process of a server that answers; `process_on` makes it for a port. On failure the place is removed."""
    log = place.path / LOG
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        port = free_port()
        process = process_on(port)
        try:
            process.start()
            break
        except SandboxError:
            taken = log.exists() and "already in use" in log.read_text(errors="replace")
            if attempt == _PORT_ATTEMPTS or not taken:
                place.remove()
                raise
            log.unlink()
        except BaseException:
            place.remove()
            raise
    return port, process


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server. `with` stops it and removes its temporary folder."""

    _process: ServerProcess = field(repr=False)
    _directory: Directory = field(repr=False)

    @property
    def directory(self) -> Path:
        return self._directory.path

    @property
    def log(self) -> Path:
        return self.directory / LOG

    @property
    def pid(self) -> int | None:
        """The server's pid, None while it does not run."""
        return self._process.pid

    def stop(self) -> None:
        """Orderly shutdown; the data stay until the `with` block ends."""
        self._process.stop()

    def kill(self) -> None:
        """SIGKILL, as a crash; the data stay."""
        self._process.kill()

    def restart(self) -> None:
        """Stops it if it runs, and starts it again on the same port and data."""
        self._process.stop()
        self._process.start()

    def close(self) -> None:
        """Ends it and removes its temporary folder."""
        if self._directory.temporary:
            self._process.kill()
        else:
            self._process.stop()
        self._directory.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
