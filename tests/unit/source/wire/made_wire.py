"""What a server sends on a replication connection, made by hand, byte by byte."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from cdc_core.binlog.event_headers import HEADER_SIZE, Event, EventType
from cdc_core.model.position import Position
from cdc_core.source.wire.event_framer import EventFramer

ARTIFICIAL = 0x20


def event(code: int, body: bytes, *, end: int = 0, flags: int = 0, timestamp: int = 5, checksum: bool = True) -> bytes:
    size = HEADER_SIZE + len(body) + 4 * checksum
    data = struct.pack("<IBIIIH", timestamp, code, 1, size, end & 0xFFFFFFFF, flags) + body
    return data + struct.pack("<I", zlib.crc32(data)) if checksum else data


def packet(payload: bytes, number: int = 0) -> bytes:
    """Cut where the protocol cuts: after 2^24 - 1 bytes."""
    out = b""
    while True:
        part, payload = payload[: (1 << 24) - 1], payload[(1 << 24) - 1 :]
        out += len(part).to_bytes(3, "little") + bytes([number & 255]) + part
        if len(part) < (1 << 24) - 1:
            return out


def ok(data: bytes) -> bytes:
    return packet(b"\0" + data)


def format_description(*, mariadb: bool = False, end: int = 0, checksum: bool = True) -> bytes:
    version = b"11.4.5-MariaDB" if mariadb else b"9.7.4"
    body = struct.pack("<H50sIB", 4, version, 0, 19) + bytes(171) + bytes([checksum])
    return event(EventType.FORMAT_DESCRIPTION, body, end=end)


def rotate(file: str, *, checksum: bool = True) -> bytes:
    body = struct.pack("<Q", 4) + file.encode()
    return event(EventType.ROTATE, body, flags=ARTIFICIAL, timestamp=0, checksum=checksum)


class Wire:
    """What a server sends from a position on."""

    def __init__(self, start: Position, *, mariadb: bool = False, checksum: bool = True) -> None:
        self.checksum = checksum
        self.at = start.offset
        self.data = ok(rotate(start.file))
        description = format_description(mariadb=mariadb, checksum=checksum)
        if start.offset == 4:
            self.at += len(description)
            description = format_description(mariadb=mariadb, end=self.at, checksum=checksum)
        self.data += ok(description)

    def send(self, code: int, body: bytes, *, says: bool = True, gap: int = 0) -> Wire:
        self.at += gap + HEADER_SIZE + len(body) + 4 * self.checksum
        self.data += ok(event(code, body, end=self.at if says else 0, checksum=self.checksum))
        return self

    def raw(self, data: bytes) -> Wire:
        self.data += data
        return self


def give(framer: EventFramer, data: bytes) -> None:
    """As if the socket had received these bytes."""
    while data:
        free = framer.buffer.get_buffer()
        part, data = data[: len(free)], data[len(free) :]
        free[: len(part)] = part
        framer.buffer.buffer_updated(len(part))


def events_of(framer: EventFramer, data: bytes) -> Iterator[Event]:
    """The events that are complete with these bytes."""
    give(framer, data)
    return framer.events()
