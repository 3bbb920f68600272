"""SQL, for DuckDB: a table's state, folded from its staged changes.

A row's state is its last change by (`_cdc_seq`, `_cdc_row`). A delete removes the row; an update that moves it to
another key removes the old key as well; a truncate removes what its source table wrote before it. Rows of several
source tables under one key are apart: one that is deleted from one of them may have moved to another before. Of those
that are left the newest counts, between sources by commit time, then source name. Without a key, whole rows are matched
with multiplicity.
A value that the log did not carry (`_cdc_absent`) is the row's last older one, through changes of its key, back to the
change that brought the row to life. What no staged change has is null, and named in the state's `_cdc_absent`.

With a key, the query is these steps, each a CTE:
  changes          every change under one schema
  truncates        the last truncate of each source table
  key_events       what each change says of a key: that a row has it, or that it is gone
  last_events      the last event of each key; if several source tables feed the table, first of each of them
  row_images       if values are absent: the changes that leave a row, with what they lack
  lives, spans                           the stretches of the log in which a row lived, under each of its keys
  older_values                           what these stretches have last of each column
and the state is the change of each last event whose key is not gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from cdc_core.model.staged import ABSENT, BEFORE_MARK, BOOKKEEPING, DELETE, LITERAL, OP, SEQ, TRUNCATE, TS, UPDATE
from cdc_core.stage.changes_sql import (
    AFTER_LITERAL,
    BEFORE_LITERAL,
    NO_LITERAL,
    SOURCE_TABLE,
    TableFiles,
    absent_names,
    absent_text,
    changes_sql,
    differ,
    key_values,
    literal_or_null,
    old,
    order_key,
    quoted,
    text,
)


def state_sql(table: TableFiles) -> str:
    """The table's state: its columns, `_cdc_seq`, `_cdc_ts`, `_cdc_literal`, `_cdc_absent`, ordered by the key."""
    return _keyed_sql(table) if table.key else _keyless_sql(table)


def state_schema(columns: Sequence[pa.Field]) -> pa.Schema:
    """The columns of a state with these row columns."""
    bookkeeping = {field.name: field for field in BOOKKEEPING}
    return pa.schema(
        [*columns, bookkeeping[SEQ], bookkeeping[TS], bookkeeping[LITERAL], bookkeeping[ABSENT].with_type(pa.string())]
    )


def _changes(table: TableFiles) -> str:
    return f"changes AS ({changes_sql(table.groups, table.all_columns, past=True)})"


_TRUNCATES = f"""truncates AS (
  SELECT _cdc_source, {SOURCE_TABLE}, max({order_key()}) AS _cdc_order
  FROM changes WHERE {OP} = '{TRUNCATE}' GROUP BY ALL)"""


def _not_truncated(change: str, order: str) -> str:
    """Whether no truncate came after a change. change: its alias."""
    return f"""NOT EXISTS (
    SELECT 1 FROM truncates AS truncation
    WHERE truncation._cdc_source = {change}._cdc_source AND truncation.{SOURCE_TABLE} = {change}.{SOURCE_TABLE}
    AND truncation._cdc_order >= {order})"""


def _keyed_sql(table: TableFiles) -> str:
    new, former = key_values(table)
    moves = differ(new, former)
    keys = [f"_cdc_key{number}" for number in range(len(new))]
    ctes = [_changes(table), _TRUNCATES, _key_events(keys, new, former, moves), *_last_events(table, keys)]
    columns = ", ".join(f"change.{quoted(field.name)}" for field in table.columns)
    literal = literal_or_null(AFTER_LITERAL) if table.literals else NO_LITERAL
    absent, older = "NULL::VARCHAR", ""
    if table.absent:
        ctes += [_row_images(table, keys, new, former, moves)]
        ctes += [_lives(table, keys), _spans(table, keys), _older_values(table, keys)]
        columns = _filled_columns(table)
        literal, absent = _filled_literal(table), _still_absent(table)
        older = (
            "LEFT JOIN older_values AS older "
            "ON older._cdc_last = last_event._cdc_order AND older._cdc_source = last_event._cdc_source"
        )
    steps = ",\n".join(ctes)
    return f"""WITH RECURSIVE {steps}
SELECT {columns}, change.{SEQ}, change.{TS}, {literal} AS {LITERAL}, {absent} AS {ABSENT}
FROM changes AS change JOIN last_events AS last_event
  ON change._cdc_source = last_event._cdc_source AND {order_key("change.")} = last_event._cdc_order {older}
WHERE NOT last_event._cdc_gone AND change.{OP} <> '{TRUNCATE}'
ORDER BY {", ".join(f"change.{quoted(name)}" for name in table.key)}"""


