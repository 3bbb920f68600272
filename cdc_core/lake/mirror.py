"""What a run's winners do to a mirror and to its tombstones: the guard of the history, at a lake.

No older change touches a newer row, and a deleted key stays deleted for all that is older, in any order of runs: the
version of each present row is in the mirror, that of each deleted key in the table of tombstones. A mirror that keeps
deleted rows has the versions of deletes itself, and loses no key; its tombstones are those of TRUNCATEs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from cdc_core.errors import DataAtRisk, Refused
from cdc_core.history.codes import whole
from cdc_core.history.guard import HeldVersions, classify_each, newest_tombstone
from cdc_core.lake.absent_values import filled, parts_to_fill
from cdc_core.lake.data_files import KeyedFiles, LiveFile, bitmap
from cdc_core.lake.held_rows import Numbers, held_rows, shown_key
from cdc_core.lake.lake_schema import DELETED, DELETED_AT
from cdc_core.model.merged_columns import BORN, CLASS, ENDED_ORIGINS, LIVE_ORIGINS, REASON, MergedOp, RowClass
from cdc_core.model.places import rows_where
from cdc_core.model.row_versions import VERSION_PARTS, version_bytes
from cdc_core.model.staged_columns import ABSENT, LITERAL, OP, TS, LiteralEntries
from cdc_core.model.version import (
    VERSION_COLUMN,
    latest_places,
    name_in,
    newer_or_equal,
    newer_or_equal_each,
    origin_of,
    other_names,
    other_origin,
)

HELD_FILE, HELD_ROW = "_cdc_held_file", "_cdc_held_row"
"""In filtered/: where the mirror has the row; null: it has none."""
TOMB_FILE, TOMB_ROW = "_cdc_tomb_file", "_cdc_tomb_row"
"""In filtered/: where the key's tombstone is."""
SAME = "_cdc_same"
"""In filtered/: whether mirror and tombstones have exactly this change already, or a later TRUNCATE of its log."""


