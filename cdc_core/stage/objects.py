"""The store of a stage: the small interface that a directory and a bucket share, and the probe that both must pass.

Paths are relative to the stage's root, with '/' between segments. A path is visible whole or not at all (except an
PartOutput: no reader may look for it before its manifest names it), and what a call has put is durable when it returns.

Errors of every store: RetryLater (disk.error, stage.unreachable), Refused
(stage.denied, stage.unsuitable), DataAtRisk (stage.damaged), InternalError
(internal.defect).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from cdc_core.errors import DataAtRisk, FilesLost, Refused, defect


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """`modified` is in seconds since 1970, by the store's clock."""

    path: str
    size_bytes: int
    modified: float


class PartOutput(Protocol):
    """A file being written. It counts only after `publish`; `discard` leaves nothing of it, before or after."""

    def write(self, data: bytes | memoryview) -> int: ...

    def publish(self, *, settled: bool = True) -> str:
        """Makes it durable under the first of its names that was free; returns that path.

        settled: False if `ObjectStore.settle` follows before the path is used; its file is closed anyway, so that there
        may be many.
        """

    def discard(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a killed writer may have left that no listing shows: a temporary file, or an unfinished multipart upload.

    path: of an upload what it would become, of a temporary file its own. upload: the upload's id, "" for a file.
    modified: as in ObjectInfo; of an upload when it began.
    """

    path: str
    modified: float
    upload: str = ""


class ObjectStore(Protocol):
    """See the module's docstring."""

    @property
    def uri(self) -> str:
        """The root, as the pipeline names it."""

    def put(self, path: str, data: bytes) -> None:
        """Writes or replaces."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Writes unless the path exists; of any number of writers exactly one gets True.

        False may also mean that this very call succeeded and its answer was lost: read the path to know.
        """

    def open_output(self, paths: Iterable[str], scratch: Path) -> PartOutput:
        """A file to be written under the first free of `paths`; `scratch` is a local directory for what needs one."""

    def settle(self, paths: Sequence[str]) -> None:
        """Makes everything that was published with settled=False durable, together."""

    def get(self, path: str) -> bytes: ...

    def stat(self, path: str) -> ObjectInfo | None: ...

    def open_input(self, path: str) -> BinaryIO:
        """A seekable file that pyarrow reads; only what is asked for is fetched."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The paths that begin with the prefix, as text, in the order of UTF-8 bytes."""

    def delete(self, path: str) -> None:
        """Removes a path; a missing one is not an error."""

    def leftovers(self) -> Iterator[Leftover]: ...

    def discard(self, leftover: Leftover) -> None:
        """Removes it; one that is gone is not an error."""

    def local_path(self, path: str) -> Path | None:
        """The file of a store that is a directory; None for others."""

    def location(self, path: str) -> str:
        """Where it is, as DuckDB, pandas and pyarrow open it: an absolute path, or an s3:// URI; nothing is escaped."""

    def spark_uri(self, path: str) -> str:
        """As Hadoop's file systems read it: `file:` or `s3a:`, nothing percent-encoded beyond the path itself."""


def checked_path(path: str) -> str:
    """The path itself. Raises InternalError (internal.defect) for one that could leave the root or be ambiguous."""
    if not path or any(segment in ("", ".", "..") for segment in path.split("/")) or "\0" in path:
        raise defect(f"{path!r} is not a path of a stage.")
    return path


def find(store: ObjectStore, path: str) -> bytes | None:
    """The contents of a path; None if it does not exist."""
    try:
        return store.get(path)
    except FilesLost:
        return None


def missing(path: str, where: str) -> DataAtRisk:
    """The error for a missing path that should exist."""
    return FilesLost(
        f"{path} is not in the stage.",
        where=where,
        remedy="run `lockstep stage verify`; restore the file from a backup of the stage, or copy its tables again",
    )


def check_writable(store: ObjectStore) -> None:
    """Proves on a path of its own that the store writes, reads, lists, deletes and honours put-if-absent.

    Raises Refused (stage.unsuitable) where a second put-if-absent wins too, else the store's own errors.
    """
    path = f".probe/{uuid.uuid4().hex}"
    data = uuid.uuid4().bytes
    try:
        first = store.put_if_absent(path, data)
        second = store.put_if_absent(path, b"second")
        if not first or second or store.get(path) != data:
            raise Refused(
                "The store lets a second writer overwrite files that must be written only once.",
                where=store.uri,
                code="stage.unsuitable",
                remedy="use a store that honours `If-None-Match: *` on PUT (AWS S3, s3proxy, versitygw, recent MinIO), "
                "or a local directory",
            )
        if [info.path for info in store.list(path)] != [path]:
            raise missing(path, store.uri)
    finally:
        store.delete(path)
