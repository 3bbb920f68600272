"""Where a keyed table has the rows of some keys: file, position and version, by reading the key's columns alone.

Files and row groups whose bounds are outside of the keys are not read; of the others, the version is read only where a
key was found. A key has one live row at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from cdc_core.errors import DataAtRisk
from cdc_core.history.codes import whole
from cdc_core.lake.data_files import KeyedFiles, LiveFile, OpenFile, deleted_rows, positions_in
from cdc_core.lake.lake_schema import DELETED
from cdc_core.model.places import at_places
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.targets.tables.text_columns import column_text

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """What a table holds under each of some keys. file: a number of `paths`; -1: nothing. row: its position in the
    file. versions: null where there is nothing. deleted: where the row says that it is deleted."""

    paths: tuple[str, ...]
    file: Numbers
    row: Numbers
    versions: pa.BinaryArray
    deleted: Flags

    @classmethod
    def nothing(cls, count: int) -> HeldRows:
        nowhere = np.full(count, -1, np.int64)
        return cls((), nowhere, nowhere, pa.nulls(count, pa.binary()), np.zeros(count, bool))

    @property
    def present(self) -> HeldRows:
        """Without the rows that say that they are deleted."""
        if not self.deleted.any():
            return self
        file, row = (np.where(self.deleted, -1, numbers) for numbers in (self.file, self.row))
        return replace(self, file=file, row=row, versions=self._versions(~self.deleted))

    def tombstones(self, buried: HeldRows) -> pa.BinaryArray:
        """The version of the delete of each key: that of a row that says that it is deleted, or of its tombstone."""
        if not self.deleted.any():
            return buried.versions
        return pc.coalesce(self._versions(self.deleted), buried.versions)

    def _versions(self, kept: Flags) -> pa.BinaryArray:
        return pc.if_else(pa.array(kept), self.versions, pa.scalar(None, pa.binary()))


class SoughtKeys:
    """Keys, to be found among those of row groups: by Arrow's join, or, where each is one whole number, by bisection in
    the group, whose rows are in the order of the key unless another program wrote it; the join takes eight times as
    long."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._keys = _numbered(columns, "ours").sort_by("key0")
        self._first = whole(self._keys.column("key0"))
        self._numbers = np.asarray(self._keys.column("ours"))
        self._whole = len(columns) == 1 and pa.types.is_integer(self._first.type)

    def among(self, theirs: Sequence[pa.Array]) -> tuple[Numbers, Numbers]:
        """(the numbers of those rows of a group that have such a key, and of these keys). theirs: its keys."""
        if self._whole and len(theirs[0]) and not theirs[0].null_count:
            values, sought = np.asarray(theirs[0]), np.asarray(self._first)
            if (values[1:] > values[:-1]).all():
                low, high = np.searchsorted(sought, values[0]), np.searchsorted(sought, values[-1], "right")
                at = np.searchsorted(values, sought[low:high])
                found = values[at] == sought[low:high]
                return at[found], self._numbers[low:high][found]
        rows = _numbered(theirs, "theirs")
        low, high = pc.min_max(rows.column("key0")).values()
        near = self._keys.filter(pc.and_(pc.greater_equal(self._first, low), pc.less_equal(self._first, high)))
        joined = rows.join(near, near.column_names[:-1], join_type="inner", use_threads=False)
        return np.asarray(joined.column("theirs")), np.asarray(joined.column("ours"))


def _numbered(columns: Sequence[pa.Array], number: str) -> pa.Table:
    """Keys for Arrow's join, with the number of each row. It compares bits: 0.0 is not -0.0."""
    alike = [pc.add(column, 0.0) if pa.types.is_floating(column.type) else column for column in columns]
    names = [f"key{at}" for at in range(len(alike))]
    return pa.table([*alike, np.arange(len(alike[0]))], names=[*names, number])


def held_rows(files: KeyedFiles, live: Sequence[LiveFile], keys: pa.Table) -> HeldRows:
    """What the files hold under these keys, which have no nulls. keys: the key's columns, no key twice.

    Raises DataAtRisk (lake.foreign_write) for two rows under one key."""
    if not keys.num_rows or not live:
        return HeldRows.nothing(keys.num_rows)
    count = keys.num_rows
    file, row = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    deleted = np.zeros(count, bool)
    beside = [VERSION_COLUMN, *([DELETED] if files.flagged else [])]
    owners: list[Numbers] = []
    versions: list[pa.BinaryArray] = []
    for found_keys in _found(files, live, keys):
        ours = found_keys.keys
        again = file[ours] >= 0
        row[ours] = np.arange(len(ours))
        again |= row[ours] != np.arange(len(ours))  # twice in this group
        _require_one(files, again, live[found_keys.file], keys, ours)
        file[ours], row[ours] = found_keys.file, found_keys.rows + found_keys.opened.starts[found_keys.group]
        owners.append(ours)
        there = at_places(found_keys.opened.read(found_keys.group, beside), found_keys.rows)
        versions.append(whole(there.column(0)))
        if files.flagged:
            deleted[ours] = np.asarray(there.column(1))
    return HeldRows(tuple(live_file.path for live_file in live), file, row, _spread(count, owners, versions), deleted)


