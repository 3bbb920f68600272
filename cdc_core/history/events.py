"""Staged changes as events, one for each key that a change touches: see the table of cases in this package's docstring.

An event has the row's columns (of a key that is gone: the row as it was), `_cdc_op` (of a key that a row left: d),
`_cdc_ts _cdc_source _cdc_seq _cdc_row`, `_cdc_literal` and `_cdc_absent` of its own row image, `_cdc_shard_unknown`
(model/merged_columns.py: also where a delete lacks the shard key), and the columns below.
All events of a table have one schema (`event_schema`), whatever definitions their files have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.codes import Flags, codes, exact_codes, filled, plain, whole
from cdc_core.history.rule import TableRule
from cdc_core.model.merged_columns import SHARD_UNKNOWN
from cdc_core.model.places import repeated
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import (
    ABSENT,
    BEFORE,
    BEFORE_MARK,
    DELETE,
    INSERT,
    LITERAL,
    LITERAL_TYPE,
    OP,
    ROW,
    SEQ,
    SNAPSHOT,
    SOURCE,
    TRUNCATE,
    TS,
    UPDATE,
    LiteralEntries,
    absent_text,
)

TABLE = "_cdc_table"
"""The source table's name."""
FORMER = "_cdc_former"
"""The second event of an update: of the key that the row left; without a key, or by TableRule.formers, of the row as it
was."""
ARRIVED = "_cdc_arrived"
"""The row begins a life under the key."""
INHERITS = "_cdc_inherits"
"""In both events of an update that changes the key: the row lacks values, which are under the key that it left."""
LOST = "_cdc_lost"
"""The change does not have its key; without a key, not all of its row."""
RENEWS = "_cdc_renews"
"""The truncate is the beginning of a copy that takes the place of older rows."""
BATCH = "_cdc_batch"
"""Without a key: the order key where the batch begins."""

_TEXT = pa.dictionary(pa.int32(), pa.string())
_TS_TYPE = pa.timestamp("us", tz="UTC")


def was(at: int) -> str:
    """The column with the former value of the shard key `at`, if an update changed it."""
    return f"_cdc_was{at}"


def event_schema(rule: TableRule) -> pa.Schema:
    keyed = [(ARRIVED, pa.bool_()), (INHERITS, pa.bool_())]
    moving = [(was(at), rule.columns.field(name).type) for at, name in enumerate(rule.moving)]
    fields = [
        *((field.name, field.type) for field in rule.columns),
        (OP, _TEXT), (TS, _TS_TYPE), (SOURCE, _TEXT), (SEQ, pa.int64()), (ROW, pa.int64()), (LITERAL, LITERAL_TYPE),
        (ABSENT, _TEXT), (TABLE, _TEXT), (FORMER, pa.bool_()), (LOST, pa.bool_()), (RENEWS, pa.bool_()),
        *(keyed if rule.key else [(BATCH, pa.int64())]),
        *([*moving, (SHARD_UNKNOWN, pa.bool_())] if moving else []),
    ]  # fmt: skip
    return pa.schema(fields)


def needed_columns(rule: TableRule, schema: TableSchema, *, key_changes: bool) -> tuple[list[str], list[str]]:
    """(columns of a staged file of this definition that events are made of; of these, the columns inside `_before`).

    key_changes: whether the file may have updates that change the key, of which all values before are needed.
    """
    bookkeeping = [OP, TS, SOURCE, SEQ, ROW, LITERAL, ABSENT]
    wanted = {name.lower() for name in rule.columns.names}
    own = [column.name for column in schema.columns if column.name.lower() in wanted]
    if key_changes or rule.formers or not rule.key:
        before = own
    else:  # a key that stays is compared with itself
        compared = {name.lower() for name in (*rule.key, *rule.moving)} if rule.moving else set()
        before = [name for name in own if name.lower() in compared]
    return [*own, *([BEFORE] if before else []), *bookkeeping], before


