"""`lockstep` as a user calls it: a process of its own, in a directory of its own, against real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

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


@dataclass
class CommandLine:
    """A shell of a user: `environ` is what was exported in it."""

    directory: Path
    _commands: subprocess.Popen[str]
    environ: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: object, code: int | None = 0) -> Done:
        """Runs `lockstep ARGUMENTS --json`; fails the test when it ends with another code than expected."""
        out, err = self.directory / ".stdout", self.directory / ".stderr"
        order = {
            "arguments": [*(str(one) for one in arguments), "--json"],
            "directory": str(self.directory),
            "environ": self.environment,
            "out": str(out),
            "err": str(err),
        }
        assert self._commands.stdin is not None
        assert self._commands.stdout is not None
        print(json.dumps(order), file=self._commands.stdin, flush=True)
        answer = self._commands.stdout.readline()
        assert answer, "the process that forks the commands has ended"
        done = Done(int(answer), out.read_text(), err.read_text())
        if code is not None:
            assert done.code == code, f"{arguments}: {done.code}\n{done.out}\n{done.err}"
        return done

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), **self.environ}

    @staticmethod
    def command(*arguments: object) -> list[str]:
        return [sys.executable, "-m", "cdc_core.cli", *(str(one) for one in arguments)]


@pytest.fixture(scope="session")
def commands() -> Iterator[subprocess.Popen[str]]:
    """forked.py, which runs one command per line."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forked.py"))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process


@pytest.fixture
def lockstep(tmp_path: Path, commands: subprocess.Popen[str]) -> CommandLine:
    return CommandLine(tmp_path, commands)
