"""The chunks of one table's copy, given to readers one at a time.

Readers of a table share one object; only one of them plans at a time, so that no two chunks overlap. A chunk that a
killed reader left comes first. When the definition of the table changes, the copy begins again, and whatever the other
readers still bring of the former one is not wanted any more: meta says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from cdc_core.errors import DefinitionChanged
from cdc_core.meta import Lease, Meta, ReadChunk, TableCopy
from cdc_core.meta.table_copies import PlannedChunk
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.mysql.connections import SafeConnection
from cdc_core.operations.copy import key_ranges
from cdc_core.operations.copy.chunks import Pace, density_of, size_of
from cdc_core.source.schemas.captured_definitions import table_schema

log = logging.getLogger(__name__)


_RESTARTS = 3
"""How often the copy of a table begins again in one call, because its definition changed meanwhile."""

Begin = Callable[[TableSchema], tuple[key_ranges.Key, Position | None]]
"""Returns the last key, () for a table without rows; and the low of the read view that shows it, as in TableCopy."""


class TableChunks:
    """table: (database, name). pace: of its chunks alone.

    require: raises Refused for a definition that is not copied. rules_of: as in Capture.
    """

    def __init__(
        self,
        meta: Meta,
        lease: Lease,
        source: str,
        table: tuple[str, str],
        *,
        pace: Pace,
        require: Callable[[TableSchema], None] = lambda _: None,
        rules_of: Callable[[TableSchema], str] = lambda _: "",
    ) -> None:
        self.table = table
        self.readers = 0
        """At work on a chunk of it."""
        self.exhausted = False
        """No chunk is left to take."""
        self._meta = meta
        self._lease = lease
        self._source = source
        self._pace = pace
        self._require = require
        self._rules_of = rules_of
        self._lock = threading.Lock()
        self._copy: TableCopy | None = None
        self._restarts = 0

    @property
    def name(self) -> str:
        return ".".join(self.table)

    @property
    def copy(self) -> TableCopy | None:
        """How far it is; None before it has begun, and for a table that is gone."""
        return self._copy

    def next(self, control: SafeConnection, begin: Begin) -> tuple[TableCopy, PlannedChunk] | None:
        """A chunk to read, and the copy that it is of; None if none is left.

        begin: what a read view of the table shows.

        Raises Refused (snapshot.not_copyable), RetryLater (table.redefined), and what servers and meta raise.
        """
        with self._lock:
            if self._copy is None and not self.exhausted:
                self._copy = self._begun(control, begin)
            copy = self._copy
            if copy is None or self.exhausted:
                self.exhausted = True
                return None
            left = self._meta.copies.take_chunk(self._lease, self._source, self.name)
            if left is not None:
                return copy, left
            if copy.planned is not None and copy.planned == copy.limit:
                self.exhausted = True
                return None
            above = copy.planned or ()
            through = self._pace.end(control, copy.schema, above, copy.limit)
            planned = self._meta.copies.plan_chunk(self._lease, self._source, self.name, copy.planned, through)
            self._copy = replace(copy, planned=through)
            return self._copy, planned

    def read(self, chunk: ReadChunk, size_bytes: int, took_s: float) -> bool:
        """A chunk's files are durable. False if its copy has begun again meanwhile, so that the files are not wanted.

        size_bytes: of the values. took_s: how long the read view was open.
        """
        with self._lock:
            rows = chunk.chunk.rows
            copy = self._copy
            wanted = self._meta.copies.chunk_read(self._lease, self._source, chunk, size_bytes)
            if wanted and copy is not None:
                self._pace.density = density_of(copy.schema, chunk.chunk.above, chunk.chunk.through, rows)
                self._copy = replace(copy, rows=copy.rows + rows, size_bytes=copy.size_bytes + size_bytes)
            self._pace.read(rows, size_bytes, took_s)
            return wanted

    def begin_again(self, former: TableSchema) -> None:
        """The definition has changed from `former`: what was read of it is forgotten, once, whoever notices.

        Raises RetryLater (table.redefined).
        """
        with self._lock:
            if self._copy is None or self._copy.schema != former:
                return
            self._restarts += 1
            if self._restarts >= _RESTARTS:
                raise DefinitionChanged(
                    f"{self.name} was altered {_RESTARTS} times while it was copied.",
                    where=self._source,
                    remedy="run again when the migration of the table has ended: its copy then begins again",
                )
            log.warning("%s: %s was redefined; its copy begins again", self._source, self.name)
            self._meta.copies.drop(self._lease, self._source, self.name)
            self._copy, self.exhausted = None, False

    def _begun(self, control: SafeConnection, begin: Begin) -> TableCopy | None:
        """The copy of the current definition that is under way, or a new one; None for a table that is gone."""
        schema = table_schema(control, *self.table)
        if schema is None:
            self._meta.copies.drop(self._lease, self._source, self.name)
            return None
        self._require(schema)
        size = size_of(control, schema)
        self._pace.row_bytes = size.row_bytes
        self._pace.density = 0.0
        begun = {copy.table: copy for copy in self._meta.copies.find(self._source)}.get(schema.name)
        rules = self._rules_of(schema)
        if begun is not None and begun.rules and begun.rules != rules:
            log.warning("%s: the rules for %s have changed; its copy begins again", self._source, self.name)
        elif begun is not None and begun.schema.id == schema.id:
            if begun.rows:
                self._pace.row_bytes = begun.size_bytes / begun.rows
            return begun
        limit, low = begin(schema)
        copy = TableCopy(self._source, schema, limit, rows_estimated=size.rows, low=low, rules=rules)
        self._meta.copies.begin(self._lease, copy)
        return copy
