"""The rows of the source tables that feed a logical table, through the pipeline's own rules.

A table with a key is read chunk by chunk, each in a view of its own; without one, at once. Before each chunk it waits
while a copy would have to (snapshot.throttle), and it ends where copies are paused. It must keep true that every row of
the range that was there at `low` and was not changed until `high` is read once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_core.config import Pipeline
from cdc_core.errors import DefinitionChanged, OtherServer, Paused, Refused, TableRefused
from cdc_core.meta import Meta
from cdc_core.model.block import TableRows
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged_columns import ABSENT, BEFORE, BOOKKEEPING, LITERAL, staged_schema
from cdc_core.model.windows import from_us
from cdc_core.mysql.connections import SafeConnection, Server
from cdc_core.operations.copy import key_ranges
from cdc_core.operations.copy.chunks import end_of_chunk, from_table, last_key, size_of
from cdc_core.operations.copy.pace import Pace
from cdc_core.operations.copy.sessions import open_pair
from cdc_core.operations.copy.throttle import Throttle
from cdc_core.operations.copy.watermarks import await_logged, high_of, read_view
from cdc_core.operations.extract import hosts
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify import lookup
from cdc_core.operations.verify.canonical import row_texts
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.results import TableReader
from cdc_core.results.reading_faults import UnlikeDefinition, translating
from cdc_core.source.capture import Capture
from cdc_core.source.host.failover import is_other_server
from cdc_core.source.host.server_facts import ServerFacts
from cdc_core.source.schemas.captured_definitions import Name, captured_tables, table_schema
from cdc_core.source.wire import replica_identity

Take = Callable[[TableRows], None]
RANGES_IN_MEMORY = 4
"""Both sides of one range, and what is read meanwhile of the next one: together as much as a chunk of a copy."""
WAIT_S = 1.0
"""How often a reader that must wait asks again."""


@dataclass(frozen=True, slots=True)
class Read:
    """A piece that was read. low, high: as of a claim."""

    rows: int
    low: Position
    high: Position


class SourceTables:
    """The sessions at one source: `open_source`."""

    def __init__(
        self,
        pipeline: Pipeline,
        name: str,
        meta: Meta,
        server: ServerFacts,
        reader: SafeConnection,
        control: SafeConnection,
        capture: Capture,
        throttle: Throttle,
        waiting: Callable[[str], None],
        address: Server,
    ) -> None:
        self.name = name
        self.address = address
        self._limits = pipeline.snapshot
        self._meta = meta
        self._server = server
        self._reader = reader
        self._control = control
        self.capture = capture
        self._throttle = throttle
        self._waiting = waiting
        self._paces: dict[str, Pace] = {}
        self._last: dict[str, key_ranges.Key] = {}
        self._past_last: set[str] = set()
        self._bookkeeping: _Bookkeeping | None = None

    def tables(self) -> Mapping[Name, tuple[TableSchema | None, str]]:
        """Its captured tables: the definition before the pipeline's rules, or why the table cannot be read."""
        return captured_tables(self._control, self.capture.captures)

    def gone(self, there: Collection[Name]) -> list[Name]:
        """Captured tables that it had. there: those that it has."""
        known = (tuple(name.split(".", 1)) for name in self._meta.coverages.find(self.name).tables)
        return [(database, table) for database, table in known if (database, table) not in there]

    def has(self, schema: TableSchema) -> bool:
        """Whether the table has this definition now."""
        return table_schema(self._control, schema.database, schema.table) == schema

    def staged(self) -> Checkpoint:
        """The end of what is staged, in the log of the server that is read."""
        return _same_server(self._meta, self.name, self._server)

    def rows_estimated(self, schema: TableSchema) -> int:
        """By the server's statistics, which may be off by half."""
        return size_of(self._control, schema).rows

    def chunk_rows(self, schema: TableSchema) -> int:
        """How many rows the next chunk of a table should have."""
        return self._pace(schema).rows

    def edge(self, schema: TableSchema, above: key_ranges.Key, rows: int) -> key_ranges.Key | None:
        """The key of the `rows`-th row after `above`; None if there are fewer, not counting rows with keys after the
        last one that there was when this was first asked of the table: a table that grows has an end, too."""
        last = self._last_of(schema)
        if not last:
            return None
        found = end_of_chunk(self._control, schema, above, last, rows)
        return None if found == last else found

    def read_next(
        self, schema: TableSchema, logical: str, above: key_ranges.Key, rows: int, take: Take
    ) -> tuple[Read, key_ranges.Key | None]:
        """Reads the next rows after a key, in the order of the key; the key of the last one, or None if these were all
        that are there now. Rows with keys after the last one that there was when this was first asked are read at once:
        a table that grows has an end, too. Else as `read`."""
        down = key_ranges.downwards(self._last_of(schema))
        order = key_ranges.ordered(schema, down) if down else "NULL"
        tail = f"WHERE {key_ranges.after(schema, above)} ORDER BY {order}"
        if schema.name in self._past_last or not down:
            return self._piece(schema, logical, tail, take), None
        reached: list[key_ranges.Key] = []

        def ended(count: int, last: pa.RecordBatch | None) -> None:
            if count == rows and last is not None:
                reached.append(self._key_of(schema, above, rows, last))

        read = self._piece(schema, logical, f"{tail} LIMIT {rows}", take, ended)
        return read, reached[0] if reached else None

    def _key_of(self, schema: TableSchema, above: key_ranges.Key, rows: int, last: pa.RecordBatch) -> key_ranges.Key:
        """The key of a row that was read, the last of so many after `above`, as the server says it in the open view."""
        columns = [schema.column(name) for name in schema.key]
        enums = {column.name.lower() for column in columns if column.type.base == "enum"}
        same = lookup.condition(columns, row_texts(last, columns, enums).to_pylist(), enums)
        down = key_ranges.downwards(self._last_of(schema))
        asked = f"{key_ranges.selected(schema)}, {key_ranges.up_to(schema, self._last_of(schema))}"
        found = self._asked(f"SELECT {asked} {from_table(schema)} WHERE {same}")
        if len(found) != 1:  # what no condition finds by its value, is found by its place
            order = f"ORDER BY {key_ranges.ordered(schema, down)} LIMIT 1 OFFSET {rows - 1}"
            found = self._asked(f"SELECT {asked} {from_table(schema)} WHERE {key_ranges.after(schema, above)} {order}")
        *values, before = found[0]
        if not int(before):
            self._past_last.add(schema.name)
        return key_ranges.literals(schema, values, down)

    def _last_of(self, schema: TableSchema) -> key_ranges.Key:
        if schema.name not in self._last:
            self._last[schema.name] = last_key(self._control, schema)
        return self._last[schema.name]

    def _asked(self, sql: str) -> Sequence[Sequence[Any]]:
        with translating(self.name), self._reader.cursor() as cursor:
            cursor.execute(sql)
            found: Sequence[Sequence[Any]] = cursor.fetchall()
            return found

    def read(self, schema: TableSchema, logical: str, take: Take) -> Iterator[Read]:
        """Reads a table; each piece of its rows that is routed to the logical table goes to `take`.

        Raises RetryLater (table.redefined, snapshot.paused), and what read_view, Throttle and TableReader raise.
        """
        if _in_chunks(schema):
            yield from self.read_after(schema, logical, (), take)
        else:
            yield self._piece(schema, logical, "", take)

    def read_after(
        self, schema: TableSchema, logical: str, above: key_ranges.Key, take: Take, *, at_once: bool = False
    ) -> Iterator[Read]:
        """Reads the rows after a key up to the last one of now, chunk by chunk or at once; else as `read`."""
        self._wait()
        with read_view(self._reader, self._control, self._server, self.staged(), schema) as view:
            limit = last_key(self._reader, schema)
        # Rows after the limit came later: they count as read, and not found.
        yield Read(0, view.low, high_of(self._control, view))
        yield from self.read_range(schema, logical, above, limit, take, at_once=at_once)

    def read_range(
        self,
        schema: TableSchema,
        logical: str,
        above: key_ranges.Key,
        through: key_ranges.Key,
        take: Take,
        *,
        at_once: bool = False,
    ) -> Iterator[Read]:
        """Reads the rows after `above`, up to and with `through`; else as `read`. at_once: in one chunk."""
        reached = above
        while through and reached != through:
            rows = self._pace(schema).rows
            end = through if at_once else end_of_chunk(self._control, schema, reached, through, rows)
            where = f"WHERE {key_ranges.after(schema, reached)} AND {key_ranges.up_to(schema, end)}"
            yield self._piece(schema, logical, where, take)
            reached = end

    def count(self, schema: TableSchema) -> tuple[int, key_ranges.Key, Read]:
        """How many rows a table has, its last key (() without a key by which it can be cut), and the read."""
        self._wait()
        with read_view(self._reader, self._control, self._server, self.staged(), schema) as view:
            with translating(schema.name), self._reader.cursor() as cursor:
                cursor.execute(f"SELECT COUNT(*) {from_table(schema)}")
                ((rows,),) = cursor.fetchall()
            last = last_key(self._reader, schema) if _in_chunks(schema) else ()
        return int(rows), last, Read(int(rows), view.low, high_of(self._control, view))

    def last_key(self, schema: TableSchema) -> key_ranges.Key:
        """The last key; () for a table without rows, or without a key by which it can be cut."""
        return last_key(self._control, schema) if _in_chunks(schema) else ()

    @property
    def watermark_us(self) -> int:
        """As claims say it, µs UTC: of what is staged or, before any of it has a time, of the server's clock."""
        return self.staged().watermark_us or self._server.clock_us

    def await_logged(self) -> None:
        """See watermarks.await_logged."""
        await_logged(self._control, self._server)

    def row_bytes(self, schema: TableSchema) -> float:
        """The server's estimate of the size of a row."""
        return float(size_of(self._control, schema).row_bytes)

    def lookup(self, schema: TableSchema, logical: str, condition: str, take: Take) -> Read:
        """Reads the rows that meet a condition; else as `read`."""
        return self._piece(schema, logical, f"WHERE {condition}", take)

    def _pace(self, schema: TableSchema) -> Pace:
        pace = self._paces.get(schema.name)
        if pace is None:
            row_bytes = size_of(self._control, schema).row_bytes
            chunk_bytes = (self._limits.chunk_mib << 20) // RANGES_IN_MEMORY
            pace = self._paces[schema.name] = Pace(chunk_bytes, self._limits.chunk_s, row_bytes)
        return pace

    def _wait(self) -> None:
        """Until a chunk may be read. Raises RetryLater (snapshot.paused), Refused (snapshot.throttle)."""
        if not self._reader.open:  # an error has closed it amid the rows of another table
            with translating(self.name):
                self._reader.connect()
        while True:
            pause = self._meta.copies.paused(self.name)
            if pause is not None:
                raise Paused(
                    f"{pause.holder} paused reading tables of {self.name} at {from_us(pause.since_us)}.",
                    where=self.name,
                    remedy="`lockstep snapshot PIPELINE --resume` lets it continue after its last range",
                )
            why = self._throttle.why(self._control)
            if not why:
                return
            self._waiting(why)
            time.sleep(WAIT_S)

    def _piece(
        self,
        schema: TableSchema,
        logical: str,
        tail: str,
        take: Take,
        ended: Callable[[int, pa.RecordBatch | None], None] = lambda rows, last: None,
    ) -> Read:
        """tail: what follows the table's name. ended: told, while the view is open, how many rows were read and the
        last one of them."""
        self._wait()
        reader = TableReader(self._reader, schema)
        if self._bookkeeping is None or self._bookkeeping.schema != schema:
            self._bookkeeping = _Bookkeeping(schema)
        count = size_bytes = 0
        last: pa.RecordBatch | None = None
        began_s = time.monotonic()
        with read_view(self._reader, self._control, self._server, self.staged(), schema) as view:
            for batch in self._batches(reader, schema, tail):
                last = batch.slice(batch.num_rows - 1)
                count += batch.num_rows
                size_bytes += batch.nbytes
                for routed in self.capture.routed(self._bookkeeping.of(batch)):
                    if routed.logical == logical and routed.rows.num_rows:
                        take(routed)
            ended(count, last)
            if table_schema(self._control, schema.database, schema.table) != schema:
                raise DefinitionChanged(
                    f"{schema.name} was altered while it was verified.",
                    where=self.name,
                    remedy="verify it again; nothing was concluded about it",
                )
        self._pace(schema).read(count, size_bytes, time.monotonic() - began_s)
        return Read(count, view.low, high_of(self._control, view))

    def _batches(self, reader: TableReader, schema: TableSchema, tail: str) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader.batches(f"{from_table(schema)} {tail}")
        except UnlikeDefinition as error:
            if table_schema(self._control, schema.database, schema.table) == schema:
                raise error.refusal() from None
            raise


