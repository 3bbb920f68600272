"""The pauses between two attempts, and when there is no further one."""

from __future__ import annotations

import pytest

from cdc_core.source.wire.backoff import LONGEST_PAUSE_S, Backoff


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pauses(backoff: Backoff, clock: Clock) -> list[float]:
    found = []
    while (pause_s := backoff.pause_s()) is not None:
        found.append(pause_s)
        clock.now_s += pause_s
    return found


def test_pauses_grow_up_to_a_bound_and_end_with_the_budget(clock: Clock) -> None:
    found = pauses(Backoff(60, clock=clock, chance=lambda: 1.0), clock)
    assert found == sorted(found)
    assert found[0] < found[1]
    assert max(found) == LONGEST_PAUSE_S
    assert 50 < sum(found) <= 60


def test_chance_shortens_pauses_to_no_less_than_half(clock: Clock) -> None:
    full = pauses(Backoff(60, clock=clock, chance=lambda: 1.0), clock)
    half = pauses(Backoff(60, clock=clock, chance=lambda: 0.0), clock)
    assert half[: len(full)] == [pause / 2 for pause in full]


def test_without_a_budget_there_is_no_attempt(clock: Clock) -> None:
    assert Backoff(0, clock=clock).pause_s() is None


def test_getting_further_renews_the_budget(clock: Clock) -> None:
    backoff = Backoff(10, clock=clock, chance=lambda: 1.0)
    backoff.reached(1, 100)
    for offset in range(101, 200):
        assert backoff.pause_s() == 0.2
        clock.now_s += 5
        backoff.reached(1, offset)


def test_the_same_place_lost_again_and_again_uses_the_budget_up(clock: Clock) -> None:
    backoff = Backoff(10, clock=clock, chance=lambda: 1.0)
    backoff.reached(1, 100)
    for _ in range(100):
        if backoff.pause_s() is None:
            return
        clock.now_s += 1
        backoff.reached(1, 60)
        backoff.reached(1, 100)
    pytest.fail("it never gives up")


def test_an_idle_connection_that_lives_as_long_as_the_budget_renews_it(clock: Clock) -> None:
    backoff = Backoff(10, clock=clock, chance=lambda: 1.0)
    backoff.reached(1, 100)
    assert backoff.pause_s() is not None
    backoff.reached(1, 100)
    clock.now_s += 11
    backoff.reached(1, 100)
    assert backoff.pause_s() == 0.2
