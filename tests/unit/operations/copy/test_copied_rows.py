"""Rows of a copy as they are staged."""

from __future__ import annotations

import pyarrow as pa

from cdc_core.model.position import Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.model.staged_columns import LITERAL
from cdc_core.operations.copy.copied_rows import CopiedAt

SCHEMA = TableSchema(
    "shop", "t", tuple(Column(name, ColumnType("int"), key_part=part) for name, part in (("id", 1), ("v", None)))
)


def test_a_column_that_nobody_knows_is_absent_and_not_null() -> None:
    """As a generated one that the log lacks, where rows of a copy were changed by the log before they are staged."""
    literal = pa.nulls(2, pa.map_(pa.string(), pa.string()))
    at = CopiedAt("shop", Position(0, "binlog.000001", 4), 1)
    whole = at.rows(SCHEMA, pa.RecordBatch.from_pydict({"id": [1, 2], "v": [3, None], LITERAL: literal}), 0)
    assert whole.column("_cdc_absent").to_pylist() == [None, None]
    some = pa.RecordBatch.from_pydict({"id": [1, 2], LITERAL: literal})
    for rows in (at.rows(SCHEMA, some, 0), at.deletes(SCHEMA, some, 0)):
        assert rows.column("_cdc_absent").to_pylist() == ['["v"]', '["v"]']
        assert rows.column("v").to_pylist() == [None, None]
