"""Servers that mean harm: one that makes up its whole login, and one in front of a real server that meddles at a step.

Both listen on 127.0.0.1 and keep all that they were sent, TLS and RSA taken off, so that a test can look for passwords
and for the contents of files.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

SALT = b"abcdefgh" + b"ijklmnopqrst"
_LONG_PASSWORD, _PROTOCOL_41, _SSL, _SECURE = 1, 1 << 9, 1 << 11, 1 << 15
_PLUGIN_AUTH, _ATTRS, _LENENC = 1 << 19, 1 << 20, 1 << 21
OK = b"\x00\x00\x00\x02\x00\x00\x00"
EOF = b"\xfe\x00\x00\x02\x00"
PATIENCE_S = 15.0


def packet(number: int, payload: bytes) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number & 255]) + payload


def lenenc(data: bytes) -> bytes:
    return bytes([len(data)]) + data if len(data) < 251 else b"\xfc" + struct.pack("<H", len(data)) + data


def error_packet(number: int, code: int, text: str) -> bytes:
    return packet(number, b"\xff" + struct.pack("<H", code) + b"#HY000" + text.encode())


def column(name: str = "x") -> bytes:
    tail = b"\x0c" + struct.pack("<HIBHBxx", 255, 1024, 0xFD, 0, 0)
    return b"".join(lenenc(part) for part in (b"def", b"", b"", b"", name.encode(), b"")) + tail


def result_set(rows: list[list[bytes | None]], columns: int) -> bytes:
    """The answer to a command, from packet 1 on."""
    parts = [bytes([columns]), *(column(f"c{n}") for n in range(columns)), EOF]
    parts += [b"".join(b"\xfb" if value is None else lenenc(value) for value in row) for row in rows]
    return b"".join(packet(number, part) for number, part in enumerate([*parts, EOF], 1))


@cache
def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Wire:
    """A socket from which whole packets are read."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def read(self) -> tuple[int, bytes]:
        """Number and payload; raises OSError at the end."""
        head = self._exactly(4)
        return head[3], self._exactly(int.from_bytes(head[:3], "little"))

    def read_raw(self) -> bytes:
        head = self._exactly(4)
        return head + self._exactly(int.from_bytes(head[:3], "little"))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise OSError("ended")
            data += part
        return data

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)


