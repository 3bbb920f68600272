"""Work for many tables in one Spark job, at a target too: a job for each would cost more than what a small table needs.

The work is cut into pieces, each of one table. A task does several pieces of small tables, one after the other, and
keeps its connections to the target's servers for the next one. The driver of a small job, as most are, does all of
them itself, in threads: Spark would take longer to start.
Logins travel inside the closure of the job alone: what tasks are given may pass through a file, and so does a
closure of more than 1 MiB. Therefore the pieces have the destinations, without logins.
"""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from cdc_core.errors import LockstepError
from cdc_core.model.merged_columns import merged_type
from cdc_core.mysql.connections import Server
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_stage
from cdc_core.targets.reading.destination import Destination, ShardSessions
from spark_jobs.executors import for_workers, on_executors
from spark_jobs.job import Job
from spark_jobs.spark_failures import CarriedError, carried, found
from spark_jobs.step_files import StepFiles

TASKS_PER_CORE = 4
THREADS = 4
"""The driver's. They wait for the target's servers most of the time, and for the stage."""
Given = TypeVar("Given")
Result = TypeVar("Result")


class _Sized(Protocol):
    @property
    def rows(self) -> int: ...


Sized = TypeVar("Sized", bound=_Sized)
"""A part of the work, with about how many rows it has."""
_NO_LOGIN = Server("", 0, "", "")


