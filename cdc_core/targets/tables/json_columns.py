"""JSON texts on their way into a JSON column: numbers that the server would change when it reads them.

A server reads a number of a JSON text as a 64-bit integer or as a DOUBLE; a source that built it from a DECIMAL prints
more (12345678901234567890.25, -1.50). Such a number is loaded as a string, and SQL turns it into a DECIMAL with the
same digits in the temporary table. So the target prints the text that the source has printed.

May assume that a source has printed the text: a number with an exponent is a DOUBLE there, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# A fraction of two digits or more that ends with 0; sixteen digits or more; a small number. A DOUBLE prints the same
# digits for any other number.
_SUSPECT = r"\.[0-9]+0(?:[^0-9eE]|$)|[0-9][0-9.]{15}|(?:^|[^0-9])0\.0000"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|[\[\]{},]', re.DOTALL)
_INTEGERS = range(-(2**63), 2**64)
_PLAIN = 10**14
"""A DOUBLE below it is printed without an exponent."""
MAX_DIGITS, MAX_SCALE = 65, 30
Number = tuple[str, int]
"""A number's path in its document, and its digits after the point."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The texts with strings in place of numbers that only a DECIMAL holds; those numbers, by row."""

    text: pa.StringArray
    numbers: dict[int, tuple[Number, ...]]


def exact_numbers(text: pa.StringArray) -> Exact:
    """For a column of JSON texts; the texts themselves if no number needs a DECIMAL, which one scan shows."""
    suspects = np.flatnonzero(np.asarray(pc.fill_null(pc.match_substring_regex(text, _SUSPECT), False)))
    numbers: dict[int, tuple[Number, ...]] = {}
    changed: list[str] = []
    for row, document in zip(suspects, text.take(pa.array(suspects)).to_pylist(), strict=True):
        found = list(_decimals(document))
        if found:
            numbers[int(row)] = tuple((path, scale) for _, _, path, scale in found)
            pieces, end = [], 0
            for start, stop, _, _ in found:
                pieces += [document[end:start], f'"{document[start:stop]}"']
                end = stop
            changed.append("".join([*pieces, document[end:]]))
    if not numbers:
        return Exact(text, numbers)
    mask = np.zeros(len(text), dtype=bool)
    mask[list(numbers)] = True
    return Exact(pc.replace_with_mask(text, pa.array(mask), pa.array(changed, pa.string())), numbers)


def _decimals(document: str) -> Iterator[tuple[int, int, str, int]]:
    """Numbers that only a DECIMAL holds: start, end, path, digits after the point."""
    legs: list[str | int] = []  # of each open container: the member's name as written, or its number
    named = False  # whether the member of the innermost object has its name
    for match in _TOKEN.finditer(document):
        first = match[0][0]
        if first in "{[":
            legs.append("" if first == "{" else 0)
            named = False
        elif first in "]}":
            legs.pop()
        elif first == ",":
            last = legs[-1]
            legs[-1] = last + 1 if isinstance(last, int) else last
            named = False
        elif first == '"':
            if legs and isinstance(legs[-1], str) and not named:
                legs[-1], named = match[0], True
        else:
            scale = _scale(match[0])
            if scale is not None:
                path = "$" + "".join(f"[{leg}]" if isinstance(leg, int) else f".{leg}" for leg in legs)
                yield match.start(), match.end(), path, scale


def _scale(token: str) -> int | None:
    """Digits after the point of a number that only a DECIMAL prints like this; None for any other."""
    if "e" in token or "E" in token:
        return None
    whole, _, fraction = token.partition(".")
    if not fraction:
        return None if int(whole) in _INTEGERS else 0
    number = float(token)
    if repr(number) == token and abs(number) < _PLAIN:
        return None
    fits = len(whole.lstrip("-").lstrip("0")) + len(fraction) <= MAX_DIGITS and len(fraction) <= MAX_SCALE
    # A number that no DECIMAL holds comes from a DOUBLE, which prints it again.
    return len(fraction) if fits or Decimal(number) != Decimal(token) else None


def decimals_sql(column: str, numbers: tuple[Number, ...]) -> Iterator[str]:
    """Assignments, each for a statement of its own, that turn the strings in a column into DECIMALs."""
    for begin in range(0, len(numbers), _AT_ONCE):
        terms = []
        for path, scale in numbers[begin : begin + _AT_ONCE]:
            at = "'" + path.replace("\\", "\\\\").replace("'", "''") + "'"
            terms.append(f"{at}, CAST(JSON_UNQUOTE(JSON_EXTRACT({column}, {at})) AS DECIMAL({MAX_DIGITS},{scale}))")
        yield f"{column} = JSON_REPLACE({column}, {', '.join(terms)})"


_AT_ONCE = 100
