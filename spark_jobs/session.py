"""The Spark session of every job. Settings without which values would not stay exact are set here, whoever submits."""

from __future__ import annotations

import atexit
import os
import shlex
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cdc_core.account import is_named
from cdc_core.apply.jobs import REMOTE, is_local
from cdc_core.errors import Refused, RetryLater
from spark_jobs.shipped_code import code_archive

EXACT: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # Dates before 1582 as they were written: proleptic Gregorian, like the server's.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.caseSensitive": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # A plan that turns out to be empty would replace the observed one, and the counts would be lost.
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
    # A file that a purge or an accident removes while it is read must end the job, whatever the cluster is used to.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Only counts.json makes a folder count: no marker files.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
}
ROWS_PER_PARTITION = 400_000
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
_FIRST_TRIES = 5
"""Of the first call: about 20 s. Later ones are tried for ten minutes, pyspark's default."""
_READY = "spark.lockstep.ready"
_HADOOP = "spark.hadoop."


def is_remote() -> bool:
    """Whether the jobs of this process go to a Spark Connect endpoint, where there is no SparkContext."""
    return REMOTE in os.environ


def is_on_this_machine() -> bool:
    """Whether a session of this process has its executors on this machine, or would have, as far as that is known
    without opening one."""
    if is_remote():
        return False
    context = SparkContext._active_spark_context
    if context is not None:
        return is_local(context.master or "")
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started this process, and told its JVM the master
        SparkContext._ensure_initialized()
        return is_local(SparkConf().get("spark.master") or "")
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    return "--master" not in words or is_local(words[words.index("--master") + 1])


def open_session(name: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session that spark-submit, a test or `lockstep run` prepared, or a new one, with our settings.

    conf: of the pipeline. It counts at a Connect endpoint only; elsewhere spark-submit was given it.
    Raises Refused (spark.remote_setting), RetryLater (spark.endpoint).
    """
    if is_remote():
        return _remote_session(conf or {})
    builder = SparkSession.builder.appName(name)
    for key, value in EXACT.items():
        builder = builder.config(key, value)
    if not is_named():
        SparkContext._ensure_initialized()
        users = SparkContext._gateway.jvm.org.apache.hadoop.security.UserGroupInformation  # type: ignore[union-attr]
        users.setLoginUser(users.createRemoteUser(os.environ.get("SPARK_USER", "lockstep")))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    if not is_local(spark.sparkContext.master or ""):
        spark.sparkContext.addPyFile(str(code_archive()))
    return spark


def _details(error: BaseException | None) -> str:
    """What an error of gRPC says; "" for another one. pyspark has only its text, whose first line says nothing."""
    details = getattr(error, "details", None)
    return str(details() or "") if callable(details) else ""


def _remote_session(conf: Mapping[str, str]) -> SparkSession:
    """A session of its own at the endpoint: nothing of another run is in it. The jobs of a process share it."""
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    os.environ[_CONNECT_MODE] = "1"  # pyspark's functions make expressions for one of both kinds of sessions
    try:
        session = RemoteSession.builder.remote(os.environ[REMOTE]).getOrCreate()
        session.client.set_retry_policies([DefaultPolicy(max_retries=_FIRST_TRIES)])
        made = cast(SparkSession, session)
        ready = made.conf.get(_READY, "")
        session.client.set_retry_policies([DefaultPolicy()])
    except PySparkException as error:
        said = _details(error.__context__) or str(error.__cause__ or error).strip() or type(error).__name__
        raise RetryLater(
            f"The Spark Connect endpoint gives no session: {said.splitlines()[0][:300]}",
            where=urlsplit(os.environ[REMOTE]).netloc.rpartition("@")[2],
            code="spark.endpoint",
            remedy="check spark.master, whether the server runs, and the token in SPARK_CONNECT_AUTHENTICATE_TOKEN or "
            "in the Airflow connection; with a token the endpoint must have TLS, unless it is localhost",
        ) from None
    if ready:
        return made
    for key, value in {**conf, **EXACT}.items():
        try:
            # A session's settings reach Hadoop under Hadoop's own names.
            made.conf.set(key.removeprefix(_HADOOP), value)
        except PySparkException as error:
            raise Refused(
                f"A session of Spark Connect does not take the setting {key}.",
                where="spark.conf",
                code="spark.remote_setting",
                remedy="give it to the Connect server when it starts, and remove it from the pipeline's spark.conf",
            ) from error
    made.addArtifacts(str(code_archive()), pyfile=True)
    made.conf.set(_READY, "true")
    atexit.register(made.stop)  # it ends what the endpoint still does for it
    return made


def parallelism(spark: SparkSession) -> int:
    """How many tasks the executors do at once."""
    if is_remote():
        # As many partitions as a range has by default; the endpoint has no other way to say so.
        return spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()
    return spark.sparkContext.defaultParallelism


def size_shuffles(spark: SparkSession, rows: int) -> None:
    """Shuffle partitions for this many rows: the default, 200, would cost a small run seconds."""
    wanted = max(parallelism(spark), -(-rows // ROWS_PER_PARTITION))
    spark.conf.set("spark.sql.shuffle.partitions", str(min(wanted, 2000)))
