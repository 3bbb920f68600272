"""Keys as conditions, from their canonical texts: to read single rows of a source or a target again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from cdc_core.errors import defect
from cdc_core.model.schema import BINARY_BASES, GEOMETRY_BASES, INTEGER_BYTES, TEXT_BASES, Column
from cdc_core.mysql.connections import quote, utf8_literal
from cdc_core.operations.verify.canonical import has_errors, values_of

LOOKED_UP_KEYS = 1_000
"""Keys of one statement where only some rows are read."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE)
_WORD = re.compile(r"[0-9A-Za-z :.\-]*")


def pieces(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many keys as one statement may have."""
    for at in range(0, len(keys), LOOKED_UP_KEYS):
        yield keys[at : at + LOOKED_UP_KEYS]


def condition(
    columns: Sequence[Column], keys: Sequence[str], errors: Collection[str] = frozenset(), *, of: str = ""
) -> str:
    """Rows with one of these keys; not those with an ENUM's error value, which has no literal.

    columns: of the key, as the server declares them. keys: texts of `row_texts`. errors: as in `row_texts`. of: an
    alias of their table.
    """
    names = [_compared(column, (f"{of}." if of else "") + quote(column.name)) for column in columns]
    alone, terms = [], []
    for key in keys:
        if has_errors(key):
            continue
        texts = values_of(key)
        literals = [literal(column, text) for column, text in zip(columns, texts, strict=True)]
        # The error value is equal to the label '', and has another number.
        labels = [
            name
            for name, column, text in zip(names, columns, texts, strict=True)
            if text == "" and column.name.lower() in errors
        ]
        if len(names) == 1 and not labels:
            alone += literals
            continue
        term = [f"{name} = {value}" for name, value in zip(names, literals, strict=True)]
        terms.append(" AND ".join([*term, *(f"{name} + 0 <> 0" for name in labels)]))
    if alone:
        terms.append(f"{names[0]} IN ({', '.join(alone)})")
    return " OR ".join(f"({term})" for term in terms) or "FALSE"


def _compared(column: Column, name: str) -> str:
    """In an index, MySQL does not find the greatest value of a FLOAT with digits, such as FLOAT(12,3)."""
    rounded = column.type.base in ("float", "double") and column.type.precision is not None
    return f"({name} + 0e0)" if rounded else name


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
    value = utf8_literal(text)
    if base in TEXT_BASES and column.type.charset:
        value = f"CONVERT({value} USING {column.type.charset})"
        return f"{value} COLLATE {column.type.collation}" if column.type.collation else value
    return value


def _checked(column: Column, text: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(text):
        raise defect(f"The key column {column.name} has the value {text!r}.")
    return text
