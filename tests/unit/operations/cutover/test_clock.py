"""What the seconds of a stop were for."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from cdc_core.errors import RetryLater
from cdc_core.operations.cutover import clock
from cdc_core.operations.cutover.clock import Clock, Laps
from tests.lab.refusals import raises


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test moves on."""
    at = [100.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: at[0])
    return at


def test_each_step_has_its_seconds_and_one_that_comes_again_is_added(now: list[float]) -> None:
    laps = Laps()
    for step, seconds in (("lock", 1), ("", 5), ("write", 2), ("lock", 4)):
        laps.begin(step)
        now[0] += seconds
    laps.add({"write": 3, "proof": 7})
    assert laps.until_now() == {"lock": 5, "write": 5, "proof": 7}
    now[0] += 1
    assert list(laps.until_now().items()) == [("lock", 6), ("write", 5), ("proof", 7)]


def test_a_stop_above_its_budget_is_refused_with_what_it_was_for(now: list[float]) -> None:
    held = Clock(budget_s=5)
    now[0] += 10
    held.begin(lambda: None)  # waiting for the locks does not count
    held.laps.begin("write")
    now[0] += 5
    held.require("the proof")
    now[0] += 1
    with raises(RetryLater, "cutover.too_slow", match=r"6\.0 s.*before the proof.*write 6\.0 s"):
        held.require("the proof")
    assert held.noted() == {"stopped_s": 6, "stop_steps_s": {"write": 6}}
    held.end()


def test_above_the_budget_all_is_released_in_its_order_and_nothing_is_decided_any_more() -> None:
    held, released = Clock(budget_s=0.01), list[str]()
    over = threading.Event()
    held.begin(lambda: (released.append("the application"), over.set()))
    held.release_first(lambda: released.append("the locks"))
    assert over.wait(60)
    held.release_first(lambda: released.append("locks that are taken too late"))
    assert released[-1] == "locks that are taken too late"
    assert sorted(released[:-1]) == ["the application", "the locks"]
    with pytest.raises(RetryLater, match="before the switch"):
        held.decide("the switch")
    held.end()


def test_once_it_is_decided_nothing_is_released() -> None:
    held, released = Clock(budget_s=600), list[str]()
    held.begin(lambda: released.append("the application"))
    held.decide("the switch")
    held._run_out()  # a timer that was just about to
    assert released == []


def test_what_cannot_be_released_keeps_nothing_else_from_being_released() -> None:
    held, over = Clock(budget_s=0.5), threading.Event()
    held.begin(over.set)
    with suppress(KeyError):  # which is raised here if the budget is over already
        held.release_first(lambda: {}["a defect"])
    assert over.wait(60)
    held.end()
