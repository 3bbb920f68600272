"""Keys as the target compares them, on real servers: whichever keys its collation, padding or scale holds for equal,
the target ends with the rows of the source, no older change wins, and writing again changes nothing."""

from __future__ import annotations

import datetime as dt
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc_core.errors import DataAtRisk, Refused
from cdc_core.history.guard import classify
from cdc_core.model.merged_columns import RowClass
from cdc_core.model.row_versions import version_bytes
from cdc_core.model.schema import parse_column_type
from cdc_core.mysql.connections import Server, parse_url
from cdc_core.targets.reading.table_facts import table_facts
from cdc_core.targets.reading.target_faults import PRIVILEGES
from cdc_core.targets.tables.compare_columns import outcomes
from cdc_core.targets.tables.target_keys import coarser
from cdc_core.targets.writing.load import Layout, open_session
from cdc_core.targets.writing.prepare import prepare
from cdc_core.targets.writing.versions import versions_of
from tests.integration.both_readers import both_readers  # noqa: F401
from tests.integration.one_server import EACH_STORE
from tests.integration.test_target_session import with_globals
from tests.lab.refusals import raises
from tests.lab.target_rows import Table, Winner, record_batch, target_table

PROPERTY = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], print_blob=True
)


@dataclass(frozen=True)
class Kind:
    """A type of key. declared: with {ci} and {cs} for the server's newest collations, {nopad} for one by bytes."""

    name: str
    declared: str
    arrow: pa.DataType
    values: tuple[Any, ...]
    read: str = "k"


TEXTS = (
    *("a", "A", "á", "Á", "a ", "a  ", "ß", "ss", "SS", "ẞ", "1", "01", "1.0", "", " ", "a\0", "\0"),
    *("İ", "i", "I", "ı", "æ", "ae", "a\t", "A,b", "a\\", "ÿ"),
)
LATIN = tuple(text for text in TEXTS if all(ord(char) < 256 for char in text))
KINDS = (
    Kind("ci", "VARCHAR(10) COLLATE {ci}", pa.string(), TEXTS),
    Kind("cs", "VARCHAR(10) COLLATE {cs}", pa.string(), TEXTS),
    Kind("general", "VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", pa.string(), TEXTS),
    Kind("unicode", "VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", pa.string(), TEXTS),
    Kind("turkish", "VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_turkish_ci", pa.string(), TEXTS),
    Kind("padded_bin", "VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", pa.string(), TEXTS),
    Kind("nopad_bin", "VARCHAR(10) CHARACTER SET utf8mb4 COLLATE {nopad}", pa.string(), TEXTS),
    Kind("german2", "VARCHAR(10) CHARACTER SET latin1 COLLATE latin1_german2_ci", pa.string(), LATIN),
    Kind("char", "CHAR(4) COLLATE {ci}", pa.string(), TEXTS),
    Kind("binary", "VARBINARY(10)", pa.binary(), tuple(text.encode() for text in TEXTS)),
    Kind("decimal", "DECIMAL(6,2)", pa.decimal128(6, 2), ("1", "1.0", "01.00", "-0", "0", "1.005", "-1")),
    Kind("double", "DOUBLE", pa.float64(), (0.0, -0.0, 1.0, 1e300, 0.1, 1 / 3)),
    Kind("float", "FLOAT", pa.float32(), (0.0, -0.0, 1.0, 0.1, 16777217.0), "CAST(k AS DOUBLE)"),
    Kind("datetime", "DATETIME(1)", pa.timestamp("us"),
         ("2024-01-01 00:00:00.04", "2024-01-01", "2024-01-01 00:00:00.1")),
    Kind("time", "TIME(1)", pa.string(), ("00:00:00.04", "00:00:00", "-00:00:00.1", "24:00:00"), "CAST(k AS CHAR)"),
    Kind("enum", "ENUM('b', 'a', 'ß', '1') COLLATE {ci}", pa.string(), ("b", "B", "a", "A", "ß", "1", 1, 2)),
    Kind("set", "SET('x', 'y') COLLATE {ci}", pa.string(), ("x", "X", "y", "x,y", "y,x", "")),
    Kind("int", "INT", pa.int32(), (1, "1", "01", "1.4", -1, 0)),
)  # fmt: skip


