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
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import AirflowSkipException

from cdc_core.errors import DataAtRisk, LockstepError
from cdc_core.windows import to_us
from cdc_core.words import counted
from lockstep_airflow.copying import PipelineSensor
from lockstep_airflow.run_context import asked_at, holder_name, verify_params
from lockstep_airflow.sensor import DRAIN_S
from lockstep_airflow.spark_connection import driver_of
from lockstep_airflow.specs import VERIFY

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.config import Pipeline
    from cdc_core.meta import Meta
    from cdc_core.repair.repairer import Result
    from cdc_core.run import RunContext
    from cdc_core.stage.objects import ObjectStore
    from cdc_core.verify.job import Job
    from spark_jobs.driver import Driver

log = logging.getLogger(__name__)


class _TargetSensor(PipelineSensor):
    """Of one target."""

    ui_color = "#e9e2f6"

    def __init__(self, *, target: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target

    @property
    def subject(self) -> str:
        return self.target

    def job(self, context: Context, pipeline: Pipeline, meta: Meta, store: ObjectStore, **options: Any) -> Job:
        """options: of this task's kind of job."""
        from cdc_core.snapshot.steps import extract_to_now
        from cdc_core.verify.job import Job

        holder = holder_name(context)

        def extract(source: str) -> None:
            extract_to_now(pipeline, source, meta, holder=holder, budget_s=DRAIN_S)

        return Job(pipeline, pipeline.target(self.target), meta, store, extract, os.environ, **options)


class VerifySensor(_TargetSensor):
    """Verifies one target. XCom: {target, mode, equal, tables, rows, evidence, path, differences}.

    equal is null if nothing was found in a mode that does not compare all rows. differences: rows that are left to the
    repair task. path: of the evidence on the stage.
    """

    def step(self, context: Context, pipeline: Pipeline, meta: Meta, store: ObjectStore) -> PokeReturnValue:
        from cdc_core.verify import evidence
        from cdc_core.verify.lease import verifier_lease
        from cdc_core.verify.modes import Mode, outcome
        from cdc_core.verify.progress import Progress
        from cdc_core.verify.verifier import verify

        asked = verify_params(context, pipeline)
        if self.target not in asked.targets:
            raise AirflowSkipException(f"The run is not for {self.target}.")
        with verifier_lease(meta, pipeline.pipeline, self.target) as lease:
            known = meta.verification(pipeline.pipeline, self.target)
            begun = Progress.from_text(known.progress) if known is not None and known.progress else None
            # What this run itself has begun, it continues.
            restart = asked.restart and begun is not None and begun.started_us < to_us(asked_at(context))
            job = self.job(context, pipeline, meta, store, lease=lease, mode=Mode(asked.mode), restart=restart)
            found = verify(job, asked.tables)
            path = evidence.keep(job, found)
        for one in found.results:
            log.info(
                "%s: %s of the source, %s of the target, %s, %s", one.table, counted(one.source.rows, "row"),
                counted(one.target.rows, "row"), counted(one.differences, "difference"),
                one.error or ("equal" if one.equal else "not proven equal"),
            )  # fmt: skip
        location = store.location(path)
        log.info("evidence: %s", location)
        error = outcome(found.results, self.target)
        differences = sum(one.differences for one in found.results)
        repairs = asked.repair and job.mode in evidence.ROW_MODES and differences > 0
        if repairs:
            log.warning("%s: %s left to the next task", self.target, counted(differences, "difference"))
        elif error is not None:
            error.remedy = f"{error.remedy}; evidence: {location}"
            raise error
        rows = sum(one.source.rows for one in found.results)
        answer: dict[str, Any] = {"target": self.target, "mode": asked.mode, "equal": evidence.proven(found.results)}
        answer |= {"tables": len(found.results), "rows": rows, "evidence": location, "path": path}
        return PokeReturnValue(True, {**answer, "differences": differences if repairs else 0})


class RepairSensor(_TargetSensor):
    """Repairs what the verify task of the same DAG run found at one target.

    XCom: {target, rows, deletes, removed, batches, runs, equal}: what was staged and in which runs it was applied.
    connection: Airflow connection id of the Spark cluster.
    """

    def __init__(self, *, connection: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.connection = connection

    def step(self, context: Context, pipeline: Pipeline, meta: Meta, store: ObjectStore) -> PokeReturnValue:
        from cdc_core.repair.findings import keys_in, require_listed
        from cdc_core.repair.repairer import outcome, repair
        from cdc_core.run import apply, fresh_run_id
        from cdc_core.verify import evidence
        from cdc_core.verify.lease import verifier_lease

        path = self._evidence(context, pipeline)
        document = evidence.read(store, path)
        require_listed(document, path, ())
        keys = keys_in(document, path)
        runs: list[str] = []

        with (
            verifier_lease(meta, pipeline.pipeline, self.target) as lease,
            driver_of(self.connection, pipeline, store) as spark,
        ):

            def applied() -> None:
                # A name of its own each time: a plan that is registered under a name never changes.
                runs.append(fresh_run_id(pipeline.pipeline, "repair"))
                log.info("%s: run %s", self.target, runs[-1])
                apply(self._run_context(pipeline, meta, store, spark), runs[-1], targets=[self.target])

            done = repair(self.job(context, pipeline, meta, store, lease=lease), keys, apply=applied)
        for table, before in done.before.items():
            log.info("%s: %s", table, _said(table, before.differences, done))
        error = outcome(done) or _incomplete(document, path)
        if error is not None:
            raise error
        counts = {"rows": done.rows, "deletes": done.deletes, "removed": done.removed, "batches": len(done.batches)}
        return PokeReturnValue(True, {"target": self.target, **counts, "runs": runs, "equal": done.settled})

    def _evidence(self, context: Context, pipeline: Pipeline) -> str:
        """The path of the evidence that the verify task has written. Raises DataAtRisk (repair.not_verified)."""
        asked = verify_params(context, pipeline)
        if self.target not in asked.targets:
            raise AirflowSkipException(f"The run is not for {self.target}.")
        ti = context["ti"]
        found = ti.xcom_pull(task_ids=VERIFY, map_indexes=ti.map_index)
        if not isinstance(found, Mapping) or found.get("target") != self.target:
            # Also where no repair is asked for: a DAG run whose last tasks are all skipped would be a success.
            raise DataAtRisk(
                f"The verification of {self.target} did not succeed, so that there is nothing to repair by.",
                where=f"target {self.target}",
                code="repair.not_verified",
                remedy=f"see the task {VERIFY}; clear it, which also repeats this task",
            )
        if not asked.repair:
            raise AirflowSkipException("The run does not repair: neither verify.repair nor the form asks for it.")
        if not found["differences"]:
            raise AirflowSkipException("Nothing differs that a repair can bring.")
        return str(found["path"])

    def _run_context(self, pipeline: Pipeline, meta: Meta, store: ObjectStore, spark: Driver) -> RunContext:
        from cdc_core.run import RunContext

        def began(task: str) -> None:
            log.info("%s: %s", self.target, task)

        return RunContext(pipeline, meta, store, os.environ, began, spark)


def _said(table: str, before: int, done: Result) -> str:
    left = done.after[table].differences if done.after is not None else before
    newer = len(done.newer.get(table, ()))
    said = f"{counted(before, 'difference')} before, {left} now"
    return f"{said}; {counted(newer, 'row')} with a newer version left alone" if newer else said


def _incomplete(document: Mapping[str, Any], path: str) -> LockstepError | None:
    """What the verification could not judge is not repaired: its task would have failed by it."""
    left = [one["table"] for one in document["tables"] if one["error"] or one["unsettled"]]
    if not left:
        return None
    why = next((one["error"]["what"] for one in document["tables"] if one["error"]), "rows were changing")
    return DataAtRisk(
        f"The named rows are equal now, but not all of {', '.join(left)} was compared: {why}",
        where=path,
        code="repair.not_verified",
        remedy="verify these tables again (clear the verify task)",
    )
