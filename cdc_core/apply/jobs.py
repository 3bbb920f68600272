"""The Spark jobs of a run as plain data, and the settings of the Spark that does them.

Logins are not among the settings: the jobs read them from the environment of the process that is their driver.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from cdc_core.account import cache_folder
from cdc_core.config import Pipeline
from cdc_core.model.run import RunPlan


@dataclass(frozen=True, slots=True)
class SparkJob:
    """One job of a run. name: of its task. A merge has a merge_set, any other job a target."""

    name: str
    plan: RunPlan
    merge_set: str | None = None
    target: str | None = None


class Spark(Protocol):
    """Runs the Spark jobs of a run, one after the other (spark_jobs/driver.py)."""

    def submit(self, job: SparkJob) -> None:
        """Runs a job to its end. Raises the error that ended it."""

    def load(self) -> None:
        """Imports what jobs need."""


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

LOCAL_CONF: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.level=WARN",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The workers need the packages of this Python.
    "spark.pyspark.python": sys.executable,
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

    Without it Spark resolves the jars at each start, from the user's Ivy cache or the network: this takes
    seconds, and two applications that start at once with an empty cache disturb each other.
    """
    return cache_folder(os.environ) / "maven" / f"spark-s3-{S3_PACKAGES[0].rpartition(':')[2]}"


def is_remote(master: str) -> bool:
    """Whether a master's URL is the endpoint of a Spark Connect server."""
    return master.startswith("sc://")


def is_local(master: str) -> bool:
    """Whether a master's URL means this machine: the executors then are this process's own, with its environment."""
    return master.startswith("local")


def settings_of(pipeline: Pipeline, master: str) -> dict[str, str]:
    """What Spark is told for the jobs of a pipeline; a session at a Connect endpoint has the pipeline's settings only.

    A pipeline with `spark.jars` or `spark.jars.packages` provides the jars for its stage itself.
    """
    own = dict(pipeline.spark.conf)
    if is_remote(master):
        return own
    local = is_local(master)
    found = {**ANYWHERE, **(LOCAL_CONF if local else {})}
    if pipeline.stage.uri.startswith("s3://"):
        found |= _s3_conf(pipeline, local=local)
        if not own.keys() & {"spark.jars", "spark.jars.packages"}:
            found |= _s3_jars()
    return found | own


def _s3_jars() -> dict[str, str]:
    if jars := sorted(s3_jars().glob("*.jar")):
        return {"spark.jars": ",".join(map(str, jars))}
    return {"spark.jars.packages": ",".join(S3_PACKAGES), "spark.jars.excludes": ",".join(S3_EXCLUDED)}


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
