"""The rows of the source tables that feed a logical table, through the pipeline's own rules.

A table with a key is read chunk by chunk, each in a view of its own; without one, at once. Before each chunk it waits
while a copy would have to (snapshot.throttle), and it ends where copies are paused. It must keep true that every row of
the range that was there at `low` and was not changed until `high` is read once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from cdc_core.errors import DefinitionChanged, TableRefused
from cdc_core.model.block import TableRows
from cdc_core.model.position import Position
from cdc_core.model.schema import Column, TableName, TableSchema
from cdc_core.operations.copy import key_ranges
from cdc_core.operations.copy.chunks import Pace, density_of, end_of_chunk, from_table, last_key, size_of
from cdc_core.operations.copy.copied_rows import CopiedAt
from cdc_core.operations.copy.read_source import ReadSource, SessionPair, read_source
from cdc_core.operations.copy.watermarks import await_logged, high_of, read_view
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.results import TableReader
from cdc_core.results.reading_faults import UnlikeDefinition, translating
from cdc_core.source.schemas.captured_definitions import captured_tables, table_schema

Take = Callable[[TableRows], None]
RANGES_IN_MEMORY = 4
"""Both sides of one range, and what is read meanwhile of the next one: together as much as a chunk of a copy."""


@dataclass(frozen=True, slots=True)
class Read:
    """A piece that was read. low, high: as of a claim."""

    rows: int
    low: Position
    high: Position


class SourceTables:
    """The sessions at one source: `open_source`. waiting: told why, while no chunk may be read."""

    def __init__(self, source: ReadSource, pair: SessionPair, waiting: Callable[[str], None]) -> None:
        self.name = source.name
        self.address = source.address
        self.capture = source.capture()
        self._source = source
        self._reader, self._control = pair.reader, pair.control
        self._waiting = waiting
        self._paces: dict[str, Pace] = {}
        self._last: dict[str, key_ranges.Key] = {}

    def tables(self) -> Mapping[TableName, tuple[TableSchema | None, str]]:
        """Its captured tables: the definition before the pipeline's rules, or why the table cannot be read."""
        return captured_tables(self._control, self.capture.captures)

    def gone(self, there: Collection[TableName]) -> list[TableName]:
        """Captured tables that it had. there: those that it has."""
        known = (tuple(name.split(".", 1)) for name in self._source.opened.meta.coverages.find(self.name).tables)
        return [(database, table) for database, table in known if (database, table) not in there]

    def has(self, schema: TableSchema) -> bool:
        """Whether the table has this definition now."""
        return table_schema(self._control, schema.database, schema.table) == schema

    def rows_estimated(self, schema: TableSchema) -> int:
        """How many rows the server's statistics count, which may be off by half."""
        return size_of(self._control, schema).rows

    def chunk_rows(self, schema: TableSchema) -> int:
        """How many rows the next chunk of a table should have."""
        return self._pace(schema).rows

    def end_of_range(self, schema: TableSchema, above: key_ranges.Key, rows: int | None = None) -> key_ranges.Key:
        """The key at which a chunk after `above` ends. (): it has all that is left, not counting rows with keys after
        the last one that there was when this was first asked of the table: a table that grows has an end, too.

        rows: exactly so many, where the pace does not decide.
        """
        self._wait()  # to look for an end costs the server half as much as to read the rows
        if schema.name not in self._last:
            self._last[schema.name] = last_key(self._control, schema)
        last = self._last[schema.name]
        if rows is None:
            end = self._pace(schema).end(self._control, schema, above, last)
        else:
            end = end_of_chunk(self._control, schema, above, last, rows) if last else ()
        return () if end == last else end

    def read(
        self,
        schema: TableSchema,
        logical: str,
        take: Take,
        above: key_ranges.Key = (),
        through: key_ranges.Key = (),
        *,
        at_once: bool = False,
    ) -> Iterator[Read]:
        """Reads the rows after `above`, up to and with `through`; () for all. Each piece of those that are routed to
        the logical table goes to `take`, in the order of the key. at_once: in one piece.

        Raises RetryLater (table.redefined, snapshot.paused), and what read_view, Throttle and TableReader raise.
        """
        if not _in_chunks(schema):
            yield self._piece(schema, logical, "", take)
            return
        pace = self._pace(schema)
        while True:
            end = through
            if not at_once:
                end = pace.end(self._control, schema, above, through) if through else self.end_of_range(schema, above)
            read = self._piece(schema, logical, key_ranges.between(schema, above, end), take)
            pace.density = density_of(schema, above, end, read.rows)
            yield read
            if end == through:
                return
            above = end

    def count(self, schema: TableSchema) -> tuple[int, key_ranges.Key, Read]:
        """How many rows a table has, its last key (() without a key by which it can be cut), and the read."""
        self._wait()
        with read_view(self._reader, self._control, self._source.server, self._source.staged(), schema) as view:
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
        return self._source.staged().watermark_us or self._source.server.clock_us

    def await_logged(self) -> None:
        """See watermarks.await_logged."""
        await_logged(self._control, self._source.server)

    def row_bytes(self, schema: TableSchema) -> float:
        """The server's estimate of the size of a row."""
        return float(size_of(self._control, schema).row_bytes)

    def lookup(self, schema: TableSchema, logical: str, condition: str, take: Take) -> Read:
        """Reads the rows that meet a condition; else as `read`."""
        return self._piece(schema, logical, f"WHERE {condition}", take)

    def _pace(self, schema: TableSchema) -> Pace:
        pace = self._paces.get(schema.name)
        if pace is None:
            limits, row_bytes = self._source.opened.pipeline.snapshot, size_of(self._control, schema).row_bytes
            chunk_bytes = (limits.chunk_mib << 20) // RANGES_IN_MEMORY
            pace = self._paces[schema.name] = Pace(chunk_bytes, limits.chunk_s, row_bytes)
        return pace

    def _wait(self) -> None:
        """Until a chunk may be read."""
        if not self._reader.open:  # an error has closed it amid the rows of another table
            with translating(self.name):
                self._reader.connect()
        self._source.await_turn(self._control, self._waiting)

    def _piece(self, schema: TableSchema, logical: str, tail: str, take: Take) -> Read:
        """tail: what follows the table's name."""
        self._wait()
        reader = TableReader(self._reader, schema)
        count = size_bytes = 0
        began_s = time.monotonic()
        with read_view(self._reader, self._control, self._source.server, self._source.staged(), schema) as view:
            at = CopiedAt(self.name, view.low, 0)
            for batch in self._batches(reader, schema, tail):
                count += batch.num_rows
                size_bytes += batch.nbytes
                rows = TableRows(schema, schema.name, at.rows(schema, batch, 0), np.zeros(batch.num_rows, np.int32))
                for routed in self.capture.routed(rows):
                    if routed.logical == logical and routed.rows.num_rows:
                        take(routed)
            if not self.has(schema):
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
            if self.has(schema):
                raise error.refusal() from None
            raise


@contextmanager
def open_sources(job: VerifyJob) -> Iterator[list[SourceTables]]:
    """Every source of the pipeline; the job says why one is waited for. Raises as open_source."""
    with ExitStack() as opened:
        yield [
            opened.enter_context(open_source(job.opened, source.name, partial(_waiting, job, source.name)))
            for source in job.pipeline.sources
        ]


def _waiting(job: VerifyJob, source: str, why: str) -> None:
    job.opened.progress.note(f"{source}: waiting: {why}")


@contextmanager
def open_source(
    opened: OpenPipeline, name: str, waiting: Callable[[str], None] = lambda why: None
) -> Iterator[SourceTables]:
    """Two sessions at the server that the extractor reads. waiting: as in SourceTables. Raises as read_source."""
    with read_source(opened, name) as source, source.sessions() as pair:
        yield SourceTables(source, pair, waiting)


def _in_chunks(schema: TableSchema) -> bool:
    try:
        key_ranges.key_columns(schema)
    except TableRefused:
        return False
    return True


def columns_of(rows: TableRows) -> dict[str, Column]:
    """The tables by name, as they were read."""
    return {column.name: column for column in rows.schema.columns}
