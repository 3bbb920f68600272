"""A table of the target that cannot be compared is named and is never equal, whatever the source made of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc_core.errors import Refused
from cdc_core.meta import Meta
from cdc_core.operations.cutover.proof import prover
from cdc_core.operations.verify import evidence
from cdc_core.operations.verify.verifier import verify
from cdc_core.operations.verify.verify_job import VerifyJob
from tests.integration.test_verify import FIRST_MARIADB, FIRST_MYSQL, Verified, numbers, verified
from tests.lab.forked_commands import ForkedCommands
from tests.lab.opened import opened

__all__ = ["verified"]

ONLY_MARIADB = pytest.mark.parametrize("any_server", ["mariadb"], indirect=True)
ISOLATE = "on_unreadable: isolate, on_unlogged_change: record"


def job_of(run: Verified, meta: Meta) -> VerifyJob:
    pipeline = run.line.pipeline
    return VerifyJob(opened(pipeline, meta, run.environ), pipeline.targets[0])


@ONLY_MARIADB
def test_a_table_that_became_system_versioned_is_named_and_its_stale_rows_are_not_equal(
    verified: Callable[..., Verified], commands: ForkedCommands
) -> None:
    run = verified(tables=ISOLATE)
    numbers(run)
    numbers(run, table="other")
    assert all(one.equal for one in run.verify().values())
    run.source("ALTER TABLE number ADD SYSTEM VERSIONING", "UPDATE number SET v = 'stale' WHERE id = 3")
    run.drain()

    done = commands.run("verify", "shop.yaml", "--json", directory=run.line.folder, environ=run.environ)
    assert (done.code, done.document["equal"]) == (3, False)
    of = {one["table"]: one for one in done.document["tables"]}
    assert {name: one["verdict"] for name, one in of.items()} == {"number": "not compared", "other": "equal"}
    assert of["number"]["error"]["code"] == "verify.not_comparable"
    assert "system-versioned" in of["number"]["error"]["what"]

    shown = commands.run("verify", "shop.yaml", "--show", "--json", directory=run.line.folder, environ=run.environ)
    assert (shown.document["equal"], shown.document["all_tables"]) == (False, False)
    for mode in ("count", "random"):
        counted = commands.run(
            "verify", "shop.yaml", "number", "--mode", mode, "--json", directory=run.line.folder, environ=run.environ
        )
        assert (counted.code, counted.error["code"]) == (3, "verify.not_comparable")

    with (
        Meta.open(run.line.pipeline.meta.url, run.line.pipeline.pipeline) as meta,
        pytest.raises(Refused) as refused,
        prover(job_of(run, meta)),
    ):
        pass
    assert refused.value.code == "verify.not_comparable"


@ONLY_MARIADB
def test_of_several_source_tables_one_that_cannot_be_read_leaves_their_target_uncompared(
    verified: Callable[..., Verified], commands: ForkedCommands
) -> None:
    run = verified(tables=ISOLATE)
    for name, first in (("all_a", 0), ("all_b", 100)):
        run.source(f"CREATE TABLE {name} (id INT PRIMARY KEY)", f"INSERT INTO {name} VALUES ({first}), ({first + 1})")
    run.drain()
    run.target("CREATE TABLE `all` (id INT PRIMARY KEY)", "INSERT INTO `all` VALUES (0), (1), (100), (101)")
    for name, first in (("all_a", 0), ("all_b", 100)):
        run.target(f"CREATE TABLE {name} (id INT PRIMARY KEY)", f"INSERT INTO {name} VALUES ({first}), ({first + 1})")
    run.consumed()
    assert all(one.equal for one in run.verify().values())
    run.target("DELETE FROM `all` WHERE id = 100")

    def command(name: str, *arguments: str) -> int:
        return commands.run(name, "shop.yaml", *arguments, directory=run.line.folder, environ=run.environ).code

    assert command("verify") == 4  # its finding is kept
    run.source("ALTER TABLE all_b ADD SYSTEM VERSIONING")
    found = run.verify()
    assert {name: one.error.code if one.error else "" for name, one in found.items()} == {
        "all": "verify.not_comparable", "all_a": "", "all_b": "verify.not_comparable",
    }  # fmt: skip
    # The table that can be read does not have the row: a repair must not take that for an answer.
    assert command("repair", "--stage-only") == 3


@FIRST_MYSQL
def test_a_table_that_can_never_be_captured_is_named_also_where_the_target_does_not_have_it(
    verified: Callable[..., Verified],
) -> None:
    run = verified(tables=ISOLATE)
    numbers(run)
    run.source(
        "CREATE TABLE part (id INT PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TABLE united (id INT NOT NULL, INDEX (id)) ENGINE=MERGE UNION=(part)",
    )
    run.drain()
    found = run.verify()
    assert found["number"].equal
    assert found["united"].error is not None
    assert found["united"].error.code == "verify.not_comparable"


@FIRST_MARIADB
def test_rows_of_a_table_that_the_source_has_dropped_are_not_equal_until_they_are_gone(
    verified: Callable[..., Verified],
) -> None:
    run = verified()
    numbers(run)
    numbers(run, table="other")
    run.source("DROP TABLE number")
    run.drain()
    run.consumed()

    def said() -> dict[str, str]:
        return {name: one.error.code if one.error else "" for name, one in run.verify().items()}

    assert said() == {"number": "verify.source_gone", "other": ""}
    with Meta.open(run.line.pipeline.meta.url, run.line.pipeline.pipeline) as meta:
        job = job_of(run, meta)
        found = verify(job)
        document = evidence.document_of(job, found, ended_us=meta.now_us())
    assert (document["equal"], document["all_tables"]) == (False, False)
    run.target("DELETE FROM number")
    assert said() == {"other": ""}
    run.target("INSERT INTO number VALUES (1, 'x', NULL)")
    assert said() == {"number": "verify.source_gone", "other": ""}
    run.target("DROP TABLE number")
    assert said() == {"other": ""}


@FIRST_MARIADB
def test_a_table_that_the_pipeline_leaves_out_is_not_compared_and_nobody_asks_for_it(
    verified: Callable[..., Verified],
) -> None:
    run = verified()
    numbers(run)
    numbers(run, table="other")
    run.line.change(tables=f"exclude: ['{run.line.origin.name}[.]number']")
    run.source("DROP TABLE number")
    run.drain()
    assert {name: one.equal for name, one in run.verify().items()} == {"other": True}


@FIRST_MARIADB
def test_where_no_table_can_be_compared_nothing_is_proven(
    verified: Callable[..., Verified], commands: ForkedCommands
) -> None:
    run = verified()
    numbers(run)
    run.change_target(tables={"absent_table": {"database": run.place}})
    done = commands.run("verify", "shop.yaml", "--json", directory=run.line.folder, environ=run.environ)
    assert (done.code, done.error["code"]) == (3, "config.no_match")
    shown = commands.run("verify", "shop.yaml", "--show", "--json", directory=run.line.folder, environ=run.environ)
    assert shown.error["code"] == "verify.no_evidence"
