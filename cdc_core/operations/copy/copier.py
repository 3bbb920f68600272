"""Reads tables chunk by chunk, beside the stream, and keeps in meta how far it is.

Several readers share the tables: each takes a chunk of the table that has the fewest readers, so that a large table at
the end has them all. A chunk is read in a view of its own, so that the server keeps no old versions for long. After a
kill only the chunks that were being read are read again. If the table's definition changes while it is copied, the copy
begins again: its chunks would mean different columns. The copier holds a lease of its own, and none of the extractor's.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pymysql

from cdc_core.errors import (
    DefinitionChanged,
    LeaseHeld,
    LockstepError,
    Refused,
    TableRefused,
)
from cdc_core.meta import Lease, ReadChunk, TableCopy
from cdc_core.meta.table_copies import PlannedChunk, copier_of
from cdc_core.model.batch import CopiedChunk
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import TableSchema
from cdc_core.operations.copy import key_ranges
from cdc_core.operations.copy.chunk_file import ChunkFiles
from cdc_core.operations.copy.chunks import FIRST_ROWS, Pace, from_table, last_key
from cdc_core.operations.copy.copyable import require_copied
from cdc_core.operations.copy.read_source import ReadSource, SessionPair, read_source
from cdc_core.operations.copy.second_thread import taking
from cdc_core.operations.copy.table_chunks import TableChunks
from cdc_core.operations.copy.watermarks import View, await_logged, engine_of, high_of, read_view, require_view
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.process.informing import informing
from cdc_core.results import TableReader
from cdc_core.results.reading_faults import UnlikeDefinition, definition_changed, is_altered
from cdc_core.results.warm_reader import warm
from cdc_core.source.schemas.captured_definitions import table_schema

log = logging.getLogger(__name__)

Progressed = Callable[[TableCopy], None]


def copier_lease(opened: OpenPipeline, source: str) -> AbstractContextManager[Lease]:
    """The right to copy tables of a source and to stage claims of its rows, renewed until the block ends. A killed
    process keeps it for `limits.lease_s`.

    Raises RetryLater (lease.held): another copier has it.
    """
    lease_s = opened.pipeline.limits.lease_s
    taken = LeaseHeld(
        f"Another process is copying tables of the source {source!r}.",
        where=source,
        remedy=f"wait until it has ended or, if it is dead, {lease_s:.0f} s for its lease to expire; the copy then "
        "continues after its last chunk",
    )
    return opened.meta.leases.held(copier_of(source), opened.holder, lease_s, taken=taken)


def copy_tables(
    opened: OpenPipeline,
    source: str,
    tables: Sequence[tuple[str, str]],
    lease: Lease,
    progressed: Progressed = lambda copy: None,
) -> dict[str, Refused]:
    """Reads these tables to their ends, in several readers; what was read before is not read again.

    Returns why tables cannot be copied (snapshot.not_copyable), by `database.table`.
    Raises Refused (source.not_extracted, snapshot.throttle), RetryLater (source.other_server, table.redefined,
    snapshot.paused), and what reading and the store raise. What was read until then stays read.
    """
    pipeline, progressed = opened.pipeline, informing("The progress of a copy")(progressed)
    with tempfile.TemporaryDirectory(prefix="lockstep-snapshot-") as scratch, read_source(opened, source) as read_at:
        await_logged(read_at.control, read_at.server)
        limits = pipeline.snapshot
        captured = read_at.capture()

        chunks = [
            TableChunks(
                opened.meta,
                lease,
                source,
                table,
                pace=Pace(limits.chunk_mib << 20, limits.chunk_s, first_rows=FIRST_ROWS),
                require=partial(require_copied, pipeline, captured),
                rules_of=captured.rules_of,
            )
            for table in tables
        ]
        work = _CopyWork(chunks)
        warm()  # from the cache on disk; otherwise the first read view would wait for it

        def read(_: int) -> None:
            with (
                work.failing(),
                ThreadPoolExecutor(1, thread_name_prefix="encode") as encoder,
                read_at.sessions() as sessions,
            ):
                files = ChunkFiles(opened, source, lease, read_at.capture(), Path(scratch))
                _ChunkReader(read_at, files, sessions, encoder, work, progressed).run()

        with ThreadPoolExecutor(max(1, limits.readers if tables else 0)) as pool:
            try:
                for _ in pool.map(read, range(limits.readers if tables else 0)):
                    pass
            except BaseException:  # an interrupt too: the readers end in the chunks that they are at
                work.stop()
                raise
    return work.refused


class _CopyWork:
    """What the readers share: tables, and who reads which."""

    def __init__(self, tables: Sequence[TableChunks]) -> None:
        self._tables = list(tables)
        self._changed = threading.Condition()
        self.stopped = threading.Event()
        self.refused: dict[str, Refused] = {}

    def stop(self) -> None:
        self.stopped.set()
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An error in the block stops all readers."""
        try:
            yield
        except BaseException:
            self.stop()
            raise

    @contextmanager
    def table(self) -> Iterator[TableChunks | None]:
        """A table to take a chunk of, for the length of a block; None when nothing is left to do.

        While other readers are reading there may be something again: one may find the table redefined.
        """
        with self._changed:
            while True:
                open_ones = [table for table in self._tables if not table.exhausted and table.name not in self.refused]
                chosen = min(open_ones, key=lambda open_one: open_one.readers, default=None)
                if chosen is not None or self.stopped.is_set() or not any(table.readers for table in self._tables):
                    break
                self._changed.wait()
            if chosen is not None:
                chosen.readers += 1
        try:
            yield None if self.stopped.is_set() else chosen
        finally:
            with self._changed:
                if chosen is not None:
                    chosen.readers -= 1
                self._changed.notify_all()

    def refuse(self, table: TableChunks, error: Refused) -> None:
        self.refused[table.name] = error


