"""Keys as the target compares them: loaded rows that differ on the source and are one row in the table.

The target's columns decide which keys are equal. 'a' and 'A' are one key in a case-insensitive collation, and so are
'a' and 'a ' where the collation pads. Two kinds of source lead to loaded rows with equal keys:

    its keys are compared alike   the row was renamed (UPDATE ... SET k = 'A' WHERE k = 'a'), or deleted and inserted
                                  again. The source has at most one of them: an older upsert is of a row that is gone,
                                  though the log may not say so (a cascade, a log that was lost).
    its keys are compared finer   two rows of the source would be one row of the table: target.key_collapse. It stops
                                  the write, since each would overwrite or delete the other. So would rows of two source
                                  tables.

Of loaded rows with equal keys the newest counts, of equal versions the upsert: the delete of the old name and the
upsert of the new one are one change. The others are stale.

May assume that temporary tables cannot be read twice in a statement (MySQL).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdc_core.errors import DataAtRisk
from cdc_core.model.collations import UNCERTAIN
from cdc_core.model.merged_columns import MergedOp
from cdc_core.model.schema import BINARY_BASES, INTEGER_BYTES, TEXT_BASES, ColumnType, TableSchema
from cdc_core.model.version import ORIGIN_BYTES
from cdc_core.targets.reading.table_facts import TableFacts, table_name
from cdc_core.targets.writing.guard_sql import other_origin_sql
from cdc_core.targets.writing.load import TEMPORARY, RowState, shown_key, target_name
from cdc_core.targets.writing.prepare import indexable
from cdc_core.targets.writing.versions import on_key

TWINS = "_lockstep_twins"
_ONE_SPELLING = frozenset(INTEGER_BYTES) | BINARY_BASES | {"date", "year", "bit", "uuid", "inet4", "inet6"}
"""Types whose equal values are staged as equal values."""
_COLLATED = TEXT_BASES | {"enum", "set"}


def spelled_apart(facts: TableFacts, key: Sequence[str]) -> bool:
    """Whether keys that are equal in the table may differ in staged rows."""
    return any(facts.by_name[name.lower()].type.base not in _ONE_SPELLING for name in key)


def may_be_twins(facts: TableFacts, key: Sequence[str]) -> bool:
    """Whether loaded rows may have equal keys in the table: spelled apart, or padded by a BINARY column that was wider
    than the source's was at first."""
    return spelled_apart(facts, key) or any(facts.by_name[name.lower()].type.base == "binary" for name in key)


def spelled_apart_in(kind: ColumnType) -> bool:
    """Whether texts of the type may be equal without being the same bytes. A CHAR has no spaces at its end."""
    bytewise = not kind.collation or (
        kind.collation.endswith("_bin") and (kind.base == "char" or not _pads(kind.collation))
    )
    return kind.base in TEXT_BASES and not bytewise


def coarser(source: ColumnType, target: ColumnType) -> bool:
    """Whether the target may treat values of a key column as equal that differ on the source."""
    if target.base not in _COLLATED or source.base not in _COLLATED:
        return False
    ours, theirs = _plain(source.collation), _plain(target.collation)
    if (ours == theirs and target.collation != UNCERTAIN) or (not _pads(theirs) and theirs.endswith("_bin")):
        return False
    return not (theirs.endswith("_bin") and _pads(ours))


def _plain(collation: str) -> str:
    """The collation without the width of its UTF-8: both widths compare alike what both can hold."""
    for charset in ("utf8mb3_", "utf8mb4_", "utf8_"):
        collation = collation.replace(charset, "utf8_") if collation.startswith(charset) else collation
    return collation


def _pads(collation: str) -> bool:
    """Whether spaces at the end make no difference."""
    return not ("_0900_" in collation or "_nopad_" in collation or collation in ("", "binary"))


def coarser_columns(facts: TableFacts, schemas: Sequence[TableSchema]) -> tuple[str, ...]:
    """The key columns that the table may compare more coarsely than a source table does."""
    columns: dict[str, None] = {}
    for name in facts.key:
        for schema in schemas:
            for column in schema.columns:
                there = facts.by_name.get(name.lower())
                if there is not None and column.name == name and coarser(column.type, there.type):
                    columns[name] = None
    return tuple(columns)


