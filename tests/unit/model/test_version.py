"""The order of versions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.model.version import (
    VERSION_BYTES,
    Version,
    decode,
    encode,
    encode_numbers,
    latest_places,
    newer_or_equal,
    origin_name,
    other_origin,
)

NUMBERS = st.integers(0, 2**63 - 1)
SOURCES = st.sampled_from(["a", "b", "shop_eu", "x" * 9, "x" * 10, "x" * 48])
ORIGINS = st.sampled_from(["", origin_name("a", "shop.p1"), origin_name("a", "shop.p2")])
VERSIONS = st.builds(Version, NUMBERS, NUMBERS, NUMBERS, SOURCES)
TOLD = st.builds(Version, st.just(0) | NUMBERS, NUMBERS, st.integers(0, 300), SOURCES, ORIGINS)


@given(TOLD, TOLD)
def test_origins_differ_where_both_versions_say_theirs(a: Version, b: Version) -> None:
    said = {version.origin for version in (a, b) if version.commit_ts_us}  # one that was taken over says none
    assert other_origin(encode(a), encode(b)) is (len(said) == 2 and "" not in said)
    assert not other_origin(encode(a), b"")


@given(VERSIONS | TOLD)
def test_a_version_survives_its_bytes_and_fits_the_column(version: Version) -> None:
    raw = encode(version)
    assert decode(raw) == version
    assert len(raw) <= VERSION_BYTES


@given(VERSIONS, VERSIONS)
def test_order_is_by_log_within_a_source_and_by_commit_time_between_sources(a: Version, b: Version) -> None:
    if a.source == b.source:
        expected = (a.seq, a.row) >= (b.seq, b.row)
    else:
        expected = (a.commit_ts_us, a.source) >= (b.commit_ts_us, b.source)
    assert newer_or_equal(encode(a), encode(b)) is expected


@given(VERSIONS)
def test_a_row_without_version_is_older_than_any(version: Version) -> None:
    assert newer_or_equal(encode(version), b"")
    assert not newer_or_equal(b"", encode(version))


@given(st.lists(VERSIONS, min_size=1, max_size=5))
def test_many_versions_encode_as_one(versions: list[Version]) -> None:
    columns = [np.array([getattr(version, name) for version in versions]) for name in ("commit_ts_us", "seq", "row")]
    table = encode_numbers(*columns)
    assert [row.tobytes() for row in table] == [encode(version)[:24] for version in versions]


@given(st.lists(st.none() | st.just(b"") | (VERSIONS | TOLD).map(encode), max_size=8))
def test_the_latest_place_of_each_source_whatever_its_clock_said(versions: list[bytes | None]) -> None:
    expected: dict[str, int] = {}
    for version in map(decode, filter(None, versions)):
        expected[version.source] = max(version.seq, expected.get(version.source, 0))
    assert latest_places(pa.array(versions, pa.binary())) == expected
