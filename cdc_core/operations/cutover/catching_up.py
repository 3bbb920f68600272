"""The runs that a cutover makes: from the end of the sources' logs to the closed ledger."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cdc_core.errors import RetryLater
from cdc_core.model.position import Position
from cdc_core.operations.cutover.clock import Laps
from cdc_core.operations.cutover.work import CutoverWork
from cdc_core.operations.extract.side_by_side import extract_sources
from cdc_core.operations.open_pipeline import Progress
from cdc_core.operations.pipeline_run import apply


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A run. staged: changes that it read from the sources. reached: up to where, by source. took_s: from the end of
    the logs, as it was at the beginning, to the closed ledger. steps_s: seconds of each of its steps."""

    staged: int
    reached: Mapping[str, Position]
    took_s: float
    steps_s: Mapping[str, float]


def catch_up(work: CutoverWork) -> CaughtUp:
    """Reads the sources up to now, and applies all that is staged to the targets.

    Raises RetryLater (run.taken_over) if another run keeps batches, and what extracting and applying raise.
    """
    began_s, laps = time.monotonic(), Laps()
    laps.begin("extract")
    extracted = extract_sources(work.opened)
    targets = [target.name for target in work.targets]
    apply(replace(work.opened, progress=_TimedSteps(laps)), work.spark, "cutover", targets=targets)
    view = work.meta.plans.find("", [source.name for source in work.pipeline.sources], targets, None)
    if any(view.pending.values()):
        raise RetryLater(
            "Batches are left that another run has taken and not committed.",
            where=work.opened.name,
            code="run.taken_over",
            remedy="pause the pipeline's DAG, and wait for its runs to end",
        )
    staged = sum(result.staged.rows for result in extracted.values())
    reached = {source: result.position for source, result in extracted.items()}
    return CaughtUp(staged, reached, time.monotonic() - began_s, laps.until_now())


class _TimedSteps(Progress):
    """Measures the tasks of a run, whatever their target."""

    def __init__(self, laps: Laps) -> None:
        self._laps = laps

    def step(self, name: str) -> None:
        self._laps.begin(name.rpartition(": ")[2])
