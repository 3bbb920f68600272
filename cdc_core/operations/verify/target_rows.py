"""The rows of a target's table, shard by shard, by the compiled reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pymysql

from cdc_core.config import Target
from cdc_core.model.schema import TEXT_BASES, Column, TableSchema
from cdc_core.mysql.connections import SafeConnection, connect, quote, resolve
from cdc_core.mysql.server_errors import NO_TABLE, number_of
from cdc_core.operations.copy.chunks import from_table
from cdc_core.operations.verify import lookup
from cdc_core.operations.verify.shape import Shape
from cdc_core.results import TableReader
from cdc_core.results.reading_faults import translated, translating
from cdc_core.targets.reading.destination import Shard
from cdc_core.targets.reading.sharding import ShardTable, by_server, placed_tables
from cdc_core.targets.writing.load import BULK_S, SILENCE_S


def schema_of(shape: Shape, shard: Shard) -> TableSchema:
    """The compared columns as the shard's table declares them, in the order of the shape."""
    columns = []
    for column in shape.columns:
        there = shard.facts.by_name[column.name.lower()]
        part = shape.key.index(column.name) + 1 if column.name in shape.key else None
        columns.append(Column(there.name, there.type, there.nullable, part))
    return TableSchema(shard.facts.database, shard.facts.table, tuple(columns))


def compared_columns(shape: Shape, schema: TableSchema) -> tuple[Column, ...]:
    """The columns of `schema_of` as they are compared: a text that a SET's value became is one of the SET's values."""
    return tuple(
        replace(there, type=column.type) if column.type.base == "set" and there.type.base in TEXT_BASES else there
        for column, there in zip(shape.columns, schema.columns, strict=True)
    )


def key_columns(shape: Shape, shard: Shard) -> list[Column]:
    """The columns of the key as the shard's table declares them, and as they are compared."""
    names = [column.name for column in shape.columns]
    there = compared_columns(shape, schema_of(shape, shard))
    return [there[names.index(name)] for name in shape.key]


def condition(shape: Shape, shard: Shard, keys: Sequence[str]) -> str:
    """Rows of the shard with one of these keys, texts of `row_texts`."""
    return lookup.condition(key_columns(shape, shard), keys, shape.errors)


def session(shard: Shard) -> SafeConnection:
    """A connection to the shard's server, to read rows."""
    return connect(shard.server, where=shard.table.name, read_timeout=SILENCE_S, statement_timeout_s=BULK_S)


def tables_with_rows(
    target: Target, logical: Sequence[str], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Of these logical tables, those with rows at the target, and the name of a table that has them. One that the
    target does not have has none. Raises what connecting raises, and shard_tables."""
    found: dict[str, str] = {}
    for reference, mine in by_server(target, placed_tables(target, logical)):
        with (
            closing(connect(resolve(reference, environ), where=reference, read_timeout=SILENCE_S)) as opened,
            opened.cursor() as cursor,
        ):
            for name, place in mine:
                if name not in found and _has_rows(cursor, place):
                    found[name] = place.name
    return found


def _has_rows(cursor: Any, place: ShardTable) -> bool:
    try:
        cursor.execute(f"SELECT 1 FROM {quote(place.database, place.table)} LIMIT 1")
        return cursor.fetchone() is not None
    except pymysql.err.MySQLError as error:
        if number_of(error) in NO_TABLE:
            return False
        raise translated(error, where=place.name) from None


class TargetTables:
    """Sessions at the servers of a target, one a server, for the length of a block; a later block opens others."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._sessions: dict[int, SafeConnection] = {}

    def __enter__(self) -> TargetTables:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def session(self, shard: Shard) -> SafeConnection:
        found = self._sessions.get(shard.table.connection)
        if found is None or not found.open:
            found = self._sessions[shard.table.connection] = session(shard)
            self._opened.callback(found.close)
        return found

    def batches(
        self, shape: Shape, shard: Shard, tail: str = ""
    ) -> Iterator[tuple[pa.RecordBatch, tuple[Column, ...]]]:
        """The rows of one shard, with the columns that name and type them. tail: WHERE and what follows it.

        Raises what TableReader raises, and connections.connect.
        """
        schema = schema_of(shape, shard)
        columns = compared_columns(shape, schema)
        for batch in TableReader(self.session(shard), schema).batches(f"{from_table(schema)} {tail}"):
            yield batch, columns

    def count(self, shape: Shape, shard: Shard, tail: str = "") -> int:
        """How many rows of one shard there are; else as `batches`."""
        schema = schema_of(shape, shard)
        session = self.session(shard)
        with translating(schema.name), session.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) {from_table(schema)} {tail}")
            ((rows,),) = cursor.fetchall()
        return int(rows)