def events(
    rows: pa.Table,
    schema: TableSchema | None,
    rule: TableRule,
    *,
    renews: bool = False,
    emptied: Mapping[str, int] | None = None,
    batches: pa.Array | None = None,
) -> pa.Table:
    """The events of staged changes of one definition: `event_schema`. First one of each change, in their order, then
    those of keys that rows left.

    rows: at least `needed_columns`. schema: None for rows that are under the columns of the rule. renews: they are of a
    copy, so that a truncate among them begins it. emptied: by column, in small letters, the order key before which its
    values do not count: it was dropped, and added again. batches: of a table without a key, where the batch of each row
    begins.
    """
    change = _Changes(rows, schema, rule, emptied or {})
    update = change.op(UPDATE) & change.has_before
    moved = update & _moves(change, rule)
    second = moved if rule.key and not rule.formers else update
    own = _own(change, rule, moved, renews=renews, batches=batches)
    if not second.any():
        return own
    left = _former(change.of(second), rule, batches if batches is None else batches.filter(pa.array(second)))
    return pa.concat_tables([own, left]).unify_dictionaries()


class _Changes:
    """Staged changes by the names and types that the table's columns have."""

    def __init__(self, rows: pa.Table, schema: TableSchema | None, rule: TableRule, emptied: Mapping[str, int]) -> None:
        self.rows, self.schema, self._rule, self._emptied = rows, schema, rule, emptied
        self.count = rows.num_rows
        self._ops = plain(whole(rows.column(OP)))
        here = {name.lower(): name for name in rows.column_names}
        self.has_before = np.zeros(self.count, bool)
        self._before: pa.StructArray | None = None
        if BEFORE in here.values():
            self._before = whole(rows.column(BEFORE))
            self.has_before = np.asarray(self._before.is_valid())
        self._own = here
        names = [] if schema is None else [column.name for column in schema.columns]
        unified = {name.lower(): name for name in rule.columns.names}
        self._spelled: dict[str, str] = {name: unified.get(name.lower(), name) for name in names}

    def of(self, kept: Flags) -> _Changes:
        return _Changes(self.rows.filter(pa.array(kept)), self.schema, self._rule, self._emptied)

    def op(self, op: str) -> Flags:
        return np.asarray(pc.equal(self._ops, op))

    def after(self, field: pa.Field) -> pa.Array:
        own = self._own.get(field.name.lower())
        return self._fitted(None if own is None else whole(self.rows.column(own)), field)

    def before(self, field: pa.Field) -> pa.Array:
        """The values before; nulls if they were not read."""
        inside = {} if self._before is None else {inner.name.lower(): at for at, inner in enumerate(self._before.type)}
        at = inside.get(field.name.lower())
        return self._fitted(None if at is None else pc.struct_field(self._before, [at]), field)

    def _fitted(self, values: pa.Array | None, field: pa.Field) -> pa.Array:
        if values is None:
            return pa.nulls(self.count, field.type)
        if values.type != field.type:
            values = values.cast(field.type)
        since = self._emptied.get(field.name.lower())
        if since is not None:
            counts = pc.greater_equal(whole(self.rows.column(SEQ)), since)
            values = pc.if_else(counts, values, pa.scalar(None, values.type))
        return values

    def literal(self, *, before: bool) -> pa.MapArray:
        """The exact texts of one of the two row images, by the names that the table's columns have."""
        literal = whole(self.rows.column(LITERAL))
        if literal.null_count == self.count:
            return pa.nulls(self.count, LITERAL_TYPE)
        entries = LiteralEntries.of(literal)
        marked = np.asarray(pc.starts_with(entries.name, BEFORE_MARK))
        kept = entries.where(marked if before else ~marked)
        coded = kept.name.dictionary_encode()
        names = [self._name(name.removeprefix(BEFORE_MARK)) for name in coded.dictionary.to_pylist()]
        found = LiteralEntries(kept.row, pa.array(names, pa.string()).take(coded.indices), kept.text)
        if self._emptied:
            seqs = whole(self.rows.column(SEQ)).to_numpy()[found.row]
            since = np.array([*(self._emptied.get(name.lower(), 0) for name in names), 0], np.int64)
            found = found.where(seqs >= since[filled(coded.indices)])
        return found.array(self.count)

    def lacks(self) -> tuple[pa.DictionaryArray, pa.DictionaryArray]:
        """`_cdc_absent` of the row image after, and of the one before. A column that was dropped since lacks nothing,
        and nothing can fill a virtual column that MariaDB does not log."""
        coded = whole(self.rows.column(ABSENT))
        if coded.null_count == self.count:
            none = pa.nulls(self.count, _TEXT)
            return none, none
        if not pa.types.is_dictionary(coded.type):
            coded = coded.dictionary_encode()
        sets: list[list[str]] = [json.loads(text) for text in coded.dictionary.to_pylist()]
        if self._emptied:  # what is lacking depends on the change's place: rare
            seqs = whole(self.rows.column(SEQ)).to_pylist()
            at = filled(coded.indices).tolist()
            sets = [
                [] if index < 0 else [name for name in sets[index] if seq >= self._emptied.get(_bare(name).lower(), 0)]
                for index, seq in zip(at, seqs, strict=True)
            ]
            each = pa.array(np.arange(self.count, dtype=np.int32))
            coded = pa.DictionaryArray.from_arrays(each, pa.array([""] * self.count))
        columns = () if self.schema is None else self.schema.columns
        unlogged = {column.name for column in columns if not column.logged}
        known = [[name for name in names if _bare(name) not in unlogged] for names in sets]
        return (
            _texts(coded, [[self._name(name) for name in names if name == _bare(name)] for names in known]),
            _texts(coded, [[self._name(_bare(name)) for name in names if name != _bare(name)] for names in known]),
        )

    def _name(self, name: str) -> str:
        return self._spelled.get(name, name)