def _named(values: Sequence[str], names: Sequence[str]) -> str:
    return ", ".join(f"{value} AS {name}" for value, name in zip(values, names, strict=True))


def _key_events(keys: Sequence[str], new: Sequence[str], former: Sequence[str], moves: str) -> str:
    of = f"_cdc_source, {SOURCE_TABLE}, {order_key()} AS _cdc_order, {TS}"
    return f"""key_events AS (
  SELECT {_named(new, keys)}, {of}, {OP} = '{DELETE}' AS _cdc_gone FROM changes WHERE {OP} <> '{TRUNCATE}'
  UNION ALL
  SELECT {_named(former, keys)}, {of}, true AS _cdc_gone FROM changes WHERE {OP} = '{UPDATE}' AND ({moves}))"""


def _last_events(table: TableFiles, keys: Sequence[str]) -> list[str]:
    """CTEs up to `last_events`. Order keys of different sources cannot be compared: between them, time decides."""
    kept = f"WHERE {_not_truncated('event', 'event._cdc_order')}" if table.truncated else ""
    each = ", ".join([*keys, *_origin(table)])
    of_each = f"""AS (
  SELECT {each}, max(_cdc_order) AS _cdc_order, arg_max(_cdc_gone, _cdc_order) AS _cdc_gone,
         arg_max({TS}, _cdc_order) AS {TS}
  FROM key_events AS event {kept} GROUP BY {each})"""
    if not table.shared:
        return [f"last_events {of_each}"]
    rest = [SOURCE_TABLE, "_cdc_order", "_cdc_gone", TS]
    in_log = f"_cdc_order + CASE WHEN _cdc_gone THEN 0 ELSE {_AFTER_ALL} END"
    of_source = _last_among("last_of_table", [*keys, "_cdc_source"], rest, in_log)
    if not table.several_sources:
        return [f"last_of_table {of_each}", f"last_events {of_source}"]
    between = f"{{'there': NOT _cdc_gone, 'ts': {TS}, 'source': _cdc_source}}"
    of_all = _last_among("last_of_source", keys, ["_cdc_source", *rest], between)
    return [f"last_of_table {of_each}", f"last_of_source {of_source}", f"last_events {of_all}"]


_AFTER_ALL = 1 << 126
"""After all order keys, as one number; twice as much is the most that DuckDB has."""


def _last_among(events: str, group: Sequence[str], rest: Sequence[str], rank: str) -> str:
    """Of each group the last event by a rank, in which those of a row that is there come after all of rows that are
    gone."""
    chosen = ", ".join([*group, *(f"arg_max({column}, {rank}) AS {column}" for column in rest)])
    return f"AS (\n  SELECT {chosen}\n  FROM {events} GROUP BY {', '.join(group)})"


def _origin(table: TableFiles) -> list[str]:
    """Columns by which rows of different source tables are apart. The name of the only one is not compared."""
    return ["_cdc_source", SOURCE_TABLE] if table.shared else ["_cdc_source"]


# Absent values. A row lives from its birth (insert, snapshot, arrival under this key) on; an arrival continues the life
# that the row had under its old key.


