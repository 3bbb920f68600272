"""Rows of source and target, compared by key; and what the staged changes say about keys that differ.

A database file of DuckDB holds them: memory is bounded, and what does not fit goes to the disk. A row is a key's
canonical text and a hash of the row's and its shard; a row without a key is its own key. It must keep true that no key
is left out: each is equal, explained by a change that the reader or the target had not seen, unsettled, or a finding.

    source  target   verdict
    right   right    equal, as far as each had come
    right   wrong    the target is wrong
    wrong   right    the stage is wrong: a change was missed, and the target has what was staged
    wrong   wrong    both are wrong
    ?       ?        the rows differ, and the stage has never seen the key: nothing says which is wrong

A side is right if its row is one of the states that the key had while the side was read, and unknown ("?") if it is
not, and the stage does not know the state before. Where no earlier change was read, what the first change of the key
says of the row before it (an insert: none) is one of these states: either the stage has no earlier change, or
`known_from` has found that this says enough. If the stage lacks rows, a side that has none of these states is still
unknown: a target may not have the rows of a table that was not copied. Where one side is unknown, the key is unsettled
if a change of it was under way, else judged by the other side.

If changes that the target has not consumed move a row to another shard, a run may have made one of its two steps: the
target is right, too, if the row is in none of the shards, or in several as one of its states each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from cdc_core.verify.canonical import SEPARATOR


class Wrong(StrEnum):
    """Which corner a finding accuses."""

    TARGET = "target"
    STAGE = "stage"
    BOTH = "stage and target"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """How source and target differ. MISSING, SURPLUS: at the target. COPIES: of equal rows, or of one key."""

    MISSING = "missing"
    SURPLUS = "surplus"
    DIFFERS = "differs"
    COPIES = "copies"


@dataclass(frozen=True, slots=True)
class Difference:
    """key: canonical text. source_rows, target_rows: how many rows each has under it."""

    key: str
    kind: Kind
    wrong: Wrong
    source_rows: int
    target_rows: int


@dataclass(frozen=True, slots=True)
class Side:
    """What was read of one side. sum_: of the first 128 bits of SHA-256 of all rows, modulo 2 to the 128th, hex."""

    rows: int
    sum_: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """moving: keys that differed, and that changes explain. unsettled: keys that a later look can judge."""

    source: Side
    target: Side
    moving: int
    unsettled: int
    by_wrong: Mapping[str, int]

    @property
    def findings(self) -> int:
        return sum(self.by_wrong.values())


EVENT_COLUMNS = pa.schema(
    [
        ("k", pa.string()), ("text", pa.string()), ("place", pa.int64()), ("gone", pa.bool_()), ("partial", pa.bool_()),
        ("of_source", pa.string()), ("of_table", pa.string()), ("ts", pa.int64()), ("seq", pa.int64()),
        ("ordinal", pa.int64()), ("sure_seq", pa.int64()), ("consumed", pa.bool_()), ("former", pa.bool_()),
    ]
)  # fmt: skip
"""What staged changes say of keys. gone: the row leaves; without a key, one copy of it. partial: the change does not
carry all values. ordinal: `_cdc_row`. sure_seq: a source that is read after this place has the change, or a later one:
the change's own place; of a copied row, the place that its chunk waited for. consumed: by the target, before its rows
were read. A null key: of all keys, a TRUNCATE."""

_BOUNDS = pa.schema([("of_source", pa.string()), ("low", pa.int64()), ("high", pa.int64())])
_HASH = f"unhex(left(sha256(concat(text, '{SEPARATOR}', place)), 32))"
_MEMORY = "512MB"
_TABLES, _EVENTS = 256, 16_384
"""Of events that are kept by one statement."""
_ORDER = "{'seq': seq, 'ordinal': ordinal}"
_EMPTIED = (
    "e.of_source = t.of_source AND e.of_table = t.of_table "
    "AND (e.seq < t.seq OR (e.seq = t.seq AND e.ordinal < t.ordinal))"
)
"""A change of a row that a later TRUNCATE has removed."""


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
                "memory_limit": _MEMORY, "threads": 2, "temp_directory": str(folder), "preserve_insertion_order": False,
                "autoinstall_known_extensions": False, "autoload_known_extensions": False,
            },
        )  # fmt: skip
        self._db.execute("SET python_enable_replacements = false")
        self._waiting: list[pa.Table] = []
        self.clear()

    def __enter__(self) -> Comparison:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()

    def clear(self) -> None:
        """Forgets all rows and events: the next ones are of another range of keys."""
        self._waiting.clear()
        for side in ("source", "target"):
            self._db.execute(f"CREATE OR REPLACE TABLE {side}_rows (k VARCHAR, g BLOB)")
        self._db.execute(
            "CREATE OR REPLACE TABLE events (k VARCHAR, g BLOB, place BIGINT, gone BOOLEAN, partial BOOLEAN, "
            "of_source VARCHAR, of_table VARCHAR, ts BIGINT, seq BIGINT, ordinal BIGINT, sure_seq BIGINT, "
            "consumed BOOLEAN)"
        )
        self._db.execute(
            "CREATE OR REPLACE TABLE formers (k VARCHAR, g BLOB, place BIGINT, of_source VARCHAR, of_table VARCHAR, "
            "seq BIGINT, ordinal BIGINT)"
        )
        self._db.execute("CREATE OR REPLACE TABLE bounds (of_source VARCHAR, low BIGINT, high BIGINT)")
        for made in ("differing", "truncates", "first", "seen", "judged"):
            self._db.execute(f"DROP TABLE IF EXISTS {made}")

    def add(self, side: str, keys: pa.Array, texts: pa.Array, places: pa.Array) -> None:
        """Rows of a side, "source" or "target"."""
        with self._taken(pa.table({"k": keys, "text": texts, "place": places})):
            self._db.execute(f"INSERT INTO {side}_rows SELECT k, {_HASH} FROM taken")

    def differing(self) -> int:
        """How many keys do not have the same rows on both sides."""
        self._db.execute(
            "CREATE OR REPLACE TABLE differing AS SELECT DISTINCT k FROM (SELECT k, g FROM ("
            "SELECT k, g, 1 AS n FROM source_rows UNION ALL SELECT k, g, -1 AS n FROM target_rows) "
            "GROUP BY k, g HAVING sum(n) <> 0)"
        )
        return int(self._rows("SELECT count(*) FROM differing")[0][0])

    def differing_keys(self) -> pa.Array:
        """After `differing`."""
        found: pa.Table = self._db.sql("SELECT k FROM differing").to_arrow_table()
        return found.column(0).combine_chunks()

    def known_from(self, lows: Mapping[str, int], consumed_before: int) -> int | None:
        """The order key before which no change matters: each key that differs has one from there on that its source row
        (read at `lows` or later, by source) and its target row must have; or, from there on, all changes that may be
        under way, of which the first says what the row was before. None while some key has neither.

        consumed_before: changes before this order key were consumed.
        """
        self._keep_events()
        places = [{"of_source": source, "low": low, "high": min(low, consumed_before)} for source, low in lows.items()]
        with self._taken(pa.Table.from_pylist(places, _BOUNDS)):
            ((unknown, known),) = self._rows(
                f"""WITH keys AS (
  SELECT d.k, max(e.seq) FILTER (WHERE e.sure_seq < b.low) AS before_read,
    max(e.seq) FILTER (WHERE e.consumed) AS applied, any_value(b.high) AS settled,
    min({_ORDER}) FILTER (WHERE e.seq IS NOT NULL) AS first
  FROM differing d LEFT JOIN events e ON e.k = d.k LEFT JOIN taken b ON b.of_source = e.of_source GROUP BY d.k),
