"""Rows of a table as `TableReader` selects them and as the log has them: the same bytes of the same Arrow types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cdc_core.binlog.row_columns import DecodedRows, decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import LITERAL, staged_schema
from cdc_core.mysql import connections
from cdc_core.mysql import session_settings as session
from cdc_core.results import TableReader
from examples.sandbox.sql_server import SqlServer
from tests.unit.binlog.reading import events_since, known_schema, row_groups


def opened(server: SqlServer, *settings: str, **options: Any) -> connections.SafeConnection:
    made = connections.connect(connections.parse_url(server.url, where="reader"), where="reader", **options)
    for setting in settings:
        made.query(f"SET SESSION {setting}")  # as an init_connect may have done before
    session.apply(made, session.READING, where="reader")
    return made


def read(
    server: SqlServer, database: str, table: str, connection: connections.SafeConnection, tail: str = "ORDER BY id"
) -> pa.RecordBatch:
    reader = TableReader(connection, known_schema(server, database, table))
    batches = list(reader.batches(f"FROM {database}.{table} {tail}"))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, reader.arrow).combine_chunks().to_batches()[0]


def inserted(schema: TableSchema, rows: DecodedRows) -> pa.RecordBatch:
    """The rows of the log up to the first that was not inserted, as `read` has them."""
    ops = [*rows.op.to_pylist(), ""]
    count = next(n for n, op in enumerate(ops) if op != "c")
    staged = staged_schema(schema)
    arrow = pa.schema([*(staged.field(i) for i in range(len(schema.columns))), staged.field(LITERAL)])
    return pa.RecordBatch.from_arrays([array[:count] for array in (*rows.after, rows.literal)], schema=arrow)


def logged(server: SqlServer, since: Any, database: str) -> dict[str, pa.RecordBatch]:
    """All rows that the log has of the database, by table: inserted ones."""
    found = {}
    for table, events in row_groups(events_since(server, since), mariadb=server.mariadb):
        if table.database == database:
            schema = schema_of(table, known_schema(server, database, table.table), mariadb=server.mariadb)
            rows = decode_rows(schema, table, RowImages.from_events(events))
            assert set(rows.op.to_pylist()) == {"c"}
            found[table.table] = inserted(schema, rows)
    return found


def require_equal(selected: pa.RecordBatch, wanted: pa.RecordBatch) -> None:
    assert selected.schema.equals(wanted.schema, check_metadata=True)
    for name in wanted.schema.names:
        assert selected.column(name).to_pylist() == wanted.column(name).to_pylist(), name
    # -0.0 is equal to 0.0 in Python.
    assert [_bits(column) for column in selected.columns] == [_bits(column) for column in wanted.columns]
    assert selected.equals(wanted, check_metadata=True)


def _bits(array: pa.Array) -> list[Any]:
    if pa.types.is_floating(array.type):
        return array.fill_null(0).view(pa.int32() if array.type == pa.float32() else pa.int64()).to_pylist()
    return []
