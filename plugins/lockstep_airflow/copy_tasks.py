"""The tasks of the snapshot DAG, and the task that starts it.

    plan           extracts, so that the tables are known, and says what will be copied
    copy[source]   reads the tables chunk by chunk, beside all other runs; one copier a source, by a lease. Then it
                   makes the copied rows part of the stage, once what was committed meanwhile is extracted

Only one thing moves a source's chain of batches: an extractor. The hourly run may be paused, or 59 minutes away, so
`copy` extracts by itself, under the extractor's lease when that is free; while another extractor has it, that one
moves the chain, and `copy` looks again at its next poke. It is rescheduled between pokes, so that it holds no worker
slot while it waits. Whatever was read and staged is in meta: a task that is killed, retried or cleared at any moment
continues after the last chunk, and reads nothing again that is staged.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowRuntimeError, AirflowSkipException, DagRunTriggerException

from cdc_core.errors import LeaseHeld, OtherServer, Paused, combined
from cdc_core.model.readable import counted
from cdc_core.model.windows import to_us
from lockstep_airflow.airflow_failures import as_airflow_failures
from lockstep_airflow.credentials import exported
from lockstep_airflow.extract_sensor import DRAIN_S
from lockstep_airflow.run_context import asked_at, copy_params, copy_readers, is_dry_run, run_name
from lockstep_airflow.table_assets import copied_batches, publish_staged
from lockstep_airflow.task_pipeline import opened
from lockstep_airflow.termination import Leaving

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    from cdc_core.operations.copy.pending import PendingTable
    from cdc_core.operations.open_pipeline import OpenPipeline
    from lockstep_airflow.lineage import Lineage

log = logging.getLogger(__name__)

UNFINISHED = ("queued", "running")


def _wanted(context: Context, ready: OpenPipeline, source: str) -> tuple[PendingTable, ...]:
    """What a run of the DAG copies of a source: the tables that its form names, or what is pending.

    Not tables that the form names and that were staged since the run was asked for: it was this run, or did the same.
    Raises UsageError (usage.argument, usage.unknown_name), Refused (table.not_captured).
    """
    from cdc_core.operations.copy.pending import chosen, pending
    from cdc_core.operations.copy.steps import copied_since

    sources, tables = copy_params(context, ready.pipeline)
    if source not in sources:
        return ()
    if not tables:
        return pending(ready.meta, source, on_new=ready.pipeline.tables.on_new)
    done = copied_since(ready, source, to_us(asked_at(context)))
    for table in sorted(done.intersection(tables)):
        log.info("%s: %s was copied since this run was asked for", source, table)
    return chosen(ready.meta, source, [table for table in tables if table not in done])


class CopyPlanOperator(Leaving, BaseOperator):
    """Extracts each source up to now, and lists what will be copied. XCom: {sources: {name: tables}, tables, rows}."""

    ui_color = "#e8eefb"

    def __init__(self, *, file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file

    def execute(self, context: Context) -> dict[str, Any]:
        from cdc_core.operations.copy.copy_sources import readmit
        from cdc_core.operations.extract.side_by_side import extract_if_free

        with (
            as_airflow_failures("plan of the copy"),
            opened(self.file, context) as ready,
            nullcontext() if (dry := is_dry_run(context)) else exported(ready.pipeline),
            self.working(),
        ):
            sources, named = copy_params(context, ready.pipeline)
            for source in sources:
                if dry:
                    continue
                again = readmit(ready, source, named)
                known = not again and ready.meta.positions.checkpoint(source) is not None
                if not extract_if_free(ready, source) and not known:
                    raise LeaseHeld(
                        f"Another extractor reads {source!r}: its tables, or those that it reads again, are not known "
                        "yet.",
                        where=source,
                        remedy="the next attempt looks again",
                    )
            wanted = {source: _wanted(context, ready, source) for source in sources}
        for source, tables in wanted.items():
            for table in tables:
                count = "rows not counted" if table.rows is None else f"~{counted(table.rows, 'row')}"
                log.info("%s: %s %s, %s: %s", source, "would copy" if dry else "to copy", table.name, count, table.why)
            if not tables:
                log.info("%s: nothing to copy", source)
        return {
            "sources": {source: len(tables) for source, tables in wanted.items()},
            "tables": sum(len(tables) for tables in wanted.values()),
            "rows": sum(table.rows or 0 for tables in wanted.values() for table in tables),
            **({"dry_run": True} if dry else {}),
        }


class PipelineSensor(Leaving, BaseSensorOperator):
    """A task of a pipeline file in mode reschedule: between pokes the worker slot is free. subject: the source or the
    target that it is for."""

    def __init__(self, *, file: str, subject: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file
        self.subject = subject

    def poke(self, context: Context) -> PokeReturnValue:
        with as_airflow_failures(f"{self.task_id} {self.subject}"):
            if is_dry_run(context):
                raise AirflowSkipException("A dry run copies nothing.")
            return self._poke(context)

    def _poke(self, context: Context) -> PokeReturnValue:
        with opened(self.file, context) as ready, exported(ready.pipeline), self.working():
            try:
                return self.step(context, ready)
            except (LeaseHeld, Paused) as error:
                log.info("%s: waiting: %s", self.subject, error)
                return PokeReturnValue(False)

    def step(self, context: Context, ready: OpenPipeline) -> PokeReturnValue:
        raise NotImplementedError


class CopySensor(PipelineSensor):
    """Reads the tables to their ends in its first poke, and stages what is read and passed by the chain; further pokes
    wait for the rest, or for another copier. Then it fails if a table could not be copied: a run that is green has
    copied all.

    XCom: {source, tables, rows, batches, dropped}; counts are those of the last poke.
    """

    ui_color = "#d7ece2"

    def step(self, context: Context, ready: OpenPipeline) -> PokeReturnValue:
        from cdc_core.operations.copy.copier import copier_lease
        from cdc_core.operations.copy.copy_progress import CopyProgress
        from cdc_core.operations.copy.steps import read_tables, stage_read
        from cdc_core.operations.extract.side_by_side import extract_if_free

        readers = copy_readers(context)
        if readers is not None:
            limits = ready.pipeline.snapshot.model_copy(update={"readers": readers})
            ready = replace(ready, pipeline=ready.pipeline.model_copy(update={"snapshot": limits}))
        self._tables(context, ready)
        with copier_lease(ready, self.subject) as lease:
            tables = self._tables(context, ready)  # the last holder may have copied some
            try:
                with ready.progress.copying({table.name: table.rows for table in tables}) as report:
                    refused = read_tables(ready, self.subject, tables, lease, report)
            except OtherServer as error:
                log.info("%s: extracting first: %s", self.subject, error)
                extract_if_free(ready, self.subject, budget_s=DRAIN_S)
                return PokeReturnValue(False)
            for copy in ready.meta.copies.find(self.subject):
                if copy.complete:
                    log.info("%s: %s: %s", self.subject, copy.table, CopyProgress().text(copy))
            extract_if_free(ready, self.subject, budget_s=DRAIN_S)
            staged = stage_read(ready, self.subject, lease)
        for table in staged.tables:
            log.info("%s: %s is staged with all of its rows", self.subject, table)
        for table, why in staged.dropped:
            log.warning("%s: the copy of %s was not staged: %s", self.subject, table, why)
        if staged.waiting is not None:
            log.info("%s: waiting until %s is extracted", self.subject, staged.waiting)
            return PokeReturnValue(False)
        if refused:
            raise combined([*refused.values()])
        copied = copied_batches(context, ready.meta, self.subject)
        publish_staged(context, self.outlets, ready.pipeline, ready.meta, copied)
        counts = {"tables": len(staged.tables), "rows": sum(batch.rows for batch in staged.batches)}
        counts |= {"batches": len(staged.batches), "dropped": len(staged.dropped)}
        return PokeReturnValue(True, {"source": self.subject, **counts})

    def _tables(self, context: Context, ready: OpenPipeline) -> tuple[PendingTable, ...]:
        """What is to be copied; ends as skipped where nothing is, and nothing that was read is left to be staged."""
        tables = _wanted(context, ready, self.subject)
        if not tables and not ready.meta.copied.decided(self.subject):
            raise AirflowSkipException(f"Nothing of {self.subject} is to be copied.")
        return tables

    def get_openlineage_facets_on_complete(self, task_instance: RuntimeTaskInstance) -> Lineage:
        """Airflow's OpenLineage provider asks for it."""
        from lockstep_airflow import lineage

        return lineage.of_copy(self.file, self.subject, task_instance.get_template_context())