def _fillable(table: TableFiles) -> list[tuple[int, pa.Field]]:
    """Columns that an older change can fill, with their numbers. A generated one, too: servers log it when they assign
    what it is computed from. Those that MariaDB never logs are not in `table.columns`."""
    return [(number, field) for number, field in enumerate(table.columns) if field.name not in table.key]


def _row_images(table: TableFiles, keys: Sequence[str], new: Sequence[str], former: Sequence[str], moves: str) -> str:
    row = "".join(f", {quoted(field.name)}" for _, field in _fillable(table))
    return f"""row_images AS (
  SELECT {_named(new, keys)}, {_named(former, [_old_key(key) for key in keys])},
         _cdc_source, {SOURCE_TABLE}, {order_key()} AS _cdc_order, {absent_names()} AS _cdc_lacks,
         {OP} = '{UPDATE}' AND ({moves}) AS _cdc_arrived, {OP} <> '{UPDATE}' OR ({moves}) AS _cdc_born, {LITERAL}{row}
  FROM changes WHERE {OP} NOT IN ('{DELETE}', '{TRUNCATE}'))"""


def _old_key(key: str) -> str:
    return f"{key}_old"


def _same_row(table: TableFiles, keys: Sequence[str], one: str, other: str) -> str:
    equal = [f"{one}.{name} = {other}.{name}" for name in _origin(table)]
    return " AND ".join([*equal, *(f"{one}.{key} IS NOT DISTINCT FROM {other}.{key}" for key in keys)])


def _lives(table: TableFiles, keys: Sequence[str]) -> str:
    """The stretches of each row whose last change lacks values, the last stretch first: the key that the row had, and
    up to where (`_cdc_until`). `_cdc_last` is the order key of the row's last change."""
    origin = _origin(table)
    of_event = ", ".join(f"last_event.{name}" for name in (*origin, *keys))
    of_life = ", ".join(f"life.{name}" for name in origin)
    old_key = ", ".join(f"birth.{_old_key(key)} AS {key}" for key in keys)
    return f"""lives AS (
  SELECT last_event._cdc_order AS _cdc_last, {of_event}, last_event._cdc_order AS _cdc_until
  FROM last_events AS last_event JOIN row_images AS image
    ON {_same_row(table, keys, "image", "last_event")} AND image._cdc_order = last_event._cdc_order
  WHERE NOT last_event._cdc_gone AND len(image._cdc_lacks) > 0
  UNION ALL
  SELECT _cdc_last, {", ".join([*origin, *keys])}, _cdc_until FROM (
    SELECT life._cdc_last, {of_life}, {old_key}, birth._cdc_order - 1 AS _cdc_until, birth._cdc_arrived
    FROM lives AS life JOIN row_images AS birth
      ON {_same_row(table, keys, "birth", "life")} AND birth._cdc_born AND birth._cdc_order <= life._cdc_until
    QUALIFY row_number() OVER (PARTITION BY life._cdc_last, life._cdc_source ORDER BY birth._cdc_order DESC) = 1)
  WHERE _cdc_arrived)"""


def _spans(table: TableFiles, keys: Sequence[str]) -> str:
    """Each stretch with where it begins: at its birth, or, if that is not staged, before everything that is."""
    of_life = ", ".join(f"life.{name}" for name in (*_origin(table), *keys))
    return f"""spans AS (
  SELECT life._cdc_last, {of_life}, life._cdc_until, coalesce(max(birth._cdc_order), -1) AS _cdc_since
  FROM lives AS life LEFT JOIN row_images AS birth
    ON {_same_row(table, keys, "birth", "life")} AND birth._cdc_born AND birth._cdc_order <= life._cdc_until
  GROUP BY ALL)"""


