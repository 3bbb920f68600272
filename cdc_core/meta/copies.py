"""Copies of tables in progress: which chunks are planned and read, and which manifest they go into.

A chunk passes through three rows, each of which a killed process leaves for the next one: `copied_chunk`, `copy_batch`
(the text of the manifest that will name it), and the batch itself. The text is decided once, so that whoever writes the
manifest writes the same one, and no chunk is ever in two. `copied_chunk` has a state, moved by compare-and-set:

    planned   between two keys; nobody reads it
    reading   by a reader under an epoch of the copier's lease; once that epoch has ended, it is as good as planned
    read      its files are durable

Every change happens under the copier's lease.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from cdc_core.errors import LeaseLost, RetryLater
from cdc_core.meta import copy_pace, leases, tables
from cdc_core.meta.database import now_us
from cdc_core.meta.failures import COPY_TABLE, copied_table
from cdc_core.meta.rows import ChunkRetries, CopyState, CopyStatus, Failure, Lease
from cdc_core.model.batch import CopiedChunk, Manifest, Part
from cdc_core.model.coverage import How, TableCoverage, lacks
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema

_ack, _copy, _chunk, _planned = tables.ack_position, tables.table_copy, tables.copied_chunk, tables.copy_batch
_pause, _repaired, _batch = tables.copy_pause, tables.repaired_batch, tables.batch

_REPAIRED_KEPT_US = 7 * 86_400_000_000
PLANNED, READING, READ = "planned", "reading", "read"
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
    rules:    of the pipeline, under which its rows are read (Capture.rules_of); "" where an earlier version began it.
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
    """The rows of a table after the key `above`, up to and with the key `through`. attempts: to read it, this one
    among them."""

    number: int
    table: str
    above: tuple[str, ...]
    through: tuple[str, ...]
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """A chunk whose files are durable and which no manifest names yet. schemas: the definitions of its parts."""

    chunk: CopiedChunk
    parts: tuple[Part, ...]
    schemas: tuple[TableSchema, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def to_json(self) -> str:
        parts = [
            {**{name: getattr(part, name) for name in Part.__slots__}, "ops": dict(part.ops)} for part in self.parts
        ]
        schemas = [one.to_json() for one in self.schemas]
        return json.dumps({"chunk": self.chunk.to_json(), "parts": parts, "schemas": schemas}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ReadChunk:
        data = json.loads(text)
        return cls(
            CopiedChunk.from_json(data["chunk"]),
            tuple(Part(**part) for part in data["parts"]),
            tuple(TableSchema.from_json(one) for one in data["schemas"]),
        )


def find(connection: Connection, source: str) -> tuple[TableCopy, ...]:
    """The copies of a source's tables that are not staged, by table."""
    rows = connection.execute(select(_copy).where(_copy.c.source == source).order_by(_copy.c.source_table))
    return tuple(_copy_of(row) for row in rows)


def status(
    connection: Connection, source: str, covered: Mapping[str, TableCoverage], failed: Sequence[Failure]
) -> tuple[CopyStatus, ...]:
    """Of each table that a copy is due for, under way or done; copied ones come last.

    covered: the coverage of the source's tables. failed: the pipeline's errors that no success has followed.
    """
    refused = {one.subject: one.what for one in failed if one.task == COPY_TABLE}
    found: dict[str, CopyStatus] = {}
    for table, one in covered.items():
        if one.how is How.COPIED and one.whole:
            found[table] = CopyStatus(table, CopyState.COPIED, copied_to=one.place)
        elif one.due:
            why = refused.get(copied_table(source, table))
            state = CopyState.PENDING if why is None else CopyState.REFUSED
            found[table] = CopyStatus(table, state, why or lacks(table, source, one), rows_estimated=one.rows)
    now, tried = now_us(connection), retries(connection, source)
    for row in connection.execute(select(_copy).where(_copy.c.source == source)):
        found[row.source_table] = _status_of(row, now, tried.get(row.source_table, ChunkRetries()))
    return tuple(sorted(found.values(), key=lambda one: (one.state is CopyState.COPIED, one.table)))


