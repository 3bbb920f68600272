"""What Great Expectations says of a suite, as a run keeps it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import great_expectations as gx
import pandas as pd
import pyarrow as pa
import pytest
from great_expectations import expectations as gxe
from great_expectations.execution_engine import pandas_execution_engine

from spark_jobs.suite_runner import judge, judge_parts, judged_in_memory


def test_an_expectation_that_could_not_be_evaluated_fails_and_says_why_and_one_that_holds_says_nothing() -> None:
    suite = gx.ExpectationSuite(
        name="two",
        expectations=[gxe.ExpectColumnValuesToNotBeNull(column=name) for name in ("there", "missing")],
    )
    verdict = judge(pd.DataFrame({"there": [1]}), suite, 1)
    by_column = {one["arguments"]["column"]: one for one in verdict["expectations"]}
    there, missing = by_column["there"], by_column["missing"]
    assert (verdict["success"], there["success"], missing["success"]) == (False, True, False)
    assert "could not evaluate" in missing["result"]
    assert "could not evaluate" not in there["result"]


def test_a_frame_is_judged_without_a_hash_of_all_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(_: Any) -> str:
        raise AssertionError("the whole frame was hashed")

    monkeypatch.setattr(pandas_execution_engine, "hash_pandas_dataframe", hashed)
    suite = gx.ExpectationSuite(name="own", expectations=[gxe.ExpectColumnValuesToNotBeNull(column="id")])
    assert judge(pd.DataFrame({"id": [1, 2]}), suite, 2)["success"]


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
    ids=lambda one: f"{type(one).__name__} {one.column}",
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
    assert judge(judged_in_memory(rows), suite, 3)["success"]


def suite_of(rows: int) -> gx.ExpectationSuite:
    return gx.ExpectationSuite(
        name="parts",
        expectations=[
            gxe.ExpectTableRowCountToEqual(value=rows),
            gxe.ExpectColumnValuesToNotBeNull(column="key"),
            gxe.ExpectColumnValuesToBeInSet(column="op", value_set=["u"]),
            gxe.ExpectCompoundColumnsToBeUnique(column_list=["key", "op"]),
        ],
    )


def ordered(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(verdict["expectations"], key=lambda one: str(one["expectation"]))


def test_the_verdict_of_parts_is_that_of_the_whole() -> None:
    good = [pd.DataFrame({"key": [1, 2], "op": ["u", "u"]}), pd.DataFrame({"key": [3], "op": ["u"]})]
    bad = [
        pd.DataFrame({"key": [1, 1, 5], "op": ["u", "u", "x"]}),
        pd.DataFrame({"key": [3], "op": ["u"]}),
        pd.DataFrame({"key": [4], "op": ["y"]}),
    ]
    for parts in (good, bad, good[:1]):
        frame = pd.concat(parts)
        for rows in (len(frame), len(frame) + 1):
            whole, cut = judge(frame, suite_of(rows), rows), judge_parts(iter(parts), suite_of, rows)
            for name in ("success", "suite", "engine", "rows"):
                assert cut[name] == whole[name]
            for one, other in zip(ordered(cut), ordered(whole), strict=True):
                for name in ("expectation", "arguments", "severity", "success"):
                    assert one[name] == other[name]
                for name, value in one["result"].items():
                    if name.endswith("_count") or name == "observed_value":
                        assert value == other["result"][name], name
    found = judge_parts(iter(bad), suite_of, 5)["expectations"]
    assert {one["expectation"] for one in found if not one["success"]} == {
        "expect_column_values_to_be_in_set",
        "expect_compound_columns_to_be_unique",
    }


def test_parts_without_a_row_are_not_what_was_to_be_judged() -> None:
    assert judge_parts(iter([]), suite_of, 0)["success"]
    assert not judge_parts(iter([]), suite_of, 1)["success"]
