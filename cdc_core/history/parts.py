"""Events split by key: all events of a key are in one part, so that each part can be judged without the others.

A TRUNCATE has no key: it is in every part, and the first one says that it counts. Rows that came under new keys without
all values are in the part of the keys that they left (`joined`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.codes import Numbers, bytes_of_lists, plain, whole
from cdc_core.history.events import FORMER, INHERITS
from cdc_core.history.rule import TableRule
from cdc_core.model.staged_columns import OP, ROW, SEQ, SOURCE, TRUNCATE

Hashes = npt.NDArray[np.uint64]
_ODD = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Which part a key is in. bounds: by the first column of the key, a whole number, where there are such: each part
    but the first begins with one of them; otherwise by a hash of all columns. Ranges of keys spare later steps work: a
    file then has rows that the target has side by side. joined, root: hashes of keys, in order, and of the key in whose
    part they are."""

    count: int
    bounds: npt.NDArray[np.generic] | None = None
    joined: Hashes | None = None
    root: Hashes | None = None

    @classmethod
    def of_ranges(cls, count: int, keys: npt.NDArray[np.generic]) -> Parts:
        """Ranges with about as many of the keys each; by hash where some keys are too frequent for that."""
        ordered = np.sort(keys)
        bounds = ordered[np.arange(1, count) * len(ordered) // count] if len(ordered) else ordered
        return cls(count, bounds if len(bounds) == count - 1 and (bounds[1:] > bounds[:-1]).all() else None)

    def with_links(self, links: Sequence[tuple[int, int]] | npt.NDArray[np.uint64]) -> Parts:
        """With keys joined that rows without all values moved between. links: `key_links` of all events."""
        pairs = np.asarray(links, np.uint64).reshape(-1, 2)
        if not len(pairs):
            return self
        keys, at = np.unique(pairs, return_inverse=True)
        a, b = at.reshape(-1, 2).T
        root = np.arange(len(keys))
        while True:  # each key takes the least of its neighbours, and that one's, until nothing changes
            least = root.copy()
            np.minimum.at(least, a, root[b])
            np.minimum.at(least, b, root[a])
            least = least[least]
            if (least == root).all():
                return replace(self, bounds=None, joined=keys, root=keys[root])
            root = least

    def of(self, key: Sequence[pa.Array]) -> Numbers:
        """The parts of keys, given the key's columns."""
        if self.bounds is not None:
            first = plain(key[0])
            found: Numbers = np.searchsorted(self.bounds, np.asarray(first.fill_null(0)), side="right")
            return found.astype(np.int64)
        hashes = hashes_of(key)
        if self.joined is not None and self.root is not None:
            at = np.minimum(np.searchsorted(self.joined, hashes), len(self.joined) - 1)
            hashes = np.where(self.joined[at] == hashes, self.root[at], hashes)
        return (hashes % np.uint64(self.count)).astype(np.int64)


def split(events: pa.Table, rule: TableRule, parts: Parts) -> Iterator[tuple[int, pa.Table]]:
    """The events of each part that has some."""
    truncates = np.asarray(whole(pc.equal(events.column(OP), TRUNCATE)))
    if truncates.any():
        of_all = events.filter(pa.array(truncates))
        for part in range(parts.count):
            yield part, of_all
        events = events.filter(pa.array(~truncates))
    yield from by_part(events, parts.of(_key(events, rule)), parts.count)


def by_part(rows: pa.Table, numbers: Numbers, count: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each of `count` parts that has some. numbers: the part of each row."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    cuts = np.cumsum([0, *np.bincount(numbers, minlength=count).tolist()])
    ordered = rows.take(pa.array(order))
    for number in range(count):
        if cuts[number] < cuts[number + 1]:
            yield number, ordered.slice(cuts[number], cuts[number + 1] - cuts[number])


def key_links(events: pa.Table, rule: TableRule) -> npt.NDArray[np.uint64]:
    """The hashes of both keys, a pair a row, of rows that came under a new key without all values."""
    moved = events.filter(events.column(INHERITS))
    order = pc.sort_indices(moved.select([SOURCE, SEQ, ROW, FORMER]).cast(_PLAIN), sort_keys=_BY_CHANGE)
    return hashes_of(_key(moved.take(order), rule)).reshape(-1, 2)


_PLAIN = pa.schema([(SOURCE, pa.string()), (SEQ, pa.int64()), (ROW, pa.int64()), (FORMER, pa.bool_())])
_BY_CHANGE = [(name, "ascending") for name in (SOURCE, SEQ, ROW)]


def _key(events: pa.Table, rule: TableRule) -> list[pa.Array]:
    """The columns that say the part."""
    return [whole(events.column(events.schema.get_field_index(name))) for name in rule.matched]


def hashes_of(columns: Sequence[pa.Array]) -> Hashes:
    """A hash of each row of some columns: the same for values that a key treats as equal."""
    hashes: Hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashes = (hashes ^ _hashes(plain(column))) * _ODD
        hashes ^= hashes >> _SHIFT
    return hashes


def _hashes(column: pa.Array) -> Hashes:
    kind, hashes = column.type, np.zeros(len(column), np.uint64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _hashes_of_bytes(column.cast(pa.binary()))
    elif pa.types.is_list(kind):
        hashes = _hashes_of_bytes(bytes_of_lists(column))
    elif pa.types.is_boolean(kind):
        hashes = np.asarray(column.fill_null(False)).astype(np.uint64)
    else:
        words = _words(pc.add(column, 0.0) if pa.types.is_floating(kind) else column)
        for at in range(words.shape[1]):
            hashes = (hashes ^ words[:, at].astype(np.uint64)) * _ODD
            hashes ^= hashes >> _SHIFT
    hashes[np.asarray(column.is_null())] = 0  # whatever their slots hold
    return hashes


def _words(column: pa.Array) -> npt.NDArray[np.generic]:
    """The bytes of values of a fixed width, as unsigned numbers of at most 8 bytes."""
    width = column.type.bit_width // 8
    word = next(size for size in (8, 4, 2, 1) if width % size == 0)
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros((len(column), 1), np.uint8)
    values = np.frombuffer(buffer, f"u{word}", (column.offset + len(column)) * width // word)
    return values.reshape(-1, width // word)[column.offset :]


def _hashes_of_bytes(column: pa.BinaryArray) -> Hashes:
    """For each value, the sum of its bytes, each times a number that its place gives, and its length."""
    if not len(column):
        return np.zeros(0, np.uint64)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, column.offset + len(column) + 1)[column.offset :].astype(np.int64)
    lengths = np.diff(ends)
    values = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8, ends[-1])[ends[0] :]
    places = (np.arange(len(values)) - np.repeat(ends[:-1] - ends[0], lengths)).astype(np.uint64)
    mixed = (places + np.uint64(1)) * _OTHER_ODD
    mixed = (values.astype(np.uint64) + np.uint64(1)) * (mixed ^ (mixed >> _SHIFT))
    totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    bounds = ends - ends[0]
    summed: Hashes = (totals[bounds[1:]] - totals[bounds[:-1]] + lengths.astype(np.uint64)) * _ODD
    return summed ^ (summed >> _SHIFT)
