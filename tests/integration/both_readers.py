"""Answers of a target are read by PyMySQL or, if large, by the compiled reader: here by both, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdc_core.connections import SafeConnection
from cdc_core.target import answers, compare, versions


@pytest.fixture(autouse=True)
def both_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    def columns_of(
        connection: SafeConnection, sql: str, kinds: Sequence[pa.DataType], *, rows: int, where: str
    ) -> list[pa.Array]:
        found: list[Any] = []
        for size in (rows, answers.SMALL_ROWS + 1):
            read = original(connection, sql, kinds, rows=size, where=where)
            order = pc.sort_indices(pa.table({str(at): one for at, one in enumerate(read)}), [("0", "ascending")])
            found.append(([one.take(order) for one in read], read))
        assert found[0][0] == found[1][0], sql
        return found[1][1]

    original = answers.columns_of
    for module in (compare, versions):
        monkeypatch.setattr(module, "columns_of", columns_of)
