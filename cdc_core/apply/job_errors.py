"""The error that ended a Spark application, for whoever submitted it.

An application of ours that ends by an error writes it as the last thing it does (spark_jobs/job.py, errors.to_line).
One that wrote none did not get as far as our code, or was killed.
"""

from __future__ import annotations

from cdc_core.errors import LockstepError, RetryLater, from_text


def error_of(output: str, *, job: str, status: int | None, seen: str) -> LockstepError:
    """The error that the application says it ended by; RetryLater (run.spark_ended) where it says none.

    output: its output, or the end of it. status: its exit status, where it is known. seen: where a person finds the
    output.
    """
    error = from_text(output, last=True)
    if error is not None:
        return error
    ended = "" if status is None else f" with status {status}"
    return RetryLater(
        f"The Spark application {job} ended{ended} and without an error of Lockstep.",
        where=seen,
        code="run.spark_ended",
        remedy="look there for memory, Java, a missing jar, the cluster; running again changes nothing twice",
    )
