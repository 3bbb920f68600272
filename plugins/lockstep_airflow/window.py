"""Which interval a DAG run covers.

1. The params window_start and window_end, if given: the operator's choice wins.
2. The data interval of a run that Airflow's schedule or a backfill has made.
3. Neither: everything up to the moment the run was triggered. That moment belongs to the run, so that a retry means the
   same. A triggered run's logical date and data interval say nothing: the form fills in the current time, and Airflow
   derives an interval in one way for the form, and in another for its command line and other DAGs. Up to the trigger, a
   run takes at least what somebody may have meant by a date or an interval of the past.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cdc_core.errors import UsageError
from cdc_core.model.windows import from_us, parse_moment, to_us

WINDOW_START = "window_start"
WINDOW_END = "window_end"
TARGETS = "targets"
DRY_RUN = "dry_run"
ACCEPT = "accept"
ABANDON = "abandon"
TARGET = "target"
TABLES = "tables"
READERS = "readers"
FIRST_BATCHES = "first_batches"
LAST_BATCHES = "last_batches"
REQUEUE = "requeue"
SOURCE = "source"
MODE = "mode"
RESTART = "restart"
REPAIR = "repair"
DIRECTION = "direction"
REHEARSE = "rehearse"


@dataclass(frozen=True, slots=True)
class RunWindow:
    """[start, end) in µs UTC. open: no window was named; it means everything up to its end."""

    start_us: int
    end_us: int
    open: bool = False

    def __str__(self) -> str:
        start = from_us(self.start_us).isoformat() if self.start_us else "the beginning"
        return f"[{start}, {from_us(self.end_us).isoformat()})"


def run_window(
    params: Mapping[str, Any],
    interval_start: datetime | None,
    interval_end: datetime | None,
    asked_at: datetime,
) -> RunWindow:
    """The window of a run; the module's docstring has the order. Raises UsageError (usage.argument)."""
    start, end = moment_us(params, WINDOW_START), moment_us(params, WINDOW_END)
    if start is not None or end is not None:
        window = RunWindow(start or 0, end if end is not None else to_us(asked_at))
    elif interval_start is not None and interval_end is not None and interval_start < interval_end:
        window = RunWindow(to_us(interval_start), to_us(interval_end))
    else:
        window = RunWindow(0, to_us(asked_at), open=True)
    if window.start_us >= window.end_us:
        raise UsageError(
            f"The window {window} is empty.",
            where=f"params {WINDOW_START}, {WINDOW_END}",
            code="usage.argument",
            remedy=f"give a {WINDOW_END} after {WINDOW_START}, or leave both out",
        )
    return window


def moment_us(params: Mapping[str, Any], name: str) -> int | None:
    """A param that holds a moment; None if it is empty. Raises UsageError (usage.argument)."""
    text = params.get(name)
    if text is None or text == "":
        return None
    try:
        return to_us(parse_moment(str(text)))
    except ValueError as error:
        raise UsageError(
            f"{str(text)!r} {error}.",
            where=f"param {name}",
            code="usage.argument",
            remedy="write it like 2026-11-21T04:00:00Z",
        ) from None
