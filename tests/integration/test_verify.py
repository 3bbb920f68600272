"""Verification: every planted fault is found, the right side is accused, and running writes are never a difference."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pymysql
import pytest

from cdc_core.errors import RetryLater
from cdc_core.operations.copy import chunks
from cdc_core.operations.extract import side_by_side
from cdc_core.operations.verify.comparison import DifferenceKind
from cdc_core.operations.verify.judgement import Wrong
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.verify_job import verifier_lease
from tests.integration.beside import beside
from tests.integration.one_server import FIRST_MARIADB, FIRST_MYSQL
from tests.lab.copying import read, stage
from tests.lab.refusals import raises
from tests.lab.staged_tables import table_state
from tests.lab.verified import Verified

log = logging.getLogger(__name__)

TYPES = {
    "i8": ("TINYINT", "-128", "-127"), "u64": ("BIGINT UNSIGNED", "18446744073709551615", "18446744073709551614"),
    "i24": ("MEDIUMINT", "-8388608", "-8388607"), "d": ("DECIMAL(20,6)", "1.000001", "1.000002"),
    "wide": ("DECIMAL(50,10)", "123456789012345678901234567890.1", "123456789012345678901234567890.2"),
    "f": ("FLOAT", "1.234567", "1.234568"), "dd": ("DOUBLE", "0.1", "0.10000000000000002"),
    "day": ("DATE", "'2024-02-29'", "'2024-03-01'"), "dt": ("DATETIME(6)", "'2024-01-01 10:00:00.000001'",
    "'2024-01-01 10:00:00.000002'"), "ts": ("TIMESTAMP NULL", "'2024-01-01 10:00:00'", "'2024-01-01 11:00:00'"),
    "t": ("TIME(3)", "'-100:00:00.001'", "'-100:00:00.002'"), "y": ("YEAR", "1999", "2000"),
    "b1": ("BIT(1)", "b'0'", "b'1'"), "b9": ("BIT(9)", "b'100000001'", "b'100000000'"),
    "e": ("ENUM('a','b','')", "'a'", "'b'"),
    "s": ("SET('x','y','z')", "'x,z'", "'x,y'"),
    "c": ("CHAR(10)", "'Case'", "'case'"), "v": ("VARCHAR(20)", "'blank'", "'blank '"),
    "tx": ("TEXT", "'tab\\t\\\\N'", "'tab\\t\\\\n'"), "bin": ("BINARY(4)", "X'00FF'", "X'00FE'"),
    "vb": ("VARBINARY(9)", "X'0001'", "X'000100'"), "bl": ("BLOB", "X'80'", "X'81'"),
    "j": ("JSON", "'{\"a\": 1}'", "'{\"a\": 2}'"), "g": ("POINT", "POINT(1,2)", "POINT(1,3)"),
    "n": ("INT", "NULL", "0"), "nv": ("VARCHAR(5)", "NULL", "''"),
}  # fmt: skip
"""By column: its type, a value, and the nearest other value."""


def typed(run: Verified, name: str = "types", key: str = "id INT PRIMARY KEY") -> None:
    columns = ", ".join(f"{column} {kind}" for column, (kind, _, _) in TYPES.items())
    run.source(f"CREATE TABLE {name} ({key}, {columns})")


def insert_typed(run: Verified, ids: range) -> None:
    values = ", ".join(value for _, value, _ in TYPES.values())
    run.source(*(f"INSERT INTO types VALUES ({key}, {values})" for key in ids))


def test_a_bit_in_each_type_is_found_and_the_target_is_accused(verified: Callable[..., Verified]) -> None:
    run = verified()
    typed(run)
    insert_typed(run, range(len(TYPES) + 2))
    run.load("types")
    assert run.verify("types")["types"].equal
    for number, (column, (_, _, other)) in enumerate(TYPES.items()):
        run.target(f"UPDATE types SET {column} = {other} WHERE id = {number}")
    found = run.found("types")
    assert sorted((key["id"], columns) for _, _, key, columns in found) == sorted(
        (str(number), [column]) for number, column in enumerate(TYPES)
    )
    assert {(kind, wrong) for kind, wrong, _, _ in found} == {(DifferenceKind.DIFFERS, Wrong.TARGET)}


@FIRST_MARIADB
def test_missing_surplus_swapped_and_shifted_rows_are_found_and_named(shop: Verified) -> None:
    shop.target(
        "DELETE FROM number WHERE id = 1",
        "INSERT INTO number VALUES (1000, 'new', NULL)",
        "UPDATE number SET v = IF(id = 5, 'v6', 'v5') WHERE id IN (5, 6)",
    )
    assert shop.found("number") == [
        (DifferenceKind.MISSING, Wrong.TARGET, {"id": "1"}, []),
        (DifferenceKind.SURPLUS, Wrong.TARGET, {"id": "1000"}, []),
        (DifferenceKind.DIFFERS, Wrong.TARGET, {"id": "5"}, ["v"]),
        (DifferenceKind.DIFFERS, Wrong.TARGET, {"id": "6"}, ["v"]),
    ]
    shop.load("number")
    shop.target("UPDATE number SET at = at + INTERVAL 1 HOUR")
    result = shop.verify("number")["number"]
    assert result.found == {Wrong.TARGET: 40}
    assert {tuple(finding.columns) for finding in result.findings} == {("at",)}
    assert result.findings[0].columns["at"] == ("2024-01-01 10:00:00", "2024-01-01 11:00:00")


@FIRST_MYSQL
def test_a_change_that_the_log_does_not_have_accuses_the_stage(shop: Verified) -> None:
    shop.unlogged(
        "UPDATE number SET v = 'silent' WHERE id = 3",
        "DELETE FROM number WHERE id = 4",
        "INSERT INTO number VALUES (99, 'silent', NULL)",
        "UPDATE number SET v = 'silent' WHERE id = 7",
    )
    shop.target("UPDATE number SET v = 'own' WHERE id = 7")
    assert shop.found("number") == [
        (DifferenceKind.DIFFERS, Wrong.STAGE, {"id": "3"}, ["v"]),
        (DifferenceKind.SURPLUS, Wrong.STAGE, {"id": "4"}, []),
        (DifferenceKind.DIFFERS, Wrong.BOTH, {"id": "7"}, ["v"]),
        (DifferenceKind.MISSING, Wrong.STAGE, {"id": "99"}, []),
    ]


@FIRST_MYSQL
def test_changes_that_the_target_has_not_applied_are_no_differences(shop: Verified) -> None:
    shop.source(
        "UPDATE number SET v = 'later' WHERE id < 10",
        "DELETE FROM number WHERE id = 20",
        "INSERT INTO number VALUES (500, 'later', NULL)",
        "UPDATE number SET id = 600 WHERE id = 30",
    )
    shop.target("UPDATE number SET v = 'wrong' WHERE id IN (7, 35)")
    result = shop.verify("number")["number"]
    assert [(dict(finding.key)["id"], finding.wrong) for finding in result.findings] == [
        ("35", Wrong.TARGET),
        ("7", Wrong.TARGET),
    ]
    assert result.moving == 9 + 1 + 1 + 2
    shop.extract()  # staged now, still not applied
    assert len(shop.found("number")) == 2
    shop.load("number")
    assert shop.verify("number")["number"].equal


@FIRST_MARIADB
def test_a_truncate_that_the_target_has_not_applied_is_no_difference(verified: Callable[..., Verified]) -> None:
    run = verified(tables="on_truncate: stage")
    run.numbers()
    run.source("TRUNCATE TABLE number", "INSERT INTO number VALUES (1, 'again', NULL)")
    result = run.verify("number")["number"]
    assert result.error is None
    assert (result.differences, result.unsettled, result.moving) == (0, 0, 40)
    run.consumed()
    assert run.verify("number")["number"].found == {Wrong.TARGET: 40}


@FIRST_MYSQL
def test_rows_without_a_key_are_counted_and_a_lag_is_no_difference(verified: Callable[..., Verified]) -> None:
    run = verified("no_key: rows")
    run.numbers(10, key="")
    run.source("INSERT INTO number VALUES (3, 'v3', '2024-01-01 10:03:00')")
    run.load("number")
    assert run.verify("number")["number"].equal
    run.target(
        "INSERT INTO number VALUES (5, 'v5', '2024-01-01 10:05:00')",
        "DELETE FROM number WHERE id = 3 LIMIT 1",
        "UPDATE number SET v = 'V8' WHERE id = 8",
    )
    run.source(  # a lag
        "INSERT INTO number VALUES (0, 'v0', '2024-01-01 10:00:00')", "DELETE FROM number WHERE id = 1",
        "UPDATE number SET v = 'later' WHERE id = 2",
    )  # fmt: skip
    result = run.verify("number")["number"]
    assert (result.error, result.unsettled, result.moving) == (None, 0, 4)
    assert sorted(
        (finding.kind, finding.key["id"], finding.key["v"], finding.source_rows, finding.target_rows)
        for finding in result.findings
    ) == [
        (DifferenceKind.COPIES, "3", "v3", 2, 1),
        (DifferenceKind.COPIES, "5", "v5", 1, 2),
        (DifferenceKind.MISSING, "8", "v8", 1, 0),
        (DifferenceKind.SURPLUS, "8", "V8", 0, 1),
    ]
    assert {finding.wrong for finding in result.findings} == {Wrong.TARGET}


@FIRST_MYSQL
def test_without_a_key_a_truncate_that_the_target_lacks_is_no_difference(verified: Callable[..., Verified]) -> None:
    run = verified("no_key: rows", tables="on_truncate: stage")
    run.numbers(10, key="")
    run.source("TRUNCATE TABLE number", "INSERT INTO number VALUES (1, 'again', NULL)")
    result = run.verify("number")["number"]
    assert (result.error, result.differences, result.unsettled, result.moving) == (None, 0, 0, 11)
    run.target("INSERT INTO number VALUES (77, 'astray', NULL)", "INSERT INTO number SELECT * FROM number WHERE id = 6")
    assert sorted(finding.key["id"] for finding in run.verify("number")["number"].findings) == ["6", "77"]
    run.target("DELETE FROM number WHERE id = 6 LIMIT 1", "DELETE FROM number WHERE id = 77")
    run.consumed()
    assert run.verify("number")["number"].found == {Wrong.TARGET: 11}


@FIRST_MYSQL
def test_a_table_whose_rows_have_no_shard_is_told_apart_from_those_after_it(verified: Callable[..., Verified]) -> None:
    rule = "sharding: {key: at, function: hash, databases: 1, tables: 2}"
    run = verified(rule, table="{table}_{t}")
    run.source("CREATE TABLE apart (id INT PRIMARY KEY, at INT)", "INSERT INTO apart VALUES (1, 1), (2, 5)")
    run.source("CREATE TABLE all_dates (id INT PRIMARY KEY, at DATETIME)", "INSERT INTO all_dates VALUES (1, NOW())")
    for table in ("apart", "all_dates"):
        run.into_two_shards(table, "CRC32(at) % 2")
    found = run.verify("all_dates", "apart")
    assert found["all_dates"].error is not None
    assert found["all_dates"].error.code == "config.table_rule"
    assert found["apart"].error is None
    assert found["apart"].equal


@FIRST_MARIADB
def test_a_row_in_the_wrong_shard_is_found(verified: Callable[..., Verified]) -> None:
    run = verified("sharding: {key: id, function: mod, databases: 1, tables: 2}", table="{table}_{t}")
    run.make("number", range(20))
    run.into_two_shards(by="MOD(id, 2)")
    assert run.verify("number")["number"].equal
    run.target(
        "INSERT INTO number_1 SELECT * FROM number_0 WHERE id IN (4, 6)", "DELETE FROM number_0 WHERE id = 4",
    )  # fmt: skip
    result = run.verify("number")["number"]
    assert [
        (finding.kind, finding.wrong, finding.key["id"], [name.rpartition("_")[2] for name in finding.shards])
        for finding in result.findings
    ] == [
        (DifferenceKind.DIFFERS, Wrong.TARGET, "4", ["1"]),
        (DifferenceKind.COPIES, Wrong.TARGET, "6", ["0", "1"]),
    ]


@FIRST_MARIADB
def test_rows_without_a_key_in_the_wrong_shard_are_found(verified: Callable[..., Verified]) -> None:
    """Of each row there are as many as the source has."""
    rule = "no_key: rows, sharding: {key: t, function: mod, databases: 1, tables: 2}"
    run = verified(rule, table="{table}_{t}")
    run.source(
        "CREATE TABLE number (id INT, t INT NOT NULL)",
        "INSERT INTO number VALUES (1, 0), (2, 1), (3, 0), (3, 0), (4, 1)",
    )
    run.into_two_shards()
    assert run.verify("number")["number"].equal
    run.target(
        "DELETE FROM number_0 WHERE id = 1", "DELETE FROM number_0 WHERE id = 3 LIMIT 1",
        "INSERT INTO number_1 VALUES (1, 0), (3, 0)",
    )  # fmt: skip
    run.source("DELETE FROM number WHERE id = 1", "INSERT INTO number VALUES (5, 1)")  # a lag
    result = run.verify("number")["number"]
    assert [(finding.kind, finding.wrong, finding.key["id"]) for finding in result.findings] == [
        (DifferenceKind.SURPLUS, Wrong.TARGET, "1"), (DifferenceKind.COPIES, Wrong.TARGET, "3"),
    ]  # fmt: skip
    assert (result.moving, result.unsettled) == (1, 0)


@FIRST_MARIADB
def test_a_row_that_a_run_is_moving_to_another_shard_is_no_difference(verified: Callable[..., Verified]) -> None:
    """It leaves one shard and comes to the other in two steps, in any order: meanwhile it is in both, or in none."""
    run = verified("sharding: {key: t, function: mod, databases: 1, tables: 2}", table="{table}_{t}")
    run.source(
        "CREATE TABLE number (id INT PRIMARY KEY, t INT NOT NULL)",
        "INSERT INTO number VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 1)",
    )
    run.into_two_shards()
    run.source("UPDATE number SET t = 3 WHERE id IN (1, 2)", "UPDATE number SET t = 2 WHERE id IN (3, 4)")
    run.target("INSERT INTO number_1 VALUES (1, 3)", "DELETE FROM number_0 WHERE id = 2")
    result = run.verify("number")["number"]
    assert (result.findings, result.unsettled, result.moving) == ((), 0, 4)
    run.target("INSERT INTO number_1 VALUES (2, 3)")  # one row more than the source has
    result = run.verify("number", mode=Mode.COUNT)["number"]
    assert (result.target_rows, result.found, result.moving) == (7, {}, 1)
    run.target("DELETE FROM number_0 WHERE id IN (3, 4)", "DELETE FROM number_1 WHERE id = 2")  # two less
    result = run.verify("number", mode=Mode.COUNT)["number"]
    assert (result.target_rows, result.found, result.moving) == (4, {}, 1)
    run.target("INSERT INTO number_0 VALUES (3, 0), (4, 0)")
    run.target(  # nothing moves these
        "DELETE FROM number_0 WHERE id = 3", "INSERT INTO number_1 VALUES (4, 2)", "INSERT INTO number_1 VALUES (5, 0)"
    )
    kinds = {"3": DifferenceKind.MISSING, "4": DifferenceKind.COPIES, "5": DifferenceKind.COPIES}
    assert {key["id"]: (kind, wrong) for kind, wrong, key, _ in run.found("number")} == {
        key: (kind, Wrong.TARGET) for key, kind in kinds.items()
    }
    run.consumed()  # by now the run has ended
    found = {key["id"]: (kind, wrong) for kind, wrong, key, _ in run.found("number")}
    kinds |= {"1": DifferenceKind.COPIES, "2": DifferenceKind.MISSING}
    assert found == {key: (kind, Wrong.TARGET) for key, kind in kinds.items()}


HASH = "CHAR(64) CHARACTER SET ascii COLLATE ascii_bin"


def filtered_and_masked(verified: Callable[..., Verified], kind: str = "VARCHAR(20)") -> Verified:
    """The table `number`, of which the target has the rows below 30 with a masked column, equal to the source."""
    run = verified(tables="rows: [{match: '.*', where: 'id < 30'}], columns: {mask: ['.*[.]v'], salt: env:SALT}")
    run.source(f"CREATE TABLE number (id INT PRIMARY KEY, v {kind}, at DATETIME)")
    run.fill(range(40))
    run.extract()
    run.target(
        f"CREATE TABLE number (id INT PRIMARY KEY, v {HASH}, at DATETIME)",
        f"INSERT INTO number SELECT id, SHA2(CONCAT('pepper', v), 256), at FROM {run.origin.name}.number WHERE id < 30",
    )
    run.consumed()
    return run


@FIRST_MYSQL
@pytest.mark.parametrize("kind", ["VARCHAR(20)", HASH])
def test_filters_and_masks_are_applied_to_what_is_expected(verified: Callable[..., Verified], kind: str) -> None:
    run = filtered_and_masked(verified, kind)
    assert run.verify("number")["number"].equal
    run.target("UPDATE number SET v = REPEAT('0', 64) WHERE id = 1", "INSERT INTO number VALUES (35, '', NULL)")
    result = run.verify("number")["number"]
    assert [(finding.kind, finding.key["id"], dict(finding.columns)) for finding in result.findings] == [
        (DifferenceKind.DIFFERS, "1", {"v": (None, None)}),
        (DifferenceKind.SURPLUS, "35", {}),
    ]


@FIRST_MARIADB
def test_a_target_of_other_types_charsets_and_collations_is_equal(verified: Callable[..., Verified]) -> None:
    run = verified()
    run.source(
        "CREATE TABLE number (name VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin PRIMARY KEY, n INT, "
        "d DECIMAL(10,2), f FLOAT, at DATETIME, t TIME, s SET('a','b'), z DATETIME, w SET('z','a','m'))",
        "SET SESSION sql_mode = ''",
        "INSERT INTO number VALUES ('A', 1, 1.50, 0.1, '2024-01-01', '-01:02:03', 'a,b', '0000-00-00', 'z,m'), "
        "('a', -1, -0.10, 16777216, '2024-01-01 00:00:01', '100:00:00', '', NULL, ''), "
        "('b', 2, 0, 0, NULL, NULL, NULL, NULL, NULL), "
        "('\u00e9 x', 0, 0, -0.0, NULL, NULL, 'b', '2024-00-00', 'z,a,m')",
    )
    run.extract()
    run.target(
        "CREATE TABLE number (name VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, n BIGINT, "
        "d DECIMAL(40,20), f DOUBLE, at DATETIME(6), t TIME(6), s SET('b','x','a'), z DATETIME(3), "
        "w VARCHAR(20) CHARACTER SET utf8mb4)",
        "SET SESSION sql_mode = ''",
        f"INSERT INTO number SELECT * FROM {run.origin.name}.number",
    )
    run.consumed()
    result = run.verify("number")["number"]
    assert result.error is None
    assert result.equal, result.findings
    run.target(
        "UPDATE number SET d = d + 0.00000001 WHERE n = 0", "UPDATE number SET z = NULL, w = 'm,z' WHERE n = 1",
        "UPDATE number SET w = 'x' WHERE n = -1",
    )  # fmt: skip
    assert sorted(columns for _, _, _, columns in run.found("number")) == [["d"], ["w"], ["z", "w"]]


def apply(run: Verified, chance: random.Random) -> None:
    """Applies what is staged to the target's table `number`, row by row, as runs would: late, and never all at once."""
    batches = list(run.meta.batches.find("shop"))
    batch_ids = {batch.batch_id for batch in batches}
    rows = table_state(
        run.store, [manifest for manifest in run.chain if manifest.batch_id in batch_ids], "number"
    ).to_pylist()
    with closing(run.origin.sql.connect(run.place, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM number")
        for (gone,) in set(cursor.fetchall()) - {(row["id"],) for row in rows}:
            cursor.execute(f"DELETE FROM number WHERE id = {gone}")
        for row in chance.sample(rows, len(rows)):
            cursor.execute("REPLACE INTO number VALUES (%s, %s, %s)", (row["id"], row["v"], row["at"]))
    run.meta.records.seed("copy", batches)


def under_load(passes: int) -> Iterator[int]:
    """At least so many; more until the time that the environment asks for has passed."""
    until_s = time.monotonic() + float(os.environ.get("LOCKSTEP_UNDER_LOAD_S", "0"))
    number = 0
    while number < passes or time.monotonic() < until_s:
        yield (number := number + 1)
    log.info("verified %d times", number)


@pytest.mark.parametrize("passes", [2, pytest.param(100, marks=[pytest.mark.matrix, pytest.mark.timeout(3600)])])
def test_writes_and_lag_are_no_differences_and_a_fault_is(
    verified: Callable[..., Verified], passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ranges of all sizes, of which the next one is read ahead. LOCKSTEP_UNDER_LOAD_S: for how many seconds."""
    run = verified()
    run.numbers(300)
    chance = random.Random(passes)
    sizes = random.Random(passes)
    monkeypatch.setattr(chunks, "chunk_rows", lambda size_bytes, row_bytes: sizes.choice([20, 60, 250, 10_000]))

    def write() -> None:
        with closing(run.origin.sql.connect(run.origin.name)) as connection, connection.cursor() as cursor:
            for _ in range(30):
                n, m = chance.randrange(600), chance.randrange(600)
                try:
                    cursor.execute(
                        chance.choice(
                            [
                                f"INSERT IGNORE INTO number VALUES ({n}, 'w{m}', NULL)",
                                f"UPDATE number SET v = 'w{m}' WHERE id = {n}",
                                f"DELETE FROM number WHERE id = {n} AND id > 3",
                                f"UPDATE IGNORE number SET id = {n} WHERE id = {m} AND id > 3",
                            ]
                        )
                    )
                    connection.commit()
                except pymysql.err.OperationalError:
                    connection.rollback()

    def copy() -> None:
        read(run, "number")
        stage(run)

    with beside(write, lambda: apply(run, random.Random(1)), copy):
        for _ in under_load(passes):
            result = run.verify("number")["number"]
            assert result.error is None
            assert (result.differences, result.unsettled) == (0, 0), result.findings
    apply(run, chance)
    run.target("UPDATE number SET v = 'fault' WHERE id = 2")
    assert [(wrong, key) for _, wrong, key, _ in run.found("number")] == [(Wrong.TARGET, {"id": "2"})]


@FIRST_MYSQL
def test_the_command_says_what_differs_and_keeps_evidence(shop: Verified) -> None:
    command = partial(shop, "verify")
    equal = command()
    assert (equal.code, equal.document["equal"], equal.document["tables"][0]["source_rows"]) == (0, True, 40)
    shop.target("UPDATE number SET v = 'fault' WHERE id = 2")
    shop.source("INSERT INTO number VALUES (77, 'later', NULL)")
    different = command("number")
    assert different.code == 4
    assert different.error["code"] == "verify.differs"
    (told,) = different.document["tables"]
    assert told["moving"] == 1
    assert [(finding["key"], finding["wrong"], finding["columns"]) for finding in told["findings"]] == [
        ({"id": "2"}, "target", {"v": {"source": "v2", "target": "fault"}})
    ]
    for_people = command("number", json=False)
    assert (for_people.code, "data at risk: 1 row of number differs." in for_people.err) == (4, True)
    assert different.error["remedy"].split(",")[0] in " ".join(for_people.err.split())
    different = command("number")
    at = Path(different.document["evidence"])
    assert json.loads(at.read_text())["tables"][0]["differences"] == {"target": 1}
    assert "fault" not in at.read_text(), "evidence has no values of rows"
    at.write_text(at.read_text().replace('"moving": 1', '"moving": 0'))
    damaged = shop("repair", "--dry-run", "--evidence", at.relative_to(shop.folder / "stage").as_posix())
    assert damaged.error["code"] == "verify.evidence"
    assert command("absent").error["code"] == "usage.unknown_name"


@FIRST_MARIADB
def test_of_two_verifiers_of_a_target_one_works(shop: Verified) -> None:
    with verifier_lease(shop.opened, "copy"):
        with raises(RetryLater, "lease.held"), verifier_lease(shop.opened, "copy"):
            pass
        with verifier_lease(shop.opened, "other"):
            pass
    with verifier_lease(shop.opened, "copy"):
        pass


@FIRST_MYSQL
def test_without_an_extraction_rows_that_differ_are_not_judged(shop: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "extract_if_free", lambda *_: False)
    shop.source("UPDATE number SET v = 'later' WHERE id = 1")
    result = shop.verify(wait_s=0.0)["number"]
    assert result.error is not None
    assert result.error.code == "stage.behind"
    assert not result.equal


@FIRST_MARIADB
def test_rows_that_were_never_staged_are_judged_as_far_as_that_goes(verified: Callable[..., Verified]) -> None:
    run = verified()
    run.make("number", range(5))
    run.begin_now()
    run.load("number")
    run.target("UPDATE number SET v = 'own' WHERE id IN (1, 2)")
    run.source("UPDATE number SET v = 'later' WHERE id IN (2, 3)")
    result = run.verify("number")["number"]
    assert [(finding.key["id"], finding.wrong) for finding in result.findings] == [("1", Wrong.UNKNOWN)]
    assert (result.moving, result.unsettled) == (1, 1)  # what row 2 was before its change, the target never had
    assert not result.equal


@FIRST_MYSQL
def test_the_first_change_of_a_row_that_was_never_staged_says_what_it_was(verified: Callable[..., Verified]) -> None:
    """As of the tables that an application was led to: a way back begins without a copy."""
    run = verified()
    run.make("number", range(8))
    run.begin_now()
    run.load("number")
    run.source(
        "UPDATE number SET v = 'later' WHERE id = 3",
        "UPDATE number SET v = 'latest' WHERE id = 3",
        "UPDATE number SET id = 30 WHERE id = 4",
        "DELETE FROM number WHERE id = 5",
        "INSERT INTO number VALUES (6000, 'new', NULL)",
    )
    result = run.verify("number")["number"]
    assert (result.error, result.findings, result.moving, result.unsettled) == (None, (), 5, 0)


@FIRST_MYSQL
def test_several_tables_that_feed_one_and_one_that_feeds_two_are_verified(verified: Callable[..., Verified]) -> None:
    run = verified()
    run.joined(range(20), range(100, 120))
    run.load("all_a", "all_b")
    assert {name: table.equal for name, table in run.verify().items()} == {"all": True, "all_a": True, "all_b": True}
    run.target("DELETE FROM `all` WHERE id = 105", "UPDATE all_a SET v = 'fault' WHERE id = 3")
    run.source("UPDATE all_b SET v = 'later' WHERE id = 107")
    result = run.verify()
    assert {
        name: [(finding.kind, finding.wrong, finding.key["id"]) for finding in found.findings]
        for name, found in result.items()
    } == {
        "all": [(DifferenceKind.MISSING, Wrong.TARGET, "105")],
        "all_a": [(DifferenceKind.DIFFERS, Wrong.TARGET, "3")],
        "all_b": [],
    }
    assert (result["all"].moving, result["all_a"].moving, result["all_b"].moving) == (1, 0, 1)


@pytest.mark.parametrize("rule", ["", "shared_keys: newest"])
@FIRST_MARIADB
def test_a_row_that_no_change_explains_is_found_where_another_table_has_its_key(
    verified: Callable[..., Verified], rule: str
) -> None:
    run = verified(rule)
    run.source(
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in ("all_a", "all_b")),
        "INSERT INTO all_a VALUES (1, 1), (2, 1), (3, 1)",
        "INSERT INTO all_b VALUES (4, 1)",
    )
    run.extract()
    run.target(
        "CREATE TABLE `all` (id INT PRIMARY KEY, v INT)", "INSERT INTO `all` VALUES (1, 1), (2, 1), (3, 1), (4, 1)"
    )
    run.consumed()
    assert run.verify("all")["all"].equal
    run.source("INSERT INTO all_b VALUES (1, 2)")  # the target has not applied it
    run.unlogged("INSERT INTO all_b VALUES (2, 2)")
    result = run.verify("all")["all"]
    assert [(finding.wrong, finding.key["id"], finding.source_rows) for finding in result.findings] == [
        (Wrong.STAGE, "2", 2)
    ]
    assert (result.moving, result.unsettled) == (1, 0)


@FIRST_MARIADB
def test_a_table_that_is_altered_while_it_is_read_does_not_count_as_equal(
    shop: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "chunk_rows", lambda size_bytes, row_bytes: 7)

    def alter(table: str, side: str, rows: int) -> None:
        if side == "source" and rows == 7:
            shop.source("ALTER TABLE number ADD COLUMN extra INT")

    result = shop.verify("number", report=alter)["number"]
    assert result.error is not None
    assert result.error.code == "table.redefined"
    assert not result.equal


@FIRST_MYSQL
def test_rows_that_were_written_under_an_older_definition_accuse_nobody_wrongly(shop: Verified) -> None:
    shop.source("ALTER TABLE number ADD COLUMN extra INT NULL")
    shop.target("ALTER TABLE number ADD COLUMN extra INT NULL")
    shop.extract()
    shop.consumed()
    assert shop.verify("number")["number"].equal
    shop.source("UPDATE number SET extra = 5 WHERE id = 1")
    result = shop.verify("number")["number"]
    assert result.error is None
    # No older staged row says what `extra` was; the change does.
    assert (result.differences, result.unsettled, result.moving) == (0, 0, 1)
    shop.load("number")
    shop.source("UPDATE number SET extra = 6 WHERE id = 1")
    result = shop.verify("number")["number"]
    assert (result.differences, result.unsettled, result.moving) == (0, 0, 1)
