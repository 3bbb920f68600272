"""Whether the executors of a Spark elsewhere can do a pipeline's jobs: they import what these import, and reach the
stage and the targets. `lockstep check` asks them.
"""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from cdc_core.config import Pipeline, StageConfig
from cdc_core.errors import LockstepError, Refused
from cdc_core.model.readable import counted
from cdc_core.mysql.connections import Server, connect, is_loopback, resolve
from cdc_core.operations.apply.jobs import is_remote
from cdc_core.stage.objects import ObjectStore, check_writable
from cdc_core.stage.stores import open_stage
from spark_jobs.executors import on_executors
from spark_jobs.spark_failures import carried, found
from spark_jobs.spark_session import parallelism

if TYPE_CHECKING:
    from cdc_core.operations.check.findings import Findings  # not on executors: it imports much that these lack

SUBJECT = "spark"
_RAISED = re.compile(r"(?!org\.|java|py4j)[\w.]+(Error|Exception): ")
"""How Python prints an exception; the rest of the text is Spark's."""
_ASKED_TWICE = 2
"""Tasks for each core: so that, if none is slow, all executors are asked."""


def check_executors(spark: SparkSession, master: str, pipeline: Pipeline, store: ObjectStore, to: Findings) -> None:
    """Raises the first error that is found."""
    if _unencrypted(spark, master):
        to.warn(
            SUBJECT,
            "logins of the targets travel to the executors in plain text",
            "set spark.authenticate and spark.network.crypto.enabled for driver and executors, or TLS at a Connect "
            "endpoint (docs/spark.md)",
        )
    stage, folder, mark = pipeline.stage, f".probe/{uuid.uuid4().hex}", uuid.uuid4().bytes
    servers = {
        f"target {target.name}, {connection}": resolve(connection)
        for target in pipeline.databases
        for connection in target.connections
    }

    lake = len(pipeline.databases) < len(pipeline.targets)

    def look(number: int) -> Iterator[str]:
        with carried():
            if lake:
                import spark_jobs.lake_filter
                import spark_jobs.lake_write  # noqa: F401
            yield _looked(stage, folder, mark, number, servers)

    try:
        store.put(f"{folder}/driver", mark)
        hosts = on_executors(spark, range(parallelism(spark) * _ASKED_TWICE), look)
        for number, host in enumerate(hosts):
            if not _holds(store, f"{folder}/{number}", mark):
                raise _not_shared(host, stage.uri)
    except LockstepError:
        raise
    except Exception as error:
        raise _meant(error) from error
    finally:
        for info in list(store.list(folder + "/")):
            store.delete(info.path)
    names = sorted(set(hosts))
    to.ok(SUBJECT, f"executors on {counted(len(names), 'host')} ({', '.join(names[:5])}) can do the jobs")


def _looked(stage: StageConfig, folder: str, mark: bytes, number: int, servers: Mapping[str, Server]) -> str:
    """On an executor: its host."""
    import spark_jobs.filter
    import spark_jobs.merge
    import spark_jobs.suite_parts
    import spark_jobs.write  # noqa: F401

    host = socket.gethostname()
    try:
        store = open_stage(stage)
        if not _holds(store, f"{folder}/driver", mark):
            raise _not_shared(host, stage.uri)
        check_writable(store)
        store.put(f"{folder}/{number}", mark)
        for subject, server in servers.items():
            connect(server, where=subject).close()
    except LockstepError as error:
        where = f"{error.where}, from the executor {host}"
        raise type(error)(error.what, where=where, code=error.code, remedy=error.remedy) from None
    return host


def _holds(store: ObjectStore, path: str, expected: bytes) -> bool:
    return store.stat(path) is not None and store.get(path) == expected


def _not_shared(host: str, uri: str) -> Refused:
    return Refused(
        f"The driver and an executor do not see the same stage: one does not find what the other wrote to {uri}.",
        where=host,
        code="spark.setup",
        remedy="use a stage in a bucket, or a directory that all machines of the cluster mount at the same path",
    )


def _meant(error: Exception) -> LockstepError:
    """An error of ours that an executor raised; or what kept it from answering."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return found(error) or Refused(
        f"Spark's executors cannot do a job of Lockstep: {(raised or lines or [type(error).__name__])[-1][:400]}",
        code="spark.setup",
        remedy="install what they lack, or set spark.pyspark.python to a Python with the driver's minor version and "
        "the packages (docs/spark.md, 'What executors need')",
    )


def _unencrypted(spark: SparkSession, master: str) -> bool:
    """Whether logins of targets reach the executors in plain text, over a network."""
    host = urlsplit(master).hostname or ""
    if is_remote(master):
        from pyspark.sql.connect.client import DefaultChannelBuilder

        return not DefaultChannelBuilder(master).secure and not is_loopback(host)
    names = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")
    encrypted = any(spark.sparkContext.getConf().get(name, "") == "true" for name in names)
    return not encrypted and not (master.startswith("spark://") and is_loopback(host))
