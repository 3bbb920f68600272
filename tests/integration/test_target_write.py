"""The guarded write on real servers: no older change wins, in any order; all of a shard or nothing."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc_core.errors import DataAtRisk, Refused, RetryLater
from cdc_core.model.version import Version, decode, encode, newer_or_equal, other_origin
from cdc_core.mysql.connections import SafeConnection, connect
from cdc_core.targets.reading.table_facts import table_facts
from cdc_core.targets.reading.target_faults import translating
from cdc_core.targets.writing import load as load_module
from cdc_core.targets.writing import row_writer as write_module
from cdc_core.targets.writing import upsert as upsert_module
from cdc_core.targets.writing.guard_sql import may_replace_sql, newer_or_equal_sql, other_origin_sql
from cdc_core.targets.writing.load import open_session
from cdc_core.targets.writing.prepare import ours_beside, prepare, require_store, versions_table
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.process import free_port
from tests.integration.one_server import EACH_STORE
from tests.lab.refusals import raises
from tests.lab.target_rows import Table, Winner, shop, target_table

QUICK = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


NUMBERS = st.sampled_from([0, 1, 2, 255, 256, 2**31, 2**62, 2**63 - 1]) | st.integers(0, 2**63 - 1)
VERSIONS = st.builds(Version, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["a", "A", "ab", "b", "x" * 48]))
TOLD = st.builds(Version, NUMBERS, NUMBERS, st.integers(0, 300), st.sampled_from(["a", "x" * 10]), st.just("0123abcd"))
RAW = st.builds(encode, VERSIONS | TOLD) | st.just(b"")


@given(pairs=st.lists(st.tuples(RAW, RAW), min_size=1, max_size=100))
@QUICK
def test_python_and_sql_decide_alike(server: Any, pairs: list[tuple[bytes, bytes]]) -> None:
    rows = " UNION ALL ".join(
        f"SELECT {at} AS n, CAST(X'{a.hex()}' AS BINARY) AS a, CAST(X'{b.hex()}' AS BINARY) AS b"
        for at, (a, b) in enumerate(pairs)
    )
    origins = other_origin_sql("v.a", "v.b")
    sql = (
        f"SELECT {newer_or_equal_sql('v.a', 'v.b')}, {may_replace_sql('v.a', 'v.b')}, {origins} "
        f"FROM ({rows}) v ORDER BY v.n"
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        found = [tuple(map(bool, row)) for row in cursor.fetchall()]
    assert found == [(newer_or_equal(a, b), newer_or_equal(a, b), other_origin(a, b)) for a, b in pairs]


def test_a_null_version_is_older_than_any_in_sql_too(server: Any) -> None:
    raw = encode(Version(0, 0, 0, "a")).hex()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {newer_or_equal_sql(f'CAST(X{raw!r} AS BINARY)', 'NULL')}, "
            f"{newer_or_equal_sql('NULL', f'CAST(X{raw!r} AS BINARY)')}"
        )
        assert cursor.fetchone() == (1, 0)


def test_rows_are_inserted_updated_and_deleted_and_counted_once(table: Table) -> None:
    first = table.write([shop("u", 1, "a", 1, 10), shop("u", 2, "b", 1, 10), shop("d", 3, None, None, 10)])
    assert (first.written, first.stale, first.absent) == (2, 0, 1)
    second = table.write([shop("u", 1, "a", 2, 20), shop("d", 2, "b", 1, 20), shop("u", 3, "c", 9, 5)])
    assert (second.written, second.stale, second.absent) == (2, 1, 0)
    assert table.rows() == [(1, "a", 2)]


def test_writing_again_changes_nothing_and_counts_as_written_and_equal(table: Table) -> None:
    batch = [shop("u", 1, "a", 1, 10), shop("d", 2, None, None, 10)]
    assert table.write(batch).equal == 0
    before = table.everything()
    again = table.write(batch)
    assert table.everything() == before
    assert (again.written, again.stale, again.absent, again.equal) == (1, 0, 1, 1)
    mixed = table.write([*batch, shop("u", 3, "c", 1, 10)])
    assert (mixed.written, mixed.equal) == (2, 1)


def test_a_row_changed_by_hand_is_put_right_by_writing_its_version_again(table: Table) -> None:
    table.write([shop("u", 1, "a", 1, 10)])
    table.query(f"UPDATE {table.facts.name} SET n = 77")
    assert table.write([shop("u", 1, "a", 1, 10)]).equal == 1
    assert table.rows() == [(1, "a", 1)]


def test_a_late_insert_does_not_revive_a_deleted_key_and_a_new_one_does(table: Table) -> None:
    table.write([shop("d", 1, None, None, 20)])
    assert table.write([shop("u", 1, "a", 1, 10)]).stale == 1
    assert table.rows() == []
    assert table.write([shop("u", 1, "a", 2, 30)]).written == 1
    assert table.rows() == [(1, "a", 2)]
    assert table.query(f"SELECT * FROM {table.facts.database}._lockstep_tombstone_t") == []


def test_rows_that_lockstep_never_wrote_are_older_than_any_change(table: Table) -> None:
    table.query(f"INSERT INTO {table.facts.name} (id, code, n) VALUES (1, 'a', 1), (2, 'b', 1)")
    assert table.write([shop("u", 1, "a", 5, 1), shop("d", 2, None, None, 1)]).written == 2
    assert table.rows() == [(1, "a", 5)]


def test_the_version_column_is_invisible(table: Table) -> None:
    table.write([shop("u", 1, "a", 1, 10)])
    assert table.query(f"SELECT * FROM {table.facts.name}") == [(1, "a", 1, None)]


def test_a_table_whose_versions_are_kept_beside_it_is_not_altered(server: Any) -> None:
    with target_table(server, store="table") as table:
        shown = "SHOW CREATE TABLE " + table.facts.name
        before = table.query(shown)
        table.write([shop("u", 1, "a", 1, 10), shop("d", 2, None, None, 10)])
        prepare(table.connection, table.facts)
        table.write([shop("u", 1, "a", 1, 20)])
        assert table.query(shown) == before
        columns = table.query(f"SELECT * FROM {table.facts.name}")
        assert columns == [(1, "a", 1, None)]


def test_a_row_found_by_another_unique_key_than_its_own_is_never_hit(server: Any) -> None:
    """The primary key is not the rows' key: INSERT ... ON DUPLICATE KEY UPDATE would look there first."""
    definition = "CREATE TABLE {name} (n INT PRIMARY KEY, id BIGINT NOT NULL UNIQUE, code VARCHAR(20))"
    for store in ("row", "table"):
        with target_table(server, definition, key=("id",), store=store) as table:
            table.write([shop("u", 1, "a", 1, 10), shop("u", 2, "b", 2, 11)])
            before = table.everything()
            with raises(DataAtRisk, "target.unique_conflict"):
                table.write([shop("u", 2, "c", 1, 20)])
            assert table.everything() == before
            assert table.write([shop("u", 1, "x", 2, 30), shop("u", 2, "y", 1, 31)]).written == 2
            assert table.rows() == [(1, "x", 2), (2, "y", 1)]


