"""Times: microseconds since 1970, ages, and windows, which are the intervals of a cron schedule, in UTC.

A batch belongs to exactly one window. Windows are the data intervals of Airflow's CronDataIntervalTimetable for the
same expression (tested against it).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from croniter import croniter

MICROSECONDS = 1_000_000
CLOCK_TOLERANCE_US = 60 * MICROSECONDS
"""Clocks that differ by less count as equal; a time further ahead of a clock is not believed."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970 of an aware datetime, exactly."""
    delta = moment - EPOCH
    return (delta.days * 86_400 + delta.seconds) * MICROSECONDS + delta.microseconds


def parse_moment(text: str) -> datetime:
    """The moment, in UTC, of an ISO 8601 time with a zone. Raises ValueError with a text that follows the value."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is not an ISO 8601 time such as 2026-11-21T04:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("has no zone: end it with Z or an offset such as +02:00")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is not in the years 1 to 9999 of UTC") from None


_AGE = re.compile(r"^([1-9]\d{0,5})([smhdw])$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def age_us(text: str) -> int:
    """`45s`, `90m`, `12h`, `30d`, `4w` -> microseconds. Raises ValueError with a text that follows the value."""
    match = _AGE.match(text)
    if match is None:
        raise ValueError("is not an age such as 90m, 12h, 30d or 4w")
    return int(match[1]) * _SECONDS[match[2]] * MICROSECONDS


def from_us(moment_us: int) -> datetime:
    """The aware UTC datetime of microseconds since 1970."""
    return EPOCH + timedelta(microseconds=moment_us)


def window_label(start_us: int) -> str:
    """`20261121T040000Z`: the window's start as it is written in paths of the stage (no ':', which Hadoop refuses)."""
    return from_us(start_us).strftime("%Y%m%dT%H%M%SZ")


@cache
def _cron() -> ModuleType:
    """Loaded by the first window, because most commands have none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import croniter

    return croniter


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a cron expression.

    Raises ValueError for an expression that is not one of 5 fields (or @hourly and the like).
    """

    schedule: str

    def __post_init__(self) -> None:
        fields = len(self.schedule.split())
        if not _cron().croniter.is_valid(self.schedule) or fields not in (1, 5):
            raise ValueError(f"{self.schedule!r} is not a cron expression of 5 fields such as '0 * * * *'")
        try:
            self._times(EPOCH).get_next(datetime)
        except _cron().CroniterBadDateError:
            raise ValueError(f"{self.schedule!r} names a day that never comes") from None

    def _times(self, start: datetime) -> croniter:
        times: croniter = _cron().croniter(self.schedule, start)
        return times

    def containing(self, moment_us: int) -> tuple[int, int]:
        """Start and end, µs UTC, of the window [start, end) that contains the moment."""
        moment = from_us(moment_us)
        # get_prev is exclusive: begin just after the moment, so that a window's own start belongs to it.
        start = self._times(moment + timedelta(microseconds=1)).get_prev(datetime)
        if start > moment:
            start = self._times(moment).get_prev(datetime)
        end = self._times(start).get_next(datetime)
        return to_us(start), to_us(end)

    def ends_after(self, moment_us: int) -> Iterator[int]:
        """Ends, µs UTC, of the window that contains the moment and of all that follow."""
        end_us = self.containing(moment_us)[1]
        following = self._times(from_us(end_us))
        while True:
            yield end_us
            end_us = to_us(following.get_next(datetime))