def retries(connection: Connection, source: str) -> dict[str, ChunkRetries]:
    """By table whose copy is not staged yet, if reading a chunk of it has failed, or was interrupted."""
    again = (_chunk.c.attempts > 1) | _chunk.c.error.is_not(None)
    rows = connection.execute(
        select(_chunk.c.source_table, _chunk.c.attempts, _chunk.c.error)
        .where(_chunk.c.source == source, again)
        .order_by(_chunk.c.chunk)
    )
    found: dict[str, ChunkRetries] = {}
    for table, attempts, error in rows:
        known = found.get(table, ChunkRetries())
        found[table] = ChunkRetries(known.count + attempts - 1, error or known.error)
    return found


def _status_of(row: Row[tuple[object, ...]], now: int, tried: ChunkRetries) -> CopyStatus:
    rows = row.rows_read if row.complete else max(row.rows_estimated, row.rows_read)
    rate = None if row.complete else copy_pace.rate_of(copy_pace.from_text(row.pace), now)
    left_s = size_bytes = None
    if row.rows_read:
        size_bytes = round(rows * row.bytes_read / row.rows_read)
    if rate is not None and size_bytes is not None:
        left_s = rate.left_s(rows - row.rows_read, size_bytes - row.bytes_read)
    return CopyStatus(
        row.source_table,
        CopyState.READ if row.complete else CopyState.COPYING,
        rows=row.rows_read,
        rows_estimated=rows,
        started_us=row.started_us,
        updated_us=row.updated_us,
        rows_s=None if rate is None else rate.rows_s,
        left_s=left_s,
        size_bytes=row.bytes_read,
        bytes_estimated=size_bytes,
        bytes_s=None if rate is None else rate.bytes_s,
        chunk_retries=tried.count,
        chunk_error=tried.error,
    )


def begin(connection: Connection, lease: Lease, copy: TableCopy) -> None:
    """Begins a copy, or begins it again: chunks that were read before are forgotten."""
    leases.require_held(connection, lease)
    _forget(connection, copy.source, copy.table)
    now = now_us(connection)
    connection.execute(
        insert(_copy).values(
            source=copy.source,
            source_table=copy.table,
            definition=json.dumps(copy.schema.to_json(), ensure_ascii=False),
            key_limit=_json(copy.limit),
            planned=None,
            low=None if copy.low is None else json.dumps(copy.low.to_json()),
            complete=False,
            rows_read=0,
            bytes_read=0,
            rows_estimated=copy.rows_estimated,
            started_us=now,
            updated_us=now,
            pace=copy_pace.to_text([copy_pace.Moment(now, 0, 0)]),
            rules=copy.rules or None,
        )
    )


def drop(connection: Connection, lease: Lease, source: str, table: str) -> None:
    """Ends a copy that is not wanted any more."""
    leases.require_held(connection, lease)
    _forget(connection, source, table)


def next_chunk(connection: Connection, lease: Lease, source: str) -> int:
    """A number that no chunk of the source had before, 1 or more."""
    leases.require_held(connection, lease)
    connection.execute(update(_ack).where(_ack.c.source == source).values(chunks=_ack.c.chunks + 1))
    return int(connection.execute(select(_ack.c.chunks).where(_ack.c.source == source)).scalar_one())


def give_out_above(connection: Connection, source: str, number: int) -> None:
    """After a rebuild: numbers up to this one are taken."""
    higher = (_ack.c.source == source) & (_ack.c.chunks < number)
    connection.execute(update(_ack).where(higher).values(chunks=number))


