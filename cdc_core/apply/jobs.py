"""The Spark jobs of a run as plain data: what to submit, with which arguments and settings.

The Airflow operator and `lockstep run` render the same values, so that a run is the same either way. Logins are
not among them: a job's driver reads them from the environment variables that `environment` names.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from cdc_core.account import cache_folder, settled
from cdc_core.config import Pipeline
from cdc_core.connections import variable_of
from cdc_core.errors import UsageError
from cdc_core.model.tasks import MERGE, SPARK_JOBS

S3_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.4.2",
    "software.amazon.awssdk:s3:2.29.52",
    "software.amazon.awssdk:s3-transfer-manager:2.29.52",
    "software.amazon.awssdk:apache-client:2.29.52",
)
S3_EXCLUDED = (
    "software.amazon.awssdk:bundle",
    "org.apache.hadoop:hadoop-common",
    "software.amazon.awssdk:netty-nio-client",
)
"""14 MB of jars instead of 600: the bundle has every AWS service, and pyspark ships hadoop-common."""

_OWN_JARS = ("spark.jars", "spark.jars.packages")
"""A pipeline whose spark.conf has one of these provides the jars for its stage itself."""

LOCAL_CONF: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.level=WARN",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""For a local master: no ports open to the network, and a start that is seconds shorter. The just-in-time compiler
stops at its first level, which suits short jobs; a pipeline with large runs sets extraJavaOptions in `spark.conf`."""

