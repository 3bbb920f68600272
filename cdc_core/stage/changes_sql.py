"""SQL, for DuckDB: every staged change of a table under one schema, whatever definition its file was written with.

Only texts are built here: no file is opened. A table's columns may have any name but those that begin with `_cdc_`
(model.staged.RESERVED_PREFIX). So do all parameters of lambdas: no row's column is ever taken for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged_columns import ABSENT, BEFORE, BOOKKEEPING, LITERAL, renamed_in_bookkeeping

SOURCE_TABLE = "_cdc_source_table"
"""The name of the change's table on its source."""

_TYPES = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT", pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER", pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN", pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP", pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
    pa.string(): "VARCHAR", pa.binary(): "BLOB", pa.list_(pa.float32()): "FLOAT[]",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Local files of one definition."""

    schema: TableSchema
    files: tuple[str, ...]
    condition: str = "true"
    """The condition on the changes in them that count."""


def quoted(name: str) -> str:
    """A SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A SQL string."""
    return "'" + value.replace("'", "''") + "'"


def _duck_type(kind: pa.DataType) -> str:
    """DuckDB's name of a type of staged columns."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _TYPES[kind]


def changes_sql(groups: Sequence[FileGroup], columns: Sequence[pa.Field]) -> str:
    """All changes under one schema: row columns, `_before`, bookkeeping, and `_cdc_source_table`. groups: at least
    one."""
    return "\nUNION ALL BY NAME\n".join(_group_sql(group, columns) for group in groups)


def _group_sql(group: FileGroup, columns: Sequence[pa.Field]) -> str:
    own = {column.name.lower(): column for column in group.schema.columns}
    row = [f"{_unified(quoted, own, field)} AS {quoted(field.name)}" for field in columns]
    as_written = [(field.name, field.type) for field in columns] == [(one.name, one.type.arrow) for one in own.values()]
    if as_written:
        before = BEFORE
    else:
        fields = ", ".join(f"{quoted(field.name)} := {_unified(_old, own, field)}" for field in columns)
        before = f"CASE WHEN {BEFORE} IS NOT NULL THEN struct_pack({fields}) END AS {BEFORE}"
    spelled = ((own[name].name, field.name) for field in columns if (name := field.name.lower()) in own)
    bookkeeping = {field.name: field.name for field in BOOKKEEPING} | _noted_as(renamed_in_bookkeeping(spelled))
    files = ", ".join(text(file) for file in group.files)
    return (
        f"SELECT {', '.join([*row, before, *bookkeeping.values()])}, {text(group.schema.name)} AS {SOURCE_TABLE} "
        f"FROM read_parquet([{files}], hive_partitioning = false) WHERE {group.condition}"
    )


def _noted_as(others: Mapping[str, str]) -> dict[str, str]:
    """`_cdc_literal` and `_cdc_absent` under the unified names, which may differ in letter case. others: those that do,
    by the definition's names."""
    if not others:
        return {}
    cases = " ".join(f"WHEN {text(mine)} THEN {text(name)}" for mine, name in others.items())
    key = f"CASE _cdc_entry.key {cases} ELSE _cdc_entry.key END"
    entries = f"[{{'key': {key}, 'value': _cdc_entry.value}} FOR _cdc_entry IN map_entries({LITERAL})]"
    names = f"[CASE _cdc_name {cases} ELSE _cdc_name END FOR _cdc_name IN from_json({ABSENT}, '[\"VARCHAR\"]')]"
    return {
        LITERAL: f"CASE WHEN {LITERAL} IS NOT NULL THEN map_from_entries({entries}) END AS {LITERAL}",
        ABSENT: f"CASE WHEN {ABSENT} IS NOT NULL THEN to_json({names})::VARCHAR END AS {ABSENT}",
    }


def _unified(image: Callable[[str], str], own: Mapping[str, Column], field: pa.Field) -> str:
    """A definition's column, found by its name in `image`, as the unified one; null where the definition lacks it."""
    column = own.get(field.name.lower())
    if column is None:
        return f"NULL::{_duck_type(field.type)}"
    value = image(column.name)
    return value if column.type.arrow == field.type else f"CAST({value} AS {_duck_type(field.type)})"


def _old(name: str) -> str:
    """A column's value before the change."""
    return f"struct_extract({BEFORE}, {text(name)})"