def _bytes_of(facts: TableFacts, name: str, row: str) -> str:
    # Not CAST: on MariaDB it makes null of texts that are longer than max_allowed_packet.
    return f"CONVERT({row}.{target_name(facts, name)} USING binary)"


def same_spelling(facts: TableFacts, key: Sequence[str], left: str, right: str) -> str:
    """SQL: whether equal keys are equal byte by byte, too."""
    collated = [name for name in key if facts.by_name[name.lower()].type.base in _COLLATED]
    return " AND ".join(f"{_bytes_of(facts, name, left)} = {_bytes_of(facts, name, right)}" for name in collated) or "1"


def settle_twins(cursor: Any, facts: TableFacts, key: Sequence[str]) -> bool:
    """Marks all but one of the loaded rows with equal keys as stale; whether there were any. TWINS then has them.

    Raises DataAtRisk (target.key_collapse).
    """
    if not may_be_twins(facts, key):
        return False
    names = ", ".join(f"_l.{target_name(facts, name)}" for name in key)
    there = " AND ".join(f"_l.{target_name(facts, name)} IS NOT NULL" for name in key)
    cursor.execute(f"SELECT 1 FROM {TEMPORARY} _l WHERE {there} GROUP BY {names} HAVING COUNT(*) > 1 LIMIT 1")
    if cursor.fetchone() is None:
        return False
    upsert = f"_l._o = '{MergedOp.UPSERT}'"
    # Within a source by the order of its log, then between sources by time, as versions compare.
    ranked = (
        f"SELECT _l._n, {names}, _l._k, _l._o, _l._v, ROW_NUMBER() OVER (PARTITION BY {names}, SUBSTRING(_l._v, 25) "
        f"ORDER BY SUBSTRING(_l._v, 9, 16) DESC, {upsert} DESC, _l._n) AS _r FROM {TEMPORARY} _l WHERE {there}"
    )
    best = (
        f"ROW_NUMBER() OVER (PARTITION BY {names} ORDER BY _r > 1, SUBSTRING(_l._v, 1, 8) DESC, "
        f"SUBSTRING(_l._v, 25) DESC, {upsert} DESC) AS _place"
    )
    # With its indexes at once: ALTER TABLE would commit the transaction, even for a temporary table.
    index = f", INDEX _lockstep_key ({_indexed(facts, key)})" if indexable(facts, key) else ""
    cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {TWINS}")
    cursor.execute(
        f"CREATE TEMPORARY TABLE {TWINS} (PRIMARY KEY (_n){index}) ENGINE=InnoDB AS "
        f"SELECT * FROM (SELECT _l.*, {best}, COUNT(*) OVER (PARTITION BY {names}) AS _count FROM ({ranked}) _l) t "
        "WHERE t._count > 1"
    )
    _require_one_row(cursor, facts, key)
    cursor.execute(
        f"UPDATE {TEMPORARY} _l STRAIGHT_JOIN {TWINS} t ON t._n = _l._n SET _l._s = {RowState.STALE} WHERE t._place > 1"
    )
    return True


def _indexed(facts: TableFacts, key: Sequence[str]) -> str:
    return ", ".join(target_name(facts, name) for name in key)


