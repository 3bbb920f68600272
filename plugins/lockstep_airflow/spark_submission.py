"""How a task's Spark job is submitted: to the application that the run's tasks share, or as an application of its own.

Both go through the Airflow connection of the Spark cluster, and write what Spark prints to the log of the task.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

from cdc_core.errors import Refused, UsageError
from cdc_core.model.tasks import QUALITY
from lockstep_airflow.failures import of_spark
from lockstep_airflow.parent_death import die_with_parent

if TYPE_CHECKING:
    from cdc_core.apply.jobs import SparkJob
    from cdc_core.apply.run_application import RunApplication
    from cdc_core.config import Pipeline
    from cdc_core.meta import Meta
    from cdc_core.model.run import RunPlan

log = logging.getLogger(__name__)
_KEPT = 256 << 10
"""How much of a job's output is searched for the error that ended it."""


class SparkSubmission:
    """Submits the jobs of one task.

    connection: Airflow's, of the Spark cluster, or of a Spark Connect endpoint. environ: with all logins of the
    pipeline. local: whether the master is on this machine. Raises UsageError (airflow.spark_connection,
    install.missing_extra), Refused (airflow.deploy_mode).
    """

    def __init__(
        self, connection: str, pipeline: Pipeline, environ: Mapping[str, str], plan: RunPlan, file: Path
    ) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._environ = environ
        self._plan = plan
        self._file = file
        self._hook: Any = None
        self._application: RunApplication | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.local = _is_local(connection, remote=pipeline.spark.session == "remote")

    def submit(self, job: SparkJob, task: str) -> None:
        """Run a job to its end. task: its name in the run. Raises the error that ended it."""
        from cdc_core.apply.run_application import Unreachable
        from cdc_core.apply.run_slots import NotPrivate

        if self._pipeline.spark.session == "remote":
            self._to_the_endpoint(job)
            return
        if self._pipeline.spark.session == "run":
            try:
                self._to_the_run(job, last=task == QUALITY.name and len(_targets(self._plan)) == 1)
                return
            except (Unreachable, NotPrivate) as reason:
                log.warning("%s gets a Spark application of its own; that of the run cannot be used: %s", task, reason)
        self._alone(job, task)

    def on_kill(self) -> None:
        """Ends what is being submitted."""
        if self._application is not None:
            self._application.cancel()
        if self._hook is not None:
            self._hook.on_kill()
        if self._process is not None:
            self._process.terminate()  # it ends its session at the endpoint, and with it what runs there

    def _to_the_run(self, job: SparkJob, *, last: bool) -> None:
        """Like `lockstep run`, which also has one application for all jobs: it has the logins of all targets."""
        from cdc_core.apply.jobs import environ_for
        from cdc_core.apply.run_application import RunApplication
        from cdc_core.apply.run_slots import run_folder
        from cdc_core.connections import variable_of

        references = [one for target in self._pipeline.targets for one in target.connections]
        self._application = RunApplication(
            run_folder(name_of(self._plan, self._file, self._pipeline)),
            command=self._command,
            environ=environ_for(self._pipeline, self._environ, {variable_of(one) for one in references}),
            idle_s=self._pipeline.spark.idle_s,
            show=_show,
        )
        self._application.submit(job, f"lockstep-{self._pipeline.pipeline}", last=last)

    def _to_the_endpoint(self, job: SparkJob) -> None:
        """A process of its own, without a JVM: Spark is warm at the endpoint."""
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

        from cdc_core.apply.job_errors import error_of
        from cdc_core.apply.jobs import REMOTE, environ_for

        environ = environ_for(self._pipeline, self._environ, job.environment)
        self._process = subprocess.Popen(
            [sys.executable, job.application, *job.arguments],
            env={**environ, REMOTE: SparkConnectHook(self._connection).get_connection_url()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        assert self._process.stdout is not None
        said = ""
        with self._process.stdout as lines:
            for line in lines:
                _show(line.decode(errors="replace").rstrip())
                said = (said + line.decode(errors="replace"))[-_KEPT:]
        status = self._process.wait()
        self._process = None
        if status != 0:
            raise error_of(said, job=job.name, status=status, seen="the job's output above")

    def _alone(self, job: SparkJob, task: str) -> None:
        """spark-submit of a job, with an environment that only it and its children have."""
        from cdc_core.apply.jobs import environ_for

        self._hook = self._hook_of(job)
        environ = environ_for(self._pipeline, self._environ, job.environment)
        try:
            self._hook.submit(job.application, env=environ, preexec_fn=die_with_parent)
        except AirflowException as failure:
            raise of_spark(failure, task) from None
        finally:
            self._hook = None

    def _command(self, job: SparkJob) -> list[str]:
        """The spark-submit command of a job, as the hook makes it of the connection."""
        from cdc_core.apply.run_application import Unreachable

        hook = self._hook_of(job)
        try:
            command: list[str] = hook._build_spark_submit_command(job.application)
        except AttributeError as error:  # not part of the provider's interface
            raise Unreachable(f"this version of Airflow's provider for Spark differs: {error}") from None
        return command

    def _hook_of(self, job: SparkJob) -> Any:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        return SparkSubmitHook(
            conn_id=self._connection,
            name=job.name,
            conf=dict(job.conf),
            jars=",".join(job.jars) or None,
            packages=",".join(job.packages) or None,
            exclude_packages=",".join(job.excluded) or None,
            application_args=list(job.arguments),
        )


def end_application(plan: RunPlan, file: Path, pipeline: Pipeline) -> None:
    """Ends the run's application on this machine, if it waits for a job: none comes any more."""
    from cdc_core.apply.run_application import end
    from cdc_core.apply.run_slots import NotPrivate, run_folder

    if pipeline.spark.session == "run":
        try:
            end(run_folder(name_of(plan, file, pipeline)))
        except (NotPrivate, OSError) as error:
            log.warning("the Spark application of the run did not take the order to end: %s", error)


def run_is_over(meta: Meta, plan: RunPlan) -> bool:
    """Whether every target of a run has consumed its batches."""
    return all(record.state.consumed for name in _targets(plan) for record in meta.records(name, plan.claimed(name)))


def _targets(plan: RunPlan) -> list[str]:
    """Those that have batches in the run."""
    return [one.target for one in plan.targets if one.batches]


def name_of(plan: RunPlan, file: Path, pipeline: Pipeline) -> str:
    """By which the tasks of a run find its application: run_slots.run_folder."""
    return f"{plan.path}\n{file.resolve()}\n{pipeline.stage.uri}"


def _show(line: str) -> None:
    log.info("%s", line)


def _is_local(connection_id: str, *, remote: bool) -> bool:
    """Whether the master is on this machine. Without the connection, the hook would silently use YARN."""
    from cdc_core.apply.jobs import is_local
    from cdc_core.extras import require

    kind, host, other = (
        ("spark_connect", "sc://spark.example", "endpoint") if remote else ("spark", "local[*]", "cluster's master")
    )
    add = f"airflow connections add {connection_id} --conn-type {kind} --conn-host '{host}'"
    try:
        connection = BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        raise UsageError(
            f"Airflow has no connection {connection_id!r}.",
            where="spark.connection",
            code="airflow.spark_connection",
            remedy=f"add it: {add}, or the URL of your {other}",
        ) from None
    if remote != (connection.conn_type == "spark_connect"):
        raise UsageError(
            f"The connection {connection_id!r} has type {connection.conn_type}, and spark.session is "
            f"{'' if remote else 'not '}remote.",
            where="spark.connection",
            code="airflow.spark_connection",
            remedy="session: remote needs a connection of type spark_connect, the other sessions one of type spark",
        )
    if remote:
        require("connect", by="spark.session: remote")
        return False
    if connection.extra_dejson.get("deploy-mode") == "cluster":
        raise Refused(
            f"The Spark connection {connection_id!r} has deploy-mode cluster.",
            where="spark.connection",
            code="airflow.deploy_mode",
            remedy="set deploy-mode to client: the driver then runs on the task's host, with the logins of its "
            "environment, and ends with the task; its executors are the cluster's anyway (docs/spark.md)",
        )
    return is_local(connection.host or "")