ANYWHERE: Mapping[str, str] = {
    "spark.eventLog.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}


def s3_jars() -> Path:
    """Where `lockstep spark fetch-jars` keeps the jars of S3_PACKAGES.

    Without it spark-submit resolves the jars at each start, from the user's Ivy cache or the network: this takes
    seconds, and two applications that start at once with an empty cache disturb each other.
    """
    return cache_folder(os.environ) / "maven" / f"spark-s3-{S3_PACKAGES[0].rpartition(':')[2]}"


REMOTE = "SPARK_REMOTE"
"""pyspark's variable with the endpoint of Spark Connect, which may hold a token: the jobs of a process that has it go
there, and the process needs no spark-submit."""


def is_remote(master: str) -> bool:
    """Whether a master's URL is the endpoint of a Spark Connect server."""
    return master.startswith("sc://")


def is_local(master: str) -> bool:
    """Whether a master's URL means this machine: the executors then are this process's own, with its environment."""
    return master.startswith("local")


def local_conf() -> dict[str, str]:
    """Spark settings of jobs whose driver runs on this machine."""
    # The workers need the packages of the interpreter that submits.
    return {**LOCAL_CONF, "spark.pyspark.python": sys.executable, "spark.pyspark.driver.python": sys.executable}


def environ_for(pipeline: Pipeline, environ: Mapping[str, str], needed: Collection[str]) -> dict[str, str]:
    """The environment of Spark: of the pipeline's logins, and the salt, only the variables that are needed."""
    named = {variable_of(reference) for reference in pipeline.references}
    if pipeline.meta.url.startswith("env:"):
        named.add(variable_of(pipeline.meta.url))
    named.add(REMOTE)  # one of the user's own must not turn an application into another
    return {name: value for name, value in settled(environ).items() if name not in named or name in needed}


@dataclass(frozen=True, slots=True)
class SparkJob:
    """One spark-submit.

    application: path of the Python file. jars: files. packages, excluded: Maven coordinates. environment: names of
    the variables that the driver needs, each set in the submitting process.
    """

    name: str
    application: str
    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    jars: tuple[str, ...]
    packages: tuple[str, ...]
    excluded: tuple[str, ...]
    environment: tuple[str, ...]

    def command(self, master: str, *, spark_submit: str = "spark-submit") -> list[str]:
        """Its command line; at a Spark Connect endpoint, which is in REMOTE, an ordinary process."""
        if is_remote(master):
            return [sys.executable, self.application, *self.arguments]
        return [spark_submit, *self._options(master), self.application, *self.arguments]

    def driver(self, master: str) -> tuple[list[str], dict[str, str]]:
        """(command line, variables) of the driver alone: pyspark starts spark-submit, with the same options, when the
        driver opens a session."""
        if is_remote(master):
            return self.command(master), {}
        submit = shlex.join([*self._options(master), "pyspark-shell"])
        variables = {"PYSPARK_SUBMIT_ARGS": submit}
        if "spark.pyspark.python" in self.conf:
            # Which spark-submit would have set, and a driver that is there before it does not read the setting.
            variables["PYSPARK_PYTHON"] = self.conf["spark.pyspark.python"]
        return [sys.executable, self.application, *self.arguments], variables

    def _options(self, master: str) -> list[str]:
        options = ["--master", master, "--name", self.name]
        for key, value in self.conf.items():
            options += ["--conf", f"{key}={value}"]
        if self.jars:
            options += ["--jars", ",".join(self.jars)]
        if self.packages:
            options += ["--packages", ",".join(self.packages), "--exclude-packages", ",".join(self.excluded)]
        return options

    def hosted_by(self, application: str, name: str, *arguments: str) -> SparkJob:
        """Another application with the settings of this job."""
        return replace(self, name=name, application=application, arguments=arguments)


def spark_job(
    name: str,
    plan_path: str,
    pipeline_file: Path,
    pipeline: Pipeline,
    *,
    merge_set: str | None = None,
    target: str | None = None,
    local: bool = True,
) -> SparkJob:
    """A job of a run: `merge` needs a merge_set, the others a target.

    plan_path: of plan.json, relative to the stage's root. local: the master is local[...].
    """
    if name not in SPARK_JOBS or (merge_set if name == MERGE.name else target) is None:
        raise UsageError(
            f"The Spark job {name!r} cannot have set {merge_set!r} and target {target!r}.",
            code="spark.arguments",
            remedy=f"name one of {', '.join(SPARK_JOBS)}; merge needs a set, the others need a target",
        )
    arguments = ["--plan", plan_path, "--pipeline", str(pipeline_file)]
    if merge_set is not None:
        arguments += ["--set", merge_set]
    if target is not None:
        arguments += ["--target", target]
    references = pipeline.target(target).connections if target is not None else ()
    return job_of(name, arguments, pipeline, references, local=local)


LOAD = "load"
"""A job that loads what the others need."""


def job_of(
    name: str, arguments: Sequence[str], pipeline: Pipeline, references: Sequence[str], *, local: bool
) -> SparkJob:
    """The job spark_jobs/<name>.py with the settings of a pipeline. references: the connections that it needs."""
    in_bucket = pipeline.stage.uri.startswith("s3://")
    conf: dict[str, str] = dict(ANYWHERE)
    if local:
        conf |= local_conf()
    else:
        # spark.pyspark.python is that of the executors.
        conf["spark.pyspark.driver.python"] = sys.executable
    if in_bucket:
        conf |= _s3_conf(pipeline, local=local)
    conf |= pipeline.spark.conf
    environment = tuple(dict.fromkeys(variable_of(reference) for reference in references))
    if in_bucket:
        environment += tuple(name for name in _AWS_VARIABLES if name in os.environ)
    jars: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    if in_bucket and not conf.keys() & set(_OWN_JARS):
        jars = tuple(str(jar) for jar in sorted(s3_jars().glob("*.jar")))
        if not jars:
            packages, excluded = S3_PACKAGES, S3_EXCLUDED
    return SparkJob(
        f"lockstep-{pipeline.pipeline}-{name}",
        application_of(name),
        tuple(arguments),
        conf,
        jars,
        packages,
        excluded,
        environment,
    )


_AWS_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")


def _s3_conf(pipeline: Pipeline, *, local: bool) -> dict[str, str]:
    conf = {"spark.hadoop.fs.s3a.endpoint.region": pipeline.stage.s3_region}
    endpoint = pipeline.stage.s3_endpoint
    if endpoint:
        conf |= {
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "true" if urlsplit(endpoint).scheme == "https" else "false",
        }
    if local and "AWS_ACCESS_KEY_ID" in os.environ:
        # Keys stay in the environment; this only names the provider that reads them there. Executors elsewhere have
        # credentials of their own: Hadoop's chain looks in the environment, too, and at the instance's role.
        conf["spark.hadoop.fs.s3a.aws.credentials.provider"] = (
            "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
        )
    return conf


def application_of(name: str) -> str:
    """The path of spark_jobs/<name>.py. Raises UsageError (spark.not_installed)."""
    found = importlib.util.find_spec("spark_jobs")
    if found is None or not found.submodule_search_locations:
        raise UsageError(
            "The package spark_jobs is not installed next to cdc_core.",
            code="spark.not_installed",
            remedy="install the project (`make setup`, or pip install lockstep) in this Python",
        )
    return str(Path(next(iter(found.submodule_search_locations))) / f"{name}.py")
