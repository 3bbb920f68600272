"""Rows go straight into an empty table only where the guarded write would leave exactly the same."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from cdc_core.errors import DataAtRisk
from cdc_core.mysql.connections import connect
from cdc_core.targets.tables.compare_columns import outcomes
from cdc_core.targets.writing import direct
from cdc_core.targets.writing import load as load_module
from cdc_core.targets.writing import row_writer as write_module
from cdc_core.targets.writing.load import Layout, open_session
from tests.lab.refusals import raises
from tests.lab.target_rows import COLUMNS, Table, Winner, record_batch, shop, target_table

PLAIN = (
    "CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY, code VARCHAR(20) COLLATE utf8mb4_bin NOT NULL,"
    " n INT, UNIQUE KEY code (code))"
)
SERVERS = ("mysql9", pytest.param("mariadb_target", marks=pytest.mark.matrix))


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def table(server: Any) -> Iterator[Table]:
    with target_table(server, PLAIN) as made:
        yield made


def ledger(table: Table) -> list[tuple[Any, ...]]:
    return table.query(
        "SELECT run_id, table_name, logical, written, stale, absent, number "
        f"FROM {table.facts.database}._lockstep_ledger"
    )


def _batch(chance: random.Random) -> list[Winner]:
    """Mostly plain rows, now and then something that the direct load must leave to the guarded write."""
    letters = "abcdefgh" if chance.random() < 0.3 else [f"{n}\t\\,\n\0" for n in range(500)]
    rows = []
    for id in chance.sample(range(-3, 12), chance.randint(1, 9)):
        op = "d" if chance.random() < 0.2 else "u"
        code = "x" * 21 if chance.random() < 0.02 else chance.choice(letters)
        rows.append(shop(op, id, code, chance.choice([None, 0, 1, -5]), chance.randint(1, 9)))
    return rows


def _outcome(table: Table, batches: list[list[Winner]]) -> Any:
    told = []
    for number, batch in enumerate(batches):
        try:
            told.append(table.write(batch, run=f"run{number}", quarantine=number % 2 == 1))
        except DataAtRisk as error:
            told.append(error.code)
    done = table.everything(), told, ledger(table)
    table.clear()
    table.query(f"DELETE FROM {table.facts.database}._lockstep_ledger")
    return done


def test_both_ways_leave_the_same(table: Table, loads: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(15):
        chance = random.Random(seed)
        batches = [_batch(chance) for _ in range(3)]
        found = _outcome(table, batches)
        with monkeypatch.context() as patched:
            patched.setattr(direct, "fits", lambda *_: False)
            assert found == _outcome(table, batches), seed
    assert loads.count(True) > 5
    assert loads.count(False) > 2


def test_both_ways_leave_the_same_where_several_tables_feed_one(
    table: Table, loads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = replace(table, shared=True)
    for seed in range(10):
        chance = random.Random(seed)
        batches = [
            [
                replace(winner, origin=origin, ended=chance.choice(["", "", "AB".replace(origin, "")]))
                for winner in _batch(chance)
                for origin in [chance.choice("AB")]
            ]
            for _ in range(3)
        ]
        found = _outcome(shared, batches)
        with monkeypatch.context() as patched:
            patched.setattr(direct, "fits", lambda *_: False)
            assert found == _outcome(shared, batches), seed
    assert loads.count(True) > 3


def test_deletes_among_upserts_leave_tombstones(table: Table, loads: list[bool]) -> None:
    rows = [shop("d", 0, None, None, 20), shop("u", 1, "a", 1, 10), shop("d", 2, None, None, 20)]
    counts = table.write(rows, [shop("u", 3, "b", 1, 10), shop("d", 4, None, None, 20)])
    assert (counts.written, counts.absent, loads, table.rows()) == (2, 3, [True], [(1, "a", 1), (3, "b", 1)])
    assert ledger(table) == [("run", table.facts.table, "shop.t", 2, 0, 3, 1)]
    late = table.write([shop("u", id, f"c{id}", id, 15) for id in range(5)], run="late")
    assert (late.written, late.stale) == (2, 3)


def test_more_deletes_than_are_kept_take_the_guarded_write(
    table: Table, loads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "MAX_ASIDE", 2)
    batches = [[shop("d", 2 * at, None, None, 20), shop("u", 2 * at + 1, f"c{at}", at, 10)] for at in range(4)]
    counts = table.write(*batches)
    assert (counts.written, counts.absent, loads) == (4, 4, [])
    assert [row[0] for row in table.rows()] == [1, 3, 5, 7]


def test_keys_that_only_the_table_finds_equal(server: Any, loads: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was renamed from 'a' to 'A', or deleted and inserted again."""
    definition = "CREATE TABLE {name} (id VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT)"
    spelled = ["a", "A", "\u00e1"]
    others = [Winner("u", {"id": f"x{at}", "n": at}, (10, 10, 0, "one")) for at in range(3)]
    with target_table(server, definition, {"id": pa.string(), "n": pa.int32()}) as table:
        for ops, later in itertools.product(("ud", "du", "dd", "dud"), (False, True)):
            winners = [
                Winner(op, {"id": spelled[at], "n": at}, (10, 10 + (at if later else -at), 0, "one"))
                for at, op in enumerate(ops)
            ]
            told = table.write([*winners, *others]), table.everything()
            table.clear()
            with monkeypatch.context() as patched:
                patched.setattr(direct, "fits", lambda *_: False)
                guarded = table.write([*winners, *others], run="again")
            assert told == (replace(guarded, number=told[0].number), table.everything()), (ops, later)
            table.clear()
    assert loads == [False] * 8


