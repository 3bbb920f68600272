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
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pymysql

from cdc_core.errors import (
    DefinitionChanged,
    LeaseHeld,
    LockstepError,
    OtherServer,
    Paused,
    Refused,
    RetryLater,
    TableRefused,
)
from cdc_core.meta import CopyPause, Lease, Meta, PlannedChunk, ReadChunk, TableCopy, copier_of
from cdc_core.model.batch import CopiedChunk
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import ROW_BITS
from cdc_core.model.windows import from_us
from cdc_core.operations.copy import key_ranges
from cdc_core.operations.copy.chunk_file import ChunkFile
from cdc_core.operations.copy.chunks import from_table, last_key
from cdc_core.operations.copy.copyable import require_copied
from cdc_core.operations.copy.second_thread import taking
from cdc_core.operations.copy.sessions import CopySessions, SessionPair
from cdc_core.operations.copy.standby import (
    find_standby,
    readable_there,
    require_nothing_else,
    require_same_definition,
    standby_view,
)
from cdc_core.operations.copy.table_chunks import Extent, TableChunks
from cdc_core.operations.copy.throttle import Throttle
from cdc_core.operations.copy.watermarks import View, await_logged, high_of, read_view
from cdc_core.operations.extract import hosts
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.process.informing import informing
from cdc_core.results import TableReader
from cdc_core.results.reading_faults import UnlikeDefinition, is_altered
from cdc_core.results.warm_reader import warm
from cdc_core.source.capture import Capture
from cdc_core.source.host.failover import is_other_server
from cdc_core.source.host.server_facts import ServerFacts, logged_gtids
from cdc_core.source.schemas.captured_definitions import table_schema
from cdc_core.source.wire import replica_identity

log = logging.getLogger(__name__)

WAIT_S = 1.0
"""How often a reader that must wait asks again."""

Progressed = Callable[[TableCopy], None]


@dataclass(frozen=True, slots=True)
class CopyContext:
    """Of a reader. lease: the copier's."""

    opened: OpenPipeline
    source: str
    capture: Capture
    lease: Lease
    scratch: Path


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
    pipeline, meta, environ = opened.pipeline, opened.meta, opened.environ
    config, progressed = pipeline.source(source), informing("The progress of a copy")(progressed)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-snapshot-")))
        staged = _staged(meta, source)
        replica = replica_identity.replica_host(opened.name, source, meta.leases.identity(source))
        address, control, server = hosts.connect(config, staged, environ, replica)
        stack.callback(control.close)
        _require_same(staged, server, source)
        await_logged(control, server)
        standby = find_standby(config, control, server, environ, shows=logged_gtids(control, mariadb=server.mariadb))
        throttle = stack.enter_context(
            Throttle(pipeline.snapshot.throttle, environ, source=source, mariadb=server.mariadb)
        )
        limits = pipeline.snapshot
        captured = Capture(pipeline.tables, pipeline.routes, environ, lower_case=server.lower_case)

        chunks = [
            TableChunks(
                meta,
                lease,
                source,
                table,
                chunk_bytes=limits.chunk_mib << 20,
                chunk_s=limits.chunk_s,
                require=partial(require_copied, pipeline, captured),
                rules_of=captured.rules_of,
            )
            for table in tables
        ]
        work = _CopyWork(chunks)
        warm()  # from the cache on disk; otherwise the first read view would wait for it

        def read(_: int) -> None:
            # Each reader has its own: the hasher of masked columns is for one.
            capture = Capture(pipeline.tables, pipeline.routes, environ, lower_case=server.lower_case)
            context = CopyContext(opened, source, capture, lease, scratch)
            with (
                work.failing(),
                ThreadPoolExecutor(1, thread_name_prefix="encode") as encoder,
                CopySessions(config, address, standby) as sessions,
            ):
                _ChunkReader(context, server, sessions, encoder, work, throttle, progressed).run()

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

        While other readers are reading there may be something again: one may fail, or find the table redefined.
        """
        with self._changed:
            while True:
                open_ones = [one for one in self._tables if not one.exhausted and one.name not in self.refused]
                chosen = min(open_ones, key=lambda one: one.readers, default=None)
                if chosen is not None or self.stopped.is_set() or not any(one.readers for one in self._tables):
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


class _RedefinedError(Exception):
    """The table's definition is another than when its copy began."""