def collations(server: Any) -> dict[str, str]:
    if server.mariadb:
        return {"ci": "utf8mb4_uca1400_ai_ci", "cs": "utf8mb4_uca1400_as_cs", "nopad": "utf8mb4_nopad_bin"}
    return {"ci": "utf8mb4_0900_ai_ci", "cs": "utf8mb4_0900_as_cs", "nopad": "utf8mb4_0900_bin"}


@dataclass
class World:
    """A source table on the server itself, so that the server says which rows there can be, and shards of a target."""

    table: Table
    source: str
    kind: Kind
    shards: list[Table]
    by: str
    session: pymysql.Connection[Any]
    changes: list[list[tuple[str, Any, Any]]] = field(default_factory=list)

    def clear(self) -> None:
        self.table.query(f"DELETE FROM {self.source}")
        for shard in self.shards:
            shard.clear()

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return self.table.query(f"SELECT {self.kind.read}, j, s, v FROM {name}")

    def apply(self, action: str, key: Any, to: Any, j: int, s: int, v: int) -> tuple[str, Any, Any] | None:
        """The change that the source makes, as (op, before, after); None for one that it refuses."""
        with self.table.connection.cursor() as cursor:
            where = f"FROM {self.source} WHERE k = %s AND j = %s"
            try:
                cursor.execute(f"SELECT {self.kind.read}, j, s, v {where}", (key, j))
                before = cursor.fetchall()
                if action == "insert":
                    cursor.execute(f"INSERT INTO {self.source} (k, j, s, v) VALUES (%s, %s, %s, %s)", (key, j, s, v))
                elif not before:
                    return None
                elif action == "delete":
                    cursor.execute(f"DELETE {where}", (key, j))
                    return "d", before[0], None
                else:
                    cursor.execute(
                        f"UPDATE {self.source} SET k = %s, s = %s, v = %s WHERE k = %s AND j = %s", (to, s, v, key, j)
                    )
                # The server may have rounded or cut the key.
                cursor.execute(f"SELECT {self.kind.read}, j, s, v FROM {self.source} WHERE v = %s", (v,))
                after = cursor.fetchone()
            except pymysql.err.MySQLError:
                return None
        if after is None:
            return None
        return ("c", None, after) if action == "insert" else ("u", before[0], after)

    def shard_of(self, row: tuple[Any, ...]) -> int:
        if self.by == "key":
            return sum(str(row[0]).encode()) % len(self.shards)
        return int(row[2]) % len(self.shards)

    def winners(self, numbered: Sequence[tuple[int, tuple[str, Any, Any]]]) -> list[list[Winner]]:
        """By shard, with a departure from each shard that a row was in and is not now; as merge and filter do."""
        last: dict[Any, tuple[int, str, Any]] = {}
        places: dict[Any, set[int]] = {}
        for seq, (_, before, after) in numbered:
            if before is not None:
                places.setdefault(before[:2], set()).add(self.shard_of(before))
                if after is None or before[:2] != after[:2]:
                    last[before[:2]] = (seq, "d", before)
            if after is not None:
                last[after[:2]] = (seq, "u", after)
        found: list[list[Winner]] = [[] for _ in self.shards]
        for key, (seq, op, row) in last.items():
            values = dict(zip("kjsv", row, strict=True))
            own = self.shard_of(row)
            found[own].append(Winner(op, values, (seq, seq, 0, "one")))
            for left in places.get(key, set()) - {own}:
                found[left].append(Winner("x", values, (seq, seq, 0, "one")))
        return found

    def run(self, numbered: Sequence[tuple[int, tuple[str, Any, Any]]]) -> None:
        by_shard = self.winners(numbered)
        kept: list[list[Winner]] = []
        with tempfile.TemporaryDirectory() as scratch:
            for shard, winners in zip(self.shards, by_shard, strict=True):
                kept.append(self._filtered(shard, winners, Path(scratch)))
            for shard, winners in zip(self.shards, kept, strict=True):
                counts = shard.write(winners, run="r")
                assert counts.written + counts.stale + counts.absent == sum(winner.op != "x" for winner in winners)
            for shard, winners in zip(self.shards, kept, strict=True):
                shard.write([winner for winner in winners if winner.op == "x"], run="r", ledger=False)
            for shard, winners in zip(self.shards, kept, strict=True):
                if winners:
                    rows = record_batch(winners, shard.columns)
                    layout = Layout(shard.key, tuple(shard.columns))
                    found = outcomes(self.session, shard.facts, rows, layout, scratch=Path(scratch))
                    assert set(found) <= {"same", "newer"}, list(zip(winners, found, strict=True))

    def _filtered(self, shard: Table, winners: list[Winner], scratch: Path) -> list[Winner]:
        judged = [winner for winner in winners if winner.op != "x"]
        if not judged:
            return winners
        rows = record_batch(judged, shard.columns)
        held = versions_of(self.session, shard.facts, rows, key=shard.key, freshness=None, scratch=scratch)
        versions = version_bytes(rows).to_pylist()
        stale = {
            id(winner)
            for winner, had, version in zip(judged, held, versions, strict=True)
            if classify(had, version, upsert=winner.op == "u", born=False, by_column=False)[0] is RowClass.STALE
        }
        return [winner for winner in winners if id(winner) not in stale]

    def everything(self) -> list[Any]:
        return [shard.everything() for shard in self.shards]

    def equal(self) -> None:
        found = [row for shard in self.shards for row in self.rows(shard.facts.name)]
        assert sorted(map(repr, found)) == sorted(map(repr, self.rows(self.source)))
        for number, shard in enumerate(self.shards):
            assert all(self.shard_of(row) == number for row in self.rows(shard.facts.name))