class _StoppedError(Exception):
    """The readers stop: what is not complete of the chunk is dropped, and another attempt reads it again."""


@dataclass(frozen=True, slots=True)
class _ChunkReader:
    """Reads one chunk after the other, each in a view of its own, until no table has any left."""

    source: ReadSource
    files: ChunkFiles
    sessions: SessionPair
    encoder: Executor
    work: _CopyWork
    progressed: Progressed

    def run(self) -> None:
        while not self.work.stopped.is_set():
            with self.work.table() as table:
                if table is None:
                    return
                try:
                    self._read_one(table)
                except TableRefused as error:
                    self.work.refuse(table, error)

    def _read_one(self, table: TableChunks) -> None:
        self._wait(table)
        former = table.copy
        try:
            found = None if self.work.stopped.is_set() else table.next(self.sessions.control, self._begin)
            if found is None:
                return
            former, planned = found
            self._read(table, former, planned)
        except _StoppedError:
            return
        except LockstepError as error:
            former = former or table.copy
            if former is not None and self._redefined(former.schema, error):
                table.begin_again(former.schema)
                return
            if isinstance(error, UnlikeDefinition):
                raise error.refusal() from None
            raise
        if table.copy is not None:
            self.progressed(table.copy)

    def _redefined(self, former: TableSchema, error: LockstepError) -> bool:
        """Whether the table is another than it was. A statement about a column or a table that is gone fails, though
        by now there may be one of that name again."""
        unlike = isinstance(error, UnlikeDefinition)
        if _altered(error) and not unlike:
            return True
        try:
            return table_schema(self.sessions.control, former.database, former.table) != former
        except (LockstepError, pymysql.err.MySQLError):  # the first error says more
            return unlike

    def _wait(self, table: TableChunks) -> None:
        """Until a chunk may be read."""

        def waiting(why: str) -> None:
            log.info("%s: the copy of %s waits: %s", self.source.name, table.name, why)
            if table.copy is not None:
                self.progressed(replace(table.copy, waiting=why))

        self.source.await_turn(self.sessions.control, waiting, self.work.stopped)

    def _begin(self, schema: TableSchema) -> tuple[key_ranges.Key, Position | None]:
        """The last key that is visible once everything before the end of what is staged is. Raises Refused
        (snapshot.not_copyable): a copy that has begun holds purges up, and this one would never end."""
        if not schema.key:
            require_view(schema, engine_of(self.sessions.control, schema))
            return (), None
        with _unchanged(schema), self._view(schema, self.source.staged()) as view:
            return last_key(self.sessions.reader, schema), view.low

    def _view(self, schema: TableSchema, staged: Checkpoint) -> AbstractContextManager[View]:
        at = self.sessions
        return read_view(at.reader, at.control, self.source.server, staged, schema, exact=not schema.key)

    def _read(self, table: TableChunks, copy: TableCopy, planned: PlannedChunk) -> None:
        schema, staged = copy.schema, self.source.staged()
        if not schema.key:
            tail = ""  # the whole table at once
        elif copy.limit:
            tail = key_ranges.between(schema, planned.above, planned.through)
        else:
            tail = "WHERE FALSE"
        ts_us = staged.watermark_us or self.source.server.clock_us
        began_s = time.monotonic()
        with (
            self._view(schema, staged) as view,
            self.files.chunk(schema, planned.number, view.low, ts_us) as file,
        ):
            if not schema.key:
                file.add_truncate()
            with taking(file.add, self.encoder) as hand_over:
                for batch in TableReader(self.sessions.reader, schema).batches(f"{from_table(schema)} {tail}"):
                    if self.work.stopped.is_set():
                        raise _StoppedError
                    hand_over(batch)
            if table_schema(self.sessions.control, schema.database, schema.table) != schema:
                raise definition_changed("another definition answers after the chunk was read", where=schema.name)
            parts = file.finish()
        high = high_of(self.sessions.control, view)
        took_s = time.monotonic() - began_s
        paths = tuple(part.path for part in parts)
        chunk = CopiedChunk(
            planned.number, schema.name, planned.above, planned.through, ts_us, view.low, high, file.rows, paths
        )
        table.read(ReadChunk(chunk, parts, file.schemas), file.row_bytes, took_s)


def _altered(error: LockstepError) -> bool:
    """Whether it is about a table, column or index that was there when the definition was read."""
    return is_altered(error.__cause__) or isinstance(error, DefinitionChanged)


@contextmanager
def _unchanged(schema: TableSchema) -> Iterator[None]:
    """A statement of a read view. Raises RetryLater (table.redefined) if the table is another than at its begin."""
    try:
        yield
    except LockstepError as error:
        if not _altered(error):
            raise
        raise definition_changed("it was altered or truncated when its copy began", where=schema.name) from None
