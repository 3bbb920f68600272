"""Problems of a pipeline as events: one when a problem is new, one when it is solved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from cdc_core.config import Pipeline
from cdc_core.errors import RetryLater
from cdc_core.meta import Meta
from cdc_core.meta.health import Level, Problem
from cdc_core.model.json_codec import parsed, text_of
from cdc_core.model.readable import moment
from cdc_core.operations.status_report import status_of


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
    pipeline: Pipeline, meta: Meta, tell: Callable[[ProblemEvent], None], *, given_up: bool, said: str = ""
) -> bool:
    """Tells what is new and what is solved since the last call, by whatever process; whether a problem that is known
    is what a task failed by. said: that failure's text.

    given_up: nobody tries again, so that errors that a retry may cure are told, too. Raises what `tell` raises; that
    event is told again by the next call.
    """
    problems = {
        _key(problem): problem
        for problem in status_of(pipeline, meta).problems
        if problem.level in (Level.FAILED, Level.LATE)
    }
    events = {key: _event(pipeline.pipeline, problem) for key, problem in problems.items()}
    failed = any(problem.level is Level.FAILED for problem in problems.values())
    ripe = [
        key
        for key, problem in problems.items()
        # What is late beside a failure is so by that.
        if (problem.level is Level.FAILED or not failed) and (given_up or problem.kind is not RetryLater)
    ]
    begun, solved = meta.told.settle(events.keys(), {key: text_of(events[key]) for key in ripe})
    due: list[tuple[str, ProblemEvent, str | None]] = [(key, events[key], None) for key in begun]
    due += [(key, replace(parsed(ProblemEvent, text), solved=True), text) for key, text in solved.items()]
    for at, (_, event, _) in enumerate(due):
        try:
            tell(event)
        except BaseException:
            for key, _, text in due[at:]:
                meta.told.not_told(key, text)
            raise
    return any(_explains(problem, said) for problem in problems.values())


def _explains(problem: Problem, said: str) -> bool:
    """Whether a failure is of the problem: it has its words, or its code and place."""
    return problem.level is Level.FAILED and (
        problem.what in said or (bool(problem.code) and problem.code in said and problem.where in said)
    )


def _key(problem: Problem) -> str:
    """Equal for a problem that is seen again, whatever has changed in its words; by the next run, too."""
    same = (
        ("run", problem.where, problem.code or problem.what)
        if problem.subject.startswith("run ")
        else (problem.subject, problem.code)
    )
    return hashlib.sha256("\n".join((problem.level.value, *same)).encode()).hexdigest()


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
