"""One schema for the parts of a table that were written under several definitions: for every reader, Spark's too.

Columns are matched by name, whose case does not matter to the servers either; so are the names in the bookkeeping. A
column that a definition lacks is null there; widened types are widened, exactly. Types without an exact common type are
a conflict, and are refused: nothing is ever cast silently. Readers of all changes show every column, readers of the
state those that the table has now.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import DataAtRisk, Refused, UsageError
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.merged_columns import merged_type
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import (
    ABSENT,
    BEFORE,
    BOOKKEEPING,
    LITERAL,
    LiteralEntries,
    absent_text,
    renamed_in_bookkeeping,
    row_field,
)
from cdc_core.model.windows import from_us
from cdc_core.stage.as_of import AsOf

_SIGNED = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
_UNSIGNED = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}
_LONGEST_DECIMAL = 38

NOTHING_STAGED = "nothing is staged yet: `lockstep snapshot` stages the rows that are there, `lockstep extract` changes"
"""The remedy where a reader asks too early."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part, with the definition of its rows and the source it came from."""

    part: Part
    source: str
    schema: TableSchema


def parts_of(manifests: Iterable[Manifest], table: str) -> list[StagedPart]:
    """The parts of a logical table: batch by batch as given, within a batch in stream order.

    Raises Refused (usage.unknown_name) where there is none, with the names that are there.
    """
    staged_parts: list[StagedPart] = []
    others: set[str] = set()
    for manifest in manifests:
        parts = [part for part in manifest.parts if part.table == table]
        staged_parts += [
            StagedPart(part, manifest.source, definition_of(manifest, part))
            for part in sorted(parts, key=lambda part: part.max_seq)
        ]
        others.update(part.table for part in manifest.parts)
    if not staged_parts:
        raise UsageError(
            f"Nothing is staged for the table {table!r}.",
            code="usage.unknown_name",
            remedy=f"name one of: {', '.join(sorted(others))}" if others else NOTHING_STAGED,
        )
    return staged_parts


def emptied_columns(manifests: Iterable[Manifest], as_of: AsOf | None) -> dict[tuple[str, str], dict[str, int]]:
    """For each source table of a source: columns, in small letters, that were dropped and added again, and the order
    key from which on their values hold.

    A batch may also know the definition after a statement that stopped the source right after the batch: what that
    statement did to values does not hold yet.
    """
    emptied: dict[tuple[str, str], dict[str, int]] = {}
    batches = list(manifests)
    end: dict[str, int] = {}
    for manifest in batches:
        end[manifest.source] = max(manifest.end.position.seq, end.get(manifest.source, 0))
    for manifest in batches:
        for definition in manifest.definitions:
            if definition.seq < end[manifest.source] and (
                as_of is None or as_of.includes(definition.seq, definition.ts_us)
            ):
                columns = emptied.setdefault((manifest.source, definition.schema.name), {})
                columns.update(
                    {name.lower(): max(definition.seq, columns.get(name.lower(), 0)) for name in definition.emptied}
                )
    return emptied


def definition_of(manifest: Manifest, part: Part) -> TableSchema:
    """Raises DataAtRisk (stage.damaged) where the manifest has another definition under the id."""
    schema = manifest.schemas[part.schema_id]
    if schema.id != part.schema_id:
        raise DataAtRisk(
            f"The definition {part.schema_id} of {part.table} does not match its id.",
            where=manifest.path,
            code="stage.damaged",
            remedy="restore the file from a backup of the stage",
        )
    return schema


def latest_definitions(parts: Sequence[StagedPart]) -> list[TableSchema]:
    """The last definition of each source table that feeds the logical one, in the order of first appearance."""
    latest = {(part.source, part.schema.name): part.schema for part in by_age(parts)}
    tables = dict.fromkeys((part.source, part.schema.name) for part in parts)
    return list({latest[table].id: latest[table] for table in tables}.values())


