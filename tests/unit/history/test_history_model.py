"""The reference model of history against what a server did: the model is not a third opinion."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.history_model import KEY, NAMES, Change, History, Unknown, histories, nets, state, winners


def key_of(row: Any) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def resolved(values: Any, found: dict[tuple[Any, ...], Any]) -> dict[str, Any]:
    """Values with what only the rows of before know."""
    return {name: found[value.key][name] if isinstance(value, Unknown) else value for name, value in values.items()}


@pytest.mark.parametrize(("minimal", "truncates"), [(False, True), (True, True), (True, False)])
@given(data=st.data())
def test_the_state_is_the_servers_table(minimal: bool, truncates: bool, data: st.DataObject) -> None:
    history: History = data.draw(histories(minimal=minimal, truncates=truncates))
    found = {key_of(row): row for row in history.found}
    table = {key_of(row): row for row in history.servers[0].rows}
    said = state(data.draw(st.permutations(history.changes)), NAMES, KEY)
    untouched = {at: row for at, row in found.items() if at not in winners(history.changes, NAMES, KEY)}
    if any(change.op == "t" for change in history.changes):
        untouched = {}
    assert {at: resolved(values, found) for at, values in said.items()} | untouched == table


@given(history=histories(keyed=False, truncates=True))
def test_the_copies_that_come_and_go_are_those_of_the_servers_table(history: History) -> None:
    rows = Counter(tuple(row[name] for name in NAMES) for row in history.servers[0].rows)
    assert nets(history.changes, NAMES) == rows


def test_between_sources_the_later_commit_wins_then_the_name_and_a_truncate_is_of_its_source() -> None:
    def change(op: str, seq: int, ts_us: int, source: str, n: int = 0) -> Change:
        row = {"a": 1, "b": "x", "n": n, "y": None, "d": None}
        return Change(op, row, seq, before=row if op == "u" else None, source=source, ts_us=ts_us)

    late_clock = [change("c", 1, 9, "one", 1), change("u", 2, 5, "one", 2)]
    assert winners(late_clock, ["a", "b"], KEY)[1, "x"].order == (2, 0), "of one source the log decides"
    both = [change("c", 7, 5, "one", 1), change("c", 1, 6, "two", 2)]
    assert state(both, NAMES, KEY)[1, "x"]["n"] == 2
    tie = [change("c", 7, 5, "one", 1), change("c", 1, 5, "two", 2)]
    assert state(tie, NAMES, KEY)[1, "x"]["n"] == 2
    assert state([*both, change("t", 9, 7, "two")], NAMES, KEY)[1, "x"]["n"] == 1
