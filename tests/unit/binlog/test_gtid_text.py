"""Texts of GTIDs written and read in bulk say what they say one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_core.binlog.gtid_text import condensed, written
from cdc_core.source.host.gtid_sets import advanced

SIDS = ["3e11fa47-71ca-11e1-9e33-c80aa9429562", "ffffffff-71ca-11e1-9e33-c80aa9429562"]
numbers = st.one_of(st.integers(1, 30), st.integers(1, 10**17))
mysql = st.one_of(
    st.just(""),
    st.builds(lambda sid, n: f"{sid}:{n}", st.sampled_from(SIDS), numbers),
    st.builds(lambda sid, n: f"{sid}:tag:{n}", st.sampled_from(SIDS), numbers),
    st.builds(lambda sid, n, more: f"{sid}:{n}-{n + more}", st.sampled_from(SIDS), numbers, st.integers(1, 9)),
    st.builds(lambda n, m: f"{SIDS[0]}:{n},{SIDS[1]}:{m}", numbers, numbers),
)
mariadb = st.one_of(
    st.just(""),
    st.builds(lambda d, s, n: f"{d}-{s}-{n}", st.integers(0, 2), st.integers(1, 12), numbers),
    st.builds(lambda n, m: f"0-1-{n},1-1-{m}", numbers, numbers),
)


@given(st.one_of(st.lists(mysql, max_size=40), st.lists(mariadb, max_size=40)), st.integers(0, 5))
@example([f"{SIDS[0]}:{n}" for n in range(8, 12)], 0)
@example([f"{SIDS[0]}:tag:5", f"{SIDS[0]}:6"], 0)
@example(["0-1-5", "0-2-5", "0-1-5"], 0)
@settings(deadline=None)
def test_condensed_texts_say_the_same_set(texts: list[str], skipped: int) -> None:
    array = pa.array(texts, pa.string())[skipped:]
    for executed in ("", f"{SIDS[1]}:1-7" if any(":" in text for text in texts) else "2-1-20"):
        assert advanced(executed, condensed(array)) == advanced(executed, texts[skipped:])


def test_consecutive_transactions_of_several_servers_are_condensed_to_one_text_each() -> None:
    texts = [f"{SIDS[n % 2]}:{100 + n // 2}" for n in range(1000)]
    assert condensed(pa.array(texts)) == [f"{SIDS[0]}:100-599", f"{SIDS[1]}:100-599"]
    assert condensed(pa.array([f"0-1-{n}" for n in range(9, 5000)])) == ["0-1-4999"]


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 10**18), st.integers(0, 1000))))
@settings(deadline=None)
def test_written_texts_are_prefix_and_numbers(entries: list[tuple[int, int, int]]) -> None:
    prefixes = ["a:", "", "0-1-"]
    name, low, more = (np.array([entry[k] for entry in entries], np.int64) for k in range(3))
    expected = [
        "" if n < 0 else f"{prefixes[n]}{a}" + (f"-{a + b}" if b else "") for n, a, b in entries
    ]  # fmt: skip
    assert written(prefixes, name, low, low + more).to_pylist() == expected
