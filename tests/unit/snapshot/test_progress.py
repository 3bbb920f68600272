"""Rows, rate and time left are those of what was read; the total is that of the tables as far as it is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc_core.meta import TableCopy
from cdc_core.meta.copy_pace import ROW_COST_BYTES
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.snapshot.pace import Pace
from cdc_core.snapshot.progress import CopyProgress


def copy(table: str, rows: int, estimated: int, **more: object) -> TableCopy:
    schema = TableSchema("shop", table, (Column("id", ColumnType("int"), key_part=1),))
    made = TableCopy("shop", schema, ("9",), planned=("1",), rows=rows, rows_estimated=estimated, size_bytes=10 * rows)
    return replace(made, **more)  # type: ignore[arg-type]


def test_time_left_follows_from_the_rate_of_the_last_seconds() -> None:
    now_s = [0.0]
    progress = CopyProgress({"shop.a": 1000, "shop.b": None}, lambda: now_s[0])
    for second in range(1, 101):
        now_s[0] = second
        progress.update(copy("a", 10 * second, 2000))
    found = progress.table("shop.a")
    assert (found.rows, found.total, found.fraction) == (1000, 2000, 0.5)
    assert (found.rows_s, found.bytes_s, found.left_s) == (10, 100, 100)
    assert progress.overall().total is None  # nothing is known of b
    assert progress.overall().rows_s == 10
    progress.update(copy("b", 0, 500))
    assert progress.overall().total == 2500
    progress.update(copy("a", 1900, 2000, complete=True))
    found = progress.table("shop.a")
    assert (found.fraction, found.left_s, found.total) == (1.0, 0.0, 1900)


def test_time_left_counts_the_bytes_of_rows_that_are_still_to_come() -> None:
    now_s = [0.0]
    progress = CopyProgress({"shop.a": 1000, "shop.b": 100}, lambda: now_s[0])
    for second in (1, 2):
        now_s[0] = second
        progress.update(copy("a", 100 * second, 1000, size_bytes=10_000 * second))
    found = progress.table("shop.a")
    # 100 rows/s of 100 bytes; then 800 rows, taken to be as large, each with its fixed cost
    assert found.left_s == (80_000 + 800 * ROW_COST_BYTES) / (10_000 + 100 * ROW_COST_BYTES)
    assert found.total_bytes == 100_000
    # rows of b are taken to be as large, too
    assert progress.overall().total_bytes == 110_000
    progress.update(copy("a", 1000, 1000, size_bytes=470_000, complete=True))
    assert progress.table("shop.a").total_bytes == 470_000


def test_of_two_readers_that_report_out_of_order_the_larger_count_stays_and_a_new_copy_begins_at_its_own() -> None:
    progress = CopyProgress({"shop.a": None})
    progress.update(copy("a", 200, 1000))
    progress.update(copy("a", 100, 1000))
    assert progress.table("shop.a").rows == 200
    progress.update(copy("a", 5, 1000, planned=None))
    assert progress.table("shop.a").rows == 5


def test_more_rows_than_estimated_are_never_more_than_all() -> None:
    progress = CopyProgress({"shop.a": 10})
    progress.update(copy("a", 50, 10))
    assert progress.table("shop.a").fraction == 1.0


@pytest.mark.parametrize("took_s", [0.1, 60.0])
def test_until_a_chunk_was_read_the_size_of_rows_that_a_server_says_is_not_relied_on(took_s: float) -> None:
    found = Pace(1 << 20, 5.0, 1.0, first_rows=10_000)
    assert found.rows == 10_000
    found.read(10_000, 1_000_000, took_s)
    assert found.rows == min((1 << 20) // 100, int(10_000 * 5 / took_s))
