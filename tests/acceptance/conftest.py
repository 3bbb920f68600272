"""`lockstep` as a user calls it: a process of its own, in a directory of its own, against real servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.forked_commands import ROOT, Done, ForkedCommands


@dataclass
class CommandLine:
    """A shell of a user: `environ` is what was exported in it."""

    directory: Path
    _commands: ForkedCommands
    environ: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: object, code: int | None = 0) -> Done:
        """Runs `lockstep ARGUMENTS --json`; fails the test when it ends with another code than expected."""
        done = self._commands.run(*arguments, "--json", directory=self.directory, environ=self.environment)
        if code is not None:
            assert done.code == code, f"{arguments}: {done.code}\n{done.out}\n{done.err}"
        return done

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), **self.environ}

    @staticmethod
    def command(*arguments: object) -> list[str]:
        return [sys.executable, "-m", "cdc_core.cli", *(str(one) for one in arguments)]


@pytest.fixture
def lockstep(tmp_path: Path, commands: ForkedCommands) -> CommandLine:
    return CommandLine(tmp_path, commands)
