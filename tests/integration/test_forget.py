"""`lockstep forget` on real servers: canaries in every column of a row, and then nowhere."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.test_canaries import seen, written
from tests.lab.verified import Verified

CANARY = "c4n4ry"
OLD, NEW = f"{CANARY}-old@example.org", f"{CANARY}-new@example.org"


def live(run: Verified) -> None:
    """Rows that were copied, changed, set aside by the target, and found to differ; then one person is deleted."""
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
    assert run("verify").code != 0  # its evidence has the row that was set aside
    run.source(f"DELETE FROM people WHERE email = '{NEW}'")


def places(run: Verified) -> list[str]:
    """Where values are, also as the digits that keys have in literals."""
    run.meta.close()  # the log of a database has what was deleted, until it is written back
    del run.__dict__["meta"]
    return seen(written(run.folder), CANARY, CANARY.encode().hex().upper())


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_after_an_erasure_no_value_of_the_rows_is_on_the_stage_in_meta_or_in_a_target(
    verified: Callable[..., Verified],
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

    listed = run.ok("forget", "people", *keys, "--dry-run")
    kinds = {place["kind"] for place in listed["places"]}
    assert kinds == {"staged", "copied", "run", "evidence", "tombstone"}
    assert places(run)
    assert CANARY in str(run.target("SELECT * FROM _lockstep_tombstone_people"))
    done = run.ok("forget", "people", *keys)
    assert done["places"] == listed["places"]

    assert places(run) == []
    assert CANARY not in str(run.target("SELECT * FROM _lockstep_tombstone_people"))
    run.assert_intact()
    assert run.state("people", "email", "note") == before
    assert run.ok("verify")["equal"] is True
    replayed(run)
    run.source(f"INSERT INTO people VALUES ('{NEW}', 1, 'again')")
    run.ok("run")
    assert [row[0] for row in run.rows("people", columns="email")] == ["a@example.org", "b@example.org", NEW]
    assert run.ok("verify")["equal"] is True
    asked = run("forget", "people", *keys[2:])
    assert (asked.code, asked.document["error"]["code"]) == (2, "usage.argument")


def replayed(run: Verified) -> None:
    """A replay into an empty target ends without the rows."""
    rows: list[Any] = run.rows("people", columns="email, part, note")
    run.target(
        "TRUNCATE TABLE people", *(f"DROP TABLE `{one}`" for (one,) in run.target("SHOW TABLES LIKE '\\_lockstep\\_%'"))
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
    assert run.ok("verify")["equal"] is True
    replayed(run)
