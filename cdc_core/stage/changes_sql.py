"""SQL, for DuckDB: every staged change of a table under one schema, whatever definition its file was written with.

Only texts are built here: no file is opened. A table's columns may have any name but those that begin with `_cdc_`
(model.staged.RESERVED_PREFIX). So do all columns and parameters of lambdas that are added on the way, here and in the
queries that are built on this one: no row's column is ever taken for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from cdc_core.errors import Refused
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged import ABSENT, BEFORE, BEFORE_MARK, BOOKKEEPING, LITERAL, renamed_in_bookkeeping

SOURCE_TABLE = "_cdc_source_table"
"""The name of the change's table on its source."""

NO_LITERAL = "NULL::MAP(VARCHAR, VARCHAR)"

AFTER_LITERAL = (
    f"map_from_entries(list_filter(map_entries({LITERAL}), "
    f"lambda _cdc_entry: NOT starts_with(_cdc_entry.key, '{BEFORE_MARK}')))"
)
"""The exact texts of a change's row."""

BEFORE_LITERAL = (
    f"map_from_entries([{{'key': _cdc_entry.key[{len(BEFORE_MARK) + 1}:], 'value': _cdc_entry.value}} "
    f"FOR _cdc_entry IN map_entries({LITERAL}) IF starts_with(_cdc_entry.key, '{BEFORE_MARK}')])"
)
"""Those of the row before it."""

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
    emptied: Mapping[str, int] = field(default_factory=dict)
    """Column, in small letters, -> the order key where it was added after it had been dropped: null before it."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table, and what the queries over them need to know of their content.

    columns:     the state's columns: those of the last definitions, without virtual ones of MariaDB if some change
                 lacks values. Nobody knows the values of such a column, and null would be a wrong one.
    all_columns: those of every definition.
    key:         columns that identify a row; () where whole rows are matched.
    literals:    some value is in `_cdc_literal`.
    truncated:   some change is a truncate.
    absent:      some change lacks values.
    shared:      several source tables feed it, of one or more sources.
    """

    groups: tuple[FileGroup, ...]
    columns: tuple[pa.Field, ...]
    all_columns: tuple[pa.Field, ...]
    key: tuple[str, ...]
    literals: bool
    truncated: bool
    absent: bool
    several_sources: bool
    shared: bool


def quoted(name: str) -> str:
    """A SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A SQL string."""
    return "'" + value.replace("'", "''") + "'"


def duck_type(kind: pa.DataType) -> str:
    """DuckDB's name of a type of staged columns."""
    if pa.types.is_dictionary(kind):
        return duck_type(kind.value_type)
    if pa.types.is_map(kind):
        return f"MAP({duck_type(kind.key_type)}, {duck_type(kind.item_type)})"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _TYPES[kind]


def key_columns(schema: TableSchema) -> frozenset[str]:
    """The columns of its key, in small letters."""
    return frozenset(name.lower() for name in schema.key)


def common_key(definitions: Sequence[TableSchema]) -> tuple[str, ...] | None:
    """The key that all of them have; () if they have none, None if they have different ones."""
    found = {key_columns(schema): schema.key for schema in reversed(definitions)}
    return next(iter(found.values()), ()) if len(found) < 2 else None


def key_of(table: str, definitions: Sequence[TableSchema], groups: Sequence[FileGroup]) -> tuple[str, ...]:
    """The key of the last definitions; () if they have none, or different ones.

    Raises Refused (stage.key) where an older definition lacks one of its columns.
    """
    key = common_key(definitions) or ()
    for group in groups:
        check_key(table, key, group.schema)
    return key


def check_key(table: str, key: Sequence[str], schema: TableSchema) -> None:
    """Raises Refused (stage.key) where the definition lacks a column of the key."""
    lacking = [name for name in key if name.lower() not in {column.name.lower() for column in schema.columns}]
    if lacking:
        raise Refused(
            f"The key column {lacking[0]!r} is not in every definition of the table.",
            where=f"{table}: {schema.name} as of definition {schema.id}",
            code="stage.key",
            remedy="give a key that all staged definitions have, or copy the table again (`lockstep snapshot`): its "
            "state is then read from the copy on",
        )


def changes_sql(groups: Sequence[FileGroup], columns: Sequence[pa.Field], *, past: bool = False) -> str:
    """All changes under one schema: row columns, `_before`, bookkeeping, and `_cdc_source_table`.

    groups: may be empty, for a result without rows. past: leave out values of columns that were dropped since, and
            added again.
    """
    if not groups:
        return _no_changes(columns)
    return "\nUNION ALL BY NAME\n".join(_group_sql(group, columns, group.emptied if past else {}) for group in groups)


def _no_changes(columns: Sequence[pa.Field]) -> str:
    row = {quoted(field.name): duck_type(field.type) for field in columns}
    before = f"STRUCT({', '.join(f'{name} {kind}' for name, kind in row.items())})"
    bookkeeping = {field.name: duck_type(field.type) for field in BOOKKEEPING}
    names = row | {BEFORE: before} | bookkeeping | {SOURCE_TABLE: "VARCHAR"}
    return f"SELECT {', '.join(f'NULL::{kind} AS {name}' for name, kind in names.items())} WHERE false"


