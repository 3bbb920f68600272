"""`lockstep` as a user calls it: a process of its own, in a directory of its own, against real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
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
    environ: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: object, code: int | None = 0) -> Done:
        """Runs `lockstep ARGUMENTS --json`; fails the test when it ends with another code than expected."""
        done = subprocess.run(
            self.command(*arguments, "--json"),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        if code is not None:
            assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return Done(done.returncode, done.stdout, done.stderr)

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), **self.environ}

    @staticmethod
    def command(*arguments: object) -> list[str]:
        return [sys.executable, "-m", "cdc_core.cli", *(str(one) for one in arguments)]


@pytest.fixture
def lockstep(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)
