"""Errors cross from Spark's Python workers to the driver as a line of text; here it is written and found again."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql

from cdc_core import errors
from cdc_core.target.faults import translated

_MARK = "LOCKSTEP-ERROR:"
_LINE = re.compile(_MARK + r"([A-Za-z0-9+/=]+):END")


class CarriedError(RuntimeError):
    """What a worker raises in place of a LockstepError; its text holds the error."""


@contextmanager
def carried() -> Iterator[None]:
    """Around a worker's code: a LockstepError leaves as CarriedError, which survives Spark's own wrapping. An error of
    a target's server leaves as what it means to us."""
    try:
        yield
    except errors.LockstepError as error:
        raise _packed(error) from error
    except pymysql.err.MySQLError as error:
        raise _packed(translated(error, where="target")) from None


def _packed(error: errors.LockstepError) -> CarriedError:
    fields = [type(error).__name__, error.what, error.where, error.remedy, error.code]
    packed = base64.b64encode(json.dumps(fields).encode()).decode()
    return CarriedError(f"{error}\n{_MARK}{packed}:END")


def found(error: BaseException) -> errors.LockstepError | None:
    """The LockstepError that an exception of Spark, or of a server, is to us, if there is one."""
    if isinstance(error, pymysql.err.MySQLError):
        return translated(error, where="target")
    match = _LINE.search(str(error))
    if match is None:
        return None
    kind, what, where, remedy, code = json.loads(base64.b64decode(match[1]))
    made: errors.LockstepError = getattr(errors, kind)(what, where=where, remedy=remedy, code=code)
    return made
