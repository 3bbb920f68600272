"""The staged changes of a table as events of its keys, in the form that `comparison` judges rows by."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.model.batch import Manifest
from cdc_core.model.schema import Column
from cdc_core.model.staged import (
    BEFORE,
    BEFORE_MARK,
    DELETE,
    INSERT,
    LITERAL,
    OP,
    ROW,
    SEQ,
    TRUNCATE,
    TS,
    UPDATE,
    LiteralEntries,
    lacking,
)
from cdc_core.stage import compaction
from cdc_core.stage.intact import open_intact
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.unify import StagedPart, parts_of
from cdc_core.target import pairs
from cdc_core.verify.canonical import row_texts
from cdc_core.verify.comparison import EVENT_COLUMNS
from cdc_core.verify.shape import Shape

_ROWS, _FILES = 65_536, 64
"""That are read at once, at most: many small files cost more by their number than by their rows."""
_NEVER = (1 << 63) - 1
"""After all order keys."""


@dataclass(frozen=True, slots=True)
class _Event:
    """Of all events of a part. high_seq: of a batch of copied rows, the highest of its chunks; else -1.

    batches: by the order key of the batch's first row in the part, in order: whether the batch was consumed.
    """

    part: StagedPart
    high_seq: int
    batches: dict[int, bool]

    def consumed(self, seqs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """As in EVENT_COLUMNS, for the rows with these order keys."""
        firsts = np.array(list(self.batches), np.int64)
        at = np.maximum(np.searchsorted(firsts, seqs, "right") - 1, 0)
        found: npt.NDArray[np.bool_] = np.array(list(self.batches.values()))[at]
        return found


def events(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    shape: Shape,
    consumed: AbstractSet[str],
    *,
    wanted: pa.Array | None = None,
    known_from: Callable[[int], int | None] = lambda _: None,
) -> Iterator[pa.Table]:
    """The staged changes of the table, the newest first: EVENT_COLUMNS.

    manifests: of all sources. consumed: ids of the batches that the target had consumed before its rows were read.
    wanted: the keys whose changes are wanted; None for all. known_from: asked before each file, with the order key
    before which all changes were consumed: changes before the one that it returns cannot say more about the wanted
    keys, if one source table has fed the table. None while they may.
    Raises DataAtRisk (stage.missing, stage.damaged).
    """
    ranges = compaction.read(store, sorted({manifest.source for manifest in manifests}))
    by_path: dict[str, _Event] = {}
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
            event = by_path.setdefault(read.part.path, _Event(read, high_seq, {}))
            event.batches[part.min_seq] = in_it
    found = list(by_path.values())
    # A TRUNCATE takes the rows of its own table: of several, the earlier changes say which rows those are.
    alone = bool(shape.key) and len({(one.part.source, one.part.schema.name) for one in found}) == 1
    pending = (seq for event in found for seq, is_consumed in event.batches.items() if not is_consumed)
    consumed_before = min(pending, default=_NEVER)
    left = sorted(found, key=lambda one: one.part.part.max_seq, reverse=True)
    at_once = 1
    while left:
        known = known_from(consumed_before) if alone else None
        if known is not None and left[0].part.part.max_seq < known:
            break
        some = _first(left, at_once)
        for event, batch in _read(store, some):
            yield from _of_batch(batch, shape, event, wanted)
        left, at_once = left[len(some) :], min(2 * at_once, _FILES)


def _first(files: Sequence[_Event], most: int) -> Sequence[_Event]:
    """The first of them, at least one, with no more rows than may be read at once."""
    rows = itertools.accumulate(one.part.part.rows for one in files[:most])
    return files[: max(1, sum(so_far <= _ROWS for so_far in rows))]


def _read(store: ObjectStore, files: Sequence[_Event]) -> Iterator[tuple[_Event, pa.RecordBatch]]:
    """Their rows, those of one definition together. Raises DataAtRisk (stage.missing, stage.damaged)."""
    if len(files) == 1:
        with open_intact(store, files[0].part.part) as file:
            for batch in pq.ParquetFile(file).iter_batches(_ROWS):
                yield files[0], batch
        return
    alike: dict[Any, list[tuple[_Event, pa.Table]]] = {}
    for one in files:
        with open_intact(store, one.part.part) as file:
            table = pq.ParquetFile(file).read(use_threads=False)
        alike.setdefault((one.part.source, one.part.part.schema_id, one.high_seq, table.schema), []).append(
            (one, table)
        )
    for group in alike.values():
        event = _joined([one for one, _ in group])
        for batch in pa.concat_tables([table for _, table in group]).combine_chunks().to_batches():
            yield event, batch


def _joined(events: Sequence[_Event]) -> _Event:
    """Of the rows of several parts with one definition."""
    first, parts = events[0], [one.part.part for one in events]
    part = replace(
        first.part.part,
        absent_rows=sum(one.absent_rows for one in parts),
        key_changes=sum(one.key_changes for one in parts),
    )
    batches = sorted(pair for one in events for pair in one.batches.items())
    return replace(first, part=replace(first.part, part=part), batches=dict(batches))


def _of_batch(rows: pa.RecordBatch, shape: Shape, event: _Event, wanted: pa.Array | None) -> Iterator[pa.Table]:
    ops = np.asarray(rows.column(OP).cast(pa.string()).to_numpy(zero_copy_only=False))
    truncates = ops == TRUNCATE
    if truncates.any():
        yield _table(rows.filter(pa.array(truncates)), shape, event, gone=True, keys=None)
    after = rows.filter(pa.array(~truncates))
    if not after.num_rows:
        return
    ops = ops[~truncates]
    gone = ops == DELETE
    for some, leaves in ((after.filter(pa.array(~gone)), False), (after.filter(pa.array(gone)), True)):
        some, keys = _wanted(some, _texts(some, shape.key_or_all, shape, event), wanted)
        if some.num_rows:
            yield _table(some, shape, event, gone=leaves, keys=keys)
            if shape.key:
                yield from _formers(some, keys, shape, event)
    updates = after.filter(pa.array(ops == UPDATE))
    if updates.num_rows and (not shape.key or event.part.part.key_changes):
        before = before_images(updates)
        keys = _texts(before, shape.key_or_all, shape, event)
        if shape.key:
            moved = pc.not_equal(keys, _texts(updates, shape.key_or_all, shape, event))
            updates, keys = updates.filter(moved), keys.filter(moved)
        updates, keys = _wanted(updates, keys, wanted)
        if updates.num_rows:
            yield _table(updates, shape, event, gone=True, keys=keys)
            if shape.key:
                yield from _former(before_images(updates), updates, shape, event, keys)


def _formers(rows: pa.RecordBatch, keys: pa.Array, shape: Shape, event: _Event) -> Iterator[pa.Table]:
    """What these changes, of rows with these keys, say of the rows before them."""
    ops = np.asarray(rows.column(OP).cast(pa.string()).to_numpy(zero_copy_only=False))

    def chosen(found: npt.NDArray[np.bool_]) -> tuple[pa.RecordBatch, pa.Array]:
        return rows.filter(pa.array(found)), keys.filter(pa.array(found))

    deleted, of_deleted = chosen(ops == DELETE)  # its columns are those of the row that left
    yield from _former(deleted, deleted, shape, event, of_deleted)
    updated, of_updated = chosen(ops == UPDATE)
    if updated.num_rows:
        images = before_images(updated)
        stayed = pc.equal(_texts(images, shape.key_or_all, shape, event), of_updated)
        yield from _former(images.filter(stayed), updated.filter(stayed), shape, event, of_updated.filter(stayed))
        came = pc.invert(stayed)  # from another key: this one had no row
        yield _table(updated.filter(came), shape, event, gone=True, keys=of_updated.filter(came), former=True)
    inserted, of_inserted = chosen(ops == INSERT)
    yield _table(inserted, shape, event, gone=True, keys=of_inserted, former=True)


def _former(
    images: pa.RecordBatch, rows: pa.RecordBatch, shape: Shape, event: _Event, keys: pa.Array
) -> Iterator[pa.Table]:
    """images: of these rows, before their changes. Those that lack a value are left out."""
    known = ~_partial(rows, shape, event)
    if event.part.part.absent_rows and rows.num_rows:
        known &= np.asarray(pc.is_null(lacking(rows)[0]))
    if known.any():
        mask = pa.array(known)
        yield _table(rows.filter(mask), shape, event, gone=False, keys=keys.filter(mask), former=images.filter(mask))


def _wanted(rows: pa.RecordBatch, keys: pa.Array, wanted: pa.Array | None) -> tuple[pa.RecordBatch, pa.Array]:
    if wanted is None:
        return rows, keys
    there = pc.is_in(keys, value_set=wanted)
    return rows.filter(there), keys.filter(there)


def _table(
    rows: pa.RecordBatch,
    shape: Shape,
    event: _Event,
    *,
    gone: bool,
    keys: pa.Array | None,
    former: pa.RecordBatch | bool = False,
) -> pa.Table:
    """Events of these rows. gone: their keys have left. former: these are the rows before the changes; True: there were
    none."""
    n = rows.num_rows
    image = former if isinstance(former, pa.RecordBatch) else rows
    partial = np.zeros(n, bool) if gone or former is not False else _partial(rows, shape, event)
    if gone:
        text, place = pa.nulls(n, pa.string()), pa.array(np.zeros(n, np.int64))
    else:
        text = _texts(image, shape.columns, shape, event)
        place = pa.array(_places(image, shape, partial))
    seq = rows.column(SEQ).cast(pa.int64())
    sure = seq if event.high_seq < 0 else pa.array(np.full(n, event.high_seq - 1))
    part = event.part
    columns_ = {
        "k": pa.nulls(n, pa.string()) if keys is None else keys,
        "text": text,
        "place": place,
        "gone": pa.array(np.full(n, gone)),
        "partial": pa.array(partial),
        "of_source": pa.array([part.source] * n, pa.string()),
        "of_table": pa.array([part.schema.name] * n, pa.string()),
        "ts": rows.column(TS).cast(pa.timestamp("us")).cast(pa.int64()),
        "seq": seq,
        "ordinal": rows.column(ROW).cast(pa.int64()),
        "sure_seq": sure,
        "consumed": pa.array(event.consumed(np.asarray(seq))),
        "former": pa.array(np.full(n, former is not False)),
    }
    return pa.table(columns_, schema=EVENT_COLUMNS)


def _places(rows: pa.RecordBatch, shape: Shape, partial: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The shard of each row; 0 where the change does not carry its shard key."""
    if shape.destination.rule.sharding is None:
        return np.zeros(rows.num_rows, np.int64)
    column = rows.column(shape.destination.rule.sharding.key)
    there = ~partial & np.asarray(column.is_valid())
    places = np.zeros(rows.num_rows, np.int64)
    if there.any():
        places[there] = shape.destination.shard_numbers(rows.filter(pa.array(there)))
    return places


