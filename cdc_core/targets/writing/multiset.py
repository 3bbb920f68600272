"""The transaction that writes rows without a key: whole rows, counted, and each change applied exactly once.

A row is identified by its columns, bit for bit; equal rows are its copies. Each loaded row is a copy that comes (u) or
goes (d).

    mark     by table and source, where the last batch begins whose changes the table has; read and moved here
    ignore   changes of batches up to the mark: they have been applied
    truncate the table is emptied; earlier changes of the run are not among the loaded rows
    net      what comes and goes, summed up per row, by a fingerprint of its values
    count    the copies of rows that go, in one scan of the table: nothing else finds them; no scan if none go
    delete   the rows that go, in a second scan; copies that stay are put back as they were
    insert   the rows that come
    verify   as many rows have gone and come as must; if triggers may have changed them, they are counted again
    mark     moved forward, and the ledger row written; then commit

May assume that runs take whole batches in the order of the stream, each with all earlier ones that the target may lack:
so a table has all changes up to its mark, and none after it. `_cdc_seq` of a loaded row: where its batch begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pymysql

from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.merged_columns import MergedOp
from cdc_core.model.run_plan import WriteCounts
from cdc_core.model.schema import BINARY_BASES, GEOMETRY_BASES, TEXT_BASES
from cdc_core.mysql.connections import bytes_literal, quote, utf8_literal
from cdc_core.targets.bookkeeping.table_states import MARKS
from cdc_core.targets.reading.table_facts import TableFacts, table_name, written_columns
from cdc_core.targets.reading.target_faults import is_row_error
from cdc_core.targets.writing.load import TEMPORARY, LoadFile, RowState, column_sql, rejected, target_name
from cdc_core.targets.writing.row_writer import note, states_of
from cdc_core.targets.writing.shard_write import ShardWrite
from cdc_core.targets.writing.upsert import failing_lines
from cdc_core.targets.writing.versions import LARGER_PACKETS, as_text

UPSERT, DELETE, TRUNCATE = MergedOp.UPSERT, MergedOp.DELETE, MergedOp.TRUNCATE
NEW, STALE = RowState.NEW, RowState.STALE
_LINES, _NET, _HAD, _NOW, _KEPT, _STAYS = (
    f"_lockstep_{name}" for name in ("lines", "net", "had", "now", "kept", "stays")
)
_TABLES = {
    _LINES: "_n BIGINT UNSIGNED PRIMARY KEY, _o CHAR(1) CHARACTER SET ascii, _f BINARY(32), _r BIGINT",
    _NET: "_f BINARY(32) PRIMARY KEY, _net BIGINT NOT NULL",
    _HAD: "_f BINARY(32) PRIMARY KEY, _c BIGINT NOT NULL",
    _NOW: "_f BINARY(32) PRIMARY KEY, _c BIGINT NOT NULL",
    _STAYS: "_n BIGINT PRIMARY KEY",
}
"""Loaded rows that count: line, operation, fingerprint, number among those equal in both. The net of each fingerprint.
Copies that the table had before the write, and has after it. Which rows of _KEPT stay, by number."""
_BYTES = TEXT_BASES | BINARY_BASES | GEOMETRY_BASES | {"enum", "set", "json", "vector"}
_LONG = 256
_ALL = 2**63
_HASH_OF_NOTHING = hashlib.sha256(b"").hexdigest()


def write_copies(
    cursor: Any, write: ShardWrite, file: LoadFile, *, upto: Mapping[str, int], careful: bool, quarantined: int
) -> WriteCounts:
    """A `Transact` of write_shard. upto: by source, where the last batch of the run begins.

    Raises DataAtRisk (target.row_error).
    """
    assert not careful
    facts = write.facts
    marks = marks_of(cursor, facts, lock=True)
    for source, seq in marks.items():
        cursor.execute(
            f"UPDATE {TEMPORARY} SET _s = {STALE} "
            f"WHERE SUBSTRING(_v, 25) = {bytes_literal(source.encode())} AND SUBSTRING(_v, 9, 8) <= X'{seq:016x}'"
        )
    states = states_of(cursor)
    if any(states.get((op, NEW)) for op in (TRUNCATE, MergedOp.TRUNCATE_UNCOUNTED)):
        cursor.execute(f"DELETE FROM {table_name(facts)}")
    absent = _apply(cursor, facts, written_columns(facts, file.layout.columns))
    for source, seq in upto.items():
        cursor.execute(
            f"REPLACE INTO {marks_name(facts)} (table_name, source, seq) "
            f"VALUES ({utf8_literal(facts.table)}, {bytes_literal(source.encode())}, "
            f"{max(seq, marks.get(source, seq))})"
        )
    counts = WriteCounts(
        write.logical,
        facts.name,
        written=sum(states.get((op, NEW), 0) for op in (UPSERT, DELETE, TRUNCATE)) - absent,
        stale=sum(states.get((op, STALE), 0) for op in (UPSERT, DELETE, TRUNCATE)),
        absent=absent,
        quarantined=quarantined,
    )
    return note(cursor, write, counts)


def marks_name(facts: TableFacts) -> str:
    return f"{quote(facts.database)}.{MARKS}"


def marks_of(cursor: Any, facts: TableFacts, *, lock: bool = False) -> dict[str, int]:
    """The table's marks by source."""
    cursor.execute(
        f"SELECT source, seq FROM {marks_name(facts)} WHERE table_name = {utf8_literal(facts.table)}"
        + (" FOR UPDATE" if lock else "")
    )
    return {bytes(source).decode(): int(seq) for source, seq in cursor.fetchall()}


