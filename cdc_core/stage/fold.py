"""SQL, for DuckDB, over staged files: all changes of a table under one schema, and the table's state folded from them.

A row's state is its last change by (`_cdc_seq`, `_cdc_row`); between sources by commit time, then source name.
A delete removes the row; an update that moves it to another key removes the old key as well; a truncate removes what
its source table wrote before it. Without a key, whole rows are matched with multiplicity.
A value that the log did not carry (`_cdc_absent`) is the row's last older one, through changes of its key, back to the
change that brought the row to life. What no staged change has is null, and named in the state's `_cdc_absent`.
Only texts are built here: no file is opened. Internal names begin with `_lockstep`, so that no row's column has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from cdc_core.errors import Refused
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged import (
    ABSENT,
    BEFORE,
    BEFORE_MARK,
    BOOKKEEPING,
    DELETE,
    INSERT,
    LITERAL,
    OP,
    SEQ,
    TRUNCATE,
    TS,
    UPDATE,
)

_TYPES = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT", pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER", pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN", pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP", pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
    pa.string(): "VARCHAR", pa.binary(): "BLOB", pa.list_(pa.float32()): "FLOAT[]",
}  # fmt: skip

_PLACE = "({of}_cdc_seq::HUGEINT * 9223372036854775808 + {of}_cdc_row)"
"""Seq and row as one number: both have up to 63 bits."""

_AFTER_LITERAL = (
    "map_from_entries(list_filter(map_entries(_cdc_literal), "
    "lambda _lockstep_e: NOT starts_with(_lockstep_e.key, '_before.')))"
)
_BEFORE_LITERAL = (
    "map_from_entries([{'key': _lockstep_e.key[9:], 'value': _lockstep_e.value} "
    "FOR _lockstep_e IN map_entries(_cdc_literal) IF starts_with(_lockstep_e.key, '_before.')])"
)


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Local files of one definition."""

    schema: TableSchema
    files: tuple[str, ...]
    condition: str = "true"
    """The condition on the changes in them that count."""
    emptied: Mapping[str, int] = field(default_factory=dict)
    """Column, in small letters, -> the order key where it was added after it had been dropped: null before it."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold needs to know of a table.

    columns:     the state's columns: those of the last definitions.
    all_columns: those of every definition.
    literals:    some value is in `_cdc_literal`.
    truncated:   some change is a truncate.
    absent:      some change lacks values.
    """

    groups: tuple[FileGroup, ...]
    columns: tuple[pa.Field, ...]
    all_columns: tuple[pa.Field, ...]
    key: tuple[str, ...]
    literals: bool
    truncated: bool
    absent: bool
    several_sources: bool


def quoted(name: str) -> str:
    """A SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A SQL string."""
    return "'" + value.replace("'", "''") + "'"


def duck_type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _TYPES[kind]


def key_of(table: str, definitions: Sequence[TableSchema], groups: Sequence[FileGroup]) -> tuple[str, ...]:
    """The key of the last definitions; () if they have none, or different ones.

    Raises Refused (stage.key) where an older definition lacks one of its columns.
    """
    keys = {schema.key for schema in definitions}
    key = keys.pop() if len(keys) == 1 else ()
    for group in groups:
        check_key(table, key, group.schema)
    return key


def check_key(table: str, key: Sequence[str], schema: TableSchema) -> None:
    lacking = [name for name in key if name.lower() not in {column.name.lower() for column in schema.columns}]
    if lacking:
        raise Refused(
            f"The key column {lacking[0]!r} is not in every definition of the table.",
            where=f"{table}: {schema.name} as of definition {schema.id}",
            code="stage.key",
            remedy="give a key that all staged definitions have, or read only the batches since the change",
        )


def changes_sql(groups: Sequence[FileGroup], columns: Sequence[pa.Field]) -> str:
    """All changes under one schema: row columns, `_before`, bookkeeping, and `_lockstep_table` (the source's table)."""
    return "\nUNION ALL BY NAME\n".join(_group_sql(group, columns) for group in groups)


