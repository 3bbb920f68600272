"""Copies of tables in progress: which chunks are read, and which manifest they go into.

A chunk passes through three rows, each of which a killed process leaves for the next one: `copied_chunk` (its files are
durable), `copy_batch` (the text of the manifest that will name it), and the batch itself. The text is decided once, so
that whoever writes the manifest writes the same one, and no chunk is ever in two.
Every change happens under the copier's lease.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Row, delete, insert, select, update

from cdc_core.errors import RetryLater
from cdc_core.meta import leases, tables
from cdc_core.meta.database import now_us
from cdc_core.meta.rows import Lease
from cdc_core.model.batch import CopiedChunk, Manifest, Part
from cdc_core.model.schema import TableSchema

_ack, _copy, _chunk, _planned = tables.ack_position, tables.table_copy, tables.copied_chunk, tables.copy_batch


def copier_of(source: str) -> str:
    """The lease under which the tables of a source are copied."""
    return f"snapshot:{source}"


@dataclass(frozen=True, slots=True)
class TableCopy:
    """A copy of a table that is not staged yet.

    limit:    the greatest key when the copy began, as SQL literals; () for a table without rows.
    reached:  the key up to which it is read; () before the first chunk.
    complete: everything up to the limit is read.
    """

    source: str
    schema: TableSchema
    limit: tuple[str, ...]
    reached: tuple[str, ...] = ()
    complete: bool = False
    rows: int = 0
    rows_estimated: int = 0

    @property
    def table(self) -> str:
        return self.schema.name


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
            key_limit=json.dumps(copy.limit, ensure_ascii=False),
            reached=json.dumps(copy.reached, ensure_ascii=False),
            complete=copy.complete,
            rows_read=0,
            rows_estimated=copy.rows_estimated,
            started_us=now,
            updated_us=now,
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


def read(connection: Connection, lease: Lease, source: str, one: ReadChunk, *, complete: bool) -> None:
    """A chunk's files are durable: the copy has reached its last key."""
    leases.require_held(connection, lease)
    mine = (_copy.c.source == source) & (_copy.c.source_table == one.chunk.table)
    connection.execute(
        insert(_chunk).values(
            source=source,
            chunk=one.chunk.number,
            source_table=one.chunk.table,
            claim=one.to_json(),
        )
    )
    connection.execute(
        update(_copy)
        .where(mine)
        .values(
            reached=json.dumps(one.chunk.through, ensure_ascii=False),
            complete=complete,
            rows_read=_copy.c.rows_read + one.chunk.rows,
            updated_us=now_us(connection),
        )
    )


def chunks(connection: Connection, source: str) -> tuple[ReadChunk, ...]:
    """Those that are read and in no manifest, by number."""
    rows = connection.execute(select(_chunk.c.claim).where(_chunk.c.source == source).order_by(_chunk.c.chunk))
    return tuple(ReadChunk.from_json(row.claim) for row in rows)


def decide(connection: Connection, lease: Lease, manifest: Manifest, done: Sequence[str]) -> None:
    """These chunks go into this manifest. done: their tables, whose copies end with it."""
    leases.require_held(connection, lease)
    numbers = [one.number for one in manifest.chunks]
    for number in numbers:
        mine = (_chunk.c.source == manifest.source) & (_chunk.c.chunk == number)
        if connection.execute(delete(_chunk).where(mine)).rowcount != 1:
            raise RetryLater(
                f"The chunk {number} of {manifest.source} was forgotten or staged meanwhile.",
                where=manifest.batch_id,
                code="snapshot.moved",
                remedy="nothing is lost; the next attempt continues with what is there",
            )
    for table in done:
        connection.execute(delete(_copy).where((_copy.c.source == manifest.source) & (_copy.c.source_table == table)))
    connection.execute(
        insert(_planned).values(
            batch_id=manifest.batch_id, source=manifest.source, manifest=manifest.to_bytes().decode()
        )
    )


def decided(connection: Connection, source: str) -> tuple[Manifest, ...]:
    """The manifests that are decided and not recorded as batches, by id."""
    rows = connection.execute(
        select(_planned.c.manifest).where(_planned.c.source == source).order_by(_planned.c.batch_id)
    )
    return tuple(Manifest.from_bytes(row.manifest.encode()) for row in rows)


def record(connection: Connection, manifest: Manifest) -> None:
    """The manifest is durable, and about to be a batch."""
    connection.execute(delete(_planned).where(_planned.c.batch_id == manifest.batch_id))
    give_out_above(connection, manifest.source, max(one.number for one in manifest.chunks))


def _forget(connection: Connection, source: str, table: str) -> None:
    for one in (_chunk, _copy):
        connection.execute(delete(one).where((one.c.source == source) & (one.c.source_table == table)))


def _copy_of(row: Row[tuple[object, ...]]) -> TableCopy:
    return TableCopy(
        row.source,
        TableSchema.from_json(json.loads(row.definition)),
        tuple(json.loads(row.key_limit)),
        tuple(json.loads(row.reached)),
        bool(row.complete),
        row.rows_read,
        row.rows_estimated,
    )
