"""The error that ended a Spark application, as its submitter reads it.

Lockstep's applications write the error that ends them as their last line (spark_jobs/job.py, errors.to_line).
An application that wrote none did not reach Lockstep's code, or was killed.
"""

from __future__ import annotations

from cdc_core.errors import LockstepError, RetryLater, from_text


def error_of(output: str, *, job: str, status: int | None, seen: str) -> LockstepError:
    """The error that the application reports as its end; RetryLater (run.spark_ended) if it reports none.

    output: its output, or the end of it. status: its exit status, if known. seen: where an operator finds the output.
    """
    error = from_text(output, last=True)
    if error is not None:
        return error
    ended = "" if status is None else f" with status {status}"
    return RetryLater(
        f"The Spark application {job} ended{ended} without reporting an error of Lockstep.",
        where=seen,
        code="run.spark_ended",
        remedy="look there for lack of memory, Java errors, a missing jar or cluster problems; then run it again: no "
        "change is applied twice",
    )