def state_sql(folded: Folded) -> str:
    """The table's state: its columns, `_cdc_seq`, `_cdc_ts`, `_cdc_literal`, `_cdc_absent`, ordered by the key."""
    changes = "\nUNION ALL BY NAME\n".join(_group_sql(group, folded.all_columns, past=True) for group in folded.groups)
    return _keyed_sql(changes, folded) if folded.key else _keyless_sql(changes, folded)


def state_schema(columns: Sequence[pa.Field]) -> pa.Schema:
    notes = {field.name: field for field in BOOKKEEPING}
    return pa.schema([*columns, notes[SEQ], notes[TS], notes[LITERAL], notes[ABSENT].with_type(pa.string())])


def _group_sql(group: FileGroup, columns: Sequence[pa.Field], *, past: bool = False) -> str:
    """past: without values of columns that were dropped since, and added again."""
    emptied = group.emptied if past else {}
    own = {column.name.lower(): column for column in group.schema.columns}
    chosen = [f"{_unified(quoted, own, field, emptied)} AS {quoted(field.name)}" for field in columns]
    same = [(field.name, field.type) for field in columns] == [(one.name, one.type.arrow) for one in own.values()]
    if same and not emptied:
        before = BEFORE
    else:
        inner = ", ".join(f"{quoted(field.name)} := {_unified(_old, own, field, emptied)}" for field in columns)
        before = f"CASE WHEN {BEFORE} IS NOT NULL THEN struct_pack({inner}) END AS {BEFORE}"
    notes = {field.name: field.name for field in BOOKKEEPING}
    if emptied:
        kept = f"list_filter(map_entries({LITERAL}), lambda _lockstep_e: NOT ({_lost('_lockstep_e.key', emptied)}))"
        notes[LITERAL] = f"CASE WHEN len({kept}) > 0 THEN map_from_entries({kept}) END AS {LITERAL}"
        left = f"list_filter({_ABSENT_LIST.format(of='')}, lambda _lockstep_e: NOT ({_lost('_lockstep_e', emptied)}))"
        notes[ABSENT] = f"CASE WHEN len({left}) > 0 THEN to_json({left})::VARCHAR END AS {ABSENT}"
    names = list(notes.values())
    files = ", ".join(text(file) for file in group.files)
    return (
        f"SELECT {', '.join([*chosen, before, *names])}, {text(group.schema.name)} AS _lockstep_table "
        f"FROM read_parquet([{files}], hive_partitioning = false) WHERE {group.condition}"
    )


def _lost(name: str, emptied: Mapping[str, int]) -> str:
    """Whether a note of this name is of a value from before its column was dropped."""
    terms = [
        f"(lower({name}) IN ({text(column)}, {text(BEFORE_MARK + column)}) AND _cdc_seq < {seq})"
        for column, seq in sorted(emptied.items())
    ]
    return " OR ".join(terms)


def _unified(
    place: Callable[[str], str], own: Mapping[str, Column], field: pa.Field, emptied: Mapping[str, int]
) -> str:
    """A definition's column, found by its name in `place`, as the unified one; null where the definition lacks it, and
    where the value is one of before the column was dropped."""
    column = own.get(field.name.lower())
    if column is None:
        return f"NULL::{duck_type(field.type)}"
    value = place(column.name)
    if column.type.arrow != field.type:
        value = f"CAST({value} AS {duck_type(field.type)})"
    since = emptied.get(field.name.lower())
    return value if since is None else f"CASE WHEN _cdc_seq >= {since} THEN {value} END"


def _old(name: str) -> str:
    return f"struct_extract({BEFORE}, {text(name)})"


def _key_values(folded: Folded) -> tuple[list[str], list[str]]:
    """SQL of what identifies a row after a change, and before it."""
    new = [quoted(name) for name in folded.key]
    old = [_old(name) for name in folded.key]
    if folded.literals:
        new += [f"_cdc_literal[{text(name)}]" for name in folded.key]
        old += [f"_cdc_literal[{text(BEFORE_MARK + name)}]" for name in folded.key]
    return new, old


