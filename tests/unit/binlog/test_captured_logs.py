"""Logs as real servers wrote them: every event is read to its end, and rows have the values that went in."""

from __future__ import annotations

import datetime as dt
import random
import re
import struct
import zlib
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cdc_core.binlog.compressed import payload_events, plain
from cdc_core.binlog.event_headers import (
    LONG,
    LUMP,
    Event,
    EventType,
    Header,
    parse_format_description,
    parse_header,
    parse_incident,
    parse_query,
    split_event,
)
from cdc_core.binlog.gtid import parse_gtid, parse_mariadb_gtid
from cdc_core.binlog.row_columns import DecodedRows, decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from cdc_core.binlog.rows_event import RowsEvent
from cdc_core.binlog.table_map import TableMap, TypeCode
from cdc_core.errors import DataAtRisk, InternalError
from cdc_core.model.schema import Column, ColumnType, TableSchema
from tests.lab.refusals import raises
from tests.unit.binlog.reading import raw_events, row_groups, rows_of, rows_per_event, unpacked

CAPTURED = Path(__file__).parent / "captured"
SERVERS = ("mysql", "mariadb")


def log(server: str) -> bytes:
    return (CAPTURED / f"{server}.binlog").read_bytes()


def rows(server: str, table: str) -> tuple[TableSchema, DecodedRows]:
    for table_map, events in row_groups(list(unpacked(raw_events(log(server)))), mariadb=server == "mariadb"):
        if table_map.table == table:
            schema = schema_of(table_map, None, mariadb=server == "mariadb")
            return schema, decode_rows(schema, table_map, RowImages.from_events(events))
    raise AssertionError(table)


def event(kind: int, body: bytes, *, log_pos: int = 0, flags: int = 0) -> Event:
    return Event(Header(1, kind, 1, 19 + len(body), log_pos, flags), body, "binlog.000001", 400)


@pytest.mark.parametrize("server", SERVERS)
def test_every_value_of_most_types_is_what_went_in(server: str) -> None:
    schema, decoded = rows(server, "t")
    assert schema.key == ("id",)
    first, second, third = rows_of(schema, decoded.after)[:3]
    assert first == {
        "id": 1, "d": Decimal("-1234567890.1234"), "c": "ab", "v": "hello", "e": "b", "s": "x,z",
        "dt": dt.datetime(2024, 2, 29, 23, 59, 59, 123000),
        "ts": dt.datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=dt.UTC), "ti": "-00:00:00.9", "y": 2024,
        "b": 257, "bi": b"\x01\x02\0\0", "bl": b"\xff\0", "f": 1.5, "dd": -0.1, "da": dt.date(2024, 2, 29), "l": "é",
    }  # fmt: skip
    assert (second["id"], second["d"], second["v"], second["s"]) == (4294967295, None, "é😀", "")
    assert (second["y"], second["bi"], second["dd"], second["da"]) == (0, bytes(4), 5e-324, dt.date(1, 1, 1))
    assert {third[name] for name in schema.column("v").name + "cesb" if name in third} == {None}
    assert (third["da"], third["dt"], third["ts"]) == (None, None, None)
    assert decoded.literal[2].as_py() == [
        ("dt", "0000-00-00 00:00:00.000"), ("ts", "0000-00-00 00:00:00.000000"), ("da", "2024-02-31"),
    ]  # fmt: skip
    assert decoded.literal.null_count == len(decoded) - 1


@pytest.mark.parametrize("server", SERVERS)
def test_an_update_has_both_images_and_a_delete_its_old_one(server: str) -> None:
    schema, decoded = rows(server, "t")
    assert decoded.op.to_pylist() == ["c", "c", "c", "u", "d", "c", "c"]
    assert decoded.rows_per_event.tolist() == [2, 1, 1, 1, 1, 1]
    assert decoded.event.tolist() == [0, 0, 1, 2, 3, 4, 5]
    after, before = rows_of(schema, decoded.after), decoded.before.to_pylist()
    assert [row is None for row in before] == [True, True, True, False, True, True, True]
    assert (before[3]["v"], after[3]["v"], after[4]["v"]) == ("hello", "changed", "changed")
    assert before[3]["d"] + 1 == after[3]["d"] == after[4]["d"]


def test_json_geometry_and_vector_are_the_servers_bytes_and_text() -> None:
    schema, decoded = rows("mysql", "j")
    found = rows_of(schema, decoded.after)
    assert [row["id"] for row in found] == [1, 2, 3, 4, 5]
    assert found[0]["j"] == '{"a": [1, 2.5, null, true, "é", {"b": "x"}], "bb": 1e20}'
    assert found[0]["v"] == [1.0, 2.0]
    assert found[0]["g"][:9] == b"\0\0\0\0\x01\x01\0\0\0"
    assert found[3]["j"] == '["' + "z" * 300 + '"]'


