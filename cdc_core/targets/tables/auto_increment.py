"""Values of a unique key that two shards of a table have, and counters by which shards will give out equal ids.

A UNIQUE key holds within one table. Where it does not contain the shard key, nothing keeps two shards from having the
same value: one table, to which rows may be carried back, cannot hold both.

Each row of a key becomes a number of 60 bits in its server, by the collation of the key's columns, and equal numbers
are looked up again as values. So memory holds eight bytes of each row, of a part of them if there are many. Values that
are equal only because a collation ignores trailing blanks are not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt
import pymysql.cursors

from cdc_core.config import Target
from cdc_core.model.schema import BINARY_BASES, TEXT_BASES
from cdc_core.mysql.connections import SafeConnection, quote, resolve
from cdc_core.targets.reading.sharding import ShardTable, shard_tables
from cdc_core.targets.reading.table_facts import TableFacts, table_facts
from cdc_core.targets.writing.load import altering_session

AT_ONCE = 16_000_000
"""Rows whose numbers memory holds."""
MOST_SHOWN = 20
_FETCHED = 50_000

Place = tuple[str, str, str]
"""A server, as the pipeline file names it, a database, and a table."""


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value of a unique key, as text, and the tables that have it."""

    logical: str
    key: tuple[str, ...]
    value: tuple[str, ...]
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckedKey:
    """A unique key of a logical table. found: how many values two shards have; shown: the first of them."""

    logical: str
    key: tuple[str, ...]
    rows: int
    found: int
    shown: tuple[SharedValue, ...]


def check_ids(
    target: Target, logical: str, environ: Mapping[str, str] | None = None, *, at_once: int = AT_ONCE
) -> Iterator[CheckedKey]:
    """Each unique key of a table that does not contain its shard key; nothing for a table without shards.

    Raises what connections.connect raises, and what target.faults makes of the servers' errors.
    """
    places = shard_tables(target, logical)
    rule = target.table(logical)
    if len(places) < 2 or rule is None or rule.sharding is None:
        return
    with ExitStack() as opened:
        sessions = {
            number: opened.enter_context(altering_session(resolve(reference, environ), reference))
            for number, reference in enumerate(target.connections)
            if any(place.connection == number for place in places)
        }
        shards = list(_shards(sessions, places))
        for key in _keys(shards, rule.sharding.key.lower()):
            having = [shard for shard in shards if set(key) <= set(shard.facts.by_name)]
            yield _checked(logical, key, having, at_once)


@dataclass(frozen=True, slots=True)
class _Shard:
    place: ShardTable
    facts: TableFacts
    session: SafeConnection


def _shards(sessions: Mapping[int, SafeConnection], places: Sequence[ShardTable]) -> Iterator[_Shard]:
    for connection, database in dict.fromkeys((place.connection, place.database) for place in places):
        here = [place for place in places if (place.connection, place.database) == (connection, database)]
        facts = table_facts(sessions[connection], database, [place.table for place in here])
        for place in here:
            if place.table in facts:
                yield _Shard(place, facts[place.table], sessions[connection])


def _keys(shards: Iterable[_Shard], shard_key: str) -> Iterable[tuple[str, ...]]:
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for shard in shards:
        for unique in shard.facts.unique_keys:
            if unique.plain and shard_key not in unique.columns:
                found.setdefault(unique.columns, tuple(column.lower() for column, _ in unique.parts))
    return found.values()