def by_key_sql(folded: Folded) -> str:
    """All changes under one schema, each a change of one key: the last of a key says whether the row exists, and how.

    An update that changes the key is a delete of the old key and an insert of the new one, with `_before` null in both.
    A truncate is a delete of each key that lives, of which it has the key alone. Columns as `changes_sql` has them.
    folded must have a key.
    """
    new, old = _key_values(folded)
    moved = " OR ".join(f"{a} IS DISTINCT FROM {b}" for a, b in zip(new, old, strict=True))
    place = _PLACE.format(of="")
    changes = changes_sql(folded.groups, folded.all_columns)
    names = [quoted(field.name) for field in folded.all_columns]
    notes = [field.name for field in BOOKKEEPING if field.name not in (OP, LITERAL, ABSENT)] + ["_lockstep_table"]
    row, rest = ", ".join(names), ", ".join(notes)
    was = ", ".join(f"{_old(field.name)} AS {quoted(field.name)}" for field in folded.all_columns)
    lists = _ABSENT_LIST.format(of="")
    new_absent = f"list_filter({lists}, lambda _lockstep_e: NOT starts_with(_lockstep_e, '_before.'))"
    old_absent = f"[_lockstep_e[9:] FOR _lockstep_e IN {lists} IF starts_with(_lockstep_e, '_before.')]"
    empty = "NULL::MAP(VARCHAR, VARCHAR)"

    def side(op: str, values: str, literal: str, absent: str) -> str:
        kept = f"CASE WHEN len(map_keys({literal})) > 0 THEN {literal} ELSE {empty} END" if folded.literals else empty
        lacks = f"CASE WHEN len({absent}) > 0 THEN to_json({absent})::VARCHAR END" if folded.absent else "NULL::VARCHAR"
        return (
            f"SELECT {values}, NULL AS {BEFORE}, {text(op)} AS {OP}, {kept} AS {LITERAL}, {lacks} AS {ABSENT}, {rest} "
            "FROM changes WHERE _lockstep_moved"
        )

    plain = f"SELECT {row}, {BEFORE}, {OP}, {LITERAL}, {ABSENT}, {rest} FROM changes WHERE NOT _lockstep_moved"
    sides = [
        plain + (f" AND _cdc_op <> '{TRUNCATE}'" if folded.truncated else ""),
        side(DELETE, was, _BEFORE_LITERAL, old_absent),
        side(INSERT, row, _AFTER_LITERAL, new_absent),
    ]
    ctes = [
        f"changes AS (SELECT *, _cdc_op = '{UPDATE}' AND ({moved}) AS _lockstep_moved, {place} AS _lockstep_place "
        f"FROM ({changes}))"
    ]
    if folded.truncated:
        ctes += _truncated_ctes(folded, new, old)
        sides.append(_truncated_side(folded, notes))
    union = " UNION ALL BY NAME ".join(sides)
    return f"WITH {', '.join(ctes)} SELECT {row}, {BEFORE}, {', '.join(_ALL_NOTES)} FROM ({union})"


_ALL_NOTES = [field.name for field in BOOKKEEPING] + ["_lockstep_table"]


def _truncated_ctes(folded: Folded, new: Sequence[str], old: Sequence[str]) -> list[str]:
    """CTEs up to `ended`: the keys that live when their table is truncated, each with the truncate's place."""
    of = "_cdc_source, _lockstep_table, _lockstep_place"
    keys = ", ".join(f"k{number}" for number in range(len(new)))
    new_keys = ", ".join(f"{value} AS k{number}" for number, value in enumerate(new))
    old_keys = ", ".join(f"{value} AS k{number}" for number, value in enumerate(old))
    return [
        f"truncates AS (SELECT * FROM changes WHERE _cdc_op = '{TRUNCATE}')",
        f"""events AS (
  SELECT {new_keys}, _cdc_op = '{DELETE}' AS gone, {of} FROM changes WHERE _cdc_op <> '{TRUNCATE}'
  UNION ALL SELECT {old_keys}, true AS gone, {of} FROM changes WHERE _lockstep_moved)""",
        f"""ended AS (
  SELECT {keys}, _lockstep_e._cdc_source, _lockstep_e._lockstep_table, _lockstep_t._lockstep_place AS place
  FROM events AS _lockstep_e ASOF JOIN truncates AS _lockstep_t
    ON _lockstep_e._cdc_source = _lockstep_t._cdc_source AND _lockstep_e._lockstep_table = _lockstep_t._lockstep_table
    AND _lockstep_e._lockstep_place <= _lockstep_t._lockstep_place
  GROUP BY ALL HAVING NOT arg_max(_lockstep_e.gone, _lockstep_e._lockstep_place))""",
    ]


