"""What a Spark application says when it fails, made an error again by whoever submitted it.

An application of ours ends with the exit status of its error's class and logs, as `spark_jobs/job.py` does,
`<time> ERROR <logger> <job>: what [at where] What to do: remedy (code)`. Anything else did not get as far as our
code, or was killed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, RetryLater, UsageError

_BY_STATUS = {kind.exit_code: kind for kind in (UsageError, Refused, DataAtRisk, RetryLater, InternalError)}
_LOGGED = re.compile(
    r" ERROR \S+ \w+: (.*?)(?: \[at (.*?)\])? What to do: (.*) "
    r"\(([a-z_0-9]+(?:\.[a-z_0-9]+)+)\)\s*$"
)


def error_of(status: int | None, output: Sequence[str], *, job: str, seen: str) -> LockstepError:
    """The last error that the application logged, if its exit status is that of one of our classes.

    status: None where nobody knows. output: lines, oldest first. seen: where a person finds them.
    RetryLater (run.spark_ended) for an application that says nothing of ours.
    """
    kind = _BY_STATUS.get(status) if status is not None else None
    if kind is not None:
        for line in reversed(output):
            if found := _LOGGED.search(line):
                what, where, remedy, code = found.groups()
                return kind(what, where=where or "", code=code, remedy=remedy)
    ended = "" if status is None else f" with status {status}"
    return RetryLater(
        f"The Spark application {job} ended{ended} and without an error of Lockstep.",
        where=seen,
        code="run.spark_ended",
        remedy="look there for memory, Java, a missing jar, the cluster; running again changes nothing twice",
    )
