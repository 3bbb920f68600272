"""The comparisons of whole columns of versions decide as those of single ones do."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.history.guard import HeldVersions, TargetVersion, classify, classify_each, without_removed
from cdc_core.model.row_versions import version_bytes
from cdc_core.model.staged_columns import ROW, SEQ, SOURCE, TS
from cdc_core.model.version import Version, encode, newer_or_equal, newer_or_equal_each

NUMBERS = st.integers(0, 3) | st.sampled_from([255, 256, 2**53, 2**63 - 1])
VERSIONS = st.builds(
    Version, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["a", "b", "bb"]), st.sampled_from(["", "0" * 8, "f" * 8])
).map(encode)
HELD = st.builds(TargetVersion, st.none() | st.just(b"") | VERSIONS, st.none() | VERSIONS, st.integers(-1, 1))
WINNERS = st.lists(st.tuples(VERSIONS, HELD, st.booleans(), st.booleans()), max_size=30)


@given(st.lists(st.tuples(VERSIONS, st.none() | st.just(b"") | VERSIONS), max_size=30))
def test_columns_of_versions_compare_as_single_versions_do(pairs: list[tuple[bytes, bytes | None]]) -> None:
    ours = pa.array([one for one, _ in pairs], pa.binary())
    theirs = pa.array([other for _, other in pairs], pa.binary())
    expected = [None if other is None else newer_or_equal(one, other) for one, other in pairs]
    assert newer_or_equal_each(ours, theirs).to_pylist() == expected


@given(WINNERS, st.booleans(), st.lists(VERSIONS, max_size=2))
def test_winners_are_classified_together_as_each_alone(
    winners: list[tuple[bytes, TargetVersion, bool, bool]], by_column: bool, removing: list[bytes]
) -> None:
    held = HeldVersions(
        pa.array([at_target.row for _, at_target, _, _ in winners], pa.binary()),
        pa.array([at_target.tombstone for _, at_target, _, _ in winners], pa.binary()),
        np.array([at_target.fresher for _, at_target, _, _ in winners], np.int64),
    )
    assert list(held) == [at_target for _, at_target, _, _ in winners]
    classes, reasons = classify_each(
        held,
        pa.array([version for version, _, _, _ in winners], pa.binary()),
        np.array([upsert for _, _, upsert, _ in winners], bool),
        np.array([born for _, _, _, born in winners], bool),
        by_column=by_column,
        removing=removing,
    )
    expected = [
        classify(without_removed(at_target, removing), version, upsert=upsert, born=born, by_column=by_column)
        for version, at_target, upsert, born in winners
    ]
    assert list(zip(classes.to_pylist(), [reason or "" for reason in reasons.to_pylist()], strict=True)) == expected


def test_the_versions_of_rows_are_those_of_their_changes() -> None:
    rows = pa.record_batch(
        {
            TS: pa.array([1_700_000_000_000_000, 2], pa.timestamp("us", tz="UTC")),
            SOURCE: pa.array(["one", "another"]),
            SEQ: pa.array([2**53 + 7, 0]),
            ROW: pa.array([3, 9]),
        }
    )
    expected = [encode(Version(1_700_000_000_000_000, 2**53 + 7, 3, "one")), encode(Version(2, 0, 9, "another"))]
    assert version_bytes(rows).to_pylist() == expected
    assert version_bytes(rows.slice(1)).to_pylist() == expected[1:]
