"""What Great Expectations says of a suite, as a run keeps it."""

from __future__ import annotations

import gc
import weakref
from decimal import Decimal
from typing import Any

import great_expectations as gx
import pyarrow as pa
import pytest
from great_expectations import expectations as gxe
from great_expectations.execution_engine import pandas_execution_engine

from spark_jobs import suite_runner
from spark_jobs.suite_runner import judge


def test_an_expectation_that_could_not_be_evaluated_fails_and_says_why_and_one_that_holds_says_nothing() -> None:
    suite = gx.ExpectationSuite(
        name="two",
        expectations=[gxe.ExpectColumnValuesToNotBeNull(column=name) for name in ("there", "missing")],
    )
    verdict = judge(pa.table({"there": [1]}), suite, 1)
    by_column = {expectation["arguments"]["column"]: expectation for expectation in verdict["expectations"]}
    there, missing = by_column["there"], by_column["missing"]
    assert (verdict["success"], there["success"], missing["success"]) == (False, True, False)
    assert "could not evaluate" in missing["result"]
    assert "could not evaluate" not in there["result"]


def test_a_frame_is_judged_without_a_hash_of_all_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(_: Any) -> str:
        raise AssertionError("the whole frame was hashed")

    monkeypatch.setattr(pandas_execution_engine, "hash_pandas_dataframe", hashed)
    suite = gx.ExpectationSuite(name="own", expectations=[gxe.ExpectColumnValuesToNotBeNull(column="id")])
    assert judge(pa.table({"id": [1, 2]}), suite, 2)["success"]


def test_no_rows_are_kept_for_the_next_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = []
    in_pandas = suite_runner._in_pandas

    def seen(rows: pa.Table) -> Any:
        frames.append(weakref.ref(made := in_pandas(rows)))
        return made

    monkeypatch.setattr(suite_runner, "_in_pandas", seen)
    suite = gx.ExpectationSuite(name="own", expectations=[gxe.ExpectColumnValuesToNotBeNull(column="id")])
    assert [judge(pa.table({"id": [1, value]}), suite, 2)["success"] for value in (2, None, 3)] == [True, False, True]
    gc.collect()
    assert [frame() is None for frame in frames] == [True] * 3


@pytest.mark.parametrize(
    "expectation",
    [
        gxe.ExpectColumnValuesToBeUnique(column="id"),
        gxe.ExpectColumnValuesToMatchRegex(column="id", regex="^[0-9]+$"),
        gxe.ExpectColumnValuesToBeInSet(column="id", value_set=[2**53, 2**53 + 1]),
        gxe.ExpectColumnValuesToBeBetween(column="price", min_value=0.01, max_value=0.2),
        gxe.ExpectColumnValuesToBeInSet(column="price", value_set=[0.01, 0.1, 0.2]),
        gxe.ExpectColumnMinToBeBetween(column="price", min_value=0.01),
        gxe.ExpectColumnValuesToBeUnique(column="long"),
        gxe.ExpectColumnValuesToNotBeNull(column="nothing", mostly=0.0),
    ],
    ids=lambda expectation: f"{type(expectation).__name__} {expectation.column}",
)
def test_what_a_suite_may_ask_of_right_rows_is_met_in_memory(expectation: Any) -> None:
    long = [Decimal("12345678901234567.01"), Decimal("12345678901234567.02"), None]
    rows = pa.table({
        "id": pa.array([2**53, 2**53 + 1, None]),
        "price": pa.array([Decimal("0.01"), Decimal("0.10"), Decimal("0.20")], pa.decimal128(18, 2)),
        "long": pa.array(long, pa.decimal128(19, 2)),
        "nothing": pa.nulls(3, pa.decimal128(9, 2)),
    })  # fmt: skip
    suite = gx.ExpectationSuite(name="own", expectations=[expectation])
    assert judge(rows, suite, 3)["success"]
