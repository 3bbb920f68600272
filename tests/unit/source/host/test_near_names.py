"""What a pattern that matches nothing may have meant."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.source.host.near_names import did_you_mean, question

NAMES = ["bank.accounts", "shop.order_items", "shop.orders"]


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("orders", ["shop.orders"]),
        (r"shp\..*", ["shop.order_items", "shop.orders"]),
        (r"Shop\.Orders", ["shop.orders"]),
        (r"shop\.ordrs", ["shop.orders"]),
        (r"shop.ord", ["shop.order_items", "shop.orders"]),
        ("shop", ["shop.order_items", "shop.orders"]),
        (r".*_tmp", []),
        (r"zzz\..*", []),
        (r"tenant_12\..*", []),
        (r"x*", []),
    ],
)
def test_slips_are_recognised_and_what_may_come_later_is_not_taken_for_one(pattern: str, near: list[str]) -> None:
    assert did_you_mean(pattern, NAMES) == near


def test_the_question_shows_a_pattern_that_matches() -> None:
    (pattern,) = re.findall("'(.*)'", question(did_you_mean("orders", NAMES)))
    assert re.fullmatch(pattern, "shop.orders")


@given(st.text(max_size=30), st.lists(st.text(max_size=20)))
def test_no_pattern_and_no_name_is_too_odd_for_it(pattern: str, names: list[str]) -> None:
    try:
        re.compile(pattern)
    except re.error:
        return
    assert set(did_you_mean(pattern, names)) <= set(names)