class _ChunkReader:
    """Reads one chunk after the other, each in a view of its own, until no table has any left."""

    def __init__(
        self,
        context: CopyContext,
        server: ServerFacts,
        sessions: CopySessions,
        encoder: Executor,
        work: _CopyWork,
        throttle: Throttle,
        progressed: Progressed,
    ) -> None:
        self._context = context
        self._server = server
        self._sessions = sessions
        self._encoder = encoder
        self._work = work
        self._throttle = throttle
        self._progressed = progressed

    def run(self) -> None:
        while not self._work.stopped.is_set():
            with self._work.table() as table:
                if table is None:
                    return
                try:
                    self._read_one(table)
                except TableRefused as error:
                    self._work.refuse(table, error)

    def _read_one(self, table: TableChunks) -> None:
        self._wait(table)
        former = table.copy
        planned: PlannedChunk | None = None
        try:
            found = None if self._work.stopped.is_set() else table.next(self._sessions.tables.control, self._begin)
            if found is None:
                return
            former, planned = found
            self._read(table, former, planned)
        except _StoppedError:
            return
        except _RedefinedError:
            assert former is not None
            table.begin_again(former.schema)
        except BaseException as error:
            # A statement about a column or a table that is gone fails; by now there may be one of that name again.
            former = former or table.copy
            if isinstance(error, UnlikeDefinition) and former is not None and self._is_still(former.schema):
                error = error.refusal()
            if (
                isinstance(error, LockstepError)
                and former is not None
                and (_altered(error) or self._redefined(former.schema))
            ):
                table.begin_again(former.schema)
                return
            if planned is not None:
                with suppress(LockstepError):  # the error itself is what counts
                    table.failed(planned, error)
            raise error
        if table.copy is not None:
            self._progressed(table.copy)

    def _is_still(self, former: TableSchema) -> bool:
        return table_schema(self._sessions.tables.control, former.database, former.table) == former

    def _redefined(self, former: TableSchema) -> bool:
        try:
            return not self._is_still(former)
        except (LockstepError, pymysql.err.MySQLError):  # the first error says more
            return False

    def _wait(self, table: TableChunks) -> None:
        """Until a chunk may be read. Raises RetryLater (snapshot.paused), Refused (snapshot.throttle)."""
        context = self._context
        while not self._work.stopped.is_set():
            pause = context.opened.meta.copies.paused(context.source)
            if pause is not None:
                raise paused(context.source, pause)
            why = self._throttle.why(self._sessions.tables.control)
            if not why:
                return
            log.info("%s: the copy of %s waits: %s", context.source, table.name, why)
            if table.copy is not None:
                self._progressed(replace(table.copy, waiting=why))
            self._work.stopped.wait(WAIT_S)

    def _begin(self, schema: TableSchema) -> Extent:
        """The last key that is visible once everything before the end of what is staged is."""
        if self._sessions.beside:
            require_same_definition(self._sessions.source.control, schema, self._context.source)
        limit: key_ranges.Key = ()
        low: Position | None = None
        if schema.key:
            with _unchanged(schema), self._view(schema, self._staged_here()) as (at, view):
                limit, low = last_key(at.reader, schema), view.low
        return Extent(limit, low)

    def _staged_here(self) -> Checkpoint:
        """The end of what is staged, in the log of the server that is read."""
        staged = _staged(self._context.opened.meta, self._context.source)
        _require_same(staged, self._server, self._context.source)
        return staged

    @contextmanager
    def _view(self, schema: TableSchema, staged: Checkpoint) -> Iterator[tuple[SessionPair, View]]:
        """A view of the table, and the sessions at the server that has it."""
        at, source, mariadb = self._sessions.tables, self._context.source, self._server.mariadb
        if self._sessions.beside and readable_there(at.control, schema, staged):
            with standby_view(at.reader, at.control, staged, source, self._server) as view:
                yield at, view
            require_nothing_else(at.control, self._sessions.source.control, source, mariadb=mariadb)
            return
        at = self._sessions.source
        with read_view(at.reader, at.control, self._server, staged, schema, exact=not schema.key) as view:
            yield at, view

    def _read(self, table: TableChunks, copy: TableCopy, planned: PlannedChunk) -> None:
        context, schema = self._context, copy.schema
        staged = self._staged_here()
        if not schema.key:
            tail = ""  # the whole table at once
        elif copy.limit:
            where = f"{key_ranges.after(schema, planned.above)} AND {key_ranges.up_to(schema, planned.through)}"
            tail = f"WHERE {where} ORDER BY {key_ranges.ordered(schema, key_ranges.downwards(copy.limit))}"
        else:
            tail = "WHERE FALSE"
        ts_us = staged.watermark_us or self._server.clock_us
        began_s = time.monotonic()
        with self._view(schema, staged) as (at, view):
            file = ChunkFile(
                context.opened.store,
                context.capture,
                schema,
                source=context.source,
                number=planned.number,
                epoch=context.lease.epoch,
                low=view.low,
                ts_us=ts_us,
                level=context.opened.pipeline.stage.compression_level,
                scratch=context.scratch,
            )
            try:
                if not schema.key:
                    file.add_truncate((planned.number << ROW_BITS) - 1)
                with taking(file.add, self._encoder) as hand_over:
                    for batch in TableReader(at.reader, schema).batches(f"{from_table(schema)} {tail}"):
                        if self._work.stopped.is_set():
                            raise _StoppedError
                        hand_over(batch)
                if table_schema(at.control, schema.database, schema.table) != schema:
                    raise _RedefinedError
                parts = file.finish()
            except BaseException:
                file.discard()
                raise
        high = high_of(self._sessions.source.control, view)
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
        raise DefinitionChanged(
            f"{schema.name} was altered or truncated when its copy began.",
            where=schema.name,
            remedy="the next attempt begins the copy of this table again",
        ) from None


def paused(source: str, pause: CopyPause) -> RetryLater:
    """The error of a copy that is not made, because somebody has paused the copies of the source."""
    return Paused(
        f"{pause.holder} paused copies of the source {source!r} at {from_us(pause.since_us):%Y-%m-%d %H:%M:%S} UTC.",
        where=source,
        remedy="`lockstep snapshot PIPELINE --resume` lets copies continue after their last chunks",
    )


def _staged(meta: Meta, source: str) -> Checkpoint:
    staged = meta.positions.checkpoint(source)
    if staged is None:
        raise Refused(
            f"Nothing of the source {source!r} was extracted yet.",
            where=source,
            code="source.not_extracted",
            remedy="run `lockstep extract` first",
        )
    return staged


def _require_same(staged: Checkpoint, server: ServerFacts, source: str) -> None:
    if is_other_server(staged, server):
        raise OtherServer(
            f"Another server of {source!r} answers than the one that was read last.",
            where=source,
            remedy="run `lockstep extract` first, which moves to the new server; the copy then continues there",
        )
