"""The verdict of a suite of expectations/ on a frame.

GX's pandas engine judges a frame in memory (0.1 s), its Spark engine one of Spark (3 s and more): the same suites,
measured to give the same verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import great_expectations as gx
import pyarrow as pa
import pyarrow.compute as pc
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.exceptions import GreatExpectationsError
from great_expectations.execution_engine import pandas_execution_engine
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from cdc_core.apply.suites import read_suite, refused
from cdc_core.config import Suite
from lockstep_expectations import merged, staged, target

# GX marks each batch with a hash of all its values, up to frames of so many bytes. Nothing here reads the mark, and it
# takes three quarters of the time in which a million rows are judged.
pandas_execution_engine.HASH_THRESHOLD = 0

GOOD = target.GOOD
SUITES = {"staged": staged.suite, "merged": merged.suite, "target": target.suite}


def own_suite(suite: Suite) -> gx.ExpectationSuite:
    """The suite of a file. Raises UsageError (quality.suite)."""
    expectations = read_suite(suite)
    try:
        return gx.ExpectationSuite(name=Path(suite.path).stem, expectations=expectations)
    except (GreatExpectationsError, ValueError) as error:
        raise refused(suite, f"is refused by Great Expectations: {error}") from None


def judged_in_memory(rows: pa.Table) -> Any:
    """A frame of pandas of which GX thinks what it thinks of the same rows in Spark: integers stay exact beside nulls,
    and a DECIMAL is compared as the float that a suite has for it (pandas finds the DECIMAL 0.01 less than 0.01)."""
    columns = [_as_floats(one) if pa.types.is_decimal(one.type) and one.type.scale else one for one in rows.columns]
    return pa.table(columns, names=rows.column_names).to_pandas(integer_object_nulls=True)


def _as_floats(decimals: pa.ChunkedArray) -> pa.ChunkedArray:
    """As they are if they have too many digits for a float to tell them apart."""
    ends = [one.as_py() for one in pc.min_max(decimals).values()]
    if any(one is None or abs(one).scaleb(decimals.type.scale) >= _EXACT for one in ends):
        return decimals
    return decimals.cast(pa.string()).cast(pa.float64())  # a cast alone is not exact


_EXACT = 10**15


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


def judge_parts(parts: Iterable[Any], suite_of: Callable[[int], gx.ExpectationSuite], rows: int) -> dict[str, Any]:
    """The verdict of a suite on frames of pandas that are parts of one. suite_of: for a frame of so many rows. rows: as
    many as all parts must have. Values that an expectation compares with each other must be in one part."""
    found, seen = [], 0
    for part in parts:
        seen += len(part)
        found.append(judge(part, suite_of(len(part)), len(part)))
    same: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        for outcome in one["expectations"]:  # in no certain order
            kind = outcome["expectation"]
            name = kind if kind == _COUNT else json.dumps([kind, outcome["arguments"]])
            same.setdefault(name, []).append(outcome)
    expectations = [_counted(each, rows, seen) if name == _COUNT else _together(each) for name, each in same.items()]
    return {
        "success": seen == rows and all(one["success"] for one in found),
        "suite": suite_of(rows).name,
        "engine": "pandas",
        "rows": rows,
        "expectations": expectations,
    }


_COUNT = "expect_table_row_count_to_equal"
EXAMPLES = 20
"""Of the rows that fail an expectation."""


def _counted(each: Sequence[Mapping[str, Any]], rows: int, seen: int) -> dict[str, Any]:
    met = seen == rows
    return {**each[0], "arguments": {"value": rows}, "success": met, "result": {} if met else {"observed_value": seen}}


def _together(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What parts say of an expectation: the numbers of its failures, and some of what they have found."""
    if len(each) == 1:
        return dict(each[0])
    failed = [one for one in each if not one["success"]]
    if not failed:
        return {**each[0], "result": {}}
    result = dict(failed[0]["result"])
    for name, value in result.items():
        of_all = [one["result"].get(name) for one in failed]
        if name.endswith("_count") and isinstance(value, int):
            result[name] = sum(one for one in of_all if one is not None)
        elif isinstance(value, list):
            result[name] = [one for some in of_all for one in some or ()][:EXAMPLES]
    kept = {name: value for name, value in result.items() if not name.endswith("_percent") and name != "element_count"}
    return {**failed[0], "result": kept}


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
