"""Reads tables chunk by chunk, beside the stream, and keeps in meta how far it is.

A chunk is read in a view of its own, so that the server keeps no old versions for long. After a kill the copy continues
after the last chunk that meta knows. If the table's definition changes while it is copied, the copy begins again: its
chunks would mean different columns. The copier holds a lease of its own, and none of the extractor's.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cdc_core import connections
from cdc_core.config import Pipeline
from cdc_core.connections import Server
from cdc_core.errors import LockstepError, Refused, RetryLater
from cdc_core.extract import hosts
from cdc_core.meta import Lease, Meta, ReadChunk, TableCopy, copier_of
from cdc_core.model.batch import CopiedChunk
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import require_unreserved
from cdc_core.results import TableReader, prepare_session
from cdc_core.results.warm import warm
from cdc_core.sink import Capture
from cdc_core.snapshot import keys
from cdc_core.snapshot.chunk_file import ChunkFile
from cdc_core.snapshot.chunks import chunk_rows, end_of_chunk, from_table, greatest, size_of
from cdc_core.snapshot.watermarks import View, high_of, read_view
from cdc_core.source import server_id
from cdc_core.source.definitions import table_schema
from cdc_core.source.facts import ServerFacts
from cdc_core.source.failover import is_other_server
from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)

LEASE_S = 60.0
_RESTARTS = 3
"""How often the copy of a table begins again in one call, because its definition changed meanwhile."""

Progressed = Callable[[TableCopy], None]


@dataclass(frozen=True, slots=True)
class CopyContext:
    """Of the copy of one table. lease: the copier's."""

    pipeline: Pipeline
    source: str
    meta: Meta
    store: ObjectStore
    capture: Capture
    lease: Lease
    scratch: Path


@contextmanager
def copier_lease(meta: Meta, pipeline: str, source: str, holder: str) -> Iterator[Lease]:
    """The right to copy tables of a source, renewed until the block ends.

    Raises RetryLater (snapshot.running): another copier has it.
    """
    try:
        lease = meta.acquire_lease(copier_of(source), pipeline, holder, LEASE_S)
    except RetryLater as error:
        if error.code != "meta.lease_held":
            raise
        raise RetryLater(
            f"Another process is copying tables of the source {source!r}.",
            where=source,
            code="snapshot.running",
            remedy=f"wait until it has ended or, if it is dead, {LEASE_S:.0f} s for its lease to expire; the copy then "
            "continues after its last chunk",
        ) from None
    ending = threading.Event()

    def keep() -> None:
        while not ending.wait(LEASE_S / 3):
            try:
                meta.renew_lease(lease, LEASE_S)
            except LockstepError as error:  # whatever needs the lease will say so
                log.warning("%s: the lease could not be renewed: %s", lease.source, error)

    keeper = threading.Thread(target=keep, name=lease.source, daemon=True)
    keeper.start()
    try:
        yield lease
    finally:
        ending.set()
        keeper.join()
        with suppress(LockstepError):
            meta.release_lease(lease)


