"""Preflight of a Spark whose executors are elsewhere: whether they import what jobs need, and reach stage and targets.

A tiny job asks them (spark_jobs/probe.py). On a local master there is nothing to ask: its executors are this process's.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cdc_core.apply.jobs import environ_for, is_local, job_of
from cdc_core.apply.spark_application import SparkApplication
from cdc_core.check.findings import Findings
from cdc_core.config import Pipeline
from cdc_core.connections import variable_of
from cdc_core.errors import from_text

SUBJECT = "spark"


def check_spark(
    pipeline: Pipeline, file: Path, findings: Findings, *, master: str | None, environ: Mapping[str, str] | None
) -> None:
    """master: instead of the pipeline's spark.master."""
    master = master or pipeline.spark.master
    if is_local(master) or not pipeline.targets:
        return
    findings.attempt(
        SUBJECT, lambda: _ask(pipeline, file, findings, master, os.environ if environ is None else environ)
    )


def _ask(pipeline: Pipeline, file: Path, findings: Findings, master: str, environ: Mapping[str, str]) -> None:
    references = [one for target in pipeline.targets for one in target.connections]
    scratch = Path(tempfile.mkdtemp(prefix="lockstep-check-"))  # kept where Spark fails: the error names the output
    application = SparkApplication(
        f"lockstep-{pipeline.pipeline}-check",
        master=master,
        output=scratch / "output",
        environ=environ_for(pipeline, environ, {variable_of(one) for one in references}),
    )
    arguments = ("--pipeline", str(file), "--answer", str(scratch / "answer"))
    with application:
        application.submit(job_of("probe", arguments, pipeline, references, local=False))
    said = json.loads((scratch / "answer").read_text())
    if not said["errors"]:
        shutil.rmtree(scratch, ignore_errors=True)
    for line in said["errors"]:
        error = from_text(line)
        assert error is not None
        findings.fail(SUBJECT, error)
    if said["unencrypted"]:
        findings.warn(
            SUBJECT,
            "logins of the targets travel to the executors in plain text",
            "set spark.authenticate and spark.network.crypto.enabled for driver and executors, or TLS at a Connect "
            "endpoint (docs/spark.md)",
        )
    if not said["errors"]:
        findings.ok(SUBJECT, f"executors at {master} have what jobs need: {said['executors']}")
