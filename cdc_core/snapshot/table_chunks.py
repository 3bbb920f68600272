"""The chunks of one table's copy, given to readers one at a time.

Readers of a table share one object; only one of them plans at a time, so that no two chunks overlap. A chunk that a
killed reader left comes first. When the definition of the table changes, the copy begins again, and whatever the other
readers still bring of the former one is not wanted any more: meta says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from cdc_core.connections import SafeConnection
from cdc_core.errors import RetryLater
from cdc_core.meta import Lease, Meta, PlannedChunk, ReadChunk, TableCopy
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.results import TableReader
from cdc_core.snapshot import key_places, keys
from cdc_core.snapshot.chunks import FIRST_ROWS, TableSize, computed_end, end_of_chunk, least, size_of
from cdc_core.snapshot.pace import Pace
from cdc_core.snapshot.profile import Profile, can_have_profile, profile_of
from cdc_core.source.definitions import table_schema

log = logging.getLogger(__name__)

_RESTARTS = 3
"""How often the copy of a table begins again in one call, because its definition changed meanwhile."""

_PROFILED_CHUNKS, _PROFILED_FIRSTS = 4, 40
"""A table of fewer chunks, and of fewer rows than so many first chunks, gets no profile."""

_SURE_TIMES = 2
"""The server's estimate is taken to be right within this factor."""

_COUNTED_FIRSTS = 2 * _PROFILED_FIRSTS
"""Rows are counted in a table of fewer rows than so many first chunks, by the server's estimate, which may be wrong by
half. In a larger one a profile tells how many there are, without the scan of an index that a count costs."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What is to be copied. limit: the greatest key, () for a table without rows. low: of the read view that shows it,
    as in TableCopy. rows: how many, None where they are not counted, or counting takes too long."""

    limit: keys.Key
    low: Position | None
    rows: int | None


Begin = Callable[[TableSchema, bool], Extent]
"""The definition, and whether rows are to be counted."""


