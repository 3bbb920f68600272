"""The extract task: each poke drains a source's log towards the end of the run's window.

mode poke        the extractor (stream, ring, lease) stays open in this process between pokes.
mode reschedule  it is opened and closed in each poke; the worker slot is free in between.

A window that is already staged according to meta is done without a connection to the source. While another task or
`lockstep extract` holds the source, a poke returns False and the next one tries again. After a kill at any moment, the
next try continues where the last durable batch ends: what was not durable is read again.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from cdc_core import config
from cdc_core.errors import LeaseHeld, LockstepError, UsageError
from cdc_core.model.coverage import lacks
from cdc_core.model.windows import CLOCK_TOLERANCE_US, MICROSECONDS, to_us
from lockstep_airflow import metrics
from lockstep_airflow.airflow_failures import as_airflow_failures
from lockstep_airflow.credentials import exported
from lockstep_airflow.run_context import abandoned_of, accepted_of, is_dry_run, window_of
from lockstep_airflow.table_assets import extracted_batches, publish_staged
from lockstep_airflow.task_pipeline import opened
from lockstep_airflow.termination import Leaving
from lockstep_airflow.window import WINDOW_END

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    from cdc_core.config import Pipeline
    from cdc_core.operations.extract import DrainResult, Extractor
    from lockstep_airflow.lineage import Lineage
    from lockstep_airflow.window import RunWindow

log = logging.getLogger(__name__)

DRAIN_S = 120.0
"""Longest time in one poke. Between pokes Airflow checks the sensor's own timeout; reading continues meanwhile."""


class ExtractSensor(Leaving, BaseSensorOperator):
    """Drains one source of a pipeline file.

    XCom: {source, rows, batches, files, events, position, watermark_us}; counts are those of the last process.
    """

    ui_color = "#d7ece2"

    def __init__(self, *, file: str, source: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file
        self.source = source
        self._open: ExitStack | None = None
        self._extractor: Extractor | None = None
        self._drained: DrainResult | None = None

    def execute(self, context: Context) -> Any:
        with self.working():
            try:
                return super().execute(context)
            finally:
                self._close()

    def poke(self, context: Context) -> PokeReturnValue:
        self.leave_if_told()
        with as_airflow_failures(f"extract {self.source}"):
            try:
                return self._poke(context)
            except Exception as error:
                self._keep(context, error)
                raise
            finally:
                if self.reschedule:
                    self._close()

    def _keep(self, context: Context, error: Exception) -> None:
        """Records the failure for the page and for `lockstep status`; if that fails, it is only logged."""
        from cdc_core.operations.extract.outcome import keep_failure

        try:
            with opened(self.file, context) as ready:
                keep_failure(ready, self.source, error)
        except LockstepError as unkept:
            log.warning("%s: this failure could not be kept in meta: %s", self.source, unkept)

    def _poke(self, context: Context) -> PokeReturnValue:
        pipeline = config.load(Path(self.file))
        window = window_of(context)
        if is_dry_run(context):
            log.info("%s: a dry run reads nothing from the source", self.source)
            return PokeReturnValue(True, {"source": self.source, "dry_run": True})
        self._require_in_time(window)
        if self._extractor is None:
            staged = self._staged_already(pipeline, window.end_us)
            if staged is not None:
                log.info("%s: everything up to the end of %s is staged; the source is not read", self.source, window)
                metrics.lag(pipeline.pipeline, self.source, staged["watermark_us"])
                self._publish(context, pipeline, window)
                return PokeReturnValue(True, staged)
            try:
                self._extractor = self._start(context)
            except LeaseHeld as error:
                log.info("%s: waiting: %s", self.source, error)
                return PokeReturnValue(False)
        try:
            result = self._extractor.drain(until_us=window.end_us, budget_s=DRAIN_S)
        finally:  # what it staged before it raised counts too
            reached = self._extractor.reached
            metrics.drained(pipeline.pipeline, self.source, reached, self._drained)
            self._drained = reached
        log.info(
            "%s: %s %s; staged %s rows in %s batches of this try, at %s",
            self.source,
            "complete up to the end of" if result.done else "not yet at the end of",
            window,
            result.staged.rows,
            result.staged.batches,
            result.position,
        )
        for table, coverage in result.partial.items():
            log.warning("%s: partial: %s", self.source, lacks(table, self.source, coverage))
        if result.done:
            self._publish(context, pipeline, window)
        return PokeReturnValue(result.done, _counts(self.source, result) if result.done else None)

    def _publish(self, context: Context, pipeline: Pipeline, window: RunWindow) -> None:
        """Again when the task is repeated: a process that died after it had staged must not lose the events."""
        from cdc_core.meta import Meta

        with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
            batches = extracted_batches(context, meta, self.source, window)
            publish_staged(context, self.outlets, pipeline, meta, batches)

    def _require_in_time(self, window: RunWindow) -> None:
        """Raises UsageError (usage.argument): the DAG has one run at a time, which would keep all others waiting."""
        if window.end_us > to_us(datetime.now(UTC)) + round(self.timeout * MICROSECONDS):
            raise UsageError(
                f"The window {window} ends later than this task waits for, which is {self.timeout / 3600:g} h "
                "(airflow.timeout_s).",
                where=f"param {WINDOW_END}",
                code="usage.argument",
                remedy=f"trigger again with an earlier {WINDOW_END}, or without: for everything up to now",
            )

    def _staged_already(self, pipeline: Pipeline, until_us: int) -> dict[str, Any] | None:
        """A watermark that is ahead of the clock came of a clock that was wrong, and says nothing."""
        from cdc_core.meta import Meta

        with Meta.open(pipeline.meta.url, pipeline.pipeline, upgrade=True) as meta:
            checkpoint, now_us = meta.positions.checkpoint(self.source), meta.now_us()
        if checkpoint is None or not until_us <= checkpoint.watermark_us <= now_us + CLOCK_TOLERANCE_US:
            return None
        return {
            "source": self.source,
            "already_staged": True,
            "rows": 0,
            "batches": 0,
            "position": str(checkpoint.position),
            "watermark_us": checkpoint.watermark_us,
        }

    def _start(self, context: Context) -> Extractor:
        from cdc_core.operations.extract import Extractor

        with ExitStack() as opening:
            ready = opening.enter_context(opened(self.file, context))
            log.info("%s: opening as %s", self.source, ready.holder)
            opening.enter_context(exported(ready.pipeline))
            accept = accepted_of(context, ready.pipeline, self.source)
            abandon = abandoned_of(context, ready.pipeline, self.source)
            extractor = opening.enter_context(Extractor(ready, self.source, accept=accept, abandon=abandon))
            self._open = opening.pop_all()
        return extractor

    def _close(self) -> None:
        opened, self._open, self._extractor, self._drained = self._open, None, None, None
        if opened is not None:
            opened.close()

    def get_openlineage_facets_on_complete(self, task_instance: RuntimeTaskInstance) -> Lineage:
        """Airflow's OpenLineage provider asks for it."""
        from lockstep_airflow import lineage

        return lineage.of_extract(self.file, self.source, task_instance.get_template_context())


def _counts(source: str, result: DrainResult) -> dict[str, Any]:
    staged = result.staged
    return {
        "source": source,
        "rows": staged.rows,
        "batches": staged.batches,
        "files": staged.files,
        "events": staged.events,
        "position": str(result.position),
        "watermark_us": result.watermark_us,
    }
