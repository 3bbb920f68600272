"""What a failure means to Airflow: only RetryLater is worth a retry; anything else fails the task at once.

A task that is killed raises nothing, and Airflow retries it. The text of each failure says what, where and what to
do next; docs/errors.md explains the code at its end.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError

from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, RetryLater, UsageError

log = logging.getLogger(__name__)

_BY_EXIT_CODE = {kind.exit_code: kind for kind in (UsageError, Refused, DataAtRisk, RetryLater, InternalError)}
_CODED = re.compile(r"\(([a-z_0-9]+\.[a-z_0-9.]+)\)\s*$")
_LOGGED = re.compile(r"^.*? ERROR \S+ \w+: ")
"""How spark_jobs/job.py logs an error: `<time> ERROR <logger> <job>: <error>`."""
_EXIT_CODE = re.compile(r"Error code is: (-?\d+)")


@contextmanager
def as_airflow_failures(doing: str) -> Iterator[None]:
    """Turns what the block raises into what Airflow retries or fails by. Airflow's own exceptions pass."""
    try:
        yield
    except LockstepError as error:
        log.error("%s: %s failed (%s): %s", doing, error.code, error.exit_class, error)
        if error.retriable:
            raise AirflowException(f"{doing}: {error}") from error
        raise AirflowFailException(f"{doing}: {error}") from error
    except (AirflowException, AirflowRuntimeError):
        raise
    except Exception as error:
        unplanned = InternalError(
            f"{type(error).__name__}: {error}",
            where=doing,
            code="internal.unexpected",
            remedy="nothing is lost, positions and records move only past durable data; clear the task, and report "
            "the traceback below if it fails again",
        )
        raise AirflowFailException(str(unplanned)) from error


def of_spark(failure: Exception, job: str, output: list[str]) -> LockstepError:
    """The error behind a failed spark-submit.

    A job of ours ends with the exit code of its error's class and logs `what [at where] What to do: ... (code)`;
    spark-submit hands the exit code on. Anything else did not get as far as our code, or was killed.

    failure: what the Spark hook raised; its text has the exit code.
    output:  lines of the driver, oldest first.
    """
    found = _EXIT_CODE.search(str(failure))
    exit_code = int(found.group(1)) if found else None
    kind = _BY_EXIT_CODE.get(exit_code) if exit_code is not None else None
    for line in reversed(output):
        coded = _CODED.search(line)
        if kind is not None and coded:
            return _relayed(kind, line, coded.group(1))
    ended = f"exit code {exit_code}" if exit_code is not None else str(failure)
    return RetryLater(
        f"The Spark application {job!r} ended with {ended} and without an error of Lockstep.",
        where="spark-submit",
        code="airflow.spark_ended",
        remedy="see the driver's output above: memory, cluster, missing jar; the task is retried and changes nothing "
        "twice",
    )


def _relayed(kind: type[LockstepError], line: str, code: str) -> LockstepError:
    """An error from a child process, in its own words: `what [at where] What to do: remedy (code)`."""
    text = _LOGGED.sub("", line.strip()).removesuffix(f"({code})").strip()
    what, _, remedy = text.partition(" What to do: ")
    return kind(what, code=code, remedy=remedy or "see the output of the Spark application above")
