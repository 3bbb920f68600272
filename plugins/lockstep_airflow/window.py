"""Which interval a DAG run covers.

1. The params window_start and window_end of a triggered run, if given: the operator's choice wins.
2. The run's data interval: scheduled and backfilled runs, and runs triggered with a logical date of the past.
3. Neither: everything up to the moment the run was triggered. That moment belongs to the run, so that a retry means the
   same. A run triggered without a logical date has no interval in Airflow 3; the trigger form fills in the current time
   as the logical date, which means the same (`means_now`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cdc_core.errors import UsageError
from cdc_core.model.windows import MICROSECONDS, Windows, from_us, parse_moment, to_us

FORM_OPEN_US = 600 * MICROSECONDS
"""A logical date at most this long before the trigger was filled in by the form, which the user took time to submit."""
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


def means_now(logical_date: datetime | None, asked_at: datetime, windows: Windows) -> bool:
    """Whether a run triggered by hand means the current time: the trigger form fills in its logical date when it opens.

    Not if the date is the edge of a window: an operator who means the window before it enters that.
    """
    if logical_date is None:
        return True
    date_us, asked_us = to_us(logical_date), to_us(asked_at)
    start_us, end_us = windows.containing(date_us)
    return date_us != start_us and (asked_us < end_us or asked_us - date_us <= FORM_OPEN_US)


def interval_of(
    logical_date: datetime, interval: tuple[datetime, datetime], asked_at: datetime, windows: Windows
) -> tuple[datetime, datetime]:
    """The interval of a run triggered with a logical date of the past: the last one that ends at or before that date.

    Airflow's form and REST interface give it to the run. Its command line and TriggerDagRunOperator give the last one
    before the trigger, whatever the date is; where that one begins at the date, it may have been asked for.
    """
    start, end = interval
    given_us = to_us(start), to_us(end)
    date_us, last_end_us = to_us(logical_date), windows.containing(to_us(asked_at))[0]
    if given_us != windows.containing(last_end_us - 1) or date_us >= given_us[1] or date_us == given_us[0]:
        return interval
    start_us, end_us = windows.containing(windows.containing(date_us)[0] - 1)
    return from_us(start_us), from_us(end_us)


def chosen_targets(params: Mapping[str, Any], known: tuple[str, ...]) -> tuple[str, ...]:
    """The targets that the run is for, in the pipeline's order; all by default. Raises UsageError
    (usage.unknown_name)."""
    chosen = tuple(params.get(TARGETS) or known)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise UsageError(
            f"The pipeline has no target {unknown[0]!r}.",
            where=f"param {TARGETS}",
            code="usage.unknown_name",
            remedy=f"choose from {', '.join(known)}, or leave it empty for all",
        )
    return tuple(name for name in known if name in chosen)


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