def test_a_key_of_a_delete_that_does_not_fit_is_told(server: Any, loads: list[bool]) -> None:
    definition = "CREATE TABLE {name} (id VARCHAR(3) COLLATE utf8mb4_bin PRIMARY KEY, n INT)"
    rows = [Winner(op, {"id": id, "n": 1}, (10, 10, 0, "one")) for op, id in (("u", "a"), ("d", "long"), ("d", "b"))]
    with target_table(server, definition, {"id": pa.string(), "n": pa.int32()}) as table:
        with pytest.raises(DataAtRisk) as caught:
            table.write(rows)
        assert (caught.value.code, table.rows("id")) == ("target.row_error", [])
        counts = table.write(rows, quarantine=True)
        assert (counts.written, counts.absent, counts.quarantined, table.rows("id")) == (1, 1, 1, [("a",)])
    assert loads == []


def test_zero_is_not_replaced_by_the_next_number(server: Any, loads: list[bool]) -> None:
    """MariaDB replaces it in a LOAD DATA that has SET, whatever the sql_mode."""
    counted = PLAIN.replace("PRIMARY KEY,", "PRIMARY KEY AUTO_INCREMENT,")
    with target_table(server, counted) as table:
        table.write([shop("u", 7, "a", 7, 10), shop("u", 0, "b", 0, 10)])
        assert (table.rows(), loads) == ([(0, "b", 0), (7, "a", 7)], [])
        table.clear()
        table.write([shop("u", 7, "a", 7, 10), shop("u", 1, "b", 0, 10)], run="again")
        assert (table.rows(), loads) == ([(1, "b", 0), (7, "a", 7)], [True])
    definition = counted.replace("id BIGINT", "n BIGINT").replace(", n INT,", ", id BIGINT NOT NULL UNIQUE,")
    with target_table(server, definition) as other:
        other.write([shop("u", 7, "a", 7, 10), shop("u", 0, "b", 0, 10)])
        assert other.rows() == [(0, "b", 0), (7, "a", 7)]
    assert len(loads) == 1


def test_what_is_written_again_is_found(table: Table, loads: list[bool]) -> None:
    batches = [[shop("u", id, f"c{id}", id, 10)] for id in (-1, 7, 3)]
    assert (table.write(*batches).written, loads) == (3, [True])
    assert table.rows() == [(-1, "c-1", -1), (3, "c3", 3), (7, "c7", 7)]
    before = table.everything()
    assert (table.write(*batches).equal, loads, table.everything()) == (3, [True], before)


