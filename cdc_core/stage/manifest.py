"""Manifests: the commit point of a batch, and the chain they form.

A manifest's name is the position where its batch begins, and it is written only if absent. A batch begins where the
one before ended, so the manifests of a source are one linear chain, whoever writes them: of two writers that begin at
the same place one finds the name taken. Readers go by manifests and never by a listing of parts.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow.lib as pa_lib
import pyarrow.parquet as pq

from cdc_core.errors import DataAtRisk, LockstepError
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.position import Position
from cdc_core.stage import horizon as horizons
from cdc_core.stage.layout import CHANGES, manifest_path, manifests_prefix, parse_part
from cdc_core.stage.objects import ObjectInfo, ObjectStore

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""Manifests fetched together: a bucket answers each after some milliseconds."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Committed:
    """`manifest` is the one that stands under the name; `ours` says whether it is the one that was to be committed.

    Where it is not, the caller adopts it if it still holds the lease, and stops otherwise. Its own parts are orphans
    then: BatchWriter.abort() removes them.
    """

    manifest: Manifest
    ours: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding of `verify`: `code` as the errors have it, `path` in the stage."""

    code: str
    path: str
    what: str


def commit(store: ObjectStore, manifest: Manifest) -> Committed:
    """Puts the manifest if its name is free. Its parts are durable already: `BatchWriter.finish` saw to that.

    RetryLater from the store leaves it open whether the batch counts: committing the same manifest again tells.
    """
    path = manifest_path(manifest.source, manifest.begin.position)
    data = manifest.to_bytes()
    if store.put_if_absent(path, data):
        return Committed(manifest, ours=True)
    found = store.get(path)
    ours = found == data  # an earlier attempt of ours, whose answer was lost
    if not ours:
        log.warning("source %s: batch %s was committed by another writer", manifest.source, manifest.batch_id)
    return Committed(parse(found, path, store.uri), ours)


def read(store: ObjectStore, source: str, begin: Position) -> Manifest:
    """The manifest of the batch that begins there. Raises DataAtRisk (stage.missing, stage.manifest)."""
    path = manifest_path(source, begin)
    return parse(store.get(path), path, store.uri)


def parse(data: bytes, path: str, where: str) -> Manifest:
    """A manifest from its text. Raises DataAtRisk (stage.manifest) for anything that is none."""
    try:
        return Manifest.from_bytes(data)
    except (ValueError, KeyError, TypeError, AttributeError, LockstepError) as error:
        raise DataAtRisk(
            f"{path} is no manifest that this version can read: {type(error).__name__}: {error}",
            where=where,
            code="stage.manifest",
            remedy="restore the file from a backup of the stage, or read it with the version that wrote it",
        ) from None


def chain(store: ObjectStore, source: str, after: Position | None = None) -> Iterator[Manifest]:
    """A source's manifests in stream order, each verified to begin where the one before ended.

    after: the end of the last batch that is known already; the first batch must begin there, or at the horizon.
    Raises DataAtRisk (stage.gap, stage.fork, stage.manifest, stage.horizon).
    """
    horizon = horizons.read(store, source)
    end = after if after is not None or horizon is None else horizon.position
    if after is None and horizon is not None and not any(True for _ in _from(store, source, horizon.position)):
        raise DataAtRisk(
            f"Nothing is staged from the horizon {horizon} on, where the purge left the newest batch.",
            where=f"{store.uri} {manifests_prefix(source)}",
            code="stage.gap",
            remedy="restore the manifests of this source, and their files, from a backup of the stage",
        )
    for path, manifest in _manifests(store, source, end):
        problem = _link(end, path, manifest)
        if problem is not None:
            raise DataAtRisk(
                problem.what,
                where=f"{store.uri} {path}",
                code=problem.code,
                remedy="run `lockstep stage verify`; restore the manifests that are missing, or remove those that no "
                "extractor of this pipeline wrote",
            )
        yield manifest
        end = manifest.end.position


