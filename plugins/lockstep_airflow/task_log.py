"""The progress of an operation in a task's log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cdc_core.meta import TableCopy
from cdc_core.operations.copy.copy_progress import CopyProgress
from cdc_core.operations.open_pipeline import Progress

log = logging.getLogger(__name__)

LINE_S = 10.0
"""At most one line a table in this time, while it is copied."""


class TaskLog(Progress):
    """Progress in a task's log."""

    def step(self, name: str) -> None:
        log.info("%s starts", name)

    @contextmanager
    def copying(self, rows: Mapping[str, int | None]) -> Iterator[Callable[[TableCopy], None]]:

        progress, lock = CopyProgress(), threading.Lock()
        next_s: dict[str, float] = {}

        def report(copy: TableCopy) -> None:
            now_s = time.monotonic()
            with lock:
                if now_s < next_s.get(copy.table, 0.0):
                    return
                next_s[copy.table] = now_s + LINE_S
            log.info("%s: %s", copy.table, progress.text(copy))

        yield report
