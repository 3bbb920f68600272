"""Errors cross from Spark's Python workers to the driver inside the text of Spark's own exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymysql

from cdc_core.errors import LockstepError, from_text, to_line
from cdc_core.target.faults import translated


class CarriedError(RuntimeError):
    """What a worker raises in place of a LockstepError; its text holds the error."""


@contextmanager
def carried() -> Iterator[None]:
    """Around a worker's code: raises a LockstepError as CarriedError, which survives Spark's own wrapping; an error of
    a target's server as the LockstepError that it means."""
    try:
        yield
    except LockstepError as error:
        raise CarriedError(f"{error}\n{to_line(error)}") from error
    except pymysql.err.MySQLError as error:
        ours = translated(error, where="target")
        raise CarriedError(f"{ours}\n{to_line(ours)}") from None


def found(error: BaseException) -> LockstepError | None:
    """The LockstepError that an exception of Spark or of a server means, if there is one."""
    if isinstance(error, pymysql.err.MySQLError):
        return translated(error, where="target")
    return from_text(str(error))
