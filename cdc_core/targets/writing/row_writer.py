"""The guarded bulk write of one shard table: all of a run's rows, or a part of them (write_parts.py), in one
transaction, or nothing.

    load     the rows into a temporary table (outside the transaction)
    lock     a named lock per table, so that two runs take turns; in the transaction the rows' own locks
    fence    where one is raised (fence.py), nothing is written
    layout   of a table that has the rows of another shard or layout (placement.py), nothing is written
    twins    among rows whose keys are equal in the table, the newest counts (target_keys.py)
    complete values that the log did not carry are taken from the target's own row
    guard    rows older than the target's row or tombstone are marked stale and not written
    refuse   rows that would hit another source table's row, or that still lack values: nothing is written
    delete   rows, and leave tombstones: also for keys that are not there, so that a late insert finds them
    upsert   INSERT ... ON DUPLICATE KEY UPDATE, each row guarded once more
    verify   every upserted key now carries its own version; otherwise another row was hit, and all is undone
             (versions beside the table: rows are found by their own key alone, so that no other can be hit)
    truncate rows older than a truncate, or than a copy that takes their place, are deleted, and a tombstone for all
             keys is left; what is written under their keys has replaced them
    ledger   what was done, in the same transaction; then commit

Into a table that is empty, rows that are plain upserts go without the temporary table (direct.py), in the same
transaction as their fence, layout and ledger; so do those of a part whose range of keys is empty. A few deletes among
them leave their tombstones in the same transaction.

Unique values that another row holds: the upsert is tried as it is, which costs nothing when there are none.
If it fails or does not verify, it is undone, and the rows that the batch writes are taken out first, then inserted
(unique_keys.py). So a swap works, and no row is ever hit that the batch does not own: `target.unique_conflict`.

Triggers of the target fire; foreign keys are not checked (the source did) and do not cascade.
Operations: MergedOp. A row that left this shard comes with the arrivals too, for the unique values that it frees.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pymysql

from cdc_core.errors import DataAtRisk, RetryLater
from cdc_core.model.merged_columns import MergedOp
from cdc_core.model.run_plan import WriteCounts
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.mysql.connections import SafeConnection, Server, sensible
from cdc_core.mysql.server_errors import ErrorKind, kind_of
from cdc_core.targets.bookkeeping.placement import begin_write
from cdc_core.targets.bookkeeping.table_states import LEDGER, lock_table
from cdc_core.targets.reading.table_facts import TableFacts, table_name, written_columns
from cdc_core.targets.reading.target_faults import is_row_error, reason, translated
from cdc_core.targets.tables.target_keys import (
    of_another_table,
    require_own_rows,
    settle_twins,
    shared_key,
)
from cdc_core.targets.tables.unique_keys import restore_extra, take_out
from cdc_core.targets.writing import direct
from cdc_core.targets.writing.guard_sql import may_replace_sql, newer_or_equal_sql, other_origin_sql
from cdc_core.targets.writing.load import (
    IS_WRITTEN,
    TEMPORARY,
    LoadFile,
    RowState,
    absent_values,
    create_temporary,
    is_absent,
    load,
    open_session,
    remove,
    shown_key,
    target_name,
)
from cdc_core.targets.writing.shard_write import ShardResult, ShardWrite
from cdc_core.targets.writing.target_truncates import Truncates, keep_truncates, loaded_truncates, truncates_of
from cdc_core.targets.writing.upsert import RowCollision, UnfitRows, upsert_rows
from cdc_core.targets.writing.versions import beside, equal_sql, on_key, row_version, tombstones_name, versions_name

log = logging.getLogger(__name__)

UPSERT, DELETE, LEFT_SHARD = MergedOp.UPSERT, MergedOp.DELETE, MergedOp.LEFT_SHARD
TRUNCATE, TRUNCATE_UNCOUNTED = MergedOp.TRUNCATE, MergedOp.TRUNCATE_UNCOUNTED
NEW, STALE, THERE, EQUAL = RowState

_COUNTS = ("written", "stale", "absent")
ATTEMPTS = 6


States = dict[tuple[str, int], int]
"""How many loaded rows there are of each operation and RowState."""
Transact = Callable[..., WriteCounts]
"""Called with a cursor, the write, the file, and by name `careful` and `quarantined`, once the rows are loaded and the
table is locked."""


@sensible("target")
def write_shard(
    server: Server,
    write: ShardWrite,
    file: LoadFile,
    *,
    transact: Transact | None = None,
    pause: Callable[[float], None] = time.sleep,
    session: Callable[[], SafeConnection] | None = None,
) -> ShardResult:
    """Writes a load file to its table; safe to repeat. transact: what is done in the transaction; None: as above.
    session: gives one of load.open_session that nobody else uses, which stays open unless an error ends the work in it,
    and gives another one afterwards; None: one is opened for this table.

    Raises Refused (target.fenced), DataAtRisk (target.layout, target.row_error, target.unique_conflict,
    target.absent_values, target.key_collapse), RetryLater (target.busy), and what target_faults makes of the
    server's errors. Whatever is raised, nothing was written, unless the connection broke during the commit: then the
    rows may have been written, and a repeated call finds them.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _attempt(server, write, file, transact or _transaction, session)
        except pymysql.err.MySQLError as error:
            if attempt == ATTEMPTS or kind_of(error) not in (ErrorKind.BUSY, ErrorKind.GONE):
                raise translated(error, where=f"{server}, {write.facts.name}") from None
            wait_s = min(0.1 * 2**attempt, 5.0) * (0.5 + random.random())
            log.warning("%s: %s; attempt %d follows in %.1f s", write.facts.name, reason(error), attempt + 1, wait_s)
            pause(wait_s)
    raise AssertionError("unreachable")