class Listener:
    """Serves each connection in a thread of its own, by `serve`, until the end."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.ended = threading.Event()
        self.received = bytearray()
        self._start(self._accept)

    def serve(self, client: socket.socket) -> None:
        raise NotImplementedError

    def keep(self, data: bytes) -> None:
        with self._lock:
            self.received += data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in self._open:
            connection.close()

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.ended.is_set():
            with suppress(OSError, ValueError):
                if select.select([self._listener], [], [], 0.05)[0]:
                    client, _ = self._listener.accept()
                    self._open.append(client)
                    self._start(self._guarded, client)

    def _guarded(self, client: socket.socket) -> None:
        try:
            with suppress(OSError, ValueError, ssl.SSLError):
                self.serve(client)
        finally:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def pause(self, seconds: float = PATIENCE_S) -> None:
        self.ended.wait(seconds)


@dataclass(frozen=True)
class Login:
    """How the fake server greets and what it asks for.

    plugin: named in the greeting. asks: the method that it switches to, "" for none. more: what it then says, by
    AuthMoreData. tls: certificate and key; None: no TLS is offered. greeting: sent as it is instead of a greeting.
    reads_file: after the login, every statement is answered by a request for this file.
    """

    plugin: str = "mysql_native_password"
    asks: str = ""
    more: tuple[bytes, ...] = ()
    prompt: bytes = b""
    tls: tuple[Path, Path] | None = None
    greeting: bytes | None = None
    after: bytes | None = None
    silent: bool = False
    drips: bool = False
    reads_file: Path | None = None


class FakeServer(Listener):
    """A server without a database, which makes the client believe what `login` says."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.key = _key()
        self.decrypted: list[bytes] = []
        super().__init__()

    def knows(self, password: str) -> bool:
        """Whether the password reached this server, in any form that it can read."""
        plain = password.encode()
        xored = bytes(byte ^ SALT[at % len(SALT)] for at, byte in enumerate(plain))
        return any(secret in text for secret in (plain, xored) for text in (bytes(self.received), *self.decrypted))

    def serve(self, client: socket.socket) -> None:
        wire, login = Wire(client), self.login
        if login.silent:
            self.pause()
            return
        greeting = self._greeting() if login.greeting is None else login.greeting
        if login.drips:
            for byte in greeting:
                if self.ended.wait(0.2):
                    return
                wire.send(bytes([byte]))
        wire.send(greeting)
        number, payload = wire.read()
        self.keep(payload)
        if login.tls is not None and len(payload) == 32:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*login.tls)
            wrapped = context.wrap_socket(client, server_side=True)
            self._open.append(wrapped)
            wire = Wire(wrapped)
            number, payload = wire.read()
            self.keep(payload)
        if login.after is not None:
            wire.send(login.after)
            self.pause(0.2)
            return
        if login.asks:
            number = self._exchange(
                wire, number, b"\xfe" + login.asks.encode() + b"\0" + (login.prompt or SALT + b"\0")
            )
        for more in login.more:
            number = self._exchange(wire, number, b"\x01" + more)
            if self.received.endswith(b"\x02") or self.received.endswith(b"\x01"):
                pem = self.key.public_key().public_bytes(
                    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                )
                number = self._exchange(wire, number, b"\x01" + pem)
        wire.send(packet(number + 1, OK))
        while True:
            number, payload = wire.read()
            self.keep(payload)
            if login.reads_file is None:
                wire.send(packet(1, OK))
                continue
            wire.send(packet(1, b"\xfb" + str(login.reads_file).encode()))
            while payload:
                number, payload = wire.read()
                self.keep(payload)
            wire.send(packet(number + 1, OK))

    def _exchange(self, wire: Wire, number: int, payload: bytes) -> int:
        wire.send(packet(number + 1, payload))
        number, answer = wire.read()
        self.keep(answer)
        if len(answer) == 256:
            with suppress(ValueError):
                oaep = padding.OAEP(mgf=padding.MGF1(algorithm=hashes.SHA1()), algorithm=hashes.SHA1(), label=None)
                self.decrypted.append(self.key.decrypt(answer, oaep))
        return number

    def _greeting(self) -> bytes:
        flags = _LONG_PASSWORD | _PROTOCOL_41 | _SECURE | _PLUGIN_AUTH | _ATTRS | _LENENC
        if self.login.tls is not None:
            flags |= _SSL
        low, high = struct.pack("<H", flags & 0xFFFF), struct.pack("<H", flags >> 16)
        body = b"\x0a8.0.99\0" + struct.pack("<I", 7) + SALT[:8] + b"\0" + low + b"\xff" + struct.pack("<H", 2) + high
        body += bytes([21]) + bytes(10) + SALT[8:] + b"\0" + self.login.plugin.encode() + b"\0"
        return packet(0, body)


