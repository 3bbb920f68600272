"""A pipeline opened by a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_core import config
from lockstep_airflow.run_context import holder_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.operations.open_pipeline import OpenPipeline


@contextmanager
def opened(file: str, context: Context) -> Iterator[OpenPipeline]:
    """The pipeline of a file. Its logins can be used within `exported`."""
    from cdc_core.operations.open_pipeline import open_pipeline
    from lockstep_airflow.task_log import TaskLog

    pipeline = config.load(Path(file))
    with open_pipeline(pipeline, TaskLog(), holder=holder_name(context), upgrade=True) as ready:
        yield ready
