"""What a target has under some keys, in every shard; and the removal of rows that no route leads to.

It must keep true that a row is removed, or its version forgotten, only while it has the version that was seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.model.staged_columns import LITERAL, LITERAL_TYPE, staged_schema
from cdc_core.model.version import VERSION_BYTES, VERSION_COLUMN
from cdc_core.mysql.connections import SafeConnection, bytes_literal, quote, sensible
from cdc_core.operations.verify import lookup, target_rows
from cdc_core.operations.verify.canonical import row_texts
from cdc_core.operations.verify.shape import RowRange, Shape
from cdc_core.operations.verify.target_rows import ServerSide
from cdc_core.results import TableReader
from cdc_core.targets.bookkeeping.fence import require_no_fence
from cdc_core.targets.bookkeeping.table_states import lock_table
from cdc_core.targets.reading.destination import Shard
from cdc_core.targets.writing.prepare import ours_beside, tombstones_table, versions_table

_VERSION = Column(VERSION_COLUMN, ColumnType("varbinary", length=VERSION_BYTES))


@dataclass(frozen=True, slots=True)
class Held:
    """What one shard has under a key. shard: its number. row, tombstone: their versions; b"" for a row that Lockstep
    never wrote, None where there is none. left: the version that is left beside the table of a row that somebody else
    has removed."""

    shard: int
    key: str
    row: bytes | None
    tombstone: bytes | None
    left: bytes | None = None


def of_servers(shape: Shape) -> ServerSide:
    """The side of a table of servers."""
    assert isinstance(shape.side, ServerSide)  # callers have looked
    return shape.side


def held(shape: Shape, keys: Sequence[str]) -> list[Held]:
    """What each shard has under these keys, texts of `row_texts`; nothing for a key that a shard has never seen."""
    holdings = []
    for number, shard in enumerate(of_servers(shape).shards):
        facts = shard.facts
        with target_rows.session(shard) as connection:
            ours = ours_beside(connection, facts.database, [facts.table])
            versions, tombstones = versions_table(facts.table), tombstones_table(facts.table)
            rows = _versions(connection, shape, shard, facts.table, keys, versioned=facts.versioned)
            left: dict[str, bytes] = {}
            if facts.beside and versions in ours:
                kept = _versions(connection, shape, shard, versions, keys)
                left = {key: version for key, version in kept.items() if key not in rows}
                rows = {key: kept.get(key, b"") for key in rows}
            buried = _versions(connection, shape, shard, tombstones, keys) if tombstones in ours else {}
        holdings += [
            Held(number, key, rows.get(key), buried.get(key), left.get(key)) for key in sorted({*rows, *buried, *left})
        ]
    return holdings


def key_rows(shape: Shape, keys: Sequence[str], schema: TableSchema) -> tuple[pa.RecordBatch, list[str]]:
    """The keys of these that rows of the target have, as values of a source's definition; and their texts.

    schema: after the pipeline's rules. The columns: those of its key, and `_cdc_literal`.
    """
    arrow = staged_schema(schema)
    fields = pa.schema([*(arrow.field(name) for name in schema.key), arrow.field(LITERAL)])
    at = [shape.columns.index(column) for column in shape.key_columns]
    batches: list[pa.RecordBatch] = []
    texts: dict[str, None] = {}
    wanted = set(keys)
    for _, batch, columns in shape.side.batches(shape, RowRange(wanted=keys)):
        key = [columns[number] for number in at]
        by_name = dict(zip(shape.key, (batch.column(column.name) for column in key), strict=True))
        by_name[LITERAL] = (
            batch.column(LITERAL) if LITERAL in batch.schema.names else pa.nulls(batch.num_rows, LITERAL_TYPE)
        )
        taken = pa.RecordBatch.from_arrays([by_name[field.name].cast(field.type) for field in fields], schema=fields)
        here = row_texts(batch, key, shape.errors).to_pylist()
        new = [number for number, text in enumerate(here) if text in wanted and text not in texts]
        texts |= dict.fromkeys(here[number] for number in new)
        batches.append(taken.take(pa.array(new, pa.int64())))
    table = pa.Table.from_batches(batches, schema=fields).combine_chunks()
    rows = table.to_batches()
    return (rows[0] if rows else pa.RecordBatch.from_pylist([], schema=fields)), list(texts)


@sensible("target")
def remove_row(shape: Shape, shard: Shard, key: str, version: bytes) -> bool:
    """Removes the row with this key if it has this version; whether it was there."""
    facts, where = shard.facts, _one(shape, shard, key)
    if facts.beside:
        joined = " AND ".join(f"v.{name} = r.{name}" for name in _names(shape, shard))
        sql = (
            f"DELETE r, v FROM {_table(shard)} r LEFT JOIN {_table(shard, versions_table(facts.table))} v ON {joined} "
            f"WHERE {where} AND COALESCE(v.{VERSION_COLUMN}, X'') = {bytes_literal(version)}"
        )
    else:
        sql = f"DELETE r FROM {_table(shard)} r WHERE {where} AND {_has(facts.versioned, version)}"
    return _changed(shard, sql)


@sensible("target")
def forget_version(shape: Shape, shard: Shard, holding: Held) -> bool:
    """Makes the row of this key, if it has this version, one that Lockstep never wrote, which is older than all; and
    removes the key's tombstone, and the version of a row that is gone. Whether anything changed."""
    facts, where = shard.facts, _one(shape, shard, holding.key)
    changed = False
    if holding.row:
        versions = _table(shard, versions_table(facts.table)) if facts.beside else _table(shard)
        changed = _changed(
            shard,
            f"UPDATE {versions} r SET r.{VERSION_COLUMN} = X'' "
            f"WHERE {where} AND r.{VERSION_COLUMN} = {bytes_literal(holding.row)}",
        )
    if holding.tombstone is not None:
        tombstones = _table(shard, tombstones_table(facts.table))
        sql = f"DELETE r FROM {tombstones} r WHERE {where} AND r.{VERSION_COLUMN} = {bytes_literal(holding.tombstone)}"
        changed = _changed(shard, sql) or changed
    if holding.left is not None:
        beside = _table(shard, versions_table(facts.table))
        names = _names(shape, shard)
        joined = " AND ".join(f"t.{name} = r.{name}" for name in names)
        sql = (
            f"DELETE r FROM {beside} r LEFT JOIN {_table(shard)} t ON {joined} "
            f"WHERE {where} AND t.{names[0]} IS NULL AND r.{VERSION_COLUMN} = {bytes_literal(holding.left)}"
        )
        changed = _changed(shard, sql) or changed
    return changed