def _group_sql(group: FileGroup, columns: Sequence[pa.Field], emptied: Mapping[str, int]) -> str:
    own = {column.name.lower(): column for column in group.schema.columns}
    row = [f"{_unified(quoted, own, field, emptied)} AS {quoted(field.name)}" for field in columns]
    as_written = [(field.name, field.type) for field in columns] == [(one.name, one.type.arrow) for one in own.values()]
    if as_written and not emptied:
        before = BEFORE
    else:
        fields = ", ".join(f"{quoted(field.name)} := {_unified(old, own, field, emptied)}" for field in columns)
        before = f"CASE WHEN {BEFORE} IS NOT NULL THEN struct_pack({fields}) END AS {BEFORE}"
    spelled = {own[name].name: field.name for field in columns if (name := field.name.lower()) in own}
    bookkeeping = {field.name: field.name for field in BOOKKEEPING}
    if emptied or any(mine != name for mine, name in spelled.items()):
        bookkeeping |= _noted_as(spelled, emptied)
    files = ", ".join(text(file) for file in group.files)
    return (
        f"SELECT {', '.join([*row, before, *bookkeeping.values()])}, {text(group.schema.name)} AS {SOURCE_TABLE} "
        f"FROM read_parquet([{files}], hive_partitioning = false) WHERE {group.condition}"
    )


def _noted_as(spelled: Mapping[str, str], emptied: Mapping[str, int]) -> dict[str, str]:
    """`_cdc_literal` and `_cdc_absent` under the unified names, without values from before their columns were dropped.

    spelled: by the definition's name, the unified one, which may differ in letter case.
    """
    entries, names = f"coalesce(map_entries({LITERAL}), [])", absent_names()
    if emptied:
        entries = f"list_filter({entries}, lambda _cdc_entry: NOT ({_is_former('_cdc_entry.key', emptied)}))"
        names = f"list_filter({names}, lambda _cdc_name: NOT ({_is_former('_cdc_name', emptied)}))"
    others = renamed_in_bookkeeping(spelled.items())
    if others:
        cases = " ".join(f"WHEN {text(mine)} THEN {text(name)}" for mine, name in others.items())
        key = f"CASE _cdc_entry.key {cases} ELSE _cdc_entry.key END"
        entries = f"[{{'key': {key}, 'value': _cdc_entry.value}} FOR _cdc_entry IN {entries}]"
        names = f"[CASE _cdc_name {cases} ELSE _cdc_name END FOR _cdc_name IN {names}]"
    return {
        LITERAL: f"CASE WHEN len({entries}) > 0 THEN map_from_entries({entries}) END AS {LITERAL}",
        ABSENT: f"{absent_text(names)} AS {ABSENT}",
    }


def _is_former(name: str, emptied: Mapping[str, int]) -> str:
    """Whether a name in the bookkeeping is about a value from before its column was dropped."""
    terms = [
        f"(lower({name}) IN ({text(column)}, {text(BEFORE_MARK + column)}) AND _cdc_seq < {seq})"
        for column, seq in sorted(emptied.items())
    ]
    return " OR ".join(terms)


def _unified(
    image: Callable[[str], str], own: Mapping[str, Column], field: pa.Field, emptied: Mapping[str, int]
) -> str:
    """A definition's column, found by its name in `image`, as the unified one; null where the definition lacks it, and
    where the value is one of before the column was dropped."""
    column = own.get(field.name.lower())
    if column is None:
        return f"NULL::{duck_type(field.type)}"
    value = image(column.name)
    if column.type.arrow != field.type:
        value = f"CAST({value} AS {duck_type(field.type)})"
    since = emptied.get(field.name.lower())
    return value if since is None else f"CASE WHEN _cdc_seq >= {since} THEN {value} END"


def old(name: str) -> str:
    """A column's value before the change."""
    return f"struct_extract({BEFORE}, {text(name)})"


def order_key(change: str = "") -> str:
    """Seq and row of a change as one number: both have up to 63 bits. change: its alias with a dot."""
    return f"({change}_cdc_seq::HUGEINT * 9223372036854775808 + {change}_cdc_row)"


def key_values(table: TableFiles) -> tuple[list[str], list[str]]:
    """What identifies a row after a change, and before it: the key's columns, then their exact texts if there may be
    any."""
    new = [quoted(name) for name in table.key]
    former = [old(name) for name in table.key]
    if table.literals:
        new += [f"{LITERAL}[{text(name)}]" for name in table.key]
        former += [f"{LITERAL}[{text(BEFORE_MARK + name)}]" for name in table.key]
    return new, former


def differ(new: Sequence[str], former: Sequence[str]) -> str:
    """Whether an update changes its row's key: the two of `key_values`."""
    return " OR ".join(f"{after} IS DISTINCT FROM {before}" for after, before in zip(new, former, strict=True))


def absent_names(change: str = "") -> str:
    """The names in `_cdc_absent` as a list. change: the change's alias with a dot."""
    return f"coalesce(from_json({change}{ABSENT}, '[\"VARCHAR\"]'), []::VARCHAR[])"


def absent_text(names: str) -> str:
    """A list of names as `_cdc_absent` has it."""
    return f"CASE WHEN len({names}) > 0 THEN to_json({names})::VARCHAR END"


def literal_or_null(literal: str) -> str:
    """A map of exact texts as `_cdc_literal` has it: null instead of an empty one."""
    return f"CASE WHEN len(map_keys({literal})) > 0 THEN {literal} ELSE {NO_LITERAL} END"
