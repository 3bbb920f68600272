"""The tasks of the verify DAG: one compares a target with the sources, the other repairs what differs.

    verify[target]   fails where rows differ, unless the run repairs them
    repair[target]   takes the findings of this evidence, if the file (`verify.repair`) or the form asks for it

A difference is not worth a retry: the task fails at once, and its text says how many rows differ and where the evidence
is. The same holds for rows that a repair could not make equal. What passes by itself is retried: rows that could not be
judged yet. Both tasks wait, in mode reschedule, while another process verifies or repairs the target and while reading
is paused. A verification that is killed, retried or cleared continues after its last range; a repair first applies what
it had staged, and leaves rows alone that are equal by then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import AirflowSkipException

from cdc_core.errors import DataAtRisk, LockstepError
from cdc_core.model.readable import counted
from cdc_core.model.windows import to_us
from lockstep_airflow.copy_tasks import PipelineSensor
from lockstep_airflow.run_context import asked_at, beside, verify_params
from lockstep_airflow.spark_connection import driver_of
from lockstep_airflow.specs import VERIFY

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.config import Pipeline
    from cdc_core.operations.open_pipeline import OpenPipeline
    from cdc_core.operations.repair.repairer import RepairReport, Result

log = logging.getLogger(__name__)


class VerifySensor(PipelineSensor):
    """Verifies one target. XCom: {target, mode, equal, tables, rows, evidence, path, differences}.

    equal is null if nothing was found in a mode that does not compare all rows. differences: rows that are left to the
    repair task. path: of the evidence on the stage.
    """

    ui_color = "#e9e2f6"

    def step(self, context: Context, ready: OpenPipeline) -> PokeReturnValue:
        from cdc_core.operations.verify import evidence
        from cdc_core.operations.verify.modes import Mode
        from cdc_core.operations.verify.results import proven
        from cdc_core.operations.verify.verifier import verify_target

        asked = verify_params(context, ready.pipeline)
        if self.subject not in asked.targets:
            raise AirflowSkipException(f"The run is not for {self.subject}.")
        # What this run itself has begun, it continues.
        begun_after_us = to_us(asked_at(context)) if asked.restart else 0
        report = verify_target(ready, self.subject, asked.tables, mode=Mode(asked.mode), begun_after_us=begun_after_us)
        for result in report.results:
            log.info(
                "%s: %s of the source, %s of the target, %s, %s",
                result.table,
                counted(result.source_rows, "row"),
                counted(result.target_rows, "row"),
                counted(result.differences, "difference"),
                result.error or ("equal" if result.equal else "not proven equal"),
            )
        location = ready.store.location(report.path)
        log.info("evidence: %s", location)
        error, differences = report.error, report.differences
        repairs = asked.repair and report.mode in evidence.ROW_MODES and differences > 0
        if repairs:
            log.warning("%s: %s left to the next task", self.subject, counted(differences, "difference"))
        elif error is not None:
            error.remedy = f"{error.remedy}; evidence: {location}"
            raise error
        rows = sum(result.source_rows for result in report.results)
        answer: dict[str, Any] = {"target": self.subject, "mode": asked.mode, "equal": proven(report.results)}
        answer |= {"tables": len(report.results), "rows": rows, "evidence": location, "path": report.path}
        return PokeReturnValue(True, {**answer, "differences": differences if repairs else 0})


class RepairSensor(PipelineSensor):
    """Repairs what the verify task of the same DAG run found at one target.

    XCom: {target, rows, deletes, removed, batches, runs, equal}: what was staged and in which runs it was applied.
    connection: Airflow connection id of the Spark cluster.
    """

    ui_color = "#e9e2f6"

    def __init__(self, *, connection: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.connection = connection

    def step(self, context: Context, ready: OpenPipeline) -> PokeReturnValue:
        from cdc_core.operations.repair.repairer import repair_target

        path = self._evidence(context, ready.pipeline)
        with driver_of(self.connection, ready.pipeline, ready.store) as spark:
            report = repair_target(ready, self.subject, spark, path=path)
        done = report.done
        for table, before in done.before.items():
            log.info("%s: %s", table, _said(table, before.differences, done))
        error = done.error or _incomplete(report)
        if error is not None:
            raise error
        counts = {"rows": done.rows, "deletes": done.deletes, "removed": done.removed, "batches": len(done.batches)}
        runs = [run.run_id for run in report.runs]
        return PokeReturnValue(True, {"target": self.subject, **counts, "runs": runs, "equal": done.settled})

    def _evidence(self, context: Context, pipeline: Pipeline) -> str:
        """The path of the evidence that the verify task has written. Raises DataAtRisk (repair.not_verified)."""
        asked = verify_params(context, pipeline)
        if self.subject not in asked.targets:
            raise AirflowSkipException(f"The run is not for {self.subject}.")
        ti, verify = context["ti"], beside(self.task_id, VERIFY)
        found = ti.xcom_pull(task_ids=verify, map_indexes=ti.map_index)
        if not isinstance(found, Mapping) or found.get("target") != self.subject:
            states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[verify]).get(ti.run_id, {})
            if states.get(f"{verify}_{ti.map_index}", states.get(verify)) == "skipped":
                raise AirflowSkipException("The verification was skipped, with what comes before it in the DAG.")
            # Also where no repair is asked for: a DAG run whose last tasks are all skipped would be a success.
            raise DataAtRisk(
                f"The verification of {self.subject} did not succeed, so that there is nothing to repair by.",
                where=f"target {self.subject}",
                code="repair.not_verified",
                remedy=f"see the task {VERIFY}; clear it, which also repeats this task",
            )
        if not asked.repair:
            raise AirflowSkipException("The run does not repair: neither verify.repair nor the form asks for it.")
        if not found["differences"]:
            raise AirflowSkipException("Nothing differs that a repair can bring.")
        return str(found["path"])


def _said(table: str, before: int, done: Result) -> str:
    left = done.after[table].differences if done.after is not None else before
    return f"{counted(before, 'difference')} before, {left} now"


def _incomplete(report: RepairReport) -> LockstepError | None:
    """What the verification could not judge is not repaired: its task would have failed by it."""
    if not report.unjudged:
        return None
    return DataAtRisk(
        f"The named rows are equal now, but not all of {', '.join(report.unjudged)} was compared: "
        f"{next(iter(report.unjudged.values()))}",
        where=report.evidence,
        code="repair.not_verified",
        remedy="verify these tables again (clear the verify task)",
    )
