"""What only informs (estimates, progress, metrics) never ends what works: all of it runs within `informing`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def informing(what: str) -> Iterator[None]:
    """A block, or a function as a decorator, whose error is a warning in the log; a function then returns None."""
    try:
        yield
    except Exception as error:
        log.warning("%s is unknown (%s: %s); nothing else depends on it", what, type(error).__name__, error)
        log.debug("%s", what, exc_info=True)
