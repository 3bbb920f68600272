"""Repeats the work of a command until a signal comes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cdc_core.cli.output import CliOutput
from cdc_core.errors import LockstepError

log = logging.getLogger(__name__)


def repeat(work: Callable[[], None], every_s: float, output: CliOutput) -> None:
    """Does the work again, `every_s` after it last began, and at once if it took longer. A signal ends this, and the
    work under way, as success.

    An error that another attempt may cure is said, and the work is tried again when it is next due. Raises any other.
    """
    try:
        while True:
            due = time.monotonic() + every_s
            try:
                work()
            except LockstepError as error:
                if not error.retriable:
                    raise
                log.warning("tried again when next due: %s", error)
                output.note(f"tried again in {every_s:g} s: {error}")
            time.sleep(max(due - time.monotonic(), 0.0))
    except (SystemExit, KeyboardInterrupt):
        return
