"""The rate of a copy is that of its last half minute, whoever reads; a copy that stood still begins its rate again."""

from __future__ import annotations

from cdc_core.meta.copy_pace import ROW_COST_BYTES, Moment, Rate, noted, rate_of

SECOND = 1_000_000


def after(seconds: float, rows: int) -> Moment:
    return Moment(round(seconds * SECOND), rows, 100 * rows)


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    moments = (after(0, 0),)
    for second in range(1, 101):
        moments = noted(moments, after(second, 1000 * second))
    assert rate_of(moments, 100 * SECOND) == Rate(1000, 100_000)
    for second in range(101, 141):
        moments = noted(moments, after(second, 100_000 + 10 * (second - 100)))
    assert rate_of(moments, 140 * SECOND) == Rate(10, 1000)


def test_however_often_chunks_are_read_few_moments_are_kept() -> None:
    moments = (after(0, 0),)
    for number in range(1, 100_001):
        moments = noted(moments, after(number / 1000, number))
        assert moments[-1] == after(number / 1000, number)
    assert len(moments) < 20
    assert rate_of(moments, 100 * SECOND) == Rate(1000, 100_000)


def test_a_copy_that_has_just_begun_or_does_not_go_on_has_no_rate() -> None:
    assert rate_of((), SECOND) is None
    assert rate_of((after(0, 0),), SECOND) is None
    assert rate_of((after(0, 0), after(1, 0)), SECOND) is None
    moments = (after(0, 0), after(10, 50))
    assert rate_of(moments, 100 * SECOND) == Rate(5, 500)
    assert rate_of(moments, 131 * SECOND) is None


def test_the_time_in_which_a_killed_copy_stood_still_does_not_count() -> None:
    moments = noted((after(0, 0), after(10, 1000)), after(3600, 1200))
    assert rate_of(moments, 3600 * SECOND) is None
    assert rate_of(noted(moments, after(3604, 1600)), 3604 * SECOND) == Rate(100, 10_000)


def test_time_left_counts_a_row_as_its_bytes_and_a_fixed_cost() -> None:
    assert Rate(10, 1000).left_s(100, 10_000) == 10
    assert Rate(10, 1000).left_s(0, 1000 + 10 * ROW_COST_BYTES) == 1