def held_keys(files: KeyedFiles, live: Sequence[LiveFile], keys: pa.Table) -> Flags:
    """Which of these keys the files hold. keys: as in `held_rows`."""
    held = np.zeros(keys.num_rows, bool)
    for found_keys in _found(files, live, keys) if keys.num_rows else ():
        held[found_keys.keys] = True
    return held


@dataclass(frozen=True, slots=True, eq=False)
class _FoundKeys:
    """Keys that a row group has. file: its number. rows: numbers of live rows in the group, and the numbers of their
    `keys`."""

    file: int
    opened: OpenFile
    group: int
    rows: Numbers
    keys: Numbers


def _found(files: KeyedFiles, live: Sequence[LiveFile], keys: pa.Table) -> Iterator[_FoundKeys]:
    columns = [whole(keys.column(name).cast(files.columns.field(name).type)) for name in files.key]
    sought: SoughtKeys | None = None
    first = files.key[0]
    span = tuple(bound.as_py() for bound in pc.min_max(columns[0]).values()) if _ordered(columns[0].type) else None
    for number, file in enumerate(live):
        if _apart(span, (file.low, file.high)):
            continue
        with OpenFile(files, file.path) as opened:
            gone: BitMap | None = None
            for group in opened.groups:
                if _apart(span, opened.span(group, first)):
                    continue
                sought = sought or SoughtKeys(columns)
                rows, ours = sought.among([whole(column) for column in opened.read(group, files.key).columns])
                if len(rows) and gone is None:
                    gone = deleted_rows(files, file) if file.deletes else BitMap()
                if gone:
                    start, end = int(opened.starts[group]), int(opened.starts[group + 1])
                    dead = np.zeros(end - start, bool)
                    dead[positions_in(gone, start, end) - start] = True
                    rows, ours = rows[~dead[rows]], ours[~dead[rows]]
                if len(rows):
                    yield _FoundKeys(number, opened, group, rows, ours)


def rows_at(files: KeyedFiles, live: Sequence[LiveFile], file: Numbers, row: Numbers, names: Sequence[str]) -> pa.Table:
    """Columns of the rows at these places, in this order. file: numbers of the files."""
    parts: list[pa.Table] = []
    owners: list[Numbers] = []
    for number in np.unique(file).tolist():
        mine = np.flatnonzero(file == number)
        with OpenFile(files, live[number].path) as opened:
            group_of = np.searchsorted(opened.starts, row[mine], "right") - 1
            for group in np.unique(group_of).tolist():
                here = mine[group_of == group]
                parts.append(at_places(opened.read(group, names), row[here] - opened.starts[group]))
                owners.append(here)
    if not parts:
        return pa.schema([files.columns.field(name) for name in names]).empty_table()
    order = np.argsort(np.concatenate(owners))
    return at_places(pa.concat_tables(parts), order)


def _spread(count: int, owners: Iterable[Numbers], versions: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    if not versions:
        return pa.nulls(count, pa.binary())
    at = np.full(count, -1, np.int64)
    of_each = np.concatenate(list(owners))
    at[of_each] = np.arange(len(of_each))
    return pa.concat_arrays(versions).take(pa.array(at, mask=at < 0))


def shown_key(keys: pa.Table) -> str:
    """The first of the keys, for people: its values as the source's server writes them, binary ones as hex."""
    (row,) = keys.slice(0, 1).combine_chunks().to_batches()
    return ", ".join(f"{name}={column_text(row, name)[0].as_py()}" for name in keys.column_names)


def _require_one(files: KeyedFiles, twice: Flags, file: LiveFile, keys: pa.Table, at: Numbers) -> None:
    if twice.any():
        key = keys.slice(int(at[np.flatnonzero(twice)[0]]))
        raise DataAtRisk(
            f"Two rows of {files.location} have the key {shown_key(key)}: one of them is in {file.path}.",
            where=files.location,
            code="lake.foreign_write",
            remedy="Lockstep alone writes to this table. Roll it back to the last snapshot whose summary has "
            "lockstep.run (Spark: CALL system.rollback_to_snapshot), and run again",
        )


def _ordered(kind: pa.DataType) -> bool:
    """Whether the bounds that files have of a column can be compared with its values. Those of texts and bytes are cut,
    and compare by their bytes, as Python's do."""
    return not (pa.types.is_floating(kind) or pa.types.is_list(kind) or pa.types.is_boolean(kind))


def _apart(span: tuple[Any, ...] | None, bounds: tuple[Any, Any] | None) -> bool:
    """Whether no value from the one range is in the other; False where that is unknown."""
    if span is None or bounds is None:
        return False
    (low, high), (least, most) = span, bounds
    try:
        return (most is not None and most < low) or (least is not None and least > high)
    except TypeError:  # bounds in Iceberg's form: days and microseconds
        return False