SPECIAL_ROWS: dict[str, list[Winner]] = {
    "a truncate": [Winner("t", {}, (5, 5, 0, "one")), shop("u", 1, "a", 1, 10)],
    "a row that left": [shop("u", 1, "a", 1, 10), shop("x", 2, "b", 1, 10)],
}


def test_rows_and_facts_that_need_care_take_the_guarded_write(table: Table, loads: list[bool]) -> None:
    for what, rows in SPECIAL_ROWS.items():
        table.write(rows)
        assert (loads, table.rows()) == ([], [(1, "a", 1)]), what
        table.clear()
    for change in ({"coarser": True}, {"triggers": ("one",)}):
        replace(table, facts=replace(table.facts, **change)).write([shop("u", 1, "a", 1, 10)])
        assert (loads, table.rows()) == ([], [(1, "a", 1)]), change
        table.clear()
    with pytest.raises(DataAtRisk):  # the column would replace null
        table.write([shop("u", 1, None, 1, 10)])
    assert loads == []


SPECIAL_TABLES = {
    "a generated column": (PLAIN[:-1] + ", twice INT AS (n * 2))", "row"),
    "a column of its own": (PLAIN[:-1] + ", own VARCHAR(40) NOT NULL DEFAULT 'x')", "row"),
    "versions beside the table": (PLAIN, "table"),
}


@pytest.mark.parametrize("what", SPECIAL_TABLES)
def test_special_tables_take_the_guarded_write(server: Any, loads: list[bool], what: str) -> None:
    definition, store = SPECIAL_TABLES[what]
    with target_table(server, definition, store=store) as table:
        table.write([shop("u", 1, "a", 1, 10)])
        assert (loads, table.rows()) == ([], [(1, "a", 1)])


def test_tombstones_and_truncates_take_the_guarded_write(table: Table, loads: list[bool]) -> None:
    table.write([shop("d", 1, None, None, 20)])
    assert table.write([shop("u", 1, "a", 1, 10)]).stale == 1
    assert (loads, table.rows()) == ([False], [])
    table.clear()
    table.write([Winner("t", {}, (20, 20, 0, "one"))])
    assert table.write([shop("u", 1, "a", 1, 10)]).stale == 1
    assert (loads, table.rows()) == ([False, False], [])


def test_a_value_that_does_not_fit_is_found_and_set_aside(table: Table, loads: list[bool]) -> None:
    rows = [shop("u", 1, "a", 1, 10), shop("u", 2, "x" * 21, 1, 10)]
    with pytest.raises(DataAtRisk) as caught:
        table.write(rows)
    assert (caught.value.code, table.rows()) == ("target.row_error", [])
    assert (table.write(rows, quarantine=True).quarantined, table.rows()) == (1, [(1, "a", 1)])
    assert loads == [False, False]


def test_a_trigger_that_nobody_was_told_of_is_noticed_by_the_quality_check(table: Table, tmp_path: Path) -> None:
    table.query(f"CREATE TRIGGER {table.facts.database}.one BEFORE INSERT ON {table.facts.name} FOR EACH ROW "
                "SET NEW.id = IF(NEW.id = 2, 9, NEW.id)")  # fmt: skip
    rows = [shop("u", 1, "a", 1, 10), shop("u", 2, "b", 1, 10)]
    table.write(rows)
    with open_session(table.server, table.facts.database, where="test") as session:
        batch, layout = record_batch(rows, COLUMNS), Layout(("id",), tuple(COLUMNS))
        assert outcomes(session, table.facts, batch, layout, scratch=tmp_path) == ["same", "missing"]


@pytest.mark.parametrize("id", [1, 5])
@pytest.mark.parametrize("committed", [True, False])
def test_a_row_that_another_session_is_adding_is_never_hit(
    table: Table, loads: list[bool], id: int, committed: bool
) -> None:
    """By its own key, or by another unique value."""
    with connect(table.server, where="test") as other, other.cursor() as cursor:
        other.begin()
        cursor.execute(f"INSERT INTO {table.facts.name} (id, code, n) VALUES ({id}, 'a', 77)")
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(table.write, [shop("u", 1, "a", 1, 10), shop("u", 2, "b", 2, 10)])
            waiting = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
            while not writing.done():
                time.sleep(0.2)  # a server renews the view only if nobody has just read it
                if loads and table.query(waiting)[0][0]:
                    break
            other.commit() if committed else other.rollback()
            if committed and id == 5:
                with raises(DataAtRisk, "target.unique_conflict"):
                    writing.result()
            else:
                assert writing.result().written == 2
    assert loads == [not committed]
    assert table.rows() == ([(5, "a", 77)] if committed and id == 5 else [(1, "a", 1), (2, "b", 2)])


