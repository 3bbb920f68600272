"""Source against target, row by row: a checksum of all columns of each row, compared under the row's key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pymysql

from examples.shop.tables import LOGICAL, SOURCE_DATABASE, shards, source_tables


@dataclass(frozen=True)
class TableComparison:
    """Rows of one logical table: on each side, and how many keys differ (missing, too many, other values)."""

    table: str
    source_rows: int
    target_rows: int
    differing: int
    shards: dict[str, int]


def compare(
    source: pymysql.Connection, target: pymysql.Connection, places: Callable[[str], Iterable[str]] = shards
) -> list[TableComparison]:
    """Compare every logical table of the shop with the tables of the target that `places` names for it."""
    found = []
    for logical, (_, key, _) in LOGICAL.items():
        columns = _columns(source, SOURCE_DATABASE, source_tables(logical)[0])
        here: Counter[tuple[object, ...]] = Counter()
        for table in source_tables(logical):
            here.update(_checksums(source, f"{SOURCE_DATABASE}.{table}", key, columns))
        there: Counter[tuple[object, ...]] = Counter()
        counts = {}
        for place in places(logical):
            rows = _checksums(target, place, key, columns)
            counts[place] = len(rows)
            there.update(rows)
        differing = {row[:-1] for row in ((here - there) + (there - here))}
        found.append(TableComparison(logical, here.total(), there.total(), len(differing), counts))
    return found


def target_fingerprint(target: pymysql.Connection) -> Counter[tuple[object, ...]]:
    """Every row of every shard with its version: what must not change when a run is repeated."""
    rows: Counter[tuple[object, ...]] = Counter()
    for logical, (_, key, _) in LOGICAL.items():
        for shard in shards(logical):
            columns = [*_columns(target, *shard.split(".")), "_cdc_version"]
            rows.update((shard, *row) for row in _checksums(target, shard, key, columns))
    return rows


def _columns(connection: pymysql.Connection, database: str, table: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {database}.{table} LIMIT 0")
        return [column[0] for column in cursor.description]


def _checksums(
    connection: pymysql.Connection, table: str, key: tuple[str, ...], columns: list[str]
) -> list[tuple[object, ...]]:
    """(key..., MD5 over all columns) of each row; HEX keeps NULL, '' and every byte apart."""
    joined = ", '|', ".join(f"COALESCE(HEX(CAST({column} AS BINARY)), 'NULL')" for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(key)}, MD5(CONCAT({joined})) FROM {table}")
        return list(cursor.fetchall())