def _truncated_side(folded: Folded, notes: Sequence[str]) -> str:
    numbers = {name.lower(): number for number, name in enumerate(folded.key)}
    values = ", ".join(
        f"{f'k{number}' if (number := numbers.get(field.name.lower())) is not None else 'NULL'} AS {quoted(field.name)}"
        for field in folded.all_columns
    )
    literal = "NULL"
    if folded.literals:
        pairs = ", ".join(
            f"{{'key': {text(name)}, 'value': k{len(folded.key) + number}}}" for number, name in enumerate(folded.key)
        )
        kept = f"list_filter([{pairs}], lambda _lockstep_e: _lockstep_e.value IS NOT NULL)"
        literal = f"CASE WHEN len({kept}) > 0 THEN map_from_entries({kept}) END"
    rest = ", ".join(f"_lockstep_t.{name}" for name in notes)
    return (
        f"SELECT {values}, NULL AS {BEFORE}, {text(DELETE)} AS {OP}, {literal} AS {LITERAL}, NULL AS {ABSENT}, {rest} "
        "FROM ended AS _lockstep_e JOIN truncates AS _lockstep_t ON _lockstep_e._cdc_source = _lockstep_t._cdc_source "
        "AND _lockstep_e._lockstep_table = _lockstep_t._lockstep_table "
        "AND _lockstep_e.place = _lockstep_t._lockstep_place"
    )


