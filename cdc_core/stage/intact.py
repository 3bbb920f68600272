"""Whether the bytes of a part are still those that its batch staged, by its size and sha256.

Parquet has no checksum that every reader verifies: about one in ten changed bits reads as another value, without any
error. So each reader of Lockstep compares a part with its manifest before it uses a row of it.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from cdc_core.errors import DataAtRisk
from cdc_core.stage.objects import ObjectStore, missing

_CHUNK = 1 << 20


class StagedBytes(Protocol):
    """A part, as its manifest or a plan lists it."""

    @property
    def path(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...


def damage(store: ObjectStore, part: StagedBytes, *, deep: bool = True) -> DataAtRisk | None:
    """What is wrong with a part (stage.damaged). deep: read it and compare its sha256, too."""
    info = store.stat(part.path)
    if info is None:
        return missing(part.path, store.uri)
    if info.size_bytes != part.size_bytes:
        return _damaged(store, part, f"has {info.size_bytes} bytes; its batch staged {part.size_bytes}")
    if not deep:
        return None
    digest = hashlib.sha256()
    try:
        with store.open_input(part.path) as file:
            while data := file.read(_CHUNK):
                digest.update(data)
    except DataAtRisk as gone:  # by a purge, since it was looked at
        return gone
    return None if digest.hexdigest() == part.sha256 else _damaged(store, part, _OTHER_BYTES)


def fetch(store: ObjectStore, part: StagedBytes, to: Path) -> None:
    """Copies a part of a bucket to a local file: its bytes are read once, for the copy and for their sha256.

    Raises DataAtRisk (stage.damaged).
    """
    digest = hashlib.sha256()
    with store.open_input(part.path) as source, to.open("wb") as copy:
        while data := source.read(_CHUNK):
            digest.update(data)
            copy.write(data)
    if digest.hexdigest() != part.sha256:
        raise _damaged(store, part, _OTHER_BYTES)


@contextmanager
def open_intact(store: ObjectStore, part: StagedBytes) -> Iterator[BinaryIO]:
    """An intact part, to be read: in place, or from a local copy as long as the context lasts.

    Raises DataAtRisk (stage.damaged).
    """
    if store.local_path(part.path) is not None:
        error = damage(store, part)
        if error is not None:
            raise error
        with store.open_input(part.path) as file:
            yield file
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        local = Path(scratch) / "part.parquet"
        fetch(store, part, local)
        with local.open("rb") as file:
            yield file


_OTHER_BYTES = "has another sha256 than its batch staged"


def _damaged(store: ObjectStore, part: StagedBytes, how: str) -> DataAtRisk:
    return DataAtRisk(
        f"The staged file {part.path} {how}.",
        where=f"{store.uri} {part.path}",
        code="stage.damaged",
        remedy="restore the file from a backup of the stage, or copy its table again; `lockstep stage verify --deep` "
        "lists every such file",
    )
