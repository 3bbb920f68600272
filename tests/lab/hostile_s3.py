"""An S3 endpoint with faults: a proxy in front of the sandbox's server that loses, cuts off or damages some answers.

It listens on 127.0.0.1. A second listener is the other host that redirects name; it keeps all that it is sent.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from tests.lab.hostile_server import Listener

PAGE = b"<!DOCTYPE html><html><body><p>default backend<br></body></html>"
PATIENCE_S = 20.0


def _error(code: str) -> bytes:
    return f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()


@dataclass(frozen=True)
class Request:
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def method(self) -> str:
        return self.line.split()[0]

    @property
    def path(self) -> str:
        return self.line.split()[1]

    @property
    def is_object(self) -> bool:
        """Whether the bytes of an object are asked for."""
        return self.method == "GET" and "list-type=2" not in self.path and "uploads" not in self.path


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str, value: str | None) -> Answer:
        """With this header instead of its own; None: without it."""
        kept = tuple(header for header in self.headers if header[0].lower() != name.lower())
        return replace(self, headers=kept if value is None else (*kept, (name, value)))

    def with_body(self, body: bytes) -> Answer:
        return replace(self.header("Content-Length", str(len(body))), body=body)

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Answer", *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def made(status: int, body: bytes, *headers: tuple[str, str], kind: str = "application/xml") -> Answer:
    return Answer(status, (("Content-Type", kind), *headers), b"").with_body(body)


class Elsewhere(Listener):
    """The other host: it answers nothing."""

    def serve(self, client: socket.socket) -> None:
        while data := client.recv(1 << 16):
            self.keep(data)


class HostileS3(Listener):
    """Does `harm` to each request from the `step`-th to the `last`-th, counted from 0; step None: to none.

    requests: the first line of each. met: those that were harmed.
    """

    def __init__(self, port: int, step: int | None = None, harm: str = "", *, last: int | None = None) -> None:
        self._port, self._harm = port, harm
        self._harmed = range(0) if step is None else range(step, (step if last is None else last) + 1)
        self.requests: list[str] = []
        self.met: list[str] = []
        self.elsewhere = Elsewhere()
        super().__init__()
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def __exit__(self, *error: object) -> None:
        self.elsewhere.__exit__(None, None, None)
        super().__exit__(None, None, None)

    def serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        file = client.makefile("rb")
        while line := file.readline().decode("latin-1").strip():
            with self._lock:
                step = len(self.requests)
                self.requests.append(line)
                if mine := step in self._harmed:
                    self.met.append(line)
            request = self._read(client, file, line)
            if mine:
                if not self._spoil(client, request):
                    return
                continue
            answer = self._ask(request)
            client.sendall(answer.head() + (b"" if request.method == "HEAD" else answer.body))

    def _read(self, client: socket.socket, file: object, line: str) -> Request:
        headers = {}
        while text := file.readline().decode("latin-1").strip():
            name, _, value = text.partition(":")
            headers[name] = value.strip()
        lower = {name.lower(): value for name, value in headers.items()}
        if "100-continue" in lower.get("expect", ""):
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = file.read(int(lower.get("content-length", 0)))
        return Request(line, {name: value for name, value in headers.items() if name.lower() != "expect"}, body)

    def _ask(self, request: Request) -> Answer:
        upstream = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            upstream.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(request.body or None)
            found = upstream.getresponse()
            body = found.read()
            answer = Answer(found.status, tuple(found.getheaders()), body).header("Transfer-Encoding", None)
            return answer if request.method == "HEAD" or found.status == 204 else answer.with_body(body)
        finally:
            upstream.close()

    def _spoil(self, client: socket.socket, request: Request) -> bool:
        """Whether the connection goes on."""
        if self._harm in LOST:
            client.sendall({"cut": b"", "not HTTP": b"\0\x16\xff nonsense\r\n\r\n"}[self._harm])
            return False
        if self._harm == "answer lost":
            self._ask(request)
            return False
        if self._harm == "silence":
            self.pause(PATIENCE_S)
            return False
        answer = MADE_UP[self._harm](self) if self._harm in MADE_UP else self._ask(request)
        if self._harm in LATE or (self._harm in DAMAGES and request.is_object):
            answer = (DAMAGES | LATE)[self._harm](answer)
        return self._send(client, request, answer)

    def _send(self, client: socket.socket, request: Request, answer: Answer) -> bool:
        body = b"" if request.method == "HEAD" else answer.body
        half = body[: len(body) // 2]
        if self._harm == "truncated":
            client.sendall(answer.head() + half)
            return False
        if self._harm == "too long":
            client.sendall(answer.header("Content-Length", str(len(answer.body) + 10)).head() + body)
            return False
        if self._harm == "no length":
            client.sendall(answer.header("Content-Length", None).header("Connection", "close").head() + half)
            return False
        client.sendall(answer.head() + body)
        return True

    def __enter__(self) -> HostileS3:
        return self


LOST = ("cut", "not HTTP")
"""Nothing that is an answer."""

MADE_UP: dict[str, Callable[[HostileS3], Answer]] = {
    "busy": lambda _: made(503, _error("SlowDown")),
    "denied": lambda _: made(403, _error("AccessDenied")),
    "not found page": lambda _: made(404, PAGE, kind="text/html"),
    "redirect": lambda at: made(307, PAGE, ("Location", f"http://127.0.0.1:{at.elsewhere.port}/x"), kind="text/html"),
    "moved": lambda at: made(301, PAGE, ("Location", f"https://127.0.0.1:{at.elsewhere.port}/x"), kind="text/html"),
}
"""Answers of a gateway, not of the store."""


def _flipped(answer: Answer) -> Answer:
    middle = len(answer.body) // 2
    return answer.with_body(
        answer.body[:middle] + bytes(byte ^ 1 for byte in answer.body[middle : middle + 1]) + answer.body[middle + 1 :]
    )


DAMAGES: dict[str, Callable[[Answer], Answer]] = {
    "too short": lambda answer: answer.with_body(answer.body[: len(answer.body) // 2]),
    "flipped": _flipped,
    "whole": lambda answer: replace(answer, status=200) if answer.status == 206 else answer,
}
"""To the bytes of objects."""
LATE: dict[str, Callable[[Answer], Answer]] = {
    "no such upload": lambda _: made(404, _error("NoSuchUpload")),
    "wants checksums": lambda _: made(400, _error("InvalidRequest")),
}
"""What a server truly answers that is asked again, since its first answer was lost; and where objects have locks."""
SENT = ("truncated", "too long", "no length", "silence", "answer lost")
HARMS = (*LOST, *MADE_UP, *DAMAGES, *SENT)


@dataclass
class Watched:
    """Runs a call in a thread, so that one that hangs is noticed."""

    GIVE_UP_S: ClassVar[float] = 60.0
    result: object = None
    error: BaseException | None = None
    hangs: bool = False

    @classmethod
    def of(cls, work: Callable[[], object]) -> Watched:
        watched = cls()

        def run() -> None:
            try:
                watched.result = work()
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                watched.error = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        with suppress(RuntimeError):
            thread.join(cls.GIVE_UP_S)
        watched.hangs = thread.is_alive()
        return watched
