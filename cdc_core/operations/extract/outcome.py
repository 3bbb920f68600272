"""The outcome of an extract, kept in meta, so that a failure is the first thing that users see."""

from __future__ import annotations

import logging

from cdc_core.errors import AnotherProcess, InternalError, LockstepError, Paused
from cdc_core.meta.task_failures import EXTRACT
from cdc_core.operations.open_pipeline import OpenPipeline

log = logging.getLogger(__name__)


def keep_failure(opened: OpenPipeline, source: str, error: Exception, *, task: str = EXTRACT) -> None:
    """Keeps an error of an extract until the source's position or watermark moves, or of another task of the source.

    Never raises.
    """
    if isinstance(error, LockstepError):
        failed = error
    else:
        failed = InternalError(
            f"{type(error).__name__}: {error}",
            where=source,
            remedy="nothing staged is lost; report the traceback in the log of the task if it happens again",
        )
    if isinstance(failed, AnotherProcess | Paused):
        return  # nothing of the pipeline has failed
    try:
        opened.meta.failures.keep(task, source, failed)
    except LockstepError as unkept:
        log.warning("%s: this failure could not be kept in meta: %s", source, unkept)