def copy_tables(
    pipeline: Pipeline,
    source: str,
    tables: Sequence[tuple[str, str]],
    *,
    meta: Meta,
    store: ObjectStore,
    lease: Lease,
    environ: Mapping[str, str] | None = None,
    progressed: Progressed = lambda copy: None,
) -> dict[str, Refused]:
    """Reads these tables to their ends, several at once; what was read before is not read again.

    Returns why tables cannot be copied (snapshot.no_key, snapshot.key_type), by `database.table`.
    Raises Refused (snapshot.not_started), RetryLater (snapshot.other_server, snapshot.redefined), and what reading and
    the store raise. What was read until then stays read.
    """
    refused: dict[str, Refused] = {}
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-snapshot-")))
        staged = _staged(meta, source)
        config = pipeline.source(source)
        replica = server_id.replica_host(pipeline.pipeline, source, meta.lease_identity(source))
        address, control, server = hosts.connect(config, staged, environ, replica)
        opened.callback(control.close)
        _require_same(staged, server, source)
        stop = threading.Event()
        warm()  # from the cache on disk; otherwise the first read view would wait for it

        def work(table: tuple[str, str]) -> None:
            if not stop.is_set():
                # Each thread has its own: the hasher of masked columns is for one.
                capture = Capture(pipeline.tables, pipeline.routes, environ, lower_case=server.lower_case)
                context = CopyContext(pipeline, source, meta, store, capture, lease, scratch)
                try:
                    with _Sessions(address, source, config.read_timeout_s) as sessions:
                        _TableCopier(context, server, sessions, table, progressed, stop).run()
                except Refused as error:
                    if error.code not in keys.NOT_COPIED:
                        stop.set()
                        raise
                    refused[".".join(table)] = error
                except BaseException:
                    stop.set()
                    raise

        with ThreadPoolExecutor(max(1, min(pipeline.snapshot.readers, len(tables)))) as pool:
            try:
                for _ in pool.map(work, tables):
                    pass
            except BaseException:  # an interrupt too: the readers end after the batch that they are at
                stop.set()
                raise
    return refused


class _Sessions:
    """Two sessions at the source: one for read views, one to ask beside them."""

    def __init__(self, address: Server, source: str, read_timeout_s: float) -> None:
        self._address = address
        self._source = source
        self._read_timeout_s = read_timeout_s

    def __enter__(self) -> _Sessions:
        with ExitStack() as opened:
            options = {"read_timeout": self._read_timeout_s, "statement_timeout_s": None}
            self.reader = connections.connect(self._address, where=self._source, **options)
            opened.callback(self.reader.close)
            self.control = connections.connect(self._address, where=self._source, **options)
            opened.callback(self.control.close)
            for one in (self.reader, self.control):
                prepare_session(one)
                with one.cursor() as cursor:  # a key may be a date that strict modes do not compare with anything
                    cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
            self._close = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()


class _RedefinedError(Exception):
    """The table's definition is another than when its copy began."""