def _attempt(
    server: Server, write: ShardWrite, file: LoadFile, transact: Transact, session: Callable[[], SafeConnection] | None
) -> ShardResult:
    connection = session() if session else open_session(server, write.facts.database, where=write.facts.name)
    ended = False
    try:
        with connection.cursor() as cursor:
            if transact is _transaction and (loaded := _load_empty(connection, cursor, write, file)):
                ended = True
                return ShardResult(loaded)
            create_temporary(cursor, write.facts, file.layout)
            unfit = load(cursor, write.facts, file, tolerant=write.quarantine)
            lock = lock_table(cursor, write.facts.name)
            careful = False
            while True:
                try:
                    _begin(connection, cursor, write)
                    counts = transact(cursor, write, file, careful=careful, quarantined=len(unfit))
                    connection.commit()
                    break
                except RowCollision:
                    connection.rollback()
                    careful = True
                except UnfitRows as found:
                    connection.rollback()
                    unfit += remove(cursor, write.facts, found.reasons)
                cursor.execute(f"UPDATE {TEMPORARY} SET _s = {NEW}")
            cursor.execute("DO RELEASE_LOCK(%s)", (lock,))
            ended = True
            return ShardResult(counts, tuple(unfit))
    finally:
        # Closing rolls back what is not committed, and frees the named lock and the temporary tables. In a session that
        # stays open, the next table's replace them.
        if not (session and ended):
            connection.close()


def _begin(connection: SafeConnection, cursor: Any, write: ShardWrite) -> None:
    connection.begin()
    begin_write(cursor, write.facts, write.pipeline, write.placement)
    part, named = write.part, (write.run_id, write.facts.table)
    if part and part.before:
        # As the part before this one has left it, or this one itself, whose commit was not answered.
        _require_written(cursor, write, "at IN (%s, %s)", (*named, part.after, part.mark))
    elif write.after:
        _require_written(cursor, write, "number >= %s", (*named, write.after))


def _require_written(cursor: Any, write: ShardWrite, as_left: str, arguments: Sequence[Any]) -> None:
    """The ledger row is as this run has left it: a server that shows that has all that the run has written so far.
    Raises RetryLater (target.busy)."""
    cursor.execute(
        f"SELECT COUNT(*) FROM {LEDGER} WHERE run_id = %s AND table_name = %s AND {as_left}", tuple(arguments)
    )
    if not cursor.fetchone()[0]:
        raise RetryLater(
            "The table lacks what this run wrote to it before: the server failed over, the table was created again, "
            "or another task writes the same run.",
            where=write.facts.name,
            code="target.busy",
            remedy="run the task again: it writes everything; no batch was marked as consumed",
        )


