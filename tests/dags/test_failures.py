"""What is retried, and what fails at once."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, RetryLater, UsageError
from lockstep_airflow.airflow_failures import as_airflow_failures


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
    with pytest.raises(AirflowFailException, match=r"(?s)KeyError.*internal\.defect"), as_airflow_failures("plan"):
        raise KeyError("x")
    with pytest.raises(AirflowSkipException), as_airflow_failures("plan"):
        raise AirflowSkipException("nothing to do")
