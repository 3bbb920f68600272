"""How long writes are stopped, what for, and for how long they may be."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cdc_core.errors import RetryLater

log = logging.getLogger(__name__)


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
    """How long writes are stopped. Above the budget they continue, whatever this process is doing, until `decide`."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._began_s = time.monotonic()
        self._timer: threading.Timer | None = None
        self._alone = threading.Lock()
        self._releases: list[Callable[[], None]] = []
        self._over = self._decided = False
        self.laps = Laps()

    def begin(self, release: Callable[[], None]) -> None:
        """Writes are stopped from now on. release: lets them continue, from a thread of its own, when the budget is
        over."""
        self._began_s = time.monotonic()
        self._releases.append(release)
        self._timer = threading.Timer(self._budget_s, self._run_out)
        self._timer.daemon = True
        self._timer.start()

    def release_first(self, release: Callable[[], None]) -> None:
        """What else lets writes continue then, before the rest; now, if the budget is over already."""
        with self._alone:
            self._releases.insert(0, release)
            over = self._over
        if over:
            release()

    def _run_out(self) -> None:
        with self._alone:
            if self._decided:
                return
            self._over = True
            releases = list(self._releases)
        for release in releases:
            try:
                release()
            except Exception:  # the rest lets writes continue, and is not lost; `require` ends the attempt
                log.exception("not everything that stops writes was released")

    def end(self) -> None:
        """Nothing is released any more; what is being released is waited for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    def decide(self, next_step: str) -> None:
        """Nothing is released from now on, and nothing was. Raises as `require`."""
        self.require(next_step)
        with self._alone:
            self._decided = not self._over
        if not self._decided:
            raise self._too_long(next_step)
        self.end()

    @property
    def stopped_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._budget_s - self.stopped_s)

    def noted(self) -> dict[str, Any]:
        """The clock as the details of a cutover have it."""
        steps = {step: round(seconds, 3) for step, seconds in self.laps.until_now().items()}
        return {"stopped_s": round(self.stopped_s, 3), "stop_steps_s": steps}

    def require(self, next_step: str) -> None:
        """Raises RetryLater (cutover.too_slow)."""
        if self._over or self.stopped_s > self._budget_s:
            raise self._too_long(next_step)

    def _too_long(self, next_step: str) -> RetryLater:
        steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in self.laps.until_now().items())
        return RetryLater(
            f"Writes were stopped for {self.stopped_s:.1f} s, longer than cutover.budget_s ({self._budget_s:g}), "
            f"before {next_step}. So far: {steps}.",
            where=next_step,
            code="cutover.too_slow",
            remedy="find which step took long, and why, or raise the budget",
        )
