"""Operations as functions, for scripts, notebooks and Airflow's @task. Each returns a report, and raises LockstepError.

Connections are environment variables (`env:VAR`); the connections of Airflow are for the tasks of `lockstep.airflow`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_core import config
from cdc_core.errors import UsageError
from cdc_core.model.choices import choose
from cdc_core.model.windows import to_us
from cdc_core.process.extras import require

if TYPE_CHECKING:
    from cdc_core.operations.extract import DrainResult
    from cdc_core.operations.pipeline_run import WholeRun


def extract(
    pipeline: str | Path, *, sources: Sequence[str] | None = None, until: datetime | None = None
) -> Mapping[str, DrainResult]:
    """Reads the logs of sources, all by default, and stages the changes: by source, how far it is.

    pipeline: its file. until: the moment up to which to read at least, with a time zone; None: everything that is
    committed now.
    """
    from cdc_core.operations.extract.side_by_side import extract_sources
    from cdc_core.operations.open_pipeline import open_pipeline

    parsed = config.load(Path(pipeline))
    chosen = _chosen([source.name for source in parsed.sources], sources, "source")
    with open_pipeline(parsed) as opened:
        return extract_sources(opened, chosen, until_us=_us(until))


def run(pipeline: str | Path, *, targets: Sequence[str] | None = None, until: datetime | None = None) -> WholeRun:
    """The whole pipeline, as `lockstep run`: extract, copy what is pending, and apply to targets, all by default.

    pipeline: its file. until: as of `extract`.
    """
    parsed = config.load(Path(pipeline))
    chosen = _chosen([target.name for target in parsed.targets], targets, "target")
    if not chosen:
        raise UsageError(
            "The pipeline has no targets.",
            where=str(pipeline),
            code="usage.argument",
            remedy="add one to `targets`, or use lockstep.extract, which stages only",
        )
    require("spark", "quality", by="lockstep.run")
    from cdc_core.operations import pipeline_run
    from cdc_core.operations.open_pipeline import open_pipeline
    from spark_jobs.driver import Driver

    with open_pipeline(parsed) as opened, Driver(parsed, opened.store, master=parsed.spark.master) as spark:
        return pipeline_run.run(opened, spark, "python", chosen, until_us=_us(until))


def _chosen(names: Sequence[str], wanted: Sequence[str] | None, what: str) -> list[str]:
    """Raises UsageError (usage.unknown_name) for other names, and (usage.argument) for none: who computes them must not
    get all."""
    if wanted is not None and not wanted:
        raise UsageError(
            f"No {what} is named.", where=f"{what}s", code="usage.argument", remedy="name some, or pass None for all"
        )
    return choose(names, wanted, what, f"{what}s")


def _us(until: datetime | None) -> int | None:
    """Raises UsageError (usage.argument) for a moment without a time zone."""
    if until is not None and until.tzinfo is None:
        raise UsageError(
            f"The moment {until} has no time zone.",
            where="until",
            code="usage.argument",
            remedy="give it one, such as datetime(..., tzinfo=UTC)",
        )
    return None if until is None else to_us(until)
