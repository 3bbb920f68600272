"""The rows of a table of servers, shard by shard, by the compiled reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql

from cdc_core.config import IcebergTarget, MysqlTarget
from cdc_core.model.schema import TEXT_BASES, Column, TableSchema
from cdc_core.mysql.connections import SafeConnection, connect, quote, resolve
from cdc_core.mysql.server_errors import NO_TABLE, number_of
from cdc_core.operations.copy import key_ranges
from cdc_core.operations.copy.chunks import from_table
from cdc_core.operations.copy.key_ranges import Key
from cdc_core.operations.open_pipeline import OpenCatalogs
from cdc_core.operations.verify import lookup
from cdc_core.operations.verify.ranges import ordered_alike, ordered_apart
from cdc_core.operations.verify.shape import RowRange, Shape, SideRows, TargetSide
from cdc_core.results import TableReader
from cdc_core.results.reading_faults import translated, translating
from cdc_core.targets.reading.destination import Destination, Shard, TableUse, open_destination
from cdc_core.targets.reading.sharding import ShardTable, by_server, placed_tables
from cdc_core.targets.writing.load import BULK_S, SILENCE_S

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


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


def tables_with_rows(target: MysqlTarget, logical: Sequence[str]) -> dict[str, str]:
    """Those of the logical tables that have rows at the target, with the name of a table that has them. One that the
    target does not have has none. Raises what connecting raises, and shard_tables."""
    found: dict[str, str] = {}
    for reference, placed in by_server(target, placed_tables(target, logical)):
        with (
            closing(connect(resolve(reference), where=reference, read_timeout=SILENCE_S)) as opened,
            opened.cursor() as cursor,
        ):
            for name, place in placed:
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
    """Sessions at the servers of a target, one a server, or its catalog, for the length of a block; a later block opens
    others."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._sessions: dict[int, SafeConnection] = {}
        self._catalogs = OpenCatalogs()

    def __enter__(self) -> TargetTables:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        self._catalogs.close()

    def session(self, shard: Shard) -> SafeConnection:
        connection = self._sessions.get(shard.table.connection)
        if connection is None or not connection.open:
            connection = self._sessions[shard.table.connection] = session(shard)
            self._opened.callback(connection.close)
        return connection

    def catalog(self, target: IcebergTarget) -> Catalog:
        """The catalog of a lake. Raises as OpenCatalogs.of."""
        return self._catalogs.of(target)

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


@dataclass(frozen=True, kw_only=True)
class ServerSide(TargetSide):
    """destination: opened for the table. sessions: which several tables may share; the caller closes them."""

    destination: Destination
    sessions: TargetTables

    @classmethod
    def opened(
        cls, target: MysqlTarget, logical: str, schemas: Sequence[TableSchema], use: TableUse, sessions: TargetTables
    ) -> ServerSide:
        """Raises what open_destination raises."""
        destination = open_destination(target, logical, schemas, use)
        places = tuple(shard.table.name for shard in destination.shards)
        return cls(
            target=target.name, logical=logical, key=destination.key, places=places, shared=destination.shared,
            sharding=destination.rule.sharding, destination=destination, sessions=sessions,
        )  # fmt: skip

    @property
    def shards(self) -> Sequence[Shard]:
        return self.destination.shards

    def has(self, column: str) -> bool:
        return all(column.lower() in (name.lower() for name in shard.columns) for shard in self.shards)

    def tells_errors(self, column: str) -> bool:
        kinds = [shard.facts.by_name[column.lower()].type for shard in self.shards]
        return all(kind.base == "enum" and "" in kind.labels for kind in kinds)

    def why_whole(self, schema: TableSchema) -> str:
        for shard in self.shards:
            if not _indexed(shard, self.key):
                return f"{shard.table.name} has no index that begins with the key"
            for name in self.key:
                if not ordered_alike(schema.column(name).type, shard.facts.by_name[name.lower()].type):
                    return ordered_apart(schema.name, shard.table.name, name)
        return ""

    def definition(self, shape: Shape) -> object:
        return [
            [shard.server.host, shard.server.port, shard.table.name, schema_of(shape, shard).id]
            for shard in self.shards
        ]

    def batches(self, shape: Shape, range_: RowRange) -> Iterator[SideRows]:
        """Raises what TargetTables.batches raises."""
        for number, shard in enumerate(self.shards):
            for tail in _tails(shape, shard, range_):
                for batch, columns in self.sessions.batches(shape, shard, tail):
                    yield number, batch, columns

    def count(self, shape: Shape) -> int:
        return sum(self.sessions.count(shape, shard) for shard in self.shards)

    def reaches(self, shape: Shape, last: Key) -> bool:
        found = 0
        for shard in self.shards:
            schema = schema_of(shape, shard)
            if self.sessions.count(shape, shard, f"WHERE {key_ranges.after(schema, last)}"):
                return False
            found += self.sessions.count(shape, shard, f"WHERE {key_ranges.equal(schema, last)}")
        return found > 0

    def renew(self) -> None:
        """A server shows what it has."""

    def shard_numbers(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        return self.destination.shard_numbers(rows)


def _tails(shape: Shape, shard: Shard, range_: RowRange) -> Iterator[str]:
    """What follows the table's name in the statements that read the range."""
    if range_.wanted is not None:
        for some in lookup.pieces(range_.wanted):
            yield f"WHERE {condition(shape, shard, some)}"
    elif not (range_.above or range_.through):
        yield ""
    else:
        yield key_ranges.between(schema_of(shape, shard), range_.above, range_.through)


def _indexed(shard: Shard, key: Sequence[str]) -> bool:
    wanted = [(name.lower(), None) for name in key]
    return any(
        [(part.column.lower(), part.prefix) for part in index.parts[: len(wanted)]] == wanted
        for index in shard.facts.unique_keys
    )
