"""How failures reach Airflow: only RetryLater is worth a retry; anything else fails the task at once.

A task that is killed raises nothing, and Airflow retries it. The text of each failure says what happened, where, and
what to do next; docs/errors.md explains the code at its end.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError

from cdc_core.errors import InternalError, LockstepError

log = logging.getLogger(__name__)


@contextmanager
def as_airflow_failures(doing: str, *, final: Collection[str] = ()) -> Iterator[None]:
    """Turns what the block raises into exceptions by which Airflow retries or fails. Airflow's own ones pass.

    final: codes of errors that are not tried again, though they may pass by themselves.
    """
    try:
        yield
    except LockstepError as error:
        again = error.retriable and error.code not in final
        said = _said(doing, error, again=again)
        for line in said:
            log.error("%s", line)
        kind = AirflowException if again else AirflowFailException
        raise kind("\n".join(said)) from None
    except (AirflowException, AirflowRuntimeError):
        raise
    except Exception as error:
        unplanned = InternalError(
            f"{type(error).__name__}: {error}",
            where=doing,
            code="internal.unexpected",
            remedy="nothing is lost: positions and records move only past durable data. Clear the task; if it fails "
            "again, report the traceback below",
        )
        said = _said(doing, unplanned, again=False)
        for line in said:
            log.error("%s", line)
        raise AirflowFailException("\n".join(said)) from error


def _said(doing: str, error: LockstepError, *, again: bool) -> list[str]:
    """What happened, where, what to do, and the code: one line each, so that a narrow log shows all of them."""
    lines = [f"{doing} failed: {error.what}"]
    if error.where:
        lines.append(f"  at   {error.where}")
    next_step = "Airflow tries again" if again else "it is not tried again"
    return [*lines, f"  fix  {error.remedy}", f"  code {error.code} ({error.exit_class}: {next_step})"]