class StartCopyOperator(BaseOperator):
    """Starts the snapshot DAG if a copy is due and no run of that DAG is under way; otherwise it ends as skipped."""

    ui_color = "#e8eefb"

    def __init__(self, *, file: str, dag_id_of_copy: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file
        self.dag_id_of_copy = dag_id_of_copy

    def execute(self, context: Context) -> None:
        from cdc_core.operations.copy.steps import due

        with as_airflow_failures("start of the copy"), opened(self.file, context) as ready:
            if is_dry_run(context):
                raise AirflowSkipException("A dry run copies nothing.")
            pipeline = ready.pipeline
            due_tables = {source.name: due(ready, source.name) for source in pipeline.sources}
        tables = [(source, table) for source, of_source in due_tables.items() for table in of_source]
        if not tables:
            raise AirflowSkipException("Every captured table is staged with all of its rows, or cannot be copied.")
        for source, table in tables:
            log.info("%s: a copy of %s is due: %s", source, table.name, table.why)
        self._require_known(context)
        if context["ti"].get_dr_count(dag_id=self.dag_id_of_copy, states=list(UNFINISHED)):
            raise AirflowSkipException(f"A run of {self.dag_id_of_copy} is under way already.")
        raise DagRunTriggerException(
            trigger_dag_id=self.dag_id_of_copy,
            dag_run_id=f"from__{run_name(context, pipeline)}",
            conf={},
            reset_dag_run=False,
            skip_when_already_exists=True,
            wait_for_completion=False,
            allowed_states=["success"],
            failed_states=["failed"],
            poke_interval=60,
            deferrable=False,
        )

    def _require_known(self, context: Context) -> None:
        """Ends as skipped where Airflow does not know the DAG: not yet, or because only one DAG is tested."""
        try:
            context["ti"].get_dag(self.dag_id_of_copy)
        except Exception as error:
            if _http_status(error) != 404:
                raise
            log.warning(
                "Airflow has no DAG %s yet. The next run of this one starts it; `lockstep snapshot` copies now.",
                self.dag_id_of_copy,
            )
            raise AirflowSkipException(f"Airflow has no DAG {self.dag_id_of_copy} yet.") from None


def _http_status(error: Exception) -> int | None:
    """The status of an answer of Airflow's API server: to this process, or to the one that supervises it."""
    if isinstance(error, AirflowRuntimeError):
        return (error.error.detail or {}).get("status_code")
    return getattr(getattr(error, "response", None), "status_code", None)
