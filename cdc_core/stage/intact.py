"""Whether the bytes of a part are still those that its batch staged, by its size and sha256.

Parquet has no checksum that every reader verifies: about one in ten changed bits reads as another value, without any
error. So each reader of Lockstep compares a part with its manifest before it uses a row of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Protocol

from cdc_core.errors import DataAtRisk
from cdc_core.stage.objects import ObjectStore, missing

_CHUNK = 1 << 20
_AT_ONCE = 4
"""Files that are read at once: hashing releases the interpreter's lock, and a bucket answers slowly."""


class StagedBytes(Protocol):
    """A part, as its manifest or a plan lists it."""

    @property
    def path(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...


def require_intact(store: ObjectStore, parts: Iterable[StagedBytes]) -> None:
    """Raises DataAtRisk (stage.missing, stage.damaged) for the first part that is gone or has other bytes."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sha256") as pool:
        for _ in pool.map(lambda part: _require(store, part), {part.path: part for part in parts}.values()):
            pass


def _require(store: ObjectStore, part: StagedBytes) -> None:
    info = store.stat(part.path)
    if info is None:
        raise missing(part.path, store.uri)
    if info.size_bytes != part.size_bytes:
        raise damaged(store, part, f"has {info.size_bytes} bytes; its batch staged {part.size_bytes}")
    with store.open_input(part.path) as file:
        require_hash(store, part, digest(file))


def digest(file: BinaryIO) -> str:
    """The sha256 of a file's bytes, hex."""
    found = hashlib.sha256()
    while data := file.read(_CHUNK):
        found.update(data)
    return found.hexdigest()


def require_hash(store: ObjectStore, part: StagedBytes, sha256: str) -> None:
    """Raises DataAtRisk (stage.damaged) if these are not the bytes that were staged."""
    if sha256 != part.sha256:
        raise damaged(store, part, "has another sha256 than its batch staged")


def damaged(store: ObjectStore, part: StagedBytes, how: str) -> DataAtRisk:
    return DataAtRisk(
        f"The staged file {part.path} {how}.",
        where=f"{store.uri} {part.path}",
        code="stage.damaged",
        remedy="restore the file from a backup of the stage, else copy its table again; `lockstep stage verify --deep` "
        "lists every such file",
    )
