"""What Great Expectations says of a suite, as a run keeps it."""

from __future__ import annotations

import great_expectations as gx
import pandas as pd
from great_expectations import expectations as gxe

from spark_jobs.suite_runner import judge


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
