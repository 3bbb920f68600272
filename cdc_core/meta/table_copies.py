"""Copies of tables in progress: which chunks are planned and read.

A chunk passes through three rows, each of which a killed process leaves for the next one: `copied_chunk`, `copy_batch`
(the text of the manifest that will name it: CopiedBatches), and the batch itself. `copied_chunk` has a state, moved by
compare-and-set:

    reading   by a reader under an epoch of the copier's lease; once that epoch has ended, another may take it
    read      its files are durable

Every change happens under the copier's lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Row, delete, insert, select, update

from cdc_core.errors import LeaseLost, RetryLater
from cdc_core.meta import meta_schema
from cdc_core.meta.leases import Leases
from cdc_core.meta.meta_rows import CopyState, CopyStatus, Failure, Lease
from cdc_core.meta.repository import Repository, reads, writes
from cdc_core.meta.task_failures import COPY_TABLE, copied_table
from cdc_core.model.batch import CopiedChunk, Part
from cdc_core.model.coverage import How, TableCoverage, lacks
from cdc_core.model.json_codec import parsed, text_of
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema

_ack, _copy, _chunk = meta_schema.ack_position, meta_schema.table_copy, meta_schema.copied_chunk
_pause = meta_schema.copy_pause
_Key = tuple[str, ...]

READING, READ = "reading", "read"
"""States of a chunk."""


def copier_of(source: str) -> str:
    """The lease under which the tables of a source are copied."""
    return f"snapshot:{source}"


@dataclass(frozen=True, slots=True)
class TableCopy:
    """A copy of a table that is not staged yet.

    limit:    the last key when the copy began, as SQL literals; () for a table without rows.
    planned:  the key up to which chunks are planned; None before the first one.
    complete: everything up to the limit is read.
    rows, size_bytes: read so far; bytes as values in memory.
    rows_estimated:   of the whole table, by the server's statistics when the copy began.
    waiting:          why no chunk is read at the moment; not kept.
    low:      every transaction before it was visible when the limit was read: rows above the limit, which no chunk has,
              came from there on. None for a table without a key, which has no limit.
    rules:    of the pipeline, under which its rows are read (Capture.rules_of); "" where nobody says them.
    """

    source: str
    schema: TableSchema
    limit: tuple[str, ...]
    planned: tuple[str, ...] | None = None
    complete: bool = False
    rows: int = 0
    rows_estimated: int = 0
    size_bytes: int = 0
    waiting: str = ""
    low: Position | None = None
    rules: str = ""

    @property
    def table(self) -> str:
        return self.schema.name


@dataclass(frozen=True, slots=True)
class CopyPause:
    """since_us: µs UTC, by the database's clock. holder: who paused the copies of a source."""

    since_us: int
    holder: str


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """The rows of a table after the key `above`, up to and with the key `through`."""

    number: int
    table: str
    above: tuple[str, ...]
    through: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """A chunk whose files are durable and which no manifest names yet. schemas: the definitions of its parts."""

    chunk: CopiedChunk
    parts: tuple[Part, ...]
    schemas: tuple[TableSchema, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class TableCopies(Repository):
    @reads
    def find(self, source: str) -> tuple[TableCopy, ...]:
        """The copies of a source's tables that are not staged, by table."""
        rows = self.execute(select(_copy).where(_copy.c.source == source).order_by(_copy.c.source_table))
        return tuple(_copy_of(row) for row in rows)

    def status(
        self, source: str, covered: Mapping[str, TableCoverage], failed: Sequence[Failure]
    ) -> tuple[CopyStatus, ...]:
        """The copies that are due, under way or done, by table; copied ones come last.

        covered: the coverage of the source's tables. failed: the pipeline's errors that no success has followed.
        """
        refused = {failure.subject: failure.what for failure in failed if failure.task == COPY_TABLE}
        statuses: dict[str, CopyStatus] = {}
        for table, coverage in covered.items():
            if coverage.how is How.COPIED and coverage.whole:
                statuses[table] = CopyStatus(table, CopyState.COPIED, copied_to=coverage.place)
            elif coverage.due:
                why = refused.get(copied_table(source, table))
                state = CopyState.PENDING if why is None else CopyState.REFUSED
                statuses[table] = CopyStatus(
                    table, state, why or lacks(table, source, coverage), rows_estimated=coverage.rows
                )
        for row in self.execute(select(_copy).where(_copy.c.source == source)):
            statuses[row.source_table] = _status_of(row)
        return tuple(sorted(statuses.values(), key=lambda copy: (copy.state is CopyState.COPIED, copy.table)))

    @writes
    def begin(self, lease: Lease, copy: TableCopy) -> None:
        """Begins a copy, or begins it again: chunks that were read before are forgotten."""
        Leases(self.connection).require_held(lease)
        self._forget(copy.source, copy.table)
        now = self.now_us()
        self.execute(
            insert(_copy).values(
                source=copy.source,
                source_table=copy.table,
                definition=text_of(copy.schema),
                key_limit=text_of(copy.limit, _Key),
                planned=None,
                low=None if copy.low is None else text_of(copy.low),
                complete=False,
                rows_read=0,
                bytes_read=0,
                rows_estimated=copy.rows_estimated,
                started_us=now,
                updated_us=now,
                rules=copy.rules or None,
            )
        )

    @writes
    def drop(self, lease: Lease, source: str, table: str) -> None:
        """Ends a copy that is not wanted any more."""
        Leases(self.connection).require_held(lease)
        self._forget(source, table)

    @writes
    def next_chunk(self, lease: Lease, source: str) -> int:
        """A number that no chunk of the source had before, 1 or more."""
        Leases(self.connection).require_held(lease)
        self.execute(update(_ack).where(_ack.c.source == source).values(chunks=_ack.c.chunks + 1))
        return int(self.execute(select(_ack.c.chunks).where(_ack.c.source == source)).scalar_one())

    def give_out_above(self, source: str, number: int) -> None:
        """After a rebuild: numbers up to this one are taken."""
        higher = (_ack.c.source == source) & (_ack.c.chunks < number)
        self.execute(update(_ack).where(higher).values(chunks=number))

    @writes
    def plan_chunk(
        self,
        lease: Lease,
        source: str,
        table: str,
        above: tuple[str, ...] | None,
        through: tuple[str, ...],
    ) -> PlannedChunk:
        """The next chunk of a copy; its caller is to read it. above: up to where chunks were planned before.

        Raises RetryLater (lease.lost), and lease.lost if the copy was begun again or dropped meanwhile.
        """
        number = self.next_chunk(lease, source)
        mine = (_copy.c.source == source) & (_copy.c.source_table == table)
        before = _copy.c.planned.is_(None) if above is None else _copy.c.planned == text_of(above, _Key)
        if self.execute(update(_copy).where(mine & before).values(planned=text_of(through, _Key))).rowcount != 1:
            raise moved_meanwhile(f"Another process has dropped the copy of {table}, or begun it again.", source)
        self.execute(
            insert(_chunk).values(
                source=source,
                chunk=number,
                source_table=table,
                state=READING,
                epoch=lease.epoch,
                above=text_of(above or (), _Key),
                through=text_of(through, _Key),
            )
        )
        return PlannedChunk(number, table, above or (), through)

    @writes
    def take_chunk(self, lease: Lease, source: str, table: str) -> PlannedChunk | None:
        """A chunk that a reader of an earlier epoch has left: its caller is to read it."""
        Leases(self.connection).require_held(lease)
        free = (_chunk.c.state == READING) & (_chunk.c.epoch != lease.epoch)
        mine = (_chunk.c.source == source) & (_chunk.c.source_table == table)
        row = self.execute(select(_chunk).where(mine & free).order_by(_chunk.c.chunk).limit(1)).one_or_none()
        if row is None:
            return None
        seen = (_chunk.c.source == source) & (_chunk.c.chunk == row.chunk)
        taken = self.execute(update(_chunk).where(seen & free).values(epoch=lease.epoch))
        if taken.rowcount != 1:
            return None
        return PlannedChunk(row.chunk, table, parsed(_Key, row.above), parsed(_Key, row.through))

    @writes
    def chunk_read(self, lease: Lease, source: str, chunk: ReadChunk, size_bytes: int = 0) -> bool:
        """A chunk's files are durable. False if it is not wanted any more: its copy was dropped or begun again.

        size_bytes: of its values in memory.
        """
        Leases(self.connection).require_held(lease)
        taken = self.execute(
            update(_chunk).where(_reading(lease, source, chunk.chunk.number)).values(state=READ, claim=text_of(chunk))
        )
        if taken.rowcount != 1:
            return False
        table = chunk.chunk.table
        mine = (_copy.c.source == source) & (_copy.c.source_table == table)
        known = (_copy.c.key_limit, _copy.c.planned, _copy.c.rows_read, _copy.c.bytes_read)
        copy = self.execute(select(*known).where(mine)).one()
        unread = (_chunk.c.source == source) & (_chunk.c.source_table == table) & (_chunk.c.state != READ)
        ended = copy.planned == copy.key_limit and self.execute(select(_chunk.c.chunk).where(unread)).first() is None
        now = self.now_us()
        self.execute(
            update(_copy)
            .where(mine)
            .values(
                complete=ended,
                rows_read=_copy.c.rows_read + chunk.chunk.rows,
                bytes_read=_copy.c.bytes_read + size_bytes,
                updated_us=now,
            )
        )
        return True

    @reads
    def chunks(self, source: str) -> tuple[ReadChunk, ...]:
        """The chunks that are read and in no manifest, by number."""
        mine = (_chunk.c.source == source) & (_chunk.c.state == READ)
        rows = self.execute(select(_chunk.c.claim).where(mine).order_by(_chunk.c.chunk))
        return tuple(parsed(ReadChunk, row.claim) for row in rows)

    @writes
    def pause(self, source: str, holder: str) -> None:
        """No chunk of the source is read from now on, by any process."""
        if self.paused(source) is None:
            self.execute(insert(_pause).values(source=source, since_us=self.now_us(), holder=holder))

    @writes
    def resume(self, source: str) -> bool:
        """Whether copies were paused."""
        return bool(self.execute(delete(_pause).where(_pause.c.source == source)).rowcount)

    @reads
    def paused(self, source: str) -> CopyPause | None:
        """Since when and by whom; None while copies may be read."""
        row = self.execute(select(_pause).where(_pause.c.source == source)).one_or_none()
        return None if row is None else CopyPause(row.since_us, row.holder)

    def _forget(self, source: str, table: str) -> None:
        for sql_table in (_chunk, _copy):
            self.execute(delete(sql_table).where((sql_table.c.source == source) & (sql_table.c.source_table == table)))


def _status_of(row: Row[tuple[object, ...]]) -> CopyStatus:
    rows = row.rows_read if row.complete else max(row.rows_estimated, row.rows_read)
    took_us = 0 if row.complete else row.updated_us - row.started_us
    return CopyStatus(
        row.source_table,
        CopyState.READ if row.complete else CopyState.COPYING,
        rows=row.rows_read,
        rows_estimated=rows,
        started_us=row.started_us,
        updated_us=row.updated_us,
        rows_s=row.rows_read * 1e6 / took_us if took_us > 0 else None,
        size_bytes=row.bytes_read,
    )


def _reading(lease: Lease, source: str, number: int) -> ColumnElement[bool]:
    held = (_chunk.c.state == READING) & (_chunk.c.epoch == lease.epoch)
    return (_chunk.c.source == source) & (_chunk.c.chunk == number) & held


def moved_meanwhile(what: str, where: str) -> RetryLater:
    """The error for a change of copies that another one has come before."""
    return LeaseLost(what, where=where, remedy="nothing is lost; the next attempt continues with what is there")


def _copy_of(row: Row[tuple[object, ...]]) -> TableCopy:
    return TableCopy(
        row.source,
        parsed(TableSchema, row.definition),
        parsed(_Key, row.key_limit),
        None if row.planned is None else parsed(_Key, row.planned),
        bool(row.complete),
        row.rows_read,
        row.rows_estimated,
        row.bytes_read,
        low=None if row.low is None else parsed(Position, row.low),
        rules=row.rules or "",
    )
