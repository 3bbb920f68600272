"""When to reopen a lost connection: after growing pauses, within a budget that only progress renews.

No I/O and no sleep here. It must keep true that a position at which the connection is lost again and again uses up the
budget, however well each connection begins.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


class Backoff:
    """budget_s: from the first loss on, until the stream gets further than ever before, or has lived this long."""

    def __init__(
        self,
        budget_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._budget_s = budget_s
        self._clock = clock
        self._chance = chance
        self._lost_s: float | None = None
        self._alive_s = 0.0
        self._attempts = 0
        self._furthest = (0, 0)

    def pause_s(self) -> float | None:
        """After a loss: how long to wait; None when the budget is used up."""
        now_s = self._clock()
        if self._lost_s is None:
            self._lost_s = now_s
        self._alive_s = 0.0
        pause_s = min(FIRST_PAUSE_S * 2 ** min(self._attempts, 16), LONGEST_PAUSE_S) * (0.5 + self._chance() / 2)
        self._attempts += 1
        return pause_s if now_s - self._lost_s + pause_s <= self._budget_s else None

    def reached(self, file: int, offset: int) -> None:
        """The stream is alive and has reached this position."""
        place = (file, offset)
        if self._lost_s is None:
            self._furthest = max(self._furthest, place)
            return
        now_s = self._clock()
        self._alive_s = self._alive_s or now_s
        if place > self._furthest or now_s - self._alive_s >= self._budget_s:
            self._furthest = max(self._furthest, place)
            self._lost_s = None
            self._attempts = 0
