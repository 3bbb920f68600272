"""The range of the keys of some rows: from the least key to the greatest, both included.

For keys of whole numbers alone, which a server orders as Arrow does, whatever their widths and signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys are compared column by column. columns: of the key, as the rows name them."""

    columns: tuple[str, ...]
    least: Key
    greatest: Key

    def with_(self, other: KeyRange) -> KeyRange:
        """The range of both."""
        return KeyRange(self.columns, min(self.least, other.least), max(self.greatest, other.greatest))

    def sql(self, names: Sequence[str]) -> str:
        """SQL: whether a key is in the range. names: of the key's columns, quoted."""
        # The first column by itself, so that a server that reads a range of an index for nothing else reads one for it.
        first = f"{names[0]} BETWEEN {self.least[0]} AND {self.greatest[0]}"
        if len(names) == 1:
            return first
        return f"({first} AND {_beyond(names, self.least, '>')} AND {_beyond(names, self.greatest, '<')})"


def _beyond(names: Sequence[str], key: Key, operator: str) -> str:
    """No row constructor: servers do not use an index for those."""
    if len(names) == 1:
        return f"{names[0]} {operator}= {key[0]}"
    later = _beyond(names[1:], key[1:], operator)
    return f"({names[0]} {operator} {key[0]} OR ({names[0]} = {key[0]} AND {later}))"


def range_of(rows: pa.RecordBatch, key: Sequence[str]) -> KeyRange | None:
    """The range of the rows, of which there are some; None if their keys are not whole numbers alone."""
    columns = [rows.column(name) for name in key]
    if not columns or any(not pa.types.is_integer(column.type) or column.null_count for column in columns):
        return None
    return KeyRange(tuple(key), _end(columns, "min"), _end(columns, "max"))


def _end(columns: Sequence[pa.Array], end: str) -> Key:
    first, *others = columns
    value = pc.min_max(first)[end]
    if not others:
        return (value.as_py(),)
    there = pc.equal(first, value)
    return (value.as_py(), *_end([array.filter(there) for array in others], end))
