"""Answers of a target are read by PyMySQL or, if large, by the compiled reader: here by both, and compared.

Rows that are read back are compared by the client, if they are many, and by the server: here by both, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdc_core.mysql.connections import SafeConnection
from cdc_core.targets.reading import answers, read_back
from cdc_core.targets.reading.table_facts import TableFacts
from cdc_core.targets.tables import compare_columns as compare
from cdc_core.targets.writing import versions
from cdc_core.targets.writing.load import Layout


@pytest.fixture(autouse=True)
def both_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    def columns_of(
        connection: SafeConnection, sql: str, kinds: Sequence[pa.DataType], *, rows: int, where: str
    ) -> list[pa.Array]:
        found: list[Any] = []
        for size in (rows, answers.SMALL_ROWS + 1):
            read = original(connection, sql, kinds, rows=size, where=where)
            order = pc.sort_indices(pa.table({str(at): column for at, column in enumerate(read)}), [("0", "ascending")])
            found.append(([column.take(order) for column in read], read))
        assert found[0][0] == found[1][0], sql
        return found[1][1]

    original = answers.columns_of
    for module in (compare, versions):
        monkeypatch.setattr(module, "columns_of", columns_of)

    def as_expected(
        connection: SafeConnection, facts: TableFacts, rows: pa.RecordBatch, layout: Layout
    ) -> read_back.Mask:
        found = by_client(connection, facts, rows, layout)
        with tempfile.TemporaryDirectory() as scratch:
            words = compare.judged(connection, facts, rows, layout, scratch=Path(scratch))
        assert {word for word, mine in zip(words, found, strict=True) if mine} <= {compare.SAME}
        return found

    by_client = read_back.as_expected
    monkeypatch.setattr(read_back, "as_expected", as_expected)
    monkeypatch.setattr(compare, "SMALL_ROWS", 0)
