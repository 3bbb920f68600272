"""What a Python worker of Spark does not do again for each task."""

from __future__ import annotations

import gc
import importlib
import sys
import zipimport
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs.executors import on_executors

# PySpark leaves the sockets of `collect` to the garbage collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def test_a_worker_reads_no_zip_again_and_looks_for_no_garbage_among_what_it_has_imported(spark: SparkSession) -> None:
    def work(number: int) -> Iterator[tuple[bool, bool]]:
        read, zipimport._read_directory = zipimport._read_directory, None  # type: ignore[attr-defined]
        try:
            importlib.invalidate_caches()  # as Spark does before each task
        finally:
            zipimport._read_directory = read  # type: ignore[attr-defined]
        zips = any(isinstance(each, zipimport.zipimporter) for each in sys.path_importer_cache.values())
        yield zips, gc.get_freeze_count() > len(gc.get_objects())

    assert on_executors(spark, [1], work) == [(True, True)]