@dataclass(frozen=True)
class Mirror:
    """A mirror and its tombstones at the snapshot that a run is based on. truncates: versions of tombstones without a
    key."""

    table: str
    rows: KeyedFiles
    live: tuple[LiveFile, ...]
    tombstones: KeyedFiles
    buried: tuple[LiveFile, ...]
    truncates: tuple[bytes, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        return self.rows.key


def judged(mirror: Mirror, winners: pa.Table, removing: Sequence[bytes]) -> Iterator[tuple[pa.Table, dict[str, int]]]:
    """Some at a time, (the winners with class, reason, and places; by source, the latest place in its log of what is
    held instead of stale ones); at least once. removing: versions of the run's truncates.

    Raises DataAtRisk (target.shared_key, lake.foreign_write, target.absent_values), Refused (config.table_rule)."""
    for low, high in pairwise(parts_to_fill(mirror.live, winners)):
        yield _judged(mirror, winners.slice(low, high - low), removing)


def _judged(mirror: Mirror, winners: pa.Table, removing: Sequence[bytes]) -> tuple[pa.Table, dict[str, int]]:
    truncates = pc.equal(winners.column(OP), MergedOp.TRUNCATE)
    keyless = np.asarray(whole(truncates))
    rows = rows_where(winners, pc.invert(truncates))
    _require_keys(mirror, rows)
    _require_one_live(mirror, rows)
    keys = rows.select(mirror.key)
    there, buried = held_rows(mirror.rows, mirror.live, keys), held_rows(mirror.tombstones, mirror.buried, keys)
    held, entombed = there.present, there.tombstones(buried)
    versions = versions_of_rows(rows)
    upserts = np.asarray(whole(pc.equal(rows.column(OP), MergedOp.UPSERT)))
    held_versions = HeldVersions(
        held.versions, _tombstones(entombed, versions, mirror.truncates), np.zeros(len(versions), np.int64)
    )
    classes, reasons = classify_each(
        held_versions,
        versions,
        upserts,
        np.asarray(whole(rows.column(BORN).fill_null(False))),
        by_column=False,
        removing=removing,
    )
    stale = np.asarray(pc.equal(classes, RowClass.STALE))
    _require_own_origin(mirror, rows, held.versions, versions, stale)
    # A row may be under a key with the very tombstone of its delete: where the mirror alone was rolled back.
    deleted = np.asarray(_equal(versions, entombed)) & ~np.asarray(held.versions.is_valid())
    same_row = np.where(upserts, np.asarray(_equal(versions, held.versions)), deleted)
    if ABSENT in rows.column_names:
        due = (upserts | mirror.rows.flagged) & ~stale & ~same_row
        winners = _with_rows(winners, filled(mirror.rows, mirror.live, rows, held, due), keyless)
    of_winners = _Spread(winners.num_rows, np.flatnonzero(~keyless))
    same = of_winners.flags(same_row)
    for at in np.flatnonzero(keyless).tolist():
        same[at] = not fresh_truncates(mirror, versions_of_rows(winners.slice(at, 1)).to_pylist())
    instead = [column.filter(pa.array(stale)) for column in (held.versions, entombed)]
    noted = _noted(
        winners,
        classes=of_winners.texts(classes).fill_null(RowClass.DELETE),
        reasons=of_winners.texts(reasons),
        same=same,
        held=(there.paths, of_winners.numbers(there.file), of_winners.numbers(there.row)),
        tombs=(buried.paths, of_winners.numbers(buried.file), of_winners.numbers(buried.row)),
    )
    return noted, latest_places(pa.concat_arrays(instead))


def _with_rows(winners: pa.Table, rows: pa.Table, keyless: npt.NDArray[np.bool_]) -> pa.Table:
    """The winners with these rows in place of those that have a key."""
    if rows.num_rows == winners.num_rows:
        return rows
    place = np.zeros(winners.num_rows, np.int64)
    place[~keyless] = np.arange(rows.num_rows)
    place[keyless] = rows.num_rows + np.arange(int(keyless.sum()))
    return pa.concat_tables([rows, winners.filter(pa.array(keyless))]).take(pa.array(place))


def fresh_truncates(mirror: Mirror, versions: Iterable[bytes]) -> list[bytes]:
    """Those of these truncates that the mirror does not know. It has lost all that is older than those that it knows,
    and takes nothing of it any more."""
    return [
        version
        for version in versions
        if not any(
            name_in(version) == name_in(truncate) and newer_or_equal(truncate, version) for truncate in mirror.truncates
        )
    ]


def versions_of_rows(rows: pa.Table) -> pa.BinaryArray:
    """The version of each merged row."""
    parts = rows.select([name for name in VERSION_PARTS if name in rows.column_names])
    batch = parts.combine_chunks().to_batches()
    return version_bytes(batch[0]) if batch else pa.array([], pa.binary())


def _equal(versions: pa.BinaryArray, held: pa.BinaryArray) -> pa.BooleanArray:
    return pc.equal(versions, held).fill_null(False)


def _tombstones(held: pa.BinaryArray, versions: pa.BinaryArray, truncates: Sequence[bytes]) -> pa.BinaryArray:
    """The newest tombstone of each key, where those without a key matter: a change that is newer asks for none."""
    older = np.zeros(len(versions), bool)
    for truncate in truncates:
        older |= ~np.asarray(newer_or_equal_each(versions, pa.array([truncate] * len(versions), pa.binary())))
    if not older.any():
        return held
    found = held.to_pylist()
    for at in np.flatnonzero(older).tolist():
        found[at] = newest_tombstone(found[at], versions[at].as_py(), truncates)
    return pa.array(found, pa.binary())


def _require_keys(mirror: Mirror, rows: pa.Table) -> None:
    """Raises Refused (config.table_rule) for a key that its type does not hold: its row could not be found again."""
    literal = whole(rows.column(LITERAL))
    if literal.null_count < len(literal):
        entries = LiteralEntries.of(literal)
        entries = entries.where(entries.among(list(mirror.key)))
        if len(entries.row):
            raise Refused(
                f"A key of {mirror.table} has the value {entries.text[0].as_py()!r} in {entries.name[0].as_py()}, "
                "which its type in the lake does not hold.",
                where=f"{mirror.table}, key ({', '.join(mirror.key)})",
                code="config.table_rule",
                remedy="correct the row on the source, leave the table out of the target's tables, or set `key` in its "
                "rule to columns that identify a row otherwise",
            )


def _require_one_live(mirror: Mirror, rows: pa.Table) -> None:
    if (
        LIVE_ORIGINS in rows.column_names
        and (several := rows.filter(pc.greater(rows.column(LIVE_ORIGINS), 1))).num_rows
    ):
        raise _shared(mirror, several.select(mirror.key).slice(0, 1))


def _require_own_origin(
    mirror: Mirror, rows: pa.Table, held: pa.BinaryArray, versions: pa.BinaryArray, stale: npt.NDArray[np.bool_]
) -> None:
    """A row of another source table is under the key, and nothing of the run says that it is gone."""
    if ENDED_ORIGINS not in rows.column_names:
        return
    ended = rows.column(ENDED_ORIGINS).to_pylist()
    for at in np.flatnonzero(np.asarray(other_names(versions, held))).tolist():
        there, mine = held[at].as_py(), versions[at].as_py()
        if not stale[at] and other_origin(mine, there):
            if origin_of(there).decode() in (ended[at] or "").split(","):
                continue
            raise _shared(mirror, rows.select(mirror.key).slice(at, 1))


def _shared(mirror: Mirror, key: pa.Table) -> DataAtRisk:
    return DataAtRisk(
        f"Two source tables have a row of {mirror.table} with the key {shown_key(key)}.",
        where=mirror.table,
        code="target.shared_key",
        remedy="add a column to the key that tells the source tables apart, or give them different logical names with "
        "`routes`; shared_keys: newest lets the newest change count",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Spread:
    """From the rows with a key to all winners."""

    count: int
    at: Numbers

    def numbers(self, values: Numbers) -> Numbers:
        found = np.full(self.count, -1, np.int64)
        found[self.at] = values
        return found

    def texts(self, values: pa.StringArray) -> pa.StringArray:
        """Null for the others."""
        place = self.numbers(np.arange(len(values)))
        return values.take(pa.array(place, mask=place < 0))

    def flags(self, values: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        found = np.zeros(self.count, bool)
        found[self.at] = values
        return found


_Places = tuple[tuple[str, ...], Numbers, Numbers]


def _noted(
    winners: pa.Table,
    *,
    classes: pa.StringArray,
    reasons: pa.StringArray,
    same: npt.NDArray[np.bool_],
    held: _Places,
    tombs: _Places,
) -> pa.Table:
    made = {CLASS: classes, REASON: reasons, SAME: pa.array(same)}
    for (paths, file, row), file_name, row_name in ((held, HELD_FILE, HELD_ROW), (tombs, TOMB_FILE, TOMB_ROW)):
        numbers = pa.array(file.astype(np.int32), mask=file < 0)
        made[file_name] = pa.DictionaryArray.from_arrays(numbers, pa.array(paths, pa.string()))
        made[row_name] = pa.array(row, mask=row < 0)
    for name, column in made.items():
        winners = winners.append_column(name, column)
    return winners


@dataclass(slots=True)
class Gone:
    """Positions of rows that go, by the path of their file."""

    rows: dict[str, BitMap] = field(default_factory=dict)

    def add(self, files: pa.ChunkedArray, rows: pa.ChunkedArray) -> None:
        coded = whole(files)
        coded = coded if pa.types.is_dictionary(coded.type) else coded.dictionary_encode()
        numbers, places = np.asarray(coded.indices.fill_null(-1)), np.asarray(whole(rows).fill_null(0))
        for number, path in enumerate(coded.dictionary.to_pylist()):
            mine = places[numbers == number]
            if len(mine):
                self.include(path, bitmap(mine))

    def include(self, path: str, positions: BitMap) -> None:
        self.rows[path] = self.rows.get(path, BitMap()) | positions


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """What judged rows do: rows and tombstones that come, and positions that go."""

    rows: pa.Table
    tombstones: pa.Table
    gone: Mapping[str, BitMap]
    dug_up: Mapping[str, BitMap]
    """Positions of tombstones that go."""


def effect(mirror: Mirror, judged_rows: pa.Table) -> Effect:
    """Of judged rows that are not stale."""
    fresh = rows_where(judged_rows, pc.invert(judged_rows.column(SAME)))
    ops = fresh.column(OP)
    stay = pc.not_equal(ops, MergedOp.TRUNCATE) if mirror.rows.flagged else pc.equal(ops, MergedOp.UPSERT)
    gone, dug_up = Gone(), Gone()
    gone.add(fresh.column(HELD_FILE), fresh.column(HELD_ROW))
    dug_up.add(fresh.column(TOMB_FILE), fresh.column(TOMB_ROW))
    rows, tombstones = (
        _taken(files, rows_where(fresh, kept))
        for files, kept in ((mirror.rows, stay), (mirror.tombstones, pc.invert(stay)))
    )
    return Effect(rows, tombstones, gone.rows, dug_up.rows)


def _taken(files: KeyedFiles, rows: pa.Table) -> pa.Table:
    """The columns of the table."""
    keyless = np.asarray(whole(pc.equal(rows.column(OP), MergedOp.TRUNCATE)))
    deleted = whole(pc.not_equal(rows.column(OP), MergedOp.UPSERT))
    columns = []
    for file_column in files.columns:
        if file_column.name == VERSION_COLUMN:
            column = versions_of_rows(rows)
        elif file_column.name == DELETED:
            column = deleted
        elif file_column.name == DELETED_AT:
            column = pc.if_else(deleted, whole(rows.column(TS)), None).cast(file_column.type)
        elif file_column.name in rows.column_names:
            column = whole(rows.column(file_column.name)).cast(file_column.type)
            if keyless.any() and file_column.name in files.key:
                column = pc.if_else(pa.array(keyless), pa.scalar(None, file_column.type), column)
        else:
            column = pa.nulls(rows.num_rows, file_column.type)
        columns.append(column)
    return pa.table(columns, schema=files.columns)
