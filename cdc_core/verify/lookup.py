"""Keys as conditions, from their canonical texts: to read single rows of a source or a target again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdc_core.connections import quote
from cdc_core.errors import defect
from cdc_core.model.schema import BINARY_BASES, GEOMETRY_BASES, INTEGER_BYTES, TEXT_BASES, Column
from cdc_core.verify.canonical import has_errors, values_of

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE)
_WORD = re.compile(r"[0-9A-Za-z :.\-]*")


def condition(columns: Sequence[Column], keys: Sequence[str], *, of: str = "") -> str:
    """Rows with one of these keys; not those with an ENUM's error value, which has no literal.

    columns: of the key, as the server declares them. keys: texts of `row_texts`. of: an alias of their table.
    """
    rows = [
        [literal(column, text) for column, text in zip(columns, values_of(key), strict=True)]
        for key in keys
        if not has_errors(key)
    ]
    names = [(f"{of}." if of else "") + quote(column.name) for column in columns]
    if not rows:
        return "FALSE"
    if len(names) == 1:
        return f"{names[0]} IN ({', '.join(row[0] for row in rows)})"
    terms = (" AND ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True)) for row in rows)
    return " OR ".join(f"({term})" for term in terms)


def literal(column: Column, text: str | None) -> str:
    """A value's canonical text as a literal that the column is compared with."""
    base = column.type.base
    if text is None:
        return "NULL"
    if base in INTEGER_BYTES or base in ("decimal", "bit"):
        return _checked(column, text, _NUMBER)
    if base == "year":  # a number below 100 would be a year of this or the last century
        return f"'{int(_checked(column, text, _NUMBER)):04d}'"
    if base == "set":  # a canonical text has its labels in another order
        text = ",".join(sorted(text.split(","), key=[*column.type.labels, ""].index))
    if base in ("float", "double"):
        return f"({_checked(column, text, _NUMBER)} + 0e0)"
    if base in ("date", "datetime", "timestamp", "time", "uuid", "inet4", "inet6"):
        return f"'{_checked(column, text, _WORD)}'"
    if base in BINARY_BASES or base in GEOMETRY_BASES:
        return f"X'{_checked(column, text, _WORD)}'"
    value = f"_utf8mb4 X'{text.encode().hex()}'"
    if base in TEXT_BASES and column.type.charset:
        value = f"CONVERT({value} USING {column.type.charset})"
        return f"{value} COLLATE {column.type.collation}" if column.type.collation else value
    return value


def _checked(column: Column, text: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(text):
        raise defect(f"The key column {column.name} has the value {text!r}.", code="verify.key_text")
    return text
