"""Rows that the log did not describe completely: which shard each is in, and the values it has where it was before.

A log without whole rows may leave out a row's shard key, or the previous one (`_cdc_shard_unknown`); whatever did not
change of a row that goes to another shard; and of one that comes under a new key (`_cdc_key_chain`: its older keys,
newest first, each with the version of its departure). Then the target is queried: by the row's key in every shard, by
its older keys wherever they may be. Only such rows cost a query.

Values in the row's own place are left absent, for the write to take under the row's lock. Values found elsewhere go
with the row, as text in `_cdc_literal`. May assume that the run has every change that the target lacks: whichever
of these places still has the row, then, has the values that no change of the run has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.guard import TargetVersion
from cdc_core.model.merged_columns import FORMER_SHARD_KEYS, KEY_CHAIN, SHARD_UNKNOWN, MergedOp
from cdc_core.model.row_versions import version_bytes
from cdc_core.model.staged_columns import ABSENT, LITERAL, OP, absent_text, lacking
from cdc_core.model.version import newer_or_equal
from cdc_core.targets.reading.destination import Destination, ShardSessions
from cdc_core.targets.tables.text_columns import is_bytes, row_keys
from cdc_core.targets.writing.load import absent_values
from cdc_core.targets.writing.versions import versions_of

_EVERY = -1
ShardHolding = tuple[int, TargetVersion]
"""A shard, and what it holds of a key."""


@dataclass(frozen=True, slots=True)
class LocatedRows:
    """rows: completed. shards: the shard of each. left: (row, shard) of the places that a row must leave."""

    rows: pa.RecordBatch
    shards: npt.NDArray[np.int64]
    left: Sequence[tuple[int, int]] = ()


def locate_rows(destination: Destination, sessions: ShardSessions, scratch: Path, rows: pa.RecordBatch) -> LocatedRows:
    """The rows with their shards. Raises DataAtRisk (target.absent_values) for a row that no shard has."""
    index, sets = lacking(rows)
    absent = [frozenset[str]()] * rows.num_rows
    if any(sets):
        absent = [frozenset() if at is None else sets[at] for at in index.to_pylist()]
    unplaced = {at for at, names in enumerate(absent) if destination.moving in names} if any(sets) else set()
    # What they lack may be in the shard that they came from.
    came = {at for at in _moved(destination, rows) if absent[at]} if any(sets) else set()
    unknown = unplaced | came | _flagged(destination, rows)
    links, chains = _links(rows)
    if not unknown and not chains:
        return LocatedRows(rows, destination.shard_numbers(rows))
    shards = np.full(rows.num_rows, _EVERY)
    placed = [at for at in range(rows.num_rows) if at not in unplaced]
    shards[placed] = destination.shard_numbers(rows.take(pa.array(placed, pa.int64())))

    columns = {
        name: is_bytes(rows.schema.field(name).type) for name in destination.columns if name not in destination.key
    }

    def held(keys: pa.RecordBatch, places: npt.NDArray[np.int64]) -> list[list[ShardHolding]]:
        return _held(destination, sessions, scratch, keys, places, columns)

    asked = sorted(unknown | set(chains))
    everywhere = np.array([_EVERY if at in unknown else shards[at] for at in asked])
    own = dict(zip(asked, held(rows.take(pa.array(asked)), everywhere), strict=True))
    older = held(links, np.full(links.num_rows, _EVERY) if destination.moving else destination.shard_numbers(links))
    versions, departures = version_bytes(rows).to_pylist(), version_bytes(links).to_pylist()
    deletes = [op == MergedOp.DELETE for op in rows.column(OP).to_pylist()]
    fills: dict[int, Mapping[str, str | None]] = {}
    left: list[tuple[int, int]] = []
    for at in asked:
        chain = [] if deletes[at] else chains.get(at, [])
        standing = [(shard, holding) for shard, holding in own[at] if holding.row is not None]
        # What was under the key before the row came there is another row.
        mine = [place for place in standing if not chain or newer_or_equal(place[1].row or b"", departures[chain[0]])]
        found = reduce(_newest, mine) if mine else _first(chain, older, departures)
        buried = [
            shard
            for shard, holding in own[at]
            if holding.tombstone is not None and not newer_or_equal(versions[at], holding.tombstone)
        ]
        if found is None and not deletes[at] and not buried and (chain or at in unplaced):
            key = row_keys(rows.slice(at, 1), destination.key)[0].as_py()
            raise absent_values(1, key.encode(), where=f"{destination.target}, {destination.logical}")
        if at in unplaced:
            shards[at] = found[0] if found else (buried or [0])[0]
        if found and not deletes[at] and not (mine and found[0] == shards[at]):
            known = {name: value for name, value in found[1].values.items() if name in absent[at]}
            if known:
                fills[at] = known
        if at in unknown:
            # If no shard has a deleted row, each needs its tombstone: an older change may still reach any of them.
            nowhere = deletes[at] and at in unplaced and not standing
            leaves = range(len(destination.shards)) if nowhere else [shard for shard, _ in standing]
            left += [(at, shard) for shard in leaves if shard != shards[at]]
    return LocatedRows(_filled(rows, fills), shards, left)


def _flagged(destination: Destination, rows: pa.RecordBatch) -> set[int]:
    at = rows.schema.get_field_index(SHARD_UNKNOWN) if destination.moving else -1
    return set() if at < 0 else set(np.flatnonzero(np.asarray(rows.column(at).fill_null(False))).tolist())


def _moved(destination: Destination, rows: pa.RecordBatch) -> list[int]:
    """The rows that are known to have had another shard key, and that are not deleted."""
    at = rows.schema.get_field_index(FORMER_SHARD_KEYS) if destination.moving else -1
    if at < 0:
        return []
    former = np.asarray(rows.column(at).field(destination.moving).value_lengths().fill_null(0))
    stays = np.asarray(pc.not_equal(rows.column(OP), MergedOp.DELETE))
    found: list[int] = np.flatnonzero((former > 0) & stays).tolist()
    return found


def _links(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, list[int]]]:
    """All older keys, as rows; for each row that has some, which of them, newest first."""
    at = rows.schema.get_field_index(KEY_CHAIN)
    if at < 0 or rows.column(at).null_count == rows.num_rows:
        return rows.slice(0, 0), {}
    column = rows.column(at)
    batch = pa.RecordBatch.from_struct_array(column.flatten())
    ends = np.cumsum([0, *column.value_lengths().fill_null(0).to_pylist()])
    chains = {row: list(range(ends[row], ends[row + 1])) for row in range(rows.num_rows) if ends[row] < ends[row + 1]}
    return batch.append_column(OP, pa.array([MergedOp.UPSERT] * batch.num_rows)), chains


def _held(
    destination: Destination,
    sessions: ShardSessions,
    scratch: Path,
    rows: pa.RecordBatch,
    places: npt.NDArray[np.int64],
    columns: Mapping[str, bool],
) -> list[list[ShardHolding]]:
    """What the shards hold of each key where it may be: in the shard `places`, or in all of them."""
    holdings: list[list[ShardHolding]] = [[] for _ in range(rows.num_rows)]
    for number, shard in enumerate(destination.shards):
        here = np.flatnonzero((places == number) | (places == _EVERY))
        if len(here):
            part = versions_of(
                sessions.of(shard),
                shard.facts,
                rows.take(pa.array(here)),
                key=destination.key,
                freshness=None,
                scratch=scratch,
                tolerant=destination.quarantine,
                columns={name: as_hex for name, as_hex in columns.items() if name in shard.columns},
            )
            for at, version in zip(here, part, strict=True):
                if version != TargetVersion():
                    holdings[at].append((number, version))
    return holdings


def _first(
    chain: Sequence[int], older: Sequence[Sequence[ShardHolding]], departures: Sequence[bytes]
) -> ShardHolding | None:
    """The oldest place that still has the row: what is as new as its departure is another row."""
    for link in reversed(chain):
        for place in older[link]:
            if place[1].row is not None and not newer_or_equal(place[1].row, departures[link]):
                return place
    return None


def _newest(one: ShardHolding, other: ShardHolding) -> ShardHolding:
    return one if newer_or_equal(one[1].row or b"", other[1].row or b"") else other


def _filled(rows: pa.RecordBatch, fills: Mapping[int, Mapping[str, str | None]]) -> pa.RecordBatch:
    """The rows with these values: texts as they are, values of other types as literals; a null is a null that is not
    absent. Values of columns that the other shard does not have stay absent."""
    if not fills:
        return rows
    literals, absent = rows.column(LITERAL).to_pylist(), rows.column(ABSENT).to_pylist()
    texts: dict[str, dict[int, str]] = {}
    for at, values in fills.items():
        said = []
        for name, text in values.items():
            if text is not None and pa.types.is_string(rows.schema.field(name).type):
                texts.setdefault(name, {})[at] = text  # a literal would be an ENUM's error value, or bytes
            elif text is not None:
                said.append((name, text))
        literals[at] = [*(literals[at] or []), *said]
        absent[at] = absent_text(name for name in json.loads(absent[at]) if name not in values)
    for name, found in texts.items():
        mask = np.zeros(rows.num_rows, bool)
        mask[list(found)] = True
        filled = pa.array([found[at] for at in sorted(found)], pa.string())
        rows = _with(rows, name, pc.replace_with_mask(rows.column(name), pa.array(mask), filled))
    for name, values_of in ((LITERAL, literals), (ABSENT, absent)):
        rows = _with(rows, name, pa.array(values_of, rows.schema.field(name).type))
    return rows


def _with(rows: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), values)
