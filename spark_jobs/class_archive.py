"""Builds the JVM's archive of Spark's loaded classes (AppCDS): each later local job starts with a third less CPU.

`python -m spark_jobs.class_archive` runs a small job that resembles the real ones and lets the JVM save the classes
that it loaded, 170 MB, to the cache folder (cdc_core.apply.jobs.class_archive). A missing archive, or one of another
Java or Spark, costs only time: the JVM ignores it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from cdc_core.apply.jobs import ANYWHERE, LOCAL_CONF, class_archive

log = logging.getLogger(__name__)


def make() -> Path:
    """The archive, built now if it is missing. Raises CalledProcessError with Spark's output in the log."""
    archive = class_archive()
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        fresh = Path(folder) / archive.name
        conf = {**ANYWHERE, **LOCAL_CONF, "spark.pyspark.python": sys.executable}
        conf["spark.driver.extraJavaOptions"] += f" -XX:ArchiveClassesAtExit={fresh}"
        options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        submit = str(Path(sys.executable).parent / "spark-submit")
        # pyspark's own scripts look for the interpreter on PATH.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        done = subprocess.run(
            [submit, "--master", "local[2]", *options, __file__, "work", folder],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": path},
        )
        if done.returncode:
            log.error("%s", (done.stdout + done.stderr)[-4000:])
            done.check_returncode()
        fresh.replace(archive)
    return archive


def work(folder: Path) -> None:
    """Uses what the jobs use: Parquet both ways, an aggregation of structs, Python workers, an observation."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    from spark_jobs.session import open_session, size_shuffles

    def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    spark = open_session("lockstep class archive")
    size_shuffles(spark, 1000)
    rows = spark.range(1000).select("id", (F.col("id") % 10).alias("k"), F.lit("x").alias("text"))
    rows.write.mode("overwrite").parquet(f"file:{folder}/a")
    seen = Observation()
    last = spark.read.parquet(f"file:{folder}/a").groupBy("k").agg(F.max_by(F.struct("id", "text"), "id").alias("w"))
    last = (
        last.select("k", "w.*")
        .observe(seen, F.count(F.lit(1)).alias("n"))
        .mapInArrow(same, "k long, id long, text string")
    )
    last.persist().write.mode("overwrite").parquet(f"file:{folder}/b")
    last.toArrow()
    last.repartitionById(2, (F.col("k") % 2).cast("int")).collect()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(Path(sys.argv[2]))
    else:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        log.info("Spark's class archive: %s", make())
