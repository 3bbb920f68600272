"""Keys are found among others by their hashes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cdc_core.lake import held_rows
from cdc_core.lake.held_rows import KeyIndex


@pytest.mark.parametrize("bits", [64, 8, 1, 0])
@pytest.mark.parametrize(("ours", "theirs"), [(0, 5), (1, 5), (50, 70), (300, 1), (300, 300)])
def test_each_key_is_found_also_where_hashes_of_several_are_equal(
    monkeypatch: pytest.MonkeyPatch, bits: int, ours: int, theirs: int
) -> None:
    hashes_of = held_rows.hashes_of

    def worse(columns: list[pa.Array]) -> np.ndarray:
        """Hashes of which only the first bits differ."""
        return hashes_of(columns) & np.uint64((1 << 64) - (1 << 64 - bits))

    monkeypatch.setattr(held_rows, "hashes_of", worse)
    random = np.random.default_rng(bits)
    known, sought = (random.permutation(500)[:count] for count in (ours, theirs))
    rows, numbers = KeyIndex([pa.array(known)]).match([pa.array(sought)])
    places = {key: number for number, key in enumerate(known.tolist())}
    expected = [(row, places[key]) for row, key in enumerate(sought.tolist()) if key in places]
    assert sorted(zip(rows.tolist(), numbers.tolist(), strict=True)) == expected