def test_versions_that_are_kept_elsewhere_already_are_not_forgotten(server: Any) -> None:
    for store, other in (("row", True), ("table", False)):
        with target_table(server, store=store) as table:
            table.write([shop("u", 1, "a", 1, 10)])
            there = ours_beside(table.connection, table.facts.database, [table.facts.table])
            require_store(table.connection, table.facts, there)
            for judge in (prepare, lambda connection, facts, there=there: require_store(connection, facts, there)):
                with raises(Refused, "config.table_rule") as caught:
                    judge(table.connection, replace(table.facts, beside=other))
                assert f"guard.store: {store}" in caught.value.remedy


def test_versions_that_a_way_back_has_left_beside_a_table_do_not_stop_whoever_has_them_in_the_rows(server: Any) -> None:
    with target_table(server) as table:
        beside = replace(table.facts, beside=True)
        with pytest.raises(Refused):  # of a way back that no fence lets through
            prepare(table.connection, beside)
        columns = tuple(column for column in beside.columns if column.name != "_cdc_version")
        prepare(table.connection, replace(beside, columns=columns))  # of one that is let through
        versions = f"{table.facts.database}.{versions_table(table.facts.table)}"
        table.query(f"INSERT INTO {versions} VALUES (1, X'00')")
        prepare(table.connection, table.facts)
        assert table.write([shop("u", 1, "a", 1, 10)]).written == 1


def test_keys_alone_can_be_written_beside(server: Any) -> None:
    with target_table(
        server, "CREATE TABLE {name} (id BIGINT PRIMARY KEY)", {"id": pa.int64()}, store="table"
    ) as table:
        rows = [Winner("u", {"id": 1}, (1, 10, 0, "one"))]
        assert [table.write(rows).equal for _ in range(2)] == [0, 1]


def _history(seed: int) -> list[list[Winner]]:
    """Batches of one source as a merge makes them, in order; codes move between rows now and then."""
    chance = random.Random(seed)
    state: dict[int, tuple[str, int]] = {}
    batches, seq = [], 0
    for _ in range(4):
        last: dict[int, Winner] = {}
        for _ in range(chance.randint(1, 8)):
            seq += 1
            id = chance.randint(1, 5)
            if id in state and chance.random() < 0.35:
                del state[id]
                last[id] = shop("d", id, None, None, seq)
                continue
            # A code that no other row holds at this moment.
            free = [code for code in "abcdefgh" if code not in {held for key, (held, _) in state.items() if key != id}]
            state[id] = (chance.choice(free), seq)
            last[id] = shop("u", id, *state[id], seq)
        batches.append(list(last.values()))
    return batches


