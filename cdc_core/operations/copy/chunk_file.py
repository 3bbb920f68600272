"""The files of one chunk: rows of a result set, in the columns of staged changes, through the pipeline's own rules.

It must keep true that a copied row passes the same processors, filters, masks and routes as a change of the stream, and
that its order key is before every change that the log brings from the claim's `low` on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdc_core.meta import Lease
from cdc_core.model.batch import Part
from cdc_core.model.block import TableRows
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import ROW_BITS
from cdc_core.operations.copy.copied_rows import CopiedAt
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.source.capture import Capture
from cdc_core.stage.layout import CopiedName, copied_path
from cdc_core.stage.open_part import OpenPart, open_part


@dataclass(frozen=True, slots=True)
class ChunkFiles:
    """What all chunks of a source have in common that the holder of its copier's lease stages. capture: the pipeline's
    rules. scratch: a folder."""

    opened: OpenPipeline
    source: str
    lease: Lease
    capture: Capture
    scratch: Path

    def chunk(self, schema: TableSchema, number: int, low: Position, ts_us: int) -> ChunkFile:
        """low: the claim's; ts_us: the watermark of what is staged, µs UTC."""
        return ChunkFile(self, schema, number, CopiedAt(self.source, low, ts_us))


class ChunkFile:
    """Takes the rows of a chunk, then makes its parts durable; a block that raises removes them."""

    def __init__(self, files: ChunkFiles, schema: TableSchema, number: int, at: CopiedAt) -> None:
        self._files = files
        self._schema = schema
        self._number = number
        self._at = at
        self._parts: dict[tuple[str, str], OpenPart] = {}
        self.rows = 0
        """Read so far."""
        self.row_bytes = 0
        """Weight of the values read so far."""

    def __enter__(self) -> ChunkFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for part in self._parts.values():
                part.file.discard()

    def add(self, rows: pa.RecordBatch) -> None:
        """rows: the columns of the definition, and `_cdc_literal`."""
        staged = self._at.rows(self._schema, rows, self._next_row)
        self.rows += rows.num_rows
        self.row_bytes += rows.nbytes
        self._take(staged)

    def add_routed(self, rows: TableRows) -> None:
        """Rows that have passed the pipeline's rules, with `_cdc_literal`; their places in the log are not used."""
        self._add_claimed(rows.logical, rows.schema, self._at.rows(rows.schema, rows.rows, self._next_row))

    def add_gone(self, logical: str, schema: TableSchema, keys: pa.RecordBatch) -> None:
        """Deletes of keys that the source does not have. schema: after the pipeline's rules. keys: the columns of its
        key, and `_cdc_literal`. A row that is added later counts more, where a server takes both keys for one."""
        self._add_claimed(logical, schema, self._at.deletes(schema, keys, self._next_row))

    @property
    def _next_row(self) -> int:
        return self._number << ROW_BITS | self.rows

    def _add_claimed(self, logical: str, schema: TableSchema, staged: pa.RecordBatch) -> None:
        if staged.num_rows:
            self.rows += staged.num_rows
            self.row_bytes += staged.nbytes
            part = TableRows(schema, logical, staged, np.zeros(staged.num_rows, np.int32))
            self._part_of(part).add(staged)

    def add_truncate(self) -> None:
        """Adds a change that the rows of the table before those of the chunk are gone (op `t`)."""
        self._take(self._at.truncate(self._schema, (self._number << ROW_BITS) - 1))

    def _take(self, staged: pa.RecordBatch) -> None:
        part = TableRows(self._schema, self._schema.name, staged, np.zeros(staged.num_rows, np.int32))
        for routed in self._files.capture.routed(part):
            if routed.rows.num_rows:
                self._part_of(routed).add(routed.rows)

    def finish(self) -> tuple[Part, ...]:
        """Makes the files durable; what a manifest will list."""
        parts = []
        for part in self._parts.values():
            part.file.close()
            parts.append(part.listed(part.file.publish()))
        return tuple(parts)

    @property
    def schemas(self) -> tuple[TableSchema, ...]:
        """The definitions of the parts."""
        return tuple({part.schema.id: part.schema for part in self._parts.values()}.values())

    def _part_of(self, rows: TableRows) -> OpenPart:
        identity = (rows.logical, rows.schema.id)
        part = self._parts.get(identity)
        if part is None:
            opened, number = self._files.opened, len(self._parts)
            part = self._parts[identity] = open_part(
                opened.store,
                rows.logical,
                rows.schema,
                CopiedName(self._at.source, self._number, self._files.lease.epoch, number),
                lambda name: copied_path(rows.logical, self._at.ts_us, name),
                level=opened.pipeline.stage.compression_level,
                scratch=self._files.scratch,
            )
        return part