class _TableCopier:
    def __init__(
        self,
        context: CopyContext,
        server: ServerFacts,
        sessions: _Sessions,
        table: tuple[str, str],
        progressed: Progressed,
        stop: threading.Event,
    ) -> None:
        self._context = context
        self._server = server
        self._sessions = sessions
        self._table = table
        self._progressed = progressed
        self._stop = stop
        self._row_bytes = 0.0

    def run(self) -> None:
        for _ in range(_RESTARTS):
            schema = self._definition()
            if schema is None:
                self._context.meta.drop_copy(self._context.lease, self._context.source, ".".join(self._table))
                return
            try:
                copy = self._begun(schema)
                self._progressed(copy)
                while not copy.complete and not self._stop.is_set():
                    copy = self._next_chunk(copy)
                    self._progressed(copy)
                return
            except _RedefinedError:
                log.warning("%s: %s was redefined; its copy begins again", self._context.source, schema.name)
        raise RetryLater(
            f"The definition of {'.'.join(self._table)} changed {_RESTARTS} times while the table was copied.",
            where=self._context.source,
            code="snapshot.redefined",
            remedy="the next attempt begins the copy of this table again",
        )

    def _definition(self) -> TableSchema | None:
        return table_schema(self._sessions.control, *self._table)

    def _begun(self, schema: TableSchema) -> TableCopy:
        """The copy of this definition that is under way, or a new one."""
        context = self._context
        keys.key_columns(schema)
        require_unreserved(schema)
        _require_ages(context, schema)
        size = size_of(self._sessions.control, schema)
        self._row_bytes = size.row_bytes
        known = {copy.table: copy for copy in context.meta.copies(context.source)}.get(schema.name)
        if known is not None and known.schema.id == schema.id:
            return known
        with self._view(schema, self._staged_here()):
            limit = greatest(self._sessions.reader, schema)
        copy = TableCopy(context.source, schema, limit, rows_estimated=size.rows)
        context.meta.begin_copy(context.lease, copy)
        return copy

    def _staged_here(self) -> Checkpoint:
        """The end of what is staged, in the log of the server that is read."""
        staged = _staged(self._context.meta, self._context.source)
        _require_same(staged, self._server, self._context.source)
        return staged

    def _view(self, schema: TableSchema, staged: Checkpoint) -> AbstractContextManager[View]:
        return read_view(self._sessions.reader, self._sessions.control, self._server, staged, schema)

    def _next_chunk(self, copy: TableCopy) -> TableCopy:
        context, schema = self._context, copy.schema
        config = context.pipeline.snapshot
        rows = chunk_rows(config.chunk_mib << 20, self._row_bytes)
        through = copy.limit and end_of_chunk(self._sessions.control, schema, copy.reached, copy.limit, rows)
        number = context.meta.next_chunk(context.lease, context.source)
        staged = self._staged_here()
        reader = TableReader(self._sessions.reader, schema)
        where = f"{keys.after(schema, copy.reached)} AND {keys.up_to(schema, through)}" if copy.limit else "FALSE"
        ts_us = staged.watermark_us or self._server.clock_us
        with self._view(schema, staged) as view:
            file = ChunkFile(
                context.store, context.capture, schema, source=context.source, number=number,
                epoch=context.lease.epoch, low=view.low, ts_us=ts_us,
                level=context.pipeline.stage.compression_level, scratch=context.scratch,
            )  # fmt: skip
            try:
                for batch in reader.batches(f"{from_table(schema)} WHERE {where} ORDER BY {keys.ordered(schema)}"):
                    file.add(batch)
                if self._definition() != schema:
                    raise _RedefinedError
                parts = file.finish()
            except BaseException:
                file.discard()
                raise
        high = high_of(self._sessions.control, view)
        if file.rows:
            self._row_bytes = file.row_bytes / file.rows
        chunk = CopiedChunk(
            number,
            schema.name,
            copy.reached,
            through,
            ts_us,
            view.low,
            high,
            file.rows,
            tuple(part.path for part in parts),
        )
        complete = through == copy.limit
        context.meta.chunk_read(context.lease, context.source, ReadChunk(chunk, parts, file.schemas), complete=complete)
        return replace(copy, reached=through, complete=complete, rows=copy.rows + file.rows)


def _require_ages(context: CopyContext, schema: TableSchema) -> None:
    """Where rows of several tables count as one, the newest wins; how old a copied row is, nothing tells.

    Raises Refused (snapshot.shared_keys).
    """
    pipeline = context.pipeline
    for logical in context.capture.route(schema.database, schema.table):
        for target in pipeline.targets:
            if pipeline.counts_newest(target.name, logical, schema.name):
                raise Refused(
                    f"Rows of {schema.name} and of other tables with the same key count as one row of {logical}, for "
                    "which the newest change counts; of a copied row nothing tells when it was changed.",
                    where=f"targets.{target.name}.tables.{logical}.shared_keys",
                    code="snapshot.shared_keys",
                    remedy="load the tables' rows into the target by a dump (docs/tutorial.md); or, if the tables "
                    "share no keys, leave out shared_keys",
                )


def _staged(meta: Meta, source: str) -> Checkpoint:
    staged = meta.checkpoint(source)
    if staged is None:
        raise Refused(
            f"Nothing of the source {source!r} was extracted yet, so that no copy could be placed in its log.",
            where=source,
            code="snapshot.not_started",
            remedy="run `lockstep extract` first",
        )
    return staged


def _require_same(staged: Checkpoint, server: ServerFacts, source: str) -> None:
    if is_other_server(staged, server):
        raise RetryLater(
            f"The server of {source!r} that was read last does not answer, and another one does: its log is a new "
            "timeline, which the extractor begins.",
            where=source,
            code="snapshot.other_server",
            remedy="run `lockstep extract` first; the copy then continues at the new server",
        )
