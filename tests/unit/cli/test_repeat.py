"""Repeated work: what passes is tried again, any other error ends it, and a signal lets the work under way end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from cdc_core.cli.output import CliOutput
from cdc_core.cli.repeat import repeat
from cdc_core.errors import LockstepError, Refused, RetryLater

PASSES = RetryLater("The server is away.", code="connection.failed", remedy="wait")
STAYS = Refused("The table has a fence.", code="target.fenced", remedy="lower it")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_repeats_after_errors_that_pass_until_a_signal(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    done: list[str] = []

    def work() -> None:
        done.append("begun")
        if len(done) == 1:
            raise PASSES
        if len(done) == 3:
            os.kill(os.getpid(), number)
            done.append("ended")

    repeat(work, 0.01, CliOutput(as_json=True))
    assert done == ["begun", "begun", "begun", "ended"]
    assert "The server is away." in capsys.readouterr().err
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where the tests run in the background of a shell, which lets them ignore SIGINT."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_interrupts_the_work() -> None:
    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        repeat(work, 60.0, CliOutput(as_json=True))


@pytest.mark.parametrize("error", [STAYS, ValueError("unforeseen")])
def test_an_error_that_stays_ends_it(error: Exception) -> None:
    def work() -> None:
        raise error

    with pytest.raises(LockstepError if isinstance(error, LockstepError) else ValueError) as caught:
        repeat(work, 60.0, CliOutput(as_json=True))
    assert caught.value is error
