"""Errors cross from Spark's Python workers to the driver inside the text of Spark's own exceptions."""

from __future__ import annotations

import errno
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql

from cdc_core.errors import LockstepError, RetryLater, from_text, to_line
from cdc_core.targets.reading.target_faults import translated

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class CarriedError(RuntimeError):
    """What a worker raises in place of a LockstepError; its text holds the error."""


@contextmanager
def carried() -> Iterator[None]:
    """Around a worker's code: raises a LockstepError as CarriedError, which survives Spark's own wrapping; an error of
    a target's server, or of a full disk, as the LockstepError that it means."""
    try:
        yield
    except LockstepError as error:
        raise CarriedError(f"{error}\n{to_line(error)}") from error
    except pymysql.err.MySQLError as error:
        ours = translated(error, where="target")
        raise CarriedError(f"{ours}\n{to_line(ours)}") from None
    except OSError as error:
        if error.errno not in _FULL:
            raise
        ours = disk_full(error)
        raise CarriedError(f"{ours}\n{to_line(ours)}") from error


def disk_full(error: OSError) -> RetryLater:
    """The error for a worker that could not write the rows that it is about to load to its temporary files."""
    return RetryLater(
        f"A worker of the job cannot write its temporary files: {error.strerror}.",
        where=f"{socket.gethostname()} {tempfile.gettempdir()}",
        code="disk.error",
        remedy="free space there, or set TMPDIR of the workers to a larger disk, then run the task again: a write "
        "needs space for the rows of its shards as text",
    )


def found(error: BaseException) -> LockstepError | None:
    """The LockstepError that an exception of Spark or of a server means, if there is one."""
    if isinstance(error, pymysql.err.MySQLError):
        return translated(error, where="target")
    return from_text(str(error))