def _keyed_sql(changes: str, folded: Folded) -> str:
    new, old = _key_values(folded)
    keys = [f"k{index}" for index in range(len(new))]
    new_keys = ", ".join(f"{value} AS {key}" for value, key in zip(new, keys, strict=True))
    old_keys = ", ".join(f"{value} AS {key}" for value, key in zip(old, keys, strict=True))
    moved = " OR ".join(f"{a} IS DISTINCT FROM {b}" for a, b in zip(new, old, strict=True))
    key_list = ", ".join(keys)
    place = _PLACE.format(of="")
    kept = ""
    if folded.truncated:
        kept = (
            "WHERE NOT EXISTS (SELECT 1 FROM truncates AS _lockstep_t"
            " WHERE _lockstep_t._cdc_source = _lockstep_e._cdc_source"
            " AND _lockstep_t._lockstep_table = _lockstep_e._lockstep_table AND _lockstep_t.place >= _lockstep_e.place)"
        )
    last = "per_source"
    across = ""
    if folded.several_sources:
        last = "per_key"
        across = f""", per_key AS (
  SELECT {key_list}, arg_max(_cdc_source, {{'a': ts, 'b': _cdc_source}}) AS _cdc_source,
         arg_max(gone, {{'a': ts, 'b': _cdc_source}}) AS gone, arg_max(place, {{'a': ts, 'b': _cdc_source}}) AS place
  FROM per_source GROUP BY {key_list})"""
    columns = ", ".join(f"_lockstep_c.{quoted(field.name)}" for field in folded.columns)
    literal, absent, fill, join = _literal(folded), "NULL::VARCHAR", "", ""
    if folded.absent:
        fillable = dict(_fillable(folded))
        columns = ", ".join(
            _shown(number, field) if number in fillable else f"_lockstep_c.{quoted(field.name)}"
            for number, field in enumerate(folded.columns)
        )
        literal, absent = _filled_literal(folded), _still_absent(folded)
        fill = _fill_sql(folded, last, keys, new_keys, old, moved)
        join = (
            "LEFT JOIN filled AS _lockstep_f ON _lockstep_f.last = _lockstep_w.place "
            "AND _lockstep_f._cdc_source = _lockstep_w._cdc_source"
        )
    return f"""WITH RECURSIVE changes AS ({changes}),
truncates AS (
  SELECT _cdc_source, _lockstep_table, max({place}) AS place FROM changes WHERE _cdc_op = '{TRUNCATE}' GROUP BY ALL),
events AS (
  SELECT {new_keys}, _cdc_source, _lockstep_table, {place} AS place, _cdc_ts AS ts, _cdc_op = '{DELETE}' AS gone
  FROM changes WHERE _cdc_op <> '{TRUNCATE}'
  UNION ALL
  SELECT {old_keys}, _cdc_source, _lockstep_table, {place} AS place, _cdc_ts AS ts, true AS gone
  FROM changes WHERE _cdc_op = '{UPDATE}' AND ({moved})),
per_source AS (
  SELECT {key_list}, _cdc_source, max(place) AS place, arg_max(gone, place) AS gone, arg_max(ts, place) AS ts
  FROM events AS _lockstep_e {kept} GROUP BY {key_list}, _cdc_source){across}{fill}
SELECT {columns}, _lockstep_c._cdc_seq, _lockstep_c._cdc_ts, {literal} AS _cdc_literal, {absent} AS _cdc_absent
FROM changes AS _lockstep_c JOIN {last} AS _lockstep_w
  ON _lockstep_c._cdc_source = _lockstep_w._cdc_source AND {_PLACE.format(of="_lockstep_c.")} = _lockstep_w.place {join}
WHERE NOT _lockstep_w.gone AND _lockstep_c._cdc_op <> '{TRUNCATE}'
ORDER BY {", ".join(f"_lockstep_c.{quoted(name)}" for name in folded.key)}"""


def _literal(folded: Folded) -> str:
    empty = "NULL::MAP(VARCHAR, VARCHAR)"
    if not folded.literals:
        return empty
    return f"CASE WHEN len(map_keys({_AFTER_LITERAL})) > 0 THEN {_AFTER_LITERAL} ELSE {empty} END"


_ABSENT_LIST = "coalesce(from_json({of}_cdc_absent, '[\"VARCHAR\"]'), []::VARCHAR[])"


def _fillable(folded: Folded) -> list[tuple[int, pa.Field]]:
    """Columns that an older change can fill, with their numbers: what is computed from others is not kept anywhere."""
    return [
        (number, field)
        for number, field in enumerate(folded.columns)
        if b"generated" not in (field.metadata or {}) and field.name not in folded.key
    ]


