"""Framing of a replication connection: packets, places in the log, checksums, and what must stop it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.binlog.event_headers import Event, EventType
from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater, severity
from cdc_core.model.position import Position
from cdc_core.source.wire.event_framer import EventFramer
from tests.lab.refusals import raises
from tests.unit.source.wire.made_wire import Wire, event, events_of, format_description, give, ok, packet, rotate


def places(events: list[Event]) -> list[tuple[str, int, int]]:
    return [(framed.file, framed.start, framed.header.type) for framed in events]


def read(start: Position, wire: Wire) -> list[Event]:
    return list(events_of(EventFramer(start, "src"), wire.data))


def refused(start: Position, wire: Wire) -> LockstepError:
    with pytest.raises(LockstepError) as raised:
        read(start, wire)
    return raised.value


START = Position(0, "binlog.000007", 1000)


@given(st.lists(st.tuples(st.sampled_from([2, 16, 30, 33]), st.binary(max_size=300)), max_size=8), st.data())
@settings(max_examples=60, deadline=None)
def test_events_come_whole_and_in_place_however_the_bytes_are_cut(
    sent: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    wire = Wire(START)
    for code, body in sent:
        wire.send(code, body)
    framer = EventFramer(START, "src")
    events: list[Event] = []
    rest = wire.data
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        events += events_of(framer, rest[:size])
        rest = rest[size:]
    assert [(framed.header.type, framed.body) for framed in events] == sent
    at = START.offset
    for framed in events:
        assert framed.start == at
        at += framed.header.length
    assert framer.offset == at


STATEMENT = bytes(13) + b"db\0CREATE TABLE t (id INT)"
BEGIN = bytes(13) + b"\0BEGIN"


def has_statement(framed: Event) -> bool:
    return framed.header.type == 165 or (framed.header.type == 2 and not framed.body.endswith(b"\0BEGIN"))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([2, 165]), st.sampled_from([STATEMENT, BEGIN, b"BEGIN", b"", b"\0BEGIN", b"x"])),
            st.tuples(st.sampled_from([16, 19, 30, 33]), st.sampled_from([STATEMENT, BEGIN, b"row", b""])),
        ),
        max_size=12,
    ),
    st.booleans(),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_reading_ahead_leaves_out_no_statement_and_ends_where_reading_all_does(
    sent: list[tuple[int, bytes]], cut_short: bool, data: st.DataObject
) -> None:
    wire = Wire(START)
    for code, body in sent:
        wire.send(code, body)
    sent_bytes = wire.data[: len(wire.data) - 7] if cut_short and sent else wire.data
    whole, framer = EventFramer(START, "src"), EventFramer(START, "src")
    events: list[Event] = []
    rest = sent_bytes
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        give(framer, rest[:size])
        events += framer.statements()
        rest = rest[size:]
    assert list(filter(has_statement, events)) == list(filter(has_statement, events_of(whole, sent_bytes)))
    assert framer.offset == whole.offset


def test_reading_ahead_makes_an_event_of_few_of_the_rows() -> None:
    wire = Wire(START)
    for number in range(1000):
        wire.send(2, BEGIN).send(30, b"row")
        if number % 100 == 99:
            wire.send(2, STATEMENT)
    # The kernel frames what comes after the FORMAT_DESCRIPTION; an event or two before are given as they are.
    framer = EventFramer(START, "src")
    give(framer, wire.data)
    assert len(list(framer.statements())) <= 10 + 2


def test_an_error_on_the_way_ahead_comes_after_the_statements_before_it() -> None:
    wire = Wire(START).send(2, STATEMENT).send(30, b"row")
    damaged = bytearray(wire.send(2, STATEMENT).data)
    damaged[-1] ^= 1
    framer = EventFramer(START, "src")
    give(framer, bytes(damaged))
    ahead = (statement for statement in framer.statements() if statement.header.type == 2)
    assert next(ahead).body == STATEMENT
    with pytest.raises(DataAtRisk):
        next(ahead)


@pytest.mark.parametrize(
    "size", [(1 << 24) - 30, (1 << 24) - 25, (1 << 24) - 24, (1 << 24) + 5, 2 * ((1 << 24) - 1) - 24]
)
def test_an_event_of_many_packets_is_joined_even_when_the_last_one_is_empty(size: int) -> None:
    body = bytes(size)
    found = read(START, Wire(START).send(30, body).send(16, b"after"))
    assert [(len(framed.whole().body), framed.start) for framed in found] == [(size, 1000), (5, 1000 + size + 23)]


def test_of_an_event_of_many_packets_only_the_begin_is_held_until_more_is_asked_for() -> None:
    body = bytes(range(256)) * (1 << 17)
    wire = Wire(START).send(30, body)
    framer = EventFramer(START, "src")
    (found,) = [
        framed
        for at in range(0, len(wire.data), 1 << 20)
        for framed in events_of(framer, wire.data[at : at + (1 << 20)])
    ]
    assert len(found.body) < 1 << 20
    assert len(framer.buffer.data) < 1 << 24
    assert found.rest(7).all() == body[7:]
    assert found.more.left == 0


def test_the_files_first_event_takes_its_place_only_when_the_stream_begins_with_it() -> None:
    assert places(read(START, Wire(START).send(16, b"x"))) == [(START.file, 1000, 16)]
    begin = Position(0, START.file, 4)
    found = places(read(begin, Wire(begin).send(16, b"x")))
    assert found[0] == (START.file, 4, EventType.FORMAT_DESCRIPTION)
    assert found[1][1] > 100


def test_places_go_on_where_the_headers_32_bits_wrap() -> None:
    begin = Position(0, START.file, (1 << 32) - 60)
    wire = Wire(begin).send(16, b"x" * 10).send(16, b"y" * 10).send(16, b"z")
    assert [framed.start - (1 << 32) for framed in read(begin, wire)] == [-60, -27, 6]


def test_events_that_do_not_say_where_they_end_are_counted() -> None:
    wire = Wire(START, mariadb=True).send(162, b"g" * 19).send(19, b"map", says=False).send(16, b"xid")
    assert [framed.start for framed in read(START, wire)] == [1000, 1042, 1068]


KEY_OF_FILE = bytes.fromhex("0101000000e34480b947079246284b07ca")
"""START_ENCRYPTION of MariaDB 11.4: scheme, key version, nonce."""


@pytest.mark.parametrize("offset", [4, 1000])
@pytest.mark.parametrize("sent", [True, False])
def test_an_encrypted_file_is_read_from_any_position(offset: int, sent: bool) -> None:
    """MariaDB sends START_ENCRYPTION, or skips it, at its position; a dump that begins later has it without one."""
    begin = Position(0, START.file, offset)
    wire = Wire(begin, mariadb=True)
    at = wire.at + (40 if offset == 4 else 0)
    if offset == 4 and sent:
        wire.send(164, KEY_OF_FILE)
    elif sent:
        wire.raw(ok(event(164, KEY_OF_FILE, flags=0x80)))
    wire.send(162, b"g" * 19, gap=at - wire.at).send(16, b"xid")
    assert [(framed.header.type, framed.start) for framed in read(begin, wire)[-2:]] == [(162, at), (16, at + 42)]


def test_an_event_that_tells_no_position_is_skipped_only_where_a_dump_begins() -> None:
    wire = Wire(START, mariadb=True).send(162, b"g" * 19).send(164, KEY_OF_FILE, says=False).send(16, b"xid")
    assert [framed.start for framed in read(START, wire)] == [1000, 1042, 1082]


def test_a_log_without_checksums_is_read() -> None:
    wire = Wire(START, checksum=False).send(16, b"x").send(16, b"y")
    assert [framed.body for framed in read(START, wire)] == [b"x", b"y"]


@pytest.mark.parametrize("checksum", [True, False])
def test_a_change_of_file_without_a_rotation_is_told(checksum: bool) -> None:
    wire = Wire(START).send(16, b"x").raw(ok(rotate("binlog.000008", checksum=checksum)))
    wire.raw(ok(format_description(end=4 + len(format_description()))))
    found = read(START, wire)
    assert places(found)[1:] == [("", -1, EventType.ROTATE), ("binlog.000008", 4, EventType.FORMAT_DESCRIPTION)]


def test_heartbeats_are_no_events_of_the_log() -> None:
    beat = event(EventType.HEARTBEAT, b"binlog.000007", end=1000, timestamp=0)
    assert [framed.body for framed in read(START, Wire(START).raw(ok(beat)).send(16, b"x"))] == [b"x"]


def test_a_hole_stops_at_the_place_and_what_came_before_it_is_handed_on() -> None:
    framer = EventFramer(START, "src")
    events = events_of(framer, Wire(START).send(16, b"x").send(16, b"y", gap=40).data)
    assert next(events).body == b"x"
    with raises(DataAtRisk, "source.log_damaged") as raised:
        next(events)
    assert f"{START.file}:1024" in raised.value.where


LONG_PACKET = (1 << 23).to_bytes(3, "little") + ok(event(EventType.QUERY, b"x" * 40))[3:]
NO_STREAM = (b"", b"\x01", b"\xfb" + b"x" * 30, b"\xfe" + b"x" * 30)
DAMAGED: dict[str, Callable[[Wire], bytes]] = {
    "an event that comes twice": lambda wire: wire.send(16, b"x").raw(ok(event(16, b"x", end=1024))).data,
    "a bent byte": lambda wire: bent(wire.send(16, b"x" * 50).data),
    "a bent byte of an event of two packets": lambda wire: bent(wire.send(16, b"x" * (1 << 24)).data),
    "a packet that is longer than its event": lambda wire: wire.raw(LONG_PACKET).data,
    "an event that is shorter than it says": lambda wire: wire.raw(ok(event(16, b"x" * 50)[:-3])).data,
    "an event before the format is known": lambda wire: ok(event(16, b"x", end=1024)),
    **{f"a packet {body!r}": lambda wire, body=body: wire.raw(packet(body)).data for body in NO_STREAM},
}


def bent(data: bytes) -> bytes:
    return data[:-20] + b"!" + data[-19:]


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_not_a_whole_stream_stops_and_is_not_waited_for(damage: str) -> None:
    with raises(DataAtRisk, "source.log_damaged"):
        list(events_of(EventFramer(START, "src"), DAMAGED[damage](Wire(START))))


def test_a_place_that_the_dump_command_cannot_name_is_asked_for_from_the_files_begin() -> None:
    framer = EventFramer(START, "src", max_dump_offset=500)
    assert framer.offset == 4
    begin = Position(0, START.file, 4)
    wire = Wire(begin)
    wire.send(16, bytes(1000 - wire.at - 23)).send(33, b"here").send(16, b"x")
    assert places(list(events_of(framer, wire.data))) == [(START.file, 1000, 33), (START.file, 1027, 16)]


def test_a_place_that_no_event_begins_at_stops() -> None:
    framer = EventFramer(START, "src", max_dump_offset=500)
    wire = Wire(Position(0, START.file, 4)).send(16, bytes(2000)).send(16, b"x")
    with raises(DataAtRisk, "source.bad_position"):
        list(events_of(framer, wire.data))


def test_the_end_of_the_log_ends_a_reader_that_does_not_wait() -> None:
    framer = EventFramer(START, "src")
    assert len(list(events_of(framer, Wire(START).send(16, b"x").raw(packet(b"\xfe\0\0\2\0")).data))) == 1
    assert framer.ended


@pytest.mark.parametrize(
    ("number", "text", "kind", "code"),
    [
        (1236, "Could not find first log file name in binary log index file", DataAtRisk, "source.log_lost"),
        (1236, "Cannot replicate because the source purged required binary logs.", DataAtRisk, "source.log_lost"),
        (1236, "Client requested source to start replication from position > file size", DataAtRisk,
         "source.other_log"),
        (1236, "A replica with the same server_uuid/server_id as this replica has connected", Refused,
         "source.server_id_taken"),
        (1236, "bogus data in log event; the first event 'binlog.000001' at 4", DataAtRisk, "source.bad_position"),
        (1236, "log event entry exceeded max_allowed_packet", DataAtRisk, "source.bad_position"),
        (1227, "Access denied; you need (at least one of) the REPLICATION SLAVE privilege(s)", Refused,
         "connection.grant"),
        (1927, "Connection was killed", RetryLater, "connection.unreachable"),
        (1053, "Server shutdown in progress", RetryLater, "connection.unreachable"),
    ],
)  # fmt: skip
def test_what_the_server_says_becomes_the_error_of_the_way_to_recover(
    number: int, text: str, kind: type[LockstepError], code: str
) -> None:
    error = refused(START, Wire(START).raw(packet(b"\xff" + struct.pack("<H", number) + b"#HY000" + text.encode())))
    assert (severity(type(error)), error.code) == (kind, code)
    assert text in error.what
