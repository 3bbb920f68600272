"""How failures reach Airflow: an error says itself whether it is worth a retry (cdc_core/errors.py).

A task that is killed raises nothing, and Airflow retries it. The text of each failure says what happened, where, and
what to do next; docs/errors.md explains the code at its end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError

from cdc_core.errors import InternalError, LockstepError

log = logging.getLogger(__name__)


@contextmanager
def as_airflow_failures(doing: str) -> Iterator[None]:
    """Turns what the block raises into exceptions by which Airflow retries or fails. Airflow's own ones pass."""
    try:
        yield
    except LockstepError as error:
        said = _said(doing, error)
        for line in said:
            log.error("%s", line)
        kind = AirflowException if error.retriable else AirflowFailException
        raise kind("\n".join(said)) from None
    except (AirflowException, AirflowRuntimeError):
        raise
    except Exception as error:
        unplanned = InternalError(
            f"{type(error).__name__}: {error}",
            where=doing,
            remedy="nothing is lost: positions and records move only past durable data. Clear the task; if it fails "
            "again, report the traceback below",
        )
        said = _said(doing, unplanned)
        for line in said:
            log.error("%s", line)
        raise AirflowFailException("\n".join(said)) from error


def _said(doing: str, error: LockstepError) -> list[str]:
    """What happened, where, what to do, and the code: one line each, so that a narrow log shows all of them."""
    lines = [f"{doing} failed: {error.what}"]
    if error.where:
        lines.append(f"  at   {error.where}")
    next_step = "Airflow tries again" if error.retriable else "it is not tried again"
    return [*lines, f"  fix  {error.remedy}", f"  code {error.code} ({error.exit_class}: {next_step})"]
