"""What is kept of a verification under way is bounded, and read back as it was written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.operations.verify.comparison import Difference, DifferenceKind
from cdc_core.operations.verify.judgement import Wrong
from cdc_core.operations.verify.verify_progress import Tally, VerifyProgress

KEYS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=50), max_size=20)


def of(keys: list[str]) -> Tally:
    return Tally("d", first=tuple(Difference(key, DifferenceKind.DIFFERS, Wrong.BOTH, 1, 10**6) for key in keys))


@given(KEYS, KEYS, st.integers(0, 30), st.integers(0, 2_000))
def test_the_first_findings_are_kept_up_to_a_number_and_a_size(
    before: list[str], more: list[str], most_first: int, most_bytes: int
) -> None:
    tally = of(before).plus(of(more), most_first=most_first, most_bytes=most_bytes)
    keys = [difference.key for difference in tally.first]
    assert keys == (before + more)[: len(keys)]
    assert len(keys) <= most_first
    empty = VerifyProgress("s", 1, 2, {"t": replace(tally, first=())})
    text = VerifyProgress("s", 1, 2, {"t": tally}).to_text()
    assert len(text.encode()) - len(empty.to_text().encode()) <= most_bytes
    left_out = of((before + more)[: len(keys) + 1])
    assert len(keys) in (most_first, len(before + more)) or left_out.first_bytes > most_bytes
    assert VerifyProgress.from_text(text) == VerifyProgress("s", 1, 2, {"t": tally})


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"scope":"s","started_us":1,"seed":2,"tables":{},"more":1}'])
def test_what_another_version_has_written_is_no_progress(text: str) -> None:
    assert VerifyProgress.from_text(text) is None
