"""Every error that Lockstep raises on purpose: one class per way to recover.

The message of an error says what happened, where, and what to do next. `code` is a stable dotted name
(`source.purged`) that `docs/errors.md` explains; `exit_code` is what the command line returns. Airflow's tasks
retry `RetryLater` and nothing else (lockstep_airflow/failures.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class LockstepError(Exception):
    """Base of all errors.

    what:   one sentence, with the offending value.
    where:  source, binlog file and offset, table, column, file or key path; "" where there is none.
    remedy: what the reader should do next, one or two sentences.
    code:   stable dotted name, listed in docs/errors.md.
    """

    exit_code: ClassVar[int] = 70
    exit_class: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False

    def __init__(self, what: str, *, code: str, remedy: str, where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy
        self.code = code
        self.parts: tuple[LockstepError, ...] = ()

    def __str__(self) -> str:
        place = f" [at {self.where}]" if self.where else ""
        return f"{self.what}{place} What to do: {self.remedy} ({self.code})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where, self.remedy, self.code, self.parts)


def _rebuild(
    kind: type[LockstepError], what: str, where: str, remedy: str, code: str, parts: tuple[LockstepError, ...]
) -> LockstepError:
    """Errors cross process borders (Spark workers, Airflow tasks): pickle needs the keyword arguments back."""
    error = kind(what, where=where, remedy=remedy, code=code)
    error.parts = parts
    return error


class UsageError(LockstepError):
    """The configuration or the command line is wrong: fix the text, then run again. Exit 2."""

    exit_code = 2
    exit_class = "usage"


class Refused(LockstepError):
    """A server, table or grant does not meet a requirement: an operator must change it or choose. Exit 3."""

    exit_code = 3
    exit_class = "refused"


class DataAtRisk(LockstepError):
    """Continuing could lose or corrupt data, so nothing moves until an operator has looked. Exit 4."""

    exit_code = 4
    exit_class = "data at risk"


class RetryLater(LockstepError):
    """A passing condition (network, lease held by another, disk full): the same call may succeed later. Exit 75."""

    exit_code = 75
    exit_class = "retry later"
    retriable = True


class InternalError(LockstepError):
    """Lockstep broke one of its own rules: a defect in Lockstep. Exit 70."""


def defect(
    what: str, *, code: str, where: str = "", first: str = "", attach: str = "the log of the task"
) -> InternalError:
    """The error for a broken rule of Lockstep's own.

    first: what is safe anyway, or what to try before. attach: what a report needs for the cause to be found.
    """
    report = f"report this as a defect in Lockstep, with {attach}"
    return InternalError(what, where=where, code=code, remedy=f"{first}; {report}" if first else report)


SEVERITY: tuple[type[LockstepError], ...] = (DataAtRisk, InternalError, Refused, UsageError, RetryLater)
"""Worst first: the class of several errors together."""


def worst(errors: Sequence[LockstepError]) -> LockstepError:
    """The first of the gravest class."""
    ranked = {kind: place for place, kind in enumerate(SEVERITY)}
    return min(errors, key=lambda error: ranked.get(type(error), 1))


def parts_of(error: LockstepError) -> tuple[LockstepError, ...]:
    """The errors that `combined` joined; a single error itself."""
    return error.parts or (error,)


def combined(errors: Sequence[LockstepError]) -> LockstepError:
    """One error with the texts of several, numbered, on one line. Its class is the gravest, its code the one that all
    have, or `target.several`. parts_of returns them."""
    parts = tuple({str(part): part for error in errors for part in parts_of(error)}.values())
    if len(parts) == 1:
        return parts[0]
    grave = worst(parts)
    what = "; ".join(
        f"({number}) {one.what.rstrip('.')}" + (f" [at {one.where}]" if one.where and one.where not in one.what else "")
        for number, one in enumerate(parts, 1)
    )
    made = type(grave)(
        f"{len(parts)} problems: {what}.",
        code=grave.code if len({one.code for one in parts}) == 1 else "target.several",
        remedy="; ".join(f"({number}) {one.remedy} ({one.code})" for number, one in enumerate(parts, 1)),
    )
    made.parts = parts
    return made


def of_all(errors: Sequence[BaseException]) -> BaseException:
    """What to raise for the errors of several tasks: ours as one; any other before them."""
    ours = [error for error in errors if isinstance(error, LockstepError)]
    return combined(ours) if len(ours) == len(errors) else next(one for one in errors if one not in ours)


def _fields(error: LockstepError) -> dict[str, Any]:
    return {
        "kind": next((kind.__name__ for kind in SEVERITY if isinstance(error, kind)), InternalError.__name__),
        "what": error.what,
        "where": error.where,
        "remedy": error.remedy,
        "code": error.code,
        "parts": [_fields(part) for part in error.parts],
    }


def _from_fields(fields: Mapping[str, Any]) -> LockstepError:
    """Raises KeyError or TypeError for fields that `_fields` did not produce."""
    kind = {one.__name__: one for one in SEVERITY}[fields["kind"]]
    parts = tuple(_from_fields(part) for part in fields["parts"])
    what, where, remedy, code = (str(fields[name]) for name in ("what", "where", "remedy", "code"))
    return _rebuild(kind, what, where, remedy, code, parts)


def to_document(error: LockstepError) -> dict[str, Any]:
    """The JSON form of an error, for commands and for the page in Airflow."""
    return {
        "error": {
            "code": error.code,
            "class": error.exit_class,
            "what": error.what,
            "where": error.where,
            "remedy": error.remedy,
        }
    }


def from_document(fields: Mapping[str, Any]) -> LockstepError:
    """The error of a command, from what its JSON document has of it. Raises KeyError for anything else."""
    kind = {one.exit_class: one for one in SEVERITY}[fields["class"]]
    what, where, remedy, code = (str(fields[name]) for name in ("what", "where", "remedy", "code"))
    return _rebuild(kind, what, where, remedy, code, ())


_MARK = "LOCKSTEP-ERROR:"


def to_line(error: LockstepError) -> str:
    """An error on one line of ASCII, for another process to find with `from_text` in what a framework makes of it.

    It is JSON, so that filters that mask known secrets in logs see them.
    """
    return _MARK + json.dumps(_fields(error))


def from_text(text: str) -> LockstepError | None:
    """The last error that `to_line` wrote into a text, whatever is before and after it; None without one."""
    decoder, end = json.JSONDecoder(), len(text)
    while (at := text.rfind(_MARK, 0, end)) >= 0:
        try:
            fields, _ = decoder.raw_decode(text, at + len(_MARK))
            return _from_fields(fields)
        except (ValueError, KeyError, TypeError, RecursionError):
            end = at  # cut off, or not ours: an earlier one may be whole
    return None