@dataclass(frozen=True, slots=True)
class Piece(Generic[Given]):
    """A part of the work on a table. rows: about how many it has. given: what the work needs beside the destination,
    without secrets."""

    destination: Destination
    rows: int
    given: Given


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """Some of the results of a piece, by its number, or the error that ended it."""

    piece: int
    results: tuple[Result, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """What a task has for all of its pieces. scratch: a local directory. files: those that it writes for later
    steps."""

    sessions: ShardSessions
    store: ObjectStore
    scratch: Path
    files: StepFiles


Begin = Callable[[], AbstractContextManager[Callable[[Sized], Iterable[Result]]]]
"""Opens what a task needs, and gives its work on a piece."""


def done(
    job: Job, pieces: Sequence[Piece[Given]], work: Callable[[Destination, Given, Place], Iterable[Result]]
) -> list[list[Result] | LockstepError]:
    """As `in_tasks`, for work at a target, which gets as many sessions at once as the pipeline allows."""
    return in_tasks(job, without_logins(pieces), at_target(job, pieces, work), most=job.database.sessions)


def at_target(
    job: Job, pieces: Sequence[Piece[Given]], work: Callable[[Destination, Given, Place], Iterable[Result]]
) -> Begin[Piece[Given], Result]:
    """Begins tasks that work at a target. They are given the pieces `without_logins`."""
    logins = {shard.table.connection: shard.server for piece in pieces for shard in piece.destination.shards}

    def at_place(piece: Piece[Given], place: Place) -> Iterator[Result]:
        try:
            yield from work(_with(logins, piece.destination), piece.given, place)
        except Exception:
            place.sessions.close()  # in whatever state the error left them
            raise

    return in_place(job, at_place)


def in_place(job: Job, work: Callable[[Sized, Place], Iterable[Result]]) -> Begin[Sized, Result]:
    """Begins tasks of any work."""
    stage = job.pipeline.stage

    @contextmanager
    def begin() -> Iterator[Callable[[Sized], Iterable[Result]]]:
        store = open_stage(stage)
        with (
            ShardSessions() as sessions,
            StepFiles(store) as files,
            tempfile.TemporaryDirectory(prefix="lockstep-") as scratch,
        ):
            place = Place(sessions, store, Path(scratch), files)
            yield lambda piece: work(piece, place)

    return begin


def in_frame(
    job: Job, pieces: Sequence[Sized], begin: Begin[Sized, pa.Table], schema: pa.Schema, *, most: int | None = None
) -> DataFrame:
    """The rows of the tables that the work on the pieces gives, as a frame with the types of merged rows: tasks do the
    work whenever it is read. schema: of the tables. most: as in `in_tasks`. Any error ends what reads the frame."""
    plain = pa.schema([(field.name, merged_type(field.type)) for field in schema])

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with begin() as work:
            for batch in batches:
                for given in batch.column("given"):
                    for _, piece in pickle.loads(given.as_py()):
                        with carried():
                            for table in work(piece):
                                yield from table.cast(plain).to_batches()

    tasks = [pickle.dumps(numbered) for numbered in packed(pieces, min(most_tasks(job), most or len(pieces)))]
    given = pa.table({"at": pa.array(range(len(tasks)), pa.int32()), "given": pa.array(tasks, pa.binary())})
    spread = job.spark.createDataFrame(given).repartitionById(len(tasks), "at")
    return spread.mapInArrow(for_workers(job.spark, task), from_arrow_schema(plain, prefer_timestamp_ntz=True))


def in_tasks(
    job: Job,
    pieces: Sequence[Sized],
    begin: Begin[Sized, Result],
    *,
    most: int | None = None,
) -> list[list[Result] | LockstepError]:
    """The results of each piece, or the error that ended it, in the order of the pieces. most: of tasks; None: as many
    as there is something to do them with.

    An error that another attempt may cure ends the job at once and is raised: Spark may have attempts left.
    """
    if not pieces:
        return []

    def task(mine: Sequence[tuple[int, Sized]]) -> Iterator[Outcome[Result]]:
        with begin() as work:
            for number, piece in mine:
                try:
                    with carried():
                        for result in work(piece):
                            yield Outcome(number, (result,))
                except CarriedError as error:
                    known = found(error)
                    if known is None or known.retriable:
                        raise
                    yield Outcome(number, error=str(error))

    tasks = packed(pieces, min(most_tasks(job), most or len(pieces)))
    outcomes: list[Outcome[Any]]
    if job.small:
        with ThreadPoolExecutor(len(tasks), thread_name_prefix="task") as pool:
            outcomes = [outcome for ended in pool.map(lambda mine: list(task(mine)), tasks) for outcome in ended]
    else:
        outcomes = on_executors(job.spark, tasks, task)
    results: list[list[Result] | LockstepError] = [[] for _ in pieces]
    for outcome in outcomes:
        so_far = results[outcome.piece]
        if outcome.error:
            error = found(CarriedError(outcome.error))
            assert error is not None
            results[outcome.piece] = error
        elif isinstance(so_far, list):
            so_far.extend(outcome.results)
    return results


def most_tasks(job: Job) -> int:
    """How many tasks at most a job's work is cut into."""
    return THREADS if job.small else job.parallelism * TASKS_PER_CORE


def together(results: Iterable[list[Result] | LockstepError]) -> tuple[list[Result], LockstepError | None]:
    """The results of several pieces, and the first error."""
    every: list[Result] = []
    first: LockstepError | None = None
    for result in results:
        if isinstance(result, LockstepError):
            first = first or result
        else:
            every += result
    return every, first


def all_results(results: Iterable[list[Result] | LockstepError]) -> list[Result]:
    """The results of several pieces. Raises the first error."""
    every, error = together(results)
    if error:
        raise error
    return every


def packed(pieces: Sequence[Sized], most: int) -> list[list[tuple[int, Sized]]]:
    """The numbered pieces in at most so many tasks with about as many rows each."""
    tasks: list[list[tuple[int, Sized]]] = [[] for _ in range(min(len(pieces), most))]
    load = [(0, at) for at in range(len(tasks))]
    for number, piece in sorted(enumerate(pieces), key=lambda numbered: -numbered[1].rows):
        weight, at = heapq.heappop(load)
        tasks[at].append((number, piece))
        heapq.heappush(load, (weight + _PIECE_ROWS + piece.rows, at))
    return tasks


_PIECE_ROWS = 2_000
"""A piece without rows costs about as much as this many rows."""


def without_logins(pieces: Sequence[Piece[Given]]) -> list[Piece[Given]]:
    """The pieces as tasks are given them."""
    return [replace(piece, destination=_with({}, piece.destination)) for piece in pieces]


def _with(logins: Mapping[int, Server], destination: Destination) -> Destination:
    shards = (replace(shard, server=logins.get(shard.table.connection, _NO_LOGIN)) for shard in destination.shards)
    return replace(destination, shards=tuple(shards))