def _partial(rows: pa.RecordBatch, shape: Shape, event: _Event) -> npt.NDArray[np.bool_]:
    """Which rows lack a value of a compared column."""
    then = {column.name.lower(): column.type for column in event.part.schema.columns}
    for column in shape.columns:
        kind = then.get(column.name.lower())
        if kind is None or (kind != column.type and pairs.problem(kind, column.type)):
            return np.ones(rows.num_rows, bool)  # the table's definition was another, and may have changed the value
    if not event.part.part.absent_rows:
        return np.zeros(rows.num_rows, bool)
    wanted = {column.name for column in shape.columns}
    indices, sets = lacking(rows)
    bad = np.array([bool(names & wanted) for names in sets] + [False])
    found: npt.NDArray[np.bool_] = bad[np.asarray(pc.fill_null(indices, len(sets)))]
    return found


def _texts(rows: pa.RecordBatch, columns: Sequence[Column], shape: Shape, event: _Event) -> pa.StringArray:
    return row_texts(*_view(rows, columns, event), shape.errors)


def _view(rows: pa.RecordBatch, columns: Sequence[Column], event: _Event) -> tuple[pa.RecordBatch, list[Column]]:
    """The rows with these columns under the part's own types; null where its definition lacks one."""
    own = {column.name.lower(): column for column in event.part.schema.columns}
    found: list[Column] = []
    arrays: list[pa.Array] = []
    for column in columns:
        there = own.get(column.name.lower())
        found.append(there or column)
        arrays.append(rows.column(there.name) if there else pa.nulls(rows.num_rows, pa.string()))
    names = [column.name for column in found]
    return pa.RecordBatch.from_arrays([*arrays, rows.column(LITERAL)], names=[*names, LITERAL]), found


def before_images(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The before images of these rows, with their exact texts."""
    before = rows.column(BEFORE)
    fields: Mapping[str, pa.Array] = dict(zip((field.name for field in before.type), before.flatten(), strict=True))
    literal = rows.column(LITERAL)
    if literal.null_count < rows.num_rows:
        entries = LiteralEntries.of(literal)
        marked = np.asarray(pc.starts_with(entries.name, BEFORE_MARK))
        kept = entries.where(marked)
        names = pc.replace_substring(kept.name, BEFORE_MARK, "", max_replacements=1)
        literal = LiteralEntries(kept.row, names, kept.text).array(rows.num_rows)
    return pa.RecordBatch.from_arrays([*fields.values(), literal], names=[*fields, LITERAL])
