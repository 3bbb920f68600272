"""Probe: a tiny job that shows whether Spark's executors can do the jobs of a pipeline. `lockstep check` submits it.

Arguments: --pipeline FILE --answer FILE. The answer is JSON: `executors` in words, `errors` as lines of
errors.to_line, and `unencrypted`: whether logins travel to the executors in plain text. In this order: the executors'
Python and packages; whether they have the driver's code; the stage, both ways and by Spark itself; the targets. What
comes later is not asked where it could not work.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from cdc_core.apply.jobs import REMOTE, is_local
from cdc_core.apply.spark_packages import BUCKET_MODULES, MODULES
from cdc_core.config import Pipeline, StageConfig, load
from cdc_core.connections import Server, connect, is_loopback, resolve
from cdc_core.errors import LockstepError, Refused, from_text, to_line
from cdc_core.stage.objects import ObjectStore, check_writable
from cdc_core.stage.stores import open_stage
from cdc_core.words import counted
from spark_jobs.executor_facts import ExecutorFacts, facts_of, python_version
from spark_jobs.executors import on_executors
from spark_jobs.failures import found
from spark_jobs.job import leave
from spark_jobs.session import is_remote, open_session, parallelism
from spark_jobs.shipped_code import code_archive, digest_in

log = logging.getLogger(__name__)
_OTHER_PYTHON = "PYTHON_VERSION_MISMATCH"
"""Spark's condition for executors with another minor version of Python."""
_RAISED = re.compile(r"(?!org\.|java|py4j)[\w.]+(Error|Exception): ")
"""How Python prints an exception; the rest of the text is Spark's."""
_ASKED_TWICE = 2
"""Tasks for each core: so that, if none is slow, all executors are asked."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What an executor is to find on the stage, and to leave there. number: of the task."""

    folder: str
    expected: bytes
    number: int


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="probe")
    parser.add_argument("--pipeline", required=True, type=Path)
    parser.add_argument("--answer", required=True, type=Path)
    arguments = parser.parse_args(argv)
    pipeline = load(arguments.pipeline)
    errors: list[LockstepError] = []
    said, unencrypted = "", False
    try:
        spark = open_session("lockstep check", pipeline.spark.conf)
        unencrypted = _unencrypted(spark)
        said = _probe(spark, pipeline, errors)
    except LockstepError as error:
        errors.append(error)
    except Exception as error:
        log.info("the executors were asked", exc_info=True)
        errors.append(_meant(error))
    answer = {"executors": said, "errors": [to_line(one) for one in errors], "unencrypted": unencrypted}
    arguments.answer.write_text(json.dumps(answer))
    return 0


def _probe(spark: SparkSession, pipeline: Pipeline, errors: list[LockstepError]) -> str:
    """Adds what is wrong; the executors in words."""
    tasks = parallelism(spark) * _ASKED_TWICE
    in_bucket = pipeline.stage.uri.startswith("s3://")
    modules = (*MODULES, *(BUCKET_MODULES if in_bucket else ()))
    executors = sorted(set(on_executors(spark, [modules] * tasks, facts_of)), key=lambda one: one.host)
    errors += _unfit(executors)
    if not errors:
        errors += _stage_errors(spark, pipeline, tasks)
        errors += _target_errors(spark, pipeline, tasks)
    hosts = sorted({one.host for one in executors})
    return f"Python {python_version()} on {counted(len(hosts), 'host')} ({', '.join(hosts[:5])})"


def _unfit(executors: Sequence[ExecutorFacts]) -> Iterator[LockstepError]:
    packages = {**MODULES, **BUCKET_MODULES}
    ours = digest_in(str(code_archive()))
    for one in dict.fromkeys(executors):
        if one.missing:
            names = ", ".join(packages[name] for name in one.missing)
            yield Refused(
                f"Spark's executors lack Python packages: {names}.",
                where=one.host,
                code="spark.executor_packages",
                remedy=f"install them in the executors' Python: pip install {names.replace(',', '')}; or make an "
                "archive of them with `lockstep spark pack` and name it in spark.archives (docs/spark.md)",
            )
        elif digest_in(one.code) != ours and not _is_here(one.code):
            yield Refused(
                f"Spark's executors have other code of Lockstep than this driver: {one.code}.",
                where=one.host,
                code="spark.executor_code",
                remedy="remove that installation from the executors' PYTHONPATH, which comes before the code that "
                "travels with the application",
            )


def _is_here(path: str) -> bool:
    """Whether the executor has the driver's own files, as one on a local master does."""
    import cdc_core

    return cdc_core.__file__ is not None and Path(path) == Path(cdc_core.__file__)


