"""Estimates, progress and metrics only inform, and never end the work itself: all of them run within `informing`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def informing(what: str) -> Iterator[None]:
    """Turns an error of the block, or of the decorated function, into a warning in the log; the function then returns
    None."""
    try:
        yield
    except Exception as error:
        log.warning("%s is unknown (%s: %s); nothing else depends on it", what, type(error).__name__, error)
        log.debug("%s", what, exc_info=True)
