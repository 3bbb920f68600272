"""Makes what a cutover works with of a pipeline: which target, and which way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from cdc_core import config
from cdc_core.config import WAY_BACK_SUFFIX, Pipeline, back_file
from cdc_core.meta import Meta
from cdc_core.operations.apply.jobs import Spark
from cdc_core.operations.cutover.way_back import ExistingWayBack, NewWayBack
from cdc_core.operations.cutover.work import CutoverWork, WayBack
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.stage.stores import open_stage


@contextmanager
def work_of(opened: OpenPipeline, spark: Spark, file: Path, target: str | None) -> Iterator[CutoverWork]:
    """The work of one target of a pipeline, or of all targets of a way back. file: the pipeline's.

    Raises UsageError (usage.argument, usage.unknown_name) as Pipeline.one_database.
    """
    forward = _forward_of(opened.pipeline, file)
    one_database = opened.pipeline.one_database
    targets = opened.pipeline.databases if forward is not None else (one_database(target, "lockstep cutover"),)
    jobs = {database.name: VerifyJob(opened, database) for database in targets}
    way_back: WayBack
    if forward is None:
        way_back = NewWayBack(jobs[targets[0].name], back_file(file))
        yield CutoverWork(opened, spark, tuple(targets), jobs, way_back)
        return
    there = replace(opened, pipeline=forward, meta=opened.meta.of(forward.pipeline), store=open_stage(forward.stage))
    yield CutoverWork(opened, spark, tuple(targets), jobs, ExistingWayBack(there), back=True)


def _forward_of(pipeline: Pipeline, file: Path) -> Pipeline | None:
    """The pipeline of which this is the way back; None if it is none."""
    forward = file.with_name(f"{file.stem.removesuffix(WAY_BACK_SUFFIX)}{file.suffix}")
    if not pipeline.pipeline.endswith(WAY_BACK_SUFFIX) or forward == file or not forward.is_file():
        return None
    there = config.load(forward)
    with Meta.open(there.meta.url, there.pipeline) as meta:
        cutover = meta.cutovers.latest(there.pipeline)
    return there if cutover is not None and cutover.way_back == pipeline.pipeline else None
