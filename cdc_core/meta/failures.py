"""The latest error of each task that has not succeeded since: shown first for a pipeline.

An error is removed

    of `extract`    when the source's position or watermark moves (batches)
    of a run        when the run is planned again or committed (runs)
    of `plan`       when a run is planned
    of a copy       when that step of the copy has succeeded
    of a repair     when a repair of the target has ended equal, or a verification has found all of its rows equal
    of gates        when they are closed again

and by nothing else.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select

from cdc_core.errors import LockstepError
from cdc_core.meta import tables
from cdc_core.meta.database import now_us
from cdc_core.meta.rows import Failure

_failure = tables.failure

EXTRACT, PLAN, RUN, COPY, COPY_TABLE, REPAIR = "extract", "plan", "run", "copy", "copy table", "repair"
"""COPY_TABLE: a table that cannot be copied as it is; the others of its source can. REPAIR: of a target."""
GATES = "gates"
"""Of a target: they keep an application out that was led away from its tables."""
_CHARS = 4000


def copied_table(source: str, table: str) -> str:
    """The subject of COPY_TABLE."""
    return f"{source}/{table}"


def keep(connection: Connection, pipeline: str, task: str, subject: str, error: LockstepError) -> None:
    """See Meta.failed."""
    mine = _mine(pipeline, task, subject)
    known = connection.execute(select(_failure).where(mine)).one_or_none()
    now = now_us(connection)
    same = known is not None and known.code == error.code
    values = {
        "code": error.code,
        "exit_class": error.exit_class,
        "what": error.what[:_CHARS],
        "place": error.where[:_CHARS],
        "remedy": error.remedy[:_CHARS],
        "first_us": known.first_us if known is not None and same else now,
        "failed_us": now,
        "times": known.times + 1 if known is not None and same else 1,
    }
    connection.execute(delete(_failure).where(mine))
    connection.execute(insert(_failure).values(pipeline=pipeline, task=task, subject=subject, **values))


def clear(connection: Connection, pipeline: str, task: str, subject: str) -> None:
    """The task has succeeded."""
    connection.execute(delete(_failure).where(_mine(pipeline, task, subject)))


def find(connection: Connection, pipeline: str) -> tuple[Failure, ...]:
    """Of a pipeline, the latest first."""
    query = select(_failure).where(_failure.c.pipeline == pipeline)
    return tuple(
        Failure(
            row.task, row.subject, row.code, row.exit_class, row.what, row.place, row.remedy, row.first_us,
            row.failed_us, row.times,
        )
        for row in connection.execute(query.order_by(_failure.c.failed_us.desc(), _failure.c.subject))
    )  # fmt: skip


def _mine(pipeline: str, task: str, subject: str) -> ColumnElement[bool]:
    return and_(_failure.c.pipeline == pipeline, _failure.c.task == task, _failure.c.subject == subject)
