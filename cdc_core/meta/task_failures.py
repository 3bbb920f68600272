"""The latest error of each task that has not succeeded since: shown first for a pipeline.

An error is removed

    of `extract`    when the source's position or watermark moves (batches)
    of a run        when the run is planned again or committed (runs)
    of `plan`       when a run is planned
    of a copy       when that step of the copy has succeeded
    of a repair     when a repair of the target has ended equal, or a verification has found all of its rows equal
    of gates        when they are closed again
    of lost writes  when a run finds that the target has them, or an operator accepts the loss
    of an erasure   when it has ended

and by nothing else.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, delete, insert, select

from cdc_core.errors import LockstepError
from cdc_core.meta.meta_rows import Failure
from cdc_core.meta.meta_schema import failure as _failure
from cdc_core.meta.repository import Repository, reads, value_of, writes

EXTRACT, PLAN, RUN, COPY, COPY_TABLE, REPAIR = "extract", "plan", "run", "copy", "copy table", "repair"
"""COPY_TABLE: a table that cannot be copied as it is; the others of its source can. REPAIR: of a target."""
GATES = "gates"
"""A failure of a target: its gates no longer keep out an application that was led away from its tables."""
LOST_WRITES = "lost writes"
"""A failure of a target: it lacks writes that ledgers count."""
FORGET = "forget"
"""An erasure of rows of a table that has begun."""
_CHARS = 4000


def copied_table(source: str, table: str) -> str:
    """The subject of COPY_TABLE."""
    return f"{source}/{table}"


class TaskFailures(Repository):
    @writes
    def keep(self, task: str, subject: str, error: LockstepError) -> None:
        """Keep an error of a task (extract, plan, run, copy) of a source or run, until the task has succeeded."""
        mine = _mine(task, subject)
        row = self.execute(select(_failure).where(mine)).one_or_none()
        now = self.now_us()
        same = row is not None and row.code == error.code
        values = {
            "code": error.code,
            "exit_class": error.exit_class,
            "what": error.what[:_CHARS],
            "place": error.where[:_CHARS],
            "remedy": error.remedy[:_CHARS],
            "first_us": row.first_us if row is not None and same else now,
            "failed_us": now,
            "times": row.times + 1 if row is not None and same else 1,
        }
        self.execute(delete(_failure).where(mine))
        self.execute(insert(_failure).values(task=task, subject=subject, **values))

    @writes
    def clear(self, task: str, subject: str) -> None:
        """The task has succeeded."""
        self.execute(delete(_failure).where(_mine(task, subject)))

    @reads
    def find(self) -> tuple[Failure, ...]:
        """Errors that no success has followed, the latest first."""
        rows = self.execute(select(_failure).order_by(_failure.c.failed_us.desc(), _failure.c.subject))
        return tuple(value_of(Failure, row, where=row.place) for row in rows)


def _mine(task: str, subject: str) -> ColumnElement[bool]:
    return and_(_failure.c.task == task, _failure.c.subject == subject)
