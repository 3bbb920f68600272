"""Compares rows of the target with what they should be, value by value.

Of many rows of a table that `read_back` can read, it reads those back and finds the rows that are as they should be.
The server judges all others: they are loaded as for a write. Text is compared byte by byte, whatever the collation.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql

from cdc_core.model.merged_columns import MergedOp
from cdc_core.model.schema import ColumnType
from cdc_core.model.staged_columns import SEQ, SOURCE
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.mysql.connections import SafeConnection, sensible
from cdc_core.targets.reading import read_back
from cdc_core.targets.reading.answers import SMALL_ROWS, columns_of
from cdc_core.targets.reading.table_facts import TableFacts, declaration, table_name
from cdc_core.targets.writing.guard_sql import newer_or_equal_sql
from cdc_core.targets.writing.load import TEMPORARY, Layout, LoadFile, create_temporary, is_absent, load, target_name
from cdc_core.targets.writing.multiset import marks_of
from cdc_core.targets.writing.versions import beside, equal_sql, on_key, row_version, tombstones_name

SAME, NEWER, MISSING, DIFFERS, OLDER, LEFT_BEHIND = "same", "newer", "missing", "differs", "older", "left behind"
"""same: as it should be. newer: the target has a later change (or its tombstone). missing: an upserted row is not
there. differs: the row has the expected version but other values. older: the row is older than what was written.
left behind: a deleted or moved row is still there."""


@sensible("target")
def outcomes(
    connection: SafeConnection, facts: TableFacts, rows: pa.RecordBatch, layout: Layout, *, scratch: Path
) -> list[str]:
    """One of the words above for each row. `rows` are what a write takes; the connection is load.open_session's."""
    if facts.keyless:
        return _reached(connection, facts, rows)
    if rows.num_rows <= SMALL_ROWS or not read_back.readable(facts, rows.schema, layout):
        return judged(connection, facts, rows, layout, scratch=scratch)
    found = [SAME] * rows.num_rows
    others = np.flatnonzero(~read_back.as_expected(connection, facts, rows, layout))
    if len(others):
        rest = judged(connection, facts, rows.take(pa.array(others)), layout, scratch=scratch)
        for at, outcome in zip(others.tolist(), rest, strict=True):
            found[at] = outcome
    return found


def judged(
    connection: SafeConnection, facts: TableFacts, rows: pa.RecordBatch, layout: Layout, *, scratch: Path
) -> list[str]:
    """`outcomes` by the server, which is given the rows; not for rows without a key."""
    found = [""] * rows.num_rows
    facts, layout = _documents_as_text(facts), replace(layout, documents=frozenset())
    with connection.cursor() as cursor, LoadFile(scratch, layout) as file:
        create_temporary(cursor, facts, layout)
        file.add(rows)
        load(cursor, facts, file)
        version = row_version(facts)
        mine, theirs = newer_or_equal_sql("_l._v", version), newer_or_equal_sql(f"d.{VERSION_COLUMN}", "_l._v")
        first_key = f"r.{target_name(facts, layout.key[0])}"
        removed = f"_l._o <> '{MergedOp.UPSERT}'"
        sql = (
            f"SELECT _l._n, CASE "
            f"WHEN {first_key} IS NULL AND {removed} THEN '{SAME}' "
            f"WHEN {first_key} IS NULL THEN IF(d.{VERSION_COLUMN} IS NOT NULL AND {theirs}, '{NEWER}', '{MISSING}') "
            f"WHEN NOT {mine} THEN '{NEWER}' "
            f"WHEN {removed} THEN IF({version} = _l._v, '{SAME}', '{LEFT_BEHIND}') "
            f"WHEN NOT {version} <=> _l._v THEN '{OLDER}' "
            f"WHEN {_all_equal(facts, file)} THEN '{SAME}' ELSE '{DIFFERS}' END "
            f"FROM {TEMPORARY} _l LEFT JOIN {table_name(facts)} r ON {on_key(facts, layout.key)} "
            f"{beside(facts, layout.key)} LEFT JOIN {tombstones_name(facts)} d "
            f"ON {on_key(facts, layout.key, right='d')}"
        )
        numbers, words = columns_of(connection, sql, (pa.int64(), pa.string()), rows=rows.num_rows, where=facts.name)
        for number, outcome in zip(numbers.to_pylist(), words.to_pylist(), strict=True):
            found[number - 1] = outcome
        cursor.execute(f"DROP TEMPORARY TABLE {TEMPORARY}")
    return found


def _documents_as_text(facts: TableFacts) -> TableFacts:
    """JSON columns are compared as the texts that source and target print."""
    text = ColumnType("longtext", charset="utf8mb4", collation="utf8mb4_bin")
    return replace(
        facts,
        columns=tuple(
            replace(column, type=text, declared=declaration(text)) if column.type.base == "json" else column
            for column in facts.columns
        ),
    )


def _reached(connection: pymysql.Connection[Any], facts: TableFacts, rows: pa.RecordBatch) -> list[str]:
    """For rows without a key: whether the table has their batches. The transaction that wrote them counted them."""
    with connection.cursor() as cursor:
        marks = marks_of(cursor, facts)
    placed = zip(rows.column(SOURCE).to_pylist(), rows.column(SEQ).to_pylist(), strict=True)
    return [SAME if seq <= marks.get(source, -1) else MISSING for source, seq in placed]


def _all_equal(facts: TableFacts, file: LoadFile) -> str:
    """The values that the row lacks stayed as they were in the target, and are not compared."""
    terms = []
    for name in file.layout.columns:
        equal = equal_sql(facts, name)
        terms.append(f"({equal} OR {is_absent(file.layout, name)})" if name in file.absent else equal)
    return " AND ".join(terms)
