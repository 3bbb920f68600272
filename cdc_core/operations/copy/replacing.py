"""Copies that take the place of everything older: for tables of whose rows no log tells that they are gone.

The batch of such a copy has a change `t` for each logical table of the source table, alone in its file, before the rows
of the copy. Every reader knows what that means: the rows that the source table had before are gone. Those that are
still there come again with the chunks. It is not a TRUNCATE of the source, and policies for that do not apply to it:
its batch, one of copied rows, tells it apart.

With a key, the `t` is just before the place where the copy began (`began_at`): what the log brought since is newer.
Rows above the copy's last key came after that place, so the log has them.

Without a key, rows have no versions: a target counts whole rows, and has the changes up to a mark, batch by batch. So
the claim is exact (the read view shows the log up to `low` and nothing after it), and is staged as the rows that the
table has at the place of the batch: those of the claim, and what the chain has brought since, as every reader of the
stage reads them. The targets empty the table, write the rows, and set the mark between the batches that end and begin
at the place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cdc_core.meta import ReadChunk, TableCopy
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.block import TableRows
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import TableSchema
from cdc_core.operations.copy.chunk_file import ChunkFile
from cdc_core.stage.objects import ObjectStore

OpenFile = Callable[[int, Position, int], ChunkFile]
"""Opens a file for the table of a copy: with the number of a chunk, its low, and the time of its rows, µs UTC."""


def began_at(copy: TableCopy, chunks: Sequence[ReadChunk]) -> Position:
    """The copy has every row that the log before this place has left; from there on, chunks and log together do."""
    lows = [chunk.chunk.low for chunk in chunks]
    return min(lows if copy.low is None else [*lows, copy.low])


def begun_again(copy: TableCopy, chunks: Sequence[ReadChunk], ts_us: int, open_file: OpenFile) -> list[ReadChunk]:
    """The chunks of a copy, with durable files that make older rows go.

    ts_us: not before the time of any chunk: a state as of an earlier time must not lose rows that come later.
    """
    first = min(chunks, key=lambda read_chunk: read_chunk.chunk.number)
    parts, schemas = _truncate(first, began_at(copy, chunks), ts_us, open_file)
    chunk = replace(first.chunk, paths=(*(part.path for part in parts), *first.chunk.paths))
    known = {schema.id: schema for schema in (*schemas, *first.schemas)}
    marked = ReadChunk(chunk, (*parts, *first.parts), tuple(known.values()))
    return [marked if read_chunk is first else read_chunk for read_chunk in chunks]


def as_of(
    place: Checkpoint,
    read_chunk: ReadChunk,
    empty: Manifest,
    chain: Sequence[Manifest],
    ts_us: int,
    open_file: OpenFile,
    store: ObjectStore,
) -> ReadChunk | None:
    """The exact claim of a table without a key as of `place`; None if the table was redefined since.

    one: the claim; its parts begin with a `t`. empty: a batch at the place, without files, under the copier's epoch.
    chain: the batches up to the place. Raises what the stage raises.
    """
    from cdc_core.stage.stage_reader import StateOptions, state_batches  # DuckDB, which only such tables need

    low = read_chunk.chunk.low
    since = [_of_table(batch, read_chunk.chunk.table) for batch in chain if batch.end.position > low]
    schemas = {schema.id: schema for schema in read_chunk.schemas}
    claimed = replace(empty, chunks=(read_chunk.chunk,), parts=read_chunk.parts, schemas=schemas)
    tables = {part.table: part.schema_id for part in read_chunk.parts}
    later = {(part.table, part.schema_id) for batch in since for part in batch.parts if part.max_seq >= low.seq}
    if any(schema_id != tables.get(logical, schema_id) for logical, schema_id in later):
        return None
    parts, _ = _truncate(read_chunk, place.position, ts_us, open_file)
    with open_file(read_chunk.chunk.number, place.position, ts_us) as file:
        for logical, schema_id in tables.items():
            for rows in state_batches(store, [claimed, *since], logical, StateOptions(partial=True)):
                schema = schemas[schema_id]
                file.add_routed(TableRows(schema, logical, rows, np.zeros(rows.num_rows, np.int32)))
        copied = file.finish()
    chunk = replace(
        read_chunk.chunk,
        low=place.position,
        high=place.position,
        ts_us=ts_us,
        rows=sum(part.rows for part in copied if part.table == read_chunk.parts[0].table),
        paths=tuple(part.path for part in (*parts, *copied)),
    )
    return ReadChunk(chunk, (*parts, *copied), read_chunk.schemas)


def _truncate(
    read_chunk: ReadChunk, low: Position, ts_us: int, open_file: OpenFile
) -> tuple[tuple[Part, ...], tuple[TableSchema, ...]]:
    """Durable files of a `t` before the rows of a chunk, and their definitions."""
    with open_file(read_chunk.chunk.number, low, ts_us) as file:
        file.add_truncate()
        return file.finish(), file.schemas


def _of_table(batch: Manifest, table: str) -> Manifest:
    """The batch with the parts of one source table only."""
    parts = tuple(part for part in batch.parts if batch.schemas[part.schema_id].name == table)
    return replace(batch, parts=parts)
