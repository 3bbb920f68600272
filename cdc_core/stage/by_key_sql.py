"""SQL, for DuckDB: every staged change of a table as a change of one key. The last one of a key says whether the row
exists, and how.

An update that changes the key is a delete of the old key and an insert of the new one, with `_before` null in both.
A truncate is a delete of each key that lives, of which it has the key alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_core.model.staged import (
    ABSENT,
    BEFORE,
    BEFORE_MARK,
    BOOKKEEPING,
    DELETE,
    INSERT,
    LITERAL,
    OP,
    TRUNCATE,
    UPDATE,
)
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

_BOOKKEEPING = [*(field.name for field in BOOKKEEPING), SOURCE_TABLE]
_UNCHANGED = [name for name in _BOOKKEEPING if name not in (OP, LITERAL, ABSENT)]
"""Bookkeeping that both halves of an update have as it has it."""


def by_key_sql(table: TableFiles) -> str:
    """Columns as `changes_sql` has them. table must have a key."""
    new, former = key_values(table)
    row = [quoted(field.name) for field in table.all_columns]
    ctes = [_changes(table, differ(new, former))]
    halves = [_unmoved(table, row), _departures(table), _arrivals(table, row)]
    if table.truncated:
        ctes += [_TRUNCATES, _key_events(new, former), _truncated_keys(len(new))]
        halves.append(_truncated(table))
    return (
        f"WITH {', '.join(ctes)} SELECT {', '.join([*row, BEFORE, *_BOOKKEEPING])} "
        f"FROM ({' UNION ALL BY NAME '.join(halves)})"
    )


def _changes(table: TableFiles, moves: str) -> str:
    return (
        f"changes AS (SELECT *, {OP} = '{UPDATE}' AND ({moves}) AS _cdc_moved, {order_key()} AS _cdc_order "
        f"FROM ({changes_sql(table.groups, table.all_columns)}))"
    )


def _unmoved(table: TableFiles, row: Sequence[str]) -> str:
    columns = ", ".join([*row, BEFORE, OP, LITERAL, ABSENT, *_UNCHANGED])
    truncates = f" AND {OP} <> '{TRUNCATE}'" if table.truncated else ""
    return f"SELECT {columns} FROM changes WHERE NOT _cdc_moved{truncates}"


def _departures(table: TableFiles) -> str:
    """The old keys of updates that change the key."""
    values = [f"{old(field.name)} AS {quoted(field.name)}" for field in table.all_columns]
    lacking = f"[_cdc_name[{len(BEFORE_MARK) + 1}:] FOR _cdc_name IN {absent_names()} IF {_OF_BEFORE}]"
    return _half(table, DELETE, values, BEFORE_LITERAL, lacking)


def _arrivals(table: TableFiles, row: Sequence[str]) -> str:
    """Their new keys."""
    lacking = f"list_filter({absent_names()}, lambda _cdc_name: NOT {_OF_BEFORE})"
    return _half(table, INSERT, row, AFTER_LITERAL, lacking)


_OF_BEFORE = f"starts_with(_cdc_name, '{BEFORE_MARK}')"


def _half(table: TableFiles, op: str, values: Sequence[str], literal: str, lacking: str) -> str:
    exact = literal_or_null(literal) if table.literals else NO_LITERAL
    absent = absent_text(lacking) if table.absent else "NULL::VARCHAR"
    return (
        f"SELECT {', '.join(values)}, NULL AS {BEFORE}, {text(op)} AS {OP}, {exact} AS {LITERAL}, "
        f"{absent} AS {ABSENT}, {', '.join(_UNCHANGED)} FROM changes WHERE _cdc_moved"
    )


_TRUNCATES = f"truncates AS (SELECT * FROM changes WHERE {OP} = '{TRUNCATE}')"


def _key_events(new: Sequence[str], former: Sequence[str]) -> str:
    """What each change says of a key: that a row has it, or that it is gone."""
    of = f"_cdc_source, {SOURCE_TABLE}, _cdc_order"
    new_keys = ", ".join(f"{value} AS _cdc_key{number}" for number, value in enumerate(new))
    old_keys = ", ".join(f"{value} AS _cdc_key{number}" for number, value in enumerate(former))
    return f"""key_events AS (
  SELECT {new_keys}, {OP} = '{DELETE}' AS _cdc_gone, {of} FROM changes WHERE {OP} <> '{TRUNCATE}'
  UNION ALL SELECT {old_keys}, true AS _cdc_gone, {of} FROM changes WHERE _cdc_moved)"""


def _truncated_keys(keys: int) -> str:
    """The keys that live when their source table is truncated, each with the order key of the truncate."""
    key = ", ".join(f"_cdc_key{number}" for number in range(keys))
    return f"""truncated_keys AS (
  SELECT {key}, event._cdc_source, event.{SOURCE_TABLE}, truncation._cdc_order
  FROM key_events AS event ASOF JOIN truncates AS truncation
    ON event._cdc_source = truncation._cdc_source AND event.{SOURCE_TABLE} = truncation.{SOURCE_TABLE}
    AND event._cdc_order <= truncation._cdc_order
  GROUP BY ALL HAVING NOT arg_max(event._cdc_gone, event._cdc_order))"""


def _truncated(table: TableFiles) -> str:
    """A delete of each of them."""
    numbers = {name.lower(): number for number, name in enumerate(table.key)}
    values = ", ".join(
        f"{'NULL' if (number := numbers.get(field.name.lower())) is None else f'_cdc_key{number}'} "
        f"AS {quoted(field.name)}"
        for field in table.all_columns
    )
    literal = "NULL"
    if table.literals:
        texts = ", ".join(
            f"{{'key': {text(name)}, 'value': _cdc_key{len(table.key) + number}}}"
            for number, name in enumerate(table.key)
        )
        exact = f"list_filter([{texts}], lambda _cdc_entry: _cdc_entry.value IS NOT NULL)"
        literal = f"CASE WHEN len({exact}) > 0 THEN map_from_entries({exact}) END"
    rest = ", ".join(f"truncation.{name}" for name in _UNCHANGED)
    return (
        f"SELECT {values}, NULL AS {BEFORE}, {text(DELETE)} AS {OP}, {literal} AS {LITERAL}, NULL AS {ABSENT}, {rest} "
        "FROM truncated_keys AS ended JOIN truncates AS truncation ON ended._cdc_source = truncation._cdc_source "
        f"AND ended.{SOURCE_TABLE} = truncation.{SOURCE_TABLE} AND ended._cdc_order = truncation._cdc_order"
    )