@pytest.fixture
def worlds(server: Any) -> Iterator[Callable[[Kind, str, str], World]]:
    """Worlds by kind of key, guard.store and shard key, made when first asked for, and empty."""
    made: dict[tuple[str, str, str], World] = {}
    words = collations(server)
    with (
        target_table(server) as any_table,
        open_session(parse_url(server.url, where="test"), any_table.facts.database, where="test") as session,
    ):
        connection, database = any_table.connection, any_table.facts.database

        def world(kind: Kind, store: str, by: str) -> World:
            at = (kind.name, store, by)
            if at not in made:
                names = [f"{name}{len(made)}" for name in ("src", "a", *(["b"] if by != "none" else []))]
                for name in names:
                    any_table.query(
                        f"CREATE TABLE {database}.{name} (k {kind.declared.format(**words)} NOT NULL, "
                        "j INT NOT NULL, s INT NOT NULL, v INT, PRIMARY KEY (k, j))"
                    )
                found = table_facts(connection, database, names[1:])
                columns = {"k": kind.arrow, "j": pa.int32(), "s": pa.int32(), "v": pa.int32()}
                shards = []
                for name in names[1:]:
                    facts = replace(found[name], key=("k", "j"), beside=store == "table")
                    shards.append(Table(any_table.server, connection, prepare(connection, facts), columns, ("k", "j")))
                made[at] = World(any_table, f"{database}.{names[0]}", kind, shards, by, session)
            made[at].clear()
            return made[at]

        yield world


OPS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "update", "update", "delete"]),
        st.integers(0, 30), st.integers(0, 30), st.integers(0, 1), st.integers(0, 1),
    ),
    min_size=1, max_size=14,
)  # fmt: skip