def _load_empty(connection: SafeConnection, cursor: Any, write: ShardWrite, file: LoadFile) -> WriteCounts | None:
    """All of the write, if the table is empty and the rows can go straight into it (direct.py); else nothing. Of a
    part, the range of its keys must be empty."""
    facts = write.facts
    if not (write.ledger and direct.fits(facts, file)):
        return None
    keys = file.key_range if write.part else None
    if (write.part and keys is None) or not direct.is_empty(cursor, facts, keys):
        return None
    try:
        direct.prepare_deletes(cursor, facts, file)
    except DataAtRisk:
        return None  # the guarded write says what is wrong, or sets rows aside
    lock = lock_table(cursor, facts.name)
    _begin(connection, cursor, write)
    try:
        done, why = direct.load_empty(cursor, facts, file, keys), "the guarded write has more to do"
    except pymysql.err.MySQLError as error:
        if not is_row_error(error):
            raise
        done, why = False, reason(error)
    counts = None
    if done:
        written, absent = file.lines, file.rows - file.lines
        counts = note(cursor, write, WriteCounts(write.logical, facts.name, written=written, stale=0, absent=absent))
        connection.commit()
    else:
        connection.rollback()
        log.info("%s: not loaded directly: %s", facts.name, why)
    cursor.execute("DO RELEASE_LOCK(%s)", (lock,))
    return counts


