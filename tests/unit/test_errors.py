"""What every error promises: its class decides exit code and retry, and it survives a process border."""

from __future__ import annotations

import pickle

import pytest

from cdc_core.apply.job_errors import error_of
from cdc_core.errors import (
    DataAtRisk,
    InternalError,
    LockstepError,
    Refused,
    RetryLater,
    UsageError,
    combined,
    parts_of,
)

CLASSES = {UsageError: 2, Refused: 3, DataAtRisk: 4, RetryLater: 75, InternalError: 70}


@pytest.mark.parametrize(("kind", "code"), CLASSES.items())
def test_each_class_has_its_exit_code_and_survives_pickling(kind: type[LockstepError], code: int) -> None:
    error = kind("It broke.", where="binlog.000001:4", code="a.b", remedy="mend it")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.exit_code == code
    assert (again.what, again.where, again.code, again.remedy) == ("It broke.", "binlog.000001:4", "a.b", "mend it")


def test_only_retry_later_is_worth_an_automatic_retry() -> None:
    assert [kind for kind in CLASSES if kind.retriable] == [RetryLater]


def test_no_two_classes_share_a_name_or_an_exit_code() -> None:
    assert len({kind.exit_class for kind in CLASSES}) == len({kind.exit_code for kind in CLASSES}) == len(CLASSES)


def test_the_text_says_what_where_the_remedy_and_the_code() -> None:
    text = str(Refused("The account lacks a grant.", where="source shop", code="source.grant", remedy="grant it"))
    assert text == "The account lacks a grant. [at source shop] What to do: grant it (source.grant)"


def test_an_error_without_a_place_leaves_it_out() -> None:
    assert "[at" not in str(UsageError("No.", code="a.b", remedy="yes"))


def test_several_errors_are_one_of_the_gravest_class_on_one_line_and_can_be_told_apart_again() -> None:
    away = RetryLater("It is away.", where="server 2", code="target.unavailable", remedy="try again")
    narrow = Refused("n is narrow.", where="shop.t", code="target.type", remedy="ALTER TABLE t MODIFY n int")
    lost = Refused("t is missing.", where="shop.t", code="target.table", remedy="CREATE TABLE t (n int)")
    error = combined([away, combined([narrow, lost]), narrow])
    assert (type(error), error.code, parts_of(error)) == (Refused, "target.several", (away, narrow, lost))
    assert "\n" not in str(error)
    for one in (away, narrow, lost):
        assert one.what.rstrip(".") in error.what
        assert f"{one.remedy} ({one.code})" in error.remedy
    assert combined([narrow, narrow]) is narrow
    assert parts_of(narrow) == (narrow,)
    assert combined([narrow, Refused("b.", code="target.type", remedy="r")]).code == "target.type"
    logged = error_of(3, [f"t ERROR spark_jobs.job filter: {error}"], job="filter", seen="log")
    assert str(logged) == str(error)
