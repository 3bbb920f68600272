"""The verdict of a suite of expectations/ on rows.

GX's pandas engine judges an Arrow table (0.1 s), its Spark engine a frame of Spark (3 s and more), which only suites of
a pipeline's own on large tables need: measured, both give the same verdicts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from cdc_core.config import Suite
from cdc_core.operations.apply.suites import read_suite, refused
from spark_jobs.late_modules import OF_GREAT_EXPECTATIONS, late
from spark_jobs.quality_rows import OUTCOME

with late(OF_GREAT_EXPECTATIONS):
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from great_expectations.exceptions import GreatExpectationsError
    from great_expectations.execution_engine import pandas_execution_engine

    from lockstep_expectations import merged_suite as merged
    from lockstep_expectations import staged_suite as staged
    from lockstep_expectations import target_suite as target

# GX marks each batch with a hash of all its values, up to frames of so many bytes. Nothing here reads the mark, and it
# takes three quarters of the time in which a million rows are judged.
pandas_execution_engine.HASH_THRESHOLD = 0
# It logs at INFO whatever its parents' level is.
logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)

_EXACT = 10**15
"""Floats tell smaller integers apart."""
EXAMPLES = 20
"""So many rows that are not good are shown."""
SUITES = {"staged": staged.suite, "merged": merged.suite, "target": target.suite}


def own_suite(suite: Suite) -> gx.ExpectationSuite:
    """The suite of a file. Raises UsageError (quality.suite)."""
    expectations = read_suite(suite)
    try:
        return gx.ExpectationSuite(name=Path(suite.path).stem, expectations=expectations)
    except (GreatExpectationsError, ValueError) as error:
        raise refused(suite, f"is refused by Great Expectations: {error}") from None


def _in_pandas(rows: pa.Table) -> Any:
    """The rows as a pandas frame that GX judges as it judges the same rows in Spark: integers stay exact beside nulls,
    and a DECIMAL is compared as the float that a suite has for it (pandas finds the DECIMAL 0.01 less than 0.01)."""
    columns = [
        _as_floats(column) if pa.types.is_decimal(column.type) and column.type.scale else column
        for column in rows.columns
    ]
    return pa.table(columns, names=rows.column_names).to_pandas(integer_object_nulls=True)


def _as_floats(decimals: pa.ChunkedArray) -> pa.ChunkedArray:
    """The decimals as floats; as they are if they have too many digits for floats to tell them apart."""
    ends = [bound.as_py() for bound in pc.min_max(decimals).values()]
    if any(end is None or abs(end).scaleb(decimals.type.scale) >= _EXACT for end in ends):
        return decimals
    return decimals.cast(pa.string()).cast(pa.float64())  # a cast alone is not exact


def _context() -> Any:
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


def _rows_of(source: Any) -> Any:
    return source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("rows")


@cache
def _pandas_rows() -> Any:
    """Made once: at each step to it GX writes all of its configuration, which takes as long as judging a few rows. Not
    so for Spark, whose sessions end."""
    return _rows_of(_context().data_sources.add_pandas("rows"))


def judge(rows: pa.Table | DataFrame, suite: gx.ExpectationSuite, count: int) -> dict[str, Any]:
    """The verdict of a suite on rows. count: about how many there are."""
    gathered = isinstance(rows, pa.Table)
    rows_of = _pandas_rows() if gathered else _rows_of(_context().data_sources.add_spark("rows", persist=False))
    batch = rows_of.get_batch({"dataframe": _in_pandas(rows) if gathered else rows})
    try:
        result = batch.validate(suite, result_format="BOOLEAN_ONLY")
        if not result.success:  # only now are counts and examples worth their cost
            result = batch.validate(suite, result_format="SUMMARY")
    finally:
        kept = batch.datasource.get_execution_engine().batch_manager  # until the next verdict
        kept.reset_batch_cache()
        kept.batch_data_cache.clear()
    expectations = [_expectation_document(outcome) for outcome in result.results]
    return {
        "success": passes(expectations),
        "suite": suite.name,
        "engine": "pandas" if gathered else "spark",
        "rows": count,
        "expectations": expectations,
    }


def judge_stage(rows: pa.Table, stage: str, count: int) -> dict[str, Any]:
    """The verdict of the suite of a stage, with examples of the target's rows that are not as they should be. count:
    how many rows there should be."""
    verdict = judge(rows, SUITES[stage](count), count)
    if stage == "target" and not verdict["success"]:
        good = pc.is_in(rows.column(OUTCOME), pa.array(target.GOOD, pa.string()))
        if bad := rows.filter(pc.invert(good)).slice(0, EXAMPLES).to_pylist():
            verdict["examples"] = [{name: str(value) for name, value in row.items()} for row in bad]
    return verdict


def passes(expectations: Sequence[Mapping[str, Any]]) -> bool:
    return all(one["success"] or one["severity"] != "critical" for one in expectations)


def _raised(info: Mapping[str, Any]) -> bool:
    """Whether an expectation could not be evaluated. info: about the expectation, or about each of its metrics, by
    their ids."""
    each = [info] if "raised_exception" in info else [metric for metric in info.values() if isinstance(metric, Mapping)]
    return any(metric.get("raised_exception") for metric in each)


def _expectation_document(outcome: Any) -> dict[str, Any]:
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