def _apply(cursor: Any, facts: TableFacts, columns: Sequence[str]) -> int:
    """Applies the loaded rows that are not stale to the table; how many were to go and were not there."""
    table, names = table_name(facts), [target_name(facts, name) for name in columns]
    for name, definition in _TABLES.items():
        cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {name}")
        cursor.execute(f"CREATE TEMPORARY TABLE {name} ({definition}) ENGINE=InnoDB")
    cursor.execute(
        f"INSERT INTO {_LINES} SELECT _n, _o, _f, ROW_NUMBER() OVER (PARTITION BY _f, _o ORDER BY _n) FROM "
        f"(SELECT _n, _o, {_fingerprint(facts, columns, '_l')} AS _f FROM {TEMPORARY} _l "
        # The limit keeps MySQL from merging the two: it cannot sort what has JSON of more than some 100 kB in it.
        f"WHERE _s = {NEW} AND _o IN ('{UPSERT}', '{DELETE}') LIMIT {_ALL}) one"
    )
    _require_fingerprints(cursor, facts)
    net = f"SUM(IF(_o = '{UPSERT}', 1, -1))"
    cursor.execute(f"INSERT INTO {_NET} SELECT _f, {net} FROM {_LINES} GROUP BY _f HAVING {net} <> 0")
    cursor.execute(f"SELECT COALESCE(SUM(_net < 0), 0), COALESCE(SUM(GREATEST(_net, 0)), 0) FROM {_NET}")
    going, coming = (int(count) for count in cursor.fetchone())
    here = f"{table} r STRAIGHT_JOIN {_NET} n ON n._f = {_fingerprint(facts, columns, 'r')}"
    count = f"SELECT n._f, COUNT(*) FROM {here} {{}} GROUP BY n._f"
    absent = 0
    if going or facts.triggers:
        cursor.execute(f"INSERT INTO {_HAD} {count.format('' if facts.triggers else 'WHERE n._net < 0')}")
    if going:
        absent = _delete(cursor, facts, here)
    if coming:
        _insert(
            cursor,
            facts,
            coming,
            (
                f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(f'l.{name}' for name in names)} "
                f"FROM {_LINES} k STRAIGHT_JOIN {_NET} n ON n._f = k._f STRAIGHT_JOIN {TEMPORARY} l ON l._n = k._n "
                f"WHERE k._o = '{UPSERT}' AND k._r <= n._net"
            ),
            f"{TEMPORARY} l",
            "l._n",
        )
    if facts.triggers:
        cursor.execute(f"INSERT INTO {_NOW} {count.format('')}")
        cursor.execute(
            f"SELECT COUNT(*) FROM {_NET} n LEFT JOIN {_HAD} h ON h._f = n._f LEFT JOIN {_NOW} w ON w._f = n._f "
            "WHERE GREATEST(COALESCE(h._c, 0) + n._net, 0) <> COALESCE(w._c, 0)"
        )
        _require(facts, "rows with a wrong number of copies", int(cursor.fetchone()[0]), 0)
    return absent


def _require_fingerprints(cursor: Any, facts: TableFacts) -> None:
    """Rows of the table that have none are equal to no loaded row: the limit is the same for all of them."""
    cursor.execute(f"SELECT EXISTS(SELECT 1 FROM {_LINES} WHERE _f IS NULL)")
    if cursor.fetchone()[0]:
        raise Refused(
            "The server cannot compare a row that has no key: the text of a JSON document in it, or of all its values, "
            "is longer than the server's max_allowed_packet.",
            where=facts.name,
            code="target.limit",
            remedy=LARGER_PACKETS,
        )