class Meddler(Listener):
    """Passes everything on to a real server, but meddles with the answer to one command: the `step`-th of all that
    come, over all connections, counted from 0. `step` None: it only counts.

    statements: the commands that came, as text. met: the one it meddled with.
    """

    def __init__(self, port: int, step: int | None = None, harm: str = "", file: Path | None = None) -> None:
        self._target = port
        self._step = step
        self._harm = harm
        self._file = file
        self.statements: list[str] = []
        self.met: str | None = None
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._target))
        self._open.append(server)
        here, there = Wire(client), Wire(server)
        self._log_in(here, there)
        while True:
            raw = here.read_raw()
            self.keep(raw)
            with self._lock:
                step = len(self.statements)
                self.statements.append(f"{raw[4]:02x} {raw[5:].decode(errors='replace')}")
                mine = step == self._step
                if mine:
                    self.met = self.statements[-1]
            there.send(raw)
            if raw[4] == 0x12:
                if mine:
                    self._spoil(here, there)
                else:
                    self._stream(here, there)
                return
            if raw[4] == 0x01:
                return
            if mine:
                self._spoil(here, there)
            elif raw[4] == 0x03 and b"LOAD DATA LOCAL" in raw:
                self._load(here, there)
            else:
                self._answer(there, here)

    def _log_in(self, here: Wire, there: Wire) -> None:
        here.send(there.read_raw())
        while True:
            raw = here.read_raw()
            self.keep(raw)
            there.send(raw)
            while True:
                answer = there.read_raw()
                here.send(answer)
                if answer[4] in (0x00, 0xFF):
                    return
                if answer[4:6] != b"\x01\x03":
                    break

    def _stream(self, here: Wire, there: Wire) -> None:
        while not self.ended.is_set():
            for one, other in ((here, there), (there, here)):
                if select.select([one.socket], [], [], 0.02)[0]:
                    data = one.socket.recv(1 << 16)
                    if not data:
                        return
                    other.send(data)

    def _load(self, here: Wire, there: Wire) -> None:
        first = there.read_raw()
        here.send(first)
        if first[4] != 0xFB:
            return
        while True:
            raw = here.read_raw()
            self.keep(raw)
            there.send(raw)
            if len(raw) == 4:
                break
        here.send(there.read_raw())

    def _answer(self, there: Wire, here: Wire | None = None) -> list[bytes]:
        """The packets of a whole answer; passed on to `here`."""

        def take() -> bytes:
            raw = there.read_raw()
            packets.append(raw)
            if here is not None:
                here.send(raw)
            return raw

        packets: list[bytes] = []
        first = take()
        if first[4] in (0x00, 0xFF, 0xFB):
            return packets
        for _ in range(2):
            while not (0 < len(raw := take()) < 14 and raw[4] == 0xFE) and raw[4] != 0xFF:
                pass
            if raw[4] == 0xFF:
                break
        return packets

    def _spoil(self, here: Wire, there: Wire) -> None:
        """HARMS says what each is."""
        harm = self._harm
        if harm in ("no rows", "nulls", "nonsense", "fewer columns", "more columns"):
            answer = self._answer(there)
            columns = answer[0][4]
            if columns in (0x00, 0xFF, 0xFB):  # no rows were asked for
                here.send(b"".join(answer))
            else:
                there_were = max(1, len(answer) - columns - 3)
                values: dict[str, tuple[list[list[bytes | None]], int]] = {
                    "no rows": ([], columns),
                    "nulls": ([[None] * columns] * there_were, columns),
                    "nonsense": ([[b"\xc3\xa4?\xff"] * columns] * there_were, columns),
                    "fewer columns": ([[b"1"] * (columns - 1)] * there_were, columns - 1),
                    "more columns": ([[b"1"] * (columns + 1)] * there_were, columns + 1),
                }
                rows, width = values[harm]
                here.send(result_set(rows, width) if width else packet(1, OK))
            self._pass_on(here, there)
            return
        if harm == "silence":
            self.pause()
        elif harm == "drip":
            here.send(b"\xff\xff\x00\x01")
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end and not self.ended.wait(0.1):
                here.send(b"\x01")
        elif harm == "endless rows":
            here.send(result_set([], 1)[: -len(packet(0, EOF))])
            row = lenenc(b"y" * 200)
            for number in range(4, 2_000_000):
                here.send(packet(number, row))
        elif harm == "file":
            here.send(packet(1, b"\xfb" + str(self._file).encode()))
            while True:
                raw = here.read_raw()
                self.keep(raw)
                if len(raw) == 4:
                    break
            here.send(packet(raw[3] + 1, OK))
        else:
            here.send(
                {
                    "cut": b"",
                    "truncated": b"\x50\x00\x00\x01\x00\x00",
                    "short result": packet(1, b"\x01") + packet(2, b"\x03de"),
                    "wrong number": packet(9, OK),
                    "empty": packet(1, b""),
                    "short error": packet(1, b"\xff\x01"),
                    "short ok": packet(1, b"\x00"),
                    "error": error_packet(1, 9999, "I do not like it"),
                    "denied": error_packet(1, 1142, "SELECT command denied"),
                    "huge length": b"\xff\xff\xff\x01" + b"z" * 100,
                    "huge columns": packet(1, b"\xfe" + b"\xff" * 8),
                    "ok": packet(1, OK),
                }[harm]
            )
            if harm in ("error", "denied", "ok"):
                self._answer(there)
                self._pass_on(here, there)

    def _pass_on(self, here: Wire, there: Wire) -> None:
        """Honest from here on."""
        while True:
            raw = here.read_raw()
            self.keep(raw)
            with self._lock:
                self.statements.append(f"{raw[4]:02x} {raw[5:].decode(errors='replace')}")
            there.send(raw)
            if raw[4] == 0x01:
                return
            if raw[4] == 0x12:
                self._stream(here, there)
                return
            if raw[4] == 0x03 and b"LOAD DATA LOCAL" in raw:
                self._load(here, there)
            else:
                self._answer(there, here)


CLOSING = (
    "cut", "truncated", "short result", "wrong number", "empty", "short error", "short ok", "huge length",
    "huge columns",
)  # fmt: skip
ANSWERS = ("error", "denied", "ok", "no rows", "nulls", "nonsense", "fewer columns", "more columns", "file")


def harms() -> Iterator[str]:
    yield from CLOSING
    yield from ANSWERS
