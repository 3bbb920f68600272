"""Changes of captured tables that wait for the end of their transaction: neither decoded nor in a block yet."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_core.binlog import ordinary
from cdc_core.binlog.image_shapes import Defaults
from cdc_core.binlog.rows_event import RowsEvent
from cdc_core.binlog.table_map import TableMap
from cdc_core.model.schema import TableName, TableSchema
from cdc_core.model.staged_columns import staged_schema
from cdc_core.source.transactions.growable import Longs

ROW_BYTES = 100
"""Rough overhead of a row, for the decision when a block is large enough."""


@dataclass(frozen=True, eq=False, slots=True)
class MappedTable:
    """A captured table as one table map describes it, with the Arrow schema of its staged rows."""

    schema: TableSchema
    table_map: TableMap
    defaults: Defaults | None = None
    arrow: pa.Schema = field(init=False)
    row_bytes: int = field(init=False)
    """Estimated size of a row image, to estimate how many rows an event has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrow", staged_schema(self.schema))
        object.__setattr__(self, "row_bytes", 1 + 4 * len(self.schema.columns))

    @property
    def name(self) -> TableName:
        return self.schema.database, self.schema.table


@dataclass(frozen=True, slots=True)
class PendingRows:
    """One row event. ordinal: among the row events of its transaction. size_bytes: rough size of its rows once
    decoded."""

    table: MappedTable
    rows: RowsEvent
    ordinal: int
    size_bytes: int

    @classmethod
    def from_event(cls, table: MappedTable, rows: RowsEvent, ordinal: int) -> PendingRows:
        size_bytes = len(rows.images)
        return cls(table, rows, ordinal, 2 * size_bytes + ROW_BYTES * (1 + size_bytes // table.row_bytes))

    def __len__(self) -> int:
        return 1

    def without(self, isolated: Container[str]) -> PendingRows | None:
        return None if self.table.schema.name in isolated else self


@dataclass(frozen=True, slots=True)
class PendingRowEvents:
    """Row events of one file, in columns; their images have all columns.

    start, stop: of the images in `buffer`. table: index into `tables`. change: INSERT, UPDATE or DELETE.
    ordinal: among the row events of the transaction. offset: where the event starts in the file.
    """

    file: str
    tables: Sequence[MappedTable]
    buffer: npt.NDArray[np.uint8]
    table: Longs
    start: Longs
    stop: Longs
    change: Longs
    ordinal: Longs
    offset: Longs

    def __len__(self) -> int:
        return len(self.table)

    @property
    def size_bytes(self) -> int:
        """As PendingRows estimates it."""
        sizes = self.stop - self.start
        row_bytes = np.array([table.row_bytes for table in self.tables], np.int64)
        return int(2 * sizes.sum() + ROW_BYTES * (1 + sizes // row_bytes[self.table]).sum())

    def copied(self) -> PendingRowEvents:
        """A copy with its own images and columns: the original's buffers are about to be reused."""
        start, stop = self.start.copy(), self.stop.copy()
        images = np.empty(int((stop - start).sum()), np.uint8)
        ordinary.pack(self.buffer, start, stop, len(self), images, 0)
        own = (column.copy() for column in (self.change, self.ordinal, self.offset))
        return PendingRowEvents(self.file, self.tables, images, self.table.copy(), start, stop, *own)

    def without(self, isolated: Container[str]) -> PendingRowEvents | None:
        stays = np.array([table.schema.name not in isolated for table in self.tables])[self.table]
        columns = (self.table, self.start, self.stop, self.change, self.ordinal, self.offset)
        return PendingRowEvents(self.file, self.tables, self.buffer, *(column[stays] for column in columns))


@dataclass(frozen=True, slots=True)
class PendingTruncate:
    """A TRUNCATE: a change without a row. file, offset: of its event. ordinal: as in PendingRows."""

    schema: TableSchema
    file: str
    offset: int
    ordinal: int
    size_bytes: int = ROW_BYTES

    def __len__(self) -> int:
        return 1

    def without(self, isolated: Container[str]) -> PendingTruncate | None:
        return None if self.schema.name in isolated else self


PendingChange = PendingRows | PendingRowEvents | PendingTruncate
"""`without`: what is left of it without the changes of isolated tables."""
