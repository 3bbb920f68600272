"""Rows of a table, or of any query, as record batches: no Python object per row, memory bounded by the batch.

It must keep true that a value read here and the same value from the log are the same bytes of the same Arrow type, with
the same exact text in `_cdc_literal`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import pyarrow as pa
import pymysql

from cdc_core.binlog.column_buffers import Literals, literal_map
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged_columns import BOOKKEEPING, LITERAL, row_field
from cdc_core.mysql.connections import SafeConnection
from cdc_core.results import value_columns
from cdc_core.results.answer import Buffer
from cdc_core.results.reading_faults import translating
from cdc_core.results.result_columns import ResultColumn, type_of
from cdc_core.results.row_packets import Located
from cdc_core.results.statement import read_rows

BATCH_ROWS = 1 << 16
BATCH_BYTES = 16 << 20
"""The part of the server's answer that is read at once; the arrays take about as much again."""
_LITERAL_FIELD = next(field for field in BOOKKEEPING if field.name == LITERAL)


class TableReader:
    """Reads rows of one table definition on a connection of connections.connect, which the caller uses for other
    statements too.

    select_list: expressions for all columns of the definition, in their order.
    arrow:       the schema of the batches: `row_field` of each column, then `_cdc_literal`.
    Raises Refused (source.unsupported_table) for a column that cannot be read exactly.
    """

    def __init__(self, connection: SafeConnection, schema: TableSchema) -> None:
        self._connection = connection
        self._where = schema.name
        self._selected = [value_columns.selected(column) for column in schema.columns]
        self.select_list = ", ".join(selected.expression for selected in self._selected)
        self.arrow = pa.schema([*(row_field(column) for column in schema.columns), _LITERAL_FIELD])
        self._buffer: Buffer | None = None

    def batches(self, tail: str, *, rows: int = BATCH_ROWS, size_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """The rows of `SELECT <select_list> <tail>`, in the order in which the server sends them.

        tail: from FROM on, e.g. "FROM `d`.`t` WHERE `id` > 7 ORDER BY `id` LIMIT 10000".
        rows, size_bytes: a batch has at most so many rows, and ends with the row by which the server's bytes reach
        size_bytes. None is empty; a result without rows has no batch.

        The iterator ends after the last row or raises: RetryLater (connection.unreachable, table.redefined), Refused
        (connection.grant, connection.statement, source.too_large). An iterator that is closed before its end closes the
        connection. Until it ends, the connection takes no other statement.
        """
        buffer = self._buffer
        if buffer is None or (buffer.rows, buffer.size_bytes) != (rows, size_bytes):
            buffer = Buffer(len(self._selected), rows, size_bytes)
        # Two iterators must not share it: one that was left before its end may still have a batch to decode.
        self._buffer = None

        def checked(columns: Sequence[ResultColumn]) -> Buffer:
            value_columns.require_same(self._selected, columns, where=self._where)
            assert buffer is not None
            return buffer

        sql = f"SELECT {self.select_list} {tail}"
        with (
            _own_bytes(self._connection, self._where),
            closing(read_rows(self._connection, sql, checked, where=self._where)) as found,
        ):
            for located in found:
                yield _batch(self._selected, self.arrow, located, self._where)
        if not buffer.has_grown:  # one huge row need not cost its memory from then on
            self._buffer = buffer


def read_columns(
    connection: SafeConnection, sql: str, *, where: str = "", rows: int = BATCH_ROWS, size_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The result of any query, with the types that its own columns say; then `_cdc_literal`, as TableReader.batches.

    The connection is one of connections.connect. A result without rows is one empty batch, for its schema. Texts come
    in UTF-8, whatever their character set; ENUM and SET as text. Raises as TableReader.batches, and Refused
    (source.unsupported_table).
    """
    selection: list[value_columns.Selected] = []

    def typed(columns: Sequence[ResultColumn]) -> Buffer:
        selection[:] = [value_columns.selected(Column(column.name, type_of(column))) for column in columns]
        return Buffer(len(columns), rows, size_bytes)

    empty = True
    with _own_bytes(connection, where), closing(read_rows(connection, sql, typed, where=where)) as found:
        for located in found:
            empty = False
            yield _batch(selection, _arrow(selection), located, where)
    if empty:
        yield pa.RecordBatch.from_pylist([], schema=_arrow(selection))


def _arrow(selection: Sequence[value_columns.Selected]) -> pa.Schema:
    return pa.schema([*(row_field(selected.column) for selected in selection), _LITERAL_FIELD])


@contextmanager
def _own_bytes(connection: SafeConnection, where: str) -> Iterator[None]:
    """Within it the server sends texts as they are stored. Its conversion would lose what is not text of its set."""
    with translating(where):
        connection.query("SET SESSION character_set_results = NULL")
        try:
            yield
        except BaseException:
            if connection.open:
                with suppress(pymysql.err.MySQLError):
                    _converted_again(connection)
            raise
        _converted_again(connection)


def _converted_again(connection: SafeConnection) -> None:
    try:
        connection.query(f"SET SESSION character_set_results = {connection.charset}")
    except BaseException:
        # Texts of later statements would come in bytes that PyMySQL does not expect.
        connection.abandon_answer()
        raise


def _batch(
    selection: Sequence[value_columns.Selected], arrow: pa.Schema, located: Located, where: str
) -> pa.RecordBatch:
    arrays: list[pa.Array] = []
    literals: list[tuple[str, Literals]] = []
    for at, selected in enumerate(selection):
        array, found = value_columns.decode(selected, located, at, where)
        arrays.append(array)
        if found is not None:
            literals.append((selected.column.name, found))
    return pa.RecordBatch.from_arrays([*arrays, literal_map(literals, located.rows)], schema=arrow)
