"""What of a logical table is compared with a target's: its columns, its key, and what is left out.

It must keep true that a column is compared on both sides or said to be left out. What verification asks of a kind of
target is a `TargetSide`: `target_rows` reads tables of servers, `lake_rows` mirrors of a lake.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_core.config import Sharding
from cdc_core.errors import Refused
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.operations.copy.key_ranges import Key


@dataclass(frozen=True, slots=True)
class RowRange:
    """Keys after `above` up to `through`, as key_ranges has them; () for all, on either side. wanted: only rows with
    these keys, texts of `row_texts`, wherever they are."""

    above: Key = ()
    through: Key = ()
    wanted: Sequence[str] | None = None


SideRows = tuple[int, pa.RecordBatch, tuple[Column, ...]]
"""Rows of one place, by its number, with the columns that name and type them: those of the shape, in its order."""


@dataclass(frozen=True, kw_only=True)
class TargetSide(ABC):
    """A table of a target. places: the names of its physical tables, by number. shared: several source tables may feed
    it, and must not share keys."""

    target: str
    logical: str
    key: tuple[str, ...]
    places: tuple[str, ...]
    shared: bool = False
    sharding: Sharding | None = None

    @abstractmethod
    def has(self, column: str) -> bool:
        """Whether all places take values of a column."""

    @abstractmethod
    def tells_errors(self, column: str) -> bool:
        """Whether an ENUM's error value is another than its label '' in all places: as in canonical.row_texts."""

    @abstractmethod
    def why_whole(self, schema: TableSchema) -> str:
        """Why a range of this source table's keys may mean other rows here, for people; "" if it does not."""

    @abstractmethod
    def definition(self, shape: Shape) -> object:
        """What is compared, and where it is, for a digest."""

    @abstractmethod
    def batches(self, shape: Shape, range_: RowRange) -> Iterator[SideRows]:
        """The rows of a range, in each place in the order of the key where it can be cut."""

    @abstractmethod
    def count(self, shape: Shape) -> int:
        """How many rows there are."""

    @abstractmethod
    def reaches(self, shape: Shape, last: Key) -> bool:
        """Whether there is a row with this key, and none after it."""

    @abstractmethod
    def renew(self) -> None:
        """Rows that are read from here on are not older than this moment."""

    def as_held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the source as the target has them. Servers hold every value."""
        return rows

    def shard_numbers(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The place of each row; all of them have their shard key."""
        return np.zeros(rows.num_rows, np.int64)


@dataclass(frozen=True)
class Shape:
    """side: the target's table. columns: those that are compared, as the source names them and with its types.
    left_out: other columns of the source, and why. masked: columns whose values are not staged. errors: as in
    canonical.row_texts."""

    logical: str
    side: TargetSide
    columns: tuple[Column, ...]
    left_out: Mapping[str, str]
    masked: frozenset[str]
    errors: frozenset[str] = frozenset()

    @property
    def key(self) -> tuple[str, ...]:
        return self.side.key

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in self.key)

    @property
    def key_or_all(self) -> tuple[Column, ...]:
        """What identifies a row: without a key, all of it."""
        return self.key_columns or self.columns


def shape_of(side: TargetSide, schemas: Sequence[TableSchema], unmasked: Sequence[TableSchema]) -> Shape:
    """schemas: of the source tables that feed the table, after the pipeline's rules; unmasked: before them, in the same
    order.

    Raises Refused (verify.not_comparable).
    """
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(column.name for schema in schemas for column in schema.columns):
        of = [column for schema in schemas for column in schema.columns if column.name == name]
        if name.lower() == VERSION_COLUMN:
            continue
        if len(of) < len(schemas):
            left_out[name] = "not all source tables have it"
        elif not all(column.logged for column in of):
            left_out[name] = "the source computes it, and does not log it"
        elif not side.has(name):
            left_out[name] = "it is computed, or missing, in a table of the target"
        else:
            columns.append(of[0])
    names = {column.name for column in columns}
    for name in side.key:
        if name not in names:
            raise Refused(
                f"The key column {name} of {side.logical} cannot be compared: {left_out.get(name, 'unknown')}.",
                where=f"target {side.target}",
                code="verify.not_comparable",
                remedy="make the column a plain one on both sides, or compare the table by other means",
            )
    masked = {
        column.name
        for schema, before in zip(schemas, unmasked, strict=True)
        for column in schema.columns
        # Not by equality: a column may have the type of a hash already.
        if any(former.name == column.name and former.type is not column.type for former in before.columns)
    }
    errors = {column.name.lower() for column in columns if column.name not in masked and side.tells_errors(column.name)}
    return Shape(side.logical, side, tuple(columns), left_out, frozenset(masked), frozenset(errors))
