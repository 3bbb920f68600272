"""How far a copy says it is, against what the table turns out to have: rows that grow, keys that lie unevenly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from cdc_core.meta import CopyStatus, Meta, TableCopy
from cdc_core.snapshot import copier, pace, table_chunks
from cdc_core.snapshot.chunks import TableSize, size_of
from cdc_core.snapshot.copier import copier_lease, copy_tables
from cdc_core.source.definitions import table_schema
from tests.integration.line import Line

ROWS = 20_000
_DIGITS = "(" + " UNION ALL ".join(f"SELECT {one} d" for one in range(10)) + ")"
_NUMBERS = (
    f"(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM {_DIGITS} a, {_DIGITS} b, {_DIGITS} c, "
    f"{_DIGITS} e, (SELECT 0 d UNION ALL SELECT 1) f) numbers"
)
GROWING, EVEN = f"20 + 1500 * n DIV {ROWS}", "700"
DENSE, SPARSE, HALVES = "n", "3 * n * n", f"IF(n < {ROWS} DIV 2, n, 40 * n)"


def filled(line: Line, key: str, length: str) -> None:
    with closing(line.origin.sql.connect(line.origin.name, autocommit=True)) as connection, connection.cursor() as to:
        to.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v INT, w VARCHAR(2000))")
        to.execute(
            f"INSERT INTO t SELECT {key}, n, REPEAT('x', {length}) FROM {_NUMBERS} "
            f"WHERE n > 0 AND n < {ROWS} ORDER BY n"
        )


@pytest.mark.parametrize(
    ("key", "length", "counted"),
    [
        pytest.param(DENSE, GROWING, True, id="growing", marks=pytest.mark.matrix),
        pytest.param(SPARSE, GROWING, False, id="sparse, growing, not counted"),
        pytest.param(SPARSE, EVEN, False, id="sparse, not counted", marks=pytest.mark.matrix),
        pytest.param(HALVES, GROWING, False, id="two densities, not counted", marks=pytest.mark.matrix),
    ],
)
def test_after_a_twentieth_rows_and_bytes_in_all_are_right_within_a_twentieth(
    make_line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch, key: str, length: str, counted: bool
) -> None:
    filled(make_line(), key, length)
    line = make_line()
    line.drain()
    if not counted:
        monkeypatch.setattr(table_chunks, "_COUNTED_FIRSTS", 0)
        monkeypatch.setattr(copier, "count_rows", _must_not_count)
    limits = line.pipeline.snapshot.model_copy(update={"chunk_mib": 1})
    line.pipeline = line.pipeline.model_copy(update={"snapshot": limits})
    monkeypatch.setattr(table_chunks, "FIRST_ROWS", ROWS // 50)  # as few of these rows as 10,000 are of a large table
    told: list[TableCopy] = []
    seen: list[CopyStatus] = []

    def progressed(copy: TableCopy) -> None:
        told.append(copy)
        seen.extend(one for source in meta.status("shop").sources for one in source.copies)

    with (
        Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta,
        copier_lease(meta, line.pipeline, "shop") as lease,
    ):
        copy_tables(
            line.pipeline, "shop", [(line.origin.name, "t")], meta=meta, store=line.store, lease=lease,
            environ={"SOURCE": line.origin.sql.url}, progressed=progressed,
        )  # fmt: skip
    rows, size_bytes = max(one.rows for one in told), max(one.size_bytes for one in told)
    assert rows == ROWS - 1
    late = [one for one in told if one.size_bytes > size_bytes / 20]
    assert len(late) > 10
    wrong = [
        (one.rows / rows, one.rows_estimated / rows, one.bytes_estimated / size_bytes)
        for one in late
        if abs(one.rows_estimated / rows - 1) > 0.05 or abs(one.bytes_estimated / size_bytes - 1) > 0.05
    ]
    assert not wrong
    known = [one for one in seen if one.left_s is not None and one.rows_s is not None]
    assert len(known) > 10
    assert all(one.rows_s and one.left_s is not None and one.left_s >= 0 for one in known)
    assert min(one.left_s or 0 for one in known) < max(one.left_s or 0 for one in known)


@pytest.mark.parametrize("key", ["CHAR(36)", pytest.param("BINARY(16)", marks=pytest.mark.matrix)])
def test_of_keys_that_are_no_numbers_the_rows_in_all_follow_from_how_far_the_keys_are(
    make_line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    line = make_line()
    value = "LEFT(SHA2(n, 224), 32)" if key != "BINARY(16)" else "UNHEX(LEFT(SHA2(n, 224), 32))"
    with closing(line.origin.sql.connect(line.origin.name, autocommit=True)) as connection, connection.cursor() as to:
        to.execute(f"CREATE TABLE t (id {key} PRIMARY KEY, v INT)")
        to.execute(f"INSERT INTO t SELECT {value}, n FROM {_NUMBERS} WHERE n > 0 AND n < {ROWS}")
    line.drain()
    monkeypatch.setattr(copier, "count_rows", lambda *_, **__: None)  # it takes too long
    monkeypatch.setattr(table_chunks, "size_of", lambda *_: TableSize(ROWS * 3 // 2, 100))
    monkeypatch.setattr(table_chunks, "FIRST_ROWS", ROWS // 50)
    limits = line.pipeline.snapshot.model_copy(update={"chunk_mib": 1, "readers": 1})
    line.pipeline = line.pipeline.model_copy(update={"snapshot": limits})
    monkeypatch.setattr(pace, "chunk_rows", lambda *_: ROWS // 50)
    told: list[TableCopy] = []
    with (
        Meta.open(line.pipeline.meta.url, line.pipeline.pipeline) as meta,
        copier_lease(meta, line.pipeline, "shop") as lease,
    ):
        copy_tables(
            line.pipeline, "shop", [(line.origin.name, "t")], meta=meta, store=line.store, lease=lease,
            environ={"SOURCE": line.origin.sql.url}, progressed=told.append,
        )  # fmt: skip
    late = [one for one in told if one.rows > ROWS / 20]
    assert len(late) > 10
    assert not any(one.counted for one in late)
    # The fewer rows are read, the more chance counts: of a thousand, about a thirtieth.
    sure = [(one, 0.05 + 3 * (1 - one.rows / ROWS) / one.rows**0.5) for one in late]
    assert not [(one.rows, one.rows_estimated) for one, off in sure if abs(one.rows_estimated / ROWS - 1) > off]


def _must_not_count(*_: object, **__: object) -> None:
    raise AssertionError("a large table was counted")


def test_the_servers_estimate_is_of_the_table_as_it_is_now(make_line: Callable[..., Line]) -> None:
    line = make_line()
    with closing(line.origin.sql.connect(line.origin.name, autocommit=True)) as connection, connection.cursor() as to:
        to.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v INT, w VARCHAR(2000))")
        schema = table_schema(connection, line.origin.name, "t")
        assert schema is not None
        to.execute(f"SELECT TABLE_ROWS FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = '{line.origin.name}'")
        to.execute(f"INSERT INTO t SELECT n, n, 'x' FROM {_NUMBERS} WHERE n > 0 AND n < {ROWS} ORDER BY n")
        assert size_of(connection, schema).rows > ROWS // 2
