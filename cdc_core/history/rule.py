"""The rule of a table: what its history is read by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TableRule:
    """columns: of the row, as all definitions are unified. key: columns that identify a row; () if rows are counted.
    moving: shard keys outside the key. fill: columns that some change lacks and an older one may have. shared: several
    source tables feed the table; rows of two of them under one key are two rows. totals, unmatched: of rows
    that are counted: over all batches at once, for a state; columns by which they are not compared, generated ones.
    formers: an update is two events also where the key stays: the row as it was, and the row as it is."""

    columns: pa.Schema
    key: Sequence[str] = ()
    moving: Sequence[str] = ()
    fill: Sequence[str] = ()
    shared: bool = False
    totals: bool = False
    unmatched: Sequence[str] = ()
    formers: bool = False

    @property
    def matched(self) -> Sequence[str]:
        """The columns that say which row a change is of."""
        return self.key or [name for name in self.columns.names if name not in self.unmatched]
