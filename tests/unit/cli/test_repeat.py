"""Repeated work: what passes is tried again, any other error ends it, and an interrupt ends the work under way."""

from __future__ import annotations

import pytest

from cdc_core.cli.output import CliOutput
from cdc_core.cli.run import repeat
from cdc_core.errors import LockstepError, Refused, RetryLater

PASSES = RetryLater("The server is away.", code="connection.failed", remedy="wait")
STAYS = Refused("The table has a fence.", code="target.fenced", remedy="lower it")


@pytest.mark.parametrize("left", [SystemExit(143), KeyboardInterrupt()])
def test_work_repeats_after_errors_that_pass_until_it_is_interrupted(
    left: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def work() -> None:
        done.append("begun")
        if len(done) == 1:
            raise PASSES
        if len(done) == 3:
            raise left

    repeat(work, 0.01, CliOutput(as_json=True))
    assert done == ["begun", "begun", "begun"]
    assert "The server is away." in capsys.readouterr().err


@pytest.mark.parametrize("error", [STAYS, ValueError("unforeseen")])
def test_an_error_that_stays_ends_it(error: Exception) -> None:
    def work() -> None:
        raise error

    with pytest.raises(LockstepError if isinstance(error, LockstepError) else ValueError) as caught:
        repeat(work, 60.0, CliOutput(as_json=True))
    assert caught.value is error