def test_types_that_mariadb_logs_as_binary_are_told_by_the_known_definition() -> None:
    ((table, events),) = [
        group for group in row_groups(list(unpacked(raw_events(log("mariadb")))), mariadb=True) if group[0].table == "j"
    ]
    logged = schema_of(table, None, mariadb=True)
    definition = TableSchema(
        "cap", "j",
        tuple(
            Column(c.name, ColumnType({"u": "uuid", "i": "inet6"}.get(c.name, c.type.base), charset=c.type.charset))
            for c in logged.columns
        ),
    )  # fmt: skip
    assert [c.type.base for c in logged.columns][1:3] == ["binary", "binary"]
    schema = schema_of(table, definition, mariadb=True)
    first, _, third = rows_of(schema, decode_rows(schema, table, RowImages.from_events(events)).after)[:3]
    assert (first["u"], first["i"]) == ("123e4567-e89b-12d3-a456-426614174000", "::1")
    assert (first["z"], third["z"]) == ("z" * 500, "q" * 300)


def test_a_buffer_that_was_decoded_is_left_as_it_was() -> None:
    ((table, events), *_) = row_groups(list(unpacked(raw_events(log("mysql")))), mariadb=False)
    images = RowImages.from_events(events)
    before = images.buffer.tobytes()
    first = decode_rows(schema_of(table, None), table, images)
    again = decode_rows(schema_of(table, None), table, images)
    assert images.buffer.tobytes() == before
    assert [a.equals(b) for a, b in zip(first.after, again.after, strict=True)] == [True] * len(first.after)


def test_no_rows_are_empty_columns_of_the_same_types() -> None:
    ((table, events), *_) = row_groups(list(unpacked(raw_events(log("mysql")))), mariadb=False)
    schema = schema_of(table, None)
    none, some = (decode_rows(schema, table, RowImages.from_events(part)) for part in ([], events))
    assert len(none) == 0
    assert [array.type for array in none.after] == [array.type for array in some.after]
    assert (none.before.type, none.literal.type) == (some.before.type, some.literal.type)


def test_rows_can_be_decoded_in_any_cut_with_the_same_result() -> None:
    ((table, events), *_) = row_groups(list(unpacked(raw_events(log("mysql")))), mariadb=False)
    schema = schema_of(table, None)
    whole = decode_rows(schema, table, RowImages.from_events(events))
    parts = [decode_rows(schema, table, RowImages.from_events([row_event])) for row_event in events]
    for column in range(table.columns):
        assert pa.concat_arrays([part.after[column] for part in parts]).equals(whole.after[column])
    assert pa.concat_arrays([part.before for part in parts]).equals(whole.before)
    assert [number for number, part in enumerate(parts) for _ in part.event] == whole.event.tolist()


def test_a_type_that_does_not_fit_the_log_never_comes_to_a_kernel() -> None:
    ((table, events), *_) = row_groups(list(unpacked(raw_events(log("mysql")))), mariadb=False)
    schema = schema_of(table, None)
    wrong = TableSchema(
        "cap",
        "t",
        tuple(Column(c.name, ColumnType("datetime" if c.name == "y" else c.type.base)) for c in schema.columns),
    )
    with pytest.raises(InternalError, match=r"cap\.t"):
        decode_rows(wrong, table, RowImages.from_events(events))


@pytest.mark.parametrize("server", SERVERS)
def test_a_cut_image_names_the_table_and_the_event(server: str) -> None:
    ((table, events), *_) = row_groups(list(unpacked(raw_events(log(server)))), mariadb=server == "mariadb")
    images = RowImages.from_events(events)
    before = np.zeros(1000, np.uint8)  # other images
    short = RowImages(
        np.concatenate([before, images.buffer]), images.start + len(before), images.stop + len(before) - 1, images.kind,
        images.event, images.bitmaps, images.shape, images.columns, images.offset, images.partial, images.file,
    )  # fmt: skip
    with pytest.raises(DataAtRisk, match=r"cap\.t does not match the table's shape") as stopped:
        rows_per_event(table, short)
    into, whole = re.findall(r"(\d+) bytes", stopped.value.what)
    assert int(into) <= int(whole) == images.stop[0] - images.start[0] - 1
    assert stopped.value.where == f"binlog.000001:{events[0].event.start}"
    assert stopped.value.code == "source.log_damaged"


