"""Problems of a pipeline as events: one when a problem is new, one when it is solved."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from cdc_core.config import Pipeline
from cdc_core.errors import RetryLater
from cdc_core.meta import Meta
from cdc_core.meta.health import Level, Problem
from cdc_core.meta.task_failures import GATES, LOST_WRITES, REPAIR
from cdc_core.model.json_codec import parsed, text_of
from cdc_core.model.readable import moment
from cdc_core.operations.status_report import status_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProblemEvent:
    """What `lockstep status` says of a problem. level: failed or late. subject: the task, and its source, target or
    run. since: ISO 8601; "" where it is not known."""

    pipeline: str
    level: str
    subject: str
    what: str
    where: str
    remedy: str
    code: str
    since: str
    solved: bool

    @classmethod
    def of_task(cls, pipeline: str, task: str, what: str) -> Self:
        """A task that failed for a reason that `lockstep status` does not know."""
        remedy = "see the log of the task"
        return cls(pipeline, Level.FAILED, task, what, "", remedy, "", "", solved=False)

    def __str__(self) -> str:
        if self.solved:
            return f"{self.pipeline}: solved: {self.subject}: {self.what}"
        where = f" At {self.where}." if self.where else ""
        return f"{self.pipeline}: {self.subject}: {self.what}{where} To do: {self.remedy or 'see lockstep status'}."


def tell_problems(
    pipeline: Pipeline,
    meta: Meta,
    receivers: Mapping[str, Callable[[ProblemEvent], None]],
    *,
    given_up: bool,
    late: bool = True,
    said: str = "",
) -> bool:
    """Tells each receiver what is new and what is solved since it was told last, by whatever process; whether a problem
    that is known is what a task failed by. said: that failure's text.

    receivers: by what tells them apart. An event that one does not take is logged, and told to it again by the next
    call. given_up: nobody tries again, so that errors that a retry may cure are told, too. late: what is late is told;
    in the middle of a run, it may not be at its end.
    """
    problems = {
        _key(problem): problem
        for problem in status_of(pipeline, meta).problems
        if problem.level in (Level.FAILED, Level.LATE)
    }
    events = {key: _event(pipeline.pipeline, problem) for key, problem in problems.items()}
    held_up = any(_holds_up(problem) for problem in problems.values())
    ripe = {
        key: text_of(events[key])
        for key, problem in problems.items()
        if (problem.level is Level.FAILED and (given_up or problem.kind is not RetryLater))
        or (problem.level is Level.LATE and late and not held_up)
    }
    names = {_digest(receiver, 15): tell for receiver, tell in receivers.items()}
    meta.told.keep_only(names)
    for name, tell in names.items():
        begun, solved = meta.told.settle(name, events.keys(), ripe)
        due: list[tuple[str, ProblemEvent, str | None]] = [(key, events[key], None) for key in begun]
        due += [(key, replace(parsed(ProblemEvent, text), solved=True), text) for key, text in solved.items()]
        for at, (_, event, _) in enumerate(due):
            try:
                tell(event)
            except BaseException as error:
                for key, _, text in due[at:]:
                    meta.told.not_told(name, key, text)
                if not isinstance(error, Exception):
                    raise
                log.exception("not taken: %s", event)
                break
    return any(_explains(problem, said) for problem in problems.values())


def _holds_up(problem: Problem) -> bool:
    """Whether it explains what is late: not a failure that is about rows or gates of a target."""
    about_target = problem.subject.startswith(("target ", f"{REPAIR} ", f"{GATES} ", f"{LOST_WRITES} "))
    return problem.level is Level.FAILED and not about_target


def _explains(problem: Problem, said: str) -> bool:
    """Whether a failure is of the problem: it has its words, or its code and place."""
    return problem.level is Level.FAILED and (
        problem.what in said or (bool(problem.code) and problem.code in said and problem.where in said)
    )


def _key(problem: Problem) -> str:
    """Equal for a problem that is seen again, whatever has changed in its words; by the next run, too."""
    same = (problem.subject, problem.code, problem.about)
    if problem.subject.startswith("run "):
        same = ("run", problem.where, problem.code or problem.what)
    return _digest("\n".join((problem.level.value, *same)), 48)


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _event(pipeline: str, problem: Problem) -> ProblemEvent:
    since = moment(problem.since_us)
    return ProblemEvent(
        pipeline,
        problem.level.value,
        problem.subject,
        problem.what,
        problem.where,
        problem.remedy,
        problem.code,
        since,
        solved=False,
    )
