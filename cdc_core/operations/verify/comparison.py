"""Rows of source and target, compared by key; and what the staged changes say about keys that differ.

A database file of DuckDB holds them: memory is bounded, and what does not fit goes to the disk. A row is a key's
canonical text and a hash of the row's and its shard; a row without a key is its own key. What differs is judged some
keys at a time (judgement).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.codes import Runs, whole
from cdc_core.history.events import TABLE
from cdc_core.model.staged_columns import ROW, SEQ, SOURCE
from cdc_core.operations.verify.canonical import SEPARATOR
from cdc_core.operations.verify.judgement import (
    EVENT_COLUMNS,
    MOVING,
    OUTCOMES,
    UNSETTLED,
    Judged,
    Wrong,
    outcomes,
    telling,
    telling_truncates,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation


class DifferenceKind(StrEnum):
    """How source and target differ. MISSING, SURPLUS: at the target. COPIES: of equal rows, or of one key."""

    MISSING = "missing"
    SURPLUS = "surplus"
    DIFFERS = "differs"
    COPIES = "copies"


@dataclass(frozen=True, slots=True)
class Difference:
    """key: canonical text. source_rows, target_rows: how many rows each has under it."""

    key: str
    kind: DifferenceKind
    wrong: Wrong
    source_rows: int
    target_rows: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """moving: keys that differed, and that changes explain. unsettled: keys that a later look can judge. first: some
    findings, in the order of their keys."""

    moving: int
    unsettled: int
    by_wrong: Mapping[str, int]
    first: tuple[Difference, ...]


_SIDES = ("source", "target")
_MEMORY = "512MB"
_TABLES, _EVENTS = 256, 16_384
"""The most tables and events that one statement keeps."""
_KEYS = 1 << 16
"""The most keys that are judged at once."""
_PART_EVENTS = 1 << 18
"""So many events of these keys are gathered before those that do not matter are left out."""
_LAST = (1 << 63) - 1
_FINDINGS = [OUTCOMES.index(wrong) for wrong in Wrong]


def _hash(text: str, place: str) -> str:
    return f"CASE WHEN {text} IS NOT NULL THEN unhex(left(sha256(concat({text}, '{SEPARATOR}', {place})), 32)) END"


_HASHES = f"{_hash('text', 'place')} AS g, {_hash('former', 'former_place')} AS was"
_EVENTS_TAKEN = f"SELECT * EXCLUDE (text, former), {_HASHES} FROM taken"


class Comparison:
    """folder: where its file is. keyed: whether rows have a key. apart: several source tables may feed the table, and
    must not share keys, so that a row that one of them has lost may have moved to another before."""

    def __init__(self, folder: Path, *, keyed: bool, apart: bool = False) -> None:
        import duckdb  # takes a while, and not every command that loads this module compares

        self._keyed = keyed
        self._apart = apart
        self._db = duckdb.connect(
            str(folder / "verify.duckdb"),
            config={
                "memory_limit": _MEMORY,
                "threads": 2,
                "temp_directory": str(folder),
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        self._db.execute("SET python_enable_replacements = false")
        for side in _SIDES:
            self._db.execute(f"CREATE OR REPLACE TABLE {side}_rows (k VARCHAR, g BLOB)")

    def __enter__(self) -> Comparison:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()

    def add(self, side: str, keys: pa.Array, texts: pa.Array, places: pa.Array) -> None:
        """Rows of a side, "source" or "target"."""
        rows = pa.table({"k": keys, "text": texts, "place": places})
        _execute(self._db, f"INSERT INTO {side}_rows SELECT k, {_hash('text', 'place')} FROM taken", rows)

    def differing(self) -> int:
        """How many keys do not have the same rows on both sides."""
        self._db.execute(
            "CREATE OR REPLACE TABLE differing AS SELECT k, row_number() OVER (ORDER BY k) - 1 AS key FROM ("
            "SELECT DISTINCT k FROM (SELECT k, g FROM ("
            "SELECT k, g, 1 AS n FROM source_rows UNION ALL SELECT k, g, -1 AS n FROM target_rows) "
            "GROUP BY k, g HAVING sum(n) <> 0))"
        )
        return int(self._db.execute("SELECT count(*) FROM differing").fetchall()[0][0])

    def differing_keys(self) -> pa.Array:
        """In order, after `differing`."""
        keys: pa.Table = self._db.sql("SELECT k FROM differing ORDER BY key").to_arrow_table()
        return whole(keys.column(0))

    def differences(self) -> Differences:
        """The rows of the keys that differ, after `differing`."""
        return Differences(self._db, keyed=self._keyed, apart=self._apart)


class Differences:
    """The keys of a comparison that differ: what the staged changes say of them is added, and then they are judged."""

    def __init__(self, db: DuckDBPyConnection, *, keyed: bool, apart: bool) -> None:
        self._db, self._keyed, self._apart = db, keyed, apart
        for side in _SIDES:
            db.execute(
                f"CREATE OR REPLACE TABLE {side}_differing AS SELECT key, g FROM {side}_rows JOIN differing USING (k)"
            )
        _execute(db, f"CREATE OR REPLACE TABLE events AS {_EVENTS_TAKEN}", EVENT_COLUMNS.empty_table())
        self._keys = int(db.execute("SELECT count(*) FROM differing").fetchall()[0][0])
        self._waiting: list[pa.Table] = []
        self._truncated = False
        self._read, self._applied = np.full((2, self._keys), -1)
        self._first = np.full((2, self._keys), _LAST)
        self._told = np.zeros(self._keys, bool)

    def add(self, events: pa.Table) -> None:
        """events: EVENT_COLUMNS."""
        # Many staged files have few changes: a statement for each of them would take longer than all of their rows.
        if events.num_rows:
            self._waiting.append(events)
        if len(self._waiting) >= _TABLES or sum(table.num_rows for table in self._waiting) >= _EVENTS:
            self._keep()

    def _keep(self) -> None:
        if not self._waiting:
            return
        events = pa.concat_tables(self._waiting)
        self._waiting.clear()
        _execute(self._db, f"INSERT INTO events {_EVENTS_TAKEN}", events)
        of_keys = events.filter(pc.is_valid(events.column("key")))
        self._truncated |= of_keys.num_rows < events.num_rows
        key, seq, ordinal, read, applied, told = (
            whole(of_keys.column(name)).to_numpy(zero_copy_only=False)
            for name in ("key", SEQ, ROW, "source_has", "target_has", "told")
        )
        np.maximum.at(self._read, key[read], seq[read])
        np.maximum.at(self._applied, key[applied], seq[applied])
        at = Runs.of(key, seq, ordinal).first()
        earliest_seq, earliest = self._first[:, key[at]]
        at = at[(seq[at] < earliest_seq) | ((seq[at] == earliest_seq) & (ordinal[at] < earliest))]
        self._first[:, key[at]], self._told[key[at]] = (seq[at], ordinal[at]), told[at]

    def known_from(self, settled: int) -> int | None:
        """The order key before which no change of the only source table matters: each key that differs has one from
        there on that its source row and its target row must have; or, from there on, all changes that may be under way,
        of which the first says what the row was before. None while some key has neither.

        settled: both sides have the changes before this order key.
        """
        self._keep()
        told = settled if not self._truncated else -1
        known = np.maximum(np.minimum(self._read, self._applied), np.where(self._told, told, -1))
        return int(known.min(initial=_LAST)) if (known >= 0).all() else None

    def judge(self, *, whole: bool, most: int) -> Verdict:
        """After all events were added. whole: as in Judged. most: of findings in `first`."""
        self._keep()
        tables = self._db.execute(f"SELECT DISTINCT {SOURCE}, {TABLE} FROM events").fetchall()
        by = Judged(self._keyed, self._apart, whole, alone=len(tables) == 1)
        truncates = telling_truncates(self._db.sql("SELECT * FROM events WHERE key IS NULL").to_arrow_table(), by)
        counts = np.zeros(len(OUTCOMES), np.int64)
        first: list[Difference] = []
        for low in range(0, self._keys, _KEYS):
            rows = {side: self._some(f"{side}_differing", low).to_arrow_table() for side in _SIDES}
            keys = min(_KEYS, self._keys - low)
            found = outcomes(keys, rows, self._events(keys, rows, low, by), truncates, by)
            counts += np.bincount(found, minlength=len(OUTCOMES))
            wrong = np.flatnonzero(np.isin(found, _FINDINGS))[: most - len(first)]
            if len(wrong):
                ordered = self._some("differing", low).order("key").to_arrow_table()
                texts = ordered.column("k").take(pa.array(wrong)).to_pylist()
                numbers = [np.bincount(rows[side].column("key"), minlength=keys)[wrong].tolist() for side in _SIDES]
                first += [
                    Difference(k, _kind(s, t, self._keyed), Wrong(OUTCOMES[outcome]), s, t)
                    for k, outcome, s, t in zip(texts, found[wrong].tolist(), *numbers, strict=True)
                ]
        by_outcome = dict(zip(OUTCOMES, counts.tolist(), strict=True))
        moving, unsettled = by_outcome.pop(MOVING), by_outcome.pop(UNSETTLED)
        return Verdict(moving, unsettled, {name: count for name, count in by_outcome.items() if count}, tuple(first))

    def _events(self, keys: int, rows: Mapping[str, pa.Table], low: int, by: Judged) -> pa.Table:
        """Those that matter: of a key that changes all the time there may be many."""
        reader, most = self._some("events", low).to_arrow_reader(_PART_EVENTS), _PART_EVENTS
        events = reader.schema.empty_table()
        for batch in reader:
            events = pa.concat_tables([events, pa.Table.from_batches([batch])])
            if events.num_rows > most:
                events = telling(keys, rows, events, by)
                most = max(_PART_EVENTS, 2 * events.num_rows)
        return events

    def _some(self, table: str, low: int) -> DuckDBPyRelation:
        where = f"key >= {low} AND key < {low + _KEYS}"
        return self._db.sql(f"SELECT * REPLACE (key - {low} AS key) FROM {table} WHERE {where}")


def _execute(db: DuckDBPyConnection, statement: str, rows: pa.Table) -> None:
    """A statement that reads these rows from `taken`."""
    db.register("taken", rows)
    try:
        db.execute(statement)
    finally:
        db.unregister("taken")


def _kind(source_rows: int, target_rows: int, keyed: bool) -> DifferenceKind:
    if not target_rows:
        return DifferenceKind.MISSING
    if not source_rows:
        return DifferenceKind.SURPLUS
    return DifferenceKind.DIFFERS if keyed and target_rows == 1 else DifferenceKind.COPIES
