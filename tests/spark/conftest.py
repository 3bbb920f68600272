"""One Spark session for all tests of this folder: a JVM costs seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cdc_core.apply.jobs import ANYWHERE, LOCAL_CONF
from spark_jobs.session import EXACT


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("tests")
    conf = {**ANYWHERE, **LOCAL_CONF, **EXACT, "spark.sql.shuffle.partitions": "2"}
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