class ShardTransaction:
    """The work between `begin` and `commit`: one method per phase, in the order of `run`.

    careful: the rows that the batch writes are taken out first. quarantined: rows left out at the load.
    """

    def __init__(self, cursor: Any, write: ShardWrite, file: LoadFile, *, careful: bool, quarantined: int) -> None:
        self.cursor = cursor
        self.write = write
        self.facts = write.facts
        self.file = file
        self.key = file.layout.key
        self.careful = careful
        self.quarantined = quarantined
        facts, key = self.facts, self.key
        self._joined = f"{TEMPORARY} _l STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, key)}{beside(facts, key)}"
        self._buried = f"{TEMPORARY} _l STRAIGHT_JOIN {tombstones_name(facts)} d ON {on_key(facts, key, right='d')}"
        self._version = row_version(facts)
        self._truncates = loaded_truncates(cursor, TEMPORARY) if file.truncates else Truncates()
        self._removed = self._truncates.removes_sql(self._version)
        names = [target_name(facts, name) for name in key]
        self._kept = ", ".join([*names, VERSION_COLUMN])
        self._loaded = ", ".join([*(f"_l.{name}" for name in names), "_l._v"])

    def run(self) -> WriteCounts:
        twins = settle_twins(self.cursor, self.facts, self.key)
        keep_truncates(self.cursor, self.facts, self._truncates.versions)
        state, special = self._state_sql()
        marked = self.lock(special)
        if self.file.absent:
            self.complete()
        buried = self.guard(state, special, marked=marked)
        self.refuse(twins=twins)
        states = states_of(self.cursor)
        if self.careful:  # their unique values must be free
            take_out(self.cursor, self.facts, self.file.layout)
            self.truncate()
        self.delete(states)
        upserts = sum(states.get((UPSERT, state), 0) for state in (NEW, THERE, EQUAL))
        if upserts:
            self.upsert(upserts)
            if buried:
                self.cursor.execute(f"DELETE d FROM {self._buried} WHERE {IS_WRITTEN}")
        self.truncate()
        self.require_origins()
        return self.ledger(states, upserts)

    def _state_sql(self) -> tuple[str, str]:
        """(the RowState of a loaded row whose key the target has; whether it is another than an ordinary update's)."""
        fresh = target_name(self.facts, self.write.freshness) if self.write.freshness else None
        version = self._version
        replaces = may_replace_sql("_l._v", version, fresh=fresh and f"_l.{fresh}", old_fresh=fresh and f"r.{fresh}")
        # A delete and a row of one version are the two sides of one change, to a key that is equal in the table.
        removes = f"({newer_or_equal_sql('_l._v', version)} AND NOT _l._v <=> {version})"
        wins = f"({self._removed} OR IF(_l._o = '{UPSERT}', {replaces}, {removes}))"
        equal = f"_l._o = '{UPSERT}' AND _l._v <=> {version}"
        state = f"IF({wins}, IF({equal}, {EQUAL}, {THERE}), {STALE})"
        return state, f"(_l._o <> '{UPSERT}' OR _l._a IS NOT NULL OR {state} <> {THERE})"

    def lock(self, special: str) -> bool:
        """Locks the rows that are there; whether any loaded row is special."""
        # No WHERE: under READ COMMITTED a row that a condition rejects is unlocked again.
        self.cursor.execute(f"SELECT COALESCE(SUM({special}), 0) FROM {self._joined} FOR UPDATE")
        return bool(self.cursor.fetchone()[0])

    def complete(self) -> None:
        """Gives loaded rows the values that the log did not carry, from the rows that are there."""
        own = [
            f"_l.{name} = IF({is_absent(self.file.layout, column)}, r.{name}, _l.{name})"
            for column, name in ((column, target_name(self.facts, column)) for column in sorted(self.file.absent))
        ]
        self.cursor.execute(f"UPDATE {self._joined} SET {', '.join(own)} WHERE _l._a IS NOT NULL")

    def guard(self, state: str, special: str, *, marked: bool) -> bool:
        """Sets the state of loaded rows: those older than the target's row, tombstone or truncate are stale. Returns
        whether their keys have tombstones."""
        if marked:
            self.cursor.execute(f"UPDATE {self._joined} SET _l._s = {state} WHERE {special} AND _l._s <> {STALE}")
        tombstone = f"d.{VERSION_COLUMN}"
        late = f"NOT {newer_or_equal_sql('_l._v', tombstone)}"
        if self.file.layout.shared:
            late = f"({late} AND NOT {other_origin_sql('_l._v', tombstone)})"
        self.cursor.execute(f"SELECT COUNT(*), COALESCE(SUM({late}), 0) FROM {self._buried} FOR UPDATE")
        buried, refused = self.cursor.fetchone()
        if refused:
            self.cursor.execute(f"UPDATE {self._buried} SET _l._s = {STALE} WHERE {late}")
        truncated = truncates_of(self.cursor, self.facts)
        if truncated:
            self.cursor.execute(f"UPDATE {TEMPORARY} _l SET _l._s = {STALE} WHERE {truncated.refuses_sql('_l._v')}")
        return bool(buried)

    def refuse(self, *, twins: bool) -> None:
        """Raises DataAtRisk (target.shared_key, target.key_collapse, target.absent_values) for rows that must not be
        written."""
        stays = f"NOT {self._removed}"
        if self.file.layout.shared:
            _require_one_origin(self.cursor, self.write, self._joined, self._version, stays)
        if self.facts.coarser:
            joined = beside(self.facts, self.key) if self._truncates else ""
            stays = stays if self._truncates else "TRUE"
            require_own_rows(self.cursor, self.facts, self.key, twins=twins, stays=stays, joined=joined)
        if self.file.absent:
            _require_complete(self.cursor, self.facts, self.file)

    def delete(self, states: States) -> None:
        """Removes rows, and leaves tombstones."""
        # Rows that leave the shard go in a second pass, unless their unique values block this one.
        both_go = self.careful or not self.write.ledger
        goes = (DELETE, LEFT_SHARD) if both_go else (DELETE,)
        removed = f"_l._o IN ({', '.join(repr(str(op)) for op in goes)})"
        if not any(states.get((op, state)) for op in goes for state in (NEW, THERE)):
            return
        if any(states.get((op, THERE)) for op in goes):
            gone = "r, v" if self.facts.beside else "r"
            self.cursor.execute(f"DELETE {gone} FROM {self._joined} WHERE {removed} AND _l._s = {THERE}")
        self.cursor.execute(
            f"INSERT INTO {tombstones_name(self.facts)} ({self._kept}) SELECT {self._loaded} FROM {TEMPORARY} _l "
            f"WHERE {removed} AND _l._s <> {STALE} ON DUPLICATE KEY UPDATE {VERSION_COLUMN} = _l._v"
        )

    def truncate(self) -> None:
        """Removes rows that are older than a truncate."""
        if not self._truncates:
            return
        facts = self.facts
        rows = f"{table_name(facts)} r{beside(facts, self.key, row='r')}"
        self.cursor.execute(f"DELETE r FROM {rows} WHERE {self._removed}")
        log.info("%s: %d older rows removed", facts.name, self.cursor.rowcount)
        if facts.beside:
            self.cursor.execute(f"DELETE v FROM {versions_name(facts)} v WHERE {self._removed}")

    def require_origins(self) -> None:
        """Every row that is left says whether it should have gone. Raises DataAtRisk (target.unknown_origin)."""
        if not (self._truncates and self.file.layout.shared):
            return
        facts = self.facts
        self.cursor.execute(
            f"SELECT COUNT(*) FROM {table_name(facts)} r{beside(facts, self.key, row='r')} "
            f"WHERE {self._truncates.passes_sql(self._version)}"
        )
        rows = int(self.cursor.fetchone()[0])
        if rows:
            raise DataAtRisk(
                f"{rows} rows have no source table recorded, so Lockstep cannot decide whether the copy of a table "
                f"that feeds {self.write.logical!r} should delete them.",
                where=facts.name,
                code="target.unknown_origin",
                remedy="copy the other tables that feed it too (`lockstep snapshot PIPELINE TABLE...`), which "
                "records the origin of every row that a source has; remove the rows that are left; then run again",
            )

    def upsert(self, upserts: int) -> None:
        """Writes the rows, and their versions where these are kept beside the table; then verifies them."""
        upsert_rows(self.cursor, self.write, self.file, self._truncates, careful=self.careful)
        if self.careful:
            restore_extra(self.cursor, self.facts, self.file.layout)
        if self.facts.beside:
            self.cursor.execute(
                f"INSERT INTO {versions_name(self.facts)} ({self._kept}) SELECT {self._loaded} FROM {TEMPORARY} _l "
                f"WHERE {IS_WRITTEN} ON DUPLICATE KEY UPDATE {VERSION_COLUMN} = _l._v"
            )
        else:
            self.verify(upserts)
        _verify_generated(self.cursor, self.facts, self.file)

    def verify(self, upserts: int) -> None:
        """Every upserted key carries its own version now; otherwise another row was hit."""
        self.cursor.execute(
            f"SELECT COUNT(*) FROM {TEMPORARY} _l STRAIGHT_JOIN {table_name(self.facts)} r "
            f"ON {on_key(self.facts, self.key)} "
            f"WHERE {IS_WRITTEN} AND r.{VERSION_COLUMN} = _l._v"
        )
        there = int(self.cursor.fetchone()[0])
        if there == upserts:
            return
        if not self.careful:
            raise RowCollision
        raise DataAtRisk(
            f"After the write, only {there} of {upserts} rows are in the table as written.",
            where=self.facts.name,
            code="target.unique_conflict",
            remedy="look for triggers of the target that change rows, or for keys that are equal only in the "
            "target's collation; nothing of this transaction was written",
        )

    def ledger(self, states: States, upserts: int) -> WriteCounts:
        """The counts, also in the shard's own ledger."""
        counts = WriteCounts(
            self.write.logical,
            self.facts.name,
            written=upserts + states.get((DELETE, THERE), 0) + states.get((TRUNCATE, NEW), 0),
            stale=sum(states.get((op, STALE), 0) for op in (UPSERT, DELETE, TRUNCATE)),
            absent=states.get((DELETE, NEW), 0),
            equal=states.get((UPSERT, EQUAL), 0),
            quarantined=self.quarantined,
        )
        return note(self.cursor, self.write, counts)


