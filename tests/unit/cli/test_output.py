"""What people see on terminals of any width: nothing is cut into letters, and what says nothing is left out."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cdc_core.cli import output
from cdc_core.cli.output import table
from cdc_core.model.readable import counted


def shown(made: object, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=True)
    console.print(made)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


WIDE = ("target", "table", "staged", "winners", "superseded", "written", "equal", "stale", "absent", "adds up")
ROW = ("shards", "shop.order_items", 67_490, 31_290, 18_814, 9_812, 0, 0, 12, "yes")


def test_a_table_that_does_not_fit_becomes_a_list_whose_words_stay_whole() -> None:
    text = shown(table("ledger", WIDE, [ROW, ROW]), 80)
    for column, value in zip(WIDE, ROW, strict=True):
        assert any(
            line.split()[: len(column.split())] == column.split() and line.endswith(output.shown(value))
            for line in map(str.rstrip, text.splitlines())
        ), (column, text)
    assert text.count("row ") == 2
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_table_that_fits_stays_one() -> None:
    assert "superseded" in next(line for line in shown(table("", WIDE, [ROW]), 160).splitlines() if "target" in line)
    # One long text is folded within its column.
    text = shown(table("", ("id", "text"), [(1, "word " * 60)]), 80)
    assert "id" in text.splitlines()[1]


def test_columns_that_hold_nothing_are_left_out_where_that_is_asked_for() -> None:
    text = shown(table("", WIDE, [ROW, (*ROW[:8], 0, "yes")], omit_empty=("equal", "stale", "absent")), 160)
    assert "equal" not in text
    assert "stale" not in text
    assert "absent" in text
    assert "equal" in shown(table("", WIDE, [], omit_empty=("equal",)), 160)


@given(
    st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=40), min_size=3,
                      max_size=3), min_size=1, max_size=5),
    st.integers(40, 200),
)  # fmt: skip
def test_nothing_of_a_cell_is_lost_at_any_width(rows: list[list[str]], width: int) -> None:
    text = "".join(char for char in shown(table("", ("a", "b", "c"), rows), width) if not char.isspace())
    for row in rows:
        for cell in row:
            assert all(char in text for char in cell)


@pytest.mark.parametrize("value", ["1", "true"])
def test_no_color_sends_no_escape_code_at_all(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", value)
    console = output._console()
    console.file = io.StringIO()
    console.print(table("title", ("a",), [("b",)]), "[bold red]loud[/] [dim]quiet[/]")
    assert "\x1b" not in console.file.getvalue()


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(1, "batch"), counted(0, "batch"), counted(2_000, "row"), counted(1, "row")] == [
        "1 batch", "0 batches", "2,000 rows", "1 row",
    ]  # fmt: skip
