"""A pipeline opened for an operation, as a test has its parts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cdc_core.config import Pipeline
from cdc_core.meta import Meta
from cdc_core.operations.open_pipeline import OpenPipeline, Progress
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_stage


def opened(
    pipeline: Pipeline,
    meta: Meta,
    environ: Mapping[str, str] | None = None,
    progress: Any = None,
    holder: str = "me",
    store: ObjectStore | None = None,
) -> OpenPipeline:
    return OpenPipeline(
        pipeline, meta, open_stage(pipeline.stage) if store is None else store,
        os.environ if environ is None else environ, Progress() if progress is None else progress, holder,
    )  # fmt: skip


def opened_line(line: Any, environ: Mapping[str, str] | None = None) -> OpenPipeline:
    """Of something that has a pipeline, its meta database, and perhaps a store and an environment."""
    given = getattr(line, "environ", None) if environ is None else environ
    return opened(line.pipeline, line.meta, given, store=getattr(line, "store", None))


class Noted(Progress):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, name: str) -> None:
        self.steps.append(name)