def by_age(parts: Sequence[StagedPart]) -> list[StagedPart]:
    """Source by source in the order of the log, to which copied rows belong by when they were read, and not by where
    they are in the chain: their table may have been redefined before they were staged."""
    sources = list(dict.fromkeys(part.source for part in parts))
    return sorted(parts, key=lambda part: (sources.index(part.source), part.part.max_seq))


def unified_columns(
    table: str, schemas: Sequence[TableSchema], current: Sequence[TableSchema] | None = None
) -> list[pa.Field]:
    """The row columns of all definitions: those of the last one first, in its order, then what only others have.

    current: only the columns of these, with types that hold the values of all.
    Raises Refused (stage.schema_conflict) for a column without an exact common type.
    """
    columns: dict[str, pa.Field] = {}
    for schema in reversed(schemas if current is None else current):
        for column in schema.columns:
            columns.setdefault(column.name.lower(), row_field(column))
    for schema in schemas:
        for column in schema.columns:
            field = columns.get(column.name.lower())
            if field is None:
                continue
            common = common_type(field.type, column.type.arrow)
            if common is None:
                raise _conflict(table, column.name, schemas)
            columns[column.name.lower()] = field.with_type(common)
    return list(columns.values())


def merged_row(table: str, schemas: Sequence[TableSchema], current: Sequence[TableSchema] | None) -> pa.Schema:
    """The row columns of merged rows: as unified_columns, with the types that merged rows have."""
    return pa.schema(
        [pa.field(column.name, merged_type(column.type)) for column in unified_columns(table, schemas, current)]
    )


def lake_row(table: str, schemas: Sequence[TableSchema], current: Sequence[TableSchema] | None) -> pa.Schema:
    """As merged_row, without what row images may leave out (Column.logged): a lake computes nothing, and null would be
    a wrong value."""
    unlogged = {column.name.lower() for schema in schemas for column in schema.columns if not column.logged}
    row = merged_row(table, schemas, current)
    return pa.schema([field for field in row if field.name.lower() not in unlogged])


def conflict(schemas: Sequence[TableSchema], current: Sequence[TableSchema] | None = None) -> bool:
    """Whether unified_columns refuses these definitions."""
    if len(schemas) < 2:
        return False
    try:
        unified_columns("", schemas, current)
    except Refused:
        return True
    return False


def sides(manifests: Iterable[Manifest], parts: Sequence[StagedPart]) -> list[str]:
    """Where the changes of a source table lose a common schema: moments at which readers may end and begin. manifests:
    those of the parts."""
    batches = {part.path: batch for batch in manifests for part in batch.parts}
    alone = len({part.source for part in parts}) == 1
    known: dict[tuple[str, str], list[StagedPart]] = {}
    found: dict[str, None] = {}
    for part in by_age(parts):
        before = known.setdefault((part.source, part.schema.name), [])
        if conflict([part.schema, *(each.schema for each in before)]):
            old, new = batches[before[-1].part.path], batches[part.part.path]
            until = since = str(old.end.position)
            if not alone:  # a position is of one source; a time is between two windows
                until = from_us(new.window_start_us).isoformat()
                since = until if old.window_end_us <= new.window_start_us else from_us(new.window_end_us).isoformat()
            found[f"until={until!r} or since={since!r}"] = None
            before.clear()
        before.append(part)
    return list(found)