def _require_one_row(cursor: Any, facts: TableFacts, key: Sequence[str]) -> None:
    """An upsert that is not the newest of its key, and is spelled differently from it, was a row of its own, if the
    source may keep the two apart, or if they come from two source tables."""
    texts = [name for name in key if facts.by_name[name.lower()].type.base in _COLLATED]
    if not texts:
        return
    spellings = ", ".join(f"HEX({target_name(facts, text)})" for text in texts)
    upsert = f"_o = '{MergedOp.UPSERT}'"
    counts = f"_place = 1 OR {upsert}"
    apart = "TRUE" if facts.coarser else f"COUNT(DISTINCT IF({counts}, SUBSTRING(_v, 25), NULL)) > 1"
    cursor.execute(
        f"SELECT MIN(IF(_place > 1 AND {upsert}, _k, NULL)), MIN(IF(_place = 1, _k, NULL)) FROM {TWINS} "
        f"GROUP BY {_indexed(facts, key)} HAVING SUM(_place > 1 AND {upsert}) > 0 "
        f"AND COUNT(DISTINCT IF({counts}, CONCAT_WS(',', {spellings}), NULL)) > 1 AND {apart} LIMIT 1"
    )
    row = cursor.fetchone()
    if row is not None:
        raise key_collapse(facts, bytes(row[0]), bytes(row[1]))


def require_own_rows(
    cursor: Any, facts: TableFacts, key: Sequence[str], *, twins: bool, stays: str = "TRUE", joined: str = ""
) -> None:
    """No loaded row hits a differently spelled row of the table, unless another loaded row says what happened to that.

    For tables that compare keys more coarsely than their source. stays: SQL, which rows of the table count; joined: the
    tables that it needs. Raises DataAtRisk (target.key_collapse).
    """
    known = (
        f"LEFT JOIN {TWINS} t ON {on_key(facts, key, left='r', right='t')} AND {same_spelling(facts, key, 'r', 't')}"
        if twins
        else ""
    )
    cursor.execute(
        f"SELECT _l._k, CONCAT_WS(',', {', '.join(_bytes_of(facts, name, 'r') for name in key)}) FROM {TEMPORARY} _l "
        f"STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, key)} {joined} {known} "
        f"WHERE _l._s <> {RowState.STALE} AND {stays} AND NOT ({same_spelling(facts, key, '_l', 'r')}) "
        f"{'AND t._n IS NULL' if twins else ''} LIMIT 1"
    )
    row = cursor.fetchone()
    if row is not None:
        raise key_collapse(facts, bytes(row[0]), bytes(row[1]))


def of_another_table(loaded: str, version: str) -> str:
    """SQL: whether the row with this version comes from a source table other than the loaded row's, and was not deleted
    there in the same run."""
    ended = f"FIND_IN_SET(RIGHT({version}, {ORIGIN_BYTES}), COALESCE({loaded}._p, ''))"
    return f"({other_origin_sql(f'{loaded}._v', version)} AND NOT COALESCE({ended}, FALSE))"


def shared_key(logical: str, key: bytes, *, where: str) -> DataAtRisk:
    """The error for rows of two source tables that feed one logical table under one key."""
    return DataAtRisk(
        f"Two source tables that feed {logical!r} both have a row with the key {shown_key(key)}; the target can hold "
        "only one.",
        where=where,
        code="target.shared_key",
        remedy="route the source tables to tables of their own; or name columns in `key` that distinguish them, such "
        "as a tenant; or set shared_keys: newest for the table, if both mean the same row; nothing of this "
        "transaction was written",
    )


BYTEWISE = (
    "a collation that compares bytes and trailing spaces (utf8mb4_0900_bin on MySQL, utf8mb4_nopad_bin on MariaDB)"
)
APART = f"the source's collation, if both servers are MySQL or both MariaDB, or {BYTEWISE}"


def key_collapse(facts: TableFacts, one: bytes, other: bytes) -> DataAtRisk:
    return DataAtRisk(
        f"The rows with keys '{shown_key(one)}' and '{shown_key(other)}' are two rows on the source but would be one "
        f"row of {facts.name}, which compares its key in {', '.join(_collations(facts))}.",
        where=facts.name,
        code="target.key_collapse",
        remedy=f"give the target's key columns {APART} (ALTER TABLE ... MODIFY ... COLLATE ...), then run the task "
        "again; nothing of this transaction was written",
    )


def _collations(facts: TableFacts) -> list[str]:
    kinds = [facts.by_name[name.lower()].type for name in facts.key]
    return list(dict.fromkeys(kind.collation for kind in kinds if kind.base in _COLLATED)) or ["its own way"]
