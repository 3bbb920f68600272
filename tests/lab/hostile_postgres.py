"""A PostgreSQL that means harm: it has no TLS, asks for the password itself, and keeps what it gets."""

from __future__ import annotations

import socket
import struct

from tests.lab.hostile_server import Listener

_TLS, _GSS = 80877103, 80877104
_CLEAR_PASSWORD, _OK = 3, 0


class FakePostgres(Listener):
    """silent: says nothing once someone has logged in."""

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        while True:
            head = client.recv(8, socket.MSG_WAITALL)
            if len(head) < 8:
                return
            size, kind = struct.unpack("!II", head)
            if kind not in (_TLS, _GSS):
                break
            client.sendall(b"N")
        self.keep(client.recv(size - 8, socket.MSG_WAITALL))
        if self._silent:
            client.sendall(_message(b"R", struct.pack("!I", _OK)) + _message(b"Z", b"I"))
            self.keep(client.recv(1 << 16))
            self.pause()
            return
        client.sendall(_message(b"R", struct.pack("!I", _CLEAR_PASSWORD)))
        self.keep(client.recv(1 << 16))
        client.sendall(_message(b"E", b"SFATAL\0C28P01\0Mpassword\x1b[2J authentication failed\0\0"))


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body
