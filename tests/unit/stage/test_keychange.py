"""Key changes: counted where the key of the before image differs, however the difference is written."""

from __future__ import annotations

import datetime

import pytest

from cdc_core.model.position import Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.stage.open_part import key_changes
from tests.lab.made_blocks import Change, Made, block

SCHEMA = TableSchema(
    "shop",
    "visits",
    (
        Column("day", ColumnType("date"), False, 2),
        Column("name", ColumnType("varchar", length=20, charset="utf8mb4"), True, 1),
        Column("note", ColumnType("text")),
    ),
)
DAY = datetime.date(2026, 11, 21)
ROW = {"day": DAY, "name": "a", "note": "x"}


def count(*changes: Change) -> int:
    made_block = block([Made(changes=changes)], Position(0, "binlog.000001", 4))
    return key_changes(made_block.tables[0].rows, SCHEMA.key)


@pytest.mark.parametrize(
    ("after", "before", "literal", "changed"),
    [
        (ROW, ROW, None, False),
        (ROW, ROW | {"note": None}, None, False),
        (ROW, ROW | {"name": "A"}, None, True),
        (ROW, ROW | {"day": datetime.date(2026, 1, 1)}, None, True),
        (ROW | {"name": None}, ROW, None, True),
        (ROW, ROW | {"name": None}, None, True),
        (ROW | {"name": None}, ROW | {"name": None}, None, False),
        (ROW | {"day": None}, ROW | {"day": None}, {"day": "0000-00-00", "_before.day": "0000-00-00"}, False),
        (ROW | {"day": None}, ROW | {"day": None}, {"day": "0000-00-00", "_before.day": "2024-02-31"}, True),
        (ROW | {"day": None}, ROW, {"day": "0000-00-00"}, True),
        (ROW, ROW, {"note": "odd"}, False),
    ],
)
def test_an_update_counts_where_its_key_differs(after, before, literal, changed):
    assert count(Change(SCHEMA, "u", after, before, literal)) == changed


def test_a_slice_counts_its_own_rows():
    moved = Change(SCHEMA, "u", ROW, ROW | {"name": "b"})
    made_block = block(
        [Made(changes=[moved, moved, Change(SCHEMA, "u", ROW, ROW), moved])], Position(0, "binlog.000001", 4)
    )
    rows = made_block.tables[0].rows
    assert [key_changes(rows.slice(i, 2), SCHEMA.key) for i in range(3)] == [2, 1, 1]
