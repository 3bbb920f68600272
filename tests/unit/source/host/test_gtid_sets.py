"""GTID sets: text to set and back, union, containment, and how a checkpoint's set advances."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.errors import UsageError
from cdc_core.source.host.gtid_sets import GtidSet, advanced, set_of
from tests.lab.made_blocks import gtids_of
from tests.lab.refusals import raises


def after(executed: str, texts: list[str]) -> str:
    return advanced(executed, set_of(gtids_of(texts)))


A = "5f40e5fe-e59e-11f1-88f5-02fc00000001"
B = "6f40e5fe-e59e-11f1-88f5-02fc00000001"


@pytest.mark.parametrize("text", ["", f"{A}:1-5", f"{A}:1-5:7,{B}:3", f"{A}:1-3:red:1-2", "0-1-5", "0-1-5,3-2-9"])
def test_a_set_is_printed_as_the_server_prints_it(text: str) -> None:
    assert str(GtidSet.parse(text)) == text


@pytest.mark.parametrize("text", ["x", f"{A}", f"{A}:a-b", "0-1", f"{A}:1,0-1-5"])
def test_what_is_no_set_is_refused_with_the_text(text: str) -> None:
    with raises(UsageError, "usage.argument") as raised:
        GtidSet.parse(text)
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
    assert after(f"{A}:1-5", [f"{A}:6", "", f"{A}:7", f"{B}:1", f"{B}:3", f"{A}:red:1"]) == f"{A}:1-7:red:1,{B}:1:3"
    assert after("0-1-5", ["0-1-6", "0-2-7", "1-1-1"]) == "0-2-7,1-1-1"
    assert after(f"{A}:1-5", []) == f"{A}:1-5"


def test_the_set_of_a_mariadb_domain_is_its_last_transaction_whatever_its_number() -> None:
    """As gtid_binlog_pos says without gtid_strict_mode."""
    assert after("0-9-2", ["0-9-100", "0-8-50", "0-8-40"]) == "0-8-40"
    assert after("0-8-40", ["0-7-60", "0-9-20", "3-9-5", "3-7-4"]) == "0-9-20,3-7-4"
    assert after("0-9-5", ["0-8-9", "0-9-6"]) == "0-9-6"
    assert str(GtidSet.parse("3-9-5,3-7-4,0-8-40,0-7-60,0-9-20")) == "0-9-20,3-7-4"
    assert str(GtidSet.highest("3-9-5,3-7-4,0-8-40,0-7-60,0-9-20")) == "0-7-60,3-9-5"
    assert str(GtidSet.highest(f"{A}:1-5,{B}:1")) == f"{A}:1-5,{B}:1"


def test_an_unknown_past_stays_unknown_on_mysql_and_needs_no_past_on_mariadb() -> None:
    assert after("", [f"{A}:6"]) == ""
    assert after("", [f"{A}:1", f"{B}:6"]) == ""
    assert after("", [""]) == ""
    assert after("", ["0-1-6"]) == "0-1-6"


def test_a_log_read_from_a_servers_first_transaction_on_is_known_whole() -> None:
    assert after("", [f"{A}:1", f"{A}:2", f"{B}:1"]) == f"{A}:1-2,{B}:1"


@given(st.lists(st.builds("{}:{}".format, st.sampled_from([A, B, f"{A}:red"]), st.integers(1, 40))))
def test_gtids_of_entries_are_the_set_that_their_texts_are(texts: list[str]) -> None:
    found = gtids_of(texts)
    assert found.texts().to_pylist() == texts
    assert set_of(found) == GtidSet.parse(",".join(texts))


def test_what_a_set_has_and_another_lacks() -> None:
    def minus(one: str, other: str) -> str:
        return str(GtidSet.parse(one).minus(GtidSet.parse(other)))

    assert minus(f"{A}:1-9:12,{B}:1", f"{A}:3-4:9-20") == f"{A}:1-2:5-8,{B}:1"
    assert minus(f"{A}:1-9", f"{A}:1-20") == ""
    assert minus(f"{A}:1-9,{A}:red:1-2", f"{A}:1-9") == f"{A}:red:1-2"
    assert minus("0-1-9,1-1-4", "0-2-9,1-1-3") == "1-1-4"
    assert not GtidSet.parse(f"{A}:1").minus(GtidSet.parse(f"{A}:1"))