def _delete(cursor: Any, facts: TableFacts, here: str) -> int:
    """Removes the copies that go; how many were not there. Which of equal copies stay is arbitrary: those that stay
    keep the values of columns that only the target has."""
    cursor.execute(
        "SELECT COALESCE(SUM(h._c), 0), COALESCE(SUM(GREATEST(COALESCE(h._c, 0) + n._net, 0)), 0), "
        "COALESCE(SUM(GREATEST(-n._net - COALESCE(h._c, 0), 0)), 0) "
        f"FROM {_NET} n LEFT JOIN {_HAD} h ON h._f = n._f WHERE n._net < 0"
    )
    there, staying, absent = (int(count) for count in cursor.fetchone())
    whole = [column for column in facts.columns if not column.generated]
    names = ", ".join(quote(column.name) for column in whole)
    stay = f"STRAIGHT_JOIN {_HAD} h ON h._f = n._f AND h._c + n._net > 0"
    if staying:
        cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {_KEPT}")
        cursor.execute(
            f"CREATE TEMPORARY TABLE {_KEPT} (_lockstep_n BIGINT AUTO_INCREMENT PRIMARY KEY, "
            f"_lockstep_f BINARY(32), _lockstep_stay BIGINT, {', '.join(column_sql(column) for column in whole)}) "
            "ENGINE=InnoDB"
        )
        cursor.execute(
            f"INSERT INTO {_KEPT} (_lockstep_f, _lockstep_stay, {names}) SELECT n._f, h._c + n._net, "
            f"{', '.join(f'r.{quote(column.name)}' for column in whole)} FROM {here} {stay} WHERE n._net < 0"
        )
        cursor.execute(
            f"INSERT INTO {_STAYS} SELECT _lockstep_n FROM (SELECT _lockstep_n, _lockstep_stay, ROW_NUMBER() OVER "
            f"(PARTITION BY _lockstep_f ORDER BY _lockstep_n) AS place FROM {_KEPT}) one WHERE place <= _lockstep_stay"
        )
    if there:
        cursor.execute(f"DELETE r FROM {here} WHERE n._net < 0")
        _require(facts, "rows removed", cursor.rowcount, there)
    if staying:
        _insert(
            cursor,
            facts,
            staying,
            f"INSERT INTO {table_name(facts)} ({names}) SELECT {names} FROM {_KEPT} "
            f"WHERE _lockstep_n IN (SELECT _n FROM {_STAYS})",
            _KEPT,
            "_lockstep_n",
        )
    return absent


def _insert(cursor: Any, facts: TableFacts, rows: int, statement: str, numbered: str, number: str) -> None:
    """number: a column that differs in each row of the table `numbered`, which the statement reads. The statement ends
    in its WHERE.

    MariaDB refuses several rows by one INSERT (...) SELECT, with 1048, if the table has a BEFORE INSERT trigger and a
    NOT NULL column without a default: then they are inserted in parts, down to single rows.
    """
    inserted = 0

    def insert(low: int, high: int) -> None:
        nonlocal inserted
        cursor.execute(f"{statement} AND {number} BETWEEN {low} AND {high}")
        inserted += int(cursor.rowcount)

    try:
        inserted = int(cursor.execute(statement))
    except pymysql.err.MySQLError as error:
        if not is_row_error(error):
            raise
        if not facts.triggers:
            raise rejected(facts, None, error) from None
        cursor.execute(f"SELECT MIN({number}), MAX({number}) FROM {numbered}")
        for _, failed in failing_lines(insert, *map(int, cursor.fetchone())):
            raise rejected(facts, None, failed) from None
    _require(facts, "rows inserted", inserted, rows)


def _require(facts: TableFacts, what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise DataAtRisk(
            f"The write ended with {found} {what} instead of {wanted}.",
            where=facts.name,
            code="target.row_error",
            remedy="look for triggers of the target that change, add or delete rows, and for other writers; "
            "nothing of this shard was written",
        )


def _fingerprint(facts: TableFacts, columns: Sequence[str], row: str) -> str:
    """SQL: a value that is equal for rows whose columns are equal byte by byte, and for no others; null where the
    server makes no text of them, as it is longer than max_allowed_packet."""
    parts = []
    for name in columns:
        column, kind = f"{row}.{target_name(facts, name)}", facts.by_name[name.lower()].type
        if kind.base not in _BYTES:
            value = as_text(facts, name, row)
        elif kind.labels or (kind.length or _LONG) < _LONG:
            value = f"HEX({column})"
        else:
            value = f"SHA2({column}, 256)"  # as hex it could exceed the longest text
        if kind.base == "json":
            # MySQL makes '' of a document that is too long.
            parts.append(f"IF({column} IS NULL, 'null', NULLIF({value}, '{_HASH_OF_NOTHING}'))")
        else:
            parts.append(f"COALESCE({value}, 'null')")
    joined = ", ',', ".join(parts)
    return f"UNHEX(SHA2(CONCAT({joined}), 256))"
