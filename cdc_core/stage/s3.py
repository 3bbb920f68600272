"""A stage in an S3 bucket, by boto3: conditional puts, multipart uploads, ranged reads.

It may assume a server that does not lie (docs/security.md has the threat model), and that honours `If-None-Match: *` on
PutObject and CompleteMultipartUpload (`check_writable` proves the first). Answers may be lost, late, cut off or damaged
on their way, and what answers may be a gateway instead. botocore's standard retries run below every call.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.parsers import ResponseParserError

from cdc_core.errors import LockstepError, Refused, RetryLater, UsageError
from cdc_core.stage.objects import Leftover, ObjectInfo, checked_path, missing

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MULTIPART_BYTES = 16 << 20
"""Files above this go up in pieces of at least this size."""
_PIECES_AT_ONCE = 4
_READ_AHEAD = 1 << 20
_CONFLICTS = 10
SILENCE_S = 60.0
"""How long the endpoint may send nothing."""
TRIES = 5
_MD5 = re.compile(r"[0-9a-f]{32}")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

_TAKEN = frozenset({"PreconditionFailed", "412"})
_CONFLICT = frozenset({"ConditionalRequestConflict", "409"})
_ENDED = "NoSuchUpload"
_ABSENT = frozenset({"NoSuchKey", "NotFound", "404", _ENDED})
_DENIED = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403", "Forbidden",
     "AuthorizationHeaderMalformed", "AllAccessDisabled", "AccountProblem"}
)  # fmt: skip
_PASSING = frozenset(
    {"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "OperationAborted",
     "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"}
)  # fmt: skip
"""Errors after which the same request may succeed."""


class S3Store:
    """See the module's docstring; `uri` is `s3://bucket` or `s3://bucket/prefix`."""

    def __init__(self, uri: str, *, endpoint: str | None = None, region: str = "us-east-1") -> None:
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        if not bucket:
            raise UsageError(
                f"{uri!r} does not name a bucket.",
                code="config.invalid",
                remedy="write stage.uri as s3://bucket or s3://bucket/prefix",
            )
        self._uri = uri
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._endpoint = endpoint
        config = Config(
            retries={"mode": "standard", "max_attempts": TRIES},
            connect_timeout=10,
            read_timeout=SILENCE_S,
            max_pool_connections=16,
            s3={"addressing_style": "path"} if endpoint else {},
            # The manifest has a sha256 of every part; not all servers other than AWS know the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self._client: S3Client = boto3.session.Session().client(
            "s3", endpoint_url=endpoint, region_name=region, config=config
        )
        if endpoint:
            self._client.meta.events.register_first("needs-retry.s3", _refuse_redirect)

    @property
    def uri(self) -> str:
        return self._uri

    def put(self, path: str, data: bytes) -> None:
        with self._calling(path):
            self._client.put_object(Bucket=self._bucket, Key=self._key(path), Body=data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        key = self._key(path)
        return self._conditionally(
            path, lambda: self._client.put_object(Bucket=self._bucket, Key=key, Body=data, IfNoneMatch="*")
        )

    def put_new_file(self, path: str, local: Path) -> bool:
        """Copies a file of any size; False if the path exists."""
        if local.stat().st_size <= MULTIPART_BYTES:
            return self.put_if_absent(path, local.read_bytes())
        with local.open("rb") as file:
            return _Upload(self, path, file.fileno()).complete(local.stat().st_size)

    def open_output(self, paths: Iterable[str], scratch: Path) -> S3Output:
        return S3Output(self, paths, scratch)

    def settle(self, paths: Sequence[str]) -> None:
        """A put is durable when it is answered."""

    def get(self, path: str) -> bytes:
        etag, data = self._get(path)
        # Where objects are encrypted, or were uploaded in pieces, their ETags are no checksums of their bytes: then the
        # bytes are the same again.
        differs = _MD5.fullmatch(etag) and etag != hashlib.md5(data, usedforsecurity=False).hexdigest()
        if differs and self._get(path) != (etag, data):
            raise _unusable("two answers with different bytes", self._where(path))
        return data

    def _get(self, path: str) -> tuple[str, bytes]:
        """ETag and bytes."""
        with self._calling(path):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(path))
            return answer["ETag"].strip('"'), answer["Body"].read()

    def stat(self, path: str) -> ObjectInfo | None:
        with self._calling(path):
            try:
                answer = self._client.head_object(Bucket=self._bucket, Key=self._key(path))
            except ClientError as error:
                if _code(error) in _ABSENT:
                    return None
                raise
            return ObjectInfo(path, answer["ContentLength"], answer["LastModified"].timestamp())

    def open_input(self, path: str) -> BinaryIO:
        info = self.stat(path)
        if info is None:
            raise missing(path, self.uri)
        ranges = _Ranges(partial(self._read_range, path), info.size_bytes)
        return cast(BinaryIO, io.BufferedReader(ranges, _READ_AHEAD))

    def _read_range(self, path: str, start: int, stop: int) -> bytes:
        """Bytes start..stop-1."""
        with self._calling(path):
            answer = self._client.get_object(
                Bucket=self._bucket, Key=self._key(path), Range=f"bytes={start}-{stop - 1}"
            )
            data = answer["Body"].read()
            if len(data) != stop - start:  # a gateway may not know ranges, and send the whole object
                raise _unusable(f"{len(data)} bytes instead of {stop - start}", self._where(path))
            return data

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        full = self._prefix + prefix
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=full)
        with self._calling(prefix or "the stage"):
            infos = [
                ObjectInfo(item["Key"].removeprefix(self._prefix), item["Size"], item["LastModified"].timestamp())
                for page in pages
                for item in page.get("Contents", ())
            ]
        # AWS lists in this order; not every server does.
        yield from sorted(infos, key=lambda info: info.path.encode())

    def delete(self, path: str) -> None:
        with self._calling(path):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(path))

    def leftovers(self) -> Iterator[Leftover]:
        """Multipart uploads that are not finished."""
        leftovers = []
        with self._calling("multipart uploads"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                for upload in page.get("Uploads", ()):
                    path = upload["Key"].removeprefix(self._prefix)
                    leftovers.append(Leftover(path, upload["Initiated"].timestamp(), upload["UploadId"]))
        yield from leftovers

    def discard(self, leftover: Leftover) -> None:
        with self._calling(leftover.path):
            try:
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._prefix + leftover.path, UploadId=leftover.upload
                )
            except ClientError as error:
                if _code(error) not in _ABSENT:
                    raise

    def local_path(self, path: str) -> Path | None:
        return None

    def location(self, path: str) -> str:
        return f"s3://{self._bucket}/{self._key(path)}"

    def spark_uri(self, path: str) -> str:
        return f"s3a://{self._bucket}/{self._key(path)}"

    def _where(self, path: str) -> str:
        return f"{self.uri} {path}".strip()

    def _key(self, path: str) -> str:
        return self._prefix + checked_path(path)

    def _conditionally(self, path: str, call: Any) -> bool:
        """False where the condition failed. A conflict with a writer that has not finished is asked again."""
        with self._calling(path):
            for attempt in range(_CONFLICTS):
                try:
                    call()
                    return True
                except ClientError as error:
                    # An upload that has ended: the answer to an earlier try, which created the object, was lost.
                    if _code(error) in _TAKEN or (_code(error) == _ENDED and self.stat(path) is not None):
                        return False
                    if _code(error) not in _CONFLICT or attempt == _CONFLICTS - 1:
                        raise
                    time.sleep(0.05 * (attempt + 1))
        raise AssertionError("unreachable")

    @contextmanager
    def _calling(self, path: str) -> Iterator[None]:
        try:
            yield
        except LockstepError as error:
            error.where = error.where or self._where(path)
            raise
        except (ResponseParserError, KeyError) as error:
            raise _unusable(f"{type(error).__name__}: {error}", self._where(path)) from error
        except ClientError as error:
            raise self._refusal(path, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise Refused(
                f"The bucket's credentials are missing: {error}",
                where=self.uri,
                code="stage.denied",
                remedy="export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role",
            ) from None
        except (HTTPClientError, BotoCoreError, OSError) as error:
            raise RetryLater(
                f"The bucket cannot be reached: {error}",
                where=f"{self.uri} {self._endpoint or ''}".strip(),
                code="stage.unreachable",
                remedy="check stage.s3_endpoint and the network; the next attempt may succeed",
            ) from error

    def _refusal(self, path: str, error: ClientError) -> LockstepError:
        code = _code(error)
        text = error.response.get("Error", {}).get("Message", "") or code
        if code == "NoSuchBucket":
            return Refused(
                f"There is no bucket {self._bucket!r}.",
                where=self.uri,
                code="stage.denied",
                remedy="create the bucket, or fix stage.uri",
            )
        if code == "404":  # without a body that says what is missing: HeadObject's answers do not come here
            return _unusable(f"HTTP 404 without an S3 error code: {text}", self._where(path))
        if code == _ENDED:
            return _unusable(f"an unfinished upload has disappeared: {text}", self._where(path))
        if code in _ABSENT:
            return missing(path, self.uri)
        if code in _DENIED:
            return Refused(
                f"The server refused the credentials or the action ({code}): {text}",
                where=f"{self.uri} {path}",
                code="stage.denied",
                remedy="check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, that they may get, put, list and delete in "
                "the bucket, and that no rule of the bucket forbids it: a policy that demands an encryption header "
                "(set the bucket's default encryption instead), or an object lock",
            )
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if 400 <= status < 500 and status not in (408, 409, 429) and code not in _PASSING and not code.isdigit():
            return Refused(
                f"The bucket refuses the request ({code}): {text}",
                where=f"{self.uri} {path}",
                code="stage.denied",
                remedy="change the rule of the bucket that the message names, or use another bucket. A bucket with an "
                "object lock demands checksums that Lockstep does not send",
            )
        return RetryLater(
            f"The server answered {code}: {text}",
            where=f"{self.uri} {path}",
            code="stage.unreachable",
            remedy="check the server's state; the next attempt may succeed",
        )


class _Upload:
    """A multipart upload of a file that may still grow; nothing is visible, and nothing stays, unless it is completed.

    Pieces are uploaded in threads, so that the file's writer need not wait; pieces that wait are on disk.
    """

    def __init__(self, store: S3Store, path: str, descriptor: int) -> None:
        self.path = path
        self._store = store
        self._descriptor = descriptor
        self._where: dict[str, Any] = {"Bucket": store._bucket, "Key": store._key(path)}
        self._pool = ThreadPoolExecutor(_PIECES_AT_ONCE)
        self._pieces: list[Future[Any]] = []
        self._sent = 0
        self._client = store._client
        with store._calling(path):
            self._id = self._client.create_multipart_upload(**self._where)["UploadId"]

    def grown(self, size: int) -> None:
        """The file now has this many bytes: whole pieces are uploaded. They grow, because there are at most 10,000."""
        while size - self._sent >= (piece := max(MULTIPART_BYTES, self._sent // 100)):
            self._submit(piece)

    def complete(self, size: int) -> bool:
        """Uploads the rest and creates the object; False if the path is taken. Without success nothing is left."""
        done = False
        try:
            self.grown(size)
            if size > self._sent:
                self._submit(size - self._sent)
            with self._store._calling(self.path):
                parts = [piece.result() for piece in self._pieces]
            done = self._store._conditionally(
                self.path,
                lambda: self._client.complete_multipart_upload(
                    **self._where,
                    UploadId=self._id,
                    MultipartUpload={"Parts": parts},
                    IfNoneMatch="*",
                ),
            )
            return done
        finally:
            self._pool.shutdown()
            if not done:
                self.abort()

    def abort(self) -> None:
        """May be called more than once, not after success."""
        self._pool.shutdown(cancel_futures=True)  # a piece that arrives later would stay
        with self._store._calling(self.path):
            try:
                self._client.abort_multipart_upload(**self._where, UploadId=self._id)
            except ClientError as error:
                if _code(error) not in _ABSENT:
                    raise

    def _submit(self, size: int) -> None:
        self._pieces.append(self._pool.submit(self._send, len(self._pieces) + 1, self._sent, size))
        self._sent += size

    def _send(self, number: int, start: int, size: int) -> Any:
        piece = _Ranges(lambda low, high: os.pread(self._descriptor, high - low, start + low), size)
        body = cast(BinaryIO, piece)
        with self._store._calling(self.path):
            answer = self._client.upload_part(**self._where, UploadId=self._id, PartNumber=number, Body=body)
            return {"ETag": answer["ETag"], "PartNumber": number}


class S3Output:
    """A PartOutput that grows in a scratch file; a large one is uploaded while it grows."""

    def __init__(self, store: S3Store, paths: Iterable[str], scratch: Path) -> None:
        from tempfile import NamedTemporaryFile

        self._store = store
        self._paths = iter(paths)
        self._size = 0
        self._upload: _Upload | None = None
        self._published: str | None = None
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            self._file = NamedTemporaryFile(dir=scratch, prefix="part-", suffix=".parquet", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise _scratch_full(scratch, error) from error

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data)
        try:
            while len(view):
                view = view[self._file.write(view) :]
        except OSError as error:
            raise _scratch_full(Path(self._file.name).parent, error) from error
        self._size += len(data)
        if self._upload is None and self._size > MULTIPART_BYTES:
            self._upload = _Upload(self._store, next(self._paths), self._file.fileno())
        if self._upload is not None:
            self._upload.grown(self._size)
        return len(data)

    def publish(self, *, settled: bool = True) -> str:
        upload, self._upload = self._upload, None
        if upload is not None and upload.complete(self._size):
            self._published = upload.path
        else:
            local = Path(self._file.name)
            free = (path for path in self._paths if self._store.put_new_file(path, local))
            self._published = next(free, None)
        if self._published is None:
            raise ValueError("no free name among the given paths")
        self._file.close()
        return self._published

    def discard(self) -> None:
        if self._upload is not None:
            self._upload.abort()
            self._upload = None
        self._file.close()
        if self._published is not None:
            self._store.delete(self._published)


class _Ranges(io.RawIOBase):
    """A seekable file of which every read is `read(start, stop)`."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        if stop <= self._at:
            return 0
        data = self._read(self._at, stop)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _refuse_redirect(response: Any = None, **_: Any) -> None:
    """botocore would ask the same endpoint for the bucket's region, be redirected again, and never end."""
    answer = response[0] if response else None
    if answer is not None and answer.status_code in _REDIRECTS:
        raise RetryLater(
            f"The bucket's endpoint redirects to {str(answer.headers.get('Location', 'another host'))[:200]!r} "
            f"(HTTP {answer.status_code}); Lockstep sends its requests nowhere else.",
            code="stage.unreachable",
            remedy="set stage.s3_endpoint, with http or https, and stage.s3_region to those where the bucket is; check "
            "what answers there: a proxy may",
        )


def _unusable(what: str, where: str) -> RetryLater:
    return RetryLater(
        f"The bucket's endpoint gave an answer that cannot be right: {what}.",
        where=where,
        code="stage.unreachable",
        remedy="check what answers at stage.s3_endpoint: a proxy or a gateway may; the next attempt may succeed",
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _scratch_full(scratch: Path, error: OSError) -> RetryLater:
    return RetryLater(
        f"Cannot write the scratch directory: {error.strerror or error}.",
        where=str(scratch),
        code="disk.error",
        remedy="free some space there, or set TMPDIR to a directory with enough space; then run again",
    )
