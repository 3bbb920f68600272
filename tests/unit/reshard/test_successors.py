"""Some of the former shards, which are moved by a pipeline of their own."""

from __future__ import annotations

import pytest

from cdc_core.reshard.successors import Part
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("text", "suffix", "numbers"),
    [("3", "_s3", {3}), ("0-2", "_s0_2", {0, 1, 2}), ("0-1,12", "_s0_1_12", {0, 1, 12}), ("5-5", "_s5_5", {5})],
)
def test_shards_are_named_by_numbers_and_ranges(text: str, suffix: str, numbers: set[int]) -> None:
    assert Part.parse(text) == Part(suffix, frozenset(numbers))


@pytest.mark.parametrize("text", ["", "7-3", "-1", "1-", "1,,2", "a", "0-9999999", "1 2"])
def test_what_names_no_shards_is_refused_before_anything_is_written(text: str) -> None:
    assert refusal(lambda: Part.parse(text)).code == "reshard.shards"
