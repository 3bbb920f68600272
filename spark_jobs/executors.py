"""Python work on Spark's executors, with results in the driver. What is given may pass through a file; the closure of
the work does not, so that logins belong there.

A frame carries both, as in a merge, whose Python workers then continue: an RDD would start others beside them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

Given = TypeVar("Given")
Result = TypeVar("Result")


def on_executors(
    spark: SparkSession, given: Sequence[Given], work: Callable[[Given], Iterable[Result]]
) -> list[Result]:
    """The results of the work on each value, each in a task of its own, in the order of the values."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at, value in zip(batch.column("at"), batch.column("value"), strict=True):
                for result in work(pickle.loads(value.as_py())):
                    yield pa.RecordBatch.from_pydict({"at": [at.as_py()], "value": [pickle.dumps(result)]}, _ROWS)

    rows = pa.Table.from_pydict({"at": range(len(given)), "value": [pickle.dumps(one) for one in given]}, _ROWS)
    spread = spark.createDataFrame(rows).repartitionById(len(given), "at")
    found = spread.mapInArrow(task, "at int, value binary").toArrow()
    results: list[list[Result]] = [[] for _ in given]
    for at, value in zip(found.column("at").to_pylist(), found.column("value"), strict=True):
        results[at].append(pickle.loads(value.as_py()))
    return [one for several in results for one in several]


_ROWS = pa.schema([("at", pa.int32()), ("value", pa.binary())])
