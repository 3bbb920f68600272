"""How rows lie along the keys of a table, and how large they are there: from a few dozen rows at many places.

Rows that grow with their key, and keys that lie more densely in one place than in another, make every estimate wrong
that takes the rows read so far for typical. A look at a place costs the server one descent of the index. Only keys
whose first column is a whole number can be looked up between the least and the greatest; those of other tables (texts,
dates) get no profile, and what was read so far must do.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cdc_core.connections import quote
from cdc_core.model.schema import INTEGER_BYTES, TableSchema
from cdc_core.results import TableReader
from cdc_core.snapshot.chunks import from_table
from cdc_core.snapshot.keys import Key, key_columns, ordered

_FIRST_PLACES, _SPLITS = 32, 64
"""The stretch whose ends differ by the most rows is halved so many times."""
_SURE = 400
"""Halving ends when no stretch has more than this part of all rows in doubt: keys that lie evenly need none."""
_MOST_ROWS, _LEAST_ROWS = 64, 8
"""Read at a place."""
_READ_BYTES = 16 << 20
"""In all places together, about."""


@dataclass(frozen=True, slots=True)
class Profile:
    """starts: where each stretch of the first key column begins, ascending; then the greatest one plus 1. rows: how
    many each stretch has, about. row_bytes: of the values of a row there."""

    starts: Sequence[int]
    rows: Sequence[float]
    row_bytes: Sequence[float]

    @property
    def total(self) -> float:
        """All rows."""
        return sum(self.rows)

    @property
    def total_bytes(self) -> float:
        return self.bytes_through(self.starts[-1])

    def rows_through(self, key: int) -> float:
        """Up to this key."""
        at = bisect_right(self.starts, key) - 1
        if at < 0:
            return 0.0
        if at >= len(self.rows):
            return self.total
        inside = (key + 1 - self.starts[at]) / (self.starts[at + 1] - self.starts[at])
        return sum(self.rows[:at]) + self.rows[at] * inside

    def row_bytes_after(self, key: int) -> float:
        """Of the next rows after this key, how large one is."""
        at = bisect_right(self.starts, key + 1) - 1
        return self.row_bytes[max(0, min(at, len(self.row_bytes) - 1))]

    def bytes_through(self, key: int) -> float:
        """Of the values of the rows up to this key."""
        at = bisect_right(self.starts, key) - 1
        whole = sum(rows * size for rows, size in zip(self.rows[: max(0, at)], self.row_bytes, strict=False))
        if not 0 <= at < len(self.rows):
            return whole
        inside = (key + 1 - self.starts[at]) / (self.starts[at + 1] - self.starts[at])
        return whole + self.rows[at] * inside * self.row_bytes[at]


def can_have_profile(schema: TableSchema, row_bytes: float) -> bool:
    """Whether keys can be looked up between the ends, and rows are small enough to look at some of them.

    row_bytes: of a row, about. Raises what `key_columns` raises.
    """
    columns = key_columns(schema) if schema.key else ()
    return bool(columns) and columns[0].type.base in INTEGER_BYTES and _rows_at_a_place(row_bytes) >= _LEAST_ROWS


def _rows_at_a_place(row_bytes: float) -> int:
    return min(_MOST_ROWS, int(_READ_BYTES / (_FIRST_PLACES + _SPLITS) / max(1.0, row_bytes)))


def profile_of(reader: TableReader, schema: TableSchema, least: Key, limit: Key, *, row_bytes: float) -> Profile | None:
    """None for a table whose keys cannot be looked up between its ends, or whose rows are too few or too large for it.

    row_bytes: of a row, about. Raises what reading raises.
    """
    if not can_have_profile(schema, row_bytes) or not (least and limit):
        return None
    first, after = int(least[0]), int(limit[0]) + 1
    if after - first < _FIRST_PLACES * _MOST_ROWS:
        return None
    look = _Look(reader, schema, key_columns(schema)[0].name, after, _rows_at_a_place(row_bytes))
    starts = [first + (after - first) * at // _FIRST_PLACES for at in range(_FIRST_PLACES)]
    places = [look.at(start) for start in starts]
    places.append(replace(places[-1], key=after))
    doubts = [_doubt(*pair) for pair in pairwise(places)]
    heapq.heapify(doubts)
    rows = sum((end.key - begin.key) * (begin.density + end.density) / 2 for begin, end in pairwise(places))
    for _ in range(_SPLITS):
        doubt, _, begin, end = doubts[0]
        if -doubt * _SURE < rows:
            break
        if end.key - begin.key < 2 * _MOST_ROWS or look.read_bytes > 2 * _READ_BYTES:
            break
        middle = look.at((begin.key + end.key) // 2)
        heapq.heapreplace(doubts, _doubt(begin, middle))
        heapq.heappush(doubts, _doubt(middle, end))
    pairs = sorted(((begin, end) for _, _, begin, end in doubts), key=lambda pair: pair[0].key)
    return Profile(
        [*(begin.key for begin, _ in pairs), after],
        [(end.key - begin.key) * (begin.density + end.density) / 2 for begin, end in pairs],
        [(begin.row_bytes + end.row_bytes) / 2 for begin, end in pairs],
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """density: rows for each key from this one on. row_bytes: of a row there."""

    key: int
    density: float
    row_bytes: float


def _doubt(begin: _Place, end: _Place) -> tuple[float, int, _Place, _Place]:
    """The stretch between two places, so ordered that the one whose rows are known least comes first."""
    densities = begin.density, end.density
    doubt = (end.key - begin.key) * (max(densities) - min(densities) + max(densities) / 50)
    return -doubt, begin.key, begin, end


@dataclass(slots=True)
class _Look:
    """Reads some rows from a key on. after: the greatest key plus 1. wanted: rows at a place."""

    reader: TableReader
    schema: TableSchema
    column: str
    after: int
    wanted: int
    read_bytes: int = 0

    def at(self, key: int) -> _Place:
        name = quote(self.column)
        tail = (
            f"{from_table(self.schema)} WHERE {name} >= {key} AND {name} < {self.after} "
            f"ORDER BY {ordered(self.schema)} LIMIT {self.wanted}"
        )
        rows = size_bytes = 0
        last = key
        for batch in self.reader.batches(tail):
            rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
            last = int(batch.column(self.column)[-1].as_py())
        self.read_bytes += size_bytes
        reached = last + 1 if rows == self.wanted else self.after
        return _Place(key, rows / max(1, reached - key), size_bytes / max(1, rows))
