"""A TCP proxy on 127.0.0.1 that does to connections what networks do."""

from __future__ import annotations

import itertools
import select
import socket
import threading
from types import TracebackType
from typing import Self


class TcpProxy:
    """Passes connections on to `port`. Its wire can be cut, hold everything back, be slow, or bend bytes.

    passed: bytes that came from the server since the proxy was made.
    """

    def __init__(self, port: int) -> None:
        self._targets = itertools.cycle([port])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._old: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._still = threading.Event()
        self._slow_s = 0.0
        self._piece_bytes = 500
        self._bent = 0
        self._cut_after = 0
        self._cut_once = False
        self._refusing = False
        self.passed = 0
        self.accepted = 0
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._listener.close()
        self.cut()
        for connection in self._old:
            connection.close()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Ends all connections, on both sides."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for connection in pair:
                connection.close()

    def cut_after(self, size_bytes: int, *, once: bool = False) -> None:
        """Every connection, or the first only, ends when so many bytes came from the server; 0: none does."""
        self._cut_after, self._cut_once = size_bytes, once

    def lead_to(self, *ports: int) -> None:
        """New connections go to another server; to several in turn, as by a balancer."""
        self._targets = itertools.cycle(ports)

    def refuse(self, refusing: bool) -> None:
        """New connections are ended at once, or no longer."""
        self._refusing = refusing

    def stall(self) -> None:
        """No byte passes any more, in old and new connections, until `flow`."""
        self._still.set()

    def flow(self) -> None:
        self._still.clear()

    def half_open(self) -> None:
        """Old connections stay open, and nothing passes in them, ever; new ones work."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        self._old += [connection for pair in pairs for connection in pair]

    def slow(self, pause_s: float, piece_bytes: int = 500) -> None:
        """A piece at a time, and a pause after it."""
        self._slow_s, self._piece_bytes = pause_s, piece_bytes

    def bend(self, times: int) -> None:
        """The next pieces from the server arrive with bytes changed."""
        self._bent = times

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", next(self._targets)))
            except OSError:
                client.close()
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.append(pair)
            self._start(self._pass_on, pair)

    def _pass_on(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        left = self._cut_after
        try:
            while not self._ended.is_set():
                if self._still.is_set():
                    self._ended.wait(0.02)
                    continue
                for connection in select.select([client, server], [], [], 0.05)[0]:
                    data = connection.recv(self._piece_bytes if self._slow_s else 1 << 16)
                    if not data:
                        raise OSError
                    with self._lock:
                        if pair not in self._pairs:
                            return
                    self._ended.wait(self._slow_s)
                    if connection is server:
                        self.passed += len(data)
                        if self._cut_after and left <= len(data):
                            client.sendall(data[:left])
                            self._cut_after = 0 if self._cut_once else self._cut_after
                            raise OSError
                        left -= len(data)
                        data = self._as_it_arrives(data)
                    (server if connection is client else client).sendall(data)
        except (OSError, ValueError):
            for connection in pair:
                connection.close()

    def _as_it_arrives(self, data: bytes) -> bytes:
        if not self._bent or len(data) < 100:
            return data
        self._bent -= 1
        middle = len(data) // 2
        return data[:middle] + bytes(byte ^ 0x5A for byte in data[middle : middle + 20]) + data[middle + 20 :]