def _kill_after(monkeypatch: pytest.MonkeyPatch, table: Table, module: Any, name: str) -> None:
    """The server ends the writer's session once, after the call."""
    plain, once = getattr(module, name), threading.Event()

    def called(cursor: Any, *arguments: Any) -> Any:
        done = plain(cursor, *arguments)
        if not once.is_set():
            once.set()
            table.query(f"KILL {cursor.connection.thread_id()}")
        return done

    monkeypatch.setattr(module, name, called)


def test_a_session_that_ends_after_the_load_leaves_nothing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    _kill_after(monkeypatch, table, direct, "load_empty")
    counts = table.write([shop("u", 1, "a", 1, 10)], pause=lambda _: seen.append((table.rows(), ledger(table))))
    assert seen == [([], [])]
    assert (counts.written, counts.equal, table.rows()) == (1, 0, [(1, "a", 1)])


def test_a_session_that_ends_in_the_commit_finds_its_rows(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, once = write_module.open_session, threading.Event()

    def opened(*arguments: Any, **options: Any) -> Any:
        connection = plain(*arguments, **options)
        if not once.is_set():
            once.set()

            def commit() -> None:
                type(connection).commit(connection)
                raise pymysql.err.OperationalError(2013, "Lost connection")

            connection.commit = commit
        return connection

    monkeypatch.setattr(write_module, "open_session", opened)
    counts = table.write([shop("u", 1, "a", 1, 10)])
    assert (counts.written, counts.equal, table.rows()) == (1, 1, [(1, "a", 1)])


@pytest.mark.parametrize("key", [("a",), ("a", "b")])
def test_keys_of_text_and_bytes(server: Any, loads: list[bool], key: tuple[str, ...]) -> None:
    definition = (
        "CREATE TABLE {name} (a VARCHAR(30) COLLATE utf8mb4_bin NOT NULL, b VARBINARY(9) NOT NULL, "
        f"PRIMARY KEY ({', '.join(key)}))"
    )
    texts = ["", "tab\tnl\nnul\0back\\slash,\\n\\", "é🙂", "NULL", "\\N", "x,y"]
    rows = [Winner("u", {"a": text, "b": bytes([at, 0, 9, 92])}, (at, at, 0, "one")) for at, text in enumerate(texts)]
    with target_table(server, definition, {"a": pa.string(), "b": pa.binary()}, key) as table:
        assert table.write(rows).written == len(rows)
        assert loads == [True]
        assert {row[0] for row in table.rows("a")} == set(texts)
        table.clear()
        both = [Winner("u", {"a": text, "b": b"z"}, (at, at, 0, "one")) for at, text in enumerate(("q", "q "), 1)]
        counts = table.write(both)
        assert (counts.written, counts.stale, loads, table.rows("a")) == (1, 1, [True, False], [("q ",)])


def test_partitions_that_have_no_place_for_a_row(server: Any, loads: list[bool]) -> None:
    definition = (
        "CREATE TABLE {name} (id BIGINT PRIMARY KEY, n INT) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9))"
    )
    columns = {name: COLUMNS[name] for name in ("id", "n")}
    with target_table(server, definition, columns) as table:
        with pytest.raises(DataAtRisk):
            table.write([shop("u", 1, None, 1, 10), shop("u", 9, None, 1, 10)])
        assert (loads, table.rows("id")) == ([False], [])
        table.write([shop("u", 1, None, 1, 10), shop("u", 8, None, 1, 10)])
        assert (loads, table.rows("id")) == ([False, True], [(1,), (8,)])