def _meant(error: Exception) -> LockstepError:
    """The error for what Spark raised because an executor could not even answer."""
    known = found(error)
    if known is not None:
        return known
    if _OTHER_PYTHON in str(error):
        return Refused(
            f"Spark's executors have another minor version of Python than this driver, {python_version()}.",
            code="spark.executor_python",
            remedy=f"set spark.pyspark.python, in the pipeline's spark.conf, to a Python {python_version()} of the "
            "executors; at a Connect endpoint, PYSPARK_PYTHON of the server",
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return Refused(
        f"Spark's executors cannot do a job of Lockstep: {(raised or lines or [type(error).__name__])[-1][:400]}",
        code="spark.executor",
        remedy="docs/spark.md says what executors need; the output of the application has the whole error",
    )


def _stage_errors(spark: SparkSession, pipeline: Pipeline, tasks: int) -> list[LockstepError]:
    store, folder, stage = open_stage(pipeline.stage), f".probe/{uuid.uuid4().hex}", pipeline.stage
    mark = uuid.uuid4().bytes
    try:
        store.put(f"{folder}/driver", mark)
        asked = [_Asked(folder, mark, number) for number in range(tasks)]

        def look(one: _Asked) -> Iterator[tuple[str, str]]:
            return _looked_at_stage(stage, one)

        answers = on_executors(spark, asked, look)
        errors = _different(answers)
        for number, (host, error) in enumerate(answers):
            if not error and not _holds(store, f"{folder}/{number}", mark):
                errors.append(_not_shared(host, stage.uri))
                break
        return errors or _jvm_errors(spark, store, folder)
    finally:
        for info in list(store.list(folder + "/")):
            store.delete(info.path)


def _looked_at_stage(stage: StageConfig, asked: _Asked) -> Iterator[tuple[str, str]]:
    """On an executor: its host, and the error that it met."""

    def look() -> None:
        store = open_stage(stage)
        if not _holds(store, f"{asked.folder}/driver", asked.expected):
            raise _not_shared(socket.gethostname(), stage.uri)
        check_writable(store)
        store.put(f"{asked.folder}/{asked.number}", asked.expected)

    yield _tried(look)


def _holds(store: ObjectStore, path: str, expected: bytes) -> bool:
    return store.stat(path) is not None and store.get(path) == expected


def _not_shared(host: str, uri: str) -> Refused:
    return Refused(
        f"The driver and an executor do not see the same stage: one does not find what the other wrote to {uri}.",
        where=host,
        code="spark.stage_not_shared",
        remedy="use a stage in a bucket, or a directory that all machines of the cluster mount at the same path",
    )


def _jvm_errors(spark: SparkSession, store: ObjectStore, folder: str) -> list[LockstepError]:
    """Spark reads and writes the stage itself, too, through Hadoop's file systems."""
    uri = store.spark_uri(f"{folder}/rows")
    try:
        spark.range(3).repartition(2).write.parquet(uri)
        count = spark.read.parquet(uri).count()
    except Exception as error:
        log.info("Spark wrote and read %s", uri, exc_info=True)
        return [
            Refused(
                f"Spark itself cannot write and read the stage: {str(error).strip().splitlines()[0][:400]}",
                where=uri,
                code="spark.stage",
                remedy="executors need Hadoop's jars for buckets, the endpoint and credentials, which Lockstep's own "
                "reader takes from their environment, and Spark from fs.s3a settings (docs/spark.md)",
            )
        ]
    return [] if count == 3 and list(store.list(f"{folder}/rows/")) else [_not_shared(socket.gethostname(), uri)]


def _target_errors(spark: SparkSession, pipeline: Pipeline, tasks: int) -> list[LockstepError]:
    references = [(target.name, one) for target in pipeline.targets for one in target.connections]
    servers: dict[str, Server] = {}
    errors: list[LockstepError] = []
    for name, reference in references:
        try:
            servers[f"target {name}"] = resolve(reference)
        except LockstepError as error:
            errors.append(error)

    def reach(_: int) -> Iterator[tuple[str, str]]:
        for subject, server in servers.items():
            yield _tried(partial(_connected, server, subject))

    return errors + _different(on_executors(spark, list(range(tasks)), reach))


def _connected(server: Server, subject: str) -> None:
    connect(server, where=subject).close()


def _tried(work: Callable[[], object]) -> tuple[str, str]:
    """This host, and the error of the work on it."""
    host = socket.gethostname()
    try:
        work()
    except LockstepError as error:
        return host, to_line(_from(host, error))
    return host, ""


def _from(host: str, error: LockstepError) -> LockstepError:
    kind = type(error)
    return kind(error.what, where=f"{error.where}, from the executor {host}", code=error.code, remedy=error.remedy)


def _different(answers: Sequence[tuple[str, str]]) -> list[LockstepError]:
    """One error of each host and kind."""
    errors: dict[str, LockstepError] = {}
    for _, text in answers:
        if text and (error := from_text(text)) is not None:
            errors.setdefault(f"{error.code} {error.where}", error)
    return list(errors.values())


def _unencrypted(spark: SparkSession) -> bool:
    """Whether logins of targets reach the executors in plain text, over a network."""
    if is_remote():
        address = urlsplit(os.environ[REMOTE])
        options = address.path.lower()
        secure = "use_ssl=true" in options or "token=" in options or _TOKEN in os.environ
        return not secure and not is_loopback(address.hostname or "")
    conf = spark.sparkContext.getConf()
    master = conf.get("spark.master") or ""
    host = urlsplit(master).hostname if master.startswith("spark://") else ""
    if is_local(master) or (host and is_loopback(host)):
        return False
    return not any(_is_true(dict(conf.getAll()), name) for name in _ENCRYPTING)


_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  the name of a variable
"""With a token pyspark speaks TLS."""
_ENCRYPTING = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")


def _is_true(conf: Mapping[str, str], name: str) -> bool:
    with suppress(KeyError):
        return conf[name].lower() == "true"
    return False


if __name__ == "__main__":
    from spark_jobs import probe as this

    leave(this.main())