def _fill_sql(folded: Folded, last: str, keys: Sequence[str], new_keys: str, old: Sequence[str], moved: str) -> str:
    """CTEs up to `filled`: of each last change that lacks values, those of the row's older changes.

    A row lives from its birth (insert, snapshot, arrival under this key) on; an arrival continues the life that the row
    had under its old key. `lives` are these stretches, last first; `last` is the place of the row's last change.
    """
    old_keys = ", ".join(f"{value} AS was{number}" for number, value in enumerate(old))
    key_list = ", ".join(f"_lockstep_w.{key}" for key in keys)
    was_list = ", ".join(f"_lockstep_b.was{number} AS {key}" for number, key in enumerate(keys))

    def same(one: str, other: str) -> str:
        terms = [f"{one}.{key} IS NOT DISTINCT FROM {other}.{key}" for key in keys]
        return " AND ".join([f"{one}._cdc_source = {other}._cdc_source", *terms])

    values = ", ".join(
        f"arg_max({{'v': _lockstep_h.{quoted(field.name)}{'::VARCHAR' if _float(field.type) else ''}, "
        f"'l': _lockstep_h._cdc_literal[{text(field.name)}]}}, "
        f"_lockstep_h.place) FILTER (NOT list_contains(_lockstep_h.lacks, {text(field.name)})) AS f{number}"
        for number, field in _fillable(folded)
    )
    row = ", ".join(quoted(field.name) for _, field in _fillable(folded))
    return f""",
history AS (
  SELECT {new_keys}, {old_keys}, _cdc_source, {_PLACE.format(of="")} AS place, {_ABSENT_LIST.format(of="")} AS lacks,
         _cdc_op = '{UPDATE}' AND ({moved}) AS arrived, _cdc_op <> '{UPDATE}' OR ({moved}) AS born,
         _cdc_literal{row and ", " + row}
  FROM changes WHERE _cdc_op NOT IN ('{DELETE}', '{TRUNCATE}')),
lives AS (
  SELECT _lockstep_w.place AS last, _lockstep_w._cdc_source, {key_list}, _lockstep_w.place AS until
  FROM {last} AS _lockstep_w JOIN history AS _lockstep_h
    ON {same("_lockstep_h", "_lockstep_w")} AND _lockstep_h.place = _lockstep_w.place
  WHERE NOT _lockstep_w.gone AND len(_lockstep_h.lacks) > 0
  UNION ALL
  SELECT last, _cdc_source, {", ".join(keys)}, until FROM (
    SELECT _lockstep_w.last, _lockstep_w._cdc_source, {was_list}, _lockstep_b.place - 1 AS until, _lockstep_b.arrived
    FROM lives AS _lockstep_w JOIN history AS _lockstep_b
      ON {same("_lockstep_b", "_lockstep_w")} AND _lockstep_b.born AND _lockstep_b.place <= _lockstep_w.until
    QUALIFY row_number() OVER (
      PARTITION BY _lockstep_w.last, _lockstep_w._cdc_source ORDER BY _lockstep_b.place DESC) = 1)
  WHERE arrived),
spans AS (
  SELECT _lockstep_w.last, _lockstep_w._cdc_source, {key_list}, _lockstep_w.until,
         coalesce(max(_lockstep_b.place), -1) AS since
  FROM lives AS _lockstep_w LEFT JOIN history AS _lockstep_b
    ON {same("_lockstep_b", "_lockstep_w")} AND _lockstep_b.born AND _lockstep_b.place <= _lockstep_w.until
  GROUP BY ALL),
filled AS (
  SELECT _lockstep_w.last, _lockstep_w._cdc_source{values and ", " + values}
  FROM spans AS _lockstep_w JOIN history AS _lockstep_h
    ON {same("_lockstep_h", "_lockstep_w")} AND _lockstep_h.place BETWEEN _lockstep_w.since AND _lockstep_w.until
  GROUP BY _lockstep_w.last, _lockstep_w._cdc_source)"""


def _float(kind: pa.DataType) -> str:
    """DuckDB's name of a type of floating-point numbers, else "".

    Its arg_max changes a -0.0 inside a structure to 0.0. The text of a number is exact, and stays as it is.
    """
    if pa.types.is_list(kind):
        return one + "[]" if (one := _float(kind.value_type)) else ""
    return {pa.float32(): "FLOAT", pa.float64(): "DOUBLE"}.get(kind, "")


def _shown(number: int, field: pa.Field) -> str:
    """A fillable column of the state: filled where the last change lacks it."""
    name = quoted(field.name)
    lacks = f"list_contains({_ABSENT_LIST.format(of='_lockstep_c.')}, {text(field.name)})"
    kind = _float(field.type)
    older = f"_lockstep_f.f{number}.v{'::' + kind if kind else ''}"
    return f"CASE WHEN {lacks} THEN {older} ELSE _lockstep_c.{name} END AS {name}"


