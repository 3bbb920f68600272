"""Bent events: whatever bytes come, they are decoded or refused with a LockstepError; never a crash or a hang."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cdc_core.binlog import event_headers, gtid
from cdc_core.binlog.compressed import payload_events, plain
from cdc_core.binlog.event_headers import Event, EventType
from cdc_core.binlog.row_columns import decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from cdc_core.binlog.rows_event import ROW_EVENTS, RowsEvent, parse_rows
from cdc_core.binlog.table_map import TableMap, parse_table_map
from cdc_core.errors import LockstepError
from tests.unit.binlog.reading import raw_events, rows_per_event, unpacked
from tests.unit.binlog.test_captured_logs import SERVERS, log

_PARSERS = {
    EventType.FORMAT_DESCRIPTION: event_headers.parse_format_description, EventType.ROTATE: event_headers.parse_rotate,
    EventType.QUERY: event_headers.parse_query, EventType.GTID: gtid.parse_gtid,
    EventType.GTID_TAGGED: gtid.parse_gtid, EventType.MARIADB_GTID: gtid.parse_mariadb_gtid,
    EventType.MARIADB_GTID_LIST: gtid.parse_mariadb_gtid_list, EventType.PREVIOUS_GTIDS: gtid.parse_previous_gtids,
    EventType.XA_PREPARE: event_headers.parse_xa_prepare,
    EventType.TRANSACTION_PAYLOAD: lambda event: list(payload_events(event)),
}  # fmt: skip


def _bent(body: bytes, chance: random.Random) -> bytes:
    data = bytearray(body)
    for _ in range(chance.choice((1, 1, 2, 5))):
        what = chance.random()
        if what < 0.6 and data:
            data[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 254, 255, chance.randrange(256)))
        elif what < 0.8 and data:
            del data[chance.randrange(len(data)) :]
        else:
            data += chance.randbytes(chance.randrange(1, 9))
    return bytes(data)


def _with(event: Event, body: bytes) -> Event:
    return Event(event.header, body, event.file, event.start)


@pytest.mark.parametrize("server", SERVERS)
def test_a_bent_event_is_parsed_or_refused(server: str) -> None:
    chance = random.Random(7)
    seen, codes = set(), set()
    for event in raw_events(log(server)):
        parse = _PARSERS.get(EventType(event.header.type))
        for _ in range(60):
            body = _bent(event.body, chance)
            try:
                whole = plain(_with(event, body))
                if parse is not None:
                    parse(whole)
                    seen.add(event.header.type)
            except LockstepError as error:
                codes.add(error.code)
    assert len(seen) >= 5
    assert "source.log_damaged" in codes
    assert {code.split(".")[0] for code in codes} == {"source"}


def _decode(table: TableMap, rows: RowsEvent, mariadb: bool) -> None:
    images = RowImages.from_events([rows])
    counted = rows_per_event(table, images)
    decoded = decode_rows(schema_of(table, None, mariadb=mariadb), table, images)
    assert len(decoded) == sum(counted)
    for array in (*decoded.after, decoded.before, decoded.literal, decoded.op):
        array.validate(full=True)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("target", ["rows", "table map"])
def test_bent_rows_and_table_maps_are_decoded_or_refused(server: str, target: str) -> None:
    chance = random.Random(11)
    mariadb = server == "mariadb"
    maps: dict[int, Event] = {}
    decoded, codes = 0, []
    for event in unpacked(raw_events(log(server))):
        if event.header.type == EventType.TABLE_MAP:
            maps[int.from_bytes(event.body[:6], "little")] = event
        if event.header.type not in ROW_EVENTS:
            continue
        rows = parse_rows(event)
        for _ in range(120):
            table_event, rows_event = maps[rows.table_id], event
            if target == "rows":
                rows_event = _with(event, event.body[:8] + _bent(event.body[8:], chance))
            else:
                table_event = _with(table_event, _bent(table_event.body, chance))
            try:
                _decode(parse_table_map(table_event, mariadb=mariadb), parse_rows(rows_event), mariadb)
                decoded += 1
            except LockstepError as error:
                codes.append(error.code)
    assert decoded > 20
    assert len(codes) > 200
    # A bent table map may give a column a type that no server has logged so far.
    assert {code.split(".")[0] for code in codes} <= {"source", "internal"}


@pytest.mark.parametrize("server", SERVERS)
def test_no_kernel_reads_behind_the_images(server: str) -> None:
    """The same images with other bytes behind them give the same rows: nothing there was looked at."""
    mariadb = server == "mariadb"
    maps: dict[int, TableMap] = {}
    checked = 0
    for event in unpacked(raw_events(log(server))):
        if event.header.type == EventType.TABLE_MAP:
            table_map = parse_table_map(event, mariadb=mariadb)
            maps[table_map.table_id] = table_map
        if event.header.type not in ROW_EVENTS:
            continue
        rows = parse_rows(event)
        table = maps[rows.table_id]
        images = RowImages.from_events([rows])
        schema = schema_of(table, None, mariadb=mariadb)
        results = []
        for filler in (0, 0xFF):
            buffer = np.concatenate([images.buffer, np.full(64, filler, np.uint8)])
            padded = RowImages(
                buffer, images.start, images.stop, images.kind, images.event, images.bitmaps, images.shape,
                images.columns, images.offset, images.partial, images.file,
            )  # fmt: skip
            results.append(decode_rows(schema, table, padded))
        first, second = results
        assert all(a.equals(b) for a, b in zip(first.after, second.after, strict=True))
        assert first.before.equals(second.before)
        checked += 1
    assert checked >= 5
