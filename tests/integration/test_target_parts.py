"""A large shard in parts: each is a transaction of its own, and together they leave what one transaction leaves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from cdc_core.errors import DataAtRisk, Refused, RetryLater
from cdc_core.model.run_plan import MergeCounts
from cdc_core.mysql.connections import SafeConnection
from cdc_core.targets.bookkeeping.fence import lower_fences, raise_fences
from cdc_core.targets.bookkeeping.ledger_rows import ledger_rows
from cdc_core.targets.reading.table_facts import table_facts
from cdc_core.targets.writing import write_parts as parts
from cdc_core.targets.writing.write_parts import why_whole
from tests.lab.refusals import raises
from tests.lab.shell import export
from tests.lab.target_rows import Table, Winner, shop, target_of, target_table

PLAIN = "CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY, code VARCHAR(20), n INT)"
SERVERS = ("mysql9", pytest.param("mariadb_target", marks=pytest.mark.matrix))
UNSIGNED = {"id": pa.uint64(), "n": pa.int32()}
PAIR = {"a": pa.int16(), "b": pa.uint64(), "n": pa.int32()}
MERGED = MergeCounts("shop.t", 9, 0, 9, 0)
OTHER_UNIQUE = "it has a unique key beside the rows' own"
LOW = "low VARCHAR(20) AS (LOWER(code)) VIRTUAL"


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def store() -> str:
    """Of guard.store; tests that depend on it have both kinds."""
    return "row"


@pytest.fixture
def table(server: Any, store: str) -> Iterator[Table]:
    with target_table(server, PLAIN, store=store) as made:
        yield made


class Killed(BaseException):
    """In place of a kill."""


def write_killed(table: Table, batch: list[Winner], part_rows: int, number: int) -> None:
    """Writes the parts before this one, counted from 0, and ends."""
    done: list[Any] = []

    def dying(*arguments: Any, of: Any = parts.write_shard, **named: Any) -> Any:
        if len(done) == number:
            raise Killed
        done.append(of(*arguments, **named))
        return done[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "write_shard", dying)
        with pytest.raises(Killed):
            table.write_in_parts(batch, part_rows)


def rows(*ids: int, seq: int = 10) -> list[Winner]:
    return [shop("u", id, f"c{id}-{seq}", id, seq) for id in ids]


def noted(table: Table, run: str = "run") -> list[tuple[Any, ...]]:
    return table.query(
        f"SELECT written, stale, absent, number FROM {table.facts.database}._lockstep_ledger WHERE run_id = '{run}'"
    )


def shown(table: Table) -> dict[str, int]:
    """The writes that the target has, as `lost_writes` asks for them."""
    at = ("shop.t", table.facts.name)
    export({"TARGET": url_of(table)})
    return ledger_rows(target_of(table), {at: None})[at]


def url_of(table: Table) -> str:
    address = table.server
    return f"mysql://{address.user}:{address.password}@{address.host}:{address.port}"


@pytest.mark.parametrize("store", ["row", "table"])
def test_parts_leave_what_one_transaction_leaves(table: Table) -> None:
    chance = random.Random(5)
    for _ in range(5):
        batches = []
        for seq in range(3):
            ids = chance.sample(range(-6, 9), chance.randint(1, 12))
            batches.append([shop(chance.choice("uuud"), id, f"c{id}", seq, chance.randint(1, 9)) for id in sorted(ids)])
        found = []
        for size in (0, 1, 4):
            told = [table.write_in_parts(batch, size, run=f"run{at}") for at, batch in enumerate(batches)]
            figures = [(counts.written, counts.stale, counts.absent, counts.equal) for counts in told]
            assert [noted(table, f"run{at}")[0][:3] for at in range(3)] == [figure[:3] for figure in figures]
            found.append((table.everything(), figures))
            table.clear()
        assert found[0] == found[1] == found[2]


def test_a_write_that_was_killed_after_some_parts_is_repeated_and_counts_each_row_once(table: Table) -> None:
    table.write(rows(2, 5, seq=99), run="before")
    batch = [*rows(1, 2, 3, 4, 5, 6), shop("d", 7, None, None, 10), *rows(8)]
    write_killed(table, batch, 3, 2)
    assert [row[0] for row in table.rows()] == [1, 2, 3, 4, 5, 6]
    assert noted(table) == [(4, 2, 0, 0)]
    done = table.write_in_parts(batch, 3)
    assert (done.written, done.stale, done.absent, done.equal, done.number) == (5, 2, 1, 4, 2)
    assert noted(table) == [(5, 2, 1, 2)]
    assert [row[0] for row in table.rows()] == [1, 2, 3, 4, 5, 6, 8]
    assert table.rows()[1][1] == "c2-99"


def test_a_server_that_has_only_some_parts_does_not_have_the_write(table: Table) -> None:
    table.write(rows(1), run="before")
    write_killed(table, rows(1, 2, 3, 4), 1, 3)
    assert shown(table) == {"before": 1}
    table.write_in_parts(rows(1, 2, 3, 4), 1)
    assert shown(table) == {"before": 1, "run": 2}


def test_what_was_written_whole_stays_written_while_it_is_repeated(table: Table) -> None:
    table.write_in_parts(rows(1, 2, 3), 1)
    write_killed(table, rows(1, 2, 3), 1, 2)
    assert shown(table) == {"run": 1}
    assert table.write_in_parts(rows(1, 2, 3), 1).number == 2


def test_no_part_overwrites_what_became_newer_between_two_parts(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = [*rows(1, 4, seq=20), shop("d", 3, None, None, 20)]
    between_parts(monkeypatch, 1, lambda: table.write(newer, run="other"))
    done = table.write_in_parts(rows(1, 2, 3, 4, 5, 6), 2)
    assert (done.written, done.stale) == (4, 2)
    assert table.rows("id, code") == [
        (1, "c1-20"), (2, "c2-10"), (4, "c4-20"), (5, "c5-10"), (6, "c6-10"),
    ]  # fmt: skip
    assert noted(table, "other")[0][3] == 1
    assert done.number == 2


def between_parts(patch: pytest.MonkeyPatch, number: int, do: Any) -> None:
    """Before this part, counted from 0."""
    calls: list[int] = []

    def doing(*arguments: Any, of: Any = parts.write_shard, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == number + 1:
            do()
        return of(*arguments, **named)

    patch.setattr(parts, "write_shard", doing)


@pytest.mark.parametrize("store", ["row", "table"])
def test_after_a_failover_that_lost_a_part_no_further_part_is_written_and_the_next_attempt_writes_all(
    table: Table,
) -> None:
    ledger = f"{table.facts.database}._lockstep_ledger"

    def lose() -> None:
        table.query(f"DELETE FROM {table.facts.name} WHERE id IN (3, 4)")
        if table.facts.beside:
            table.query(f"DELETE FROM {table.beside[1]} WHERE id IN (3, 4)")
        table.query(f"DELETE FROM {ledger}")
        table.query(f"INSERT INTO {ledger} VALUES {first}")

    write_killed(table, rows(1, 2, 3, 4, 5, 6), 2, 1)
    (line,) = table.query(
        f"SELECT run_id, table_name, logical, written, stale, absent, CAST(at AS CHAR), number FROM {ledger}"
    )
    first = str(line)
    with pytest.MonkeyPatch.context() as patch:
        between_parts(patch, 2, lose)
        with pytest.raises(RetryLater) as caught:
            table.write_in_parts(rows(1, 2, 3, 4, 5, 6), 2)
    assert caught.value.code == "target.busy"
    assert [row[0] for row in table.rows()] == [1, 2]
    assert shown(table) == {}
    assert table.write_in_parts(rows(1, 2, 3, 4, 5, 6), 2).written == 6
    assert [row[0] for row in table.rows()] == [1, 2, 3, 4, 5, 6]
    assert shown(table) == {"run": 1}


def test_a_table_that_was_created_again_between_two_parts_is_not_taken_for_one_that_has_both(table: Table) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # What `target create` does first, when it creates a table that was dropped.
        between_parts(patch, 2, lambda: table.query(f"DELETE FROM {table.facts.database}._lockstep_ledger"))
        with pytest.raises(RetryLater) as caught:
            table.write_in_parts(rows(1, 2, 3), 1)
    assert caught.value.code == "target.busy"


def test_a_task_that_was_paused_stops_when_another_writes_the_same_run(table: Table) -> None:
    with pytest.MonkeyPatch.context() as patch:
        between_parts(patch, 2, lambda: write_killed(table, rows(1, 2, 3), 1, 2))
        with pytest.raises(RetryLater) as caught:
            table.write_in_parts(rows(1, 2, 3), 1)
    assert caught.value.code == "target.busy"
    assert table.write_in_parts(rows(1, 2, 3), 1).written == 3


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_part_whose_commit_is_not_answered_is_written_again_and_counted_once(table: Table, lost: int) -> None:
    commits: list[int] = []

    def unanswered(connection: Any, of: Any = SafeConnection.commit) -> None:
        of(connection)
        commits.append(1)
        if len(commits) == lost:
            raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SafeConnection, "commit", unanswered)
        done = table.write_in_parts(rows(1, 2, 3, 4, 5, 6), 2)
    assert len(commits) == 4
    assert (done.written, done.equal) == (6, 2)
    assert noted(table)[0][:3] == (6, 0, 0)
    assert shown(table) == {"run": done.number}


def test_a_fence_between_two_parts_keeps_the_others_out(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGET", url_of(table))
    write_killed(table, rows(1, 2), 1, 1)
    raise_fences(target_of(table), ["shop.t"], "a test")
    with raises(Refused, "target.fenced"):
        table.write_in_parts(rows(1, 2), 1)
    assert [row[0] for row in table.rows()] == [1]
    lower_fences(target_of(table), ["shop.t"])


def test_a_row_that_does_not_fit_leaves_the_parts_before_it(table: Table) -> None:
    with raises(DataAtRisk, "target.row_error"):
        table.write_in_parts([*rows(1, 2, 3), shop("u", 4, "x" * 30, 4, 10), *rows(5)], 2)
    assert [row[0] for row in table.rows()] == [1, 2]
    assert noted(table) == [(2, 0, 0, 0)]
    assert table.write_in_parts(rows(1, 2, 3, 4, 5), 2).written == 5


@pytest.mark.parametrize(
    ("definition", "columns", "key", "keys"),
    [
        ("(id BIGINT PRIMARY KEY, n INT)", {"id": pa.int64(), "n": pa.int32()}, ("id",),
         [(-(2**63),), (-5,), (-1,), (0,), (7,), (2**63 - 1,)]),
        ("(id BIGINT UNSIGNED PRIMARY KEY, n INT)", UNSIGNED, ("id",),
         [(0,), (1,), (2**63 - 1,), (2**63,), (2**64 - 2,), (2**64 - 1,)]),
        ("(a SMALLINT, b BIGINT UNSIGNED, n INT, PRIMARY KEY (a, b))", PAIR, ("a", "b"),
         [(-1, 5), (-1, 2**64 - 1), (0, 0), (0, 1), (0, 2**64 - 1), (1, 0)]),
        ("(a SMALLINT, b BIGINT UNSIGNED, n INT, PRIMARY KEY (b, a))", PAIR, ("b", "a"),
         [(0, 9), (1, -7), (1, -2), (1, 8), (2**64 - 1, -1), (2**64 - 1, 0)]),
    ],
    ids=["signed", "unsigned", "pair", "pair in another order"],
)  # fmt: skip
def test_the_parts_of_an_empty_table_are_all_loaded_directly(
    server: Any, loads: list[bool], definition: str, columns: Any, key: tuple[str, ...], keys: Any
) -> None:
    with target_table(server, f"CREATE TABLE {{name}} {definition}", columns, key) as table:
        batch = [
            Winner("u", {**dict(zip(key, key_values, strict=True)), "n": at}, (10, 10, at, "one"))
            for at, key_values in enumerate(keys)
        ]
        for part_rows in (1, 2, 4):
            parts_written = [True] * (6 // part_rows + (6 % part_rows > 0))
            assert table.write_in_parts(batch, part_rows).written == 6
            assert loads == parts_written
            assert table.rows(", ".join([*key, "n"])) == [(*key_values, at) for at, key_values in enumerate(keys)]
            again = table.write_in_parts(batch, part_rows)
            assert (again.written, again.equal, loads) == (6, 6, parts_written)
            table.clear()
            loads.clear()


def test_parts_with_deletes_are_loaded_directly_too(server: Any, loads: list[bool]) -> None:
    with target_table(server, PLAIN) as table:
        mixed = [rows(id)[0] if id % 3 else shop("d", id, None, None, 99) for id in range(1, 10)]
        done = table.write_in_parts(mixed, 4)
        assert (done.written, done.absent, done.number) == (6, 3, 1)
        assert loads == [True, True]  # the last one is a delete alone
        again = table.write_in_parts(mixed, 4)
        assert (again.written, again.absent, again.equal) == (6, 3, 6)
        assert [row[0] for row in table.rows()] == [1, 2, 4, 5, 7, 8]
        assert table.write_in_parts(rows(3, 6, 9), 2, run="late").stale == 3


def test_a_part_with_rows_or_tombstones_among_its_keys_is_not_loaded_directly(server: Any, loads: list[bool]) -> None:
    with target_table(server, PLAIN) as table:
        table.write([*rows(20, seq=5), shop("d", 30, None, None, 99)], run="before")
        done = table.write_in_parts([*rows(10, 11), *rows(19, 21), *rows(30, 31), *rows(40, 41)], 2)
        assert loads == [True, True, False, True]  # the first is of the run before
        assert (done.written, done.stale) == (7, 1)
        assert [row[0] for row in table.rows()] == [10, 11, 19, 20, 21, 31, 40, 41]


def test_keys_that_do_not_come_in_their_order_are_written_too(server: Any, loads: list[bool]) -> None:
    with target_table(server, PLAIN) as table:
        assert table.write_in_parts(rows(9, 1, 5, 3, 4, 2), 2).written == 6
        assert loads == [True, True]
        assert [row[0] for row in table.rows()] == [1, 2, 3, 4, 5, 9]


WHOLE = {
    "id BIGINT PRIMARY KEY, code VARCHAR(20), n INT": "",
    "id BIGINT PRIMARY KEY, code VARCHAR(20), n INT UNIQUE": OTHER_UNIQUE,
    "id VARCHAR(20) PRIMARY KEY, code VARCHAR(20), n INT": "its key may be spelled in several ways",
    "id BINARY(8) PRIMARY KEY, code VARCHAR(20), n INT": "its key may be spelled in several ways",
    "id VARBINARY(8) PRIMARY KEY, code VARCHAR(20), n INT": "",
    "id VARBINARY(8) PRIMARY KEY, code VARCHAR(20), n INT, UNIQUE KEY (id(2))": OTHER_UNIQUE,
    f"id BIGINT PRIMARY KEY, code VARCHAR(20), n INT, {LOW}, UNIQUE KEY (low)": OTHER_UNIQUE,
    "id BIGINT PRIMARY KEY, code VARCHAR(20), n INT, UNIQUE KEY ((LOWER(code)))": OTHER_UNIQUE,
    "id BIGINT PRIMARY KEY, code VARCHAR(20), n INT, own INT DEFAULT 5, UNIQUE KEY (n, own)": OTHER_UNIQUE,
    "id BIGINT NOT NULL UNIQUE, code VARCHAR(20), n INT, own INT AUTO_INCREMENT PRIMARY KEY": "",
}


def test_a_table_whose_rows_depend_on_each_other_stays_whole(mysql9: Any) -> None:
    with target_table(mysql9, PLAIN) as table:
        database = table.facts.database
        for number, (definition, why) in enumerate(WHOLE.items()):
            table.query(f"CREATE TABLE {database}.w{number} ({definition})")
            facts = replace(table_facts(table.connection, database, [f"w{number}"])[f"w{number}"], key=("id",))
            assert why_whole(facts, table.layout, MERGED, quarantine=False) == why, definition


def test_a_value_that_the_table_computes_may_pass_from_a_row_that_goes_to_one_with_a_lower_key(server: Any) -> None:
    definition = f"CREATE TABLE {{name}} (id BIGINT PRIMARY KEY, code VARCHAR(20), n INT, {LOW}, UNIQUE KEY (low))"
    with target_table(server, definition) as table:
        table.write([shop("u", 1, "A", 1, 1), shop("u", 9, "X", 9, 1)], run="before")
        whole = why_whole(table.facts, table.layout, MERGED, quarantine=False)
        table.write_in_parts([shop("u", 1, "x", 1, 5), shop("d", 9, None, None, 5)], 0 if whole else 1)
        assert table.rows("id, code, low") == [(1, "x", "x")]


def test_a_run_whose_rows_depend_on_each_other_stays_whole(mysql9: Any) -> None:
    with target_table(mysql9, PLAIN) as table:
        facts, layout = table.facts, table.layout
        assert "triggers" in why_whole(replace(facts, triggers=("one",)), layout, MERGED, quarantine=False)
        assert "source tables" in why_whole(facts, replace(layout, shared=True), MERGED, quarantine=False)
        assert "set aside" in why_whole(facts, layout, MERGED, quarantine=True)
        assert "change their keys" in why_whole(facts, layout, replace(MERGED, key_changes=1), quarantine=False)
        assert "truncate" in why_whole(facts, layout, replace(MERGED, truncates=("00",)), quarantine=False)
        assert "no key" in why_whole(facts, replace(layout, key=()), MERGED, quarantine=False)
