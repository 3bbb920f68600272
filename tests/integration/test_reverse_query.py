"""Reverse queries: what a run takes is never older than the source's row, and the stage alone tells it."""

from __future__ import annotations

import math
import random
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from cdc_core.meta.batches import Batches
from cdc_core.meta.copied_batches import CopiedBatches
from cdc_core.operations.check import check
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.copy.steps import copied_since
from cdc_core.operations.extract import side_by_side
from cdc_core.operations.repair.reverse_query import Queried, look_up
from cdc_core.operations.verify import source_rows
from cdc_core.stage import manifest as manifests
from tests.integration.one_server import FIRST_MARIADB, FIRST_MYSQL
from tests.integration.test_repair import KEYS
from tests.lab.copying import at_source, in_stage, is_equal
from tests.lab.shell import export
from tests.lab.verified import Verified

FLOATING = {
    "f": "FLOAT", "dd": "DOUBLE", "fd": "FLOAT(12,3)", "ddd": "DOUBLE(20,4)", "fu": "FLOAT UNSIGNED",
    "du": "DOUBLE UNSIGNED",
}  # fmt: skip
"""By name: types of keys. What a server makes of a value that does not fit, it keeps."""


def configured(run: Verified, *, text: str = "older_than: 1s") -> Verified:
    run.change(reverse_query=text)
    return run


def queried(
    run: Verified, *, extract_on: Callable[[str], object] | None = None, later_s: float = 2.0, **environ: str
) -> Queried:
    """What is staged and old by then is looked up some seconds later."""
    with pytest.MonkeyPatch.context() as patch:
        now_us = run.meta.now_us
        patch.setattr(run.meta, "now_us", lambda: now_us() + int(later_s * 1e6))
        if extract_on is not None:
            patch.setattr(side_by_side, "extract_if_free", lambda _, source: extract_on(source) or True)
        ready = run.opened
        export(environ)
        return look_up(ready, ["copy"])


def claimed(run: Verified) -> list[int]:
    """Rows of each claim of a reverse query."""
    chunks = [chunk for batch in run.chain for chunk in batch.chunks]
    assert all(chunk.by_key for chunk in chunks if chunk.queried)
    return [chunk.rows for chunk in chunks if chunk.queried]


@FIRST_MYSQL
def test_old_changes_that_no_target_has_become_the_rows_of_the_source_and_are_asked_for_once(
    verified: Callable[..., Verified],
) -> None:
    run = configured(verified())
    run.numbers(8)
    assert queried(run) == Queried()  # every target has them
    run.source("UPDATE number SET v = 'logged' WHERE id IN (1, 2, 3)", "UPDATE number SET id = 70 WHERE id = 4",
               "DELETE FROM number WHERE id = 5", "INSERT INTO number VALUES (80, 'logged', NULL)")  # fmt: skip
    run.extract()
    run.unlogged(
        "UPDATE number SET v = 'silent' WHERE id = 2", "DELETE FROM number WHERE id IN (3, 80)",
        "INSERT INTO number VALUES (5, 'silent', NULL)", "UPDATE number SET v = 'not asked for' WHERE id = 6",
    )  # fmt: skip
    done = queried(run)
    assert (done.keys, done.rows, done.deletes, done.error) == (7, 4, 3, None), done  # 1, 2, 5, 70; 3, 4, 80
    assert claimed(run) == [7]
    expected = {row[0]: row[1] for row in at_source(run, "number")}
    assert {row[0]: row[1] for row in in_stage(run, "number")} == expected | {6: "v6"}
    again = queried(run)
    assert (again.keys, again.batches) == (0, ())
    run.source("UPDATE number SET v = 'later' WHERE id = 2")
    run.extract()
    assert queried(run).keys == 1
    assert run.meta.copied.repaired("shop", 1e6) == 0  # the limit of repairs is not spent
    before = {batch.batch_id for batch in run.meta.batches.find("shop")}
    run.lose_meta()
    run.rebuild()
    assert {batch.batch_id for batch in run.meta.batches.find("shop")} == before
    assert run.meta.copied.repaired("shop", 1e6) == 0
    assert manifests.verify(run.store, "shop", deep=True) == []


@FIRST_MARIADB
def test_an_answer_is_not_taken_for_a_copy_of_its_table(verified: Callable[..., Verified]) -> None:
    """A run of the snapshot DAG would leave out tables that were copied since it was asked for."""
    run = configured(verified())
    run.numbers(5)
    run.source("UPDATE number SET v = 'logged' WHERE id = 1")
    run.extract()
    assert queried(run).rows == 1
    assert copied_since(run.opened, "shop", 0) == frozenset()


