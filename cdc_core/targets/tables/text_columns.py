"""Arrow columns as the text that LOAD DATA reads: exact, whole columns at a time, no Python object per value.

    numbers, dates, times   as the server writes them; TIMESTAMP in UTC (the session's time zone is UTC)
    text                    UTF-8, with \\ tab newline and NUL escaped by a backslash
    binary, geometry        hex; UNHEX on the way in
    vector                  hex of its little-endian floats, which is the server's own form
    bit                     a decimal number; CAST AS UNSIGNED on the way in
    null                    \\N

A value that its type cannot hold is null in the column; its text in `_cdc_literal` is loaded instead.
`row_keys` makes the text of a key: tombstones are found by it, and a value has the same text in types of any width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.codes import bytes_of_lists
from cdc_core.model.staged_columns import LITERAL, LiteralEntries

KEY_BYTES = 512
"""The longest key text that is kept as it is; a longer one is kept as its SHA-256."""
_HEX = np.frombuffer(b"".join(b"%02X" % value for value in range(256)), dtype=np.uint16)
_SPECIAL = np.zeros(256, dtype=bool)
_SPECIAL[[0, 9, 10, 92]] = True
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\0", "\\0"))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a column of this type travels as hex."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_list(kind))


def column_text(rows: pa.RecordBatch, name: str) -> pa.StringArray:
    """A column's values as text, not yet escaped, with its literals in place; binary values as hex."""
    return _with_literals(rows, name, _plain_text(rows.column(name)))


def _plain_text(values: pa.Array) -> pa.StringArray:
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_list(kind):
        return hex_text(bytes_of_lists(values.cast(pa.list_(pa.float32()))))
    if is_bytes(kind):
        return hex_text(values.cast(pa.binary()))
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()).cast(pa.string())
    if pa.types.is_timestamp(kind):
        # Without its zone: the session's is UTC, as the value is.
        return values.cast(pa.timestamp("us")).cast(pa.string())
    if pa.types.is_dictionary(kind):
        return values.cast(kind.value_type).cast(pa.string())
    if pa.types.is_float32(kind):
        # All digits of the number: the fewest that distinguish it from its neighbours may round beyond the largest
        # FLOAT, and would be another number in a DOUBLE.
        values = values.cast(pa.float64())
    return values.cast(pa.string())


def hex_text(values: pa.BinaryArray) -> pa.StringArray:
    """The hexadecimal digits of each value, in upper case."""
    raw = np.frombuffer(values.buffers()[2] or b"", dtype=np.uint8)
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1] or bytes(4), dtype=np.int32)[values.offset : values.offset + count + 1]
    if not count:
        return pa.array([], pa.string())
    low, high = int(offsets[0]), int(offsets[-1])
    data = _HEX[raw[low:high]].tobytes()
    spread = ((offsets.astype(np.int64) - low) * 2).astype(np.int32)
    nulls = values.is_valid()
    text = pa.StringArray.from_buffers(count, pa.py_buffer(spread.tobytes()), pa.py_buffer(data))
    return pc.if_else(nulls, text, pa.scalar(None, pa.string())) if values.null_count else text


def _with_literals(rows: pa.RecordBatch, name: str, text: pa.StringArray) -> pa.StringArray:
    index = rows.schema.get_field_index(LITERAL)
    if index < 0 or rows.column(index).null_count == rows.num_rows:
        return text
    entries = LiteralEntries.of(rows.column(index))
    entries = entries.where(entries.among([name]))
    mask = np.zeros(rows.num_rows, dtype=bool)
    mask[entries.row] = True
    return pc.replace_with_mask(text, pa.array(mask), entries.text)


def odd_literals(rows: pa.RecordBatch) -> list[tuple[int, str, bool]]:
    """Row and column of each value that no text can be loaded as: the error value of an ENUM that has the label '' too,
    whose literal is empty; and, with True, bytes of a text column that its character set does not have, whose literal
    is the bytes as hexadecimal digits."""
    index = rows.schema.get_field_index(LITERAL)
    if index < 0 or rows.column(index).null_count == rows.num_rows:
        return []
    entries = LiteralEntries.of(rows.column(index))
    empty = np.asarray(pc.equal(entries.text, ""))
    texts = entries.among([field.name for field in rows.schema if pa.types.is_string(field.type)])
    at = np.flatnonzero(empty | texts)
    names = entries.name.take(pa.array(at)).to_pylist()
    return list(zip(entries.row[at].tolist(), names, (~empty[at]).tolist(), strict=True))


def escaped(text: pa.StringArray) -> pa.StringArray:
    """Backslash escapes, only where a column has any."""
    data = text.buffers()[2]
    if data is None or not _SPECIAL[np.frombuffer(data, dtype=np.uint8)].any():
        return text
    for plain, code in _ESCAPES:
        text = pc.replace_substring(text, plain, code)
    return text


def joined(columns: Sequence[pa.StringArray]) -> pa.Buffer | bytes:
    """Lines of tab-separated fields, ready to be written to the file."""
    lines = pc.binary_join_element_wise(*columns, "\t", null_handling="replace", null_replacement="\\N")
    lines = pc.binary_join_element_wise(lines, "", "\n")
    offsets = np.frombuffer(lines.buffers()[1], dtype=np.int32)
    return lines.buffers()[2].slice(int(offsets[lines.offset]), int(offsets[lines.offset + len(lines)]))


def row_keys(rows: pa.RecordBatch, key: Sequence[str]) -> pa.StringArray:
    """The key's text of each row: its columns' text with \\ and , escaped, joined by commas, hashed when too long; null
    where rows have no key."""
    if not key:
        return pa.nulls(rows.num_rows, pa.string())
    parts = []
    for name in key:
        text = column_text(rows, name)
        kind = rows.schema.field(name).type
        if len(key) > 1 and pa.types.is_string(kind):
            text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), ",", "\\,")
        parts.append(text)
    keys = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, ",")
    long = np.asarray(pc.greater(pc.fill_null(pc.binary_length(keys), 0), KEY_BYTES))
    if not long.any():
        return keys
    texts = keys.to_pylist()
    return pa.array(
        [
            "sha256:" + hashlib.sha256(text.encode()).hexdigest() if big else text
            for text, big in zip(texts, long, strict=True)
        ],
        pa.string(),
    )