def _checked(logical: str, key: tuple[str, ...], shards: Sequence[_Shard], at_once: int) -> CheckedKey:
    rows = sum(int(_one(shard, f"SELECT COUNT(*) FROM {_name(shard)}")) for shard in shards)
    parts = max(1, -(-rows // at_once))
    found, shown = 0, list[SharedValue]()
    for part in range(parts):
        numbers = [_numbers(shard, key, part, parts) for shard in shards]
        whole = np.concatenate(numbers)
        owners = np.repeat(np.arange(len(shards)), [len(some) for some in numbers])
        order = np.argsort(whole, kind="stable")
        whole, owners = whole[order], owners[order]
        again = np.flatnonzero((whole[1:] == whole[:-1]) & (owners[1:] != owners[:-1]))
        twice = np.unique(whole[again])
        found += len(twice)
        wanted = twice[: MOST_SHOWN - len(shown)]
        mine = [shards[at] for at in np.unique(owners[np.isin(whole, wanted)])]
        values = _values(logical, key, mine, wanted.tolist())
        # A row that has left a shard meanwhile, or other values of the same number: not found again.
        found -= len(wanted) - len(values)
        shown += values
    return CheckedKey(logical, key, rows, found, tuple(shown))


def _numbers(shard: _Shard, key: Sequence[str], part: int, parts: int) -> npt.NDArray[np.int64]:
    among = f" AND MOD({_number(shard, key)}, {parts}) = {part}" if parts > 1 else ""
    pieces = [np.empty(0, dtype=np.int64)]
    with shard.session.cursor(pymysql.cursors.SSCursor) as cursor:
        cursor.execute(f"SELECT {_number(shard, key)} FROM {_name(shard)} WHERE {_no_null(key)}{among}")
        while rows := cursor.fetchmany(_FETCHED):
            pieces.append(np.fromiter((int(row[0]) for row in rows), dtype=np.int64, count=len(rows)))
    return np.concatenate(pieces)


def _values(logical: str, key: tuple[str, ...], shards: Sequence[_Shard], numbers: Sequence[int]) -> list[SharedValue]:
    tables: dict[tuple[int, str], list[str]] = {}
    shown: dict[tuple[int, str], tuple[str, ...]] = {}
    for shard in shards if numbers else ():
        columns = ", ".join(f"CAST({quote(name)} AS CHAR)" for name in key)
        with shard.session.cursor() as cursor:
            cursor.execute(
                f"SELECT {_number(shard, key)}, {_text(shard, key)}, {columns} FROM {_name(shard)} "
                f"WHERE {_no_null(key)} AND {_number(shard, key)} IN ({', '.join(map(str, numbers))})"
            )
            for number, text, *values in cursor.fetchall():
                tables.setdefault((int(number), str(text)), []).append(shard.facts.name)
                shown[int(number), str(text)] = tuple(map(str, values))
    return [SharedValue(logical, key, shown[at], tuple(some)) for at, some in tables.items() if len(some) > 1]


def _number(shard: _Shard, key: Sequence[str]) -> str:
    return f"CAST(CONV(LEFT(SHA2({_text(shard, key)}, 256), 15), 16, 10) AS SIGNED)"


def _text(shard: _Shard, key: Sequence[str]) -> str:
    """Equal where the server says that the values are equal."""
    return f"CONCAT_WS(',', {', '.join(_column(shard.facts, name) for name in key)})"


def _column(facts: TableFacts, name: str) -> str:
    base, column = facts.by_name[name].type.base, quote(name)
    if base in BINARY_BASES:
        return f"HEX({column})"
    return f"HEX(WEIGHT_STRING({column}))" if base in TEXT_BASES else f"HEX(CAST({column} AS CHAR))"


def _no_null(key: Sequence[str]) -> str:
    """A key that has a null is unique by definition."""
    return " AND ".join(f"{quote(name)} IS NOT NULL" for name in key)


def _name(shard: _Shard) -> str:
    return quote(shard.facts.database, shard.facts.table)


def _one(shard: _Shard, sql: str) -> Any:
    with shard.session.cursor() as cursor:
        cursor.execute(sql)
        return (cursor.fetchone() or (0,))[0]


def meeting_counters(places: Sequence[Place], environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Of the tables of one logical table, those whose AUTO_INCREMENT gives out ids that another's gives out, too, as
    the servers are set up. Raises as check_ids."""
    steps: dict[tuple[str, str], tuple[str, int, int]] = {}
    for reference in dict.fromkeys(reference for reference, _, _ in places):
        with altering_session(resolve(reference, environ), reference) as session, session.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.auto_increment_increment, @@GLOBAL.auto_increment_offset")
            step, offset = cursor.fetchone() or (1, 1)
            for database in dict.fromkeys(one for server, one, _ in places if server == reference):
                tables = [table for server, one, table in places if (server, one) == (reference, database)]
                facts = table_facts(session, database, tables)
                steps |= {
                    (reference, one.name): (one.name, int(step), int(offset))
                    for one in facts.values()
                    if any(column.counted for column in one.columns)
                }
    listed = list(steps.values())
    return tuple(
        name
        for at, (name, step, offset) in enumerate(listed)
        if any(
            (offset - other_offset) % gcd(step, other_step) == 0
            for other, (_, other_step, other_offset) in enumerate(listed)
            if other != at
        )
    )
