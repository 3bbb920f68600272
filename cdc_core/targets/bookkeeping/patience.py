"""How long a cutover waits for transactions of others, and what it does then."""

from __future__ import annotations

import time
from collections.abc import Callable

ROLLED_BACK_S = 2
"""How long a transaction that was ended may take to be rolled back."""


class Patience:
    """Seconds in which transactions under way may end by themselves.

    ending: ends some at a server, once, when they were waited for in vain; whether it has ended any.
    """

    def __init__(self, seconds: float, ending: Callable[[str], bool] = lambda reference: False) -> None:
        self._end_s = time.monotonic() + seconds
        self._ending = ending
        self._asked: set[str] = set()

    def is_over(self, reference: str) -> bool:
        """Whether nothing is left to wait for at a server. Transactions may be ended."""
        if time.monotonic() >= self._end_s and reference not in self._asked:
            self._asked.add(reference)
            if self._ending(reference):
                self._end_s = time.monotonic() + ROLLED_BACK_S
        return time.monotonic() >= self._end_s
