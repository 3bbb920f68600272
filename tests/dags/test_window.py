"""Which window a run is about."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cdc_core.errors import UsageError
from cdc_core.model.windows import to_us
from lockstep_airflow.window import RunWindow, run_window

FOUR, FIVE, SIX = (datetime(2026, 11, 21, hour, tzinfo=UTC) for hour in (4, 5, 6))


def test_the_data_interval_is_the_window_of_a_scheduled_run() -> None:
    window = run_window({"window_start": None, "window_end": None}, FOUR, FIVE, SIX)
    assert window == RunWindow(to_us(FOUR), to_us(FIVE))


def test_what_the_operator_asks_for_wins_over_the_data_interval() -> None:
    window = run_window(
        {"window_start": "2026-11-21T05:00:00+01:00", "window_end": "2026-11-21T05:30:00Z"}, FIVE, SIX, SIX
    )
    assert window == RunWindow(to_us(FOUR), to_us(FIVE.replace(minute=30)))


def test_a_run_without_interval_takes_everything_up_to_the_moment_it_was_asked_for() -> None:
    assert run_window({}, None, None, FIVE) == RunWindow(0, to_us(FIVE), open=True)


def test_an_interval_without_length_counts_as_none() -> None:
    assert run_window({}, FIVE, FIVE, SIX).open


def test_one_bound_alone_is_enough() -> None:
    assert run_window({"window_end": "2026-11-21T04:00:00Z"}, None, None, SIX) == RunWindow(0, to_us(FOUR))
    assert run_window({"window_start": "2026-11-21T04:00:00Z"}, None, None, SIX) == RunWindow(to_us(FOUR), to_us(SIX))


@pytest.mark.parametrize(
    "params",
    [
        {"window_start": "2026-11-21T05:00:00Z", "window_end": "2026-11-21T05:00:00Z"},
        {"window_start": "2026-11-21T05:00:00"},
        {"window_end": "yesterday"},
    ],
)
def test_a_window_that_means_nothing_is_refused(params: dict[str, str]) -> None:
    with pytest.raises(UsageError) as raised:
        run_window(params, FOUR, FIVE, SIX)
    assert raised.value.code == "usage.argument"
