"""Python work on Spark's executors, with results in the driver. What is given may pass through a file; the closure of
the work is sealed, so that logins belong there.

A frame carries both, as in a merge, whose Python workers then continue: an RDD would start others beside them.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import pickle
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar
from zipimport import zipimporter

import pyarrow as pa
from pyspark import SparkFiles, cloudpickle
from pyspark.sql import SparkSession

Given = TypeVar("Given")
Result = TypeVar("Result")
Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def at_endpoint(spark: SparkSession) -> bool:
    """Whether a session is at a Spark Connect endpoint, where there is no SparkContext."""
    return not isinstance(spark, SparkSession)


def for_workers(spark: SparkSession, task: Task) -> Task:
    """A task for `mapInArrow`, as Python workers do it. Its closure may hold logins.

    A Connect server prints the whole plan of an execution that a session leaves behind, by being closed or killed
    (SparkConnectExecutionManager). So the plan holds the task encrypted, and the session has the key as a file.
    """

    def prepared(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _prepare_worker()
        yield from task(batches)

    if not at_endpoint(spark):
        return prepared
    nonce = secrets.token_bytes(16)
    closed = _crypted(key_file().read_bytes(), nonce, cloudpickle.dumps(prepared))  # type: ignore[no-untyped-call]

    def opened(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        key = Path(SparkFiles.get(_KEY)).read_bytes()
        yield from pickle.loads(_crypted(key, nonce, closed))(batches)

    return opened


def _prepare_worker() -> None:
    """Spares a Python worker of Spark two fifths of its time, as measured.

    Before each task, Spark has it forget what it knows of places to import from: the directories of zips, which never
    change, would be read anew for each package in them. After each task, Spark has it look for garbage: among all that
    was ever imported, too."""
    zipimporter.invalidate_caches = lambda importer: None  # type: ignore[assignment, method-assign]
    gc.freeze()
    pa.set_memory_pool(pa.system_memory_pool())  # for the reason in driver.py


@cache
def key_file() -> Path:
    """The key to what this process seals, for its sessions at a Connect endpoint; removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-key-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / _KEY).write_bytes(secrets.token_bytes(32))
    return folder / _KEY


_KEY = "lockstep-key"


def _crypted(key: bytes, nonce: bytes, text: bytes) -> bytes:
    """Encrypts and decrypts with the stream of SHAKE-256 over key and nonce, which no other text shares."""
    stream = hashlib.shake_256(key + nonce).digest(len(text))
    return (int.from_bytes(text) ^ int.from_bytes(stream)).to_bytes(len(text))


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
    found = spread.mapInArrow(for_workers(spark, task), "at int, value binary").toArrow()
    results: list[list[Result]] = [[] for _ in given]
    for at, value in zip(found.column("at").to_pylist(), found.column("value"), strict=True):
        results[at].append(pickle.loads(value.as_py()))
    return [result for several in results for result in several]


_ROWS = pa.schema([("at", pa.int32()), ("value", pa.binary())])