@pytest.mark.parametrize("server", SERVERS)
def test_one_bent_bit_of_an_event_is_found_by_its_checksum(server: str) -> None:
    data = log(server)
    for raw_event in list(raw_events(data))[1:]:
        end = raw_event.start + raw_event.header.length
        bent = bytearray(data[raw_event.start : end])
        bent[-5] ^= 4
        with raises(DataAtRisk, "source.log_damaged") as stopped:
            split_event(bytes(bent), checksum=True, file="binlog.000001", start=raw_event.start)
        assert stopped.value.where == f"binlog.000001:{raw_event.start}"


def test_a_log_without_checksums_is_read_to_the_last_byte() -> None:
    body = b"\x01" * 8
    data = (1).to_bytes(4, "little") + b"\x10" + bytes(4) + (27).to_bytes(4, "little") + bytes(6) + body
    assert split_event(data, checksum=False).body == body
    with pytest.raises(DataAtRisk):
        split_event(data + b"\0", checksum=False)


@pytest.mark.parametrize("server", SERVERS)
def test_the_format_description_says_server_and_checksum(server: str) -> None:
    first = parse_format_description(next(raw_events(log(server))))
    assert first.mariadb == (server == "mariadb")
    assert first.checksum
    assert first.server_version.startswith("9." if server == "mysql" else "11.4")


def test_an_incident_says_what_the_source_lost() -> None:
    incident = parse_incident(event(EventType.INCIDENT, b"\x01\0\x04lost"))
    assert (incident.number, incident.message) == (1, "lost")
    with pytest.raises(DataAtRisk, match="left over"):
        parse_incident(event(EventType.INCIDENT, b"\x01\0\x04lost!"))


