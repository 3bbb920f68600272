"""Tasks that hold leases, and release them when Airflow terminates them.

Airflow calls `on_kill` from its signal handler, and then lets the task continue, until it kills it 5 s later. So the
task leaves as a command does (cdc_core/process/leaving.py). But Python drops an exception that a handler raises while a
finalizer or a weak reference's callback runs, so a task that was told to leave begins nothing more either.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc_core.process.leaving import leave

if TYPE_CHECKING:
    from collections.abc import Iterator

TERMINATED = 143
"""The exit code of a process that SIGTERM has ended, as shells have it."""


class Leaving:
    """Mixed into an operator. Airflow also calls `on_kill` after a task's time is up: then nothing is raised."""

    _working = False
    _told = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """While the block runs, a termination leaves it. Raises SystemExit at once if there was one before."""
        self.leave_if_told()
        self._working = True
        try:
            yield
        finally:
            self._working = False

    def leave_if_told(self) -> None:
        if self._told:
            raise SystemExit(TERMINATED)

    def on_kill(self) -> None:
        self._told = True
        if self._working:
            leave(TERMINATED)
