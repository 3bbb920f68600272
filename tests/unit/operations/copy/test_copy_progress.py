"""Rows and rate are those of what was read; the total is the server's estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc_core.meta import TableCopy
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.operations.copy.chunks import Pace
from cdc_core.operations.copy.copy_progress import CopyProgress


def copy(table: str, rows: int, estimated: int, **more: object) -> TableCopy:
    schema = TableSchema("shop", table, (Column("id", ColumnType("int"), key_part=1),))
    made = TableCopy("shop", schema, ("9",), planned=("1",), rows=rows, rows_estimated=estimated, size_bytes=10 * rows)
    return replace(made, **more)


def test_a_line_has_the_rows_of_the_servers_estimate_and_the_rate_of_this_process() -> None:
    now_s = [100.0]
    progress = CopyProgress(lambda: now_s[0])
    assert progress.text(copy("a", 500, 2000)) == "500 of ~2,000 rows"
    now_s[0] += 10
    assert progress.text(copy("a", 600, 2000)) == "600 of ~2,000 rows, 10 rows/s"
    assert progress.text(copy("a", 2500, 2000)) == "2,500 of ~2,500 rows, 200 rows/s"
    assert progress.text(copy("a", 600, 2000, waiting="a replica lags")) == "600 of ~2,000 rows; waits: a replica lags"
    assert progress.text(copy("a", 2500, 2000, complete=True)) == "all 2,500 rows read"


def test_the_rate_of_a_copy_that_begins_again_begins_again() -> None:
    now_s = [0.0]
    progress = CopyProgress(lambda: now_s[0])
    progress.text(copy("a", 500, 2000))
    now_s[0] += 10
    assert progress.text(copy("a", 5, 2000)) == "5 of ~2,000 rows"
    now_s[0] += 10
    assert progress.text(copy("a", 25, 2000)) == "25 of ~2,000 rows, 2 rows/s"


@pytest.mark.parametrize("took_s", [0.1, 60.0])
def test_until_a_chunk_was_read_the_size_of_rows_that_a_server_says_is_not_relied_on(took_s: float) -> None:
    pace = Pace(1 << 20, 5.0, 1.0, first_rows=10_000)
    assert pace.rows == 10_000
    pace.read(10_000, 1_000_000, took_s)
    assert pace.rows == min((1 << 20) // 100, int(10_000 * 5 / took_s))
