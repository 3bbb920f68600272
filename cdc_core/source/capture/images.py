"""The staged rows of a table taken apart, so that what is done to a column is done to both images of it.

It must keep true that bookkeeping columns and the number of rows stay as they are unless a step says otherwise, and
that the rows put together again have exactly the columns of their definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import GIVE_UP, DataAtRisk
from cdc_core.model.block import TableRows
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import (
    BEFORE,
    BEFORE_MARK,
    BOOKKEEPING,
    FILE,
    LITERAL,
    POS,
    LiteralEntries,
    lacking,
    row_field,
    staged_schema,
)


@dataclass(frozen=True, slots=True)
class Images:
    """All of the same length.

    after, before: the row's columns by name; before is null where there is no before image.
    updated:       which rows have a before image.
    notes:         the bookkeeping columns by name.
    """

    after: Mapping[str, pa.Array]
    before: Mapping[str, pa.Array]
    updated: pa.BooleanArray
    notes: Mapping[str, pa.Array]

    @classmethod
    def of(cls, rows: pa.RecordBatch, schema: TableSchema) -> Images:
        names = [column.name for column in schema.columns]
        before = rows.column(BEFORE)
        was = before.flatten()
        return cls(
            {name: rows.column(at) for at, name in enumerate(names)},
            dict(zip(names, was, strict=True)),
            before.is_valid(),
            {field.name: rows.column(field.name) for field in BOOKKEEPING},
        )

    def __len__(self) -> int:
        return len(self.updated)

    @property
    def literals(self) -> LiteralEntries:
        return LiteralEntries.of(self.notes[LITERAL])

    def with_notes(self, **columns: pa.Array) -> Images:
        return replace(self, notes={**self.notes, **columns})

    def with_literals(self, entries: LiteralEntries) -> Images:
        return self.with_notes(**{LITERAL: entries.array(len(self))})

    def rows(self, schema: TableSchema) -> pa.RecordBatch:
        fields = [row_field(column) for column in schema.columns]
        after = [self.after[column.name] for column in schema.columns]
        before = pa.StructArray.from_arrays(
            [self.before[column.name] for column in schema.columns], fields=fields, mask=pc.invert(self.updated)
        )
        return pa.RecordBatch.from_arrays([*after, before, *self.notes.values()], schema=staged_schema(schema))

    def require_carried(self, names: Iterable[str], part: TableRows, who: str) -> None:
        """Raises DataAtRisk (sink.unknown_value) where an image lacks one of the columns."""
        _, sets = lacking(part.rows)
        lacks = sorted(_both(names) & frozenset().union(*sets))
        if lacks:
            raise unknown_value(part, f"{who} needs {lacks[0]}, which the log does not carry")

    def require_known(self, names: Iterable[str], part: TableRows, who: str) -> None:
        """As require_carried; also where a value is in `_cdc_literal`, because its type cannot hold it."""
        names = list(names)
        self.require_carried(names, part, who)
        odd = self.literals
        odd = odd.where(odd.among(_both(names)))
        if len(odd.row):
            raise unknown_value(part, f"{who} needs {odd.name[0]}, and {str(odd.text[0])!r} is not a value of its type")


def _both(names: Iterable[str]) -> frozenset[str]:
    return frozenset(mark + name for name in names for mark in ("", BEFORE_MARK))


def unknown_value(part: TableRows, what: str) -> DataAtRisk:
    return DataAtRisk(
        f"Rows of {part.schema.name} lack values that the pipeline needs: {what}.",
        where=f"from {part.rows[FILE][0]}:{part.rows[POS][0]} on",
        code="sink.unknown_value",
        remedy="SET GLOBAL binlog_row_image = FULL on the source, or use other columns in the pipeline. For the "
        f"rows that are logged already, {GIVE_UP}",
    )
