"""Every error that Lockstep raises on purpose: one class per way to recover, one code per remedy.

The message says what happened, where, and what to do next. `code` is a stable dotted name (`stage.partial`) that
`docs/errors.md` explains. The five classes below decide the exit code, and `retriable` decides whether Airflow retries
the task: it retries every RetryLater except RolledBack, and nothing else. Subclasses exist where a caller recovers by
itself: it catches the type, and never compares codes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self


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
    own_code: ClassVar[str] = ""
    """The code of errors that are raised without one."""

    def __init__(self, what: str, *, remedy: str, code: str = "", where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy
        self.code = code or self.own_code
        if not self.code:
            raise TypeError(f"{type(self).__name__} needs a code")
        self.parts: tuple[LockstepError, ...] = ()

    def __str__(self) -> str:
        place = f" [at {self.where}]" if self.where else ""
        return f"{self.what}{place} What to do: {self.remedy} ({self.code})"

    def with_remedy(self, remedy: str) -> Self:
        """The same error with another remedy."""
        return type(self)(self.what, where=self.where, code=self.code, remedy=remedy)

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

    own_code = "internal.defect"


def defect(what: str, *, where: str = "", first: str = "", attach: str = "the log of the task") -> InternalError:
    """The error for a broken rule of Lockstep's own.

    first: what is safe anyway, or what to try before. attach: what a report needs for the cause to be found.
    """
    report = f"report this as a defect in Lockstep, with {attach}"
    return InternalError(what, where=where, remedy=f"{first}; {report}" if first else report)


class TooManyBytes(UsageError):
    """One column of a block has more bytes than an Arrow array takes."""

    own_code = "config.invalid"


class AnotherProcess(RetryLater):
    """Another process does the same work. Nothing has failed."""


class LeaseHeld(AnotherProcess):
    """The work has not begun: wait for the other process."""

    own_code = "lease.held"


class LeaseLost(AnotherProcess):
    """The other process took over while this one worked. This one must stop."""

    own_code = "lease.lost"


class Overtaken(LeaseLost):
    """The record that was to be changed has changed meanwhile, perhaps by this process without its knowing."""


class Paused(RetryLater):
    """Somebody has paused the reading of tables. Nothing has failed."""

    own_code = "snapshot.paused"


class BatchesTaken(RetryLater):
    """Another run committed batches while this one was planned: plan again."""

    own_code = "run.taken_over"


class ConnectionLost(RetryLater):
    """The network or a restarting server ended a connection: reconnect."""

    own_code = "connection.unreachable"


class OtherServer(RetryLater):
    """Another server of the source answers than the one that was read last: the extractor must move there first."""

    own_code = "source.other_server"


class UndoneAfterParts(RetryLater):
    """A transaction was rolled back in the log after parts of it were read: read it again and leave it out."""

    own_code = "source.undone_after_parts"


class TableUnready(RetryLater):
    """One table cannot be read now. The others can."""


class DefinitionChanged(TableUnready):
    """The table was altered after its definition was read: read the definition again."""

    own_code = "table.redefined"


class TargetBusy(RetryLater):
    """Another session has the lock of a table of the target."""

    own_code = "target.busy"


class TargetAltered(RetryLater):
    """A table or database of the target was altered or dropped under a job."""

    own_code = "target.busy"


class NotCaughtUp(RetryLater):
    """A cutover's runs do not catch up with the application. Further attempts would not, either."""

    own_code = "cutover.too_slow"


class RolledBack(RetryLater):
    """All attempts of a cutover were rolled back. Only a person begins another."""

    own_code = "cutover.rolled_back"
    retriable = False


class TableRefused(Refused):
    """One table cannot be captured or copied. The others can."""


class NeverCaptured(TableRefused):
    """The log can never give the rows of such a table."""

    own_code = "source.unsupported_table"


def repeat_from(task: str) -> str:
    """What a remedy says of a run that has to repeat its tasks from this one on."""
    return f"clear the run from its {task} task on; without Airflow, start another run, which takes its batches"


class PlanOutdated(Refused):
    """Another version of Lockstep wrote the plan of a run."""

    own_code = "run.clear_task"


class ExistingRows(Refused):
    """A table of the target has rows that this stage has not written."""

    own_code = "target.existing"


class TargetFenced(Refused):
    """A fence keeps Lockstep out of a table of the target."""

    own_code = "target.fenced"


class TableMissing(Refused):
    """A table of the target does not exist: `on_missing_table: create` makes it."""

    own_code = "target.table"


class ColumnsMissing(Refused):
    """A table of the target lacks columns or their key: `on_new_column: add` may add them."""

    own_code = "target.definition"


