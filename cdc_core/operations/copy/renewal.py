"""A copy that takes the place of everything older: for tables that may have rows of which no log tells that they are
gone.

Its batch has a change `t` for each logical table of the source table, alone in its file, just before the place where
the copy began (`began_at`). Rows above the copy's last key came after that place: the log has them. Every
reader knows what that means: the rows that the source table had before are gone. Those that are still there come again
with the chunks; what the log brought since is newer than the `t`. It is not a TRUNCATE of the source, and policies for
that do not apply to it: its batch, one of copied rows, tells it apart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cdc_core.meta import ReadChunk, TableCopy
from cdc_core.model.position import Position
from cdc_core.model.staged_columns import ROW_BITS
from cdc_core.operations.copy.chunk_file import ChunkFile
from cdc_core.source.capture import Capture
from cdc_core.stage.objects import ObjectStore


def began_at(copy: TableCopy, chunks: Sequence[ReadChunk]) -> Position:
    """The copy has every row that the log before this place has left; from there on, chunks and log together do."""
    lows = [one.chunk.low for one in chunks]
    return min(lows if copy.low is None else [*lows, copy.low])


def begun_again(
    copy: TableCopy,
    chunks: Sequence[ReadChunk],
    *,
    store: ObjectStore,
    capture: Capture,
    epoch: int,
    ts_us: int,
    level: int,
) -> list[ReadChunk]:
    """The chunks of a copy, with durable files that make older rows go. epoch: of the copier's lease.

    ts_us: not before the time of any chunk: a state as of an earlier time must not lose rows that come later.
    """
    first = min(chunks, key=lambda one: one.chunk.number)
    with tempfile.TemporaryDirectory(prefix="lockstep-snapshot-") as scratch:
        file = ChunkFile(
            store,
            capture,
            copy.schema,
            source=copy.source,
            number=first.chunk.number,
            epoch=epoch,
            low=began_at(copy, chunks),
            ts_us=ts_us,
            level=level,
            scratch=Path(scratch),
        )
        try:
            file.add_truncate((first.chunk.number << ROW_BITS) - 1)
            parts = file.finish()
        except BaseException:
            file.discard()
            raise
    chunk = replace(first.chunk, paths=(*(part.path for part in parts), *first.chunk.paths))
    schemas = {one.id: one for one in (*file.schemas, *first.schemas)}
    marked = ReadChunk(chunk, (*parts, *first.parts), tuple(schemas.values()))
    return [marked if one is first else one for one in chunks]
