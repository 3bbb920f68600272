"""The Spark session of every job. Settings without which values would not stay exact are set here, whoever submits."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

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


def open_session(name: str) -> SparkSession:
    """The session that spark-submit, a test or `lockstep run` prepared, or a new one, with our settings."""
    builder = SparkSession.builder.appName(name)
    for key, value in EXACT.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def size_shuffles(spark: SparkSession, rows: int) -> None:
    """Shuffle partitions for this many rows: the default, 200, would cost a small run seconds."""
    wanted = max(spark.sparkContext.defaultParallelism, -(-rows // ROWS_PER_PARTITION))
    spark.conf.set("spark.sql.shuffle.partitions", str(min(wanted, 2000)))
