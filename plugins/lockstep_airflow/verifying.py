"""The task of the verify DAG: compares the targets with the sources, and fails where they differ.

A difference is not worth a retry: the task fails at once, and its text says how many rows differ and where the evidence
is. What passes by itself is: rows that could not be judged yet are retried, and the task waits, in mode reschedule,
while another process verifies the target and while reading is paused. A task that is killed, retried or cleared
continues after the last verified range.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import AirflowSkipException

from cdc_core.windows import to_us
from cdc_core.words import counted
from lockstep_airflow.copying import PipelineSensor
from lockstep_airflow.run_context import asked_at, holder_name, verify_params
from lockstep_airflow.sensor import DRAIN_S

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.config import Pipeline
    from cdc_core.meta import Meta
    from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)

WAITS = frozenset({"verify.running", "verify.paused"})
"""Codes for what ends without the task: it waits, and nothing has failed."""


class VerifySensor(PipelineSensor):
    """Verifies one target. XCom: {target, mode, equal, tables, rows, evidence}; equal is null if nothing was found in a
    mode that does not compare all rows."""

    ui_color = "#e9e2f6"

    def __init__(self, *, target: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target

    @property
    def subject(self) -> str:
        return self.target

    @property
    def waits(self) -> frozenset[str]:
        return WAITS

    def step(self, context: Context, pipeline: Pipeline, meta: Meta, store: ObjectStore) -> PokeReturnValue:
        from cdc_core.snapshot.steps import extract_to_now
        from cdc_core.verify import evidence
        from cdc_core.verify.lease import verifier_lease
        from cdc_core.verify.modes import Mode, outcome
        from cdc_core.verify.progress import Progress
        from cdc_core.verify.verifier import Job, verify

        asked = verify_params(context, pipeline)
        if self.target not in asked.targets:
            raise AirflowSkipException(f"The run is not for {self.target}.")
        holder = holder_name(context)

        def extract(source: str) -> None:
            extract_to_now(pipeline, source, meta, holder=holder, budget_s=DRAIN_S)

        with verifier_lease(meta, pipeline.pipeline, self.target) as lease:
            known = meta.verification(pipeline.pipeline, self.target)
            begun = Progress.from_text(known.progress) if known is not None and known.progress else None
            # What this run itself has begun, it continues.
            restart = asked.restart and begun is not None and begun.started_us < to_us(asked_at(context))
            job = Job(
                pipeline, pipeline.target(self.target), meta, store, extract, os.environ, lease=lease,
                mode=Mode(asked.mode), restart=restart,
            )  # fmt: skip
            found = verify(job, asked.tables)
            path = store.location(evidence.keep(job, found))
        for one in found.results:
            log.info(
                "%s: %s of the source, %s of the target, %s, %s", one.table, counted(one.source.rows, "row"),
                counted(one.target.rows, "row"), counted(one.differences, "difference"),
                one.error or ("equal" if one.equal else "not proven equal"),
            )  # fmt: skip
        log.info("evidence: %s", path)
        error = outcome(found.results, self.target)
        if error is not None:
            error.remedy = f"{error.remedy}; evidence: {path}"
            raise error
        rows = sum(one.source.rows for one in found.results)
        answer = {"target": self.target, "mode": asked.mode, "equal": evidence.proven(found.results)}
        return PokeReturnValue(True, {**answer, "tables": len(found.results), "rows": rows, "evidence": path})
