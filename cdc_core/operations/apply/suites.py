"""Suites of expectations of a pipeline's own: files in Great Expectations' format, checked before a run.

    {"name": "orders", "expectations": [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "status"}, "severity": "critical"}]}

Only Great Expectations knows whether an expectation of that type exists and takes these arguments: it reports this
in the quality task.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cdc_core.config import Pipeline, Suite
from cdc_core.errors import UsageError

SEVERITIES = ("critical", "warning", "info")


def require_suites(pipeline: Pipeline) -> None:
    """Raises UsageError (quality.suite) for the first file that is not a suite."""
    for suite in pipeline.quality.suites:
        read_suite(suite)


def read_suite(suite: Suite) -> list[dict[str, Any]]:
    """The expectations of a file: type, kwargs and severity of each. Raises UsageError (quality.suite)."""
    try:
        document = yaml.safe_load(Path(suite.path).read_text(encoding="utf-8"))  # JSON is YAML
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise refused(suite, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    expectations = document.get("expectations") if isinstance(document, dict) else None
    if not isinstance(expectations, list) or not expectations:
        raise refused(suite, "does not have a list `expectations`")
    return [_expectation(suite, number, expectation) for number, expectation in enumerate(expectations)]


def _expectation(suite: Suite, number: int, expectation: Any) -> dict[str, Any]:
    kind, kwargs = (
        (expectation.get("type"), expectation.get("kwargs", {})) if isinstance(expectation, dict) else (None, None)
    )
    if not isinstance(kind, str) or not isinstance(kwargs, dict):
        raise refused(suite, f"does not have `type` and `kwargs` in its expectation {number}")
    severity = expectation.get("severity") or SEVERITIES[0]
    if severity not in SEVERITIES:
        raise refused(suite, f"has the severity {severity!r} in its expectation {number}, not one of {SEVERITIES}")
    return {"type": kind, "kwargs": kwargs, "severity": severity}


def refused(suite: Suite, why: str) -> UsageError:
    """The error of a suite that cannot be used."""
    return UsageError(
        f"The suite of {suite.table} {why}.",
        where=suite.path,
        code="quality.suite",
        remedy="fix the file: JSON or YAML with `expectations`, each with type, kwargs and severity, as Great "
        "Expectations writes a suite",
    )
