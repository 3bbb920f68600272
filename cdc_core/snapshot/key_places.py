"""About where a key lies between the least and the greatest key of a table, by its first column: for estimates alone.

Keys are taken to lie evenly: random texts, UUIDs in text or binary form, hashes, decimals, dates. Texts are taken as
numbers, with the characters of both ends as digits: what lies between "00a3" and "ffe1" are hexadecimal digits.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from cdc_core.model.schema import BINARY_BASES, INTEGER_BYTES, TEXT_BASES, Column, TableSchema

Key = Sequence[str]
"""A literal for each column; see snapshot.keys."""

_NUMBERS = frozenset({*INTEGER_BYTES, "decimal", "float", "double", "bit", "enum", "set", "year"})
_TIMES = frozenset({"date", "datetime", "timestamp"})
_DIGITS = 12
"""Of a text behind what both ends begin with: more do not change a fraction."""
_HEX = string.digits + "ABCDEF"
_ALPHABETS = (
    string.digits, _HEX, _HEX.lower(), string.digits + string.ascii_uppercase, string.digits + string.ascii_lowercase,
    string.ascii_uppercase, string.ascii_lowercase, string.digits + string.ascii_uppercase + string.ascii_lowercase,
)  # fmt: skip
"""Each in the order of its bytes. The first one that has the characters of both ends counts."""


def fraction(schema: TableSchema, least: Key, key: Key, limit: Key) -> float | None:
    """0 for the least key, 1 for the greatest; None where nothing tells."""
    column = schema.column(schema.key[0])
    found = _texts(column, least[0], key[0], limit[0]) if column.type.base in TEXT_BASES else None
    if column.type.base in BINARY_BASES:
        ends = [_bytes(one) for one in (least[0], key[0], limit[0])]
        found = _as_numbers([list(one) for one in ends], 256)
    elif found is None:
        found = [_number(column, one) for one in (least[0], key[0], limit[0])]
    first, here, last = found
    if first is None or here is None or last is None or last <= first:
        return None
    return min(1.0, max(0.0, (here - first) / (last - first)))


def _number(column: Column, literal: str) -> float | None:
    base = column.type.base
    if base in _NUMBERS:
        return float(literal)
    if base not in _TIMES:
        return None
    # The server may have dates that no calendar has, such as 0000-00-00.
    year, month, day, *time = (int(one) for one in re.findall(r"\d+", literal)[:6])
    hour, minute, second = (*time, 0, 0, 0)[:3]
    return (((year * 12 + month) * 31 + day) * 24 + hour) * 3600 + minute * 60 + second


def _texts(column: Column, least: str, key: str, limit: str) -> list[float | None]:
    raw = [_bytes(one).decode("latin-1") for one in (least, key, limit)]
    if not str(column.type.collation).endswith("_bin"):
        raw = [one.upper() for one in raw]
    raw = [re.sub("[-:.]", "", one) for one in raw]  # of UUIDs and times
    ends = list(zip(raw[0], raw[2], strict=False))
    begin = next((at for at, (one, other) in enumerate(ends) if one != other), len(ends))
    raw = [one[begin : begin + _DIGITS] for one in raw]
    used = {*raw[0], *raw[2]}
    alphabet = next((one for one in _ALPHABETS if used <= set(one)), None)
    if alphabet is None:
        return _as_numbers([[*one.encode("latin-1")] for one in raw], 256)
    places = {character: number for number, character in enumerate(alphabet)}
    return _as_numbers([[places.get(one, 0) for one in text] for text in raw], len(alphabet))


def _as_numbers(digits: Sequence[Sequence[int]], base: int) -> list[float | None]:
    shared = 0
    while all(len(one) > shared for one in digits) and digits[0][shared] == digits[2][shared]:
        shared += 1
    return [sum(digit / base**at for at, digit in enumerate(one[shared : shared + _DIGITS], 1)) for one in digits]


def _bytes(literal: str) -> bytes:
    found = re.search(r"X'([0-9A-Fa-f]*)'", literal)
    return bytes.fromhex(found[1]) if found else b""