def _bare(name: str) -> str:
    return name.removeprefix(BEFORE_MARK)


def _texts(coded: pa.DictionaryArray, sets: Sequence[Sequence[str]]) -> pa.DictionaryArray:
    """Values of a dictionary replaced by the texts of these sets of names; null for an empty one."""
    texts = pa.array([absent_text(names) for names in sets], pa.string())
    found: pa.DictionaryArray = texts.take(coded.indices).dictionary_encode().cast(_TEXT)
    return found


def _moves(change: _Changes, rule: TableRule) -> Flags:
    found = np.zeros(change.count, bool)
    update = change.op(UPDATE) & change.has_before
    if not update.any():
        return found
    after, before = change.literal(before=False), change.literal(before=True)
    texts = after.null_count < change.count or before.null_count < change.count
    for name in rule.key:
        field = rule.columns.field(name)
        new, old = change.after(field), change.before(field)
        if texts or pa.types.is_floating(new.type) or pa.types.is_nested(new.type):
            both = exact_codes(pa.concat_arrays([new, old]), pa.concat_arrays([after, before]), name)
            found |= both[: change.count] != both[change.count :]
            continue
        equal = np.asarray(pc.equal(new, old).fill_null(False))
        found |= ~(equal | np.asarray(pc.and_(new.is_null(), old.is_null())))
    return found & update


def _own(change: _Changes, rule: TableRule, moved: Flags, *, renews: bool, batches: pa.Array | None) -> pa.Table:
    update, delete = change.op(UPDATE), change.op(DELETE)
    after, before = change.lacks()
    literal, values = change.literal(before=False), {field.name: change.after(field) for field in rule.columns}
    columns: dict[str, pa.Array] = {}
    if rule.key:
        brings = change.op(INSERT) | change.op(SNAPSHOT) | moved
        columns[ARRIVED] = pa.array(brings)
        columns[INHERITS] = pa.array(moved & np.asarray(after.is_valid()))
        lost = _any_of(after, rule.key) | _any_of(before, rule.key)
        for at, name in enumerate(rule.moving):
            field = rule.columns.field(name)
            columns[was(at)] = _changed(change, field, values[name], update & change.has_before)
        if rule.moving:
            unknown = np.zeros(change.count, bool)
            for name in rule.moving:
                lacks, unsaid = _any_of(after, [name]), _any_of(before, [name])
                unknown |= np.where(update, unsaid & ~lacks & ~moved, delete & lacks)
            columns[SHARD_UNKNOWN] = pa.array(unknown)
    else:
        columns[BATCH] = batches
        lost = np.asarray(before.is_valid()) | (np.asarray(after.is_valid()) & ~update)
        if after.null_count < change.count:
            literal, values = _completed(change, rule, values, literal, after)
    columns[LOST] = pa.array(lost)
    columns[RENEWS] = pa.array(change.op(TRUNCATE) & renews)
    columns[FORMER] = pa.array(np.zeros(change.count, bool))
    return _table(change, rule, values | columns, whole(change.rows.column(OP)), literal, after)


