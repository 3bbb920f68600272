"""Repeats the work of a command until a signal comes."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cdc_core.cli.output import CliOutput
from cdc_core.errors import LockstepError

log = logging.getLogger(__name__)


def repeat(work: Callable[[], None], every_s: float, output: CliOutput) -> None:
    """Does the work again, `every_s` after it last began, and at once if it took longer. SIGINT or SIGTERM ends this
    after the work under way; a second one interrupts it.

    An error that another attempt may cure is said, and the work is tried again when it is next due. Raises any other.
    """
    with _stopping() as stop:
        while not stop.is_set():
            due = time.monotonic() + every_s
            try:
                work()
            except LockstepError as error:
                if not error.retriable:
                    raise
                log.warning("tried again when next due: %s", error)
                output.note(f"tried again in {every_s:g} s: {error}")
            stop.wait(max(due - time.monotonic(), 0.0))


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Set by the first signal."""
    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    former = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number in signals:
            signal.signal(number, former[number])

    def received(number: int, frame: object) -> None:
        stop.set()
        restore()

    for number in signals:
        signal.signal(number, received)
    try:
        yield stop
    finally:
        restore()
