"""The rule of a table: what its history is read by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TableRule:
    """columns: of the row, as all definitions are unified. key: columns that identify a row; () if rows are counted.
    moving: shard keys outside the key. fill: columns that some change lacks and an older one may have. shared: several
    source tables feed the table; rows of two of them under one key are two rows. formers: an update is two events also
    where the key stays: the row as it was, and the row as it is."""

    columns: pa.Schema
    key: Sequence[str] = ()
    moving: Sequence[str] = ()
    fill: Sequence[str] = ()
    shared: bool = False
    formers: bool = False
