"""Findings: what a preflight has checked, and how to fix it. A failure does not stop the other checks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pymysql

from cdc_core.errors import InternalError, LockstepError, parts_of, worst
from cdc_core.mysql import connections
from cdc_core.mysql.server_errors import explained

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One thing that was checked. `error`: what `extract` or `run` would raise; only if the status is 'fail'."""

    status: Literal["ok", "warn", "fail"]
    subject: str
    what: str
    remedy: str = ""
    error: LockstepError | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order of the checks."""

    pipeline: str
    findings: tuple[CheckFinding, ...]

    @property
    def worst(self) -> LockstepError | None:
        """The error that decides the exit code; None where nothing failed."""
        errors = [finding.error for finding in self.findings if finding.error is not None]
        return worst(errors) if errors else None


class Findings:
    """Collects findings; a failed check does not stop the later ones."""

    def __init__(self) -> None:
        self.made: list[CheckFinding] = []

    def ok(self, subject: str, what: str) -> None:
        self.made.append(CheckFinding("ok", subject, what))

    def warn(self, subject: str, what: str, remedy: str) -> None:
        self.made.append(CheckFinding("warn", subject, what, remedy))

    def fail(self, subject: str, error: LockstepError) -> None:
        for part in parts_of(error):
            place = f" [{part.where}]" if part.where and part.where not in subject else ""
            self.made.append(CheckFinding("fail", subject, part.what + place, part.remedy, part))

    def attempt(self, subject: str, work: Callable[[], T], say: Callable[[T], str] | None = None) -> T | None:
        """The value of `work`, None when it failed. `say` makes the finding of a success; without it there is none."""
        try:
            value = work()
            if say is not None:
                self.ok(subject, say(value))
        except LockstepError as error:
            self.fail(subject, error)
            return None
        except pymysql.err.MySQLError as error:
            self.fail(subject, explained(error, where=subject))
            return None
        except Exception as error:
            log.debug("check of %s", subject, exc_info=True)
            self.fail(
                subject,
                InternalError(
                    f"Unexpected {type(error).__name__}: {error}",
                    where=subject,
                    remedy="run `lockstep -vv check` and report the traceback",
                ),
            )
            return None
        return value


@contextmanager
def connected(findings: Findings, subject: str, reference: str) -> Iterator[pymysql.Connection[Any] | None]:
    """An open connection, or None after the finding of why there is none."""

    def connect() -> pymysql.Connection[Any]:
        address = connections.resolve(reference)
        made = connections.connect(address, where=subject)
        findings.ok(f"{subject}: connection", f"{address}, {made.get_server_info()}")  # type: ignore[no-untyped-call]
        if (advice := made.advice()) is not None:
            findings.warn(f"{subject}: TLS", *advice)
        return made

    connection = findings.attempt(f"{subject}: connection", connect)
    try:
        yield connection
    finally:
        if connection is not None:
            connection.close()
