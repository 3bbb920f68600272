"""Rows in parts: all of them, and those that are alike together."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs import row_parts
from spark_jobs.row_parts import in_parts

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.none() | st.text(max_size=2), st.integers(0, 3)))


def coded(rows: list[tuple[str, str | None, int]]) -> pa.Table:
    """The first column as codes, as each file has its own."""
    names, texts, numbers = ([row[at] for row in rows] for at in range(3))
    return pa.table(
        {
            "name": pa.array(names, pa.string()).dictionary_encode(),
            "text": pa.array(texts, pa.string()),
            "number": pa.array(numbers, pa.int64()),
        }
    )


@given(
    st.lists(ROWS, max_size=5), st.integers(1, 7), st.integers(1, 9), st.sampled_from([["text"], ["number", "text"]])
)
def test_every_row_is_in_a_part_and_rows_that_are_alike_are_in_the_same(
    files: list[list[tuple[str, str | None, int]]], parts: int, cut_rows: int, alike: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_parts, "CUT_ROWS", cut_rows)
        found = [one.to_pylist() for one in in_parts(Path(folder) / "parts", map(coded, files), alike, parts)]
    assert all(found)
    assert len(found) <= parts
    every = [row for rows in files for row in rows]
    assert sorted((row["name"], str(row["text"]), row["number"]) for part in found for row in part) == sorted(
        (name, str(text), number) for name, text, number in every
    )
    seen = [{tuple(row[name] for name in alike) for row in part} for part in found]
    assert sum(map(len, seen)) == len(set().union(*seen))
