"""`lockstep` as a process of its own, forked from one that has loaded the program (forked.py)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    """code, stdout and stderr of a command; `document` is stdout as JSON."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def error(self) -> dict[str, str]:
        return dict(self.document["error"])


class ForkedCommands:
    """Runs one command after the other.

    path: folders that Python looks into before all others.
    """

    def __init__(self, *path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forked.py"))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            pass

    def run(self, *arguments: object, directory: Path, environ: Mapping[str, str]) -> Done:
        """`lockstep ARGUMENTS` to its end. It leaves `.stdout` and `.stderr` in `directory`."""
        out, err = directory / ".stdout", directory / ".stderr"
        code = self._ask({**self._order(arguments, directory, environ), "out": str(out), "err": str(err)})
        return Done(code, out.read_text(), err.read_text())

    def start(self, *arguments: object, directory: Path, environ: Mapping[str, str], log: Path) -> Started:
        """`lockstep ARGUMENTS`, which goes on beside others. log: the file for what it prints."""
        order = self._order(arguments, directory, environ)
        return Started(self, self._ask({**order, "out": str(log), "err": str(log), "started": True}), log)

    def _order(self, arguments: Sequence[object], directory: Path, environ: Mapping[str, str]) -> dict[str, Any]:
        return {
            "arguments": [str(argument) for argument in arguments],
            "directory": str(directory),
            "environ": dict(environ),
        }

    def _ask(self, order: Mapping[str, Any]) -> int:
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the process that forks the commands has ended"
        return int(answer)


@dataclass
class Started:
    """A command that was started. Until `kill` has returned, its process id belongs to nothing else."""

    _commands: ForkedCommands
    pid: int
    log: Path
    _code: int | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself."""
        if self._code is not None:
            return True
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z"

    @property
    def document(self) -> dict[str, Any]:
        """What it has answered with --json, after its notes."""
        text = self.log.read_text(errors="replace")
        answer = re.search(r"^{", text, re.MULTILINE)
        assert answer is not None, text
        found, _ = json.JSONDecoder().raw_decode(text, answer.start())
        assert isinstance(found, dict)
        return found

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def until(self, true: Callable[[], object]) -> None:
        """Waits for what happens before the command ends."""
        while not true():
            assert not self.ended, self.log.read_text(errors="replace")
            time.sleep(0.05)

    def wait(self, patience_s: float = 180) -> int:
        """Until it has ended by itself; its exit code."""
        end_s = time.monotonic() + patience_s
        while not self.ended:
            assert time.monotonic() < end_s, self.log.read_text(errors="replace")
            time.sleep(0.05)
        return self.kill()

    def kill(self) -> int:
        """kill -9. Its exit code: -9, or another one if it had ended before."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._code = self._commands._ask({"ended": self.pid})
        return self._code