def unified_schema(table: str, schemas: Sequence[TableSchema]) -> pa.Schema:
    """The schema of all staged changes of a table: unified row columns, `_before`, bookkeeping."""
    columns = unified_columns(table, schemas)
    return pa.schema([*columns, pa.field(BEFORE, pa.struct(columns)), *BOOKKEEPING])


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds every value of both exactly; None where there is none."""
    if one == other:
        return one
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return _common_integer(one, other)
    if pa.types.is_floating(one) and pa.types.is_floating(other):
        return pa.float64()
    if all(pa.types.is_decimal(kind) or pa.types.is_integer(kind) for kind in (one, other)):
        return _common_decimal(one, other)
    return None


def align(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Staged rows of one definition under a unified schema."""
    columns = []
    own = {name.lower(): name for name in rows.column_names}
    others = renamed_in_bookkeeping((own.get(field.name.lower(), field.name), field.name) for field in target)
    for field in target:
        if field.name == BEFORE:
            columns.append(_align_before(rows.column(BEFORE), field.type))
        elif others and field.name in (LITERAL, ABSENT):
            noted = _renamed_literals if field.name == LITERAL else _renamed_absent
            chunks = [noted(chunk, others) for chunk in rows.column(field.name).chunks]
            columns.append(pa.chunked_array(chunks, field.type))
        elif field.name.lower() in own:
            columns.append(rows.column(own[field.name.lower()]).cast(field.type))
        else:
            columns.append(pa.nulls(len(rows), field.type))
    return pa.Table.from_arrays(columns, schema=target)


def _align_before(before: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    have = {field.name.lower(): index for index, field in enumerate(before.type)}
    chunks = []
    for chunk in before.chunks:
        children = []
        for field in target:
            index = have.get(field.name.lower())
            none = index is None
            child = pa.nulls(len(chunk), field.type) if none else pc.struct_field(chunk, [index]).cast(field.type)
            children.append(child)
        chunks.append(pa.StructArray.from_arrays(children, fields=list(target), mask=pc.is_null(chunk)))
    return pa.chunked_array(chunks, target)


def _renamed_literals(literal: pa.MapArray, others: Mapping[str, str]) -> pa.MapArray:
    entries = LiteralEntries.of(literal)
    known = pc.index_in(entries.name, value_set=pa.array(list(others), pa.string()))
    names = pc.coalesce(pa.array(list(others.values()), pa.string()).take(known), entries.name)
    return LiteralEntries(entries.row, names, entries.text).array(len(literal))


def _renamed_absent(texts: pa.DictionaryArray, others: Mapping[str, str]) -> pa.DictionaryArray:
    names = (json.loads(text) for text in texts.dictionary.to_pylist())
    renamed = [absent_text(others.get(name, name) for name in some) for some in names]
    return pa.DictionaryArray.from_arrays(texts.indices, pa.array(renamed, pa.string()))


def _common_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    signs = [pa.types.is_signed_integer(kind) for kind in (one, other)]
    widths = [kind.bit_width // 8 for kind in (one, other)]
    if all(signs) or not any(signs):
        return (_SIGNED if all(signs) else _UNSIGNED)[max(widths)]
    signed, unsigned = (widths[0], widths[1]) if signs[0] else (widths[1], widths[0])
    needed = max(signed, unsigned * 2)
    return _SIGNED[needed] if needed <= 8 else pa.decimal128(20, 0)


def _common_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    shapes = [(kind.precision, kind.scale) if pa.types.is_decimal(kind) else _digits(kind) for kind in (one, other)]
    scale = max(scale for _, scale in shapes)
    precision = max(precision - own for precision, own in shapes) + scale
    return pa.decimal128(precision, scale) if precision <= _LONGEST_DECIMAL else None


def _digits(integer: pa.DataType) -> tuple[int, int]:
    return {8: 3, 16: 5, 32: 10, 64: 20}[integer.bit_width], 0


def _conflict(table: str, column: str, schemas: Sequence[TableSchema]) -> Refused:
    kinds: dict[str, list[str]] = {}
    for schema in schemas:
        for defined in schema.columns:
            if defined.name.lower() == column.lower():
                kinds.setdefault(str(defined.type), []).append(f"{schema.name} ({schema.id})")
    text = "; ".join(f"{kind} in {', '.join(dict.fromkeys(where))}" for kind, where in kinds.items())
    return Refused(
        f"The types of column {column!r} have no exact common type: {text}.",
        where=table,
        code="stage.schema_conflict",
        remedy="copy the table again to read its state (`lockstep snapshot`); apply the batches before and after the "
        "change separately; route source tables that differ to different logical tables",
    )