class TableChunks:
    """table: (database, name). chunk_bytes, chunk_s: what a chunk should not exceed, in bytes and in time to read.

    require: raises Refused for a definition that is not copied. rules_of: as in Capture.
    """

    def __init__(
        self,
        meta: Meta,
        lease: Lease,
        source: str,
        table: tuple[str, str],
        *,
        chunk_bytes: int,
        chunk_s: float,
        require: Callable[[TableSchema], None] = lambda _: None,
        rules_of: Callable[[TableSchema], str] = lambda _: "",
    ) -> None:
        self.table = table
        self.readers = 0
        """At work on a chunk of it."""
        self.exhausted = False
        """No chunk is left to take; those that are being read may come back."""
        self._meta = meta
        self._lease = lease
        self._source = source
        self._chunk_bytes = chunk_bytes
        self._pace = Pace(chunk_bytes, chunk_s, first_rows=FIRST_ROWS)
        self._require = require
        self._rules_of = rules_of
        self._lock = threading.Lock()
        self._copy: TableCopy | None = None
        self._least: keys.Key = ()
        self._planned_here: dict[int, tuple[keys.Key, keys.Key]] = {}
        """Chunks that are being read: above and through."""
        self._read_ranges: list[tuple[keys.Key, keys.Key]] = []
        """Of the chunks that were read before it was tried to make a profile."""
        self._share = self._share_bytes = 0.0
        """Of the table, as far as its keys tell, in the chunks that were read: rows of the profile, or a fraction."""
        self._density = 0.0
        """Rows for each key of the chunk that was read last; 0 where keys are not whole numbers."""
        self._size = TableSize(0, 0)
        self._profile: Profile | None = None
        self._profiled = False
        self._chunks_read = 0
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

        Raises Refused (snapshot.no_key, snapshot.key_type), RetryLater (snapshot.redefined), and what servers and meta
        raise.
        """
        with self._lock:
            if self._copy is None and not self.exhausted:
                self._copy = self._begun(control, begin)
            copy = self._copy
            if copy is None or self.exhausted:
                self.exhausted = True
                return None
            left = self._meta.take_chunk(self._lease, self._source, self.name)
            if left is not None:
                return copy, left
            if copy.planned is not None and copy.planned == copy.limit:
                self.exhausted = True
                return None
            if self._chunks_read and not self._profiled:
                self._profiled, self._profile = True, self._profile_of(control, copy)
                self._share = self._share_bytes = 0.0
                for one in self._read_ranges:
                    self._add_share(copy, *one)
            above = copy.planned or ()
            if self._profile is not None and above:
                self._pace.row_bytes = self._profile.row_bytes_after(int(above[0]))
            through = computed_end(copy.schema, above, copy.limit, self._pace.rows, self._density)
            if copy.limit and not through:
                through = end_of_chunk(control, copy.schema, above, copy.limit, self._pace.rows)
            planned = self._meta.plan_chunk(self._lease, self._source, self.name, copy.planned, through)
            self._planned_here[planned.number] = (above, through)
            self._copy = replace(copy, planned=through)
            return self._copy, planned

    def read(self, one: ReadChunk, size_bytes: int, took_s: float) -> bool:
        """A chunk's files are durable. False if its copy has begun again meanwhile, so that the files are not wanted.

        size_bytes: of the values. took_s: how long the read view was open.
        """
        with self._lock:
            rows = one.chunk.rows
            copy = self._copy
            estimated = bytes_estimated = 0
            if copy is not None:
                self._chunks_read += 1
                read = self._planned_here.pop(one.chunk.number, None)
                if read is not None:
                    self._add_share(copy, *read)
                    self._density = self._density_of(copy.schema, *read, rows)
                estimated = self._estimated(copy, copy.rows + rows)
                bytes_estimated = self._estimated_bytes(copy.rows + rows, copy.size_bytes + size_bytes, estimated)
            wanted = self._meta.chunk_read(self._lease, self._source, one, size_bytes, estimated, bytes_estimated)
            if wanted and copy is not None:
                self._copy = replace(
                    copy, rows=copy.rows + rows, size_bytes=copy.size_bytes + size_bytes, rows_estimated=estimated,
                    bytes_estimated=bytes_estimated,
                )  # fmt: skip
            self._pace.read(rows, size_bytes, took_s)
            return wanted

    def failed(self, chunk: PlannedChunk, error: BaseException) -> None:
        """The chunk was not read. Raises RetryLater (meta.lease_lost)."""
        with self._lock:
            self._meta.leave_chunk(self._lease, self._source, chunk.number, f"{type(error).__name__}: {error}"[:2000])
            self.exhausted = False

    def begin_again(self, former: TableSchema) -> None:
        """The definition has changed from `former`: what was read of it is forgotten, once, whoever notices.

        Raises RetryLater (snapshot.redefined).
        """
        with self._lock:
            if self._copy is None or self._copy.schema != former:
                return
            self._restarts += 1
            if self._restarts >= _RESTARTS:
                raise RetryLater(
                    f"The definition of {self.name} changed {_RESTARTS} times while the table was copied.",
                    where=self._source,
                    code="snapshot.redefined",
                    remedy="the next attempt begins the copy of this table again",
                )
            log.warning("%s: %s was redefined; its copy begins again", self._source, self.name)
            self._meta.drop_copy(self._lease, self._source, self.name)
            self._copy, self.exhausted = None, False

    def _begun(self, control: SafeConnection, begin: Begin) -> TableCopy | None:
        """The copy of the current definition that is under way, or a new one; None for a table that is gone."""
        schema = table_schema(control, *self.table)
        if schema is None:
            self._meta.drop_copy(self._lease, self._source, self.name)
            return None
        self._require(schema)
        size = size_of(control, schema)
        self._pace.row_bytes = size.row_bytes
        self._least = least(control, schema) if schema.key else ()
        self._size, self._profile, self._profiled = size, None, False
        self._planned_here, self._read_ranges, self._share, self._share_bytes = {}, [], 0.0, 0.0
        self._density = 0.0
        known = {copy.table: copy for copy in self._meta.copies(self._source)}.get(schema.name)
        rules = self._rules_of(schema)
        if known is not None and known.rules and known.rules != rules:
            log.warning("%s: the rules for %s have changed; its copy begins again", self._source, self.name)
        elif known is not None and known.schema.id == schema.id:
            if known.rows:
                self._pace.row_bytes = known.size_bytes / known.rows
                # Chunks that a killed reader left are few: their rows are not counted, and their keys are.
                self._add_share(known, (), known.planned or ())
            return known
        extent = begin(schema, size.rows < _COUNTED_FIRSTS * FIRST_ROWS or not can_have_profile(schema, size.row_bytes))
        rows = extent.rows
        copy = TableCopy(
            self._source, schema, extent.limit, rows_estimated=size.rows if rows is None else rows,
            counted=rows is not None, low=extent.low, rules=rules,
        )  # fmt: skip
        self._meta.begin_copy(self._lease, copy)
        return copy

    def _profile_of(self, control: SafeConnection, copy: TableCopy) -> Profile | None:
        """None for a table that is copied so soon that a profile would not pay. Chunks of it were read: what the server
        says of the size of rows may be long past."""
        row_bytes = max(self._pace.row_bytes, self._size.row_bytes)
        few = copy.rows_estimated < _PROFILED_FIRSTS * FIRST_ROWS
        if copy.counted and few and copy.rows_estimated * row_bytes < _PROFILED_CHUNKS * self._chunk_bytes:
            return None
        reader = TableReader(control, copy.schema)
        return profile_of(reader, copy.schema, self._least, copy.limit, row_bytes=row_bytes)

    def _estimated(self, copy: TableCopy, rows: int) -> int:
        """The rows of the whole table, of which so many are read."""
        if copy.counted:
            return copy.rows_estimated
        if self._profile is not None:
            return rows + round(max(0.0, self._profile.total - self._share))
        if not self._share:
            return copy.rows_estimated
        by_keys = round(rows / self._share)
        if keys.numbered(copy.schema) or not self._size.rows:
            return by_keys
        # Keys that lie unevenly may mislead more than the server does, whose estimate may be off by half.
        return max(rows, self._size.rows // _SURE_TIMES, min(by_keys, self._size.rows * _SURE_TIMES))

    def _add_share(self, copy: TableCopy, above: keys.Key, through: keys.Key) -> None:
        """The rows between two keys were read."""
        self._share += self._share_through(copy, through) - self._share_through(copy, above)
        if self._profile is not None and through:
            before = self._profile.bytes_through(int(above[0])) if above else 0.0
            self._share_bytes += self._profile.bytes_through(int(through[0])) - before
        if not self._profiled:
            self._read_ranges.append((above, through))

    def _density_of(self, schema: TableSchema, above: keys.Key, through: keys.Key, rows: int) -> float:
        if not (self._least and through and keys.numbered(schema)):
            return 0.0
        before = int(above[0]) if above else int(self._least[0]) - 1
        return rows / max(1, int(through[0]) - before)

    def _share_through(self, copy: TableCopy, key: keys.Key) -> float:
        if not key:
            return 0.0
        if self._profile is not None:
            return self._profile.rows_through(int(key[0]))
        if keys.numbered(copy.schema):
            return keys.fraction(copy.schema, self._least, key, copy.limit) or 0.0
        if not (copy.schema.key and self._least and copy.limit):
            return 0.0
        return key_places.fraction(copy.schema, self._least, key, copy.limit) or 0.0

    def _estimated_bytes(self, rows: int, size_bytes: int, of_rows: int) -> int:
        """The bytes of the values of a whole table of so many rows."""
        mean = size_bytes / max(1, rows)
        if self._profile is not None:
            left_rows = self._profile.total - self._share
            left_bytes = self._profile.total_bytes - self._share_bytes
            mean = left_bytes / left_rows if left_rows >= 1 and left_bytes > 0 else mean
        return size_bytes + round(max(0, of_rows - rows) * mean)
