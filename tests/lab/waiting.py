"""For what a server or another process does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 90
"""On a machine that does much else."""


def wait_until(reached: Callable[[], object], *, pause_s: float = 0.05) -> None:
    """Asks again and again; fails once PATIENCE_S have passed."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < give_up_s, "still not so"
        time.sleep(pause_s)