@contextmanager
def open_sources(job: VerifyJob) -> Iterator[list[SourceTables]]:
    """Every source of the pipeline; the job says why one is waited for. Raises as open_source."""
    with ExitStack() as opened:
        yield [
            opened.enter_context(open_source(job.opened, one.name, partial(_waiting, job, one.name)))
            for one in job.pipeline.sources
        ]


def _waiting(job: VerifyJob, source: str, why: str) -> None:
    job.opened.progress.note(f"{source}: waiting: {why}")


@contextmanager
def open_source(
    opened: OpenPipeline, name: str, waiting: Callable[[str], None] = lambda why: None
) -> Iterator[SourceTables]:
    """Two sessions at the server that the extractor reads. waiting: told why, while no chunk may be read.

    Raises Refused (source.not_extracted), RetryLater (source.other_server), and what hosts.connect raises.
    """
    pipeline, meta, environ = opened.pipeline, opened.meta, opened.environ
    config = pipeline.source(name)
    with ExitStack() as stack:
        stored = meta.positions.checkpoint(name)
        replica = replica_identity.replica_host(opened.name, name, meta.leases.identity(name))
        address, control, server = hosts.connect(config, stored, environ, replica)
        stack.callback(control.close)
        _same_server(meta, name, server)
        pair = open_pair(stack, config, address)
        capture = Capture(pipeline.tables, pipeline.routes, environ, lower_case=server.lower_case)
        throttle = stack.enter_context(
            Throttle(pipeline.snapshot.throttle, environ, source=name, mariadb=server.mariadb)
        )
        yield SourceTables(pipeline, name, meta, server, pair.reader, pair.control, capture, throttle, waiting, address)


