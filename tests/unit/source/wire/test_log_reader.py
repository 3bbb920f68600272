"""Bytes from a connection to the framer: all that has come is looked at before its end is told."""

from __future__ import annotations

import socket
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.binlog.framing import CRC_TABLES, crc32
from cdc_core.config import Source
from cdc_core.errors import Refused, RetryLater
from cdc_core.model.position import Position
from cdc_core.source.wire.event_framer import EventFramer
from cdc_core.source.wire.log_reader import LogReader
from tests.lab.refusals import raises
from tests.unit.source.wire.made_wire import Wire, packet

START = Position(0, "binlog.000007", 1000)


class Connected(LogReader):
    """A reader whose connection is one end of a pair of sockets."""

    def __init__(self, end: socket.socket) -> None:
        self._source = Source(name="src", connection="env:SRC", server_id=1)
        self._waits = True
        self._silent_s = 0.0
        self._unread = False
        self._socket = end
        self._unread = False
        self.framer = EventFramer(START, "src")


def test_the_last_words_of_a_server_are_told_though_it_has_closed_the_connection() -> None:
    ours, theirs = socket.socketpair()
    error = packet(b"\xff" + struct.pack("<H", 1227) + b"#HY000Access denied")
    wire = Wire(START).send(30, bytes(90_000)).raw(error).data
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(wire)
        theirs.close()
        reader = Connected(ours)
        assert reader.receive(1.0)
        while (event := reader.framer.next_event()) is None:
            assert reader.receive(1.0)
        assert (event.start, len(event.body)) == (1000, 90_000)
        with pytest.raises(Refused, match="Access denied"):
            reader.framer.next_event()
        with raises(RetryLater, "connection.unreachable"):
            reader.receive(1.0)


def test_a_receive_of_nothing_is_no_receive() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not Connected(ours).receive(0.001)


@given(st.binary(max_size=600), st.integers(0, 9))
@settings(deadline=None)
def test_the_compiled_checksum_is_the_one_of_zlib(data: bytes, start: int) -> None:
    buffer = np.frombuffer(bytes(start) + data, np.uint8).copy()
    assert crc32(buffer, start, len(buffer), CRC_TABLES) == zlib.crc32(data)


@pytest.mark.parametrize("size", [1, 8 << 20, 15 << 20])
def test_events_larger_than_the_buffer_make_it_grow_and_lose_nothing(size: int) -> None:
    wire = Wire(START)
    sent = [bytes([n]) * (size if n == 1 else 100_000) for n in range(120 if size == 1 else 5)]
    for body in sent:
        wire.send(30, body)
    framer = EventFramer(START, "src")
    found = []
    data = memoryview(wire.data)
    while data:
        room = framer.buffer.get_buffer()
        part = data[: len(room)]
        room[: len(part)] = part
        framer.buffer.buffer_updated(len(part))
        data = data[len(part) :]
        while (event := framer.next_event()) is not None:
            found.append(event.body)
    assert found == sent
