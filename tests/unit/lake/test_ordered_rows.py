"""Ranges of a snapshot that follow one another have each live row once, in the order of the key."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyroaring import BitMap

from cdc_core.lake import data_files, ordered_rows
from cdc_core.lake.data_files import KeyedFiles, LiveFile, write_deletes, write_rows
from cdc_core.lake.lake_schema import first_schema
from cdc_core.lake.ordered_rows import KeySpan, SnapshotRows, comparable
from cdc_core.model.places import in_order
from cdc_core.model.version import VERSION_COLUMN

KEY = ("a", "b")
COLUMNS = [pa.field("a", pa.int32()), pa.field("b", pa.timestamp("us")), pa.field("v", pa.string())]
NAMES = ("v", "b", "a")
Key = tuple[int, int]


@pytest.fixture(scope="module", autouse=True)
def small_groups() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_files, "GROUP_ROWS", 4)
        yield


def files_in(folder: Path, key: Sequence[str] = KEY, columns: Sequence[pa.Field] = COLUMNS) -> KeyedFiles:
    return KeyedFiles(PyArrowFileIO(), folder.as_uri(), first_schema(columns, key), tuple(key))


def table_of(files: KeyedFiles, keys: Sequence[Key]) -> pa.Table:
    """b in seconds."""
    rows = {
        "a": [a for a, _ in keys],
        "b": pa.array([b * 1_000_000 for _, b in keys], pa.timestamp("us")),
        "v": [f"{a}/{b}" for a, b in keys],
        VERSION_COLUMN: [b"v"] * len(keys),
    }
    return pa.table(rows).cast(files.columns)


def live(files: KeyedFiles, rows: pa.Table, gone: Sequence[int] = ()) -> list[LiveFile]:
    """A file with these rows in this order. gone: positions of deleted ones."""
    found = []
    for row in write_rows(files, rows):
        deletes = (write_deletes(files, row.path, BitMap(gone)).path,) if gone else ()
        found.append(LiveFile(row.path, row.rows, row.size_bytes, 1, len(gone), deletes, None, None, False))
    return found


def keys_of(rows: pa.Table) -> list[Key]:
    """Each with its own value."""
    moments = rows["b"].cast(pa.timestamp("us", tz="UTC")).to_pylist()
    keys = list(zip(rows["a"].to_pylist(), [int(moment.timestamp()) for moment in moments], strict=True))
    assert rows["v"].to_pylist() == [f"{a}/{b}" for a, b in keys]
    return keys


def bound(key: Key) -> tuple[int, str]:
    minutes, seconds = divmod(key[1], 60)
    return key[0], f"1970-01-01 00:{minutes:02d}:{seconds:02d}.000000"


KEYS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 90)), unique=True, max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    keys=KEYS,
    cuts=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 90)), max_size=6),
    falls=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_ranges_have_each_row_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, keys: list[Key], cuts: list[Key], falls: bool, seed: int
) -> None:
    files, random = files_in(tmp_path_factory.mktemp("lake")), np.random.default_rng(seed)
    some: list[LiveFile] = []
    expected: set[Key] = set()
    for part in range(3):
        mine = keys[part::3]
        gone = sorted(random.choice(len(mine), len(mine) // 3, replace=False).tolist()) if mine else []
        rows = table_of(files, mine)
        if part:  # others may have written the first one in any order
            rows = in_order(rows, KEY)
        some += live(files, rows, gone)
        left = [key for at, key in enumerate(keys_of(rows)) if at not in gone]
        expected |= set(left)

    def place(key: Key) -> Key:
        return key[0], -key[1] if falls else key[1]

    ends = sorted({place(cut) for cut in cuts})
    bounds = [(), *(bound((a, abs(b))) for a, b in ends), ()]
    reader = SnapshotRows(files, some)
    found: list[Key] = []
    for above, through in pairwise(bounds):
        found += keys_of(reader.between(NAMES, KeySpan(above, through, (False, falls))))
    assert found == sorted(expected, key=place)
    assert reader.count() == len(expected)
    assert sorted(key for rows in reader.all(NAMES) for key in keys_of(rows)) == sorted(expected)


def test_groups_outside_of_a_range_are_not_read_and_shared_ones_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_in(tmp_path)
    reader = SnapshotRows(files, live(files, table_of(files, [(1, at) for at in range(40)])))
    read: list[tuple[int, int]] = []
    plain = data_files.OpenFile.read

    def noted(self: data_files.OpenFile, group: int, names: Sequence[str]) -> pa.Table:
        read.append((group, len(names)))
        return plain(self, group, names)

    monkeypatch.setattr(data_files.OpenFile, "read", noted)
    for low in range(0, 12, 2):
        above, through = (bound((1, at)) for at in (low, low + 2))
        assert len(keys_of(reader.between(NAMES, KeySpan(above, through, (False, False))))) == 2
    assert [group for group, names in read if names == len(NAMES)] == [0, 1, 2, 3]
    read.clear()
    monkeypatch.setattr(ordered_rows, "KEPT_BYTES", 0)
    for _ in range(2):
        reader.between(NAMES, KeySpan(bound((1, 20)), bound((1, 22)), (False, False)))
    assert [group for group, names in read if names == len(NAMES)] == [0, 0]  # of the second file


def test_rows_in_no_order_make_a_table_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_rows, "MOST_DEPTH", 3)
    files = files_in(tmp_path)
    ordered = [(at // 5, at % 5) for at in range(80)]
    assert not SnapshotRows(files, live(files, table_of(files, ordered))).deep
    shuffled = [ordered[at] for at in np.random.default_rng(1).permutation(80)]
    assert SnapshotRows(files, live(files, table_of(files, shuffled))).deep


def test_values_compare_with_literals_that_arrow_does_not_have() -> None:
    dates = comparable(pa.array([0, 19_782], pa.date32()))
    assert dates.to_pylist() == ["1970-01-01", "2024-02-29"]
    span = KeySpan(("2024-02-29",), ("2024-02-31",), (False,))
    assert span.mask(pa.table({"d": pa.array([19_782, 19_783], pa.date32())})).tolist() == [False, False]
    assert KeySpan((), ("2024-02-31",), (False,)).apart(("2024-03-01",), ("2024-03-02",))
    numbers = pa.table({"n": pa.array([Decimal(1 << 63), Decimal((1 << 64) - 1)], pa.decimal128(20, 0))})
    assert KeySpan((Decimal(1 << 63),), (), (False,)).mask(numbers).tolist() == [False, True]
    raw = pa.table({"b": pa.array([b"", b"a", b"a\0", b"\xff"])})
    assert KeySpan((b"a",), (b"\xfe",), (False,)).mask(raw).tolist() == [False, False, True, False]
