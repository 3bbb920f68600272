"""How requests to a bucket travel: each ends within a time that its size allows, and follows no redirect.

botocore's timeouts start again with every byte, so an endpoint that drips them holds a request for ever; and it waits
without end for the rest of a `100 Continue`. So its connections are replaced by those of this module, which have a
deadline for sending and one for the answer, and expect no `100 Continue`. Retries are botocore's.

With `stage.s3_endpoint`, a redirect is an error: botocore would ask the same endpoint for the bucket's region, be
redirected again, and never end.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import TYPE_CHECKING, Any

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

from cdc_core.errors import RetryLater

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SILENCE_S = 60.0
"""How long an endpoint may send nothing."""
REQUEST_S = 120.0
"""How long one try may send, and how long its answer may take, beyond the time for their bytes."""
TRIES = 5
MIN_BYTES_PER_S = 64 << 10
MAX_ANSWER_BYTES = 1 << 30
"""More than any listing, any manifest and any range that is read at once."""
_BLOCK = 64 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


def bound(client: S3Client, *, endpoint: str | None) -> None:
    """Gives a new client connections with deadlines; and with `endpoint`, no redirects."""
    session: Any = client._endpoint.http_session  # type: ignore[attr-defined]
    session._pool_classes_by_scheme.update(http=_Pool, https=_TlsPool)
    if endpoint:
        client.meta.events.register_first("needs-retry.s3", _refuse_redirect)


def _refuse_redirect(response: Any = None, **_: Any) -> None:
    answer = response[0] if response else None
    if answer is not None and answer.status_code in _REDIRECTS:
        raise RetryLater(
            f"The bucket's endpoint redirects to {str(answer.headers.get('Location', 'another host'))[:200]!r} "
            f"(HTTP {answer.status_code}); Lockstep sends its requests nowhere else.",
            code="stage.unreachable",
            remedy="set stage.s3_endpoint, with http or https, and stage.s3_region to those where the bucket is; check "
            "what answers there: a proxy or the login page of a network may",
        )


class _Reader(io.RawIOBase):
    """The bytes of one answer, until its deadline."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._ends = time.monotonic() + REQUEST_S
        self._left = MAX_ANSWER_BYTES

    def expect(self, size: int) -> None:
        """So many bytes are to come."""
        if size > MAX_ANSWER_BYTES:
            raise http.client.HTTPException(f"an answer of {size} bytes")
        self._ends += size / MIN_BYTES_PER_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer took too long")
        self._socket.settimeout(min(SILENCE_S, left_s))
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise ConnectionError("an answer without an end")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    """Reads by a _Reader."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self._reader = _Reader(sock)
        self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        super().begin()
        if self.length:
            self._reader.expect(self.length)


class _Bounded:
    """Mixed into a connection of botocore's."""

    response_class: Any = _Answer

    def request(self, method: str, url: str, body: Any = None, headers: Any = None, *more: Any, **options: Any) -> None:
        headers = {name: value for name, value in (headers or {}).items() if name.lower() != "expect"}
        size = int(headers.get("Content-Length", 0))
        self._ends = time.monotonic() + REQUEST_S + size / MIN_BYTES_PER_S
        super().request(method, url, body, headers, *more, **options)  # type: ignore[misc]

    def send(self, data: Any) -> None:
        """In blocks: a socket's timeout is for all that it is given at once."""
        if not isinstance(data, bytes | bytearray | memoryview):
            super().send(data)  # type: ignore[misc]
            return
        view = memoryview(data)
        for start in range(0, len(view), _BLOCK):
            if time.monotonic() > self._ends:
                raise TimeoutError("the request took too long")
            super().send(view[start : start + _BLOCK])  # type: ignore[misc]


class _Connection(_Bounded, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _TlsConnection(_Bounded, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _Pool(AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(AWSHTTPSConnectionPool):
    ConnectionCls = _TlsConnection
