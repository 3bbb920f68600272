"""What is retried, what fails at once, and what a failed Spark application says."""

from __future__ import annotations

from collections import deque

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, RetryLater, UsageError, to_line
from lockstep_airflow.failures import as_airflow_failures, of_spark


@pytest.mark.parametrize("kind", [UsageError, Refused, DataAtRisk, InternalError])
def test_only_a_passing_condition_is_retried(kind: type[LockstepError], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AirflowFailException) as raised, as_airflow_failures("plan"):
        raise kind("It broke.", where="table a.b", code="x.y", remedy="mend it")
    lines = ["plan failed: It broke.", "  at   table a.b", "  fix  mend it"]
    assert str(raised.value).splitlines()[:3] == lines
    assert [record.getMessage() for record in caplog.records][:3] == lines
    assert "x.y" in str(raised.value).splitlines()[3]
    # What is expected needs no traceback: Airflow prints one for each exception in the chain.
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_passing_condition_is_left_to_airflows_retries() -> None:
    with pytest.raises(AirflowException) as raised, as_airflow_failures("plan"):
        raise RetryLater("Away.", code="x.y", remedy="wait")
    assert not isinstance(raised.value, AirflowFailException)


def test_an_unforeseen_error_fails_at_once_and_airflows_own_pass() -> None:
    with pytest.raises(AirflowFailException, match=r"(?s)KeyError.*internal\.unexpected"), as_airflow_failures("plan"):
        raise KeyError("x")
    with pytest.raises(AirflowSkipException), as_airflow_failures("plan"):
        raise AirflowSkipException("nothing to do")


def test_an_error_of_a_spark_application_comes_back_through_the_hooks_failure() -> None:
    error = Refused("Shard 3 is full.", where="shop_1.orders_0", code="write.full", remedy="free some space")
    failure = AirflowException(
        "Cannot execute: spark-submit x. Error code is: 3.\n"
        f"2026-11-21 04:00:00,123 ERROR spark_jobs.job write: {error}\n{to_line(error, last=True)}\n"
        "26/11/21 04:00:01 INFO ShutdownHookManager"
    )
    found = of_spark(failure, "write")
    assert (type(found), str(found), found.code) == (Refused, str(error), "write.full")


@pytest.mark.parametrize(
    "text",
    [
        "check user, password",
        "password = 'a' and secret= b",
        "SECRET",
        'export A_SECRET_KEY="x" password=',
        "the password",
    ],
)
def test_what_the_hook_masks_in_the_drivers_output_does_not_hide_the_error(text: str) -> None:
    error = Refused(f"Cannot log in: {text}", where=text, code="connection.denied", remedy=text)
    hook = SparkSubmitHook.__new__(SparkSubmitHook)  # its masking alone, without a connection
    hook._last_submit_log_lines = deque(
        f"ERROR spark_jobs.job write: {error}\n{to_line(error, last=True)}".splitlines()
    )
    found = of_spark(AirflowException(f"Cannot execute: x. Error code is: 3.{hook._submit_log_tail}"), "write")
    assert (type(found), str(found)) == (Refused, str(error))


@pytest.mark.parametrize("status", [1, -9, 137])
def test_a_spark_application_that_ends_without_a_word_is_tried_again_and_its_status_is_logged(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = of_spark(AirflowException(f"Cannot execute: x. Error code is: {status}."), "merge")
    assert (type(found), found.code) == (RetryLater, "run.spark_ended")
    assert f"Error code is: {status}." in caplog.text
