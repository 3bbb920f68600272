"""Windows are half-open, without gaps, and the same as the data intervals of Airflow's timetable."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.cli.options import time_us
from cdc_core.errors import UsageError
from cdc_core.model.windows import Windows, from_us, parse_moment, to_us, window_label
from cdc_core.stage.public import as_of
from lockstep_airflow.window import moment_us

SCHEDULES = ["0 * * * *", "@hourly", "*/5 * * * *", "15 3 * * *", "0 0 * * 1", "0 0 31 * *", "7,23 2-4 1 */2 *"]
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))


@given(moment=MOMENTS, schedule=st.sampled_from(SCHEDULES))
def test_a_window_contains_its_moment_and_is_found_from_every_point_of_it(moment: datetime, schedule: str) -> None:
    windows = Windows(schedule)
    start, end = windows.containing(to_us(moment))
    assert start <= to_us(moment) < end
    assert windows.containing(start) == windows.containing(end - 1) == (start, end)


@given(moment=MOMENTS)
def test_microseconds_go_there_and_back_exactly(moment: datetime) -> None:
    assert from_us(to_us(moment)) == moment


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_windows_are_the_data_intervals_of_airflow(schedule: str) -> None:
    from airflow.sdk import Asset  # noqa: F401  (sets Airflow up before its timetables are imported)
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.interval import CronDataIntervalTimetable
    from pendulum import instance

    timetable = CronDataIntervalTimetable(schedule, timezone="UTC")
    windows = Windows(schedule)
    start, end = windows.containing(to_us(datetime(2026, 2, 27, 23, 58, tzinfo=UTC)))
    run = timetable.next_dagrun_info(
        last_automated_data_interval=None,
        restriction=TimeRestriction(earliest=instance(from_us(start)), latest=None, catchup=True),
    )
    for _ in range(40):
        assert (to_us(run.data_interval.start), to_us(run.data_interval.end)) == (start, end)
        start, end = windows.containing(end)
        run = timetable.next_dagrun_info(
            last_automated_data_interval=run.data_interval,
            restriction=TimeRestriction(earliest=None, latest=None, catchup=True),
        )


@pytest.mark.parametrize("schedule", ["", "hourly", "* * * *", "* * * * * *", "61 * * * *", "0 0 30 2 *"])
def test_an_expression_without_windows_is_refused(schedule: str) -> None:
    with pytest.raises(ValueError, match=r"cron expression|never comes"):
        Windows(schedule)


def test_a_label_has_no_character_that_a_path_cannot_hold_and_sorts_by_time() -> None:
    moment = datetime(2026, 11, 21, 4, tzinfo=UTC)
    labels = [window_label(to_us(moment + timedelta(hours=hour))) for hour in range(30)]
    assert labels[0] == "20261121T040000Z"
    assert labels == sorted(labels)


@given(moment=st.datetimes(timezones=st.timezones()))
def test_a_moment_is_read_in_utc_from_any_zone_or_refused(moment: datetime) -> None:
    try:
        expected = moment.astimezone(UTC)
    except OverflowError:
        expected = None
    if expected is None:
        with pytest.raises(ValueError, match="years 1 to 9999 of UTC"):
            parse_moment(moment.isoformat())
    else:
        read = parse_moment(moment.isoformat())
        assert (read, read.utcoffset()) == (expected, timedelta())


BAD_MOMENTS = ["", "now", "2026-11-21", "2026-11-21T04:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-01:00"]


@pytest.mark.parametrize("text", BAD_MOMENTS)
def test_a_text_that_is_no_moment_is_an_error_of_whoever_wrote_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) "):
        parse_moment(text)
    with pytest.raises(UsageError):
        time_us(text, "--since")
    with pytest.raises(UsageError):
        as_of(text)
    if text:  # an empty param is one that was left out
        with pytest.raises(UsageError):
            moment_us({"window_start": text}, "window_start")
