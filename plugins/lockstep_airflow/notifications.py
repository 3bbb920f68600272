"""The receivers of a pipeline's problems: `airflow.notify` names notifiers of Airflow, and functions.

A task that has ended tells what is new and what is solved, whether it was its own problem or not. What a retry may cure
is told once Airflow tries no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc_core import config
from cdc_core.config import Pipeline
from cdc_core.errors import UsageError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.operations.problem_events import ProblemEvent

log = logging.getLogger(__name__)


def require_found(pipeline: Pipeline, file: str) -> None:
    """Raises UsageError for a notifier whose module cannot be imported here. Imports its packages only."""
    for notified in pipeline.airflow.notify:
        module = notified.use.partition(":")[0]
        try:
            spec = find_spec(module)
        except ImportError:
            spec = None
        if spec is None:
            raise UsageError(
                f"airflow.notify names {notified.use}, and there is no module {module}.",
                where=file,
                code="airflow.pipelines",
                remedy="install its package where Airflow runs, or correct the name (MODULE:NAME)",
            )


def callbacks(file: str) -> dict[str, Any]:
    """The arguments of each task by which it tells."""
    ended = partial(_told_of, file)
    return {
        "on_success_callback": partial(ended, given_up=False),
        "on_skipped_callback": partial(ended, given_up=False),
        "on_failure_callback": partial(ended, given_up=True),
    }


def _told_of(file: str, context: Context, *, given_up: bool) -> None:
    from cdc_core.operations.problem_events import ProblemEvent, tell_problems
    from lockstep_airflow.task_pipeline import opened

    pipeline, explained = config.load(Path(file)), False
    tell, said = partial(_tell, pipeline, context), str(context.get("exception") or "its process was killed")
    try:
        with opened(file, context) as ready:
            explained = tell_problems(ready.pipeline, ready.meta, tell, given_up=given_up, said=said)
    finally:
        if given_up and not explained:  # meta does not answer, or does not know of it: rather each time than never
            tell(ProblemEvent.of_task(pipeline.pipeline, context["ti"].task_id, said))


def _tell(pipeline: Pipeline, context: Context, event: ProblemEvent) -> None:
    """All of them, whichever fails; then raises the first failure."""
    failed: Exception | None = None
    for notified in pipeline.airflow.notify:
        try:
            named: Callable[..., Any] = EntryPoint(notified.use, notified.use, "lockstep.notify").load()
            if isinstance(named, type):
                named(**notified.options)({**context, "problem": event})
            else:
                named(event, **notified.options)
        except Exception as error:
            log.exception("%s did not take: %s", notified.use, event)
            failed = failed or error
    if failed is not None:
        raise failed
    log.info("told: %s", event)