def _ends_as_the_source(
    worlds: Callable[[Kind, str, str], World], kind: Kind, store: str, by: str, ops: Any, data: st.DataObject
) -> None:
    world = worlds(kind, store, by)
    low, few = data.draw(st.integers(0, len(kind.values) - 1)), data.draw(st.integers(1, 4))
    value = lambda n: kind.values[(low + n % few) % len(kind.values)]  # noqa: E731
    changes = []
    for v, (action, key, to, j, s) in enumerate(ops, 1):
        change = world.apply(action, value(key), value(to), j, s, v)
        if change is not None:
            changes.append((v, change))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(changes)), max_size=3)))
    runs = [changes[a:b] for a, b in zip([0, *cuts], [*cuts, len(changes)], strict=True) if a < b]
    for run in runs:
        world.run(run)
    world.equal()
    before = world.everything()
    for again in data.draw(st.lists(st.sampled_from(runs), max_size=3)) if runs else []:
        world.run(again)
        world.equal()
    assert world.everything() == before
    for shard in world.shards:
        shard.clear()
    for run in data.draw(st.permutations(runs)):
        world.run(run)
    world.equal()


@given(
    kind=st.sampled_from(KINDS),
    store=st.sampled_from(["row", "table"]),
    by=st.sampled_from(["none", "key", "row"]),
    ops=OPS,
    data=st.data(),
)
@settings(PROPERTY, max_examples=16)
def test_whatever_keys_are_equal_the_target_ends_as_the_source(
    worlds: Callable[[Kind, str, str], World], kind: Kind, store: str, by: str, ops: Any, data: st.DataObject
) -> None:
    _ends_as_the_source(worlds, kind, store, by, ops, data)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(store=st.sampled_from(["row", "table"]), by=st.sampled_from(["none", "key", "row"]), ops=OPS, data=st.data())
@settings(PROPERTY, max_examples=100)
def test_each_kind_of_key_at_length(
    worlds: Callable[[Kind, str, str], World], kind: Kind, store: str, by: str, ops: Any, data: st.DataObject
) -> None:
    _ends_as_the_source(worlds, kind, store, by, ops, data)


TEXT_KEY = {"k": pa.string(), "v": pa.int32()}


def folding(server: Any, store: str, more: str = "") -> Any:
    """A target in a case-insensitive collation, of a source whose collation keeps its keys apart. more: of the
    definition."""
    shape = f"CREATE TABLE {{name}} (k VARCHAR(10) COLLATE {collations(server)['ci']} PRIMARY KEY, v INT{more})"
    return target_table(server, shape, TEXT_KEY, ("k",), store=store)


def row(op: str, k: str, v: int) -> Winner:
    return Winner(op, {"k": k, "v": v}, (v, v, 0, "one"))


@EACH_STORE
def test_rows_that_the_source_keeps_apart_and_the_target_does_not_stop_the_write(server: Any, store: str) -> None:
    with folding(server, store) as table:
        finer = replace(table, facts=replace(table.facts, coarser=True))
        finer.write([row("u", "a", 1), row("u", "B", 1)])
        before = finer.everything()
        for rows in (
            [row("u", "A", 2)],  # a second row
            [row("u", "A", 2), row("u", "a", 3)],  # two in one run
            [row("d", "A", 3)],  # a second row that has come and gone since
            [row("u", "C", 2), row("d", "c", 3)],  # two of which the older stays
        ):
            with raises(DataAtRisk, "target.key_collapse"):
                finer.write(rows)
            assert finer.everything() == before
        # The same row under another name.
        finer.write([row("d", "a", 4), row("u", "A", 4)])
        finer.write([row("u", "b", 6), row("d", "B", 5)])
        assert finer.rows("k, v") == [("A", 4), ("b", 6)]
        finer.write([row("d", "A", 7), row("d", "a", 8)])
        assert finer.rows("k, v") == [("b", 6)]


