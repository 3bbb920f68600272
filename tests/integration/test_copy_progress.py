"""How far a copy says it is, by the server's own estimate, and that nothing of this ends it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from cdc_core.meta import TableCopy
from cdc_core.operations.copy import chunks, table_chunks
from cdc_core.operations.copy.chunks import TableSize, size_of
from cdc_core.operations.copy.copier import copier_lease, copy_tables
from cdc_core.source.schemas.captured_definitions import table_schema
from tests.lab.lab import Lab

ROWS = 20_000
_DIGITS = "(" + " UNION ALL ".join(f"SELECT {digit} d" for digit in range(10)) + ")"
_NUMBERS = (
    f"(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM {_DIGITS} a, {_DIGITS} b, {_DIGITS} c, "
    f"{_DIGITS} e, (SELECT 0 d UNION ALL SELECT 1) f) numbers"
)


def test_a_copy_says_its_rows_of_the_servers_estimate_and_ends_whatever_becomes_of_what_it_says(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    line = make_line()
    line.origin.execute(
        "CREATE TABLE t (w VARCHAR(40) PRIMARY KEY) CHARACTER SET utf8mb4", "INSERT INTO t VALUES ('õun'), ('ÿ'), ('µ')"
    )
    line.begin_now()
    line.drain()
    monkeypatch.setattr(chunks, "chunk_rows", lambda *_: 1)
    monkeypatch.setattr(table_chunks, "size_of", lambda *_: TableSize(7, 100))
    told: list[tuple[int, int | None]] = []

    def progressed(copy: TableCopy) -> None:
        (status,) = (table_copy for source in line.meta.status.find().sources for table_copy in source.copies)
        told.append((status.rows, status.rows_estimated))
        raise ValueError("nobody listens")

    with copier_lease(line.opened, "shop") as lease:
        copy_tables(line.opened, "shop", [(line.origin.name, "t")], lease, progressed)
        (copy,) = line.meta.copies.find("shop")
        assert (copy.complete, copy.rows) == (True, 3)
        assert {all_ for rows, all_ in told if rows < 3} <= {7}
        assert told[-1] == (3, 3)
    assert "nobody listens" in caplog.text


def test_the_servers_estimate_is_of_the_table_as_it_is_now(make_line: Callable[..., Lab]) -> None:
    line = make_line()
    with closing(line.origin.sql.connect(line.origin.name, autocommit=True)) as connection, connection.cursor() as to:
        to.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v INT, w VARCHAR(2000))")
        schema = table_schema(connection, line.origin.name, "t")
        assert schema is not None
        to.execute(f"SELECT TABLE_ROWS FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = '{line.origin.name}'")
        to.execute(f"INSERT INTO t SELECT n, n, 'x' FROM {_NUMBERS} WHERE n > 0 AND n < {ROWS} ORDER BY n")
        assert size_of(line.origin.control, schema).rows > ROWS // 2
