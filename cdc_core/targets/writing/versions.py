"""What a target already has under some keys: the versions of their rows and of their tombstones.

Keys are loaded into a temporary table and joined with the target by its key index: never a scan of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import Refused
from cdc_core.model.merged_columns import RowClass
from cdc_core.model.schema import TEXT_BASES
from cdc_core.model.version import VERSION_COLUMN, newer_or_equal, newer_or_equal_each, origin_of, other_origin
from cdc_core.mysql.connections import SafeConnection, is_mariadb, quote, sensible
from cdc_core.targets.reading.answers import columns_of
from cdc_core.targets.reading.table_facts import TableFacts
from cdc_core.targets.tables.enums import ambiguous, error_or
from cdc_core.targets.tables.text_columns import version_bytes
from cdc_core.targets.writing.load import TEMPORARY, Layout, LoadFile, create_temporary, is_absent, load, target_name
from cdc_core.targets.writing.prepare import tombstones_table, versions_table
from cdc_core.targets.writing.target_truncates import Truncates, truncates_of


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """What the target holds under one key. Usually exactly one of `row` and `tombstone`; neither: never seen.

    row:       version of the row; b"" when the row is there but Lockstep never wrote it; None when it is not.
    tombstone: version of the delete or truncate that removed it, or None.
    fresher:   of the freshness column, if the table has one: 1 ours is greater, 0 equal, -1 less.
    values:    of the row, as target.text has them, those that were asked for; enums.ERROR_TEXT for the error value of
               an ENUM that has the label '' too.
    """

    row: bytes | None = None
    tombstone: bytes | None = None
    fresher: int = 0
    values: Mapping[str, str | None] = field(default_factory=dict)


class HeldVersions(Sequence[TargetVersion]):
    """What a target holds under each of several keys.

    rows, tombstones: as in TargetVersion, null for None. fresher: of each. values: by the number of the key.
    """

    def __init__(
        self,
        rows: pa.BinaryArray,
        tombstones: pa.BinaryArray,
        fresher: npt.NDArray[np.int64],
        values: Mapping[int, Mapping[str, str | None]] = MappingProxyType({}),
    ) -> None:
        self.rows, self.tombstones, self.fresher, self.values = rows, tombstones, fresher, values

    @classmethod
    def nothing(cls, count: int) -> HeldVersions:
        return cls(pa.nulls(count, pa.binary()), pa.nulls(count, pa.binary()), np.zeros(count, np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        return TargetVersion(
            self.rows[at].as_py(), self.tombstones[at].as_py(), int(self.fresher[at]), self.values.get(at, {})
        )


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
        fresher = "0"
        if freshness:
            name = target_name(facts, freshness)
            fresher = (
                f"CASE WHEN {is_absent(layout, freshness)} OR _l.{name} <=> r.{name} THEN 0 "
                f"WHEN r.{name} IS NULL THEN 1 WHEN _l.{name} IS NULL THEN -1 "
                f"WHEN _l.{name} > r.{name} THEN 1 ELSE -1 END"
            )
        joined = f"{TEMPORARY} _l STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, key)}{beside(facts, key)}"
        numbers, found, orders = columns_of(
            connection,
            f"SELECT _l._n, COALESCE({row_version(facts)}, X''), {fresher} FROM {joined}",
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
            for number, *texts_of in cursor.fetchall():
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
                _newest_tombstone(one, version, truncated)
                for one, version in zip(tombstones.to_pylist(), own, strict=True)
            ]
            tombstones = pa.array(newest, pa.binary())
        cursor.execute(f"DROP TEMPORARY TABLE {TEMPORARY}")
    return HeldVersions(row_versions, tombstones, order, values)


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


def as_text(facts: TableFacts, name: str, as_hex: bool, row: str = "r") -> str:
    """A value of the row `r` as the text that a load takes, exactly."""
    column, base = f"{row}.{target_name(facts, name)}", facts.by_name[name.lower()].type.base
    if as_hex:
        return f"HEX({column})"
    if base == "bit":
        column = f"CAST({column} AS UNSIGNED)"
    elif base == "float":
        column = f"CAST({column} AS DOUBLE)"
    return f"CAST({column} AS CHAR)"


def _whole_text(facts: TableFacts, name: str, as_hex: bool) -> str:
    """As `as_text`, of values of any length: MariaDB makes null, with a mere warning, of a CAST that is longer than
    max_allowed_packet. ERROR_TEXT for the error value of an ENUM."""
    if not as_hex and facts.by_name[name.lower()].type.base in (*TEXT_BASES, "json"):
        return f"r.{target_name(facts, name)}"
    return error_or(facts, name, as_text(facts, name, as_hex))


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
        if facts.by_name[name.lower()].type.base == "json" and any(one[name] == "" for one in values.values()):
            raise Refused(
                f"Column {name!r} has a JSON document whose text is longer than the server's max_allowed_packet: the "
                "server sends an empty text for it.",
                where=facts.name,
                code="target.limit",
                remedy=LARGER_PACKETS,
            )


def _newest_tombstone(tombstone: bytes | None, version: bytes, truncated: Truncates) -> bytes | None:
    """The newest tombstone that concerns a change with this version."""
    newest = tombstone
    for one in truncated.concerning(version):
        if newest is None or other_origin(version, newest) or newer_or_equal(one, newest):
            newest = one
    return newest


def without_removed(held: TargetVersion, removing: Truncates) -> TargetVersion:
    """What the target will hold once truncates of the run have removed older rows."""
    gone = held.row is not None and any(
        newer_or_equal(one, held.row) for one in removing.versions if origin_of(one) in (b"", origin_of(held.row))
    )
    return replace(held, row=None, fresher=0) if gone else held


_AS_BYTES = TEXT_BASES | {"enum", "set"}


def equal_sql(facts: TableFacts, name: str) -> str:
    """Whether the row `r` has exactly the value of the loaded row `_l`: text byte by byte, whatever the collation."""
    column = target_name(facts, name)
    if facts.by_name[name.lower()].type.base in _AS_BYTES:
        # Not CAST: on MariaDB it makes two nulls of texts that are longer than max_allowed_packet.
        return f"(CONVERT(r.{column} USING binary) <=> CONVERT(_l.{column} USING binary))"
    return f"(r.{column} <=> _l.{column})"


def table_name(facts: TableFacts) -> str:
    return f"{quote(facts.database)}.{quote(facts.table)}"


def tombstones_name(facts: TableFacts) -> str:
    return f"{quote(facts.database)}.{quote(tombstones_table(facts.table))}"


def on_key(facts: TableFacts, key: Sequence[str], left: str = "_l", right: str = "r") -> str:
    names = [target_name(facts, name) for name in key]
    terms = [f"{right}.{name} = {left}.{name}" for name in names]
    # An index finds an ENUM by its number. Without one, servers compare texts: index 0 would be the label ''.
    enums = [quote(column.name) for column in ambiguous(facts, key)]
    return " AND ".join([*terms, *(f"{right}.{name} + 0 = {left}.{name} + 0" for name in enums)])


def row_version(facts: TableFacts) -> str:
    """The version of the row `r`, an expression; with `beside` in the FROM clause."""
    return f"v.{VERSION_COLUMN}" if facts.beside else f"r.{VERSION_COLUMN}"


def beside(facts: TableFacts, key: Sequence[str], row: str = "_l") -> str:
    """What a FROM clause needs after rows `row` for `row_version`; "" where the row has it."""
    return f" LEFT JOIN {versions_name(facts)} v ON {on_key(facts, key, row, 'v')}" if facts.beside else ""


def versions_name(facts: TableFacts) -> str:
    return f"{quote(facts.database)}.{quote(versions_table(facts.table))}"


def classify(held: TargetVersion, version: bytes, *, upsert: bool, born: bool, by_column: bool) -> tuple[RowClass, str]:
    """What a winner will do at the target, and why if it is stale.

    born:      the row came to life within the run (insert, snapshot, arrival under this key).
    by_column: the table has a freshness column. It decides upserts over a row; the version decides the rest.
    """
    buried = held.tombstone is not None and not other_origin(version, held.tombstone)
    if buried and held.tombstone is not None and not newer_or_equal(version, held.tombstone):
        return RowClass.STALE, "the key was deleted by a newer change"
    if held.row is None:
        return (RowClass.INSERT if born else RowClass.REVIVED, "") if upsert else (RowClass.ABSENT, "")
    if upsert and by_column and held.fresher:
        return (
            (RowClass.UPDATE, "") if held.fresher > 0 else (RowClass.STALE, "the target's freshness column is greater")
        )
    if not newer_or_equal(version, held.row):
        return RowClass.STALE, "the target has a newer version of the row"
    if not upsert and version == held.row:
        return RowClass.STALE, "the same change has given the row a key that is equal in the target"
    return (RowClass.UPDATE, "") if upsert else (RowClass.DELETE, "")


def classify_each(
    held: HeldVersions,
    versions: pa.BinaryArray,
    upserts: npt.NDArray[np.bool_],
    born: npt.NDArray[np.bool_],
    *,
    by_column: bool,
    removing: Truncates,
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    """`classify` of many winners: the class of each, and the reason of each that is stale.

    removing: truncates of the run, which remove older rows of the target first.
    """
    there = np.asarray(held.rows.is_valid())
    newer = np.asarray(newer_or_equal_each(versions, held.rows).fill_null(True))
    equal = np.asarray(pc.equal(versions, held.rows).fill_null(False))
    classes: npt.NDArray[np.object_] = np.full(len(there), RowClass.ABSENT, object)
    classes[upserts] = RowClass.REVIVED
    classes[upserts & born] = RowClass.INSERT
    classes[there] = RowClass.DELETE
    classes[there & upserts] = RowClass.UPDATE
    stale = there & (~newer | (equal & ~upserts))
    # One by one: what has a tombstone, what a column decides, and what a truncate may remove.
    single = np.asarray(held.tombstones.is_valid()) | stale
    if by_column:
        single |= held.fresher != 0
    if removing:
        single |= there
    reasons: npt.NDArray[np.object_] = np.full(len(there), None, object)
    for at in np.flatnonzero(single).tolist():
        known = without_removed(held[at], removing)
        classes[at], reason = classify(
            known, versions[at].as_py(), upsert=bool(upserts[at]), born=bool(born[at]), by_column=by_column
        )
        reasons[at] = reason or None
    return classes, reasons
