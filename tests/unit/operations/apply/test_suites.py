"""A suite that a pipeline brings along is looked at before a run, and a bad one is refused by its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.config import Suite, load
from cdc_core.errors import UsageError
from cdc_core.operations.apply.suites import read_suite, require_suites
from tests.lab.pipeline_file import write_pipeline
from tests.lab.refusals import raises

GOOD = "expectations: [{type: expect_column_to_exist, kwargs: {column: id}, severity: info}, {type: other}]"


def test_a_path_is_relative_to_the_pipeline_file(tmp_path: Path) -> None:
    (tmp_path / "suites").mkdir()
    pipeline = load(
        write_pipeline(tmp_path, "shop", quality="suites: [{table: shop.orders, path: suites/orders.yaml}]")
    )
    with pytest.raises(UsageError) as caught:
        require_suites(pipeline)
    assert (caught.value.code, caught.value.where) == ("quality.suite", str(tmp_path / "suites" / "orders.yaml"))
    (tmp_path / "suites" / "orders.yaml").write_text(GOOD)
    require_suites(pipeline)
    assert read_suite(pipeline.quality.suites[0]) == [
        {"type": "expect_column_to_exist", "kwargs": {"column": "id"}, "severity": "info"},
        {"type": "other", "kwargs": {}, "severity": "critical"},
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not have a list"),
        ("[]", "does not have a list"),
        ("expectations: []", "does not have a list"),
        ("expectations: [expect]", "expectation 0"),
        ("expectations: [{type: a}, {kwargs: {}}]", "expectation 1"),
        ("expectations: [{type: a, kwargs: [b]}]", "expectation 0"),
        ("expectations: [{type: a, severity: fatal}]", "fatal"),
        ("a: [", "cannot be read"),
        ("\x00", "cannot be read"),
    ],
)
def test_what_is_no_suite_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(text)
    with raises(UsageError, "quality.suite", match=why):
        read_suite(Suite(table="t", path=str(file)))
