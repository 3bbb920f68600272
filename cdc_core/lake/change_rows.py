"""The changes table of a mirror: every change is a row of it, once.

An update that changes the key is two rows: a `d` of the key that the row left, and a `c` of the new one. A `t` has no
values. Rows are never changed. The place of a change in its log (CHANGES_KEY) says whether the table has it, so runs,
replays and retries may bring it again, in any order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.codes import whole
from cdc_core.history.events import ARRIVED, TABLE
from cdc_core.lake.data_files import KeyedFiles, LiveFile
from cdc_core.lake.held_rows import held_keys
from cdc_core.lake.lake_schema import CHANGES_KEY
from cdc_core.model.places import in_order, rows_where
from cdc_core.model.staged_columns import INSERT, LITERAL, OP, SOURCE_TABLE, UPDATE


@dataclass(frozen=True)
class ChangeRows:
    """A changes table at the snapshot that a run is based on."""

    files: KeyedFiles
    live: tuple[LiveFile, ...]


def new_rows(changes: ChangeRows, events: pa.Table) -> pa.Table:
    """The rows of events (cdc_core/history/events.py) that the table does not have, in their order. events: no two at
    one place."""
    events = events.set_column(events.column_names.index(OP), OP, _ops(events))
    held = held_keys(changes.files, changes.live, events.select(CHANGES_KEY))
    fresh = rows_where(events, ~held)
    made = {LITERAL: _texts(whole(fresh.column(LITERAL))), SOURCE_TABLE: fresh.column(TABLE)}
    columns = []
    for field in changes.files.columns:
        if field.name in made:
            column = made[field.name]
        elif field.name in fresh.column_names:
            column = fresh.column(field.name)
        else:
            column = pa.nulls(fresh.num_rows, field.type)
        columns.append(column.cast(field.type))
    return in_order(pa.table(columns, schema=changes.files.columns), CHANGES_KEY)


def _ops(events: pa.Table) -> pa.Array:
    ops = whole(events.column(OP)).cast(pa.string())
    moved = pc.and_(whole(events.column(ARRIVED)), pc.equal(ops, UPDATE))
    return pc.if_else(moved, INSERT, ops)


def _texts(literal: pa.MapArray) -> pa.Array:
    """Each map as a JSON object."""
    found = np.full(len(literal), None, object)
    for at in np.flatnonzero(np.asarray(literal.is_valid())).tolist():
        found[at] = json.dumps(dict(literal[at].as_py()), ensure_ascii=False)
    return pa.array(found, pa.string())
