"""The Spark jobs of a run as plain data, and the settings of the Spark that does them.

Logins are not among the settings: the jobs read them from the environment of the process that is their driver.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cdc_core.config import Pipeline
from cdc_core.model.run_plan import RunPlan


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
}


def is_remote(master: str) -> bool:
    """Whether a master's URL is the endpoint of a Spark Connect server."""
    return master.startswith("sc://")


def is_local(master: str) -> bool:
    """Whether a master's URL means this machine: the executors then are this process's own, with its environment."""
    return master.startswith("local")


def settings_of(pipeline: Pipeline, master: str) -> dict[str, str]:
    """What Spark is told for the jobs of a pipeline; at a Connect endpoint the pipeline's settings only."""
    own = dict(pipeline.spark.conf)
    return own if is_remote(master) else {**ANYWHERE, **(LOCAL_CONF if is_local(master) else {}), **own}
