"""A Spark job of two stages whose tasks exchange pieces of Arrow: Spark shuffles, spills and retries them, and never
looks into them. Measured, the columns themselves would take half as long again.

The same calls work on local, on a cluster, at a Connect endpoint, and in the driver, whose threads do a small job.
"""

from __future__ import annotations

import itertools
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

from spark_jobs.executors import for_workers
from spark_jobs.job import Job
from spark_jobs.spark_failures import CarriedError, carried, found
from spark_jobs.table_tasks import THREADS

Given = TypeVar("Given")
Result = TypeVar("Result")
_COMPRESSION = pa.ipc.IpcWriteOptions(compression="lz4")


def shuffled(
    job: Job,
    given: Sequence[Given],
    cut: Callable[[Given], Iterable[Iterable[tuple[int, pa.Table]]]],
    parts: int,
    work: Callable[[int, Iterator[pa.Table]], Iterable[Result]],
) -> list[Result]:
    """The results of the work on each part that has rows, by threads if the driver does the job. Raises the first
    LockstepError of a task.

    cut: in a task of the first stage, the pieces of one of `given`, some at a time, each with its part. work: in a task
    of the second stage, on a part and its pieces, in any order.
    """

    if job.small:
        return _by_threads(given, cut, work)
    spark = job.spark

    def first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with carried():
            for batch in batches:
                for at in batch.column(0).to_pylist():
                    for some in cut(given[at]):
                        found = [(part, ipc_bytes(piece)) for part, piece in some]
                        numbers = pa.array([part for part, _ in found], pa.int32())
                        pieces = pa.array([piece for _, piece in found], pa.binary())
                        yield pa.RecordBatch.from_arrays([numbers, pieces], names=["part", "piece"])

    def second(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rest = iter(batches)
        head = next((batch for batch in rest if batch.num_rows), None)
        if head is None:
            return
        pieces = (
            pa.ipc.open_stream(piece.as_buffer()).read_all()
            for batch in itertools.chain([head], rest)
            for piece in batch.column(1)
        )
        try:
            with carried():
                results: list[Any] = list(work(head.column(0)[0].as_py(), pieces))
        except CarriedError as error:
            known = found(error)
            if known is None or known.retriable:
                raise  # Spark may have attempts left
            results = [error]
        for result in results:
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], names=["result"])

    rows = spark.range(len(given), numPartitions=len(given))
    try:
        pieces = rows.mapInArrow(for_workers(spark, first), "part int, piece binary")
        spread = pieces.repartitionById(parts, "part")
        packed = spread.mapInArrow(for_workers(spark, second), "result binary").toArrow().column(0)
    except Exception as error:
        if (known := found(error)) is None:
            raise
        raise known from error
    results = [pickle.loads(value.as_py()) for value in packed]
    for result in results:
        if isinstance(result, CarriedError) and (known := found(result)) is not None:
            raise known
    return results


def _by_threads(
    given: Sequence[Given],
    cut: Callable[[Given], Iterable[Iterable[tuple[int, pa.Table]]]],
    work: Callable[[int, Iterator[pa.Table]], Iterable[Result]],
) -> list[Result]:
    pieces: dict[int, list[pa.Table]] = defaultdict(list)
    try:
        with carried(), ThreadPoolExecutor(THREADS, thread_name_prefix="part") as pool:
            for numbered in pool.map(lambda one: [piece for some in cut(one) for piece in some], given):
                for part, piece in numbered:
                    pieces[part].append(piece)
            each = pool.map(lambda part: list(work(part, iter(pieces[part]))), sorted(pieces))
            return [result for results in each for result in results]
    except CarriedError as error:
        known = found(error)
        assert known is not None
        raise known from error


def ipc_bytes(piece: pa.Table) -> bytes:
    """A table as a stream of Arrow, without what its buffers have beside its rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, piece.schema, options=_COMPRESSION) as stream:
        stream.write_table(piece)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
