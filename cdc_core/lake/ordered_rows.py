"""The rows of a snapshot by ranges of their key, in its order: what a comparison needs of a mirror.

A snapshot is a fixed state, so that ranges that are read one after the other are of one moment. Row groups whose
statistics are outside of a range are not read, and groups that reach into the next range are kept for it. It must keep
true that each live row is in exactly one of the ranges that follow one another, in whatever order its file is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from cdc_core.history.codes import whole
from cdc_core.lake.data_files import (
    KeyedFiles,
    LiveFile,
    OpenFile,
    bitmap,
    deleted_rows,
    flagged_rows,
    live_rows,
    without,
)

KEPT_BYTES = 64 << 20
"""Of row groups that reach into the next range."""
MOST_DEPTH = 64
"""Row groups that may have one key: with more of them, each range would read most of the table. Files that runs write
stay far below."""

Flags = npt.NDArray[np.bool_]
Mask = Callable[[pa.Table], Flags]
"""Takes columns of the key, and says which of the rows are wanted."""
Apart = Callable[[tuple[Any, ...], tuple[Any, ...]], bool]
"""Takes the first values of keys, as `comparable` has them, not above and not below any key of some rows. Returns
whether none of these rows is wanted."""


def comparable(values: pa.Array) -> pa.Array:
    """Values in a form that is compared with literals of a server: dates and times as texts with all digits, because
    the server's may be none that Arrow has (2024-02-31); decimals with all digits."""
    kind = values.type
    if pa.types.is_date(kind):
        return values.cast(pa.string())
    if pa.types.is_timestamp(kind):
        return values.cast(pa.timestamp("us")).cast(pa.string())
    if pa.types.is_decimal(kind):
        return values.cast(pa.decimal128(38, kind.scale))
    return values.cast(pa.int8()) if pa.types.is_boolean(kind) else values


def beyond(keys: Sequence[pa.Array], bound: Sequence[Any], down: Sequence[bool]) -> tuple[Flags, Flags]:
    """(which keys come after the bound, which are equal to it). keys: columns, as `comparable` has them. down: for each
    column, whether smaller values come after."""
    after, equal = np.zeros(len(keys[0]), bool), np.ones(len(keys[0]), bool)
    for column, value, falls in zip(keys, bound, down, strict=True):
        scalar = pa.scalar(value, column.type) if pa.types.is_decimal(column.type) else pa.scalar(value)
        further = pc.less(column, scalar) if falls else pc.greater(column, scalar)
        after |= equal & np.asarray(further.fill_null(False))
        equal &= np.asarray(pc.equal(column, scalar).fill_null(False))
    return after, equal


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Keys after `above` up to `through`, as `comparable` has them; () for all, on either side. down: as of
    `beyond`."""

    above: tuple[Any, ...] = ()
    through: tuple[Any, ...] = ()
    down: tuple[bool, ...] = ()

    def mask(self, keys: pa.Table) -> Flags:
        columns = [comparable(whole(column)) for column in keys.columns]
        wanted = np.ones(keys.num_rows, bool)
        if self.above:
            wanted &= beyond(columns, self.above, self.down)[0]
        if self.through:
            wanted &= ~beyond(columns, self.through, self.down)[0]
        return wanted

    def apart(self, low: tuple[Any, ...], high: tuple[Any, ...]) -> bool:
        upwards = next((at for at, falls in enumerate(self.down) if falls), len(self.down))
        low, high = low[:upwards], high[:upwards]
        below = bool(self.above) and high < self.above[: len(high)]
        return below or (bool(self.through) and low > self.through[: len(low)])


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of a file, by their numbers. low, high: the first values of its keys, as of `Apart`; () where they
    are not known."""

    file: int
    number: int
    low: tuple[Any, ...]
    high: tuple[Any, ...]


