"""Applies the staged history to a new target, some batches at a time, until it has everything that is staged.

Each time is an ordinary run: it claims batches, its ledger must add up, and its commit moves the consume records. So a
kill loses at most the run under way, and the next one continues where records say that the target is. Scheduled runs
leave the target alone until it is filled (replay_only). No source is read, and no other target.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from cdc_core.config import Pipeline
from cdc_core.errors import LeaseHeld, RetryLater
from cdc_core.meta import Lease, Meta
from cdc_core.operations.apply import retention
from cdc_core.operations.apply.jobs import Spark
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.pipeline_run import apply
from cdc_core.operations.reshard.base import require_base
from cdc_core.stage import horizon as horizons

LEASE_S = 10.0


@dataclass(frozen=True, slots=True)
class Filled:
    """How much of what is staged a target has. rows: changes and copied rows of batches that it lacks."""

    batches: int
    pending: int
    rows: int

    @property
    def done(self) -> int:
        return self.batches - self.pending


def filled(meta: Meta, pipeline: Pipeline, target: str) -> Filled:
    sources = [source.name for source in pipeline.sources]
    view = meta.plans.find("", sources, [target], None)
    pending = view.pending[target]
    rows = sum(file.rows for batch in pending for file in view.files[batch])
    return Filled(sum(len(meta.batches.find(source)) for source in sources), len(pending), rows)


def filling(opened: OpenPipeline, target: str) -> AbstractContextManager[Lease]:
    """The right to fill a target. Raises RetryLater (lease.held)."""
    taken = LeaseHeld(
        f"Another process fills the target {target!r}.",
        where=f"targets.{target}",
        remedy=f"wait until it has ended or, if it is dead, {LEASE_S:g} s for its lease to expire",
    )
    key = "reshard:" + hashlib.sha256(f"{opened.name}/{target}".encode()).hexdigest()[:16]
    return opened.meta.leases.held(key, opened.holder, LEASE_S, taken=taken)


def fill(opened: OpenPipeline, spark: Spark, target: str, most_rows: int, told: Callable[[Filled], None]) -> Filled:
    """Until the target has everything that is staged.

    told: receives how far it is, before each run and in the end. Raises what runs
    and count_from_the_horizon raise.
    """
    taking = _fed(opened.pipeline, target)
    once = replace(opened, pipeline=taking)
    count_from_the_horizon(once, target)
    for number in itertools.count(1):
        now = filled(opened.meta, taking, target)
        told(now)
        if not now.pending:
            return now
        done = apply(once, spark, f"reshard-{number}", targets=[target], most_rows=most_rows)
        if not done.summaries and filled(opened.meta, taking, target) == now:
            raise RetryLater(
                f"The run {done.run_id} applied nothing to the target {target!r}: "
                f"{'; '.join(done.lost) or 'its batches are held back, perhaps by a copy that is under way'}.",
                where=f"targets.{target}",
                code="run.taken_over",
                remedy="let copies and other runs of the target end, then run the same command again",
            )
    raise AssertionError("unreachable")


def _fed(pipeline: Pipeline, target: str) -> Pipeline:
    """As if scheduled runs fed the target."""
    targets = tuple(
        one.model_copy(update={"replay_only": False}) if one.name == target else one for one in pipeline.targets
    )
    return pipeline.model_copy(update={"targets": targets})


def count_from_the_horizon(opened: OpenPipeline, target: str) -> None:
    """What was purged is not lacking: what is staged since has it. Safe to repeat. Raises Refused (stage.partial)
    where that is not so, RetryLater (lease.held: a purge, sweep or compaction)."""
    store, pipeline = opened.store, opened.pipeline
    found = [horizons.read(store, source.name) for source in pipeline.sources]
    if any(one is not None and target not in one.targets for one in found):
        # A purge since the command looked may have removed what the target needs.
        has_it = partial(require_base, store, pipeline, pipeline.target(target))
        retention.seeded(opened, target, require=has_it)
