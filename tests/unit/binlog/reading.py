"""A private server's log, read from its files: the shortest way from a statement to its decoded rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdc_core.binlog.compressed import payload_events, plain
from cdc_core.binlog.event_headers import Event, EventType, FormatDescription, parse_format_description, split_event
from cdc_core.binlog.image_shapes import count_rows, image_shapes, require_columns
from cdc_core.binlog.row_columns import DecodedRows, decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from cdc_core.binlog.rows_event import ROW_EVENTS, RowsEvent, parse_rows
from cdc_core.binlog.table_map import TableMap, parse_table_map
from cdc_core.model.schema import TableSchema
from cdc_core.source.host.server_facts import end_position
from cdc_core.source.schemas.captured_definitions import table_schema
from examples.sandbox.sql_server import SqlServer

MAGIC = b"\xfebin"


@dataclass(frozen=True)
class Mark:
    """A place in a server's log."""

    file: str
    offset: int


def mark(server: SqlServer) -> Mark:
    """The end of the log now."""
    with server.connect() as connection:
        end = end_position(connection, 0)
    return Mark(end.file, end.offset)


def raw_events(data: bytes, file: str = "binlog.000001", begin: int = 4) -> Iterator[Event]:
    """The events of a log file's bytes from `begin` on."""
    assert data[:4] == MAGIC
    checksum = _format(data, file).checksum
    at = 4
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if at >= begin:
            yield split_event(data[at : at + size], checksum=checksum, file=file, start=at)
        at += size


def _format(data: bytes, file: str) -> FormatDescription:
    size = int.from_bytes(data[13:17], "little")
    return parse_format_description(split_event(data[4 : 4 + size], checksum=False, file=file, start=4))


def events_since(server: SqlServer, since: Mark) -> list[Event]:
    """All events behind a mark, of its file, compressed ones unpacked."""
    data = (server.directory / "data" / since.file).read_bytes()
    return list(unpacked(raw_events(data, since.file, since.offset)))


def unpacked(events: Iterator[Event]) -> Iterator[Event]:
    """Compressed events replaced by what they hold; a payload stays, before its events."""
    for event in events:
        yield plain(event)
        if event.header.type == EventType.TRANSACTION_PAYLOAD:
            yield from payload_events(event)


def row_groups(events: list[Event], *, mariadb: bool) -> list[tuple[TableMap, list[RowsEvent]]]:
    """Row events by table, under the last table map of each, in order of first appearance."""
    maps: dict[int, TableMap] = {}
    groups: dict[str, tuple[TableMap, list[RowsEvent]]] = {}
    for event in events:
        if event.header.type == EventType.TABLE_MAP:
            table_map = parse_table_map(event, mariadb=mariadb)
            maps[table_map.table_id] = table_map
        elif event.header.type in ROW_EVENTS:
            rows = parse_rows(event)
            table = maps[rows.table_id]
            groups.setdefault(table.name, (table, []))[1].append(rows)
    return list(groups.values())


def known_schema(server: SqlServer, database: str, table: str) -> TableSchema:
    """What INFORMATION_SCHEMA says now."""
    with server.connect() as connection:
        return table_schema(connection, database, table)


def decoded(events: list[Event], known: TableSchema | None, *, mariadb: bool) -> tuple[TableSchema, DecodedRows]:
    """The rows of the one table that `events` hold."""
    ((table, rows),) = row_groups(events, mariadb=mariadb)
    schema = schema_of(table, known, mariadb=mariadb)
    return schema, decode_rows(schema, table, RowImages.from_events(rows))


def rows_of(schema: TableSchema, arrays: list[pa.Array] | tuple[pa.Array, ...]) -> list[dict[str, Any]]:
    """Rows as dicts, for asserts."""
    names = [column.name for column in schema.columns]
    return pa.table(list(arrays), names=names).to_pylist()


def rows_per_event(table: TableMap, images: RowImages) -> list[int]:
    """Rows in each event, without decoding a value."""
    require_columns(table, images)
    counted: list[int] = count_rows(table, images, image_shapes(images, table)).tolist()
    return counted
