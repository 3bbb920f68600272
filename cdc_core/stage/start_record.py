"""The start of a source: where its chain of manifests began, of which pipeline it is, and what the chain is called.
It is kept on the stage itself.

`starts/<source>.json` is put, if absent, before anything of the source is recorded or staged, and never changed or
removed. The first batch begins there; with the horizon (`stage.damaged`) it distinguishes a chain from the rest of one
whose first manifests are lost. An extractor that finds a start and nothing else begins there again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.batch import MANIFEST_VERSION
from cdc_core.model.json_codec import dumped, parsed
from cdc_core.model.position import Checkpoint
from cdc_core.stage.layout import STARTS, start_path
from cdc_core.stage.objects import ObjectStore, find
from cdc_core.stage.stage_records import reading_record

_RESTORE = "restore the file from a backup of the stage, together with what else `lockstep stage verify` misses"


@dataclass(frozen=True, slots=True)
class Start:
    """asked: `start` of the pipeline file when the source was first extracted (config.Source.start_text). name:
    random, so that targets can tell the chain from another one of the same source (ownership.py)."""

    source: str
    pipeline: str
    checkpoint: Checkpoint
    asked: str = ""
    name: str = ""

    def to_bytes(self) -> bytes:
        return dumped(self, version=MANIFEST_VERSION, indent=1)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Start:
        return parsed(cls, raw, version=MANIFEST_VERSION)


def read(store: ObjectStore, source: str) -> Checkpoint | None:
    """Where the chain began; raises what `load` does."""
    start = load(store, source)
    return None if start is None else start.checkpoint


def load(store: ObjectStore, source: str) -> Start | None:
    """None if nothing of the source was ever staged. Raises DataAtRisk (stage.damaged), Refused (install.version)."""
    path = start_path(source)
    data = find(store, path)
    if data is None:
        return None
    with reading_record(path, store.uri, "start of a chain of manifests", remedy=_RESTORE):
        start = Start.from_bytes(data)
        if start.source != source:
            raise ValueError(f"it is that of {start.source!r}")
    return start


def require_own(store: ObjectStore, source: str, pipeline: str) -> Start | None:
    """The start of the source, if there is one: its chain is that of this pipeline. Raises Refused
    (stage.other_pipeline), and what `load` does."""
    start = load(store, source)
    if start is not None and start.pipeline != pipeline:
        raise Refused(
            f"The pipeline {start.pipeline!r} staged the batches of source {source!r} on this stage, not {pipeline!r}.",
            where=f"{store.uri} {start_path(source)}",
            code="stage.other_pipeline",
            remedy="nothing was changed. Give each pipeline its own stage (stage.uri), or rename the source in one "
            "of the two pipeline files; a renamed pipeline needs its former name",
        )
    return start


def names(store: ObjectStore, sources: Iterable[str]) -> frozenset[str]:
    """What the chains of these sources are called, of those that began. Raises what `load` does."""
    return frozenset(start.name for source in sources if (start := load(store, source)) is not None)


def sources(store: ObjectStore) -> list[str]:
    """The sources of which anything was ever staged."""
    paths = (PurePosixPath(info.path) for info in store.list(STARTS))
    return [path.stem for path in paths if path.suffix == ".json" and str(path) == start_path(path.stem)]


def put(store: ObjectStore, source: str, checkpoint: Checkpoint, *, pipeline: str, asked: str = "") -> Checkpoint:
    """Writes the start unless there is one; the one that is there. Raises Refused (stage.other_pipeline)."""
    store.put_if_absent(start_path(source), Start(source, pipeline, checkpoint, asked, secrets.token_hex(8)).to_bytes())
    start = require_own(store, source, pipeline)
    assert start is not None
    return start.checkpoint


def missing_start(store: ObjectStore, source: str) -> DataAtRisk:
    """The error for a source of which something is staged, or recorded, and whose start is not on the stage."""
    return DataAtRisk(
        f"{start_path(source)} is not in the stage: nothing says where the chain of {source!r} began.",
        where=store.uri,
        code="stage.damaged",
        remedy=_RESTORE,
    )