@EACH_STORE
def test_of_equal_keys_that_the_source_holds_for_equal_too_the_newest_stays_whatever_the_log_lacks(
    server: Any, store: str
) -> None:
    with folding(server, store) as table:
        for rows in (
            [row("u", "a", 1), row("u", "A", 2)],  # a cascade has deleted the first one
            [row("u", "A", 5), row("u", "á", 4), row("d", "a", 3)],
        ):
            for _ in range(2):
                table.write(rows)
                ((key, v),) = table.rows("k, v")
                assert (key, v) == ("A", max(winner.version[0] for winner in rows))
        counts = table.write([row("u", "a", 6), row("d", "A", 7)])
        assert (counts.written, counts.stale, table.rows("k, v")) == (1, 1, [])
        # Rows of two sources that do not share their keys are two rows, whatever the collation of each.
        both = [row("u", "b", 8), Winner("u", {"k": "B", "v": 9}, (9, 9, 0, "two"))]
        with pytest.raises(DataAtRisk) as caught:
            table.write(both)
        assert (caught.value.code, table.rows("k, v")) == ("target.key_collapse", [])


@EACH_STORE
def test_a_write_with_a_renamed_row_that_fails_later_leaves_nothing(server: Any, store: str) -> None:
    with folding(server, store, ", CHECK (v < 9)") as table:
        table.write([row("u", "a", 1), row("u", "x", 1)])
        before = table.everything()
        with raises(DataAtRisk, "target.row_error"):
            table.write([row("d", "a", 2), row("u", "A", 2), row("d", "x", 2), row("u", "z", 9)])
        assert table.everything() == before


@EACH_STORE
def test_a_truncate_removes_what_is_older_wherever_versions_are_kept(server: Any, store: str) -> None:
    with folding(server, store) as table:
        table.query(f"INSERT INTO {table.facts.name} (k, v) VALUES ('own', 0)")
        table.write([row("u", "a", 1), row("u", "b", 5)])
        table.write([Winner("t", {"k": None, "v": None}, (3, 3, 0, "one")), row("u", "C", 4)])
        assert table.rows("k, v") == [("b", 5), ("C", 4)]
        assert table.write([row("u", "A", 2)]).stale == 1
        assert table.write([row("u", "A", 6)]).written == 1


@EACH_STORE
def test_the_way_out_that_a_collapse_names_works(server: Any, store: str) -> None:
    with folding(server, store) as table:
        finer = replace(table, facts=replace(table.facts, coarser=True))
        finer.write([row("u", "a", 1), row("d", "x", 1)])
        with pytest.raises(DataAtRisk, match="_bin"):
            finer.write([row("u", "A", 2)])
        table.query(f"ALTER TABLE {table.facts.name} MODIFY k VARCHAR(10) COLLATE utf8mb4_bin NOT NULL")
        found = table_facts(table.connection, table.facts.database, ["t"])["t"]
        facts = prepare(table.connection, replace(found, key=("k",), beside=table.facts.beside))
        apart = replace(table, facts=facts)
        assert apart.write([row("u", "A", 2), row("u", "x", 0), row("u", "a", 0)]).stale == 2
        assert apart.rows("k, v") == [("A", 2), ("a", 1)]


@EACH_STORE
def test_versions_follow_a_key_that_is_altered_and_the_newest_of_those_that_fall_together_stays(
    server: Any, store: str
) -> None:
    shape = "CREATE TABLE {name} (k VARCHAR(4) COLLATE utf8mb4_bin PRIMARY KEY, v INT)"
    with target_table(server, shape, TEXT_KEY, ("k",), store=store) as table:
        table.write([row("d", "a", 5), row("d", "A", 9), row("u", "b", 3), row("d", "b2", 3)])
        table.query(f"ALTER TABLE {table.facts.name} MODIFY k VARCHAR(40) COLLATE {collations(server)['ci']} NOT NULL")
        found = table_facts(table.connection, table.facts.database, ["t"])["t"]
        with documented_account(table) as account, open_session(account, found.database, where="test") as connection:
            facts = prepare(connection, replace(found, key=("k",), beside=table.facts.beside))
        altered = replace(table, facts=facts)
        assert altered.write([row("u", "a", 8)]).stale == 1
        assert altered.write([row("u", "B", 2)]).stale == 1
        assert altered.write([row("u", "a", 10)]).written == 1
        assert altered.write([row("u", "b" * 40, 1)]).written == 1
        assert prepare(table.connection, facts) == facts
        assert len(table.query(f"SHOW TABLES FROM {facts.database} LIKE '\\_lockstep\\_%'")) == 6 - (store == "row")