def verify(store: ObjectStore, source: str, *, deep: bool = False) -> list[Problem]:
    """What is wrong with a source's staged batches: links of the chain, files, sizes; `deep`: sha256 and rows too."""
    problems: list[Problem] = []
    horizon = horizons.read(store, source)
    end = horizon.position if horizon is not None else None
    infos = list(_from(store, source, end))
    if horizon is not None and not infos:
        problems.append(Problem("stage.gap", manifests_prefix(source), f"Nothing is staged from {horizon} on."))
    for info in infos:
        try:
            manifest = parse(store.get(info.path), info.path, store.uri)
        except DataAtRisk as error:
            problems.append(Problem(error.code, info.path, error.what))
            continue
        problem = _link(end, info.path, manifest)
        if problem is not None:
            problems.append(problem)
        end = manifest.end.position
        for part in manifest.parts:
            problems += _check_part(store, manifest, part, deep=deep)
    return problems


def sweep(store: ObjectStore, source: str, *, live_epoch: int, older_than_s: float = 3600.0) -> list[str]:
    """Removes parts that no manifest lists; returns their paths.

    Only parts of epochs before `live_epoch`, older than `older_than_s`, whose batch begins before the chain's end:
    a paused writer that wakes up may still commit at the chain's end, and nowhere else.
    """
    old = time.time() - older_than_s
    candidates = []
    for info in store.list(CHANGES):  # before the manifests are read: what is committed meanwhile is seen there
        name = parse_part(info.path)
        if name is not None and name.source == source and name.epoch < live_epoch and info.modified <= old:
            candidates.append((info.path, name.seq))
    listed: set[str] = set()
    end = -1
    for manifest in chain(store, source):
        listed.update(part.path for part in manifest.parts)
        end = manifest.end.position.seq
    orphans = [path for path, seq in candidates if path not in listed and seq < end]
    for path in orphans:
        store.delete(path)
    left = store.discard_leftovers(older_than_s)
    log.info("source %s: swept %d orphan parts and %d leftovers of killed writers", source, len(orphans), left)
    return orphans


def _manifests(store: ObjectStore, source: str, after: Position | None) -> Iterator[tuple[str, Manifest]]:
    paths = [info.path for info in _from(store, source, after)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(paths), _AT_ONCE):
            some = paths[start : start + _AT_ONCE]
            for path, data in zip(some, pool.map(store.get, some), strict=True):
                yield path, parse(data, path, store.uri)


def _from(store: ObjectStore, source: str, place: Position | None) -> Iterator[ObjectInfo]:
    """The manifests of batches that begin at a place or later; of all, without one."""
    first = manifest_path(source, place) if place is not None else ""
    return (info for info in store.list(manifests_prefix(source)) if info.path >= first)


def _link(end: Position | None, path: str, manifest: Manifest) -> Problem | None:
    """What is wrong with a manifest's place behind a batch that ended at `end`."""
    begin, stop = manifest.begin.position, manifest.end.position
    if path != manifest_path(manifest.source, begin):
        return Problem("stage.fork", path, f"{path} holds the manifest of another place: {manifest.batch_id}.")
    if stop <= begin:
        return Problem("stage.fork", path, f"The batch at {begin} ends at {stop}: before it begins.")
    if end is None or begin == end:
        return None
    if begin < end:
        return Problem("stage.fork", path, f"A batch begins at {begin}, inside the one that ends at {end}.")
    return Problem("stage.gap", path, f"Nothing is staged from {end} to {begin}.")


def _check_part(store: ObjectStore, manifest: Manifest, part: Part, *, deep: bool) -> list[Problem]:
    info = store.stat(part.path)
    batch = manifest.batch_id
    if info is None:
        return [Problem("stage.missing", part.path, f"The part is gone; batch {batch} lists it.")]
    if part.schema_id not in manifest.schemas:
        return [Problem("stage.manifest", part.path, f"Batch {batch} lacks the definition {part.schema_id}.")]
    if info.size_bytes != part.size_bytes:
        what = f"The part has {info.size_bytes} bytes; batch {batch} says {part.size_bytes}."
        return [Problem("stage.damaged", part.path, what)]
    if not deep:
        return []
    with store.open_input(part.path) as file:
        digest = hashlib.sha256()
        while data := file.read(_CHUNK):
            digest.update(data)
        if digest.hexdigest() != part.sha256:
            return [Problem("stage.damaged", part.path, f"The part's sha256 is not what batch {batch} says.")]
        file.seek(0)
        try:
            rows = pq.ParquetFile(file).metadata.num_rows
        except pa_lib.ArrowException as error:
            return [Problem("stage.damaged", part.path, f"The part is no Parquet file: {error}")]
    if rows != part.rows:
        return [Problem("stage.damaged", part.path, f"The part has {rows} rows; batch {batch} says {part.rows}.")]
    return []
