"""The error that ended a Spark application is the one that it says itself; anything else may be tried again."""

from __future__ import annotations

import pytest

from cdc_core.apply.job_errors import error_of
from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, RetryLater, UsageError, to_line

REFUSED = Refused("orders has no key [x].", where="shop_0.orders_00", code="target.key", remedy="ADD UNIQUE KEY (id)")


def logged(error: LockstepError) -> str:
    return f"2026-11-21 04:00:00,000 ERROR spark_jobs.job write: {error}\n{to_line(error, last=True)}"


def found(status: int | None, *output: str) -> LockstepError:
    return error_of("\n".join(output), job="write", status=status, seen="the log")


@pytest.mark.parametrize("where", ["shop_1.orders_0", "", "a [at b]"])
@pytest.mark.parametrize("kind", [UsageError, Refused, DataAtRisk, InternalError, RetryLater])
def test_an_error_comes_back_as_it_was_raised(kind: type[LockstepError], where: str) -> None:
    error = kind("Shard 3 (of 4) is full.", where=where, code="write.full", remedy="free some space (any)")
    again = found(kind.exit_code, "26/11/21 04:00:00 INFO Running", logged(error), "26/11/21 INFO closing")
    assert type(again) is kind
    assert str(again) == str(error)
    assert (again.remedy, again.code) == (error.remedy, error.code)


def test_the_wording_of_the_text_for_people_decides_nothing() -> None:
    reworded = logged(REFUSED).replace("What to do:", "Fix:").replace("[at", "(in")
    assert str(found(3, reworded)) == str(REFUSED)


def test_the_last_error_counts() -> None:
    other = DataAtRisk("Other.", code="data.other", remedy="look")
    assert found(DataAtRisk.exit_code, logged(REFUSED), logged(other), "closing").code == "data.other"


@pytest.mark.parametrize("status", [1, 3, 137, -9, None])
def test_an_application_that_was_killed_may_be_tried_again_whatever_its_workers_had_raised(status: int | None) -> None:
    error = found(status, f"WARN TaskSetManager: Lost task 0.0: CarriedError: {REFUSED}\n{to_line(REFUSED)}")
    assert isinstance(error, RetryLater)
    assert error.code == "run.spark_ended"
    assert status is None or f"status {status}" in str(error)


@pytest.mark.parametrize("output", [[], ["Traceback", "ValueError: x (no.code) here"], [str(REFUSED)]])
def test_a_status_of_ours_without_an_error_may_be_tried_again(output: list[str]) -> None:
    assert found(RetryLater.exit_code, *output).code == "run.spark_ended"