@contextmanager
def documented_account(table: Table) -> Iterator[Server]:
    """An account with exactly the privileges that docs/operations.md lists, on the table's database alone."""
    name = f"u_{uuid.uuid4().hex[:12]}"
    table.query(f"CREATE USER {name} IDENTIFIED BY 'Secret-1'")
    table.query(f"GRANT {', '.join(PRIVILEGES)} ON {table.facts.database}.* TO {name}")
    try:
        yield replace(table.server, user=name, password="Secret-1")
    finally:
        table.query(f"DROP USER {name}")


@pytest.mark.parametrize(
    ("before", "now", "keys"),
    [
        ("VARCHAR(9) COLLATE {ci}", "VARCHAR(20) COLLATE utf8mb4_bin", ("a", "b")),
        ("DECIMAL(6,2)", "DECIMAL(6,0)", ("1.60", "2.00", "5.00")),
        ("INT", "VARCHAR(9) COLLATE utf8mb4_bin", ("1", "2")),
        ("ENUM('a', 'A', 'b') COLLATE utf8mb4_bin", "ENUM('b', 'a') COLLATE {ci}", ("a", "b")),
        ("VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin", "VARCHAR(9) COLLATE {ci}", ("ä", "a", "Ä")),
    ],
)
def test_any_altered_key_is_followed_with_the_documented_privileges_and_again_changes_nothing(
    server: Any, before: str, now: str, keys: tuple[str, ...]
) -> None:
    names = collations(server)
    shape = f"CREATE TABLE {{name}} (k {before.format(**names)} PRIMARY KEY, v INT)"
    with target_table(server, shape, TEXT_KEY, ("k",), store="table") as table:
        table.write([row("d", key, n) for n, key in enumerate(keys, 5)])
        table.query(f"ALTER TABLE {table.facts.name} MODIFY k {now.format(**names)} NOT NULL")
        found = table_facts(table.connection, table.facts.database, ["t"])["t"]
        facts = replace(found, key=("k",), beside=table.facts.beside)
        with documented_account(table) as account, open_session(account, found.database, where="test") as connection:
            assert prepare(connection, facts) == prepare(connection, facts)
        altered = replace(table, facts=prepare(table.connection, facts))
        for key in [text.partition(".")[0] for text in keys if not text.startswith("1.")]:
            assert altered.write([row("u", key, 4)]).stale == 1, key
            assert altered.rows("v") == []


