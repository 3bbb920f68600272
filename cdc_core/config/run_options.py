"""The keys `spark`, `quality` and `airflow`: how a run is made and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from cdc_core.config.value_types import Model, Settings


class SparkOptions(Model):
    """Which Spark does what a run's own process does not."""

    connection: str = Field(
        "spark_default",
        description="under Airflow: the connection ID of a Spark cluster or a Spark Connect endpoint",
    )
    master: str = Field(
        "local[*]",
        description="for `lockstep run`: local[*], a Spark master's URL, yarn, k8s://https://…, or "
        "sc://host:15002 (Spark Connect)",
    )
    driver_rows: int = Field(
        1_000_000,
        ge=0,
        description="a run of at most so many changes needs no Spark, unless they take more than 256 MiB of memory; 0: "
        "always use Spark",
    )
    conf: Settings = Field(default_factory=dict, description="Spark settings by name; no secrets")

    @model_validator(mode="after")
    def _client_mode(self) -> SparkOptions:
        if self.conf.get("spark.submit.deployMode", "client") != "client":
            raise ValueError(
                "conf sets spark.submit.deployMode: leave it out, so that the driver runs and ends with the task, with "
                "the logins of its environment; docs/spark.md says why"
            )
        return self

    @model_validator(mode="after")
    def _endpoint(self) -> SparkOptions:
        if self.master.startswith("sc://") and "token" in self.master.lower():
            raise ValueError(
                "master holds a token: put it into the variable SPARK_CONNECT_AUTHENTICATE_TOKEN of whoever runs "
                "`lockstep run`, or into the password of the Airflow connection"
            )
        return self


class Suite(Model):
    """A Great Expectations suite of your own. An unmet critical expectation fails the run; others are only reported."""

    table: str = Field(min_length=1, description="the logical table whose rows it checks")
    stage: Literal["staged", "merged"] = Field(
        "merged", description="staged: every change of the run; merged: the last change of each key"
    )
    path: str = Field(
        min_length=1,
        description="JSON or YAML file with `expectations`, each with type, kwargs and severity; relative to "
        "the pipeline file",
    )


class Quality(Model):
    """Checks of each run, in addition to the built-in ones."""

    suites: tuple[Suite, ...] = Field((), description="suites of your own")
    sample_rows: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="a run that wrote more rows reads back this many, evenly spaced; default: every run reads "
        "all rows back",
    )


class Notified(Model):
    """A receiver of problems: of each once when it is new, and once when it is solved."""

    use: str = Field(
        pattern=r"^[\w.]+:\w+$",
        description="MODULE:NAME of a notifier of Airflow, whose templates have `problem`, or of a function, which is "
        "given it",
    )
    options: Mapping[str, Any] = Field(default_factory=dict, description="keyword arguments of either")


class Airflow(Model):
    """How the pipeline's DAG runs. Set pools and connections in Airflow itself."""

    sensor: Literal["poke", "reschedule"] = Field(
        "poke", description="poke holds a worker slot while it drains; reschedule frees it between pokes"
    )
    poke_interval_s: float = Field(5.0, gt=0, description="pause between two pokes of the extract task")
    timeout_s: float = Field(6 * 3600.0, gt=0, description="the extract task fails if it pokes for longer")
    retries: int = Field(5, ge=0, description="retries of a task that was killed or met a temporary error")
    retry_delay_s: float = Field(10.0, gt=0, description="delay before the first retry; doubles up to ten minutes")
    pool: str | None = Field(None, description="Airflow pool for all tasks")
    notify: tuple[Notified, ...] = Field((), description="receivers of problems")
