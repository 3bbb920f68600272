"""What a changes table must have, by what the stage says of each key."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

import lockstep
from cdc_core.model.staged_columns import ABSENT, BEFORE, FILE, GTID, LITERAL, POS, SOURCE_TABLE, TRUNCATE

_LEFT_OUT = {BEFORE, FILE, POS, GTID, LITERAL}


def of_operation(op: str) -> pc.Expression:
    return pc.equal(pc.field("_cdc_op").cast(pa.string()), op)


def staged_changes(stage: Path, table: str) -> list[dict[str, Any]]:
    """Each staged change under a single key; of a TRUNCATE, itself in place of a delete of each key."""
    staged = lockstep.open(stage)[table]
    truncates = staged.changes().to_arrow().filter(of_operation(TRUNCATE)).to_pylist()
    places = {_place(row) for row in truncates}
    by_key = staged.changes(by_key=True).to_arrow().to_pylist()
    return [*(row for row in by_key if _place(row) not in places), *truncates]


def require_every_change_once(changes: Table, stage: Path, table: str) -> int:
    """How many rows it has. Its form of `_cdc_literal` is another one."""
    rows, expected = changes.scan().to_arrow().to_pylist(), staged_changes(stage, table)
    names = [field.name for field in changes.schema().fields if field.name not in (LITERAL, SOURCE_TABLE)]
    assert {name for row in expected for name in row} - _LEFT_OUT <= set(names)
    wanted, found = (Counter(tuple(_shown(row, name) for name in names) for row in some) for some in (expected, rows))
    same = wanted == found  # pytest would take minutes to show how they differ
    assert same, f"{names}: {[*(wanted - found)][:3]} are missing, {[*(found - wanted)][:3]} are more"
    return len(rows)


def _shown(row: dict[str, Any], name: str) -> str:
    if name == ABSENT and row[name]:  # of values before, the changes table has none
        return str([load for load in json.loads(row[name]) if not load.startswith(BEFORE)] or None)
    return str(row.get(name))


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["_cdc_source"], row["_cdc_seq"], row["_cdc_row"]
