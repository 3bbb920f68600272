"""Where a table is cut: the last key when the copy begins, and the end of each chunk, as the key's index orders
them. The size of the rows read before, and the time that reading took, say how large the next chunk is.

It must keep true that the last chunk has an end: rows with keys after it came after the copy began, and the log has
them. Without an end, a table that grows would never be copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import pymysql

from cdc_core.model.schema import TableSchema
from cdc_core.mysql.connections import answers, quote
from cdc_core.operations.copy.key_ranges import Key, between, downwards, literals, numbered, ordered, selected
from cdc_core.source.host.server_facts import as_text, query

_LEAST_ROWS, _MOST_ROWS = 1, 4_000_000
FIRST_ROWS = 10_000
"""Chunks have at most so many before the first was read."""
_DENSE = 0.5
"""Rows for each key, from which on ends of chunks are computed."""

_ESTIMATE = """
SELECT TABLE_ROWS, AVG_ROW_LENGTH FROM INFORMATION_SCHEMA.TABLES
 WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""


@dataclass(frozen=True, slots=True)
class TableSize:
    """The server's estimate. row_bytes: 0 where it is not known."""

    rows: int
    row_bytes: int


@answers("source")
def size_of(connection: pymysql.Connection, schema: TableSchema) -> TableSize:
    rows = query(connection, _ESTIMATE, (schema.database, schema.table))
    if not rows:
        return TableSize(0, 0)
    return TableSize(*(int(as_text(value)) if value is not None else 0 for value in rows[0]))


_UNIQUE_PARTS = """
SELECT INDEX_NAME, COLUMN_NAME, COLLATION FROM INFORMATION_SCHEMA.STATISTICS
 WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX
"""


@answers("source")
def last_key(connection: pymysql.Connection, schema: TableSchema) -> Key:
    """The key that comes last in the order of its index; () for a table without rows. The first column goes upwards,
    as it does in an index that is followed backwards."""
    down = _downwards(connection, schema)
    order = ordered(schema, down, reverse=True)
    rows = query(connection, f"SELECT {selected(schema)} {from_table(schema)} ORDER BY {order} LIMIT 1")
    return literals(schema, rows[0], down) if rows else ()


def _downwards(connection: pymysql.Connection, schema: TableSchema) -> list[bool]:
    indexes: dict[str, list[tuple[str, bool]]] = {}
    for index, column, order in query(connection, _UNIQUE_PARTS, (schema.database, schema.table)):
        indexes.setdefault(as_text(index), []).append((as_text(column or ""), as_text(order or "") == "D"))
    for parts in indexes.values():
        if tuple(name for name, _ in parts) == schema.key:
            return [falls != parts[0][1] for _, falls in parts]
    return [False] * len(schema.key)


@answers("source")
def end_of_chunk(connection: pymysql.Connection, schema: TableSchema, above: Key, limit: Key, rows: int) -> Key:
    """The key of the `rows`-th row after `above`; `limit` if there are fewer up to it."""
    rest = f"{between(schema, above, limit)} LIMIT 1 OFFSET {rows - 1}"
    found = query(connection, f"SELECT {selected(schema)} {from_table(schema)} {rest}")
    return literals(schema, found[0], downwards(limit)) if found else limit


def computed_end(schema: TableSchema, above: Key, limit: Key, rows: int, density: float) -> Key:
    """The end of a chunk of about `rows` rows after `above`, without asking the server; () where only it can tell.

    density: rows for each key, where it was read last. To look for an end costs the server half as much as to read the
    chunk. Where keys are whole numbers, a chunk cannot have more rows than numbers: at most twice `rows` here.
    """
    if not (above and limit and numbered(schema)) or density < _DENSE:
        return ()
    end = int(above[0]) + max(1, int(rows / density))
    return limit if end >= int(limit[0]) else (str(end),)


def density_of(schema: TableSchema, above: Key, through: Key, rows: int) -> float:
    """Rows for each key between two keys; 0 where keys are not whole numbers, or one of the two is not known."""
    if not (above and through and numbered(schema)):
        return 0.0
    return rows / max(1, int(through[0]) - int(above[0]))


def from_table(schema: TableSchema) -> str:
    return f"FROM {quote(schema.database, schema.table)}"


def chunk_rows(size_bytes: int, row_bytes: float) -> int:
    """How many rows of this size a chunk has. row_bytes: 0 where it is not known."""
    if row_bytes <= 0:
        return FIRST_ROWS
    return max(_LEAST_ROWS, min(_MOST_ROWS, int(size_bytes / row_bytes)))


class Pace:
    """chunk_bytes, chunk_s: what a chunk should not exceed, in bytes and in time to read. row_bytes: of a row.

    first_rows: of the chunks before the first was read, at most: a server's estimate of its rows' size may be that of a
    table that was almost empty. None: row_bytes can be relied on.
    """

    def __init__(
        self, chunk_bytes: int, chunk_s: float, row_bytes: float = 0.0, *, first_rows: int | None = None
    ) -> None:
        self.row_bytes = row_bytes
        self.density = 0.0
        """The density of the chunk that was read last: see chunks.density_of."""
        self._chunk_bytes = chunk_bytes
        self._chunk_s = chunk_s
        self._most_rows = first_rows or 1 << 62
        self._first = first_rows is not None

    @property
    def rows(self) -> int:
        """How many rows the next chunk has at most."""
        return min(chunk_rows(self._chunk_bytes, self.row_bytes), self._most_rows)

    def end(self, connection: pymysql.Connection, schema: TableSchema, above: Key, limit: Key) -> Key:
        """The key at which the next chunk after `above` ends: at `limit` at the latest; () for a table without rows."""
        rows = self.rows
        if not limit:
            return ()
        key = computed_end(schema, above, limit, rows, self.density)
        return key or end_of_chunk(connection, schema, above, limit, rows)

    def read(self, rows: int, size_bytes: int, took_s: float) -> None:
        """A chunk was read. size_bytes: of the values. took_s: how long its read view was open."""
        if not rows:
            return
        self.row_bytes = size_bytes / rows
        if took_s > self._chunk_s or self._first:
            self._first = False
            took_s = max(took_s, 0.001)
            self._most_rows = max(1, int(rows * self._chunk_s / took_s))
        elif took_s < self._chunk_s / 2:
            self._most_rows = max(self._most_rows, 2 * rows)
