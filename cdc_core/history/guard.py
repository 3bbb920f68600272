"""The guard: what a winner does at a target that holds something under its key already. No older change touches a newer
row, and a deleted key stays deleted for all that is older.

A MySQL target compares once more, in SQL, in the transaction that writes (targets/writing/guard_sql.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.merged_columns import RowClass
from cdc_core.model.version import newer_or_equal, newer_or_equal_each, origin_of, other_origin


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """What the target holds under one key. Usually exactly one of `row` and `tombstone`; neither: never seen.

    row:       version of the row; b"" when the row is there but Lockstep never wrote it; None when it is not.
    tombstone: version of the delete or truncate that removed it, or None.
    fresher:   of the freshness column, if the table has one: 1 ours is greater, 0 equal, -1 less.
    values:    of the row, those that were asked for.
    """

    row: bytes | None = None
    tombstone: bytes | None = None
    fresher: int = 0
    values: Mapping[str, str | None] = field(default_factory=dict)


class HeldVersions(Sequence[TargetVersion]):
    """What a target holds under each of several keys.

    rows, tombstones: as in TargetVersion, null for None. fresher: of each. values: by the number of the key.
    """

    def __init__(
        self,
        rows: pa.BinaryArray,
        tombstones: pa.BinaryArray,
        fresher: npt.NDArray[np.int64],
        values: Mapping[int, Mapping[str, str | None]] = MappingProxyType({}),
    ) -> None:
        self.rows, self.tombstones, self.fresher, self.values = rows, tombstones, fresher, values

    @classmethod
    def nothing(cls, count: int) -> HeldVersions:
        return cls(pa.nulls(count, pa.binary()), pa.nulls(count, pa.binary()), np.zeros(count, np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        return TargetVersion(
            self.rows[at].as_py(), self.tombstones[at].as_py(), int(self.fresher[at]), self.values.get(at, {})
        )


def newest_tombstone(tombstone: bytes | None, version: bytes, truncates: Iterable[bytes]) -> bytes | None:
    """The newest tombstone that concerns a change with this version. truncates: tombstones of all keys."""
    newest = tombstone
    for truncate in truncates:
        if other_origin(version, truncate):
            continue
        if newest is None or other_origin(version, newest) or newer_or_equal(truncate, newest):
            newest = truncate
    return newest


def without_removed(held: TargetVersion, removing: Sequence[bytes]) -> TargetVersion:
    """What the target will hold once truncates of the run, of these versions, have removed older rows."""
    gone = held.row is not None and any(
        newer_or_equal(truncate, held.row) for truncate in removing if origin_of(truncate) in (b"", origin_of(held.row))
    )
    return replace(held, row=None, fresher=0) if gone else held


_BURIED = "the key was deleted by a newer change"
_FRESHER = "the target's freshness column is greater"
_NEWER = "the target has a newer version of the row"
_SAME_KEY = "the same change has given the row a key that is equal in the target"
_WORDS = pa.array([*RowClass, "", _BURIED, _FRESHER, _NEWER, _SAME_KEY], pa.string())
_NUMBERS = {word: number for number, word in enumerate(_WORDS.to_pylist())}


def classify(held: TargetVersion, version: bytes, *, upsert: bool, born: bool, by_column: bool) -> tuple[RowClass, str]:
    """What a winner will do at the target, and why if it is stale.

    born:      the row came to life within the run (insert, snapshot, arrival under this key).
    by_column: the table has a freshness column. It decides upserts over a row; the version decides the rest.
    """
    buried = held.tombstone is not None and not other_origin(version, held.tombstone)
    if buried and held.tombstone is not None and not newer_or_equal(version, held.tombstone):
        return RowClass.STALE, _BURIED
    if held.row is None:
        return (RowClass.INSERT if born else RowClass.REVIVED, "") if upsert else (RowClass.ABSENT, "")
    if upsert and by_column and held.fresher:
        return (RowClass.UPDATE, "") if held.fresher > 0 else (RowClass.STALE, _FRESHER)
    if not newer_or_equal(version, held.row):
        return RowClass.STALE, _NEWER
    if not upsert and version == held.row:
        return RowClass.STALE, _SAME_KEY
    return (RowClass.UPDATE, "") if upsert else (RowClass.DELETE, "")


def classify_each(
    held: HeldVersions,
    versions: pa.BinaryArray,
    upserts: npt.NDArray[np.bool_],
    born: npt.NDArray[np.bool_],
    *,
    by_column: bool,
    removing: Sequence[bytes],
) -> tuple[pa.StringArray, pa.StringArray]:
    """`classify` of many winners: the class of each, and the reason of each that is stale.

    removing: versions of truncates of the run, which remove older rows of the target first.
    """
    there = np.asarray(held.rows.is_valid())
    newer = np.asarray(newer_or_equal_each(versions, held.rows).fill_null(True))
    equal = np.asarray(pc.equal(versions, held.rows).fill_null(False))
    classes = np.full(len(there), _NUMBERS[RowClass.ABSENT])
    classes[upserts] = _NUMBERS[RowClass.REVIVED]
    classes[upserts & born] = _NUMBERS[RowClass.INSERT]
    classes[there] = _NUMBERS[RowClass.DELETE]
    classes[there & upserts] = _NUMBERS[RowClass.UPDATE]
    stale = there & (~newer | (equal & ~upserts))
    # One by one: what has a tombstone, what a column decides, and what a truncate may remove.
    single = np.asarray(held.tombstones.is_valid()) | stale
    if by_column:
        single |= held.fresher != 0
    if removing:
        single |= there
    reasons = np.full(len(there), _NUMBERS[""])
    for at in np.flatnonzero(single).tolist():
        version = without_removed(held[at], removing)
        found, reason = classify(
            version, versions[at].as_py(), upsert=bool(upserts[at]), born=bool(born[at]), by_column=by_column
        )
        classes[at], reasons[at] = _NUMBERS[found], _NUMBERS[reason]
    return _WORDS.take(pa.array(classes)), _WORDS.take(pa.array(reasons, mask=reasons == _NUMBERS[""]))
