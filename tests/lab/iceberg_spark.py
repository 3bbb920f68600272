"""Iceberg's own runtime in a Spark of its own, over tables of any catalog of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
from pyiceberg.table import Table

from examples.sandbox.artifacts import ICEBERG, fetch, java
from examples.sandbox.spark import JAVA_OPTIONS

_PROGRAM = """
import sys
from pyspark.sql import SparkSession
import pyarrow.feather as feather
jars, warehouse, query, out = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]").config("spark.jars", jars).config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC").config("spark.sql.execution.arrow.pyspark.enabled", "true")
    .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "hadoop").config("spark.sql.catalog.lake.warehouse", warehouse)
    .getOrCreate()
)
feather.write_feather(spark.sql(query).toArrow(), out, compression="uncompressed")
"""


def by_spark(folder: Path, tables: list[Table], query: str) -> pa.Table:
    """What a query answers. tables: those that it names, as lake.<namespace>.<table>: a catalog of Hadoop's kind, which
    is a folder, has links to theirs."""
    warehouse, out, program = folder / "hadoop", folder / "answer.arrow", folder / "ask_spark.py"
    for table in tables:
        place, link = Path(table.location().removeprefix("file://")), warehouse.joinpath(*table.name())
        metadata = Path(table.metadata_location.removeprefix("file://"))
        (place / "metadata" / "v1.metadata.json").write_bytes(metadata.read_bytes())
        (place / "metadata" / "version-hint.text").write_text("1")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(place)
    jars = ",".join(map(str, fetch(ICEBERG).glob("*.jar")))
    assert java()
    program.write_text(_PROGRAM)
    command = [sys.executable, str(program), jars, str(warehouse), query, str(out)]
    environ = {**os.environ, "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return feather.read_table(out)
