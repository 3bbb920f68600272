"""Keys of rows as SQL: read from the server as literals, and compared by the server alone.

This module never interprets a literal. It must guarantee that a literal is the key's exact value, and that a comparison
with it follows the column's own order: collation, padding, sign, the order of an ENUM's labels. A key says for each
column whether greater or smaller values come after it. So a copy follows an index of (a DESC, b) as it is, and keeps
that order if it continues after the index was changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cdc_core.errors import TableRefused
from cdc_core.model.schema import BINARY_BASES, INTEGER_BYTES, TEXT_BASES, Column, TableSchema
from cdc_core.mysql.connections import quote

Key = tuple[str, ...]
"""A literal for each column of the key, in its order; with DOWN at its end where smaller values come after it."""
DOWN = " DESC"

_NUMBERED = frozenset({"bit", "enum", "set", "year"})
"""Compared by their numbers."""
_MOST_LABELS = 53
"""The labels of a SET whose number a DOUBLE holds: MySQL computes it as one."""
_QUOTED = frozenset({"date", "datetime", "timestamp", "time", "uuid", "inet4", "inet6"})


def not_copyable(where: str, what: str, way_out: str) -> TableRefused:
    remedy = f"{way_out}; or load the rows into the targets by a dump (docs/tutorial.md)"
    return TableRefused(what, where=where, code="snapshot.not_copyable", remedy=remedy)


def key_columns(schema: TableSchema) -> tuple[Column, ...]:
    """Raises Refused (snapshot.not_copyable)."""
    if not schema.key:
        raise not_copyable(
            schema.name,
            f"{schema.name} has neither a primary key nor a unique key without nulls, so it cannot be copied in parts.",
            "give the table a primary key",
        )
    columns = tuple(schema.column(name) for name in schema.key)
    for column in columns:
        if _expression(column) is None:
            raise not_copyable(
                schema.name,
                f"The key of {schema.name} has the column {column.name}, and Lockstep does not know the order of its "
                f"type {column.type}.",
                "give the table another primary key",
            )
    return columns


def selected(schema: TableSchema) -> str:
    """The expressions whose values `literals` takes, separated by commas."""
    return ", ".join(str(_expression(column)) for column in key_columns(schema))


def literals(schema: TableSchema, values: Sequence[Any], down: Sequence[bool]) -> Key:
    """The key that a row of `selected` values is, as literals. down: see `downwards`."""
    columns = zip(key_columns(schema), values, down, strict=True)
    return tuple(_literal(column, value) + DOWN * falls for column, value, falls in columns)


def downwards(key: Key) -> tuple[bool, ...]:
    """For each column, whether smaller values come after the key."""
    return tuple(literal.endswith(DOWN) for literal in key)


def after(schema: TableSchema, key: Key) -> str:
    """The condition on keys that come after `key`; "TRUE" for ()."""
    return _compared(schema, key, "><", "")


def up_to(schema: TableSchema, key: Key) -> str:
    """The condition on keys that do not come after `key`; "TRUE" for ()."""
    return _compared(schema, key, "<>", "=")


def ordered(schema: TableSchema, down: Sequence[bool], *, reverse: bool = False) -> str:
    """What follows ORDER BY. down: see `downwards`."""
    columns = zip(key_columns(schema), down, strict=True)
    return ", ".join(quote(column.name) + DOWN * (falls != reverse) for column, falls in columns)


def between(schema: TableSchema, above: Key, through: Key) -> str:
    """What follows a table's name in a statement that reads the rows after `above`, up to and with `through`, in the
    order of the key. () for no such bound; without any, rows come in no order."""
    where = f"WHERE {after(schema, above)} AND {up_to(schema, through)}"
    down = downwards(through or above)
    return f"{where} ORDER BY {ordered(schema, down)}" if down else where


def equal(schema: TableSchema, key: Key) -> str:
    """The condition on the key itself."""
    columns = zip(key_columns(schema), key, strict=True)
    return " AND ".join(f"{quote(column.name)} = {value.removesuffix(DOWN)}" for column, value in columns)


def numbered(schema: TableSchema) -> bool:
    """Whether a key is one whole number: then there are no more rows after one key and up to another than numbers."""
    return len(schema.key) == 1 and schema.column(schema.key[0]).type.base in INTEGER_BYTES


def _compared(schema: TableSchema, key: Key, signs: str, last: str) -> str:
    """Columns are compared one after the other: (a > 1) OR (a = 1 AND b > 2). No row constructor: the servers do not
    use an index for those. signs: where greater values come after the key, and where smaller ones do. last: with the
    sign of the last column."""
    names = [quote(column.name) for column in key_columns(schema)]
    if not key:
        return "TRUE"
    values = [value.removesuffix(DOWN) for value in key]
    strict = [signs[falls] for falls in downwards(key)]
    terms = []
    for at, name in enumerate(names):
        same = [f"{other} = {value}" for other, value in zip(names[:at], values[:at], strict=True)]
        sign = strict[at] + (last if at == len(names) - 1 else "")
        terms.append("(" + " AND ".join([*same, f"{name} {sign} {values[at]}"]) + ")")
    if len(names) == 1:
        return terms[0]
    return f"({names[0]} {strict[0]}= {values[0]} AND ({' OR '.join(terms)}))"


def _expression(column: Column) -> str | None:
    """What the server is asked for; None for a type that is not the key of anything."""
    base, name = column.type.base, quote(column.name)
    if base in INTEGER_BYTES or base in ("decimal", "double"):
        return name
    if base == "set" and len(column.type.labels) > _MOST_LABELS:
        return None
    if base in _NUMBERED:
        return f"{name} + 0"
    if base == "float":
        return f"{name} + 0e0"
    if base in _QUOTED:
        return f"CAST({name} AS CHAR)"
    if base in TEXT_BASES or base in BINARY_BASES:
        return f"HEX({name})"
    return None


def _literal(column: Column, value: Any) -> str:
    base = column.type.base
    if value is None:
        raise ValueError(f"the key column {column.name} is null")
    if base in _QUOTED:
        text = str(value)
        if not all(char.isalnum() or char in " -:." for char in text):
            raise ValueError(f"the key column {column.name} has the value {text!r}")
        return f"'{text}'"
    if base in TEXT_BASES:
        return f"_{column.type.charset} X'{_hex(value)}' COLLATE {column.type.collation}"
    if base in BINARY_BASES:
        return f"X'{_hex(value)}'"
    if base in ("float", "double"):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"the key column {column.name} has the value {number}")
        return f"{number!r}e0" if "e" not in repr(number) else repr(number)
    if base == "decimal":
        return f"{value:f}"
    return str(int(value))


def _hex(value: Any) -> str:
    text = value.decode("ascii") if isinstance(value, bytes) else str(value)
    bytes.fromhex(text)
    return text