known AS (
  SELECT CASE WHEN before_read IS NOT NULL AND applied IS NOT NULL THEN least(before_read, applied) END AS both_have,
    CASE WHEN f.k IS NOT NULL AND NOT EXISTS (SELECT 1 FROM events WHERE k IS NULL) THEN settled END AS told
  FROM keys LEFT JOIN formers f ON f.k = keys.k AND keys.first = {{'seq': f.seq, 'ordinal': f.ordinal}})
SELECT count(*) FILTER (WHERE both_have IS NULL AND told IS NULL), min(greatest(both_have, told)) FROM known"""
            )
        return None if unknown or known is None else int(known)

    def side(self, side: str) -> Side:
        """What was read of a side."""
        halves = ", ".join(
            f"coalesce(sum(('0x' || {part}(hex(g), 16))::UBIGINT::HUGEINT), 0)" for part in ("left", "right")
        )
        rows, high, low = self._rows(f"SELECT count(*), {halves} FROM {side}_rows")[0]
        return Side(int(rows), f"{((int(high) << 64) + int(low)) % (1 << 128):032x}")

    def add_events(self, events: pa.Table) -> None:
        """Those of keys that differ are kept. events: EVENT_COLUMNS. Call `differing` before."""
        # Many staged files have few changes: a statement for each of them would take longer than all of their rows.
        if events.num_rows:
            self._waiting.append(events)
        if len(self._waiting) >= _TABLES or sum(one.num_rows for one in self._waiting) >= _EVENTS:
            self._keep_events()

    def _keep_events(self) -> None:
        if not self._waiting:
            return
        place = "CASE WHEN NOT gone AND NOT partial THEN place END"
        with self._taken(pa.concat_tables(self._waiting)):
            self._db.execute(
                f"INSERT INTO events SELECT k, CASE WHEN gone THEN NULL ELSE {_HASH} END, {place}, gone, partial, "
                "of_source, of_table, ts, seq, ordinal, sure_seq, consumed FROM taken "
                "WHERE NOT former AND (k IS NULL OR k IN (SELECT k FROM differing))"
            )
            self._db.execute(
                f"INSERT INTO formers SELECT k, CASE WHEN gone THEN NULL ELSE {_HASH} END, {place}, of_source, "
                "of_table, seq, ordinal FROM taken WHERE former AND k IN (SELECT k FROM differing)"
            )
        self._waiting.clear()

    def judge(self, bounds: Mapping[str, tuple[int, int]], *, whole: bool) -> Verdict:
        """Judges every key that differs, after all events were added.

        bounds: by source, order keys of `low`, of its earliest read, and `high`, of its latest.
        whole: the stage knows every row, so that a key without a change has no row.
        """
        self._keep_events()
        places = [{"of_source": source, "low": low, "high": high} for source, (low, high) in bounds.items()]
        with self._taken(pa.Table.from_pylist(places, _BOUNDS)):
            self._db.execute("INSERT INTO bounds SELECT of_source, low, high FROM taken")
        self._spread_truncates(whole=whole)
        self._db.execute(
            "CREATE TABLE seen AS SELECT e.*, e.sure_seq < b.low AS before_read, "
            "e.sure_seq >= b.low AND e.seq < b.high AS during_read FROM events e JOIN bounds b USING (of_source)"
        )
        # Of a key that several tables feed, each first change speaks of its own table's row.
        self._db.execute(
            f"CREATE TABLE first AS SELECT f.k, f.g, f.place FROM formers f JOIN (SELECT k, min({_ORDER}) AS at "
            "FROM events GROUP BY k HAVING count(DISTINCT of_source || '/' || of_table) = 1) e "
            f"ON e.k = f.k AND e.at = {_ORDER}"
        )
        sides = self._keyed_sides(whole) if self._keyed else self._counted_sides(whole)
        self._db.execute(
            f"""CREATE TABLE judged AS WITH {sides}
