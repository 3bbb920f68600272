"""`lockstep forget` on real servers: canaries in every column of a row, and then nowhere."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from itertools import chain
from typing import Any

import pytest

from cdc_core.errors import DataAtRisk
from cdc_core.operations.lake.maintain import maintain
from cdc_core.stage.cuts import newest_first
from tests.integration.test_canaries import seen, written
from tests.lab.verified import Verified

CANARY, LAKE = "c4n4ry", "lake"
OLD, NEW = f"{CANARY}-old@example.org", f"{CANARY}-new@example.org"


def live(run: Verified) -> None:
    """Rows that were copied, changed, set aside by the target, and found to differ; then one person is deleted."""
    with_lake(run)
    columns = "email VARCHAR(60), part INT, note VARCHAR(60), PRIMARY KEY (email, part)"
    run.source(f"CREATE TABLE people ({columns})")
    run.target(f"CREATE TABLE people ({columns}, CONSTRAINT short CHECK (note <> '{CANARY}-refused'))")
    run.source(
        f"INSERT INTO people VALUES ('{OLD}', 1, '{CANARY}-copied')",
        "INSERT INTO people VALUES ('a@example.org', 1, 'a'), ('b@example.org', 2, 'b')",
    )
    run.extract()
    run.ok("snapshot", f"{run.origin.name}.people")
    run.ok("run")
    run.source(
        f"UPDATE people SET note = '{CANARY}-changed' WHERE email = '{OLD}'",
        "UPDATE people SET note = 'aa' WHERE email = 'a@example.org'",
        f"UPDATE people SET email = '{NEW}' WHERE email = '{OLD}'",
    )
    run.ok("run")
    run.source(f"UPDATE people SET note = '{CANARY}-refused' WHERE email = '{NEW}'")
    run.ok("run")
    assert run("verify", "--target", "copy").code != 0  # its evidence has the row that was set aside
    run.source(f"DELETE FROM people WHERE email = '{NEW}'")


def with_lake(run: Verified) -> None:
    """Beside the target, a lake. What is in its catalog and its warehouse is in the folder, too."""
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{run.folder}/lake.db",
        "warehouse": (run.folder / "warehouse").as_uri(),
    }
    lake = {"name": LAKE, "kind": "iceberg", "namespace": "shop", "tables": {"*": {}}, "catalog": catalog}
    (copy,) = run.pipeline.targets
    run.change(targets=[copy.model_dump(mode="json", exclude_unset=True), lake])


def at_cuts(run: Verified) -> list[list[dict[str, Any]]]:
    """The rows of the mirror at each cut, as its readers find them; without those of the person."""
    with run.opened.catalogs as catalogs:
        catalog = catalogs.of(run.pipeline.targets[1])
        mirror = catalog.load_table("shop.people")
        cuts = [cut.tables[0].snapshot for _, cut in newest_first(run.store, LAKE) if cut.tables]
        shown = catalog.load_table("shop.lockstep_cuts").scan().to_arrow()["snapshot_id"].to_pylist()
        assert sorted(map(str, shown)) == sorted(map(str, cuts))
        found = [mirror.scan(snapshot_id=cut).to_arrow().sort_by("email").to_pylist() for cut in cuts if cut]
    return [[row for row in rows if CANARY not in row["email"]] for rows in found]


def places(run: Verified) -> list[str]:
    """Where values are, also as the digits that keys have in literals."""
    files = ((place, text) for place, text in written(run.folder) if "/meta.db" not in place)
    with closing(sqlite3.connect(run.folder / "meta.db")) as meta:  # whose free pages keep what was there
        dump = "\n".join(meta.iterdump())
    return seen(chain(files, [("meta", dump.encode())]), CANARY, CANARY.encode().hex().upper())


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_after_an_erasure_no_value_of_the_rows_is_on_the_stage_in_meta_or_in_a_target(
    verified: Callable[..., Verified], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = verified("on_row_error: quarantine")
    live(run)
    keys = ("--key", f"email={OLD},part=1", "--key", f'{{"part": 1, "email": "{NEW}"}}')
    run.extract()
    before = run.state("people", "email", "note")
    refused = run("forget", "people", *keys)
    assert (refused.code, refused.document["error"]["code"]) == (3, "stage.not_committed")
    run.ok("run")
    assert run("forget", "people", *keys[:2]).document["error"]["code"] == "stage.key"

    assert maintain(run.opened, run.pipeline.targets[1]).problems == ()
    failed = DataAtRisk(f"No place for {OLD}.", where=f"({NEW}, 1)", code="target.row_error", remedy=f"look at {NEW}")
    run.meta.failures.keep("repair", "copy", failed)
    cuts = at_cuts(run)
    assert len(cuts) == 4
    listed = run.ok("forget", "people", "--where", f"note LIKE '{CANARY}%'", "--dry-run")
    assert listed["keys"] == 2
    kinds = {place["kind"] for place in listed["places"]}
    assert kinds == {"staged", "copied", "run", "evidence", "tombstone", "lake file", "lake snapshot", "error"}
    assert places(run)
    assert CANARY in str(run.target("SELECT * FROM _lockstep_tombstone_people"))
    lines = tmp_path_factory.mktemp("keys") / "keys.txt"
    lines.write_text(f"{keys[1]}\n\n{keys[3]}\n")
    done = run.ok("forget", "people", "--keys", str(lines))
    assert done["places"] == listed["places"]
    assert CANARY not in str(done)

    assert places(run) == []
    (kept,) = (failure for failure in run.meta.failures.find() if failure.task == "repair")
    assert (kept.what, kept.code) == ("No place for ….", "target.row_error")
    run.meta.failures.clear("repair", "copy")
    assert CANARY not in str(run.target("SELECT * FROM _lockstep_tombstone_people"))
    assert at_cuts(run) == cuts
    run.assert_intact()
    assert run.state("people", "email", "note") == before
    require_equal(run)
    replayed(run)
    run.source(f"INSERT INTO people VALUES ('{NEW}', 1, 'again')")
    run.ok("run")
    assert [row[0] for row in run.rows("people", columns="email")] == ["a@example.org", "b@example.org", NEW]
    require_equal(run)
    asked = run("forget", "people", *keys[2:])
    assert (asked.code, asked.document["error"]["code"]) == (2, "usage.argument")


def require_equal(run: Verified) -> None:
    for name in ("copy", LAKE):
        assert run.ok("verify", "--target", name)["equal"] is True


def replayed(run: Verified) -> None:
    """A replay into an empty target ends without the rows."""
    rows: list[Any] = run.rows("people", columns="email, part, note")
    run.target(
        "TRUNCATE TABLE people",
        *(f"DROP TABLE `{table}`" for (table,) in run.target("SHOW TABLES LIKE '\\_lockstep\\_%'")),
    )
    run.ok("run", "--replay", "--target", "copy")
    assert run.rows("people", columns="email, part, note") == rows


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_processes_that_erase_are_killed_at_any_moment_and_the_last_one_ends_it(
    verified: Callable[..., Verified], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = verified("on_row_error: quarantine")
    live(run)
    run.ok("run")
    keys = ("--key", f"email={OLD},part=1", "--key", f"email={NEW},part=1")
    chance = random.Random(5)
    for number in range(8):
        running = run.start(tmp_path_factory.mktemp("logs") / f"{number}.log", "forget", "people", *keys)
        time.sleep(chance.uniform(0.2, 3))
        running.kill()
        run.expire_leases()
    run.ok("forget", "people", *keys)
    assert places(run) == []
    run.assert_intact()
    assert run.meta.failures.find() == ()
    require_equal(run)
    replayed(run)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_no_version_is_left_beside_a_table_of_a_row_that_somebody_removed(verified: Callable[..., Verified]) -> None:
    run = verified("guard: {store: table}")
    columns = "(email VARCHAR(60) PRIMARY KEY, note VARCHAR(60))"
    run.source(f"CREATE TABLE all_people {columns}")
    both = ("all", "all_people")
    run.target(*(f"CREATE TABLE `{table}` {columns}" for table in both))
    run.extract()
    run.source(f"INSERT INTO all_people VALUES ('{OLD}', 'a'), ('{NEW}', 'b'), ('a@example.org', 'c')")
    run.ok("run")
    run.target(*(f"DELETE FROM `{table}` WHERE email = '{OLD}'" for table in both))
    run.source(f"DELETE FROM all_people WHERE email LIKE '{CANARY}%'")
    run.ok("run")
    for table, other in (both, both[::-1]):
        listed = run.ok("forget", table, "--key", f"email={OLD}", "--key", f"email={NEW}")
        assert ("tombstone", 2) in [(place["kind"], place["rows"]) for place in listed["places"]]
        assert listed["other_tables"] == [other], "the source table feeds both"
        for name in (table, f"_lockstep_tombstone_{table}", f"_lockstep_version_{table}"):
            assert CANARY not in str(run.target(f"SELECT * FROM `{name}`")), name
        assert len(run.target(f"SELECT * FROM _lockstep_version_{table}")) == 1
    assert places(run) == []
