"""The Spark session of a driver. Settings without which values would not stay exact are set here."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cdc_core.errors import Refused, RetryLater
from cdc_core.operations.apply.jobs import is_local, is_remote
from cdc_core.process.account import is_named
from spark_jobs.executors import at_endpoint, key_file
from spark_jobs.shipped_code import code_archive

log = logging.getLogger(__name__)

EXACT: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # Pieces of a shuffle are large; a worker gets few of them at once.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
}
_FIRST_TRIES, _LATER_TRIES, _LAST_TRIES = 5, 7, 1
"""Tries of a session's first call, about 20 s; of later ones, two minutes; and while it is ended. pyspark's ten minutes
for each of several calls help nobody: a server that was gone has forgotten the session."""
_HADOOP = "spark.hadoop."


def open_session(name: str, master: str, conf: Mapping[str, str], output: Path | None = None) -> SparkSession:
    """A session with our settings. output: the file for what its JVM prints; None: it prints where this process does.

    Raises Refused (spark.setup), RetryLater (spark.endpoint).
    """
    if is_remote(master):
        return _remote_session(master, conf)
    handler, here = signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()
    made = SparkConf(loadDefaults=False).setMaster(master).setAppName(name).setAll([*conf.items(), *EXACT.items()])
    if SparkContext._gateway is None:
        with ExitStack() as opened:
            to = opened.enter_context(output.open("ab")) if output else None
            gateway = launch_gateway(made, {"stdout": to, "stderr": to and subprocess.STDOUT})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
    if not is_named():
        users = SparkContext._gateway.jvm.org.apache.hadoop.security.UserGroupInformation  # type: ignore[union-attr]
        users.setLoginUser(users.createRemoteUser(os.environ.get("SPARK_USER", "lockstep")))
    spark = SparkSession.builder.config(conf=made).getOrCreate()
    if here:
        signal.signal(signal.SIGINT, handler)  # pyspark has set one of its own
    spark.sparkContext.setLogLevel("WARN")
    log.info("Spark's application: %s", spark.sparkContext.applicationId)
    if not is_local(master):
        spark.sparkContext.addPyFile(str(code_archive()))
    return spark


def end_session(spark: SparkSession) -> None:
    """Ends a session, and what it still does at its endpoint; else the JVM of this process, too."""
    if at_endpoint(spark):
        _tried(spark, _LAST_TRIES)
        with suppress(Exception):  # it may be gone
            spark.stop()
        return
    gateway, jvm = SparkContext._gateway, getattr(SparkContext._gateway, "proc", None)
    with suppress(Exception):  # it may be gone
        spark.stop()
    if gateway is not None and jvm is not None:
        with suppress(Exception):
            gateway.shutdown()
        jvm.stdin.close()
        jvm.wait()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def describe(spark: SparkSession, what: str) -> None:
    """Names the jobs that follow in Spark's UI."""
    if not at_endpoint(spark):
        spark.sparkContext.setJobDescription(what)


def _tried(session: Any, tries: int) -> None:
    """How often calls of a session at an endpoint are tried."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=tries)])


def _details(error: BaseException | None) -> str:
    """The details of an error of gRPC; "" for another one. The first line of pyspark's own text says nothing."""
    details = getattr(error, "details", None)
    return str(details() or "") if callable(details) else ""


def _remote_session(endpoint: str, conf: Mapping[str, str]) -> SparkSession:
    """A session of its own at the endpoint: nothing of another run is in it."""
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    try:
        made = cast(SparkSession, RemoteSession.builder.remote(endpoint).create())
        _tried(made, _FIRST_TRIES)
        made.conf.get("spark.sql.session.timeZone")
        _tried(made, _LATER_TRIES)
    except PySparkException as error:
        said = _details(error.__context__) or str(error.__cause__ or error).strip() or type(error).__name__
        raise RetryLater(
            f"The Spark Connect endpoint gives no session: {said.splitlines()[0][:300]}",
            where=urlsplit(endpoint).netloc.rpartition("@")[2],
            code="spark.endpoint",
            remedy="check spark.master, whether the server runs, and the token in SPARK_CONNECT_AUTHENTICATE_TOKEN or "
            "in the Airflow connection; with a token the endpoint must have TLS, unless it is localhost",
        ) from None
    for key, value in {**conf, **EXACT}.items():
        try:
            # A session's settings reach Hadoop under Hadoop's own names.
            made.conf.set(key.removeprefix(_HADOOP), value)
        except PySparkException as error:
            raise Refused(
                f"A session of Spark Connect does not take the setting {key}.",
                where="spark.conf",
                code="spark.setup",
                remedy="give it to the Connect server when it starts, and remove it from the pipeline's spark.conf",
            ) from error
    made.addArtifacts(str(code_archive()), pyfile=True)
    made.addArtifacts(str(key_file()), file=True)
    return made


def parallelism(spark: SparkSession) -> int:
    """How many tasks the executors do at once."""
    if at_endpoint(spark):
        # As many partitions as a range has by default; the endpoint has no other way to say so.
        return spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()
    return spark.sparkContext.defaultParallelism
