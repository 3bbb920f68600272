"""What a target already has under some keys: the versions of their rows and of their tombstones.

Keys are loaded into a temporary table and joined with the target by its key index: never a scan of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_core.errors import Refused
from cdc_core.history.guard import HeldVersions, newest_tombstone
from cdc_core.model.row_versions import version_bytes
from cdc_core.model.schema import TEXT_BASES
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.mysql.connections import SafeConnection, is_mariadb, quote, sensible
from cdc_core.targets.reading.answers import columns_of
from cdc_core.targets.reading.table_facts import TableFacts, table_name
from cdc_core.targets.writing.load import TEMPORARY, Layout, LoadFile, create_temporary, is_absent, load, target_name
from cdc_core.targets.writing.prepare import tombstones_table, versions_table
from cdc_core.targets.writing.target_truncates import truncates_of


@sensible("target")
def versions_of(
    connection: SafeConnection,
    facts: TableFacts,
    rows: pa.RecordBatch,
    *,
    key: Sequence[str],
    freshness: str | None,
    scratch: Path,
    tolerant: bool = False,
    columns: Mapping[str, bool] = MappingProxyType({}),
) -> HeldVersions:
    """What the target holds under each row's key, in the order of the rows.

    rows: merged rows (key columns, the freshness column, bookkeeping). The connection is one of load.open_session.
    tolerant: for a key that does not fit the table nothing is held, instead of an error.
    columns: whose values to read, and whether they travel as hex.
    An empty table is not asked for keys: rows that come there meanwhile are found by the write, which looks again.
    """
    layout = Layout(tuple(key), tuple(dict.fromkeys([*key, *([freshness] if freshness else [])])))
    count = rows.num_rows
    values: dict[int, Mapping[str, str | None]] = {}
    with connection.cursor() as cursor:
        if _holds_nothing(cursor, facts) and not truncates_of(cursor, facts):
            return HeldVersions.nothing(count)
        with LoadFile(scratch, layout) as file:
            create_temporary(cursor, facts, layout)
            file.add(rows)
            load(cursor, facts, file, tolerant=tolerant)
        joined = f"{TEMPORARY} _l STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, key)}{beside(facts, key)}"
        numbers, found, orders = columns_of(
            connection,
            f"SELECT _l._n, COALESCE({row_version(facts)}, X''), {_fresher(facts, layout, freshness)} FROM {joined}",
            (pa.int64(), pa.binary(), pa.int64()),
            rows=count,
            where=facts.name,
        )
        order = np.zeros(count, np.int64)
        order[np.asarray(numbers) - 1] = np.asarray(orders)
        row_versions = _spread(count, numbers, found)
        if columns and len(numbers):
            texts = ", ".join(_whole_text(facts, name, as_hex) for name, as_hex in columns.items())
            cursor.execute(f"SELECT _l._n, {texts} FROM {joined}")
            for number, *held in cursor.fetchall():
                texts_of = (value.hex().upper() if isinstance(value, bytes) else value for value in held)
                values[number - 1] = dict(zip(columns, texts_of, strict=True))
            if not is_mariadb(connection):
                _require_whole_documents(facts, columns, values)
        numbers, found = columns_of(
            connection,
            f"SELECT _l._n, d.{VERSION_COLUMN} FROM {TEMPORARY} _l STRAIGHT_JOIN {tombstones_name(facts)} d "
            f"ON {on_key(facts, key, right='d')}",
            (pa.int64(), pa.binary()),
            rows=count,
            where=facts.name,
        )
        tombstones = _spread(count, numbers, found)
        truncated = truncates_of(cursor, facts)
        if truncated:
            own = version_bytes(rows).to_pylist()
            newest = [
                newest_tombstone(tombstone, version, truncated.versions)
                for tombstone, version in zip(tombstones.to_pylist(), own, strict=True)
            ]
            tombstones = pa.array(newest, pa.binary())
        cursor.execute(f"DROP TEMPORARY TABLE {TEMPORARY}")
    return HeldVersions(row_versions, tombstones, order, values)


def _fresher(facts: TableFacts, layout: Layout, freshness: str | None) -> str:
    """The SQL of TargetVersion.fresher, between the loaded rows `_l` and the target's, `r`."""
    if not freshness:
        return "0"
    name = target_name(facts, freshness)
    return (
        f"CASE WHEN {is_absent(layout, freshness)} OR _l.{name} <=> r.{name} THEN 0 "
        f"WHEN r.{name} IS NULL THEN 1 WHEN _l.{name} IS NULL THEN -1 "
        f"WHEN _l.{name} > r.{name} THEN 1 ELSE -1 END"
    )


