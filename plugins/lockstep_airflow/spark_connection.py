"""The Spark that an Airflow connection names, as the driver of a task's jobs: the task itself.

As for the provider's `@task.pyspark`, extras of the connection whose names begin with `spark.` are settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from cdc_core.errors import Refused, UsageError

if TYPE_CHECKING:
    from cdc_core.config import Pipeline
    from cdc_core.stage.objects import ObjectStore
    from spark_jobs.driver import Driver

_EXTRAS = {"queue": "spark.yarn.queue", "namespace": "spark.kubernetes.namespace"}
"""Extras that connections of spark-submit have, and the settings that they mean."""


def driver_of(connection_id: str, pipeline: Pipeline, store: ObjectStore) -> Driver:
    """Raises UsageError (airflow.connection, install.missing), Refused (spark.setup)."""
    from spark_jobs.driver import Driver

    try:
        connection = BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        raise UsageError(
            f"Airflow has no connection {connection_id!r}.",
            where="spark.connection",
            code="airflow.connection",
            remedy=f"add it: airflow connections add {connection_id} --conn-type spark --conn-host 'local[*]', or the "
            "URL of your cluster's master; a Spark Connect endpoint has type spark_connect and a host sc://…",
        ) from None
    if connection.conn_type == "spark_connect":
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

        return Driver(pipeline, store, master=SparkConnectHook(connection_id).get_connection_url())
    extras = connection.extra_dejson
    if extras.get("deploy-mode") == "cluster":
        raise Refused(
            f"The Spark connection {connection_id!r} has deploy-mode cluster.",
            where="spark.connection",
            code="spark.setup",
            remedy="set deploy-mode to client: the driver then runs on the task's host, with the logins of its "
            "environment, and ends with the task; its executors are the cluster's anyway (docs/spark.md)",
        )
    conf = {_EXTRAS.get(name, name): str(value) for name, value in extras.items()}
    conf = {name: value for name, value in conf.items() if name.startswith("spark.")}
    host = connection.host or ""
    master = f"{host}:{connection.port}" if connection.port else host
    return Driver(pipeline, store, master=master, conf=conf)
