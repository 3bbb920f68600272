"""A pipeline opened for an operation, as a test has its parts."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cdc_core.config import Pipeline
from cdc_core.meta import Meta
from cdc_core.operations.open_pipeline import OpenPipeline, Progress
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_stage
from tests.lab.shell import export


def opened(
    pipeline: Pipeline,
    meta: Meta,
    environ: Mapping[str, str] = MappingProxyType({}),
    progress: Any = None,
    holder: str = "me",
    store: ObjectStore | None = None,
) -> OpenPipeline:
    """environ: is exported."""
    export(environ)
    store = open_stage(pipeline.stage) if store is None else store
    return OpenPipeline(pipeline, meta, store, Progress() if progress is None else progress, holder)


@cache
def empty_meta() -> bytes:
    """The file of a new meta database: a copy is there sooner than its tables are made."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "meta.db"
        Meta.open(f"sqlite:///{file}", "line").close()
        return file.read_bytes()


def opened_line(line: Any) -> OpenPipeline:
    """Of something that has a pipeline, its meta database, and perhaps a store and what is exported for it."""
    return opened(line.pipeline, line.meta, getattr(line, "environ", {}), store=getattr(line, "store", None))


class Noted(Progress):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, name: str) -> None:
        self.steps.append(name)
