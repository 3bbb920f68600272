"""Numbers for values: equal numbers for values that a key, or a row that is counted, treats as equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.staged_columns import LiteralEntries

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NEAR = 1 << 30
"""Integers no farther apart are numbers by themselves. Those of two columns together still fit into 64 bits."""
_MOST = 1 << 62


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array."""
    if isinstance(column, pa.Array):
        return column
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def plain(values: pa.Array) -> pa.Array:
    """Without a dictionary."""
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def filled(numbers: pa.Array) -> Numbers:
    """Whole numbers; -1: null. They may not be altered."""
    as_int64 = numbers.cast(pa.int64())
    found: Numbers = (pc.fill_null(as_int64, -1) if as_int64.null_count else as_int64).to_numpy(zero_copy_only=False)
    return found


def codes(values: pa.Array, *, bits: bool = False) -> Numbers:
    """A number for each value; -1: null. bits: -0.0 and 0.0 are different values, as in rows that are counted."""
    kind = values.type
    if pa.types.is_list(kind):
        values = bytes_of_lists(values)
    elif pa.types.is_floating(kind):
        values = values.view(pa.int64() if kind.bit_width == 64 else pa.int32()) if bits else pc.add(values, 0.0)
    elif pa.types.is_integer(kind):
        low, high = (bound.as_py() for bound in pc.min_max(values).values())
        if low is not None and high - low < _NEAR and high < 1 << 63:
            return filled(pc.subtract(values.cast(pa.int64()), pa.scalar(low, pa.int64())))
    coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    return filled(coded.indices)


def bytes_of_lists(values: pa.ListArray) -> pa.BinaryArray:
    """The bits of each list of numbers."""
    width = values.type.value_type.bit_width // 8
    numbers = values.values
    offsets = (np.asarray(values.offsets) + numbers.offset) * width
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), numbers.buffers()[1]]
    made = pa.Array.from_buffers(pa.binary(), len(values), buffers)
    return pc.if_else(values.is_valid(), made, pa.scalar(None, pa.binary()))


def exact_codes(values: pa.Array, literal: pa.MapArray, name: str) -> Numbers:
    """As `codes`; a value of which there is an exact text (`_cdc_literal`) is known by this text: a date that is none,
    the error value of an ENUM, bytes that are not text."""
    found = codes(values)
    if literal.null_count == len(literal):
        return found
    entries = LiteralEntries.of(literal)
    entries = entries.where(entries.among([name]))
    if len(entries.row):
        found = found.copy()
        found[entries.row] = int(found.max(initial=0)) + 1 + codes(entries.text)
    return found


def numbered(columns: Sequence[Numbers]) -> Numbers:
    """One number for each different combination."""
    found = columns[0] + 1  # -1: no value
    for more in columns[1:]:
        span = int(more.max(initial=0)) + 2
        if int(found.max(initial=0)) >= _MOST // span:
            found = _dense(found)
            if int(found.max(initial=0)) >= _MOST // span:
                more = _dense(more)
                span = int(more.max(initial=0)) + 2
        found = found * span + more + 1
    return found


def _dense(numbers: Numbers) -> Numbers:
    _, found = np.unique(numbers, return_inverse=True)
    return found


@dataclass(frozen=True, slots=True)
class Coded:
    """Texts by number; -1: null. The order of the numbers is that of the texts' bytes."""

    texts: Sequence[str]
    codes: Numbers

    @classmethod
    def of(cls, column: pa.Array) -> Coded:
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        return cls.numbered(coded.dictionary.to_pylist(), filled(coded.indices))

    @classmethod
    def numbered(cls, given: Sequence[str], numbers: Numbers) -> Coded:
        """From texts in any order, some perhaps twice or unused, and their numbers; -1: null."""
        used = np.flatnonzero(np.bincount(numbers + 1, minlength=len(given) + 1)[1:])
        texts = sorted({given[code] for code in used.tolist()}, key=str.encode)
        number = {text: at for at, text in enumerate(texts)}
        return cls(texts, np.array([*(number.get(text, -1) for text in given), -1], np.int64)[numbers])

    def has(self, text: str) -> Flags:
        """Which have this text."""
        found: Flags = self.codes == (self.texts.index(text) if text in self.texts else -2)
        return found

    def array(self, rows: Numbers) -> pa.Array:
        """The texts of some of them."""
        return pa.array(self.texts, pa.string()).take(pa.array(self.codes[rows]))


@dataclass(slots=True)
class Runs:
    """Rows in an order, cut into groups. order: their numbers. starts: of each group, places in the order."""

    order: Numbers
    starts: Numbers

    @classmethod
    def of(cls, groups: Numbers, *ascending: Numbers) -> Runs:
        """ascending: what orders the rows of a group, the most significant first."""
        if _ascending(*ascending):
            order = np.argsort(groups, kind="stable")  # as they are staged, mostly
        else:
            order = np.lexsort((*reversed(ascending), groups))
        sorted_ = groups[order]
        return cls(order, np.flatnonzero(np.append(True, sorted_[1:] != sorted_[:-1])) if len(order) else order)

    @property
    def ends(self) -> Numbers:
        """The place of the last row of each group."""
        return np.append(self.starts[1:], len(self.order)) - 1

    def first(self) -> Numbers:
        return self.order[self.starts]

    def last(self) -> Numbers:
        return self.order[self.ends] if len(self.order) else self.order

    def last_where(self, flags: Flags) -> Numbers:
        """The last row of each group that has the flag; -1: none."""
        return self._rows(np.maximum.reduceat(self._marked(flags), self.starts) if len(self.order) else self.order)

    def so_far(self, flags: Flags) -> Numbers:
        """For each row, the last one of its group, up to itself, that has the flag; -1: none."""
        marked = np.maximum.accumulate(self._marked(flags))
        begins = np.repeat(self.starts, self.ends - self.starts + 1)
        found = np.empty(len(self.order), np.int64)
        found[self.order] = self._rows(np.where(marked >= begins, marked, -1))
        return found

    def group_of(self) -> Numbers:
        """The group of each row."""
        found = np.empty(len(self.order), np.int64)
        found[self.order] = np.repeat(np.arange(len(self.starts)), self.ends - self.starts + 1)
        return found

    def total(self, numbers: npt.NDArray[np.generic]) -> Numbers:
        counted = numbers.astype(np.int64)[self.order]
        return np.add.reduceat(counted, self.starts) if len(counted) else counted

    def least(self, numbers: Numbers) -> Numbers:
        return np.minimum.reduceat(numbers[self.order], self.starts) if len(numbers) else numbers

    def most(self, numbers: Numbers) -> Numbers:
        return -self.least(-numbers)

    def any(self, flags: Flags) -> Flags:
        return self.total(flags) > 0

    def members(self, group: int) -> list[int]:
        found: list[int] = self.order[self.starts[group] : self.ends[group] + 1].tolist()
        return found

    def _marked(self, flags: Flags) -> Numbers:
        return np.where(flags[self.order], np.arange(len(self.order)), -1)

    def _rows(self, places: Numbers) -> Numbers:
        return np.where(places >= 0, self.order[places], -1) if len(self.order) else places


def _ascending(first: Numbers, *more: Numbers) -> bool:
    """Whether rows are in the order of these numbers, the most significant first."""
    step = np.diff(first)
    if not more:
        return bool((step >= 0).all())
    same = step == 0
    return bool((step >= 0).all()) and (not same.any() or bool((np.diff(more[0])[same] >= 0).all() and len(more) == 1))
