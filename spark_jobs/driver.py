"""The driver of a run's jobs: the process that runs them, which is a command's, or that of a task of Airflow.

A small job needs no Spark. The first one that does starts it, for the jobs that follow, too: a session at a Connect
endpoint, or a JVM below this process. The JVM ends when its stdin does, so that it does not outlive this process,
however that ends. Spark also ends after a job that failed: the next job gets a new one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cdc_core.config import IcebergTarget, Pipeline
from cdc_core.errors import LockstepError, RetryLater
from cdc_core.model.readable import some_of
from cdc_core.model.tasks import SPARK_JOBS
from cdc_core.mysql.connections import variable_of
from cdc_core.operations.apply.jobs import SparkJob, is_remote, settings_of
from cdc_core.process.extras import require
from cdc_core.process.quiet_libraries import quiet_libraries
from cdc_core.stage.objects import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_core.operations.check.findings import Findings
    from spark_jobs.job import Job


log = logging.getLogger(__name__)
_SHOWN_TABLES = 5
"""So many names are in Spark's UI."""


class Driver:
    """Runs the jobs of a pipeline in this process, one after the other. A context manager: leaving it ends Spark.
    Raises UsageError (install.missing).

    master: of Spark, or a Connect endpoint. conf: settings in addition to the pipeline's. output: the file for what the
    JVM prints; None: it prints where this process does.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: ObjectStore,
        *,
        master: str,
        conf: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> None:
        if is_remote(master):
            require("connect", by="a Spark Connect endpoint")
        self._pipeline = pipeline
        self._store = store
        self._master = master
        self._conf = {**settings_of(pipeline, master), **(conf or {})}
        self._output = output
        self._spark: SparkSession | None = None
        self._shown = ""
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def submit(self, job: SparkJob) -> None:
        """Runs a job to its end.

        Raises the error that ended it: its own, or RetryLater (spark.ended) for one of Spark's.
        """
        from spark_jobs.job import Job

        given = (self._pipeline, job.plan, self._store, job.merge_set, job.target)
        with self._doing(job.name):
            made = Job(self._session, *given)
            self._shown = (
                f"{job.name}: {some_of([table.table for table in made.tables() if table.files], _SHOWN_TABLES)}"
            )
            began_s = time.monotonic()
            work_of(job.name, lake=job.target is not None and isinstance(made.target, IcebergTarget))(made)
            by = "the driver" if self._spark is None else "Spark"
            log.info("run %s %s: by %s, %.1f s", job.plan.run_id, job.name, by, time.monotonic() - began_s)

    def check(self, to: Findings) -> None:
        """Whether executors that are elsewhere can do the jobs. Raises as `submit` does."""
        from spark_jobs.probe import check_executors

        with self._doing("check"):
            check_executors(self._session(), self._master, self._pipeline, self._store, to)

    @staticmethod
    def load() -> None:
        """Imports what jobs need: Great Expectations takes seconds. Not beside other work: of packages that import each
        other, as SQLAlchemy's do, a second thread that imports may see half."""
        for name in SPARK_JOBS:
            work_of(name)
        import spark_jobs.suite_runner  # noqa: F401

    @contextmanager
    def _doing(self, name: str) -> Iterator[None]:
        try:
            with self._ready():
                yield
        except BaseException as error:
            meant = self._meant(name, error)  # an error of Spark asks its JVM for its text
            self._end()
            if meant is None:
                raise
            raise meant from error

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Within the block, this process is as a job needs it."""
        import pyarrow as pa

        quiet_libraries()
        variables: dict[str, str | None] = {
            # One of the user's own must not lead a job elsewhere.
            "SPARK_REMOTE": None,
            # pyspark's functions make expressions for one of both kinds of sessions.
            "SPARK_CONNECT_MODE_ENABLED": "1" if is_remote(self._master) else None,
        }
        if "spark.pyspark.python" in self._conf:  # which pyspark leaves to spark-submit
            variables["PYSPARK_PYTHON"] = self._conf["spark.pyspark.python"]
        pool = pa.default_memory_pool()
        # Measured: Arrow's own allocator takes a new page for nearly every buffer: twice the CPU time of a merge.
        pa.set_memory_pool(pa.system_memory_pool())
        try:
            with environment(variables):
                yield
        finally:
            pa.set_memory_pool(pool)

    def _session(self) -> SparkSession:
        from spark_jobs.spark_session import describe, open_session

        with self._opening:
            if self._spark is None:
                name = f"lockstep {self._pipeline.pipeline}"
                # Logins that no job needs, which the JVM would inherit. Other threads of this process may need them.
                with environment(dict.fromkeys(unneeded(self._pipeline))):
                    self._spark = open_session(name, self._master, self._conf, self._output)
            describe(self._spark, self._shown)
            return self._spark

    def _meant(self, name: str, error: BaseException) -> LockstepError | None:
        """The error to raise in place of another one: what a worker or a server said, or that Spark has failed."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        from spark_jobs.spark_failures import found

        if isinstance(error, LockstepError) or not isinstance(error, Exception):
            return None
        meant = found(error)
        if meant is None and isinstance(error, (Py4JError, PySparkException, ConnectionError)):
            if self._output is not None:
                with self._output.open("a") as file:
                    traceback.print_exception(error, file=file)
            said = next(iter(str(error).strip().splitlines()), type(error).__name__)
            meant = RetryLater(
                f"Spark has ended the job {name}: {said[:400]}",
                where=str(self._output or "the task's log, above"),
                code="spark.ended",
                remedy="look there for lack of memory, Java errors, a missing jar or cluster problems; then run it "
                "again: no change is applied twice",
            )
        return meant

    def _end(self) -> None:
        spark, self._spark = self._spark, None
        if spark is not None:
            from spark_jobs.spark_session import end_session

            end_session(spark)


def work_of(name: str, *, lake: bool = False) -> Callable[[Job], None]:
    """Each is imported when it is due."""
    match name:
        case "filter" if lake:
            from spark_jobs.lake_filter import apply_filter as filter_for_lake

            return filter_for_lake
        case "write" if lake:
            from spark_jobs.lake_write import write as write_to_lake

            return write_to_lake
        case "merge":
            from spark_jobs.merge import merge

            return merge
        case "filter":
            from spark_jobs.filter import apply_filter

            return apply_filter
        case "write":
            from spark_jobs.write import write

            return write
        case "quality":
            from spark_jobs.quality import check

            return check
    raise ValueError(f"Spark has jobs for {', '.join(SPARK_JOBS)}; this one is {name!r}.")


def unneeded(pipeline: Pipeline) -> set[str]:
    """The variables with logins of sources and meta, of catalogs, which workers do not ask, and the salt of masks."""
    needed = {connection for target in pipeline.databases for connection in target.connections}
    references = {*pipeline.references, *([pipeline.meta.url] if pipeline.meta.url.startswith("env:") else [])}
    return {variable_of(reference) for reference in references - needed} | {*map(variable_of, pipeline.lake_references)}


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Within the block, this process's environment has these variables; None: it lacks them."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