def test_a_prepare_that_is_killed_between_its_steps_is_repeated_without_loss(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = "CREATE TABLE {name} (k VARCHAR(4) COLLATE utf8mb4_bin PRIMARY KEY, v INT)"
    with target_table(server, shape, TEXT_KEY, ("k",)) as table:
        table.write([row("d", "a", 5), row("d", "A", 9), row("d", "b", 7)])
        table.query(f"ALTER TABLE {table.facts.name} MODIFY k VARCHAR(4) COLLATE {collations(server)['ci']} NOT NULL")
        facts = replace(table_facts(table.connection, table.facts.database, ["t"])["t"], key=("k",))
        for step in ("DELETE FROM", "INSERT INTO", "COMMIT", "ALTER TABLE"):
            with (
                open_session(table.server, facts.database, where="test") as connection,
                monkeypatch.context() as patched,
            ):
                cursor = type(connection.cursor())
                patched.setattr(cursor, "execute", _killed_at(step, cursor.execute))
                with pytest.raises(KeyboardInterrupt):
                    prepare(connection, facts)
        followed = replace(table, facts=prepare(table.connection, facts))
        for key, version in (("a", 8), ("A", 8), ("b", 6)):
            assert followed.write([row("u", key, version)]).stale == 1


def _killed_at(step: str, execute: Callable[..., Any]) -> Callable[..., Any]:
    """Statements run up to the first that begins with `step` after the transaction has begun."""
    begun = False

    def execute_until(cursor: Any, sql: str, *rest: Any) -> Any:
        nonlocal begun
        if begun and sql.startswith(step):
            raise KeyboardInterrupt
        begun = begun or sql.startswith("START")
        return execute(cursor, sql, *rest)

    return execute_until


def test_unique_values_move_between_rows_whose_key_no_index_takes(mariadb_target: Any) -> None:
    shape = (
        "CREATE TABLE {name} (k TEXT COLLATE utf8mb4_bin NOT NULL, l TEXT COLLATE utf8mb4_bin NOT NULL, v INT, "
        "UNIQUE KEY k (k, l), UNIQUE KEY v (v))"
    )
    columns = {"k": pa.string(), "l": pa.string(), "v": pa.int32()}
    with target_table(mariadb_target, shape, columns, ("k", "l")) as table:
        for values in (("a", 1), ("b", 2)), (("a", 2), ("b", 1)):
            version = (values[0][1],) * 2
            rows = [Winner("u", {"k": k, "l": k, "v": v}, (*version, at, "one")) for at, (k, v) in enumerate(values)]
            assert table.write(rows).written == 2
        assert table.rows("k, v") == [("a", 2), ("b", 1)]


FOUND: list[tuple[str, pa.DataType, list[Any]]] = [
    ("VARCHAR(30) COLLATE utf8mb4_bin", pa.string(), ["a,b", "a\\,b", "", "ä" * 30]),
    ("VARCHAR(600) COLLATE utf8mb4_bin", pa.string(), ["k" * 513, "k" * 514, "k"]),
    ("VARBINARY(30)", pa.binary(), [b"", b"\0", b"\0\0", b"\xff"]),
    ("DATETIME(6)", pa.timestamp("us"), [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1)]),
    ("DECIMAL(10,2)", pa.decimal128(10, 2), [Decimal("1.00"), Decimal("-1.00")]),
]


def test_keys_of_any_type_find_their_rows_and_tombstones(server: Any) -> None:
    for declared, kind, values in FOUND:
        columns = {"k": kind, "part": pa.int32()}
        definition = f"CREATE TABLE {{name}} (k {declared} NOT NULL, part INT NOT NULL, PRIMARY KEY (k, part))"
        with target_table(server, definition, columns, ("k", "part")) as table:
            rows = [{"k": value, "part": part} for value in values for part in (1, 2)]
            table.write([Winner("u", row, (1, 10, at, "a")) for at, row in enumerate(rows)])
            gone = [Winner("d", row, (1, 20, at, "a")) for at, row in enumerate(rows) if row["part"] == 1]
            assert table.write(gone).written == len(values)
            late = [Winner("u", row, (1, 15, at, "a")) for at, row in enumerate(rows)]
            assert (table.write(late).stale, len(table.rows("k"))) == (len(values), len(values)), declared