def _older_values(table: TableFiles, keys: Sequence[str]) -> str:
    """By row: the last value and exact text of each fillable column; null where no change of its lives carries it."""
    values = "".join(
        f", arg_max({{'value': image.{quoted(field.name)}{'::VARCHAR' if _float(field.type) else ''}, "
        f"'literal': image.{LITERAL}[{text(field.name)}]}}, image._cdc_order) "
        f"FILTER (NOT list_contains(image._cdc_lacks, {text(field.name)})) AS {_older(number)}"
        for number, field in _fillable(table)
    )
    return f"""older_values AS (
  SELECT span._cdc_last, span._cdc_source{values}
  FROM spans AS span JOIN row_images AS image
    ON {_same_row(table, keys, "image", "span")} AND image._cdc_order BETWEEN span._cdc_since AND span._cdc_until
  GROUP BY span._cdc_last, span._cdc_source)"""


def _older(number: int) -> str:
    return f"_cdc_older{number}"


def _float(kind: pa.DataType) -> str:
    """DuckDB's name of a type of floating-point numbers, else "".

    It groups 0.0 and -0.0 together, and its arg_max changes a -0.0 inside a structure to 0.0. The text of a number is
    exact, and stays as it is.
    """
    if pa.types.is_list(kind):
        return one + "[]" if (one := _float(kind.value_type)) else ""
    return {pa.float32(): "FLOAT", pa.float64(): "DOUBLE"}.get(kind, "")


def _filled_columns(table: TableFiles) -> str:
    """The state's columns, filled where the last change lacks them."""
    columns = {number: f"change.{quoted(field.name)}" for number, field in enumerate(table.columns)}
    for number, field in _fillable(table):
        kind = _float(field.type)
        older = f"older.{_older(number)}.value{'::' + kind if kind else ''}"
        lacks = f"list_contains({absent_names('change.')}, {text(field.name)})"
        columns[number] = f"CASE WHEN {lacks} THEN {older} ELSE {columns[number]} END AS {quoted(field.name)}"
    return ", ".join(columns.values())


def _filled_literal(table: TableFiles) -> str:
    older = ", ".join(
        f"{{'key': {text(field.name)}, 'value': older.{_older(number)}.literal}}" for number, field in _fillable(table)
    )
    own = (
        f"list_filter(coalesce(map_entries(change.{LITERAL}), []), "
        f"lambda _cdc_entry: NOT starts_with(_cdc_entry.key, '{BEFORE_MARK}'))"
    )
    every = (
        f"list_concat({own}, list_filter([{older}]::STRUCT(key VARCHAR, value VARCHAR)[], lambda _cdc_entry: "
        f"_cdc_entry.value IS NOT NULL AND list_contains({absent_names('change.')}, _cdc_entry.key)))"
    )
    return f"CASE WHEN len({every}) > 0 THEN map_from_entries({every}) ELSE {NO_LITERAL} END"


def _still_absent(table: TableFiles) -> str:
    filled = ", ".join(
        f"CASE WHEN older.{_older(number)} IS NOT NULL THEN {text(field.name)} END"
        for number, field in _fillable(table)
    )
    return absent_text(
        f"list_filter({absent_names('change.')}, lambda _cdc_name: NOT starts_with(_cdc_name, '{BEFORE_MARK}') "
        f"AND NOT list_contains([{filled}]::VARCHAR[], _cdc_name))"
    )


