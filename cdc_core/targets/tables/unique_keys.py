"""Unique values that move from row to row, as in a swap: the rows that the batch writes are taken out, then inserted.

If another row still has a unique value of the batch then, the batch does not write that row, or it gives the value to
two rows: the server refuses the insert. Columns of the target that the source does not have are saved meanwhile, so
that taking a row out loses nothing.
"""

from __future__ import annotations

from typing import Any

import pymysql

from cdc_core.errors import DataAtRisk
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.mysql.connections import quote
from cdc_core.targets.reading.table_facts import TableFacts, table_name
from cdc_core.targets.reading.target_faults import reason
from cdc_core.targets.writing.load import IS_WRITTEN, TEMPORARY, Layout, shown_key, target_name
from cdc_core.targets.writing.versions import on_key

TAKEN = "_lockstep_taken"


def may_collide(facts: TableFacts, layout: Layout) -> bool:
    """Whether rows with different keys may be equal in a unique key of the table: also in one over what the table
    computes from them, over the beginning of their values, or in part over columns that they do not have."""
    key = frozenset(name.lower() for name in layout.key)
    given = {name.lower() for name in layout.columns} | {""}
    given |= {column.name.lower() for column in facts.columns if column.generated}
    return any(
        not (unique_key.whole and frozenset(unique_key.columns) == key) and not given.isdisjoint(unique_key.columns)
        for unique_key in facts.unique_keys
    )


def _extra(facts: TableFacts, layout: Layout) -> list[str]:
    """Columns that only the target has, quoted."""
    names = {name.lower() for name in layout.columns} | {VERSION_COLUMN}
    return [quote(column.name) for column in facts.columns if column.name.lower() not in names and not column.generated]


def take_out(cursor: Any, facts: TableFacts, layout: Layout) -> None:
    """Deletes the rows that the batch writes."""
    rows = f"{TEMPORARY} _l STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, layout.key)} WHERE {IS_WRITTEN}"
    kept = _extra(facts, layout)
    if kept:
        names = [*(target_name(facts, name) for name in layout.key), *kept]
        cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {TAKEN}")
        cursor.execute(
            f"CREATE TEMPORARY TABLE {TAKEN} (_lockstep_t BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB "
            f"AS SELECT {', '.join(f'r.{name}' for name in names)} FROM {rows}"
        )
    cursor.execute(f"DELETE r FROM {rows}")


def restore_extra(cursor: Any, facts: TableFacts, layout: Layout) -> None:
    """Restores the columns that only the target has to the rows taken out."""
    kept = _extra(facts, layout)
    if kept:
        cursor.execute(
            f"UPDATE {TAKEN} _l STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, layout.key)} "
            f"SET {', '.join(f'r.{name} = _l.{name}' for name in kept)}"
        )


def unique_conflict(facts: TableFacts, key: bytes, error: pymysql.err.MySQLError) -> DataAtRisk:
    """The error for a row of the batch with a unique value that another row has."""
    return DataAtRisk(
        f"The row with key {shown_key(key)} has a unique value that another row has, which the batch does not write, "
        f"or writes too: {reason(error)}.",
        where=facts.name,
        code="target.unique_conflict",
        remedy="compare the two rows with the source; drop the unique key if only the target has it, or remove the "
        "row that the source does not have; nothing of this transaction was written",
    )