def _changed(shard: Shard, sql: str) -> bool:
    with target_rows.session(shard) as connection, connection.cursor() as cursor:
        connection.select_db(shard.facts.database)  # MySQL wants one for a DELETE with an alias
        lock_table(cursor, shard.facts.name)  # until the connection closes
        connection.begin()
        require_no_fence(cursor, shard.facts, shard.writer)
        cursor.execute(sql)
        count = cursor.rowcount
        connection.commit()
    return bool(count)


def _versions(
    connection: SafeConnection,
    shape: Shape,
    shard: Shard,
    table: str,
    keys: Sequence[str],
    *,
    versioned: bool = True,
) -> dict[str, bytes]:
    """The version of each key in one of the tables that have the key's columns; b"" where it is null."""
    key = target_rows.key_columns(shape, shard)
    columns = [*key, _VERSION] if versioned else key
    found: dict[str, bytes] = {}
    for batch in _read(connection, shard.facts.database, table, columns, key, keys, shape.errors):
        texts = row_texts(batch, key, shape.errors).to_pylist()
        versions = batch.column(VERSION_COLUMN).to_pylist() if versioned else [None] * batch.num_rows
        found |= {text: version or b"" for text, version in zip(texts, versions, strict=True)}
    return found


def _read(
    connection: SafeConnection,
    database: str,
    table: str,
    columns: Sequence[Column],
    key: Sequence[Column],
    keys: Sequence[str],
    errors: Collection[str],
) -> Iterator[pa.RecordBatch]:
    schema = TableSchema(database, table, tuple(columns))
    for some in lookup.pieces(keys):
        where = lookup.condition(key, some, errors)
        yield from TableReader(connection, schema).batches(f"FROM {quote(database, table)} WHERE {where}")


def _names(shape: Shape, shard: Shard) -> list[str]:
    return [quote(column.name) for column in target_rows.key_columns(shape, shard)]


def _one(shape: Shape, shard: Shard, key: str) -> str:
    """The condition on the row `r` with this key."""
    return lookup.condition(target_rows.key_columns(shape, shard), [key], shape.errors, of="r")


def _table(shard: Shard, name: str = "") -> str:
    return quote(shard.facts.database, name or shard.facts.table)


def _has(versioned: bool, version: bytes) -> str:
    return f"COALESCE(r.{VERSION_COLUMN}, X'') = {bytes_literal(version)}" if versioned else "TRUE"