def _same_server(meta: Meta, name: str, server: ServerFacts) -> Checkpoint:
    staged = meta.positions.checkpoint(name)
    if staged is None:
        raise Refused(
            f"Nothing of the source {name!r} was extracted yet.",
            where=name,
            code="source.not_extracted",
            remedy="run `lockstep run` first",
        )
    if is_other_server(staged, server):
        raise OtherServer(
            f"Another server of {name!r} answers than the one that was read last.",
            where=name,
            remedy="run `lockstep extract` first, which moves to the new server; then verify again",
        )
    return staged


def _in_chunks(schema: TableSchema) -> bool:
    try:
        key_ranges.key_columns(schema)
    except TableRefused:
        return False
    return True


class _Bookkeeping:
    """Rows as the pipeline's rules take them. Their places in the log are of no interest, and the same for all."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self._arrow = staged_schema(schema)
        self._filled: list[pa.Array | None] = []
        self._rows = -1

    def of(self, rows: pa.RecordBatch) -> TableRows:
        """rows: a batch of TableReader."""
        count = rows.num_rows
        if count > self._rows:
            before = pa.nulls(count, self._arrow.field(BEFORE).type)
            self._filled = [before, *(_filled(field, count) for field in BOOKKEEPING)]
            self._rows = count
        arrays = [rows.column(column.name) for column in self.schema.columns]
        arrays += [rows.column(LITERAL) if one is None else one.slice(0, count) for one in self._filled]
        staged = pa.RecordBatch.from_arrays(arrays, schema=self._arrow)
        return TableRows(self.schema, self.schema.name, staged, np.zeros(count, np.int32))


def _filled(field: pa.Field, count: int) -> pa.Array | None:
    """None for what the rows themselves have."""
    if field.name == LITERAL:
        return None
    if pa.types.is_dictionary(field.type):
        empty = field.name == ABSENT
        indices = pa.nulls(count, pa.int32()) if empty else pa.array(np.zeros(count, np.int32))
        return pa.DictionaryArray.from_arrays(indices, pa.array([] if empty else ["r"], pa.string()))
    if field.nullable:
        return pa.nulls(count, field.type)
    return pa.array(np.zeros(count, np.int64)).cast(field.type)


def columns_of(rows: TableRows) -> dict[str, Column]:
    """By name, as they were read."""
    return {column.name: column for column in rows.schema.columns}
