"""The receivers of a pipeline's problems: `airflow.notify` names notifiers of Airflow, and functions.

A task that has ended tells what is new and what is solved, whether it was its own problem or not. What a retry may cure
is told once Airflow tries no more; what is late, once a run has nothing left to do.
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
from cdc_core.model.tasks import COMMIT, EXTRACT

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.config.run_options import Notified
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
    task, said = context["ti"].task_id, str(context.get("exception") or "its process was killed")
    late = given_up or task.rpartition(".")[2] == (COMMIT if pipeline.targets else EXTRACT).name
    receivers = {one.model_dump_json(): partial(_tell, one, context) for one in pipeline.airflow.notify}
    try:
        with opened(file, context) as ready:
            explained = tell_problems(ready.pipeline, ready.meta, receivers, given_up=given_up, late=late, said=said)
    finally:
        if given_up and not explained:  # meta does not answer, or does not know of it: rather each time than never
            for tell in receivers.values():
                try:
                    tell(ProblemEvent.of_task(pipeline.pipeline, task, said))
                except Exception:
                    log.exception("not taken: %s", said)


def _tell(receiver: Notified, context: Context, event: ProblemEvent) -> None:
    named: Callable[..., Any] = EntryPoint(receiver.use, receiver.use, "lockstep.notify").load()
    if isinstance(named, type):
        named(**receiver.options)({**context, "problem": event})
    else:
        named(event, **receiver.options)
    log.info("%s was told: %s", receiver.use, event)
