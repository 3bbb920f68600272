"""A table of the target that cannot be compared is named and is never equal, whatever the source made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from cdc_core.errors import Refused
from cdc_core.operations.cutover.proof import prover
from cdc_core.operations.verify import evidence
from cdc_core.operations.verify.verifier import verify
from tests.integration.one_server import FIRST_MARIADB, FIRST_MYSQL, ON_MARIADB
from tests.lab.refusals import raises
from tests.lab.verified import Verified

ISOLATE = "on_unreadable: isolate, on_unlogged_change: record"


@ON_MARIADB
def test_a_table_that_became_system_versioned_is_named_and_its_stale_rows_are_not_equal(
    verified: Callable[..., Verified],
) -> None:
    run = verified(tables=ISOLATE)
    run.numbers()
    run.numbers(table="other")
    assert all(result.equal for result in run.verify().values())
    run.source("ALTER TABLE number ADD SYSTEM VERSIONING", "UPDATE number SET v = 'stale' WHERE id = 3")
    run.extract()

    done = run("verify")
    assert (done.code, done.document["equal"]) == (3, False)
    of = {table["table"]: table for table in done.document["tables"]}
    assert {name: document["verdict"] for name, document in of.items()} == {"number": "not compared", "other": "equal"}
    assert of["number"]["error"]["code"] == "verify.not_comparable"
    assert "system-versioned" in of["number"]["error"]["what"]

    kept = json.loads(Path(done.document["evidence"]).read_text())
    assert (kept["equal"], kept["all_tables"]) == (False, False)
    for mode in ("count", "random"):
        counted = run("verify", "number", "--mode", mode)
        assert (counted.code, counted.error["code"]) == (3, "verify.not_comparable")

    with raises(Refused, "verify.not_comparable"), prover(run.job()):
        pass


@ON_MARIADB
def test_of_several_source_tables_one_that_cannot_be_read_leaves_their_target_uncompared(
    verified: Callable[..., Verified],
) -> None:
    run = verified(tables=ISOLATE)
    for name, first in (("all_a", 0), ("all_b", 100)):
        run.source(f"CREATE TABLE {name} (id INT PRIMARY KEY)", f"INSERT INTO {name} VALUES ({first}), ({first + 1})")
    run.extract()
    run.target("CREATE TABLE `all` (id INT PRIMARY KEY)", "INSERT INTO `all` VALUES (0), (1), (100), (101)")
    for name, first in (("all_a", 0), ("all_b", 100)):
        run.target(f"CREATE TABLE {name} (id INT PRIMARY KEY)", f"INSERT INTO {name} VALUES ({first}), ({first + 1})")
    run.consumed()
    assert all(result.equal for result in run.verify().values())
    run.target("DELETE FROM `all` WHERE id = 100")

    assert run("verify").code == 4  # its finding is kept
    run.source("ALTER TABLE all_b ADD SYSTEM VERSIONING")
    found = run.verify()
    assert {name: result.error.code if result.error else "" for name, result in found.items()} == {
        "all": "verify.not_comparable", "all_a": "", "all_b": "verify.not_comparable",
    }  # fmt: skip
    # The table that can be read does not have the row: a repair must not take that for an answer.
    assert run("repair", "--stage-only").code == 3


@FIRST_MYSQL
def test_a_table_that_can_never_be_captured_is_named_also_where_the_target_does_not_have_it(
    verified: Callable[..., Verified],
) -> None:
    run = verified(tables=ISOLATE)
    run.numbers()
    run.source(
        "CREATE TABLE part (id INT PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TABLE united (id INT NOT NULL, INDEX (id)) ENGINE=MERGE UNION=(part)",
    )
    run.extract()
    found = run.verify()
    assert found["number"].equal
    assert found["united"].error is not None
    assert found["united"].error.code == "verify.not_comparable"


@FIRST_MARIADB
def test_rows_of_a_table_that_the_source_has_dropped_are_not_equal_until_they_are_gone(shop: Verified) -> None:
    shop.numbers(table="other")
    shop.source("DROP TABLE number")
    shop.extract()
    shop.consumed()

    def said() -> dict[str, str]:
        return {name: result.error.code if result.error else "" for name, result in shop.verify().items()}

    assert said() == {"number": "verify.source_gone", "other": ""}
    job = shop.job()
    found = verify(job)
    document = evidence.document_of(job, found, ended_us=shop.meta.now_us())
    assert (document["equal"], document["all_tables"]) == (False, False)
    shop.target("DELETE FROM number")
    assert said() == {"other": ""}
    shop.target("INSERT INTO number VALUES (1, 'x', NULL)")
    assert said() == {"number": "verify.source_gone", "other": ""}
    shop.target("DROP TABLE number")
    assert said() == {"other": ""}


@FIRST_MARIADB
def test_a_table_that_the_pipeline_leaves_out_is_not_compared_and_nobody_asks_for_it(shop: Verified) -> None:
    shop.numbers(table="other")
    shop.change(tables=f"exclude: ['{shop.origin.name}[.]number']")
    shop.source("DROP TABLE number")
    shop.extract()
    assert {name: result.equal for name, result in shop.verify().items()} == {"other": True}


@FIRST_MARIADB
def test_where_no_table_can_be_compared_nothing_is_proven(shop: Verified) -> None:
    shop.change_target(tables={"absent_table": {"database": shop.place}})
    done = shop("verify")
    assert (done.code, done.error["code"]) == (3, "config.no_match")
    assert not list(shop.folder.glob("stage/evidence/**/*.json"))
