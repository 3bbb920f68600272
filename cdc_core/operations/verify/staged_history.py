"""The staged changes of a table as events of its keys (cdc_core/history), in the form that `judgement` judges rows by.

Only what verification asks besides is decided here: the canonical text of a row, whether a change carries all of it,
what was there before, and from which place on a side surely has the change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.codes import Flags, Numbers, whole
from cdc_core.history.events import FORMER, TABLE, lacking
from cdc_core.history.rule import TableRule
from cdc_core.history.values import numbers_of_changes
from cdc_core.model.batch import Manifest
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged_columns import ABSENT, DELETE, INSERT, OP, ROW, SEQ, SOURCE, TRUNCATE, TS, UPDATE
from cdc_core.operations.verify.canonical import row_texts
from cdc_core.operations.verify.judgement import EVENT_COLUMNS
from cdc_core.operations.verify.shape import Shape
from cdc_core.stage import compactions
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.staged_events import FileOfEvents, file_events
from cdc_core.stage.unify import StagedPart, emptied_columns, parts_of
from cdc_core.targets.tables import type_pairs

_ROWS, _FILES = 65_536, 64
"""The most rows and files that are read at once: many small files cost more by their number than by their rows."""
_NEVER = (1 << 63) - 1
"""After all order keys."""
_UNKNOWN, _NONE = -1, -2
"""In place of the row before a change."""


@dataclass(frozen=True, slots=True)
class _HistoryFile:
    """A file of one definition. high_seq: the highest of a copied batch's chunks; else -1. bounds: as in `events`,
    of its source. emptied: as in history.events.

    batches: by the order key of the batch's first row in the file, in order: whether the batch was consumed.
    """

    part: StagedPart
    high_seq: int
    bounds: tuple[int, int]
    emptied: Mapping[str, int]
    batches: dict[int, bool]

    def consumed(self, seqs: Numbers) -> Flags:
        """Whether the target had consumed the batches of the rows with these order keys."""
        firsts = np.array(list(self.batches), np.int64)
        at = np.maximum(np.searchsorted(firsts, seqs, "right") - 1, 0)
        found: Flags = np.array(list(self.batches.values()))[at]
        return found


def events(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    shape: Shape,
    consumed: AbstractSet[str],
    wanted: pa.Array,
    bounds: Mapping[str, tuple[int, int]],
    *,
    known_from: Callable[[int], int | None] = lambda _: None,
) -> Iterator[pa.Table]:
    """The staged changes of some keys, the newest first: EVENT_COLUMNS.

    manifests: of all sources. consumed: ids of the batches that the target had consumed before its rows were read.
    wanted: the keys. bounds: by source, order keys of `low`, of its earliest read, and `high`, of its latest.
    known_from: asked before each file, with the order key before which both sides have all changes: changes before the
    one that it returns cannot say more about these keys, if one source table has fed the table. None while they may.
    Raises DataAtRisk (stage.damaged).
    """
    ranges = compactions.read(store, sorted({manifest.source for manifest in manifests}))
    emptied = emptied_columns(manifests, None)
    by_path: dict[str, _HistoryFile] = {}
    for manifest in manifests:
        if not any(part.table == shape.logical for part in manifest.parts):
            continue
        # A copy counts as a whole: what makes older rows go may be in a file of its first chunk.
        high_seq = max((chunk.high.seq for chunk in manifest.chunks), default=-1)
        in_it = manifest.batch_id in consumed
        for staged in parts_of([manifest], shape.logical):
            part = staged.part
            other = ranges.instead_of(part.path, part.table, part.schema_id, part.max_seq)
            read = staged if other is None else replace(staged, part=other)
            file = _HistoryFile(
                read, high_seq, bounds[read.source], emptied.get((read.source, read.schema.name), {}), {}
            )
            by_path.setdefault(read.part.path, file).batches[part.min_seq] = in_it
    files = list(by_path.values())
    # A TRUNCATE takes the rows of its own table: of several, the earlier changes say which rows those are.
    alone = (
        bool(shape.key)
        and len({(history_file.part.source, history_file.part.schema.name) for history_file in files}) == 1
    )
    pending = (seq for file in files for seq, is_consumed in file.batches.items() if not is_consumed)
    settled = min([*pending, *(file.bounds[0] for file in files)], default=_NEVER)
    left = sorted(files, key=lambda history_file: history_file.part.part.max_seq, reverse=True)
    at_once = 1
    while left:
        known = known_from(settled) if alone else None
        if known is not None and left[0].part.part.max_seq < known:
            break
        some = _first(left, at_once)
        for file, table in _read(store, some, shape):
            yield _told(table, file, shape, wanted)
        left, at_once = left[len(some) :], min(2 * at_once, _FILES)


def _first(files: Sequence[_HistoryFile], most: int) -> Sequence[_HistoryFile]:
    """The first of them, at least one, with no more rows than may be read at once."""
    rows = itertools.accumulate(file.part.part.rows for file in files[:most])
    return files[: max(1, sum(so_far <= _ROWS for so_far in rows))]


def _read(store: ObjectStore, files: Sequence[_HistoryFile], shape: Shape) -> Iterator[tuple[_HistoryFile, pa.Table]]:
    """Their events, those of small files with one definition together."""
    alike: dict[tuple[str, str, int], list[_HistoryFile]] = {}
    for file in files:
        alike.setdefault((file.part.source, file.part.part.schema_id, file.high_seq), []).append(file)
    for group in alike.values():
        rule = _rule(group[0].part.schema, shape)
        tables: Iterator[pa.Table] = itertools.chain.from_iterable(
            file_events(store, FileOfEvents(file.part.part, file.part.schema, emptied=file.emptied), rule)
            for file in group
        )
        if len(group) > 1:
            tables = iter([pa.concat_tables(tables).unify_dictionaries()])
        batches = sorted(pair for file in group for pair in file.batches.items())
        for table in tables:
            yield replace(group[0], batches=dict(batches)), table


def _rule(schema: TableSchema, shape: Shape) -> TableRule:
    """Values keep the types of their own definition: their canonical texts are equal where the values are."""
    fields = [pa.field(column.name, column.type.arrow) for column in _columns(schema, shape)]
    sharding = shape.side.sharding
    if sharding is not None and sharding.key not in [field.name for field in fields]:
        fields += [pa.field(column.name, column.type.arrow) for column in schema.columns if column.name == sharding.key]
    return TableRule(pa.schema(fields), shape.key, formers=True)


def _columns(schema: TableSchema, shape: Shape) -> list[Column]:
    """The columns that are compared, with the types of a definition that has them."""
    own = {column.name.lower(): column for column in schema.columns}
    return [replace(own.get(column.name.lower(), column), name=column.name) for column in shape.columns]


def _told(table: pa.Table, file: _HistoryFile, shape: Shape, wanted: pa.Array) -> pa.Table:
    """What events say of the wanted keys: EVENT_COLUMNS."""
    columns = {column.name: column for column in _columns(file.part.schema, shape)}
    keys = row_texts(_held(table, shape), [columns[column.name] for column in shape.key_or_all], shape.errors)
    truncate = pc.equal(whole(table.column(OP)), TRUNCATE)
    key = pc.if_else(truncate, pa.scalar(None, pa.int32()), pc.index_in(keys, value_set=wanted))
    kept = pc.or_(truncate, pc.is_valid(key))
    rows, key = _held(table.filter(kept), shape), key.filter(kept)
    partial = _partial(rows, file, shape)
    texts, places = row_texts(rows, list(columns.values()), shape.errors), _places(rows, shape, partial)
    before = _before(rows, key.fill_null(_UNKNOWN).to_numpy()) if shape.key else np.full(rows.num_rows, _UNKNOWN)
    image = np.maximum(before, 0)
    # Where a key stays, the row before its change is no event of its own.
    of_others = np.isin(np.arange(rows.num_rows), before[(before >= 0) & (before != np.arange(rows.num_rows))])
    before[partial[image] & (before >= 0)] = _UNKNOWN
    gone = pc.is_in(rows.column(OP).cast(pa.string()), pa.array([DELETE, TRUNCATE]))
    seq = np.asarray(rows.column(SEQ))
    low, high = file.bounds
    source_has = (seq if file.high_seq < 0 else np.full(rows.num_rows, file.high_seq - 1)) < low
    found = {
        **{name: rows.column(name) for name in (OP, TS, SOURCE, TABLE, SEQ, ROW)},
        "key": key,
        "text": pc.if_else(gone, None, texts),
        "place": places,
        "partial": partial & ~np.asarray(gone),
        "told": before != _UNKNOWN,
        "former": texts.take(pa.array(before, mask=before < 0)),
        "former_place": places[image],
        "source_has": source_has,
        "source_may": ~source_has & (seq < high),
        "target_has": file.consumed(seq),
    }
    return pa.table(found, schema=EVENT_COLUMNS).filter(pa.array(~of_others))


def _held(table: pa.Table, shape: Shape) -> pa.RecordBatch:
    """As the target has them."""
    rows = pa.RecordBatch.from_arrays([whole(column) for column in table.columns], schema=table.schema)
    return shape.side.as_held(rows)


def _before(rows: pa.RecordBatch, key: Numbers) -> Numbers:
    """For each event, which one has the row that was there before the change; or _NONE, _UNKNOWN. key: numbers of the
    keys' texts, by which a key stays or not: here 0.0 and -0.0 are two."""
    op = rows.column(OP).cast(pa.string())
    insert, update, delete = (np.asarray(pc.equal(op, code)) for code in (INSERT, UPDATE, DELETE))
    found = np.where(insert, _NONE, np.where(delete, np.arange(rows.num_rows), _UNKNOWN))
    if not update.any():
        return found
    seq, row, former = (np.asarray(rows.column(name)) for name in (SEQ, ROW, FORMER))
    change = numbers_of_changes(np.zeros_like(seq), seq, row)
    image = np.full(int(change.max()) + 1, _UNKNOWN)
    image[change[former]] = np.flatnonzero(former)
    was = image[change[update]]
    found[update] = np.where((was >= 0) & (key[was] == key[update]), was, _NONE)
    return found


def _places(rows: pa.RecordBatch, shape: Shape, partial: Flags) -> Numbers:
    """The shard of each row; 0 where the change does not carry its shard key."""
    places = np.zeros(rows.num_rows, np.int64)
    sharding = shape.side.sharding
    if sharding is not None and sharding.key in rows.schema.names:
        there = ~partial & np.asarray(rows.column(sharding.key).is_valid())
        if there.any():
            places[there] = shape.side.shard_numbers(rows.filter(pa.array(there)))
    return places


def _partial(rows: pa.RecordBatch, file: _HistoryFile, shape: Shape) -> Flags:
    """Which rows lack a value of a compared column, or have one that a later definition of the table may have
    changed."""
    then = {column.name.lower(): column for column in file.part.schema.columns}
    for column in shape.columns:
        own = then.get(column.name.lower())
        if own is None or not own.logged or (own.type != column.type and type_pairs.problem(own.type, column.type)):
            return np.ones(rows.num_rows, bool)
    names = {column.name for column in shape.columns}
    since = max((file.emptied.get(name.lower(), 0) for name in names), default=0)
    return lacking(rows.column(ABSENT), lambda some: not names.isdisjoint(some)) | (
        np.asarray(rows.column(SEQ)) < since
    )
