"""A pipeline opened by a task."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_core import config
from cdc_core.operations.open_pipeline import OpenPipeline, Progress, open_pipeline
from lockstep_airflow.run_context import holder_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.meta import TableCopy

log = logging.getLogger(__name__)

LINE_S = 10.0
"""At most one line a table in this time, while it is copied."""


@contextmanager
def opened(file: str, context: Context) -> Iterator[OpenPipeline]:
    """The pipeline of a file. Its logins are in its environment within `exported`."""
    pipeline = config.load(Path(file))
    with open_pipeline(pipeline, os.environ, TaskLog(), holder=holder_name(context), upgrade=True) as ready:
        yield ready


class TaskLog(Progress):
    """Progress in a task's log."""

    def step(self, name: str) -> None:
        log.info("%s starts", name)

    @contextmanager
    def copying(self, rows: Mapping[str, int | None]) -> Iterator[Callable[[TableCopy], None]]:
        from cdc_core.snapshot.progress import CopyProgress, progress_text

        state, lock = CopyProgress(rows), threading.Lock()
        next_s: dict[str, float] = {}

        def report(copy: TableCopy) -> None:
            now_s = time.monotonic()
            state.update(copy)
            with lock:
                if now_s < next_s.get(copy.table, 0.0):
                    return
                next_s[copy.table] = now_s + LINE_S
            log.info("%s: %s", copy.table, progress_text(state.table(copy.table)))

        yield report