class SnapshotRows:
    """live: the files of the snapshot. flagged: also rows that say that they are deleted. Files are opened only while
    they are read."""

    def __init__(self, files: KeyedFiles, live: Sequence[LiveFile], *, flagged: bool = False) -> None:
        self._files, self._live, self._hides = files, tuple(live), files.flagged and not flagged
        self._gone: dict[int, BitMap] = {}
        self._kept: OrderedDict[tuple[_Group, tuple[str, ...]], pa.Table] = OrderedDict()

    def count(self) -> int:
        return sum(file.rows - len(self._gone_of(number)) for number, file in enumerate(self._live))

    @cached_property
    def deep(self) -> bool:
        """Whether the table should be read as a whole, because others have written its rows in another order."""
        known = sorted(group.low for group in self._groups if group.low)
        highs = sorted(group.high for group in self._groups if group.high)
        depths = [at + 1 - bisect_left(highs, low) for at, low in enumerate(known)]
        return max(depths, default=0) + len(self._groups) - len(known) > MOST_DEPTH

    def all(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Every row, in the order of the files. names: of columns."""
        for number, file in enumerate(self._live):
            yield from live_rows(self._files, file, self._gone_of(number), names)

    def between(self, names: Sequence[str], span: KeySpan) -> pa.Table:
        """The rows of a span, in the order of the key. names: of columns, those of the key among them."""
        tables = list(self.select(names, span.mask, span.apart))
        if not tables:
            return pa.schema([self._files.columns.field(name) for name in names]).empty_table()
        rows = pa.concat_tables(tables)
        down = span.down or (False,) * len(self._files.key)
        keys = [
            (name, "descending" if falls else "ascending") for name, falls in zip(self._files.key, down, strict=True)
        ]
        return rows.take(pc.sort_indices(rows, sort_keys=keys))

    def select(self, names: Sequence[str], mask: Mask, apart: Apart) -> Iterator[pa.Table]:
        """The wanted rows, group by group. names: of columns, those of the key among them."""
        for group in self._groups:
            if group.low and apart(group.low, group.high):
                continue
            kept = self._kept.get((group, tuple(names)))
            keys = self._read(group, self._files.key) if kept is None else kept.select(list(self._files.key))
            wanted = mask(keys)
            if wanted.any():
                rows = self._read(group, names) if kept is None else kept
                yield rows.filter(pa.array(wanted))
                self._keep(group, tuple(names), rows, used_up=bool(wanted.all()))

    def _keep(self, group: _Group, names: tuple[str, ...], rows: pa.Table, *, used_up: bool) -> None:
        self._kept.pop((group, names), None)
        if not used_up:
            self._kept[group, names] = rows
        size_bytes = sum(kept.nbytes for kept in self._kept.values())
        while size_bytes > KEPT_BYTES:
            size_bytes -= self._kept.popitem(last=False)[1].nbytes

    def _read(self, group: _Group, names: Sequence[str]) -> pa.Table:
        with OpenFile(self._files, self._live[group.file].path) as opened:
            rows = opened.read(group.number, names)
            return without(rows, int(opened.starts[group.number]), self._gone_of(group.file))

    def _gone_of(self, number: int) -> BitMap:
        if number not in self._gone:
            file = self._live[number]
            self._gone[number] = deleted_rows(self._files, file) if file.deletes else BitMap()
            if self._hides:
                self._gone[number] |= flagged_rows(self._files, file)
        return self._gone[number]

    @cached_property
    def _groups(self) -> list[_Group]:
        groups = []
        for number, file in enumerate(self._live):
            with OpenFile(self._files, file.path) as opened:
                groups += [_Group(number, group, *_bounds(self._files, opened, group)) for group in opened.groups]
        return groups


def wanted_rows(files: KeyedFiles, path: str, mask: Mask, apart: Apart) -> BitMap:
    """The positions of the wanted rows of a file, whether they are deleted or not."""
    wanted = BitMap()
    with OpenFile(files, path) as opened:
        for group in opened.groups:
            low, high = _bounds(files, opened, group)
            if not (low and apart(low, high)):
                here = np.flatnonzero(mask(opened.read(group, files.key))) + int(opened.starts[group])
                wanted |= bitmap(here)
    return wanted


def _bounds(files: KeyedFiles, opened: OpenFile, group: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The least and the greatest value of each column of the key in a row group: no key comes before, or after, all of
    them together."""
    low: list[Any] = []
    high: list[Any] = []
    for name in files.key:
        span = opened.span(group, name)
        if span is None:
            break
        least, most = comparable(pa.array(span, files.columns.field(name).type)).to_pylist()
        low.append(least)
        high.append(most)
    return tuple(low), tuple(high)
