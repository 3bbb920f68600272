"""How long writes are stopped, what for, and for how long they may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from cdc_core.cutover.locks import Locks
from cdc_core.errors import RetryLater


class Laps:
    """Seconds of each step of some work; a step ends where the next one begins. A step that comes again is added."""

    def __init__(self) -> None:
        self._took_s: dict[str, float] = {}
        self._step, self._began_s = "", time.monotonic()

    def begin(self, step: str) -> None:
        """step: "" for what is not measured here."""
        now_s = time.monotonic()
        self.add({self._step: now_s - self._began_s})
        self._step, self._began_s = step, now_s

    def add(self, took_s: Mapping[str, float]) -> None:
        for step, seconds in took_s.items():
            if step:
                self._took_s[step] = self._took_s.get(step, 0.0) + seconds

    def until_now(self) -> dict[str, float]:
        """In the order in which the steps were begun."""
        self.begin(self._step)
        return dict(self._took_s)


class Clock:
    """How long writes are stopped. Above the budget, the locks are released, whatever this process is doing."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._began_s = time.monotonic()
        self._timer: threading.Timer | None = None
        self.laps = Laps()

    def begin(self) -> None:
        self._began_s = time.monotonic()

    def watch(self, locks: Locks) -> None:
        self._timer = threading.Timer(max(0.0, self._budget_s - self.stopped_s), locks.release)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def stopped_s(self) -> float:
        return time.monotonic() - self._began_s

    def noted(self) -> dict[str, Any]:
        """For the details of a cutover."""
        steps = {step: round(seconds, 3) for step, seconds in self.laps.until_now().items()}
        return {"stopped_s": round(self.stopped_s, 3), "stop_steps_s": steps}

    def require(self, next_step: str) -> None:
        """Raises RetryLater (cutover.over_budget)."""
        if self.stopped_s > self._budget_s:
            steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in self.laps.until_now().items())
            raise RetryLater(
                f"Writes were stopped for {self.stopped_s:.1f} s, longer than cutover.budget_s ({self._budget_s:g}), "
                f"and {next_step} was still to be done. So far: {steps}.",
                where=next_step,
                code="cutover.over_budget",
                remedy="see which step took long, and why, or raise the budget",
            )
