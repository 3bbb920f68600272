"""Rows that differ, read again by their keys on both sides, and shown with the values that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc_core.model.block import TableRows
from cdc_core.operations.verify import lookup, target_rows
from cdc_core.operations.verify.canonical import row_texts, shown_texts, values_of
from cdc_core.operations.verify.comparison import Difference
from cdc_core.operations.verify.feeding import Feeding
from cdc_core.operations.verify.results import Finding, finding_id
from cdc_core.operations.verify.shape import Shape
from cdc_core.operations.verify.source_rows import columns_of
from cdc_core.operations.verify.target_rows import TargetTables

SHOWN_ROWS = 100
"""Findings of a table whose rows are read again and shown."""
_LOOKED_UP = 100


class OpenedFindings:
    """Of one table. name: its logical name."""

    def __init__(self, name: str, shape: Shape, feeding: Feeding, targets: TargetTables) -> None:
        self._name, self._shape, self._feeding, self._targets = name, shape, feeding, targets

    def opened(self, found: Sequence[Difference]) -> Iterator[Finding]:
        """The findings; the first SHOWN_ROWS with the rows as both sides have them now."""
        shown = found[:SHOWN_ROWS]
        for at in range(0, len(shown), _LOOKED_UP):
            some = shown[at : at + _LOOKED_UP]
            source, target = self._rows_at_source(some), self._rows_at_target(some)
            for one in some:
                yield self._finding(one, source.get(one.key, []), target.get(one.key, []))
        for one in found[SHOWN_ROWS:]:
            yield self._finding(one, [], [])

    def _finding(
        self,
        one: Difference,
        source: Sequence[Sequence[str | None]],
        target: Sequence[tuple[str, Sequence[str | None]]],
    ) -> Finding:
        shape = self._shape
        columns: dict[str, tuple[str | None, str | None]] = {}
        if len(source) == 1 and len(target) == 1:
            for column, mine, theirs in zip(shape.columns, source[0], target[0][1], strict=True):
                if mine != theirs:
                    columns[column.name] = (None, None) if column.name in shape.masked else (mine, theirs)
        key = dict(zip((column.name for column in shape.key_or_all), values_of(one.key), strict=True))
        key = {name: None if name in shape.masked else value for name, value in key.items()}
        shards = tuple(place for place, _ in target)
        name = finding_id(self._name, one.key)
        return Finding(name, self._name, one.kind, one.wrong, key, columns, one.source_rows, one.target_rows, shards)

    def _rows_at_source(self, some: Sequence[Difference]) -> dict[str, list[list[str | None]]]:
        """Values by key, in the order of the shape's columns; none where rows cannot be found by their keys."""
        shape = self._shape
        found: dict[str, list[list[str | None]]] = {}
        if not shape.key:
            return found

        def take(rows: TableRows) -> None:
            columns = columns_of(rows)
            keys_ = row_texts(rows.rows, [columns[name] for name in shape.key], shape.errors)
            values = [
                shown_texts(rows.rows, columns[column.name], shape.errors).to_pylist() for column in shape.columns
            ]
            for key, *row in zip(keys_.to_pylist(), *values, strict=True):
                found.setdefault(key, []).append(row)

        for source, schema in self._feeding:
            own = {column.name: column for column in schema.columns}
            if all(name in own and name not in shape.masked for name in shape.key):
                where = lookup.condition([own[name] for name in shape.key], [one.key for one in some], shape.errors)
                source.lookup(schema, self._name, where, take)
        return found

    def _rows_at_target(self, some: Sequence[Difference]) -> dict[str, list[tuple[str, list[str | None]]]]:
        shape = self._shape
        found: dict[str, list[tuple[str, list[str | None]]]] = {}
        if not shape.key:
            return found
        for shard in shape.destination.shards:
            where = target_rows.condition(shape, shard, [one.key for one in some])
            for batch, columns in self._targets.batches(shape, shard, f"WHERE {where}"):
                keys_ = row_texts(batch, target_rows.key_columns(shape, shard), shape.errors)
                values = [shown_texts(batch, column, shape.errors).to_pylist() for column in columns]
                for key, *row in zip(keys_.to_pylist(), *values, strict=True):
                    found.setdefault(key, []).append((shard.table.name, row))
        return found