def test_a_key_over_other_columns_than_versions_are_kept_by_is_refused(server: Any) -> None:
    shape = "CREATE TABLE {name} (a INT PRIMARY KEY, b INT NOT NULL UNIQUE)"
    with target_table(server, shape, {"a": pa.int32(), "b": pa.int32()}, ("a",)) as table:
        with raises(Refused, "target.definition", match="_lockstep_tombstone_t"):
            prepare(table.connection, replace(table.facts, key=("b",)))
        table.query(f"DROP TABLE {table.beside[0]}")
        prepare(table.connection, replace(table.facts, key=("b",)))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("utf8mb4_0900_ai_ci", "utf8mb4_0900_ai_ci", False),
        ("utf8mb3_general_ci", "utf8mb4_general_ci", False),
        ("utf8mb4_0900_as_cs", "utf8mb4_0900_ai_ci", True),
        ("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_ai_ci", True),
        ("utf8mb4_bin", "utf8mb4_general_ci", True),
        ("utf8mb4_general_ci", "utf8mb4_bin", False),
        ("utf8mb4_0900_ai_ci", "utf8mb4_bin", True),
        ("utf8mb4_0900_ai_ci", "utf8mb4_nopad_bin", False),
        ("utf8mb4_nopad_bin", "utf8mb4_0900_bin", False),
        ("latin1_swedish_ci", "utf8mb4_bin", False),
    ],
)
def test_which_collations_may_hold_more_keys_for_equal(source: str, target: str, expected: bool) -> None:
    kinds = [
        parse_column_type("varchar(9)", charset=collation.split("_")[0], collation=collation)
        for collation in (source, target)
    ]
    assert coarser(*kinds) is expected


@EACH_STORE
def test_columns_of_an_equal_key_that_only_the_target_has_stay_when_the_key_is_spelled_anew(
    server: Any, store: str
) -> None:
    with folding(server, store, ", own INT") as table:
        table.write([row("u", "a", 1)])
        table.query(f"UPDATE {table.facts.name} SET own = 7")
        counts = table.write([row("d", "a", 2), row("u", "A", 2)])
        assert (counts.written, counts.stale) == (1, 1)
        assert table.rows("k, v, own") == [("A", 2, 7)]


@EACH_STORE
def test_a_row_that_came_under_an_equal_key_by_the_change_that_left_the_shard_stays(server: Any, store: str) -> None:
    with folding(server, store) as table:
        table.write([row("d", "X", 2), row("u", "x", 2)])
        before = table.everything()
        table.write([row("x", "X", 2)], ledger=False)
        assert table.write([row("d", "X", 2)]).stale == 1
        assert table.everything() == before
        assert table.rows("k, v") == [("x", 2)]


@EACH_STORE
def test_keys_of_both_widths_of_a_widened_binary_column_are_one_row(server: Any, store: str) -> None:
    columns = {"k": pa.binary(), "v": pa.int32()}
    short, long = b"a\0\0\0", b"a\0\0\0\0\0"

    def row(op: str, k: bytes, v: int) -> Winner:
        return Winner(op, {"k": k, "v": v}, (v, v, 0, "one"))

    definition = "CREATE TABLE {name} (k BINARY(6) PRIMARY KEY, v INT)"
    with target_table(server, definition, columns, ("k",), store=store) as table:
        for batch, left in (
            ([row("u", short, 1), row("u", long, 2)], [(long, 2)]),
            ([row("u", short, 3), row("d", long, 4)], []),
            ([row("d", short, 5), row("u", long, 6)], [(long, 6)]),
        ):
            for _ in range(2):
                counts = table.write(batch)
                assert (counts.written + counts.absent, counts.stale) == (1, 1)
                assert table.rows("k, v") == left


def test_keys_that_are_longer_than_what_the_server_casts_stop_the_write_too(mariadb_target: Any) -> None:
    shape = "CREATE TABLE {name} (k LONGTEXT COLLATE utf8mb4_general_ci NOT NULL, v INT, UNIQUE KEY (k))"
    with target_table(mariadb_target, shape, TEXT_KEY, ("k",)) as table:
        finer = replace(table, facts=replace(table.facts, coarser=True))
        long = "a" * (5 << 19)
        finer.write([row("u", long, 1)])
        with (
            with_globals(mariadb_target, {"max_allowed_packet": str(1 << 20)}),
            raises(DataAtRisk, "target.key_collapse"),
        ):
            finer.write([row("u", long.upper(), 2)])
        assert finer.rows("LEFT(k, 1), v") == [("a", 1)]