def plan_chunk(
    connection: Connection,
    lease: Lease,
    source: str,
    table: str,
    above: tuple[str, ...] | None,
    through: tuple[str, ...],
) -> PlannedChunk:
    """The next chunk of a copy; its caller is to read it. above: up to where chunks were planned before.

    Raises RetryLater (lease.lost), and lease.lost if the copy was begun again or dropped meanwhile.
    """
    number = next_chunk(connection, lease, source)
    mine = (_copy.c.source == source) & (_copy.c.source_table == table)
    before = _copy.c.planned.is_(None) if above is None else _copy.c.planned == _json(above)
    if connection.execute(update(_copy).where(mine & before).values(planned=_json(through))).rowcount != 1:
        raise _moved(f"The copy of {table} was dropped, or begun again, meanwhile.", source)
    connection.execute(
        insert(_chunk).values(
            source=source,
            chunk=number,
            source_table=table,
            state=READING,
            epoch=lease.epoch,
            attempts=1,
            above=_json(above or ()),
            through=_json(through),
        )
    )
    return PlannedChunk(number, table, above or (), through)


def take_chunk(connection: Connection, lease: Lease, source: str, table: str) -> PlannedChunk | None:
    """A chunk that was planned and that nobody reads: its caller is to read it."""
    leases.require_held(connection, lease)
    free = (_chunk.c.state == PLANNED) | ((_chunk.c.state == READING) & (_chunk.c.epoch != lease.epoch))
    mine = (_chunk.c.source == source) & (_chunk.c.source_table == table)
    row = connection.execute(select(_chunk).where(mine & free).order_by(_chunk.c.chunk).limit(1)).one_or_none()
    if row is None:
        return None
    seen = (_chunk.c.source == source) & (_chunk.c.chunk == row.chunk) & (_chunk.c.attempts == row.attempts)
    taken = connection.execute(
        update(_chunk).where(seen & free).values(state=READING, epoch=lease.epoch, attempts=row.attempts + 1)
    )
    if taken.rowcount != 1:
        return None
    return PlannedChunk(
        row.chunk, table, tuple(json.loads(row.above)), tuple(json.loads(row.through)), row.attempts + 1
    )


def leave_chunk(connection: Connection, lease: Lease, source: str, number: int, error: str) -> None:
    """Its reader has failed: another may take it."""
    leases.require_held(connection, lease)
    connection.execute(update(_chunk).where(_reading(lease, source, number)).values(state=PLANNED, error=error))


def read(
    connection: Connection,
    lease: Lease,
    source: str,
    one: ReadChunk,
    size_bytes: int,
) -> bool:
    """A chunk's files are durable. False if it is not wanted any more: its copy was dropped or begun again.

    size_bytes: of its values in memory.
    """
    leases.require_held(connection, lease)
    taken = connection.execute(
        update(_chunk)
        .where(_reading(lease, source, one.chunk.number))
        .values(state=READ, error=None, claim=one.to_json())
    )
    if taken.rowcount != 1:
        return False
    table = one.chunk.table
    mine = (_copy.c.source == source) & (_copy.c.source_table == table)
    known = (_copy.c.key_limit, _copy.c.planned, _copy.c.rows_read, _copy.c.bytes_read, _copy.c.pace)
    copy = connection.execute(select(*known).where(mine)).one()
    unread = (_chunk.c.source == source) & (_chunk.c.source_table == table) & (_chunk.c.state != READ)
    ended = copy.planned == copy.key_limit and connection.execute(select(_chunk.c.chunk).where(unread)).first() is None
    now = now_us(connection)
    reached = copy_pace.Moment(now, copy.rows_read + one.chunk.rows, copy.bytes_read + size_bytes)
    connection.execute(
        update(_copy)
        .where(mine)
        .values(
            complete=ended,
            rows_read=_copy.c.rows_read + one.chunk.rows,
            bytes_read=_copy.c.bytes_read + size_bytes,
            updated_us=now,
            pace=copy_pace.to_text(copy_pace.noted(copy_pace.from_text(copy.pace), reached)),
        )
    )
    return True


