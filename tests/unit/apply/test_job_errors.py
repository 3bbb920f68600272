"""The error behind a failed Spark application is the last one that it logged; anything else may be tried again."""

from __future__ import annotations

import pytest

from cdc_core.apply.job_errors import error_of
from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, RetryLater, UsageError

REFUSED = Refused("orders has no key [x].", where="shop_0.orders_00", code="target.key", remedy="ADD UNIQUE KEY (id)")


def logged(error: LockstepError) -> str:
    return f"2026-11-21 04:00:00,000 ERROR spark_jobs.job write: {error}"


def found(status: int | None, *output: str) -> LockstepError:
    return error_of(status, output, job="write", seen="the log")


@pytest.mark.parametrize("where", ["shop_1.orders_0", "", "a [at b]"])
@pytest.mark.parametrize("kind", [UsageError, Refused, DataAtRisk, InternalError, RetryLater])
def test_an_error_comes_back_as_it_was_raised(kind: type[LockstepError], where: str) -> None:
    error = kind("Shard 3 (of 4) is full.", where=where, code="write.full", remedy="free some space (any)")
    again = found(kind.exit_code, "26/11/21 04:00:00 INFO Running", logged(error), "26/11/21 INFO closing")
    assert type(again) is kind
    assert str(again) == str(error)
    assert (again.remedy, again.code) == (error.remedy, error.code)


def test_the_last_error_counts() -> None:
    other = DataAtRisk("Other.", code="data.other", remedy="look")
    assert found(DataAtRisk.exit_code, logged(REFUSED), logged(other), "closing").code == "data.other"


@pytest.mark.parametrize("status", [1, 137, -9, None])
def test_an_application_that_was_killed_may_be_tried_again(status: int | None) -> None:
    error = found(status, logged(REFUSED))
    assert isinstance(error, RetryLater)
    assert error.code == "run.spark_ended"


@pytest.mark.parametrize("output", [[], ["Traceback", "ValueError: x (no.code) here"], ["lost (a.b)"]])
def test_a_status_of_ours_without_our_words_may_be_tried_again(output: list[str]) -> None:
    assert found(RetryLater.exit_code, *output).code == "run.spark_ended"