def _former(change: _Changes, rule: TableRule, batches: pa.Array | None) -> pa.Table:
    """The keys that rows left by updates."""
    after, before = change.lacks()
    false = pa.array(np.zeros(change.count, bool))
    columns: dict[str, pa.Array] = {LOST: false, RENEWS: false, FORMER: pa.array(np.ones(change.count, bool))}
    if rule.key:
        columns |= {ARRIVED: false, INHERITS: after.is_valid()}
        for at, name in enumerate(rule.moving):
            columns[was(at)] = pa.nulls(change.count, rule.columns.field(name).type)
        if rule.moving:
            columns[SHARD_UNKNOWN] = pa.array(_any_of(before, rule.moving))
    else:
        columns[BATCH] = batches
    values = {field.name: change.before(field) for field in rule.columns}
    gone = repeated(DELETE, change.count)
    return _table(change, rule, values | columns, gone, change.literal(before=True), before)


def _table(
    change: _Changes,
    rule: TableRule,
    columns: Mapping[str, pa.Array],
    op: pa.Array,
    literal: pa.MapArray,
    lacks: pa.Array,
) -> pa.Table:
    name = "" if change.schema is None else change.schema.name
    every = {
        **columns,
        **{column: whole(change.rows.column(column)) for column in (TS, SOURCE, SEQ, ROW)},
        OP: op,
        LITERAL: literal,
        ABSENT: lacks,
        TABLE: repeated(name, change.count),
    }
    schema = event_schema(rule)
    return pa.Table.from_arrays([_as(every[field.name], field.type) for field in schema], schema=schema)


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    return values.cast(kind)


def _changed(change: _Changes, field: pa.Field, now: pa.Array, among: Flags) -> pa.Array:
    """The value before where an update changed it; null elsewhere."""
    old = change.before(field)
    both = codes(pa.concat_arrays([now, old]))
    differs = (both[: change.count] != both[change.count :]) & among
    return pc.if_else(pa.array(differs), old, pa.scalar(None, field.type))


def _any_of(lacks: pa.DictionaryArray, names: Collection[str]) -> Flags:
    """Which rows lack one of these columns."""
    return lacking(lacks, lambda some: not some.isdisjoint(names))


def lacking(lacks: pa.DictionaryArray, asked: Callable[[frozenset[str]], bool]) -> Flags:
    """The rows whose names in `_cdc_absent` are as asked; False where it is null."""
    found = [asked(frozenset(json.loads(text))) for text in lacks.dictionary.to_pylist()]
    return np.array([*found, False])[filled(lacks.indices)]


def _completed(
    change: _Changes, rule: TableRule, values: Mapping[str, pa.Array], literal: pa.MapArray, lacks: pa.DictionaryArray
) -> tuple[pa.MapArray, dict[str, pa.Array]]:
    """(exact texts, values) of whole rows: what an update did not log of the row after is as in the row before."""
    update = change.op(UPDATE)
    own, older = LiteralEntries.of(literal), LiteralEntries.of(change.literal(before=True))
    found, taken = {}, np.zeros(len(older.row), bool)
    for field in rule.columns:
        from_before = update & _any_of(lacks, [field.name])
        found[field.name] = values[field.name]
        if from_before.any():
            found[field.name] = pc.if_else(pa.array(from_before), change.before(field), values[field.name])
            taken |= older.among([field.name]) & from_before[older.row]
    older = older.where(taken)
    entries = LiteralEntries(
        np.concatenate([own.row, older.row]),
        pa.concat_arrays([own.name, older.name]),
        pa.concat_arrays([own.text, older.text]),
    )
    return entries.array(change.count), found