def pause(connection: Connection, source: str, holder: str) -> None:
    if paused(connection, source) is None:
        connection.execute(insert(_pause).values(source=source, since_us=now_us(connection), holder=holder))


def resume(connection: Connection, source: str) -> bool:
    return bool(connection.execute(delete(_pause).where(_pause.c.source == source)).rowcount)


def paused(connection: Connection, source: str) -> CopyPause | None:
    row = connection.execute(select(_pause).where(_pause.c.source == source)).one_or_none()
    return None if row is None else CopyPause(row.since_us, row.holder)


def _reading(lease: Lease, source: str, number: int) -> ColumnElement[bool]:
    held = (_chunk.c.state == READING) & (_chunk.c.epoch == lease.epoch)
    return (_chunk.c.source == source) & (_chunk.c.chunk == number) & held


def chunks(connection: Connection, source: str) -> tuple[ReadChunk, ...]:
    """Those that are read and in no manifest, by number."""
    mine = (_chunk.c.source == source) & (_chunk.c.state == READ)
    rows = connection.execute(select(_chunk.c.claim).where(mine).order_by(_chunk.c.chunk))
    return tuple(ReadChunk.from_json(row.claim) for row in rows)


def decide(connection: Connection, lease: Lease, manifest: Manifest, done: Sequence[str], *, exact: bool) -> None:
    """These chunks go into this manifest. done: their tables, whose copies end with it.

    exact: some are what a table without a key has at the manifest's place. A target counts such rows batch by batch: no
    run may take a later batch before this one, so until it is recorded, plans end at the place (held_seq).
    """
    leases.require_held(connection, lease)
    ack = select(_ack.c.seq, _ack.c.purged_seq).where(_ack.c.source == manifest.source).with_for_update()
    reached = connection.execute(ack).one()
    if min(one.low.seq for one in manifest.chunks) < reached.purged_seq:
        raise _moved(f"What {manifest.source} logged since rows were read is purged.", manifest.batch_id)
    if exact and reached.seq != manifest.begin.position.seq:
        raise _moved(f"The chain of {manifest.source} has passed the place of the copy meanwhile.", manifest.batch_id)
    numbers = [one.number for one in manifest.chunks if not one.by_key]  # the others are in the manifest alone
    for number in numbers:
        mine = (_chunk.c.source == manifest.source) & (_chunk.c.chunk == number)
        if connection.execute(delete(_chunk).where(mine)).rowcount != 1:
            raise _moved(
                f"The chunk {number} of {manifest.source} was forgotten or staged meanwhile.", manifest.batch_id
            )
    for table in done:
        connection.execute(delete(_copy).where((_copy.c.source == manifest.source) & (_copy.c.source_table == table)))
    connection.execute(
        insert(_planned).values(
            batch_id=manifest.batch_id,
            source=manifest.source,
            manifest=manifest.to_bytes().decode(),
            held_seq=manifest.begin.position.seq if exact else 0,
        )
    )
    if manifest.repairs:
        count_repaired(connection, manifest, now_us(connection))


def count_repaired(connection: Connection, manifest: Manifest, at_us: int) -> None:
    """Counts the rows of a batch by key, once. at_us: when it was decided, µs UTC."""
    known = select(_repaired.c.batch_id).where(_repaired.c.batch_id == manifest.batch_id)
    if connection.execute(known).first() is None:
        connection.execute(delete(_repaired).where(_repaired.c.decided_us < at_us - _REPAIRED_KEPT_US))
        connection.execute(
            insert(_repaired).values(
                batch_id=manifest.batch_id, source=manifest.source, row_count=manifest.rows, decided_us=at_us
            )
        )


def repaired(connection: Connection, source: str, within_s: float) -> int:
    """Rows of a source that repairs have staged in the last seconds, by the database's clock."""
    since_us = now_us(connection) - int(within_s * 1_000_000)
    rows = select(func.coalesce(func.sum(_repaired.c.row_count), 0)).where(
        _repaired.c.source == source, _repaired.c.decided_us > since_us
    )
    return int(connection.execute(rows).scalar_one())


