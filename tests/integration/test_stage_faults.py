"""A bucket behind a network that fails: what was written is there once and whole after any single failure of a request,
or the error is worth a retry and nothing is left."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import RetryLater
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.s3 import MULTIPART_BYTES
from cdc_core.stage.stores import open_store

BUSY = (
    b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Type: application/xml\r\nContent-Length: 70\r\n\r\n"
    b"<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"
)
FAULTS = ("cut before", "cut in the middle", "cut after", "busy")
"""The request never arrives; arrives in part; arrives whole, and its answer is lost; is refused for now."""


class Network:
    """A proxy that harms the first requests, as many as `times`, whose first line has all of `marks`."""

    def __init__(self, port: int, fault: str, marks: tuple[bytes, ...], times: int) -> None:
        self._port, self._fault, self._marks = port, fault, marks
        self.left = self.times = times
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                harmed = threading.Event()
                for work in (self._upstream, self._downstream):
                    threading.Thread(target=work, args=(client, server, harmed), daemon=True).start()

    def _harms(self, data: bytes) -> bool:
        line = data.partition(b"\r\n")[0]
        if not line.endswith(b"HTTP/1.1") or not all(mark in line for mark in self._marks):
            return False
        with self._lock:
            self.left -= 1
            return self.left >= 0

    def _upstream(self, client: socket.socket, server: socket.socket, harmed: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self._harms(data):
                    if self._fault == "busy":
                        client.sendall(BUSY)
                    if self._fault in ("busy", "cut before"):
                        break
                    harmed.set()
                elif harmed.is_set() and self._fault == "cut in the middle":
                    server.sendall(data[: len(data) // 2])
                    break
                server.sendall(data)
        _end(client, server)

    def _downstream(self, client: socket.socket, server: socket.socket, harmed: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if harmed.is_set() and not data.startswith(b"HTTP/1.1 100"):
                    break
                client.sendall(data)
        _end(client, server)


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)


@pytest.fixture
def bucket(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    return str(s3_server.create_bucket(f"stage-{uuid.uuid4().hex}"))


Open = Callable[[str, tuple[bytes, ...], int], ObjectStore]


@pytest.fixture
def behind(bucket: str, s3_server: Any) -> Iterator[Open]:
    networks: list[Network] = []

    def opened(fault: str, marks: tuple[bytes, ...], times: int) -> ObjectStore:
        port = int(s3_server.endpoint.rpartition(":")[2])
        networks.append(Network(port, fault, marks, times))
        return open_store(f"s3://{bucket}/x", s3_endpoint=networks[-1].endpoint)

    yield opened
    for network in networks:
        network.close()
        assert network.left < network.times, "no request was harmed"


def uploads(s3_server: Any, bucket: str) -> list[Any]:
    return list(s3_server.client().list_multipart_uploads(Bucket=bucket).get("Uploads", ()))


LARGE = bytes(range(256)) * (MULTIPART_BYTES // 256 * 2 + 5)
REQUESTS = {
    "begin": (b"POST", b"uploads"),
    "piece": (b"PUT", b"partNumber=2"),
    "end": (b"POST", b"uploadId="),
}


EACH = [(fault, request) for fault in FAULTS for request in REQUESTS]


def sampled(*chosen: tuple[str, str]) -> list[Any]:
    return [one if one in chosen else pytest.param(*one, marks=pytest.mark.matrix) for one in EACH]


@pytest.mark.parametrize(("fault", "request_"), sampled(("cut after", "end"), ("busy", "piece")))
def test_a_large_file_is_published_whole_whichever_request_fails_once(
    behind: Open, s3_server: Any, bucket: str, tmp_path: Path, fault: str, request_: str
) -> None:
    store = behind(fault, REQUESTS[request_], 1)
    output = store.open_output(iter(["m/a", "m/b"]), tmp_path)
    output.write(LARGE)
    path = output.publish()
    direct = open_store(f"s3://{bucket}/x", s3_endpoint=s3_server.endpoint)
    assert direct.get(path) == LARGE
    assert [one for one in uploads(s3_server, bucket) if request_ != "begin"] == []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("if_absent", [False, True])
def test_what_is_put_is_there_whole_or_is_taken_by_itself(
    behind: Open, s3_server: Any, bucket: str, fault: str, if_absent: bool
) -> None:
    store = behind(fault, (b"PUT",), 1)
    body = b"x" * 300_000
    done = store.put_if_absent("m/a", body) if if_absent else store.put("m/a", body)
    direct = open_store(f"s3://{bucket}/x", s3_endpoint=s3_server.endpoint)
    assert direct.get("m/a") == body
    assert done is not False or fault == "cut after", "only a repeated request may find its own object"


@pytest.mark.matrix
@pytest.mark.parametrize("fault", ["cut before", "cut after", "busy"])
def test_a_read_or_a_listing_that_fails_once_is_whole(behind: Open, s3_server: Any, bucket: str, fault: str) -> None:
    direct = open_store(f"s3://{bucket}/x", s3_endpoint=s3_server.endpoint)
    client = s3_server.client()
    for number in range(1003):
        client.put_object(Bucket=bucket, Key=f"x/m/{number:04}", Body=b"1")
    direct.put("big", LARGE)
    assert behind(fault, (b"GET", b"/x/big"), 1).get("big") == LARGE
    listed = [one.path for one in behind(fault, (b"GET", b"continuation-token"), 1).list("m/")]
    assert listed == [f"m/{number:04}" for number in range(1003)]


@pytest.mark.parametrize(("fault", "request_"), sampled(("busy", "end")))
def test_a_bucket_that_fails_for_good_is_worth_a_retry_and_shows_nothing(
    behind: Open, s3_server: Any, bucket: str, tmp_path: Path, fault: str, request_: str,
) -> None:  # fmt: skip
    store = behind(fault, REQUESTS[request_], 1_000)
    output = store.open_output(iter(["m/a"]), tmp_path)

    def publish() -> None:
        output.write(LARGE)
        output.publish()

    with pytest.raises(RetryLater) as caught:
        publish()
    assert caught.value.code == "stage.unreachable"
    with suppress(RetryLater):
        output.discard()
    direct = open_store(f"s3://{bucket}/x", s3_endpoint=s3_server.endpoint)
    left = [(one.path, direct.get(one.path) == LARGE) for one in direct.list("m/")]
    assert left == (
        [("m/a", True)] if (fault.startswith("cut"), request_) == (True, "end") and fault != "cut before" else []
    )
