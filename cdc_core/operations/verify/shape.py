"""What of a logical table is compared with a target's: its columns, its key, and what is left out.

It must keep true that a column is compared on both sides or said to be left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cdc_core.errors import Refused
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.targets.reading.destination import Destination, Shard


@dataclass(frozen=True)
class Shape:
    """destination: opened for the table. columns: those that are compared, as the source names them and with its types.
    left_out: other columns of the source, and why. masked: columns whose values are not staged. errors: as in
    canonical.row_texts."""

    logical: str
    destination: Destination
    columns: tuple[Column, ...]
    left_out: Mapping[str, str]
    masked: frozenset[str]
    errors: frozenset[str] = frozenset()

    @property
    def key(self) -> tuple[str, ...]:
        return self.destination.key

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in self.key)

    @property
    def key_or_all(self) -> tuple[Column, ...]:
        """What identifies a row: without a key, all of it."""
        return self.key_columns or self.columns


def shape_of(destination: Destination, schemas: Sequence[TableSchema], unmasked: Sequence[TableSchema]) -> Shape:
    """schemas: of the source tables that feed the table, after the pipeline's rules; unmasked: before them, in the same
    order.

    Raises Refused (verify.not_comparable).
    """
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    loaded = [{name.lower() for name in shard.columns} for shard in destination.shards]
    for name in dict.fromkeys(column.name for schema in schemas for column in schema.columns):
        of = [column for schema in schemas for column in schema.columns if column.name == name]
        if name.lower() == VERSION_COLUMN:
            continue
        if len(of) < len(schemas):
            left_out[name] = "not all source tables have it"
        elif not all(column.logged for column in of):
            left_out[name] = "the source computes it, and does not log it"
        elif not all(name.lower() in names for names in loaded):
            left_out[name] = "it is computed, or missing, in a table of the target"
        else:
            columns.append(of[0])
    names = {column.name for column in columns}
    for name in destination.key:
        if name not in names:
            raise Refused(
                f"The key column {name} of {destination.logical} cannot be compared: {left_out.get(name, 'unknown')}.",
                where=f"target {destination.target}",
                code="verify.not_comparable",
                remedy="make the column a plain one on both sides, or compare the table by other means",
            )
    masked = {
        column.name
        for schema, before in zip(schemas, unmasked, strict=True)
        for column in schema.columns
        # Not by equality: a column may have the type of a hash already.
        if any(one.name == column.name and one.type is not column.type for one in before.columns)
    }
    errors = {
        column.name.lower()
        for column in columns
        if column.name not in masked and all(_tells_errors(shard, column.name) for shard in destination.shards)
    }
    return Shape(destination.logical, destination, tuple(columns), left_out, frozenset(masked), frozenset(errors))


def _tells_errors(shard: Shard, name: str) -> bool:
    kind = shard.facts.by_name[name.lower()].type
    return kind.base == "enum" and "" in kind.labels