class DamagedBytes(DataAtRisk):
    """The bytes of the log are malformed. Reading them once more distinguishes damage in transit from a damaged log."""

    own_code = "source.log_damaged"


class NoEventHere(DataAtRisk):
    """No event begins at the position."""

    own_code = "source.bad_position"


class ServerChanged(DataAtRisk):
    """The position belongs to another server. Where the source lists several, attaching again finds a position here."""

    own_code = "source.other_log"


class FilesLost(DataAtRisk):
    """Files of the stage are missing or shorter than listed. A purge may have removed them."""

    own_code = "stage.damaged"


class ValuesAbsent(DataAtRisk):
    """A change lacks values that neither the target nor the files of a run have."""

    own_code = "target.absent_values"


RESYNC = (
    "set tables.on_unreadable: resync, which leaves the table out from here on and has it copied again "
    "(on_unreadable: isolate only leaves it out)"
)
"""The remedy where the log lacks something of one table for ever."""
GIVE_UP = (
    "give up what cannot be read: `lockstep extract PIPELINE --source NAME --abandon FILE:OFFSET`, with the position "
    "up to which it was read, continues at the end of the log and has every table copied again"
)
"""The remedy where the log of a source cannot be read any more."""

SEVERITY: tuple[type[LockstepError], ...] = (DataAtRisk, InternalError, Refused, UsageError, RetryLater)
"""Worst first: the class of several errors together."""


def worst(errors: Sequence[LockstepError]) -> LockstepError:
    """The first of the gravest class."""
    return min(errors, key=lambda error: SEVERITY.index(severity(type(error))))


def severity(kind: type[LockstepError]) -> type[LockstepError]:
    """The one of the five classes that an error's class belongs to."""
    return next((base for base in SEVERITY if issubclass(kind, base)), InternalError)


def _kinds(kind: type[LockstepError] = LockstepError) -> dict[str, type[LockstepError]]:
    """Every class of errors by its name."""
    below = [known for child in kind.__subclasses__() for known in _kinds(child).values()]
    return {known.__name__: known for known in (kind, *below)}


def parts_of(error: LockstepError) -> tuple[LockstepError, ...]:
    """The errors that `combined` joined; a single error itself."""
    return error.parts or (error,)


def combined(errors: Sequence[LockstepError]) -> LockstepError:
    """One error with the texts of several, numbered, on one line; what several say alike is said once, with all of
    their places. Its class is the gravest, its code the one that all have, or `target.several`. parts_of returns
    them."""
    parts = tuple({str(part): part for error in errors for part in parts_of(error)}.values())
    if len(parts) == 1:
        return parts[0]
    alike: dict[tuple[str, str, str], list[str]] = {}
    for part in parts:
        places = alike.setdefault((part.what, part.remedy, part.code), [])
        places += [part.where] if part.where and part.where not in part.what else []
    grave = worst(parts)
    kind = severity(type(grave))
    if len(alike) == 1:
        ((what, remedy, code), places) = next(iter(alike.items()))
        made = kind(what, where=", ".join(places), code=code, remedy=remedy)
    else:
        numbered = list(enumerate(alike.items(), 1))
        texts = "; ".join(
            f"({number}) {what.rstrip('.')}" + (f" [at {', '.join(places)}]" if places else "")
            for number, ((what, _, _), places) in numbered
        )
        made = kind(
            f"{len(parts)} problems: {texts}.",
            code=grave.code if len({code for _, _, code in alike}) == 1 else "target.several",
            remedy="; ".join(f"({number}) {remedy} ({code})" for number, ((_, remedy, code), _) in numbered),
        )
    made.parts = parts
    return made


def of_all(errors: Sequence[BaseException]) -> BaseException:
    """The error to raise for several tasks: Lockstep's own as one; any other before them."""
    ours = [error for error in errors if isinstance(error, LockstepError)]
    return combined(ours) if len(ours) == len(errors) else next(error for error in errors if error not in ours)


def _fields(error: LockstepError) -> dict[str, Any]:
    return {
        "kind": severity(type(error)).__name__,
        "type": type(error).__name__,
        "what": error.what,
        "where": error.where,
        "remedy": error.remedy,
        "code": error.code,
        "parts": [_fields(part) for part in error.parts],
    }


def _from_fields(fields: Mapping[str, Any]) -> LockstepError:
    """Raises KeyError or TypeError for fields that `_fields` did not produce."""
    kinds = _kinds()
    kind = kinds.get(str(fields["type"]), kinds[fields["kind"]])  # its own package may not be imported here
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