def repaired_batches(connection: Connection, source: str) -> frozenset[str]:
    """Ids of the batches that repairs have staged in the last days, and of those that are decided."""
    return frozenset(connection.execute(select(_repaired.c.batch_id).where(_repaired.c.source == source)).scalars())


def decided(connection: Connection, source: str) -> tuple[Manifest, ...]:
    """The manifests that are decided and not recorded as batches, by id."""
    rows = connection.execute(
        select(_planned.c.manifest).where(_planned.c.source == source).order_by(_planned.c.batch_id)
    )
    return tuple(Manifest.from_bytes(row.manifest.encode()) for row in rows)


def purged_seq(connection: Connection, source: str) -> int:
    """What begins before it is purged; 0 where nothing is."""
    known = connection.execute(select(_ack.c.purged_seq).where(_ack.c.source == source)).scalar()
    return int(known or 0)


def mark_purged(connection: Connection, source: str, end: Position, staged: Collection[str]) -> None:
    """From now on what is before `end` counts as purged. staged: ids of the batches of copied rows that its caller has
    looked at.

    A copied row must be followed in the stage by all that happened since it was read. `decide` asks whether that is
    purged, this asks whether such rows are on their way, and each holds the lock of the ack position meanwhile.

    Raises RetryLater (lease.lost).
    """
    connection.execute(select(_ack.c.seq).where(_ack.c.source == source).with_for_update())
    waiting = [one.chunk for one in chunks(connection, source)]
    waiting += [chunk for manifest in decided(connection, source) for chunk in manifest.chunks]
    lows = [one.low for one in waiting] + [one.low for one in find(connection, source) if one.low is not None]
    later = (_batch.c.source == source) & (_batch.c.chunk > 0) & (_batch.c.begin_seq >= end.seq)
    recorded = connection.execute(select(_batch.c.batch_id).where(later)).scalars()
    if any(low < end for low in lows) or any(one not in staged for one in recorded):
        raise _moved(f"Rows of {source} were copied while it was looked up what a purge may remove.", source)
    earlier = (_ack.c.source == source) & (_ack.c.purged_seq < end.seq)
    connection.execute(update(_ack).where(earlier).values(purged_seq=end.seq))


def held_seq(connection: Connection, source: str) -> int | None:
    """Where the first batch begins that no run may take yet; None where nothing holds them."""
    held = select(func.min(_planned.c.held_seq)).where(_planned.c.source == source, _planned.c.held_seq > 0)
    found: int | None = connection.execute(held).scalar()
    return found


def record(connection: Connection, manifest: Manifest) -> None:
    """The manifest is durable, and about to be a batch."""
    connection.execute(delete(_planned).where(_planned.c.batch_id == manifest.batch_id))
    give_out_above(connection, manifest.source, max(one.number for one in manifest.chunks))


def _forget(connection: Connection, source: str, table: str) -> None:
    for one in (_chunk, _copy):
        connection.execute(delete(one).where((one.c.source == source) & (one.c.source_table == table)))


def _moved(what: str, where: str) -> RetryLater:
    return LeaseLost(
        what,
        where=where,
        remedy="nothing is lost; the next attempt continues with what is there",
    )


def _json(key: Sequence[str]) -> str:
    return json.dumps(key, ensure_ascii=False)


def _copy_of(row: Row[tuple[object, ...]]) -> TableCopy:
    return TableCopy(
        row.source,
        TableSchema.from_json(json.loads(row.definition)),
        tuple(json.loads(row.key_limit)),
        None if row.planned is None else tuple(json.loads(row.planned)),
        bool(row.complete),
        row.rows_read,
        row.rows_estimated,
        row.bytes_read,
        low=None if row.low is None else Position.from_json(json.loads(row.low)),
        rules=row.rules or "",
    )
