"""GTID sets: text to set and back, union, containment, and how a checkpoint's set advances."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.errors import UsageError
from cdc_core.source.host.gtid_sets import GtidSet, advanced, compact

A = "5f40e5fe-e59e-11f1-88f5-02fc00000001"
B = "6f40e5fe-e59e-11f1-88f5-02fc00000001"


@pytest.mark.parametrize("text", ["", f"{A}:1-5", f"{A}:1-5:7,{B}:3", f"{A}:1-3:red:1-2", "0-1-5", "0-1-5,3-2-9"])
def test_a_set_is_printed_as_the_server_prints_it(text: str) -> None:
    assert str(GtidSet.parse(text)) == text


def test_neighbouring_intervals_join() -> None:
    assert str(GtidSet.parse(f"{A}:4-5, {A}:1-3:7:6")) == f"{A}:1-7"


@pytest.mark.parametrize("text", ["x", f"{A}", f"{A}:a-b", "0-1", f"{A}:1,0-1-5"])
def test_what_is_no_set_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        GtidSet.parse(text)
    assert raised.value.code == "usage.argument"
    assert text in raised.value.what


def test_containment_follows_intervals_tags_and_domains() -> None:
    assert GtidSet.parse(f"{A}:1-10,{B}:1").contains(GtidSet.parse(f"{A}:3-5:9"))
    assert not GtidSet.parse(f"{A}:1-4:6-10").contains(GtidSet.parse(f"{A}:3-7"))
    assert not GtidSet.parse(f"{A}:1-9").has(f"{A}:red:1")
    assert GtidSet.parse("0-1-5,1-1-3").contains(GtidSet.parse("0-2-4"))
    assert not GtidSet.parse("0-1-5").contains(GtidSet.parse("1-1-1"))


@given(st.lists(st.integers(1, 60), max_size=40), st.lists(st.integers(1, 60), max_size=40))
def test_union_and_containment_are_those_of_sets_of_numbers(left: list[int], right: list[int]) -> None:
    one, other = GtidSet.parse(",".join(f"{A}:{n}" for n in left)), GtidSet.parse(",".join(f"{A}:{n}" for n in right))
    assert one.union(other) == GtidSet.parse(",".join(f"{A}:{n}" for n in {*left, *right}))
    assert one.contains(other) == (set(right) <= set(left))


def test_a_checkpoint_advances_by_transactions_and_by_sets() -> None:
    assert advanced(f"{A}:1-5", [f"{A}:6", "", f"{A}:7", f"{B}:1-3", f"{A}:red:1"]) == f"{A}:1-7:red:1,{B}:1-3"
    assert advanced("0-1-5", ["0-1-6", "0-2-7", "1-1-1"]) == "0-2-7,1-1-1"
    assert advanced(f"{A}:1-5", []) == f"{A}:1-5"


def test_an_unknown_past_stays_unknown_on_mysql_and_needs_no_past_on_mariadb() -> None:
    assert advanced("", [f"{A}:6"]) == ""
    assert advanced("", [f"{A}:1", f"{B}:6"]) == ""
    assert advanced("", [f"{A}:6-9"]) == ""
    assert advanced("", ["0-1-6"]) == "0-1-6"


def test_a_log_read_from_a_servers_first_transaction_on_is_known_whole() -> None:
    assert advanced("", [f"{A}:1", f"{A}:2", f"{B}:1-3"]) == f"{A}:1-2,{B}:1-3"
    assert advanced("", [f"{A}:1-7"]) == f"{A}:1-7"


def test_what_a_set_has_and_another_lacks() -> None:
    def minus(one: str, other: str) -> str:
        return str(GtidSet.parse(one).minus(GtidSet.parse(other)))

    assert minus(f"{A}:1-9:12,{B}:1", f"{A}:3-4:9-20") == f"{A}:1-2:5-8,{B}:1"
    assert minus(f"{A}:1-9", f"{A}:1-20") == ""
    assert minus(f"{A}:1-9,{A}:red:1-2", f"{A}:1-9") == f"{A}:red:1-2"
    assert minus("0-1-9,1-1-4", "0-2-9,1-1-3") == "1-1-4"
    assert not GtidSet.parse(f"{A}:1").minus(GtidSet.parse(f"{A}:1"))


def test_a_stretch_of_transactions_is_one_set() -> None:
    assert compact([f"{A}:{n}" for n in range(5, 18)]) == f"{A}:5-17"
    assert compact([f"{A}:5"]) == f"{A}:5"
    assert compact(["0-1-5", "0-1-6"]) == "0-1-6"
    assert compact([]) == ""
