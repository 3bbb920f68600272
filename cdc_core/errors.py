"""Every error that Lockstep raises on purpose: one class per way to recover.

The message of an error says what happened, where, and what to do next. `code` is a stable dotted name
(`source.purged`) that `docs/errors.md` explains; `exit_code` is what the command line returns and what the
Airflow tasks decide by: only `RetryLater` is worth an automatic retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


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
        return _rebuild, (type(self), self.what, self.where, self.remedy, self.code)


def _rebuild(kind: type[LockstepError], what: str, where: str, remedy: str, code: str) -> LockstepError:
    """Errors cross process borders (Spark workers, Airflow tasks): pickle needs the keyword arguments back."""
    return kind(what, where=where, remedy=remedy, code=code)


class UsageError(LockstepError):
    """The configuration or the command line is wrong: fix the text, then run again. Exit 2."""

    exit_code = 2
    exit_class = "usage"


class Refused(LockstepError):
    """A server, table or grant is not as it must be, and an operator must change it or choose. Exit 3."""

    exit_code = 3
    exit_class = "refused"


class DataAtRisk(LockstepError):
    """Going on could lose or bend data, so nothing moves until an operator has looked. Exit 4."""

    exit_code = 4
    exit_class = "data at risk"


class RetryLater(LockstepError):
    """A passing condition (network, lease held by another, disk full): the same call may succeed later. Exit 75."""

    exit_code = 75
    exit_class = "retry later"
    retriable = True


class InternalError(LockstepError):
    """A rule that Lockstep itself must keep does not hold: a defect of ours. Exit 70."""


SEVERITY: tuple[type[LockstepError], ...] = (DataAtRisk, InternalError, Refused, UsageError, RetryLater)
"""Worst first: what decides of several errors."""


def worst(errors: Sequence[LockstepError]) -> LockstepError:
    """The first of the gravest class."""
    ranked = {kind: place for place, kind in enumerate(SEVERITY)}
    return min(errors, key=lambda error: ranked.get(type(error), 1))


def parts_of(error: LockstepError) -> tuple[LockstepError, ...]:
    """The errors that `combined` made one of; the error itself where it is a single one."""
    return error.parts or (error,)


def combined(errors: Sequence[LockstepError]) -> LockstepError:
    """One error that says all of several, numbered, on one line. Its class is the gravest, its code the one that all of
    them have, or `target.several`. parts_of gives them back."""
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