@FIRST_MARIADB
def test_definitions_that_meta_lacks_are_read_from_the_manifests(verified: Callable[..., Verified]) -> None:
    run = configured(verified())
    run.numbers(5)
    run.source("UPDATE number SET v = 'logged' WHERE id = 1")
    run.extract()
    with closing(sqlite3.connect(run.folder / "meta.db")) as meta, meta:
        meta.execute("DELETE FROM schema_version")
    done = queried(run)
    assert (done.rows, done.error) == (1, None)


@pytest.mark.matrix
@FIRST_MARIADB
def test_what_is_not_old_is_applied_as_it_was_logged(verified: Callable[..., Verified]) -> None:
    run = configured(verified(), text="older_than: 1h")
    run.numbers(5)
    run.source("UPDATE number SET v = 'logged' WHERE id = 1")
    run.source("SET SESSION timestamp = UNIX_TIMESTAMP() - 7200", "UPDATE number SET v = 'old' WHERE id = 2")
    run.extract()
    done = queried(run)
    assert (done.keys, done.rows, claimed(run)) == (1, 1, [1])


@FIRST_MYSQL
def test_what_the_source_writes_while_it_is_asked_is_newer_than_the_answer(
    verified: Callable[..., Verified], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = configured(verified())
    run.numbers(8)
    run.source("UPDATE number SET v = 'logged' WHERE id < 6", "DELETE FROM number WHERE id = 6")
    run.extract()
    pending = ["UPDATE number SET v = 'later' WHERE id = 3", "DELETE FROM number WHERE id = 4",
               "INSERT INTO number VALUES (6, 'later', NULL)"]  # fmt: skip
    after = ["UPDATE number SET v = 'latest' WHERE id IN (3, 5)"]
    high_of = source_rows.high_of

    def written(*arguments: Any) -> Any:
        while pending:
            run.source(pending.pop())
        return high_of(*arguments)

    def extract_on(_: str) -> None:
        while after:
            run.source(after.pop())
        run.extract()

    monkeypatch.setattr(source_rows, "high_of", written)
    done = queried(run, extract_on=extract_on)
    assert (done.error, pending, after, claimed(run)) == (None, [], [], [7])
    run.extract()
    is_equal(run, "number")


@pytest.mark.matrix
@FIRST_MYSQL
def test_no_row_that_is_there_is_taken_for_a_missing_one_whatever_its_key(verified: Callable[..., Verified]) -> None:
    run = configured(verified())
    zone = "SET SESSION sql_mode = '', time_zone = '+00:00'"
    for name, (kind, first, second, third) in KEYS.items():
        create = f"CREATE TABLE k_{name} (id {kind} NOT NULL, v VARCHAR(9), PRIMARY KEY (id))"
        run.source(create, zone, f"INSERT IGNORE INTO k_{name} VALUES ({first}, 'a'), ({second}, 'b'), ({third}, 'c')")
    run.extract()
    done = queried(run)
    assert (done.error, done.deletes) == (None, 0), done
    assert done.left_out == {}
    assert done.rows == done.keys == sum(len(at_source(run, f"k_{name}")) for name in KEYS)


def floats(seed: int, count: int) -> list[float]:
    """Of all magnitudes, singles among them, and those at which printing and rounding are hardest."""
    chance = random.Random(seed)
    found = [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072009e-308, 2.2250738585072014e-308, 1.7976931348623157e308]
    found += [2.0**-149, 2.0**-126, 2.0**-126 - 2.0**-149, (2 - 2.0**-23) * 2.0**127, 1e22, 1e23, 9007199254740993.0]
    for _ in range(count):
        kind, bits = chance.randrange(6), chance.getrandbits(64)
        (single,) = struct.unpack("<f", (bits & 0xFFFFFFFF).to_bytes(4, "little"))
        (double,) = struct.unpack("<d", bits.to_bytes(8, "little"))
        subnormal = (bits & (1 << 52) - 1) * 5e-324
        power = 2.0 ** chance.randrange(-149, 128)
        at_power = chance.choice((power, math.nextafter(power, 0), power * (1 + 2.0**-23), power * (1 - 2.0**-24)))
        rounded = round(chance.uniform(-1e6, 1e6), chance.randrange(7))
        found.append((single, double, subnormal, at_power, rounded, (bits & 0x7FFFFF) * 2.0**-149)[kind])
    return [number for number in found if math.isfinite(number)]


@pytest.mark.parametrize(("seed", "count"), [(1, 600), pytest.param(2, 12_000, marks=pytest.mark.matrix)])
def test_a_row_is_found_by_any_float_that_the_log_has_of_its_key(
    verified: Callable[..., Verified], seed: int, count: int
) -> None:
    """A row that is not found would be deleted."""
    run = configured(verified())
    literals = [f"{number!r}" if "e" in f"{number!r}" else f"{number!r}e0" for number in floats(seed, count)]
    for name, kind in FLOATING.items():
        run.source(
            f"CREATE TABLE alone_{name} (id {kind} NOT NULL, PRIMARY KEY (id))",
            f"CREATE TABLE both_{name} (n INT NOT NULL, id {kind} NOT NULL, PRIMARY KEY (id, n))",
        )
        for at in range(0, len(literals), 2000):
            some = literals[at : at + 2000]
            alone = ", ".join(f"({text})" for text in some)
            both = ", ".join(f"({n}, {text})" for n, text in enumerate(some))
            run.source(
                "SET SESSION sql_mode = ''",
                f"INSERT IGNORE INTO alone_{name} VALUES {alone}", f"INSERT IGNORE INTO both_{name} VALUES {both}",
            )  # fmt: skip
    run.extract()
    done = queried(run)
    tables = [f"{shape}_{name}" for shape in ("alone", "both") for name in FLOATING]
    assert (done.error, done.left, done.left_out) == (None, 0, {}), done
    assert done.rows == done.keys == sum(len(at_source(run, table)) for table in tables)
    # MariaDB 11.8 prints no negative zero, so that the key which the log has becomes a delete beside its row.
    for table in tables:
        assert len(in_stage(run, table)) == len(at_source(run, table))


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_a_float_that_changed_its_sign_of_zero_alone_is_still_there(
    verified: Callable[..., Verified], kind: str
) -> None:
    run = configured(verified())
    run.source(f"CREATE TABLE signed (id {kind} PRIMARY KEY, v INT)", "INSERT INTO signed VALUES (-0e0, 1), (2, 2)",
               "UPDATE signed SET id = 0e0 WHERE id = 0e0")  # fmt: skip
    run.extract()
    done = queried(run)
    assert (done.error, done.rows) == (None, 2), done
    assert sorted(map(str, in_stage(run, "signed"))) == sorted(map(str, at_source(run, "signed")))


@pytest.mark.matrix
@FIRST_MYSQL
def test_a_key_that_changed_its_case_alone_is_still_there(verified: Callable[..., Verified]) -> None:
    run = configured(verified())
    run.source("CREATE TABLE cased (id VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT)",
               "INSERT INTO cased VALUES ('a', 1), ('b', 2)", "UPDATE cased SET id = 'A' WHERE id = 'a'")  # fmt: skip
    run.extract()
    done = queried(run)
    assert (done.error, done.rows) == (None, 2), done
    assert sorted(in_stage(run, "cased")) == sorted(at_source(run, "cased")) == [("A", 1), ("b", 2)]


@FIRST_MARIADB
def test_no_delete_is_staged_by_a_key_by_which_a_target_does_not_know_its_rows(
    verified: Callable[..., Verified],
) -> None:
    run = configured(verified("key: [email]"))
    run.source("CREATE TABLE person (id INT PRIMARY KEY, email VARCHAR(20) NOT NULL)",
               "INSERT INTO person VALUES (1, 'a'), (2, 'b')")  # fmt: skip
    run.load("person")
    run.source("UPDATE person SET email = 'c' WHERE id = 1", "DELETE FROM person WHERE id = 2")
    run.extract()
    done = queried(run)
    assert (done.keys, done.deletes, done.error) == (0, 0, None), done
    assert "other columns (email)" in done.left_out["person"]
    assert claimed(run) == []


@FIRST_MARIADB
def test_what_cannot_be_asked_for_is_applied_as_it_was_logged_and_said(verified: Callable[..., Verified]) -> None:
    run = verified(tables="columns: {mask: ['.*masked[.]id'], salt: env:SALT}")
    configured(run, text="older_than: 1s, max_keys: 3, wait_s: 2")
    run.source("CREATE TABLE masked (id VARCHAR(20) PRIMARY KEY)", "INSERT INTO masked VALUES ('a')",
               "CREATE TABLE bare (id INT)", "INSERT INTO bare VALUES (1)")  # fmt: skip
    run.numbers(5)
    run.source("UPDATE number SET v = 'logged'", "INSERT INTO masked VALUES ('b')", "INSERT INTO bare VALUES (1)")
    run.extract()
    nobody = run.environ["SOURCE"].rpartition(":")[0] + ":1"
    done = queried(run, SOURCE=nobody)
    assert done.error is not None
    assert ("applied as they were logged" in " ".join(done.notes), claimed(run)) == (True, [])
    with copier_lease(run.opened, "shop"):
        found = queried(run)
    assert getattr(found.error, "code", "") == "lease.held"
    run.meta.copies.pause("shop", "me")
    found = queried(run)
    assert getattr(found.error, "code", "") == "snapshot.paused"
    run.meta.copies.resume("shop")
    done = queried(run)
    assert (done.keys, done.rows, done.left, done.error) == (3, 3, 2, None)
    assert set(done.left_out) == {"masked", "bare"}
    rest = queried(run)  # those that were looked up are not asked for again
    assert (rest.keys, rest.left) == (2, 0)


@pytest.mark.parametrize(
    ("owner", "name", "when"),
    [
        pytest.param(CopiedBatches, "decide", "before", marks=pytest.mark.matrix),
        (CopiedBatches, "decide", "after"),
        pytest.param(Batches, "record_copied", "before", marks=pytest.mark.matrix),
        pytest.param(Batches, "record_copied", "after", marks=pytest.mark.matrix),
    ],
)
@FIRST_MARIADB
def test_killed_at_a_durable_step_it_continues_and_nothing_is_staged_twice(
    verified: Callable[..., Verified], monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: str
) -> None:
    run = configured(verified())
    run.numbers(5)
    run.source("UPDATE number SET v = 'logged' WHERE id < 3")
    run.extract()
    run.unlogged("UPDATE number SET v = 'silent' WHERE id = 1")
    with monkeypatch.context() as patch:
        step = getattr(owner, name)

        def killed(*arguments: Any, **named: Any) -> None:
            if when == "after":
                step(*arguments, **named)
            raise KeyboardInterrupt

        patch.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            queried(run)
    queried(run)
    queried(run)
    assert run.meta.copied.decided("shop") == ()
    assert claimed(run) == [3]
    is_equal(run, "number")
    assert manifests.verify(run.store, "shop", deep=True) == []


@pytest.mark.matrix
@pytest.mark.spark
def test_a_run_writes_the_rows_that_the_source_has_and_its_ledger_adds_up(verified: Callable[..., Verified]) -> None:
    run = configured(verified())
    run.numbers(9)
    run.ok("run")
    run.source("UPDATE number SET v = 'logged' WHERE id < 4", "DELETE FROM number WHERE id = 5")
    run.extract()
    run.unlogged("UPDATE number SET v = 'silent' WHERE id = 2", "DELETE FROM number WHERE id = 3")
    time.sleep(1.1)
    done = run.ok("run")
    assert done["reverse_query"]["keys"] == 5
    assert all(entry["problems"] == [] for entry in done["ledgers"])
    assert run.rows("number") == sorted(at_source(run, "number"))
    assert run.ok("verify")["equal"] is True
    assert run.ok("run")["reverse_query"]["keys"] == 0


@FIRST_MARIADB
def test_check_names_the_tables_that_the_account_may_not_read(verified: Callable[..., Verified]) -> None:
    run = configured(verified())
    name = run.origin.name
    run.source("CREATE TABLE open (id INT PRIMARY KEY, v INT)", "CREATE TABLE shut (id INT PRIMARY KEY, v INT)")
    run.origin.execute_on_server(
        f"CREATE USER reading_{name}@'%' IDENTIFIED BY 'secret'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reading_{name}@'%'",
        f"GRANT SELECT ON {name}.open TO reading_{name}@'%'", f"GRANT SELECT (id) ON {name}.shut TO reading_{name}@'%'",
    )  # fmt: skip
    try:
        place = run.environ["SOURCE"].rpartition("@")[2]
        export({**run.environ, "SOURCE": f"mysql://reading_{name}:secret@{place}"})
        report = check(run.pipeline)
        (found,) = [finding for finding in report.findings if "reverse query" in finding.subject]
        assert (found.status, f"{name}.shut" in found.what, f"{name}.open" in found.what) == ("warn", True, False)
    finally:
        run.origin.execute_on_server(f"DROP USER reading_{name}@'%'")
