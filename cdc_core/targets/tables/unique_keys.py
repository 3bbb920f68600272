"""Unique values that move from row to row, as in a swap: the rows that hold them are taken out before the upsert.

A row may be taken out only if this batch writes it again. Columns of the target that the source does not have are
saved meanwhile, so that taking a row out loses nothing. Which rows hold a value that the table computes by itself, the
loaded rows do not say: all rows that the batch writes are taken out then.
"""

from __future__ import annotations

from typing import Any

from cdc_core.errors import DataAtRisk
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.mysql.connections import quote
from cdc_core.targets.reading.table_facts import TableFacts, UniqueKey
from cdc_core.targets.writing.load import IS_WRITTEN, TEMPORARY, Layout, target_name
from cdc_core.targets.writing.prepare import indexable
from cdc_core.targets.writing.versions import on_key, table_name

TAKEN = "_lockstep_taken"


def _others(facts: TableFacts, layout: Layout) -> list[UniqueKey]:
    """Unique keys over columns of the rows, other than the rows' own key."""
    key = frozenset(name.lower() for name in layout.key)
    known = frozenset(name.lower() for name in layout.columns)
    return [one for one in facts.unique_keys if one.columns != key and one.columns <= known]


def _computes(facts: TableFacts, layout: Layout) -> bool:
    """Whether the table has a unique key over an expression, or over a generated column that the rows do not have."""
    known = {name.lower() for name in layout.columns}
    own = {column.name.lower() for column in facts.columns if column.generated} - known
    return any(not one.columns.isdisjoint({"", *own}) for one in facts.unique_keys)


def needs_care(facts: TableFacts, layout: Layout) -> bool:
    return bool(_others(facts, layout)) or _computes(facts, layout)


def may_collide(facts: TableFacts, layout: Layout) -> bool:
    """Whether rows with different keys may be equal in a unique key of the table: also in one over what the table
    computes from them, over the beginning of their values, or in part over columns that they do not have."""
    key = frozenset(name.lower() for name in layout.key)
    given = {name.lower() for name in layout.columns}
    given |= {column.name.lower() for column in facts.columns if column.generated}
    return any(
        not (one.plain and one.columns == key) and any(not column or column.lower() in given for column, _ in one.parts)
        for one in facts.unique_keys
    )


def _extra(facts: TableFacts, layout: Layout) -> list[str]:
    """Columns that only the target has."""
    known = {name.lower() for name in layout.columns} | {VERSION_COLUMN}
    return [column.name for column in facts.columns if column.name.lower() not in known and not column.generated]


def create_taken(cursor: Any, facts: TableFacts, layout: Layout) -> None:
    """The empty table of rows taken out, and an index to find a row's own upsert by. Before the transaction."""
    key = [target_name(facts, name) for name in layout.key]
    kept = [quote(name) for name in _extra(facts, layout)]
    cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {TAKEN}")
    cursor.execute(
        f"CREATE TEMPORARY TABLE {TAKEN} (_lockstep_t BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB "
        f"AS SELECT {', '.join(key + kept)} FROM {table_name(facts)} WHERE FALSE"
    )
    if indexable(facts, layout.key):
        cursor.execute(f"CREATE INDEX _lockstep_key ON {TEMPORARY} ({', '.join(key)})")


def take_out(cursor: Any, facts: TableFacts, layout: Layout) -> None:
    """Deletes the rows that hold a unique value which the batch gives to another row.

    Raises DataAtRisk (target.unique_conflict) when the batch gives one value to two rows, or to a row while the
    value's holder is not in the batch.
    """
    key = [target_name(facts, name) for name in layout.key]
    kept = [quote(name) for name in _extra(facts, layout)]
    own = " AND ".join(f"r.{name} = _l.{name}" for name in key)
    delete = f"DELETE r FROM {TAKEN} _l STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, layout.key)}"
    if _computes(facts, layout):
        cursor.execute(
            f"INSERT INTO {TAKEN} ({', '.join(key + kept)}) SELECT {', '.join(f'r.{name}' for name in key + kept)} "
            f"FROM {TEMPORARY} _l STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, layout.key)} WHERE {IS_WRITTEN}"
        )
        cursor.execute(delete)
    for unique in _others(facts, layout):
        columns = [(quote(facts.by_name[name.lower()].name), length) for name, length in unique.parts]
        whole = [f"_l.{name}" if length is None else f"LEFT(_l.{name}, {length})" for name, length in columns]
        given = " AND ".join(f"_l.{name} IS NOT NULL" for name, _ in columns)
        cursor.execute(
            f"SELECT MIN(_l._k), MAX(_l._k) FROM {TEMPORARY} _l WHERE {IS_WRITTEN} AND {given} "
            f"GROUP BY {', '.join(whole)} HAVING COUNT(*) > 1 LIMIT 1"
        )
        twice = cursor.fetchone()
        if twice:
            raise _conflict(facts, unique, twice[0], twice[1], "both are in the batch")
        same = " AND ".join(
            f"{ours} = r.{name}" if length is None else f"{ours} = LEFT(r.{name}, {length})"
            for ours, (name, length) in zip(whole, columns, strict=True)
        )
        cursor.execute(
            f"INSERT INTO {TAKEN} ({', '.join(key + kept)}) "
            f"SELECT DISTINCT {', '.join(f'r.{name}' for name in key + kept)} FROM {TEMPORARY} _l "
            f"STRAIGHT_JOIN {table_name(facts)} r ON {same} WHERE {IS_WRITTEN} AND NOT ({own})"
        )
        cursor.execute(
            f"SELECT {', '.join(f'k.{name}' for name in key)} FROM {TAKEN} k LEFT JOIN {TEMPORARY} _l "
            f"ON {on_key(facts, layout.key, left='k', right='_l')} AND {IS_WRITTEN} WHERE _l._n IS NULL LIMIT 1"
        )
        foreign = cursor.fetchone()
        if foreign:
            holder = ",".join(str(value) for value in foreign).encode()
            raise _conflict(
                facts, unique, _rival(cursor, facts, same, own), holder, "the batch does not write the second"
            )
        cursor.execute(delete)


def _rival(cursor: Any, facts: TableFacts, same: str, own: str) -> bytes:
    cursor.execute(
        f"SELECT _l._k FROM {TEMPORARY} _l STRAIGHT_JOIN {table_name(facts)} r ON {same} "
        f"WHERE {IS_WRITTEN} AND NOT ({own}) LIMIT 1"
    )
    row = cursor.fetchone()
    return bytes(row[0]) if row else b"?"


def restore_extra(cursor: Any, facts: TableFacts, layout: Layout) -> None:
    """Restores the columns that only the target has to the rows taken out."""
    kept = [quote(name) for name in _extra(facts, layout)]
    if kept:
        cursor.execute(
            f"UPDATE {TAKEN} _l STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, layout.key)} "
            f"SET {', '.join(f'r.{name} = _l.{name}' for name in kept)}"
        )


def _conflict(facts: TableFacts, unique: UniqueKey, one: bytes, other: bytes, why: str) -> DataAtRisk:
    return DataAtRisk(
        f"The rows with keys {one.decode(errors='replace')} and {other.decode(errors='replace')} have the same value "
        f"of the unique key {unique.name}; {why}.",
        where=facts.name,
        code="target.unique_conflict",
        remedy="compare the two rows with the source; drop the unique key if only the target has it, or remove the "
        "row that the source does not have",
    )