def _transaction(cursor: Any, write: ShardWrite, file: LoadFile, *, careful: bool, quarantined: int) -> WriteCounts:
    return ShardTransaction(cursor, write, file, careful=careful, quarantined=quarantined).run()


def _require_one_origin(cursor: Any, write: ShardWrite, joined: str, version: str, stays: str) -> None:
    """No loaded row hits a row of another source table that stays. Raises DataAtRisk (target.shared_key)."""
    cursor.execute(
        f"SELECT _l._k FROM {joined} WHERE _l._s <> {STALE} AND {stays} AND {of_another_table('_l', version)} LIMIT 1"
    )
    row = cursor.fetchone()
    if row is not None:
        raise shared_key(write.logical, bytes(row[0]), where=write.facts.name)


def _require_complete(cursor: Any, facts: TableFacts, file: LoadFile) -> None:
    """What the table computes itself is not lacking. Raises DataAtRisk (target.absent_values)."""
    lacking = [is_absent(file.layout, name) for name in written_columns(facts, sorted(file.absent))]
    if not lacking:
        return
    cursor.execute(
        f"SELECT _k, COUNT(*) OVER () FROM {TEMPORARY} _l WHERE _o = '{UPSERT}' AND _s = {NEW} AND _a IS NOT NULL "
        f"AND ({' OR '.join(lacking)}) ORDER BY _n LIMIT 1"
    )
    row = cursor.fetchone()
    if row:
        raise absent_values(row[1], row[0], where=facts.name)


