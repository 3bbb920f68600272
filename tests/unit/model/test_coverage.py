"""What foreign keys may have changed, in the coverage of a table (cdc_core/model/coverage.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc_core.model.coverage import Happened, How, TableCoverage, TableEvent, after, lacks, settled
from cdc_core.model.json_codec import parsed, text_of

COPIED = TableCoverage(How.COPIED, 20, 0, "binlog.000001:20", base_seq=10)


def cascaded(coverage: TableCoverage | None, seq: int) -> TableCoverage:
    return after(coverage, TableEvent("shop.items", Happened.CASCADED, seq, 0, "binlog.000001:4"))


@pytest.mark.parametrize(
    ("known", "seq", "whole"),
    [
        (COPIED, 9, True),  # the copy began afterwards
        (COPIED, 10, False),
        (COPIED, 15, False),  # while it was read
        (COPIED, 30, False),
        (TableCoverage(How.CREATED, 10, 0, ""), 11, False),
        (TableCoverage(How.EMPTY, 10, 0, ""), 9, False),  # what was staged before it was seen empty may have gone then
        (TableCoverage(How.EMPTY, 10, 0, ""), 11, False),
        (TableCoverage(How.EXISTING, 10, 0, ""), 5, False),
        (None, 5, False),
    ],
)
def test_a_table_is_whole_if_a_copy_began_after_all_that_keys_did(
    known: TableCoverage | None, seq: int, whole: bool
) -> None:
    assert cascaded(known, seq).whole is whole


@pytest.mark.parametrize("how", [How.EMPTY, How.EXISTING])
@pytest.mark.parametrize("seq", [5, 15])
def test_a_copy_is_due_wherever_the_table_was_seen(how: How, seq: int) -> None:
    coverage = cascaded(TableCoverage(how, 10, 0, ""), seq)
    assert (coverage.cascaded, coverage.due) == (True, True)
    copied = TableCoverage(How.COPIED, 20, 0, "", base_seq=16, cascaded_seq=coverage.cascaded_seq)
    assert settled({"t": coverage}, {"t": copied})["t"].whole


def test_a_table_that_is_gone_or_not_captured_is_not_concerned() -> None:
    for coverage in (TableCoverage(How.CREATED, 10, 0, "", absent_seq=12), TableCoverage(How.ISOLATED, 10, 0, "")):
        assert cascaded(coverage, 30) is coverage


@pytest.mark.parametrize("how", [How.EXISTING, How.CAPTURED_AGAIN, How.UNLOGGED])
@pytest.mark.parametrize("copy_first", [True, False])
def test_neither_a_copy_nor_an_extractor_that_knows_nothing_of_it_takes_the_other_back(
    how: How, copy_first: bool
) -> None:
    """Both go on at once, and say what they know in manifests of their own."""
    said = TableCoverage(how, 5, 0, "", cascaded_seq=15)
    first, then = (COPIED, said) if copy_first else (said, COPIED)
    found = settled({"t": first}, {"t": then})["t"]
    assert found.cascaded_seq == 15
    assert not found.whole
    if how is not How.UNLOGGED or not copy_first:  # what is unlogged counts until a copy that knows of it
        assert found.how is How.COPIED
        assert "by a foreign key" in lacks("shop.items", "shop", found)


@pytest.mark.parametrize("copy_first", [True, False])
@pytest.mark.parametrize("apart", [-1, 0, 1])
def test_a_copy_counts_for_the_rules_alone_under_which_it_was_read(apart: int, copy_first: bool) -> None:
    """Where the source is idle, both are of one place; and a process with the former file may have made the copy."""
    edited = TableCoverage(How.OTHER_RULES, COPIED.seq + apart, 0, "", rules="new")
    for rules in ("new", "old", ""):
        copy = replace(COPIED, rules=rules)
        first, then = (copy, edited) if copy_first else (edited, copy)
        assert settled({"t": first}, {"t": then})["t"].whole is (rules == "new" and apart <= 0), rules


def test_the_next_copy_makes_it_whole() -> None:
    known = {"t": cascaded(COPIED, 30)}
    again = TableCoverage(How.COPIED, 50, 0, "", base_seq=40, cascaded_seq=30)
    assert settled(known, {"t": again})["t"].whole


def test_it_is_read_as_it_was_written() -> None:
    coverage = cascaded(COPIED, 30)
    assert parsed(TableCoverage, text_of(coverage)) == coverage
