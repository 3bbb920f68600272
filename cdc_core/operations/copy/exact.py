"""The copy of a table without a key, moved forward to the place at which it is staged.

Its rows have no versions: a target counts whole rows, and has the changes up to a mark, batch by batch. So its claim is
exact (the read view shows the log up to `low` and nothing after it), and is staged as the rows that the table has at
the place of the batch: those of the claim, and what the chain has brought since, as every reader of the stage reads
them. A change `t` before them says that they replace what was staged before; the targets then empty the table,
write the rows, and set the mark between the batches that end and begin at the place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from cdc_core.meta import ReadChunk
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import ROW_BITS, SNAPSHOT
from cdc_core.operations.copy.copied_rows import CopiedAt
from cdc_core.stage.layout import CopiedName, copied_path
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.open_part import open_part

_FIRST_PART = 500
"""The number of the first part: those of the chunk itself are smaller."""


def first_row(number: int) -> int:
    """`_cdc_row` of the `t` before the rows of a chunk."""
    return (number << ROW_BITS) - 1


def as_of(
    place: Checkpoint,
    one: ReadChunk,
    empty: Manifest,
    chain: Sequence[Manifest],
    *,
    store: ObjectStore,
    ts_us: int,
    level: int,
    scratch: Path,
) -> ReadChunk | None:
    """The claim as of `place`; None if the table was redefined since the claim.

    one: the claim; its parts begin with a `t`. empty: a batch at the place, without files, under the copier's epoch.
    chain: the batches up to the place. Raises what the stage raises.
    """
    from cdc_core.stage.stage_reader import state_batches  # DuckDB, which only such tables need

    low = one.chunk.low
    since = [_of_table(batch, one.chunk.table) for batch in chain if batch.end.position > low]
    claimed = replace(
        empty, chunks=(one.chunk,), parts=one.parts, schemas={schema.id: schema for schema in one.schemas}
    )
    output = _Output(store, empty.source, one.chunk.number, empty.epoch, place, ts_us, level, scratch)
    parts: list[Part] = []
    for logical in dict.fromkeys(part.table for part in one.parts):
        own = {part.schema_id for part in one.parts if part.table == logical}
        later = {
            part.schema_id
            for batch in since
            for part in batch.parts
            if part.table == logical and part.max_seq >= low.seq
        }
        if later - own:
            return None
        schema = claimed.schemas[own.pop()]
        parts.append(output.truncate(logical, schema))
        rows = state_batches(store, [claimed, *since], logical, partial=True)
        parts += output.rows(logical, schema, rows)
    chunk = replace(
        one.chunk,
        low=place.position,
        high=place.position,
        ts_us=ts_us,
        rows=sum(part.rows for part in parts if part.table == parts[0].table and SNAPSHOT in part.ops),
        paths=tuple(part.path for part in parts),
    )
    return ReadChunk(chunk, tuple(parts), one.schemas)


def _of_table(batch: Manifest, table: str) -> Manifest:
    """The batch with the parts of one source table only."""
    parts = tuple(part for part in batch.parts if batch.schemas[part.schema_id].name == table)
    return replace(batch, parts=parts)


@dataclass(slots=True)
class _Output:
    """Durable parts of one chunk, all at the order key just before the place."""

    store: ObjectStore
    source: str
    chunk: int
    epoch: int
    place: Checkpoint
    ts_us: int
    level: int
    scratch: Path
    made: int = 0

    @property
    def _at(self) -> CopiedAt:
        return CopiedAt(self.source, self.place.position, self.ts_us)

    def truncate(self, table: str, schema: TableSchema) -> Part:
        """A `t`, which is alone in its part: so it is told from the TRUNCATE of a source without a look inside."""
        batch = self._at.truncate(schema, first_row(self.chunk))
        (part,) = self._part(table, schema, iter([batch]))
        return part

    def rows(self, table: str, schema: TableSchema, state: Iterator[pa.RecordBatch]) -> list[Part]:
        """state: as stage.reader gives it. [] for no rows."""

        def staged() -> Iterator[pa.RecordBatch]:
            row = first_row(self.chunk) + 1
            for batch in state:
                yield self._at.rows(schema, batch, row)
                row += batch.num_rows

        return self._part(table, schema, staged())

    def _part(self, table: str, schema: TableSchema, batches: Iterator[pa.RecordBatch]) -> list[Part]:
        name = CopiedName(self.source, self.chunk, self.epoch, _FIRST_PART + self.made)
        self.made += 1
        part = open_part(
            self.store,
            table,
            schema,
            name,
            lambda name: copied_path(table, self.ts_us, name),
            level=self.level,
            scratch=self.scratch,
        )
        try:
            for batch in batches:
                if batch.num_rows:
                    part.add(batch)
            if not part.rows:
                part.file.discard()
                return []
            part.file.close()
            return [part.listed(part.file.publish())]
        except BaseException:
            part.file.discard()
            raise