def states_of(cursor: Any) -> States:
    cursor.execute(f"SELECT _o, _s, COUNT(*) FROM {TEMPORARY} GROUP BY _o, _s")
    return {(str(op), int(state)): int(count) for op, state, count in cursor.fetchall()}


def _verify_generated(cursor: Any, facts: TableFacts, file: LoadFile) -> None:
    """Columns that the target computes have the values that the source's have."""
    layout = file.layout
    for name in layout.columns:
        if facts.by_name[name.lower()].generated and name not in layout.key:
            same = equal_sql(facts, name)
            if name in file.absent:
                same = f"({same} OR {is_absent(layout, name)})"
            cursor.execute(
                f"SELECT _l._k FROM {TEMPORARY} _l STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, layout.key)} "
                f"WHERE {IS_WRITTEN} AND NOT {same} LIMIT 1"
            )
            row = cursor.fetchone()
            if row:
                raise DataAtRisk(
                    f"The target computes another value of {name} than the source, in the row with key "
                    f"{shown_key(bytes(row[0]))}.",
                    where=facts.name,
                    code="target.row_error",
                    remedy=f"compare the expressions of {name} on both; make it a plain column of the target, or "
                    "drop it there if it is generated on the source; nothing of this transaction was written",
                )


def note(cursor: Any, write: ShardWrite, counts: WriteCounts) -> WriteCounts:
    """Writes the shard's own ledger row; the counts with the transaction's number. The lock on the table is held, so
    that the transactions of a table are numbered in the order of their commits.

    A part notes what has been done so far. Only the last one gives the row its number: until then the row shows no
    write of the run (0), or an earlier one that was whole."""
    cursor.execute(f"SELECT COALESCE(MAX(number), 0) + 1 FROM {LEDGER} WHERE table_name = %s", (write.facts.table,))
    number, part = int(cursor.fetchone()[0]), write.part
    before = part.before if part else None
    noted: dict[str, Any] = {}
    if write.ledger:  # otherwise the counts are those of the first pass
        noted = {name: getattr(counts, name) + (getattr(before, name) if before else 0) for name in _COUNTS}
    if part:
        noted["at"] = part.mark
    if not (part and part.more):
        noted["number"] = number
    row = {"run_id": write.run_id, "table_name": write.facts.table, "logical": write.logical}
    row |= dict.fromkeys((*_COUNTS, "number"), 0) | noted
    cursor.execute(
        f"INSERT INTO {LEDGER} ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))}) "
        f"ON DUPLICATE KEY UPDATE {', '.join(f'{name} = %s' for name in noted)}",
        [*row.values(), *noted.values()],
    )
    return replace(counts, number=number) if "number" in noted else counts