def _holds_nothing(cursor: Any, facts: TableFacts) -> bool:
    cursor.execute(
        f"SELECT EXISTS(SELECT 1 FROM {table_name(facts)}) OR EXISTS(SELECT 1 FROM {tombstones_name(facts)})"
    )
    return not cursor.fetchone()[0]


def _spread(count: int, numbers: pa.Int64Array, values: pa.BinaryArray) -> pa.BinaryArray:
    """Values at their numbers, which count from 1; null elsewhere."""
    at = np.full(count, -1, np.int64)
    at[np.asarray(numbers) - 1] = np.arange(len(numbers))
    return values.take(pa.array(at, mask=at < 0))


def as_text(facts: TableFacts, name: str, row: str = "r") -> str:
    """A value of the row `r` as the text that a load takes, exactly."""
    column, base = f"{row}.{target_name(facts, name)}", facts.by_name[name.lower()].type.base
    if base == "vector":
        return f"HEX({column})"
    if base == "bit":
        column = f"CAST({column} AS UNSIGNED)"
    elif base == "float":
        column = f"CAST({column} AS DOUBLE)"
    return f"CAST({column} AS CHAR)"


def _whole_text(facts: TableFacts, name: str, as_hex: bool) -> str:
    """As `as_text`, of values of any length, but bytes as they are: MariaDB makes null, with a mere warning, of a CAST,
    and from 11.8 on of a HEX, that is longer than max_allowed_packet. PyMySQL takes a VECTOR's bytes for ASCII."""
    base = facts.by_name[name.lower()].type.base
    if base != "vector" and (as_hex or base in (*TEXT_BASES, "json")):
        return f"r.{target_name(facts, name)}"
    return as_text(facts, name)


LARGER_PACKETS = (
    "raise max_allowed_packet on the target (SET GLOBAL max_allowed_packet = 1073741824, which holds for new "
    "connections, and its option file); then run the task again"
)


def _require_whole_documents(
    facts: TableFacts, columns: Iterable[str], values: Mapping[int, Mapping[str, str | None]]
) -> None:
    """MySQL sends an empty text, with a mere warning, for a document whose text is longer than max_allowed_packet.
    Raises Refused (target.limit)."""
    for name in columns:
        if facts.by_name[name.lower()].type.base == "json" and any(value[name] == "" for value in values.values()):
            raise Refused(
                f"Column {name!r} has a JSON document whose text is longer than the server's max_allowed_packet: the "
                "server sends an empty text for it.",
                where=facts.name,
                code="target.limit",
                remedy=LARGER_PACKETS,
            )


_AS_BYTES = TEXT_BASES | {"enum", "set"}


def equal_sql(facts: TableFacts, name: str) -> str:
    """Whether the row `r` has exactly the value of the loaded row `_l`: text byte by byte, whatever the collation."""
    column = target_name(facts, name)
    if facts.by_name[name.lower()].type.base in _AS_BYTES:
        # Not CAST: on MariaDB it makes two nulls of texts that are longer than max_allowed_packet.
        return f"(CONVERT(r.{column} USING binary) <=> CONVERT(_l.{column} USING binary))"
    return f"(r.{column} <=> _l.{column})"


def tombstones_name(facts: TableFacts) -> str:
    return quote(facts.database, tombstones_table(facts.table))


def on_key(facts: TableFacts, key: Sequence[str], left: str = "_l", right: str = "r") -> str:
    return " AND ".join(f"{right}.{name} = {left}.{name}" for name in (target_name(facts, name) for name in key))


def row_version(facts: TableFacts) -> str:
    """The version of the row `r`, an expression; with `beside` in the FROM clause."""
    return f"v.{VERSION_COLUMN}" if facts.beside else f"r.{VERSION_COLUMN}"


def beside(facts: TableFacts, key: Sequence[str], row: str = "_l") -> str:
    """What a FROM clause needs after rows `row` for `row_version`; "" where the row has it."""
    return f" LEFT JOIN {versions_name(facts)} v ON {on_key(facts, key, row, 'v')}" if facts.beside else ""


def versions_name(facts: TableFacts) -> str:
    return quote(facts.database, versions_table(facts.table))
