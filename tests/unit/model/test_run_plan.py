"""Which of a table's definitions is the last one, where copied rows are staged after a change of the table."""

from __future__ import annotations

import pytest

from cdc_core.model.run_plan import MergeTable, PlannedFile, RunPlan
from cdc_core.model.schema import Column, ColumnType, TableSchema

FORMER, LATER = (
    TableSchema("shop", "t", tuple(Column(name, ColumnType("int")) for name in names)) for names in ("id", ("id", "w"))
)


@pytest.mark.parametrize(
    ("files", "last"),
    [
        ([("one/1", FORMER, 10), ("one/2", LATER, 20), ("one/2+1", FORMER, 15)], LATER),
        ([("one/1", FORMER, 10), ("one/1+1", LATER, 15)], LATER),
        ([("one/1", FORMER, 10), ("one/2", LATER, 20), ("one/3", FORMER, 30), ("one/3+1", LATER, 25)], FORMER),
        ([("one/1", LATER, 10), ("one/1+1", FORMER, 9)], LATER),
    ],
)
def test_a_copy_defines_a_table_as_of_its_read(files: list[tuple[str, TableSchema, int]], last: TableSchema) -> None:
    planned = tuple(PlannedFile("p", 1, schema.id, batch, 1, "", seq) for batch, schema, seq in files)
    plan = RunPlan("r", "line", "file:///s", 0, 1, (), (), {schema.id: schema for schema in (FORMER, LATER)})
    assert plan.current_schemas(MergeTable("t", ("id",), planned)) == (last,)