def test_the_gtid_of_mysql_5_7_has_no_commit_time() -> None:
    body = b"\x01" + bytes(range(16)) + (7).to_bytes(8, "little")
    body += b"\x02" + (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
    gtid = parse_gtid(event(EventType.GTID, body))
    assert (gtid.text, gtid.immediate_commit_ts_us) == ("00010203-0405-0607-0809-0a0b0c0d0e0f:7", 0)


def test_a_gtid_that_came_from_elsewhere_has_two_commit_times() -> None:
    body = b"\x00" + bytes(16) + (7).to_bytes(8, "little") + b"\x02" + bytes(16)
    body += (1 << 55 | 1000).to_bytes(7, "little") + (900).to_bytes(7, "little")
    body += b"\xfc\x00\x01" + (1 << 31 | 90704).to_bytes(4, "little") + (80000).to_bytes(4, "little")
    gtid = parse_gtid(event(EventType.GTID, body))
    assert (gtid.immediate_commit_ts_us, gtid.original_commit_ts_us) == (1000, 900)
    assert parse_gtid(event(EventType.ANONYMOUS_GTID, body)).text == ""


def test_what_a_later_release_appends_to_a_tagged_gtid_stops_nobody_unless_it_is_mandatory() -> None:
    def body(mandatory: int) -> bytes:
        known = [(0, [0]), (1, range(16)), (2, [14]), (3, [1, ord("t") // 2]), (4, [0]), (5, [0]), (6, [100])]
        numbers = [0, 30, mandatory, *(number for field, values in known for number in (field, *values)), 12]
        return bytes(number << 1 for number in numbers) + b"\xff"

    gtid = parse_gtid(event(EventType.GTID_TAGGED, body(7)))
    assert (gtid.text, gtid.immediate_commit_ts_us) == ("00010203-0405-0607-0809-0a0b0c0d0e0f:t:7", 100)
    with pytest.raises(DataAtRisk, match="does not know"):
        parse_gtid(event(EventType.GTID_TAGGED, body(13)))


def test_a_mariadb_gtid_with_extra_fields_of_a_newer_server_is_read() -> None:
    body = (9).to_bytes(8, "little") + (3).to_bytes(4, "little") + b"\x00" + b"\x10" + b"\xaa" * 5
    gtid = parse_mariadb_gtid(event(EventType.MARIADB_GTID, body))
    assert gtid.text == "3-1-9"
    assert not gtid.standalone


def test_a_header_shorter_than_itself_is_refused() -> None:
    with pytest.raises(DataAtRisk):
        parse_header(bytes(18))
    with pytest.raises(DataAtRisk, match="claims a length of 0 bytes"):
        parse_header(bytes(19))


def test_a_compressed_statement_of_mariadb_becomes_the_plain_one() -> None:
    sql = b"CREATE TABLE t (id INT)" * 20
    head = bytes(8) + b"\x02" + bytes(4) + b"db\0"
    packed = head + b"\x82" + len(sql).to_bytes(2, "big") + zlib.compress(sql)
    found = plain(event(EventType.MARIADB_QUERY_COMPRESSED, packed))
    assert found.header.type == EventType.QUERY
    assert (parse_query(found).database, parse_query(found).sql) == ("db", sql)
    for bent in (
        packed[:-3],
        packed + b"x",
        head + b"\x92" + packed[len(head) + 1 :],
        head + b"\x81\x05" + packed[18:],
    ):
        with pytest.raises(DataAtRisk):
            plain(event(EventType.MARIADB_QUERY_COMPRESSED, bent))


def test_a_payload_that_is_not_what_it_says_stops() -> None:
    (raw_event,) = [e for e in raw_events(log("mysql")) if e.header.type == EventType.TRANSACTION_PAYLOAD]
    assert [e.header.type for e in payload_events(raw_event)][-1] == EventType.XID
    bent = (raw_event.body[:-1], raw_event.body + b"x", raw_event.body[:30] + b"\xff" + raw_event.body[31:])
    for body in bent:
        with pytest.raises(DataAtRisk):
            list(payload_events(event(EventType.TRANSACTION_PAYLOAD, body)))
    with raises(DataAtRisk, "source.log_lost"):
        list(payload_events(event(EventType.TRANSACTION_PAYLOAD, b"\x01\x01\x01\x02\x01\x07\x00x")))


def payload(packed: bytes, codec: bytes, size: int) -> Event:
    numbers = [b"\x09\xfe" + struct.pack("<Q", number) for number in (len(packed), size)]
    return event(
        EventType.TRANSACTION_PAYLOAD, b"\1" + numbers[0] + b"\2" + codec + b"\3" + numbers[1] + b"\0" + packed
    )


@pytest.mark.parametrize("zstd", [True, False])
def test_a_payload_larger_than_what_is_held_of_it_is_unpacked_event_by_event(zstd: bool) -> None:
    chance = random.Random(5)
    sizes = [chance.randrange(99_000) for _ in range(60)]
    sizes += [0, LUMP - 19, 1, LUMP - 30, LONG + 5, 3, LONG - 19, 2 * LUMP]
    bodies = [chance.randbytes(100) * (size // 100 + 1) for size in sizes]
    bodies = [body[:size] for body, size in zip(bodies, sizes, strict=True)]
    plain = b"".join(struct.pack("<IBIIIH", 5, 30, 1, 19 + len(body), 0, 0) + body for body in bodies)
    packed, codec = (pa.Codec("zstd").compress(plain, asbytes=True), b"\1\0") if zstd else (plain, b"\3\xfc\xff\0")
    found = payload_events(payload(packed, codec, len(plain)))
    assert [inner.whole().body for inner in found] == bodies
    skipped = list(payload_events(payload(packed, codec, len(plain))))  # nobody wants what follows the begin of any
    assert [inner.header.length - 19 for inner in skipped] == sizes
    assert max(len(inner.body) for inner in skipped) < LONG
    told: list[Event] = []
    with pytest.raises(DataAtRisk):
        told.extend(payload_events(payload(packed[:-1000], codec, len(plain))))
    assert len(told) < len(bodies)
    if zstd:
        for wrong in (len(plain) - 1, len(plain) + 1):
            with pytest.raises(DataAtRisk):
                list(payload_events(payload(packed, codec, wrong)))


def test_small_rows_behind_large_ones_are_all_found() -> None:
    """The room for rows is guessed from the first events: a guess that is too small costs time, never rows."""
    table = TableMap(1, 0, "d", "t", (TypeCode.BLOB,), (4,), (True,))
    schema = TableSchema("d", "t", (Column("v", ColumnType("longblob")),))
    large = b"\0" + (5000).to_bytes(4, "little") + b"x" * 5000
    place = event(EventType.WRITE_ROWS, b"")
    events = [RowsEvent(0, 1, 0, 1, b"\xff", b"", False, large, place) for _ in range(9)]
    events += [RowsEvent(0, 1, 0, 1, b"\xff", b"", False, b"\xff" * 4000, place)]
    events += [RowsEvent(1, 1, 0, 1, b"\xff", b"\xff", False, b"\xff" * 4000, place)]
    decoded = decode_rows(schema, table, RowImages.from_events(events))
    assert decoded.rows_per_event.tolist() == [1] * 9 + [4000, 2000]
    assert decoded.after[0].null_count == 6000
    assert decoded.before.null_count == 4009
