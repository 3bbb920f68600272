"""Commands that run side by side and are killed at random moments."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Set
from contextlib import closing
from pathlib import Path

from tests.lab.forked_commands import ForkedCommands, Started


class Processes:
    """At most one process of each command. meta: the SQLite file meta.db of `folder`.

    ends: by command, the exit codes with which it may end by itself.
    """

    def __init__(
        self, commands: ForkedCommands, folder: Path, environ: dict[str, str], ends: Mapping[str, Set[int]]
    ) -> None:
        self._commands, self._folder, self._environ, self._ends = commands, folder, environ, ends
        self._running: dict[str, Started] = {}
        self._number = 0

    def start(self, command: str, *arguments: str) -> None:
        """Unless the command runs."""
        if command in self._running:
            return
        self._number += 1
        log = self._folder / f"{self._number}.log"
        self._running[command] = self._commands.start(
            command, *arguments, directory=self._folder, environ=self._environ, log=log
        )

    def kill(self, command: str) -> bool:
        """False if it does not run, or had ended by itself."""
        process = self._running.pop(command, None)
        if process is None:
            return False
        code = process.kill()
        if code == -9:
            self._end_lease(process.pid)
            return True
        assert code in self._ends[command], (command, code, process.log.read_text(errors="replace")[-4000:])
        return False

    def _end_lease(self, pid: int) -> None:
        """As if the lease had expired."""
        with closing(sqlite3.connect(self._folder / "meta.db", timeout=60)) as database, database:
            database.execute("UPDATE lease SET expires_us = 0 WHERE holder LIKE ?", (f"%:{pid}",))

    def close(self) -> None:
        for command in list(self._running):
            self.kill(command)
