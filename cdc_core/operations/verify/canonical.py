"""Rows as canonical texts: equal values have equal texts on every server, in every type that takes them unchanged.

It may assume a pair of types that type_pairs allows. It must keep true that two values that a server tells apart have
different texts: case, trailing blanks, the sign of zero, the last digit of a FLOAT and an ENUM's error value beside its
label '' count; the width of an integer, a DECIMAL's scale, the fractional digits of a time, the character set and the
order of a SET's labels do not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.decimals import without_exponents
from cdc_core.model.schema import BINARY_BASES, Column, ColumnType
from cdc_core.model.staged_columns import LITERAL, LiteralEntries
from cdc_core.targets.tables.text_columns import column_text, escaped, odd_literals

SEPARATOR = "\t"
NULL = "\\N"
ERROR_VALUE = "\\E"
"""The error value of an ENUM that has the label '' too. As NULL, no escaped text is equal to it."""
ERROR_SHOWN = "(error value)"
BYTES = "\\X"
"""Before the hexadecimal digits of bytes that are not text of their character set. As NULL."""
BYTES_SHOWN = "(not text) "
_FRACTION = r"(\.\d*?)0+$"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PLAIN = {"t": "\t", "n": "\n", "0": "\0", "\\": "\\"}


def column_texts(rows: pa.RecordBatch, column: Column) -> pa.StringArray:
    """The canonical text of each value of a column, null for null. rows may have `_cdc_literal`."""
    return _normal(column_text(rows, column.name), column.type)


def row_texts(rows: pa.RecordBatch, columns: Sequence[Column], errors: Collection[str] = frozenset()) -> pa.StringArray:
    """One text for the values of these columns: escaped, and joined in their order.

    errors: ENUM columns, in lower case, whose error value and label '' both sides tell apart.
    """
    if not columns:
        return pa.array([""] * rows.num_rows, pa.string())
    parts = [compared_texts(rows, column, errors) for column in columns]
    return pc.binary_join_element_wise(*parts, SEPARATOR, null_handling="replace", null_replacement=NULL)


def compared_texts(rows: pa.RecordBatch, column: Column, errors: Collection[str] = frozenset()) -> pa.StringArray:
    """What `row_texts` joins: null for null, and for no other value."""
    text = _with_bytes(rows, column, escaped(column_texts(rows, column)))
    return _with_errors(rows, column, text, errors)


def key_text(values: Sequence[str | None]) -> str:
    """What `row_texts` makes of one row with these canonical texts."""
    parts = [NULL if value is None else escaped(pa.array([value], pa.string()))[0].as_py() for value in values]
    return SEPARATOR.join(parts)


def canonical_text(text: str, kind: ColumnType) -> str:
    """The canonical text of a value of this type that is written as SELECT shows it; binary values as hex."""
    if kind.base in BINARY_BASES:
        return text.upper()
    found: str = _normal(pa.array([text], pa.string()), kind)[0].as_py()
    return found


def values_of(text: str) -> list[str | None]:
    """The canonical texts of the values that `row_texts` joined; ERROR_SHOWN for an error value, and BYTES_SHOWN
    before bytes that are not text."""
    return [_value(part) for part in text.split(SEPARATOR)]


def has_errors(text: str) -> bool:
    """Whether one of the values that `row_texts` joined is the error value of an ENUM, or bytes that are not text."""
    return any(part == ERROR_VALUE or part.startswith(BYTES) for part in text.split(SEPARATOR))


def _value(part: str) -> str | None:
    if part == ERROR_VALUE:
        return ERROR_SHOWN
    if part.startswith(BYTES):
        return BYTES_SHOWN + part.removeprefix(BYTES)
    return None if part == NULL else _ESCAPED.sub(lambda match: _PLAIN[match[1]], part)


def _with_bytes(rows: pa.RecordBatch, column: Column, text: pa.StringArray) -> pa.StringArray:
    """With a mark before bytes that are not text: a text may have the same digits."""
    places = [row for row, name, is_bytes in odd_literals(rows) if is_bytes and name == column.name]
    if not places:
        return text
    mask = np.zeros(rows.num_rows, bool)
    mask[places] = True
    return pc.if_else(pa.array(mask), pc.binary_join_element_wise(BYTES, text, ""), text)


def _with_errors(rows: pa.RecordBatch, column: Column, text: pa.StringArray, errors: Collection[str]) -> pa.StringArray:
    """With a text of its own for the error value, which the rows tell from the label '' by an empty literal alone."""
    if column.name.lower() not in errors or LITERAL not in rows.schema.names:
        return text
    literals = rows.column(LITERAL)
    if literals.null_count == rows.num_rows:
        return text
    entries = LiteralEntries.of(literals)
    mine = np.asarray(pc.and_(pc.equal(entries.name, column.name), pc.equal(entries.text, "")))
    mask = np.zeros(rows.num_rows, bool)
    mask[entries.row[mine]] = True
    return pc.if_else(pa.array(mask), pa.scalar(ERROR_VALUE), text) if mask.any() else text


def normal_form(kind: ColumnType) -> str:
    """How texts of this type are made canonical: equal texts of types with the same form have equal canonical texts."""
    if kind.base in ("time", "datetime", "timestamp"):
        return "time"
    return kind.base if kind.base in ("decimal", "set") else ""


def _normal(text: pa.StringArray, kind: ColumnType) -> pa.StringArray:
    form = normal_form(kind)
    if form == "decimal":
        return _numbers(text)
    if form == "time":
        return _without_zeros(text)
    if form == "set":
        coded = text.dictionary_encode()
        labels = [_sorted_labels(value, kind.labels) for value in coded.dictionary.to_pylist()]
        return pa.array(labels, pa.string()).take(coded.indices)
    return text


def _sorted_labels(text: str, labels: Sequence[str]) -> str:
    """The labels of a SET's value in an order that does not depend on its definition. A text that is not a value of the
    SET, because it has its labels in another order, is equal to none: a comma never ends one."""
    parts = text.split(",")
    places = [labels.index(part) for part in parts if part in labels]
    return ",".join(sorted(parts)) + ("" if places == sorted(set(places)) else ",")


def _without_zeros(text: pa.StringArray) -> pa.StringArray:
    """Without zeros at the end of a fraction."""
    return pc.replace_substring_regex(pc.replace_substring_regex(text, _FRACTION, r"\1"), r"\.$", "")


def _numbers(text: pa.StringArray) -> pa.StringArray:
    return pc.replace_substring_regex(_without_zeros(without_exponents(text)), r"^-0$", "0")
