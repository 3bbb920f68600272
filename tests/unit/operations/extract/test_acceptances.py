"""The text of a place that an operator accepts."""

from __future__ import annotations

import pytest

from cdc_core.errors import UsageError
from cdc_core.operations.extract.acceptances import parse_place
from tests.lab.refusals import raises


def test_a_place_is_a_file_and_an_offset() -> None:
    assert parse_place(" my-binlog.000012:4711") == ("my-binlog.000012", 4711)
    assert parse_place("c:odd.000001:4") == ("c:odd.000001", 4)


@pytest.mark.parametrize(
    "text", ["", "x", "binlog.000001", "binlog.000001:x", ":5", "binlog.000001:-5", "binlog:5", "binlog.000001:3",
             "binlog.000001:٣٣", "binlog.000001:99999999999"],
)  # fmt: skip
def test_what_is_not_a_place_is_a_usage_error(text: str) -> None:
    with raises(UsageError, "usage.argument"):
        parse_place(text)
