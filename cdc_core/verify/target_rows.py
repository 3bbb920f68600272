"""The rows of a target's table, shard by shard, by the compiled reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from cdc_core.connections import SafeConnection, connect, quote
from cdc_core.model.schema import Column, TableSchema
from cdc_core.results import TableReader
from cdc_core.target.destination import Shard
from cdc_core.target.load import BULK_S, SILENCE_S
from cdc_core.verify import lookup
from cdc_core.verify.shape import Shape


def schema_of(shape: Shape, shard: Shard) -> TableSchema:
    """The compared columns as the shard's table declares them, in the order of the shape."""
    columns = []
    for column in shape.columns:
        there = shard.facts.by_name[column.name.lower()]
        part = shape.key.index(column.name) + 1 if column.name in shape.key else None
        columns.append(Column(there.name, there.type, there.nullable, part))
    return TableSchema(shard.facts.database, shard.facts.table, tuple(columns))


def key_columns(shape: Shape, shard: Shard) -> list[Column]:
    """The columns of the key as the shard's table declares them."""
    names = [column.name for column in shape.columns]
    there = schema_of(shape, shard).columns
    return [there[names.index(name)] for name in shape.key]


def condition(shape: Shape, shard: Shard, keys: Sequence[str]) -> str:
    """Rows of the shard with one of these keys, texts of `row_texts`."""
    return lookup.condition(key_columns(shape, shard), keys)


def session(shard: Shard) -> SafeConnection:
    """A connection to the shard's server. A key may be a date that strict modes do not compare with anything."""
    return connect(
        shard.server, where=shard.table.name, read_timeout=SILENCE_S, statement_timeout_s=BULK_S,
        init_command="SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'",
    )  # fmt: skip


def batches(shape: Shape, shard: Shard, tail: str = "") -> Iterator[tuple[pa.RecordBatch, tuple[Column, ...]]]:
    """The rows of one shard, with the columns that name and type them. tail: WHERE and what follows it.

    Raises what TableReader raises, and connections.connect.
    """
    schema = schema_of(shape, shard)
    name = quote(schema.database, schema.table)
    with session(shard) as connection:
        for batch in TableReader(connection, schema).batches(f"FROM {name} {tail}"):
            yield batch, schema.columns