def _keyless_sql(table: TableFiles) -> str:
    """Each change adds a copy of its row, and an update or a delete takes one away: the copies that are left.

    Generated columns do not count, where rows are compared.
    """
    computed = _computed(table)
    row = ", ".join(quoted(field.name) for field in table.columns if field not in computed)
    new = _listed(table, lambda field: _grouped(quoted(field.name), field))
    former = _listed(table, lambda field: _grouped(old(field.name), field))
    left = _listed(table, lambda field: _number_again(quoted(field.name), field.type))
    # Rows are compared with their exact texts, so null and an empty map must be one.
    after = f"coalesce({_without(AFTER_LITERAL, computed)}, MAP {{}})" if table.literals else NO_LITERAL
    before = f"coalesce({_without(BEFORE_LITERAL, computed)}, MAP {{}})" if table.literals else NO_LITERAL
    literal = literal_or_null("_cdc_texts") if table.literals else "_cdc_texts"
    lacks, lacked = (_lacks(table, computed, mark) for mark in ("", BEFORE_MARK))
    known = "".join(
        f", any_value({quoted(field.name)}) FILTER (WHERE NOT {_lacking(at)}) AS {quoted(field.name)}, "
        f"bool_and({_lacking(at)}) AS {_lacking(at)}"
        for at, field in enumerate(computed)
    )
    lost = ", ".join(f"CASE WHEN {_lacking(at)} THEN {text(field.name)} END" for at, field in enumerate(computed))
    absent = absent_text(f"list_filter([{lost}], lambda _cdc_name: _cdc_name IS NOT NULL)") if lost else "NULL::VARCHAR"
    return f"""WITH {_changes(table)},
{_TRUNCATES},
kept AS (
  SELECT * FROM changes AS change WHERE {OP} <> '{TRUNCATE}' AND {_not_truncated("change", order_key("change."))}),
copies AS (
  SELECT {new}, {after} AS _cdc_texts, CASE WHEN {OP} = '{DELETE}' THEN -1 ELSE 1 END AS _cdc_copies, {SEQ},
         {TS}{lacks}
  FROM kept
  UNION ALL
  SELECT {former}, {before} AS _cdc_texts, -1 AS _cdc_copies, {SEQ}, {TS}{lacked} FROM kept WHERE {OP} = '{UPDATE}'),
left_over AS (
  SELECT {row}, _cdc_texts, sum(_cdc_copies) AS _cdc_copies,
         max({SEQ}) FILTER (WHERE _cdc_copies > 0) AS {SEQ}, max({TS}) FILTER (WHERE _cdc_copies > 0) AS {TS}{known}
  FROM copies GROUP BY {row}, _cdc_texts HAVING sum(_cdc_copies) > 0)
SELECT {left}, {SEQ}, {TS}, {literal} AS {LITERAL}, {absent} AS {ABSENT}
FROM (SELECT *, unnest(range(_cdc_copies::BIGINT)) AS _cdc_copy FROM left_over) ORDER BY {SEQ}, {row}"""


def _computed(table: TableFiles) -> list[pa.Field]:
    """Generated columns. Not every image of a row has their values, and what they are computed from says which row it
    is."""
    columns = [column for group in table.groups for column in group.schema.columns]
    names = {one.name.lower() for one in columns if one.generated} - {
        one.name.lower() for one in columns if not one.generated
    }
    return [field for field in table.columns if field.name.lower() in names]


def _lacking(at: int) -> str:
    return f"_cdc_lacks{at}"


def _lacks(table: TableFiles, computed: Sequence[pa.Field], mark: str) -> str:
    """Of each of these columns, whether a row's image lacks it, or has it in its exact texts alone."""
    found = ""
    for at, field in enumerate(computed):
        name = text(mark + field.name)
        exact = f" OR {LITERAL}[{name}] IS NOT NULL" if table.literals else ""
        found += f", list_contains({absent_names()}, {name}){exact} AS {_lacking(at)}"
    return found


def _without(literal: str, computed: Sequence[pa.Field]) -> str:
    """Exact texts but those of these columns."""
    if not computed:
        return literal
    names = ", ".join(text(field.name) for field in computed)
    return (
        f"map_from_entries(list_filter(map_entries({literal}), "
        f"lambda _cdc_entry: NOT list_contains([{names}], _cdc_entry.key)))"
    )


def _listed(table: TableFiles, value: Callable[[pa.Field], str]) -> str:
    return ", ".join(f"{value(field)} AS {quoted(field.name)}" for field in table.columns)


def _grouped(value: str, field: pa.Field) -> str:
    """A value to group by: as numbers, 0.0 and -0.0 would be one, and so would rows that have them."""
    return f"{value}::VARCHAR" if _float(field.type) else value


def _number_again(value: str, kind: pa.DataType) -> str:
    return f"{value}::{name}" if (name := _float(kind)) else value
