"""The verdict of a suite of expectations/ on a frame.

GX's pandas engine judges a frame in memory (0.1 s), its Spark engine one of Spark (3 s and more): the same suites,
measured to give the same verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from cdc_core.apply.suites import read_suite, refused
from cdc_core.config import Suite
from spark_jobs.late_modules import late

with late({"altair": lambda: import_module("altair"), "scipy.stats": lambda: import_module("scipy.stats")}):
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from great_expectations.exceptions import GreatExpectationsError

    from lockstep_expectations import merged, staged, target

GOOD = target.GOOD
SUITES = {"staged": staged.suite, "merged": merged.suite, "target": target.suite}


def own_suite(suite: Suite) -> gx.ExpectationSuite:
    """The suite of a file. Raises UsageError (quality.suite)."""
    expectations = read_suite(suite)
    try:
        return gx.ExpectationSuite(name=Path(suite.path).stem, expectations=expectations)
    except (GreatExpectationsError, ValueError) as error:
        raise refused(suite, f"is refused by Great Expectations: {error}") from None


def judge(frame: Any, suite: gx.ExpectationSuite, rows: int) -> dict[str, Any]:
    """The verdict of a suite on a frame of about this many rows, of Spark or of pandas."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    small = not isinstance(frame, DataFrame)
    if small:
        source: Any = context.data_sources.add_pandas("rows")
    else:
        source = context.data_sources.add_spark("rows", persist=False)
        frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        whole = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("rows")
        batch = whole.get_batch({"dataframe": frame})
        result = batch.validate(suite, result_format="BOOLEAN_ONLY")
        if not result.success:  # only now are counts and examples worth their cost
            result = batch.validate(suite, result_format="SUMMARY")
    finally:
        if not small:
            frame.unpersist()
    found = [_one(outcome) for outcome in result.results]
    return {
        "success": all(one["success"] or one["severity"] != "critical" for one in found),
        "suite": suite.name,
        "engine": "pandas" if small else "spark",
        "rows": rows,
        "expectations": found,
    }


def _raised(info: Mapping[str, Any]) -> bool:
    """Whether an expectation could not be evaluated. info: of it, or of each of its metrics by their ids."""
    each = [info] if "raised_exception" in info else [one for one in info.values() if isinstance(one, Mapping)]
    return any(one.get("raised_exception") for one in each)


def _one(outcome: Any) -> dict[str, Any]:
    config = outcome.expectation_config
    detail = dict(outcome.result or {})
    raised = _raised(outcome.exception_info or {})
    if raised:
        detail = {"could not evaluate": str(outcome.exception_info)[:2000]}
    kwargs = {name: value for name, value in config.kwargs.items() if name != "batch_id"}
    return {
        "expectation": config.type,
        "arguments": kwargs,
        "severity": str(getattr(config.severity, "value", config.severity) or "critical"),
        "success": bool(outcome.success) and not raised,
        "result": json.loads(json.dumps(detail, default=str)),
    }