def _filled_literal(folded: Folded) -> str:
    fillable = _fillable(folded)
    entries = [f"{{'key': {text(field.name)}, 'value': _lockstep_f.f{number}.l}}" for number, field in fillable]
    lacks = _ABSENT_LIST.format(of="_lockstep_c.")
    own = (
        "list_filter(coalesce(map_entries(_cdc_literal), []), "
        "lambda _lockstep_e: NOT starts_with(_lockstep_e.key, '_before.'))"
    )
    every = (
        f"list_concat({own}, list_filter([{', '.join(entries)}]::STRUCT(key VARCHAR, value VARCHAR)[], "
        f"lambda _lockstep_e: _lockstep_e.value IS NOT NULL AND list_contains({lacks}, _lockstep_e.key)))"
    )
    return f"CASE WHEN len({every}) > 0 THEN map_from_entries({every}) ELSE NULL::MAP(VARCHAR, VARCHAR) END"


def _still_absent(folded: Folded) -> str:
    filled = ", ".join(
        f"CASE WHEN _lockstep_f.f{number} IS NOT NULL THEN {text(field.name)} END"
        for number, field in _fillable(folded)
    )
    rest = (
        f"list_filter({_ABSENT_LIST.format(of='_lockstep_c.')}, lambda _lockstep_e: "
        f"NOT starts_with(_lockstep_e, '_before.') AND NOT list_contains([{filled}]::VARCHAR[], _lockstep_e))"
    )
    return f"CASE WHEN len({rest}) > 0 THEN to_json({rest})::VARCHAR END"


def _keyless_sql(changes: str, folded: Folded) -> str:
    new = ", ".join(quoted(field.name) for field in folded.columns)
    old = ", ".join(f"{_old(field.name)} AS {quoted(field.name)}" for field in folded.columns)
    place = _PLACE.format(of="")
    empty = "NULL::MAP(VARCHAR, VARCHAR)"
    after = f"coalesce({_AFTER_LITERAL}, MAP {{}})" if folded.literals else empty
    before = f"coalesce({_BEFORE_LITERAL}, MAP {{}})" if folded.literals else empty
    shown = "_lockstep_lit"
    if folded.literals:
        shown = f"CASE WHEN len(map_keys(_lockstep_lit)) > 0 THEN _lockstep_lit ELSE {empty} END"
    return f"""WITH changes AS ({changes}),
truncates AS (
  SELECT _cdc_source, _lockstep_table, max({place}) AS place FROM changes WHERE _cdc_op = '{TRUNCATE}' GROUP BY ALL),
kept AS (
  SELECT * FROM changes AS _lockstep_e WHERE _cdc_op <> '{TRUNCATE}' AND NOT EXISTS (
    SELECT 1 FROM truncates AS _lockstep_t
    WHERE _lockstep_t._cdc_source = _lockstep_e._cdc_source
    AND _lockstep_t._lockstep_table = _lockstep_e._lockstep_table
    AND _lockstep_t.place >= {_PLACE.format(of="_lockstep_e.")})),
moves AS (
  SELECT {new}, {after} AS _lockstep_lit, CASE WHEN _cdc_op = '{DELETE}' THEN -1 ELSE 1 END AS _lockstep_n,
         _cdc_seq, _cdc_ts
  FROM kept
  UNION ALL
  SELECT {old}, {before} AS _lockstep_lit, -1 AS _lockstep_n, _cdc_seq, _cdc_ts FROM kept WHERE _cdc_op = '{UPDATE}'),
counted AS (
  SELECT {new}, _lockstep_lit, sum(_lockstep_n) AS _lockstep_n,
         max(_cdc_seq) FILTER (WHERE _lockstep_n > 0) AS _cdc_seq,
         max(_cdc_ts) FILTER (WHERE _lockstep_n > 0) AS _cdc_ts
  FROM moves GROUP BY {new}, _lockstep_lit HAVING sum(_lockstep_n) > 0)
SELECT {new}, _cdc_seq, _cdc_ts, {shown} AS _cdc_literal, NULL::VARCHAR AS _cdc_absent
FROM (SELECT *, unnest(range(_lockstep_n::BIGINT)) AS _lockstep_copy FROM counted) ORDER BY _cdc_seq, {new}"""
