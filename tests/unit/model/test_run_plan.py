"""What a plan says of its tables: which definition is the last one, and whether the driver does the run itself."""

from __future__ import annotations

import pytest

from cdc_core.model.run_plan import DRIVER_BYTES, MergeSet, MergeTable, PlannedFile, RunPlan
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
    planned = tuple(PlannedFile("p", 1, schema.id, batch, 1, 1, "", seq) for batch, schema, seq in files)
    plan = RunPlan("r", "line", "file:///s", 0, 1, (), (), {schema.id: schema for schema in (FORMER, LATER)})
    assert plan.current_schemas(MergeTable("t", ("id",), planned)) == (last,)


@pytest.mark.parametrize(
    ("rows", "plain_bytes", "by_driver"),
    [(5, DRIVER_BYTES // 2, True), (6, 0, False), (1, DRIVER_BYTES // 2 + 1, False)],
)
def test_the_driver_does_few_changes_itself_if_they_take_little_memory(
    rows: int, plain_bytes: int, by_driver: bool
) -> None:
    """Twice so many rows and bytes: the run has two files, which are small."""
    planned = tuple(PlannedFile("p", rows, "s", batch, 1, plain_bytes, "", 1) for batch in ("one/1", "one/2"))
    sets = (MergeSet("0", (MergeTable("t", ("id",), planned),)),)
    assert RunPlan("r", "line", "file:///s", 0, 1, sets, (), {}).by_driver(10) == by_driver