@given(seed=st.integers(0, 10**6), order=st.lists(st.integers(0, 3), max_size=6))
@QUICK
def test_repeats_of_any_earlier_batch_change_nothing(table: Table, seed: int, order: list[int]) -> None:
    batches = _history(seed)
    table.clear()
    for batch in batches:
        table.write(batch)
    expected = table.everything()
    for number in order:
        table.write(batches[number])
    assert table.everything() == expected


@given(
    data=st.lists(
        st.lists(
            st.tuples(st.integers(1, 4), st.sampled_from("ud"), st.sampled_from(["one", "two"])),
            min_size=1,
            max_size=6,
        ),
        min_size=2,
        max_size=4,
    ),
    random_=st.randoms(use_true_random=False),
)
@QUICK
def test_any_interleaving_of_batches_and_repeats_ends_in_the_same_table(
    table: Table, data: list[list[tuple[int, str, str]]], random_: random.Random
) -> None:
    batches, seq = [], 0
    for changes in data:
        last: dict[int, Winner] = {}
        for id, op, source in changes:
            seq += 1
            last[id] = shop(op, id, f"c{id}", seq, seq, source=source, ts=seq // 3 + 1)
        batches.append(list(last.values()))
    table.clear()
    for batch in batches:
        table.write(batch)
    expected = table.everything()
    table.clear()
    order = [*range(len(batches)), *random_.choices(range(len(batches)), k=3)]
    random_.shuffle(order)
    for number in order:
        table.write(batches[number])
    assert table.everything() == expected


def test_unique_values_may_swap_inside_a_batch(table: Table) -> None:
    table.write([shop("u", id, code, 1, 10) for id, code in ((1, "a"), (2, "b"), (3, "c"))])
    table.query(f"UPDATE {table.facts.name} SET kept = 'mine' WHERE id = 2")
    rotated = table.write([shop("u", id, code, 2, 20) for id, code in ((1, "b"), (2, "c"), (3, "a"))])
    assert rotated.written == 3
    assert table.rows("id, code, n, kept") == [(1, "b", 2, None), (2, "c", 2, "mine"), (3, "a", 2, None)]


@EACH_STORE
def test_unique_values_that_the_table_computes_may_swap_inside_a_batch(server: Any, store: str) -> None:
    computed = ["low VARCHAR(20) AS (LOWER(code)) VIRTUAL, UNIQUE KEY (low)"]
    if not server.mariadb:
        computed.append("UNIQUE KEY ((LOWER(code)))")
    for unique in computed:
        columns = "id BIGINT PRIMARY KEY, code VARCHAR(20), n INT, kept VARCHAR(9)"
        definition = f"CREATE TABLE {{name}} ({columns}, {unique})"
        with target_table(server, definition, store=store) as table:
            table.write([shop("u", id, code, 1, 10) for id, code in ((1, "A"), (2, "B"), (3, "C"), (4, "D"))])
            table.query(f"UPDATE {table.facts.name} SET kept = 'mine'")
            batch = [(1, "b"), (2, "c"), (3, "a"), (5, "E")]
            assert table.write([shop("u", id, code, 2, 20) for id, code in batch]).written == 4
            after = [(1, "b", "mine"), (2, "c", "mine"), (3, "a", "mine"), (4, "D", "mine"), (5, "E", None)]
            assert table.rows("id, code, kept") == after
            with pytest.raises(DataAtRisk):
                table.write([shop("u", 1, "d", 3, 30), shop("u", 2, "b", 3, 30)])
            assert table.rows("id, code, kept") == after


def test_a_unique_value_may_pass_from_a_deleted_row_to_a_new_one(table: Table) -> None:
    table.write([shop("u", 1, "a", 1, 10)])
    assert table.write([shop("d", 1, "a", 1, 20), shop("u", 2, "a", 1, 21)]).written == 2
    assert table.rows() == [(2, "a", 1)]


@pytest.mark.parametrize(
    "batch",
    [
        [shop("u", 5, "a", 1, 30)],
        [shop("u", 5, "z", 1, 30), shop("u", 6, "z", 1, 30)],
        [shop("u", 5, "b", 1, 30), shop("u", 2, "z", 0, 1)],
    ],
    ids=["holder not in the batch", "twice in the batch", "holder in the batch, but stale"],
)
def test_a_unique_value_of_another_row_is_refused_and_no_row_is_hit(table: Table, batch: Sequence[Winner]) -> None:
    table.write([shop("u", 1, "a", 1, 10), shop("u", 2, "b", 1, 10)])
    before = table.everything()
    with raises(DataAtRisk, "target.unique_conflict") as caught:
        table.write([*batch, shop("u", 9, "fine", 1, 30)])
    assert re.search("key [56] .*Duplicate entry for key", caught.value.what)
    assert table.everything() == before


@pytest.mark.parametrize(
    ("code", "n", "reason"),
    [("x" * 21, 1, "'code'"), (None, 1, "'code'"), ("c", 300, "'n'"), ("c", 77, "small")],
    ids=["too long", "null in NOT NULL", "out of range", "against a CHECK constraint"],
)
def test_a_row_that_does_not_fit_is_named_and_nothing_is_written(
    server: Any, code: str | None, n: int, reason: str
) -> None:
    columns = "id BIGINT PRIMARY KEY, code VARCHAR(20) NOT NULL, n TINYINT, CONSTRAINT small CHECK (n < 77)"
    with target_table(server, f"CREATE TABLE {{name}} ({columns})") as table:
        good = [shop("u", id, f"c{id}", 1, 30) for id in range(100, 140)]
        with raises(DataAtRisk, "target.row_error", match=rf"key 7 .*{reason}"):
            table.write(good[:20], [shop("u", 7, code, n, 30)], good[20:])
        assert table.everything() == [[], [], []]


def refused_keys(table: Table) -> list[int]:
    return [decode(row.version).seq for row in table.unfit]


def test_rows_that_do_not_fit_are_set_aside_and_all_others_written(table: Table) -> None:
    table.write([shop("u", 3, "old", 1, 1)])
    rows = [shop("u", id, f"c{id}", 1, 100 + id) for id in range(40)]
    rows[3], rows[17], rows[39] = (
        shop("u", 3, "x" * 21, 1, 103),
        shop("u", 17, None, 1, 117),
        shop("u", 39, "y" * 30, 1, 139),
    )
    counts = table.write(rows[:20], rows[20:], quarantine=True)
    assert (counts.written, counts.quarantined) == (37, 3)
    assert sorted(refused_keys(table)) == [103, 117, 139]
    assert all("code" in row.reason for row in table.unfit)
    assert dict(table.rows("id, code"))[3] == "old"
    assert {17, 39}.isdisjoint(dict(table.rows("id, code")))
    before = table.everything()
    assert table.write(rows[:20], rows[20:], quarantine=True).equal == 37
    assert table.everything() == before
    # The column takes them now: what was set aside is applied, the rest is as it was.
    table.query(f"ALTER TABLE {table.facts.name} MODIFY code VARCHAR(40) COLLATE utf8mb4_bin NULL")
    facts = table_facts(table.connection, table.facts.database, ["t"])["t"]
    again = replace(table, facts=replace(facts, beside=table.facts.beside)).write(rows, quarantine=True)
    assert (again.written, again.equal, again.quarantined) == (40, 37, 0)


def test_a_deletion_is_applied_whatever_the_values_of_its_row(table: Table) -> None:
    table.write([shop("u", 1, "a", 1, 10)])
    assert table.write([shop("d", 1, "x" * 99, 1, 20), shop("d", 2, None, 1, 20)]).written == 1
    assert table.rows() == []


def test_rows_set_aside_do_not_take_the_rows_that_others_take_out_with_them(table: Table) -> None:
    """A rotation of unique values, of which one row does not fit: its old row must not be lost."""
    table.query(f"ALTER TABLE {table.facts.name} ADD CONSTRAINT small CHECK (n < 10)")
    table.write([shop("u", id, code, 1, 10) for id, code in ((1, "a"), (2, "b"), (3, "c"))])
    before = table.everything()
    with raises(DataAtRisk, "target.unique_conflict"):
        table.write([shop("u", 1, "b", 2, 20), shop("u", 2, "a", 50, 20)], quarantine=True)  # 2 keeps b
    assert table.everything() == before
    counts = table.write(
        [shop("u", 1, "b", 2, 20), shop("u", 2, "a", 2, 20), shop("u", 3, "z", 50, 20)], quarantine=True
    )
    assert (counts.written, counts.quarantined) == (2, 1)
    assert table.rows() == [(1, "b", 2), (2, "a", 2), (3, "c", 1)]


def test_more_rows_than_single_ones_stop_the_run(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "MAX_UNFIT", 3)
    monkeypatch.setattr(upsert_module, "MAX_UNFIT", 3)
    for code in ("x" * 21, None):
        assert table.write([shop("u", id, code, 1, 10) for id in range(3)], quarantine=True).quarantined == 3
        with raises(DataAtRisk, "target.row_error"):
            table.write([shop("u", id, code, 1, 10) for id in range(4)], quarantine=True)
        assert table.rows() == []


@given(seed=st.integers(0, 10**6))
@QUICK
def test_what_is_set_aside_is_exactly_what_does_not_fit(table: Table, seed: int) -> None:
    chance = random.Random(seed)
    table.clear()
    ids = range(chance.randint(1, 30))
    bad = {id: chance.choice(["x" * 21, None]) for id in ids if chance.random() < 0.3}
    counts = table.write([shop("u", id, bad.get(id, f"c{id}"), 1, 10 + id) for id in ids], quarantine=True)
    assert {seq - 10 for seq in refused_keys(table)} == set(bad)
    assert (counts.written, counts.quarantined) == (len(ids) - len(bad), len(bad))
    assert [row[0] for row in table.rows()] == [id for id in ids if id not in bad]


def test_the_ledger_stands_in_the_transaction_of_the_rows(table: Table) -> None:
    ledger = f"SELECT run_id, table_name, logical, written, stale, absent FROM {table.facts.database}._lockstep_ledger"
    table.write([shop("u", 1, "a", 1, 10)], run="r1")
    assert table.query(ledger) == [("r1", "t", "shop.t", 1, 0, 0)]
    with pytest.raises(DataAtRisk):
        table.write([shop("u", 2, "a", 1, 10)], run="r2")
    assert table.query(ledger) == [("r1", "t", "shop.t", 1, 0, 0)]
    table.write([shop("u", 1, "a", 0, 5), shop("d", 8, None, None, 5)], run="r1")
    assert table.query(ledger) == [("r1", "t", "shop.t", 0, 1, 1)]


def test_a_killed_connection_leaves_nothing_and_the_next_attempt_writes_all(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.write([shop("u", 1, "a", 1, 10)])
    note, killed = write_module.note, []

    def kill_once(cursor: Any, *arguments: Any, **options: Any) -> Any:
        if not killed:
            killed.append(cursor.connection.thread_id())
            table.query(f"KILL {killed[0]}")
            # Another session sees nothing of the transaction that has written everything but its commit.
            assert table.rows() == [(1, "a", 1)]
        return note(cursor, *arguments, **options)

    monkeypatch.setattr(write_module, "note", kill_once)
    counts = table.write([shop("u", 1, "a", 2, 20), shop("u", 2, "b", 2, 20)])
    assert killed
    assert counts.written == 2
    assert table.rows() == [(1, "a", 2), (2, "b", 2)]


def test_a_server_that_stays_away_is_worth_a_retry_later(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise pymysql.err.OperationalError(2013, "Lost connection")

    monkeypatch.setattr(write_module, "note", gone)
    with raises(RetryLater, "connection.unreachable"):
        table.write([shop("u", 1, "a", 1, 10)])
    assert table.rows() == []


def test_two_writers_of_one_table_take_turns_and_the_newer_row_stays(table: Table) -> None:
    batches = [[shop("u", id, f"c{id}", seq, seq) for id in range(200)] for seq in (10, 20, 30, 40)]
    errors: list[BaseException] = []

    def work(batch: list[Winner]) -> None:
        try:
            table.write(batch)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in reversed(batches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {row[2] for row in table.rows()} == {40}


def test_rows_are_locked_from_the_comparison_to_the_commit(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write([shop("u", 1, "a", 1, 10)])
    upsert, waited = write_module.upsert_rows, []

    def intruded_upon(*arguments: Any, **options: Any) -> None:
        with pytest.raises(pymysql.err.OperationalError) as caught:
            table.query(f"UPDATE {table.facts.name} SET n = 77 WHERE id = 1")
        waited.append(caught.value.args[0])
        upsert(*arguments, **options)

    table.query("SET SESSION innodb_lock_wait_timeout = 1")
    monkeypatch.setattr(write_module, "upsert_rows", intruded_upon)
    table.write([shop("u", 1, "a", 2, 20)])
    assert waited == [1205]
    assert table.rows() == [(1, "a", 2)]


def test_a_row_that_another_session_holds_is_tried_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write([shop("u", 1, "a", 1, 10)])
    waits_less = tuple(
        replace(setting, value=1) if setting.name == "innodb_lock_wait_timeout" else setting
        for setting in load_module.WRITING
    )
    monkeypatch.setattr(load_module, "WRITING", waits_less)
    with connect(table.server, where="test") as other, other.cursor() as cursor:
        other.begin()
        cursor.execute(f"UPDATE {table.facts.name} SET n = 5 WHERE id = 1")
        pauses = []

        def commit(wait_s: float) -> None:
            pauses.append(wait_s)
            other.commit()

        assert table.write([shop("u", 1, "a", 2, 20)], pause=commit).written == 1
    assert len(pauses) == 1
    assert table.rows() == [(1, "a", 2)]


def test_a_deadlock_with_another_session_is_tried_again(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    table.write([shop("u", 1, "a", 1, 10), shop("u", 2, "b", 1, 10)])
    name, released, results = table.facts.name, threading.Event(), []

    def write() -> None:
        batch = [shop("u", 1, "a", 2, 20), shop("u", 2, "b", 2, 20)]
        results.append(table.write(batch, pause=lambda _: released.wait()))

    writer = threading.Thread(target=write)
    with connect(table.server, where="test") as other, other.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table.facts.database}.weight (id INT)")
        other.begin()
        # The server ends the one of the two that has changed less.
        cursor.executemany(f"INSERT INTO {table.facts.database}.weight VALUES (%s)", range(2000))
        cursor.execute(f"UPDATE {name} SET n = 5 WHERE id = 2")
        writer.start()
        while not cursor.execute("SELECT 1 FROM INFORMATION_SCHEMA.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"):
            time.sleep(0.5)  # asked more often it shows what it has shown before
        cursor.execute(f"UPDATE {name} SET n = 5 WHERE id = 1")
        other.commit()
        released.set()
        writer.join()
    assert "1213" in caplog.text
    assert [result.written for result in results] == [2]
    assert table.rows() == [(1, "a", 2), (2, "b", 2)]


def test_foreign_keys_are_not_checked_do_not_cascade_and_triggers_fire(server: Any) -> None:
    with target_table(server, "CREATE TABLE {name} (id BIGINT PRIMARY KEY, code VARCHAR(20), n INT)") as table:
        name, database = table.facts.name, table.facts.database
        table.query(f"CREATE TABLE {database}.parent (n INT PRIMARY KEY)")
        table.query(f"ALTER TABLE {name} ADD FOREIGN KEY (n) REFERENCES {database}.parent (n)")
        of_row = f"id BIGINT, FOREIGN KEY (id) REFERENCES {name} (id) ON DELETE CASCADE"
        table.query(f"CREATE TABLE {database}.child ({of_row})")
        table.query(f"CREATE TABLE {database}.seen (at INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(9), id BIGINT)")
        for event, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            table.query(
                f"CREATE TRIGGER {database}.on_{event} AFTER {event} ON {name} FOR EACH ROW "
                f"INSERT INTO {database}.seen (what, id) VALUES ('{event}', {row}.id)"
            )
        table.write([shop("u", 1, "a", 1, 10), shop("u", 2, "b", 1, 10)])
        table.query(f"INSERT INTO {database}.child VALUES (1)")
        table.write([shop("d", 1, None, None, 20), shop("u", 2, "c", 2, 20)])
        assert table.rows() == [(2, "c", 2)]
        assert table.query(f"SELECT id FROM {database}.child") == [(1,)]
        assert table.query(f"SELECT what, id FROM {database}.seen ORDER BY at") == [
            ("INSERT", 1),
            ("INSERT", 2),
            ("DELETE", 1),
            ("UPDATE", 2),
        ]


@pytest.mark.parametrize("store", ["row", "table"])
def test_a_table_with_triggers_before_its_rows_is_written(mariadb_target: Any, store: str) -> None:
    """MariaDB refuses INSERT (...) SELECT of several rows into such a table."""
    definition = "CREATE TABLE {name} (id BIGINT PRIMARY KEY, code VARCHAR(20) CHECK (code <> 'bad'), n INT NOT NULL)"
    with target_table(mariadb_target, definition, store=store) as table:
        for event in ("INSERT", "UPDATE"):
            table.query(
                f"CREATE TRIGGER {table.facts.database}.before_{event} BEFORE {event} ON {table.facts.name} "
                "FOR EACH ROW SET @seen = NEW.id"
            )
        first = [shop("u", number, f"c{number}", number, 10) for number in range(9)]
        assert table.write(first).written == 9
        with raises(DataAtRisk, "target.row_error") as caught:
            table.write([shop("u", 1, "new", 2, 20), shop("u", 20, "bad", 1, 20), shop("u", 21, "new", 1, 20)])
        assert "key 20 " in caught.value.what
        assert table.rows() == [(number, f"c{number}", number) for number in range(9)]
        counts = table.write([shop("d", 0, None, None, 20), *(shop("u", n, "new", n, 20) for n in (1, 2, 11, 12))])
        assert counts.written == 5
        kept = [(number, f"c{number}", number) for number in range(3, 9)]
        assert table.rows() == [(1, "new", 1), (2, "new", 2), *kept, (11, "new", 11), (12, "new", 12)]


@pytest.mark.parametrize("store", ["row", "table"])
def test_unique_values_may_swap_in_a_table_with_triggers_before_its_rows(mariadb_target: Any, store: str) -> None:
    """MariaDB says of all rows at once that a column is null, whatever is wrong with one of them."""
    definition = "CREATE TABLE {name} (id BIGINT PRIMARY KEY, code VARCHAR(20) NOT NULL UNIQUE, n INT NOT NULL)"
    with target_table(mariadb_target, definition, store=store) as table:
        trigger = f"{table.facts.database}.b BEFORE INSERT ON {table.facts.name} FOR EACH ROW SET @seen = NEW.id"
        table.query(f"CREATE TRIGGER {trigger}")
        table.write([shop("u", id, code, 1, 10) for id, code in ((1, "a"), (2, "b"), (3, "c"))])
        assert table.write([shop("u", id, code, 2, 20) for id, code in ((4, "d"), (1, "b"), (2, "a"))]).written == 3
        assert table.rows() == [(1, "b", 2), (2, "a", 2), (3, "c", 1), (4, "d", 2)]


def test_the_freshness_column_rules_upserts_and_the_version_rules_deletes(table: Table) -> None:
    table.write([shop("u", 1, "a", 100, 10), shop("u", 2, "b", 100, 10)], freshness="n")
    older_time = table.write([shop("u", 1, "a", 50, 20)], freshness="n")
    newer_time = table.write([shop("u", 2, "b", 200, 5)], freshness="n")
    assert (older_time.stale, newer_time.written) == (1, 1)
    assert table.rows() == [(1, "a", 100), (2, "b", 200)]
    same_time = table.write([shop("u", 1, "z", 100, 9)], freshness="n")
    assert same_time.stale == 1
    assert table.write([shop("d", 1, "a", 1, 9), shop("d", 2, "b", 1, 20)], freshness="n").stale == 1
    assert table.rows() == [(1, "a", 100)]


def test_a_row_that_left_the_shard_is_removed_but_not_counted(table: Table) -> None:
    table.write([shop("u", 1, "a", 1, 10), shop("u", 2, "b", 1, 30)])
    counts = table.write([shop("x", 1, "a", 1, 20), shop("x", 2, "b", 1, 20)], ledger=False)
    assert (counts.written, counts.stale, counts.absent) == (0, 0, 0)
    assert table.rows() == [(2, "b", 1)]
    assert table.write([shop("u", 1, "a", 1, 15)]).stale == 1


def test_rows_do_not_leave_a_shard_whose_arrivals_were_lost_in_between(table: Table) -> None:
    """The server has failed over: without an error the second pass would note the run as written there."""
    first = table.write([shop("u", 1, "a", 1, 10)])
    leaving, ledger = [shop("x", 1, "a", 1, 20)], f"{table.facts.database}._lockstep_ledger"
    [counted] = table.query(f"SELECT COUNT(*) FROM {ledger}")
    table.query(f"DELETE FROM {ledger}")
    with raises(RetryLater, "target.busy"):
        table.write(leaving, ledger=False, after=first.number)
    assert (table.query(f"SELECT COUNT(*) FROM {ledger}"), counted) == ([(0,)], (1,))
    again = table.write([shop("u", 1, "a", 1, 10)])
    for _ in range(2):  # and once more, where the commit was not answered
        assert table.write(leaving, ledger=False, after=again.number).number > again.number
    assert table.rows() == []


def test_a_missing_grant_is_refused_by_its_name(table: Table) -> None:
    user = f"u{random.randrange(10**9)}"
    table.write([shop("u", 1, "a", 1, 10)])
    table.query(f"CREATE USER {user}@'%' IDENTIFIED BY 'secret'")
    try:
        table.query(f"GRANT SELECT, INSERT, UPDATE, CREATE TEMPORARY TABLES ON {table.facts.database}.* TO {user}@'%'")
        server = type(table.server)(table.server.host, table.server.port, user, "secret")
        poor = Table(server, table.connection, table.facts, table.columns)
        with raises(Refused, "connection.grant") as caught:
            poor.write([shop("d", 1, None, None, 20)])
        assert "secret" not in str(caught.value)
        assert table.rows() == [(1, "a", 1)]
    finally:
        table.query(f"DROP USER {user}@'%'")


def partial(id: int, seq: int, **values: Any) -> Winner:
    """An update of a row of which the log carried only the key and these values."""
    return Winner("u", {"id": id, **values}, (seq, seq, 0, "one"), absent=sorted({"code", "n"} - set(values)))


def test_values_that_the_log_did_not_carry_stay_as_they_are(table: Table) -> None:
    table.write([shop("u", 1, "a", 1, 1), shop("u", 2, "b", 2, 2), shop("u", 3, "c", 3, 3)])
    counts = table.write([partial(1, 4, n=None), partial(2, 5, code="bb"), shop("u", 3, "cc", None, 6)])
    assert (counts.written, counts.stale) == (3, 0)
    assert table.rows() == [(1, "a", None), (2, "bb", 2), (3, "cc", None)]
    counts = table.write([partial(1, 3, code="older")])
    assert (counts.written, counts.stale) == (0, 1)
    assert table.rows()[0] == (1, "a", None)


def test_a_unique_value_may_swap_though_other_values_are_absent(table: Table) -> None:
    table.write([shop("u", 1, "a", 1, 1), shop("u", 2, "b", 2, 2)])
    table.write([partial(1, 3, code="b"), partial(2, 4, code="a")])
    assert table.rows() == [(1, "b", 1), (2, "a", 2)]


def test_absent_values_of_a_row_that_is_not_there_are_refused_and_nothing_is_written(table: Table) -> None:
    table.write([shop("u", 1, "a", 1, 1)])
    with raises(DataAtRisk, "target.absent_values", match=r"target lacks 2 rows.*key 7"):
        table.write([partial(1, 2, n=5), partial(7, 3, n=5), partial(8, 4, n=5)])
    assert table.rows() == [(1, "a", 1)]
    table.write([Winner("d", {"id": 9}, (9, 9, 0, "one"), absent=["code", "n"])])
    assert table.write([partial(9, 8, n=5)]).stale == 1


def test_a_replication_group_that_refuses_a_transaction_or_a_table_is_named(mysql9: Any) -> None:
    """mysql9: that such a server is set up."""
    options = {"gtid-mode": "ON", "enforce-gtid-consistency": "ON"}
    wide = "CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY, code LONGTEXT NOT NULL, n INT)"
    with MySql.start(server_id=44, options=options) as grouped, target_table(grouped, wide) as table:
        table.query(f"CREATE TABLE {table.facts.database}.bare (id INT) ENGINE=InnoDB")
        for statement in (
            "INSTALL PLUGIN group_replication SONAME 'group_replication.so'",
            "SET GLOBAL group_replication_group_name = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa'",
            f"SET GLOBAL group_replication_local_address = '127.0.0.1:{free_port()}'",
            "SET GLOBAL group_replication_bootstrap_group = ON",
            "START GROUP_REPLICATION",
        ):
            table.query(statement)
        table.write([shop("u", 1, "a", 1, 10)])
        table.query("SET GLOBAL group_replication_transaction_size_limit = 20000")
        large = [shop("u", id, f"c{id}", id, 20) for id in range(2, 5000)]
        with raises(Refused, "target.limit", match="group_replication_transaction_size_limit"):
            table.write(large)
        # Few keys, and much in their rows.
        with raises(RetryLater, "target.busy", match="group_replication_transaction_size_limit"):
            table.write([shop("u", 2, "x" * 100_000, 2, 20)])
        assert table.rows() == [(1, "a", 1)]
        table.query("SET GLOBAL group_replication_transaction_size_limit = 0")
        table.write(large)
        with raises(Refused, "target.definition", match="primary key"), translating(table.facts.database):
            table.query(f"INSERT INTO {table.facts.database}.bare VALUES (1)")
        for statement in ("STOP GROUP_REPLICATION", "SET GLOBAL super_read_only = OFF"):
            table.query(statement)


@pytest.mark.parametrize("kind", ["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def test_a_target_without_space_takes_nothing_and_takes_all_once_it_has_space(kind: str) -> None:
    options = {"innodb-file-per-table": "OFF", "innodb-data-file-path": "ibdata1:12M:autoextend:max:48M"}
    start: Callable[..., Any] = MariaDb.start if kind == "mariadb" else MySql.start
    with start(server_id=43, options=options) as small, target_table(small) as table:
        first = [shop("u", id, f"c{id}", id, 10) for id in range(5)]
        table.write(first)
        before = table.everything()
        # MariaDB crashes where a BLOB finds no space.
        table.query(f"CREATE TABLE {table.facts.database}.filler (b VARCHAR(7000) CHARACTER SET latin1)")
        fill = f"INSERT INTO {table.facts.database}.filler VALUES {', '.join(['(REPEAT(1, 7000))'] * 60)}"
        full = None
        while full is None:
            try:
                table.query(fill)
            except pymysql.err.OperationalError as error:
                full = error.args[0]
        assert full == 1114
        rows = [shop("u", id, f"n{id}", id, 20) for id in range(3, 20_000)]
        for _ in range(2):
            with raises(RetryLater, "connection.unreachable", match="full"):
                table.write(rows)
            assert table.everything() == before
        table.query(f"DROP TABLE {table.facts.database}.filler")
        done = None
        for _ in range(60):  # the server frees the space of what was rolled back and dropped a little later
            try:
                done = table.write(rows)
                break
            except RetryLater:
                time.sleep(0.5)
        assert done is not None
        assert done.written == len(rows)
        assert [row[0] for row in table.rows("id")] == list(range(20_000))
        assert table.write(rows).equal == len(rows)


def test_tables_written_one_after_the_other_share_a_session_until_an_error_ends_it(table: Table) -> None:
    """Whatever ended a write, the next one finds nothing of it: no transaction, lock or loaded row."""
    opened: list[SafeConnection] = []

    def session() -> SafeConnection:
        if not opened or not opened[-1].open:
            opened.append(open_session(table.server, table.facts.database, where="test"))
        return opened[-1]

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("in the middle of the transaction")

    for seq in (1, 2):  # the second finds unique values taken, and begins again carefully
        swapped = [shop("u", 1, "ab"[seq - 1], seq, seq), shop("u", 2, "ba"[seq - 1], seq, seq)]
        assert table.write(swapped, session=session).written == 2
    assert len(opened) == 1
    for transact, what in ((broken, RuntimeError), (None, DataAtRisk)):
        with pytest.raises(what):
            table.write(
                [shop("u", 3, "x" * (99 if what is DataAtRisk else 1), 1, 3)], transact=transact, session=session
            )
        assert not opened[-1].open
        assert table.write([shop("u", 1, "c", len(opened), 3 + len(opened))], session=session).written == 1
    assert len(opened) == 3
    assert table.rows() == [(1, "c", 2), (2, "a", 2)]
    for connection in opened:
        if connection.open:
            connection.close()