SELECT k, s.rows AS source_rows, t.rows AS target_rows,
  CASE WHEN s.state = 'right' AND t.state = 'right' THEN 'moving'
       WHEN s.state = 'wrong' AND t.state = 'wrong' THEN '{Wrong.BOTH}'
       WHEN t.state = 'wrong' THEN '{Wrong.TARGET}'
       WHEN s.state = 'wrong' THEN '{Wrong.STAGE}'
       WHEN s.state = t.state AND NOT (s.touched OR t.touched) THEN '{Wrong.UNKNOWN}'
       ELSE 'unsettled' END AS verdict
FROM source_side s JOIN target_side t USING (k)"""
        )
        counts = {name: int(count) for name, count in self._rows("SELECT verdict, count(*) FROM judged GROUP BY 1")}
        moving, unsettled = counts.pop("moving", 0), counts.pop("unsettled", 0)
        return Verdict(self.side("source"), self.side("target"), moving, unsettled, counts)

    def findings(self, limit: int) -> list[Difference]:
        """The first of them in the order of their keys, after `judge`."""
        found = self._rows(
            "SELECT k, verdict, source_rows, target_rows FROM judged "
            f"WHERE verdict NOT IN ('moving', 'unsettled') ORDER BY k LIMIT {int(limit)}"
        )
        return [Difference(k, _kind(s, t, self._keyed), Wrong(verdict), s, t) for k, verdict, s, t in found]

    def _spread_truncates(self, *, whole: bool) -> None:
        """A TRUNCATE is an event of each key: of all where one table has fed the rows, else of those that it had, and
        perhaps of those of which nothing was staged before."""
        tables = self._rows("SELECT count(DISTINCT of_source || '/' || of_table) FROM events")[0][0]
        row = "e.k, NULL, NULL, true, false, t.of_source, t.of_table, t.ts, t.seq, t.ordinal, t.sure_seq, t.consumed"
        among = "differing e CROSS JOIN truncates t"
        if tables > 1:
            among = f"events e JOIN truncates t ON {_EMPTIED}"
        self._db.execute("CREATE TABLE truncates AS SELECT * FROM events WHERE k IS NULL")
        self._db.execute("DELETE FROM events WHERE k IS NULL")
        if self._keyed:
            self._db.execute(f"CREATE OR REPLACE TEMP TABLE spread AS SELECT DISTINCT {row} FROM {among}")
            if tables > 1 and not whole:
                perhaps = row.replace("true, false", "false, true", 1)
                self._db.execute(
                    f"INSERT INTO spread SELECT {perhaps} FROM differing e CROSS JOIN truncates t WHERE NOT EXISTS "
                    "(SELECT 1 FROM events o WHERE o.k = e.k AND (o.of_source <> t.of_source OR o.seq < t.seq "
                    "OR (o.seq = t.seq AND o.ordinal < t.ordinal)))"
                )
            self._db.execute("INSERT INTO events SELECT * FROM spread")

    def _keyed_sides(self, whole: bool) -> str:
        """CTEs `source_side` and `target_side`: by key the number of rows, their state, and whether a change of it was
        under way."""
        ctes = []
        there = "v.g IS NOT NULL" if self._apart else "true"
        of_source = f"{{'there': {there}, 'newest': newest}}"
        of_all = f"{{'there': {there}, 'ts': ts, 'of_source': of_source}}"
        for side, settled, under_way in (
            ("source", "before_read", "during_read"),
            ("target", "consumed", "NOT consumed"),
        ):
            # Only the target's rows must be one: sources may share keys, where the newest wins. Each of theirs must
            # be explained, else the one that is would hide the others.
            one = "n.rows <= 1" if side == "target" else "true"
            # A row changes its shard in two steps, in any order: meanwhile it is in both, or in none.
            between = "count(DISTINCT s.place) > 1 AND count(DISTINCT r.g) FILTER (WHERE r.g = s.g) = any_value(n.rows)"
            ctes.append(f"""{side}_last AS (
  SELECT k, arg_max(v, {of_all}) AS v FROM (
    SELECT k, of_source, arg_max(v, {of_source}) AS v, arg_max(ts, {of_source}) AS ts FROM (
      SELECT k, of_source, arg_max({{'g': g, 'place': place, 'partial': partial}}, {_ORDER}) AS v,
        arg_max(ts, {_ORDER}) AS ts,
        max({_ORDER}) AS newest
      FROM seen WHERE {settled} GROUP BY k, of_source, of_table) GROUP BY k, of_source) GROUP BY k),
{side}_states AS (
  SELECT k, v.g AS g, v.place AS place, v.partial AS partial, false AS touched FROM {side}_last
  UNION ALL
  SELECT k, NULL, NULL, {"false" if whole else "true"}, false FROM differing
  WHERE k NOT IN (SELECT k FROM {side}_last) {"AND k NOT IN (SELECT k FROM first)" if whole else ""}
  UNION ALL
  SELECT k, g, place, false, false FROM first WHERE k NOT IN (SELECT k FROM {side}_last)
  UNION ALL
  SELECT k, g, place, partial, true FROM seen WHERE {under_way}),
{side}_counts AS (
  SELECT d.k, count(r.k) AS rows FROM differing d LEFT JOIN {side}_rows r ON r.k = d.k GROUP BY d.k),
{side}_side AS (
  SELECT n.k, any_value(n.rows) AS rows, bool_or(s.touched) AS touched,
    CASE {"WHEN n.k IN (SELECT k FROM unexplained) THEN 'wrong'" if side == "source" and whole else ""}
         WHEN any_value({one}) AND bool_or(NOT s.partial AND r.g IS NOT DISTINCT FROM s.g) THEN 'right'
         {f"WHEN {between} THEN 'right'" if side == "target" else ""}
         WHEN any_value({one}) AND bool_or(s.partial) THEN 'unknown' ELSE 'wrong' END AS state
  FROM {side}_counts n JOIN {side}_states s ON s.k = n.k LEFT JOIN {side}_rows r ON r.k = n.k GROUP BY n.k)""")
        return ",\n".join([self._unexplained(), *ctes])

    def _unexplained(self) -> str:
        """A CTE: the keys under which several source tables have a row, of which one is not a state that its table gave
        the key."""
        return f"""unexplained AS (
  SELECT r.k FROM source_rows r
  WHERE r.k IN (SELECT k FROM source_rows GROUP BY k HAVING count(*) > 1) AND NOT EXISTS (SELECT 1 FROM (
    SELECT k, v.g AS g, v.partial AS partial FROM (
      SELECT k, arg_max({{'g': g, 'partial': partial}}, {_ORDER}) AS v
      FROM seen WHERE before_read GROUP BY k, of_source, of_table)
    UNION ALL
    SELECT k, g, partial FROM seen WHERE during_read
    UNION ALL
    SELECT k, g, false FROM first) s WHERE s.k = r.k AND (s.partial OR s.g = r.g)))"""

    def _counted_sides(self, whole: bool) -> str:
        """As `_keyed_sides`, for rows without a key: how many copies there may be, each in the shard of its values.

        A count begins at the last TRUNCATE that the side has seen. A later one may be in the side or not: there are at
        most as many copies as between two of them, and perhaps none.
        """
        ctes = []
        removing = f"FROM truncates t JOIN bounds b USING (of_source) WHERE {_EMPTIED}"
        for side, settled, under_way in (
            ("source", "before_read", "during_read"),
            ("target", "consumed", "NOT consumed"),
        ):
            has_seen = "t.consumed" if side == "target" else "t.sure_seq < b.low"
            astray = "bool_or(r.g <> e.g) AND NOT bool_or(r.g = e.g)" if side == "target" else "false"
            ctes.append(f"""{side}_moves AS (
  SELECT k, sum(least) AS least, sum(most) AS most, bool_or(touched) AS touched FROM (
    SELECT k, of_source, of_table, min(base - less) AS least, max(base + more) AS most, max(less + more) > 0 AS touched
    FROM (
      SELECT k, of_source, of_table,
        coalesce(sum(CASE WHEN gone THEN -1 ELSE 1 END) FILTER (WHERE {settled}), 0) AS base,
        count(*) FILTER (WHERE {under_way} AND gone) AS less, count(*) FILTER (WHERE {under_way} AND NOT gone) AS more
      FROM (
        SELECT e.*, (SELECT count(*) {removing} AND NOT {has_seen}) AS times_removed FROM seen e
        WHERE NOT EXISTS (SELECT 1 {removing} AND {has_seen}))
      GROUP BY k, of_source, of_table, times_removed)
    GROUP BY k, of_source, of_table) GROUP BY k),
{side}_counts AS (
  SELECT d.k, count(r.k) AS rows FROM differing d LEFT JOIN {side}_rows r ON r.k = d.k GROUP BY d.k),
{side}_emptied AS (
  SELECT count(*) > 0 AS emptied FROM truncates t JOIN bounds b USING (of_source) WHERE NOT {has_seen}),
{side}_astray AS (
  SELECT r.k FROM {side}_rows r
  JOIN (SELECT k, g FROM source_rows UNION SELECT k, g FROM seen WHERE NOT gone AND NOT partial) e ON e.k = r.k
  GROUP BY r.k, r.g HAVING {astray}),
{side}_side AS (
  SELECT n.k, n.rows, coalesce(m.touched, false) OR x.emptied AS touched,
    CASE WHEN n.k IN (SELECT k FROM {side}_astray) THEN 'wrong'
         WHEN NOT {"true" if whole else "false"} THEN 'unknown'
         WHEN n.rows <= coalesce(m.most, 0) AND (x.emptied OR n.rows >= coalesce(m.least, 0)) THEN 'right'
         ELSE 'wrong' END AS state
  FROM {side}_counts n LEFT JOIN {side}_moves m ON m.k = n.k CROSS JOIN {side}_emptied x)""")
        return ",\n".join(ctes)

    @contextmanager
    def _taken(self, rows: pa.Table) -> Iterator[None]:
        self._db.register("taken", rows)
        try:
            yield
        finally:
            self._db.unregister("taken")

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._db.execute(sql).fetchall()


def _kind(source_rows: int, target_rows: int, keyed: bool) -> Kind:
    if not target_rows:
        return Kind.MISSING
    if not source_rows:
        return Kind.SURPLUS
    return Kind.DIFFERS if keyed and target_rows == 1 else Kind.COPIES
