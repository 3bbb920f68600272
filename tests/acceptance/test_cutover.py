"""Cutovers of an application that writes all the time, with its own log as witness: no write is lost or made twice."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_core.errors import RetryLater
from cdc_core.operations.cutover import hold, machine
from cdc_core.operations.cutover.locks import Locks
from examples.sandbox.mariadb import MariaDb
from spark_jobs.driver import Driver
from tests.acceptance.moving_shop import (
    FROM_MARIADB,
    FROM_MYSQL,
    REST,
    TABLES,
    Shop,
    goes_on,
    shop,
)

pytestmark = pytest.mark.spark
EMPTYING = """
import pymysql
from cdc_core.mysql.connections import parse_url
at = parse_url({url!r}, where="test")
session = pymysql.connect(host=at.host, port=at.port, user=at.user, password=at.password)
session.cursor().execute("TRUNCATE TABLE {table}")
"""


@FROM_MYSQL
@pytest.mark.timeout(900)
def test_an_application_is_switched_and_led_back_without_losing_a_write(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        first = made.cutover("plan", "shop.yaml")
        assert (sorted(first["tables"]), first["expected_stop_s"]) == (["items", "orders"], None)
        with made.application() as application:
            made.until(lambda: len(application.written["orders"]) > 20)
            tried = made.cutover("rehearse", "shop.yaml")
            assert (tried["state"], made.called()) == ("ROLLED_BACK", [])
            assert [step["state"] for step in tried["steps"]][-3:] == ["PROVED", "CHASE", "ROLLED_BACK"]
            assert 0 < tried["stopped_s"] < 20
            steps = list(tried["stop_steps_s"])
            assert (steps[:3], steps[-2:]) == (["lock", "extract", "plan"], ["proof", "ids"])
            goes_on(made, application)
            assert application.refused == 0
            planned = made.cutover("plan", "shop.yaml")
            assert planned["expected_stop_s"] == tried["stopped_s"]
            # Nor of Lockstep's own sessions.
            assert not [finding for finding in planned["findings"] if "transaction" in finding["what"]]
            there = made.cutover("run", "shop.yaml")
            assert not [finding for finding in there["findings"] if "transaction" in finding["what"]]
            assert (there["state"], there["way_back"]["ready"]) == ("WATCH", False)
            assert 0 < there["stopped_s"] < 20
            assert list(there["stop_steps_s"])[-5:] == ["fences", "way back", "gates", "last look", "note"]
            assert made.called() == [["switch", "there", there["cutover"]]]
            time.sleep(1)
        assert not application.errors
        for table in TABLES:
            assert made.new(table) == application.written[table] | REST
            assert made.old(table) != made.new(table)

        # The old tables take no writes but Lockstep's, the new ones all but Lockstep's.
        for statement in ("INSERT INTO {} VALUES (5, 5)", "UPDATE {} SET n = 0", "DELETE FROM {}"):
            with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
                made.source.run(statement.format(f"{made.name}.orders"))
        late = lockstep("run", "shop.yaml", "--replay", "--target", f"{made.name}_shards", code=3)
        assert json.loads(late.out)["error"]["code"] == "target.fenced"
        # Nor would the newer rows be called wrong by the former direction, and repaired away.
        behind = json.loads(lockstep("verify", "shop.yaml", code=3).out)["error"]
        assert (behind["code"], f"lockstep verify {made.name}_back" in behind["remedy"]) == ("cutover.switched", True)
        assert made.new("orders") == application.written["orders"] | REST

        lockstep("run", "shop_back.yaml")
        for table in TABLES:
            assert made.old(table) == made.new(table)
        assert json.loads(lockstep("verify", "shop_back.yaml").out)["equal"] is True
        ready = made.cutover("status", "shop.yaml")["way_back"]
        assert ready["ready"] is True, ready
        planned = made.cutover("plan", "shop_back.yaml")
        assert (planned["evidence"] is not None, planned["disturbed"]) == (True, None)

        (made.folder / "called").unlink()
        with made.application() as again:
            made.until(lambda: len(again.written["orders"]) > 20)
            back = made.cutover("back", "shop.yaml")
            assert (back["state"], made.called()) == ("COMPLETE", [["switch", "back", back["cutover"]]])
            time.sleep(1)
        assert not again.errors
        for table in TABLES:
            assert made.old(table) == application.written[table] | again.written[table] | REST
        assert made.cutover("status", "shop.yaml")["state"] == "BACK"
        assert json.loads(lockstep("verify", "shop_back.yaml", code=3).out)["error"]["code"] == "cutover.switched"
        with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
            made.target.run(f"DELETE FROM {made.name}_0.orders_0")

        # The pipeline carries changes to the target again, and there is a second way there, whatever a person has
        # chosen meanwhile for what the way back does about errors.
        file = made.folder / "shop_back.yaml"
        text = file.read_text().replace("  include:\n", "  on_unlogged_change: resync\n  include:\n", 1)
        file.write_text(text.replace("      guard:\n", "      on_new_column: add\n      guard:\n"))
        lockstep("run", "shop.yaml")
        for table in TABLES:
            assert made.old(table) == made.new(table)
        with made.application() as once_more:
            made.until(lambda: len(once_more.written["orders"]) > 20)
            assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        assert not once_more.errors
        for table in TABLES:
            expected = application.written[table] | again.written[table] | once_more.written[table] | REST
            assert made.new(table) == expected
        lockstep("verify", "shop_back.yaml")
        assert made.cutover("complete", "shop.yaml")["state"] == "COMPLETE"
        over = made.cutover("back", "shop.yaml", code=2)["error"]
        assert (over["code"], "was completed" in over["what"]) == ("usage.nothing_open", True)


@pytest.mark.matrix
@FROM_MYSQL
@pytest.mark.timeout(900)
def test_only_a_person_answers_for_a_switch_command_that_did_not(lockstep: Any, servers: tuple[Any, Any]) -> None:
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        with made.application() as application:
            goes_on(made, application)
            made.behave("exit 3")
            refused = made.cutover("run", "shop.yaml", code=3)
            assert refused["error"]["code"] == "cutover.not_switched"
            goes_on(made, application)

            made.behave("exit 9")
            unclear = made.cutover("run", "shop.yaml", code=4)
            assert unclear["error"]["code"] == "cutover.unknown"
            assert made.cutover("resume", "shop.yaml", code=4)["error"]["code"] == "cutover.unknown"
            assert made.cutover("abort", "shop.yaml", code=4)["error"]["code"] == "cutover.unknown"
            with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
                made.source.run(f"DELETE FROM {made.name}.orders")
            assert made.cutover("resume", "shop.yaml", "--answer", "not-switched", code=3)["error"]["code"] == (
                "cutover.not_switched"
            )
            assert made.cutover("status", "shop.yaml")["state"] == "ROLLED_BACK"
            goes_on(made, application)

            # It succeeds, and its answer is lost.
            made.behave(f"echo new > {made.folder}/.to; mv {made.folder}/.to {made.folder}/to; sleep 60", "hook_s: 5")
            assert made.cutover("run", "shop.yaml", code=4)["error"]["code"] == "cutover.unknown"
            (made.folder / "shop_back.yaml").unlink()  # it is to begin where it would have, nevertheless
            goes_on(made, application)
            assert made.cutover("resume", "shop.yaml", "--answer", "switched")["state"] == "WATCH"
            goes_on(made, application)
        assert not application.errors
        for table in TABLES:
            assert made.new(table) == application.written[table] | REST
        assert [phase for phase, *_ in made.called()] == ["switch"] * 3
        lockstep("run", "shop_back.yaml")
        for table in TABLES:
            assert made.old(table) == made.new(table)


def _waiting_hook(made: Shop) -> Path:
    """A command that stops nothing: it says that it was called, and waits until it may end."""
    path = made.folder / "stop.sh"
    path.write_text(
        "#!/bin/sh\n[ $LOCKSTEP_CUTOVER_PHASE = stop ] || exit 0\n"
        f"touch {made.folder}/stopping; until [ -e {made.folder}/go ]; do sleep 0.1; done\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.matrix
@FROM_MYSQL
@pytest.mark.timeout(900)
def test_transactions_that_are_open_when_writes_stop_are_waited_for(lockstep: Any, servers: tuple[Any, Any]) -> None:
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        made.source.run("XA START 'moving'", f"UPDATE {made.name}.items SET n = 77 WHERE id = 1000",
                        "XA END 'moving'", "XA PREPARE 'moving'", "SET GLOBAL innodb_table_locks = OFF")  # fmt: skip
        made.behave(more="attempts: 1, patience_s: 1")
        prepared = made.cutover("run", "shop.yaml", code=75)["error"]
        made.source.run("SET GLOBAL innodb_table_locks = ON")
        if isinstance(made.source, MariaDb):  # beside it no row can be compared
            assert prepared["code"] == "snapshot.blocked"
        else:
            assert prepared["code"] == "cutover.rolled_back"
            assert "a transaction uses a table" in prepared["what"]
        made.source.run("XA COMMIT 'moving'")

        with (
            made.application() as application,
            made.source.connect(autocommit=False) as session,
            session.cursor() as cursor,
        ):
            goes_on(made, application)
            made.behave(more=f"attempts: 1, patience_s: 20, stop_with: {_waiting_hook(made)}")
            process = subprocess.Popen(
                lockstep.command("cutover", "run", "shop.yaml"), cwd=made.folder, env=lockstep.environment, text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if line.strip() == "STOPPED":
                    made.until((made.folder / "stopping").exists)
                    cursor.execute(f"UPDATE {made.name}.orders SET n = 99 WHERE id = 1000")
                    (made.folder / "go").touch()
                    # Writers queue for the locks meanwhile, and some of them give up.
                    made.until(lambda: application.expired > 0)
                    assert made.called() == []
                    session.commit()
            process.stderr.close()
            assert process.wait() == 0, "".join(said)
            goes_on(made, application)
        assert not application.errors
        assert made.new("orders") == application.written["orders"] | {1000: 99, 1001: 1, 1002: 2}
        assert made.new("items") == application.written["items"] | {1000: 77, 1001: 1, 1002: 2}


@FROM_MARIADB
@pytest.mark.timeout(600)
def test_writes_are_not_stopped_before_a_run_has_been_made_as_the_last_one_will_be(
    lockstep: Any, servers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the application has written nothing for a while: the libraries of a run take seconds to load."""
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        lockstep("verify", "shop.yaml")
        held, load, done = machine.held, Driver.load, []

        def loading() -> None:
            done.append("loaded")
            load()

        def stopping(moving: Any, *arguments: Any, **named: Any) -> bool:
            done.append("stopped")
            return held(moving, *arguments, **named)

        monkeypatch.setattr(Driver, "load", staticmethod(loading))
        monkeypatch.setattr(machine, "held", stopping)
        with made.in_this_process(monkeypatch) as (work, lease):
            assert machine.run(work, lease, rehearse=True).state == "ROLLED_BACK"
        assert (done, made.new("orders")) == (["loaded", "stopped"], made.old("orders"))


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_indexes_that_are_due_are_told_and_built_before_a_cutover(
    lockstep: Any, mariadb: Any, mariadb_target: Any
) -> None:
    with shop(lockstep, mariadb, mariadb_target) as made:
        lockstep("run", "shop.yaml")
        lockstep("verify", "shop.yaml")
        at = f"{made.name}_0"
        mariadb_target.run(
            f"UPDATE {at}._lockstep_table SET due = '[]' WHERE table_name = 'orders_1'",
            f"UPDATE {at}._lockstep_table SET due = "
            """'[{"name": "by_n", "parts": [["n", null, false]], "sql": "KEY `by_n` (`n`)", "alone": true}]' """
            "WHERE table_name = 'orders_0'",
        )
        told = [
            finding["subject"] for finding in made.cutover("plan", "shop.yaml")["findings"] if "due" in finding["what"]
        ]
        assert told == [f"table {at}.orders_0"]
        warned = [finding for finding in json.loads(lockstep("check", "shop.yaml", "--json").out)["findings"]
                  if f"{at}.orders_0" in finding["what"]]  # fmt: skip
        assert [finding["status"] for finding in warned] == ["warn"]
        with made.application() as application:
            goes_on(made, application)
            assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        with mariadb_target.connect(autocommit=True) as connection, connection.cursor() as cursor:
            assert cursor.execute(f"SHOW INDEX FROM {at}.orders_0 WHERE Key_name = 'by_n'") == 1
            assert cursor.execute(f"SELECT * FROM {at}._lockstep_table WHERE due IS NOT NULL") == 0


@pytest.mark.timeout(600)
def test_rows_that_differ_stop_a_cutover_before_anything_is_switched(
    lockstep: Any, mysql9: Any, mariadb_target: Any
) -> None:
    """A row that changed since the verification, and a row that nobody staged: neither is in the evidence."""
    with shop(lockstep, mysql9, mariadb_target) as made:
        lockstep("run", "shop.yaml")
        lockstep("verify", "shop.yaml")
        mysql9.run(f"UPDATE {made.name}.orders SET n = 5 WHERE id = 1000")
        lockstep("run", "shop.yaml")
        mariadb_target.run(f"UPDATE {made.name}_0.orders_0 SET n = 6 WHERE id = 1000")
        changed = made.cutover("run", "shop.yaml", code=4)["error"]
        assert (changed["code"], "1 rows of orders differ" in changed["what"]) == ("verify.differs", True)
        status = made.cutover("status", "shop.yaml")
        assert [step["state"] for step in status["steps"]] == ["PREPARED", "CHASE"]
        assert changed["what"] in status["last_error"], "why it does not continue"

        mariadb_target.run(f"UPDATE {made.name}_0.orders_0 SET n = 5 WHERE id = 1000",
                           f"INSERT INTO {made.name}_0.items_0 (id, n) VALUES (4, 4)")  # fmt: skip
        stray = made.cutover("run", "shop.yaml", code=4)["error"]
        assert (stray["code"], stray["what"].startswith("items has ")) == ("verify.differs", True)
        mariadb_target.run(f"UPDATE {made.name}_0.items_0 SET id = 4000 WHERE id = 4")
        last = made.cutover("run", "shop.yaml", code=4)["error"]
        assert (last["code"], "greatest key of items" in last["what"]) == ("verify.differs", True)
        mariadb_target.run(f"UPDATE {made.name}_0.items_0 SET id = 4 WHERE id = 4000")
        assert made.cutover("status", "shop.yaml")["state"] == "CHASE"
        mysql9.run(f"INSERT INTO {made.name}.orders VALUES (7, 7)")  # nothing is locked or gated

        mariadb_target.run(f"DELETE FROM {made.name}_0.items_0 WHERE id = 4")
        assert made.cutover("resume", "shop.yaml")["state"] == "WATCH"
        assert made.new("orders") == REST | {1000: 5, 7: 7}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("noticed", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_a_write_that_slips_through_before_the_gates_close_is_found_in_the_log(
    lockstep: Any, mysql9: Any, mariadb_target: Any, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    """The locks end too early, and another extractor stages the write before the cutover looks. noticed: that they
    have."""
    with shop(lockstep, mysql9, mariadb_target) as made:
        made.behave(more="attempts: 1")
        lockstep("run", "shop.yaml")
        fence = hold.raise_fences

        def too_late(*arguments: Any, **named: Any) -> None:
            fence(*arguments, **named)
            with mysql9.connect(autocommit=True) as session, session.cursor() as cursor:
                cursor.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep'")
                for (number,) in cursor.fetchall():
                    with suppress(pymysql.err.MySQLError):
                        cursor.execute(f"KILL {number}")
            mysql9.run(f"INSERT INTO {made.name}.orders VALUES (8, 8)")
            lockstep("extract", "shop.yaml")

        monkeypatch.setattr(hold, "raise_fences", too_late)
        if not noticed:
            monkeypatch.setattr(Locks, "held", lambda _: True)
        with (
            made.in_this_process(monkeypatch) as (work, lease),
            pytest.raises(RetryLater, match="locks had ended before" if noticed else "1 changes were made after"),
        ):
            machine.run(work, lease)
        assert made.called() == []
        assert made.cutover("status", "shop.yaml")["state"] == "ROLLED_BACK"
        assert not (made.folder / "shop_back.yaml").exists()
        lockstep("run", "shop.yaml")
        assert made.new("orders") == made.old("orders") == REST | {8: 8}


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_table_that_came_after_the_verification_is_verified_too(
    lockstep: Any, mariadb: Any, mariadb_target: Any
) -> None:
    with shop(lockstep, mariadb, mariadb_target) as made:
        path = made.folder / "shop.yaml"
        path.write_text(path.read_text().replace("(orders|items)", "(orders|items|later)"))
        lockstep("run", "shop.yaml")
        lockstep("verify", "shop.yaml")
        assert "verifying every row" not in lockstep("cutover", "rehearse", "shop.yaml").err
        mariadb.run(f"CREATE TABLE {made.name}.later (id INT PRIMARY KEY, n INT NOT NULL)",
                    f"INSERT INTO {made.name}.later VALUES (1, 1)")  # fmt: skip
        lockstep("run", "shop.yaml")
        assert "verifying every row" in lockstep("cutover", "rehearse", "shop.yaml").err
        assert "verifying every row" not in lockstep("cutover", "rehearse", "shop.yaml").err


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_what_triggers_and_events_of_the_old_server_write_is_carried_over_or_refused(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    """They write through tables that are neither carried nor locked, as often as they can, until they get an error."""
    with shop(lockstep, *servers) as made:
        name = made.name
        made.source.run(f"CREATE TABLE {name}.visits (id INT AUTO_INCREMENT PRIMARY KEY)",
                        f"CREATE TRIGGER {name}.counted AFTER INSERT ON {name}.visits FOR EACH ROW "
            f"INSERT INTO {name}.orders VALUES (100000 + NEW.id, NEW.id)",
                        "SET GLOBAL event_scheduler = ON",
                        f"CREATE EVENT {name}.tick ON SCHEDULE EVERY 1 SECOND DO "
            f"INSERT INTO {name}.items SELECT MAX(id) + 1, 7 FROM {name}.items",
        )  # fmt: skip
        try:
            lockstep("run", "shop.yaml")
            with ThreadPoolExecutor(1) as pool:
                visiting = pool.submit(visits, made)
                assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
                counted = visiting.result(60)
            time.sleep(2.5)  # the event runs again, and is refused
            assert counted > 20
            assert len([key for key in made.new("orders") if key > 100_000]) == counted
            assert len(made.new("items")) > len(REST)
            for table in TABLES:
                assert made.old(table) == made.new(table)
        finally:
            made.source.run(f"DROP EVENT {name}.tick", "SET GLOBAL event_scheduler = OFF")


@FROM_MARIADB
@pytest.mark.timeout(900)
def test_triggers_that_leave_lockstep_out_are_on_both_sides_and_do_their_work_once(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    def triggers(database: str, suffix: str) -> str:
        return (
            f"CREATE TRIGGER {database}.counted AFTER INSERT ON {database}.orders{suffix} FOR EACH ROW BEGIN "
            f"IF @lockstep_writes IS NULL THEN UPDATE {database}.items{suffix} SET n = n + 1 WHERE id = 1000; "
            "END IF; END"
        )

    with shop(lockstep, *servers) as made:
        name = made.name
        made.source.run(f"CREATE TRIGGER {name}.twice AFTER INSERT ON {name}.orders FOR EACH ROW SET @n = 1")
        lockstep("run", "shop.yaml")
        assert [
            finding["what"]
            for finding in made.cutover("plan", "shop.yaml")["findings"]
            if "Lockstep writes" in finding["what"]
        ] == [f"triggers of the old tables fire for what Lockstep writes there, too: {name}.twice"]
        made.source.run(f"DROP TRIGGER {name}.twice", triggers(name, ""))
        made.target.run(triggers(f"{name}_0", "_0"))
        made.source.run(f"INSERT INTO {name}.orders VALUES (4, 1), (8, 1)")
        lockstep("run", "shop.yaml")
        assert made.new("items")[1000] == made.old("items")[1000] == 3
        there = made.cutover("run", "shop.yaml")
        assert (there["state"], [finding for finding in there["findings"] if "Lockstep writes" in finding["what"]]) == (
            "WATCH",
            [],
        )
        made.target.run(f"INSERT INTO {name}_0.orders_0 VALUES (12, 1), (16, 1), (20, 1)")
        lockstep("run", "shop_back.yaml")
        assert made.old("items")[1000] == made.new("items")[1000] == 6
        assert made.cutover("back", "shop.yaml")["state"] == "COMPLETE"


def visits(made: Shop) -> int:
    """How many were made before the gate of the table that their trigger writes to."""
    with made.source.connect(autocommit=True) as session, session.cursor() as cursor:
        for count in itertools.count():
            try:
                cursor.execute(f"INSERT INTO {made.name}.visits VALUES ()")
            except pymysql.err.MySQLError as error:
                if error.args[0] != 1644:
                    raise
                return count
            time.sleep(0.02)
    raise AssertionError


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_groups_of_tables_are_switched_and_led_back_each_by_its_pipeline(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        for number, table in enumerate(TABLES):
            group_file = group(made, table, number)
            group_file.write_text(
                group_file.read_text().replace(f"[{{name: {made.name},", f"[{{name: {made.name}_{table},")
            )
            lockstep("run", group_file.name)
            lockstep("verify", group_file.name)
        orders, items = f"{made.name}.orders", f"{made.name}.items"

        # A group that fails leaves the other one where it is.
        made.target.run(f"INSERT INTO {made.name}_0.items_0 (id, n) VALUES (4, 4)")
        assert made.cutover("run", "items.yaml", code=4)["error"]["code"] == "verify.differs"
        assert made.cutover("run", "orders.yaml")["state"] == "WATCH"
        with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
            made.source.run(f"DELETE FROM {orders}")
        made.source.run(f"INSERT INTO {items} VALUES (8, 8)")
        made.target.run(f"DELETE FROM {made.name}_0.items_0 WHERE id = 4")
        lockstep("run", "items.yaml")
        assert made.new("items") == REST | {8: 8}
        assert made.cutover("status", "items.yaml")["state"] == "CHASE"

        # Each has its own way there and back.
        assert made.cutover("resume", "items.yaml")["state"] == "WATCH"
        made.target.run(f"INSERT INTO {made.name}_0.items_1 (id, n) VALUES (1, 1)",
                        f"INSERT INTO {made.name}_0.orders_1 (id, n) VALUES (1, 1)")  # fmt: skip
        lockstep("run", "orders_back.yaml")
        assert made.cutover("back", "orders.yaml")["state"] == "COMPLETE"
        assert made.cutover("status", "items.yaml")["state"] == "WATCH"
        made.source.run(f"INSERT INTO {orders} VALUES (9, 9)")
        with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
            made.source.run(f"DELETE FROM {items}")
        lockstep("run", "orders.yaml")
        lockstep("run", "items_back.yaml")
        assert made.new("orders") == made.old("orders") == REST | {1: 1, 9: 9}
        assert made.new("items") == made.old("items") == REST | {1: 1, 8: 8}


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_group_is_taken_out_of_a_pipeline_that_goes_on_with_the_other_tables(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        orders, items = f"{made.name}.orders", f"{made.name}.items"
        lockstep("run", "shop.yaml")
        group_file, path = group(made, "items", 0), made.folder / "shop.yaml"
        text = group_file.read_text().replace("/meta.db", "/meta_items.db")
        text = text.replace("targets:\n  - name:", "targets:\n  - existing: keep\n    name:")
        group_file.write_text(text.replace("start: latest", "start: latest, timeline: 1"))

        # Both read the table for a while.
        made.source.run(f"INSERT INTO {items} VALUES (8, 8)", f"DELETE FROM {items} WHERE id = 1000")
        lockstep("extract", "items.yaml")
        made.source.run(f"INSERT INTO {items} VALUES (9, 9)", f"DELETE FROM {items} WHERE id = 1001",
                        f"INSERT INTO {orders} VALUES (8, 8)")  # fmt: skip
        lockstep("run", "shop.yaml")
        path.write_text(path.read_text().replace("orders|items", "orders"))
        made.source.run(f"UPDATE {items} SET n = 90 WHERE id = 9", f"DELETE FROM {items} WHERE id = 8",
                        f"INSERT INTO {orders} VALUES (9, 9)")  # fmt: skip
        for file in ("items.yaml", "shop.yaml"):
            lockstep("run", file)
            lockstep("verify", file)
        for table in TABLES:
            assert made.new(table) == made.old(table)

        assert made.cutover("run", "items.yaml")["state"] == "WATCH"
        made.source.run(f"INSERT INTO {orders} VALUES (7, 7)")
        made.target.run(f"INSERT INTO {made.name}_0.items_1 (id, n) VALUES (1, 1)")
        lockstep("run", "shop.yaml")
        lockstep("run", "items_back.yaml")
        for table in TABLES:
            assert made.new(table) == made.old(table)
        assert made.cutover("back", "items.yaml")["state"] == "COMPLETE"
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"


def group(made: Shop, table: str, number: int) -> Path:
    """A pipeline file for one of the tables, with a stage of its own."""
    text = (made.folder / "shop.yaml").read_text()
    text = text.replace(f"pipeline: {made.name}", f"pipeline: {made.name}_{table}").replace("orders|items", table)
    text = text.replace("server_id: 5191", f"server_id: {5195 + number}").replace("/stage", f"/stage_{table}")
    path = made.folder / f"{table}.yaml"
    path.write_text(text)
    return path


@FROM_MYSQL
@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_old_tables_that_somebody_empties_after_the_switch_are_seen_and_nobody_is_led_to_them(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    """Gates are triggers, and TRUNCATE fires none."""
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        made.target.run(f"INSERT INTO {made.name}_0.orders_0 (id, n) VALUES (4, 4)")
        lockstep("run", "shop_back.yaml")
        lockstep("verify", "shop_back.yaml")
        assert made.cutover("status", "shop.yaml")["way_back"]["ready"] is True

        made.source.run(f"TRUNCATE TABLE {made.name}.orders")
        path = made.folder / "shop.yaml"
        for policy in ("on_truncate: unlogged", "on_unlogged_change: record", "on_truncate: stage"):
            text = path.read_text().split("tables: {", 1)
            path.write_text(f"{text[0]}tables: {{{policy}, include: ['{made.name}\\.(orders|items)']}}\nroutes: [{{"
                            + text[1].split("routes: [{", 1)[1])  # fmt: skip
            planned = made.cutover("plan", "shop_back.yaml")
            assert planned["evidence"] is None
            assert "TRUNCATE" in planned["disturbed"] or "was emptied" in planned["disturbed"]
            done = lockstep("cutover", "back", "shop.yaml", code=4)
            assert "no earlier evidence counts" in done.err, done.err
            assert json.loads(done.out)["error"]["code"] == "verify.differs"
        status = made.cutover("status", "shop.yaml")["way_back"]
        assert (status["ready"], "not equal" in status["said"]) == (False, True)

        lockstep("repair", "shop_back.yaml")
        lockstep("run", "shop_back.yaml")
        assert made.old("orders") == made.new("orders") == REST | {4: 4}
        back = lockstep("cutover", "back", "shop.yaml")
        assert (json.loads(back.out)["state"], "verifying every row" in back.err) == ("COMPLETE", True)


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("policy", "found"),
    [("", "source.unlogged_change"), ("on_truncate: stage, ", "cutover.verify_again")],
    ids=["stops", "staged"],
)
def test_nobody_is_led_to_old_tables_that_are_emptied_when_everything_was_compared(
    lockstep: Any, servers: tuple[Any, Any], policy: str, found: str
) -> None:
    """When writes stop. Gates are closed then, through which TRUNCATE gets; and no lock is taken there."""
    with shop(lockstep, *servers) as made:
        made.behave(more=f"attempts: 1, stop_with: {made.folder}/stop.sh")
        empty = made.folder / "empty"
        (made.folder / "stop.py").write_text(EMPTYING.format(url=made.source.url, table=f"{made.name}.orders"))
        (made.folder / "stop.sh").write_text(
            f"#!/bin/sh\n[ $LOCKSTEP_CUTOVER_PHASE = release ] || ! rm {empty} 2>/dev/null || "
            f"{sys.executable} {made.folder}/stop.py\n"
        )
        (made.folder / "stop.sh").chmod(0o755)
        file = made.folder / "shop.yaml"
        file.write_text(file.read_text().replace("tables: {include", f"tables: {{{policy}include", 1))
        lockstep("run", "shop.yaml")
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        lockstep("run", "shop_back.yaml")
        lockstep("verify", "shop_back.yaml")
        empty.touch()
        error = json.loads(lockstep("cutover", "back", "shop.yaml", code=None).out)["error"]
        assert (error["code"], "orders" in error["what"]) == (found, True)
        assert (made.old("orders"), made.new("orders")) == ({}, REST)
        assert made.place_of_application() == "new"
        made.target.run(f"INSERT INTO {made.name}_0.orders_0 (id, n) VALUES (4, 4)")  # it takes writes
        assert made.cutover("back", "shop.yaml", code=4)["error"]["code"] == "verify.differs"


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_old_tables_that_somebody_alters_after_the_switch_stop_the_way_back(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        lockstep("run", "shop_back.yaml")
        lockstep("verify", "shop_back.yaml")
        for statement in (f"ALTER TABLE {made.name}.orders DROP COLUMN n", f"DROP TABLE {made.name}.orders"):
            made.source.run(statement)
            made.target.run(f"REPLACE INTO {made.name}_0.orders_0 (id, n) VALUES (4, 4)")
            error = json.loads(lockstep("run", "shop_back.yaml", code=3).out)["error"]
            assert f"{made.name}.orders" in json.dumps(error), error
            status = made.cutover("status", "shop.yaml")["way_back"]
            assert (status["ready"], "last error" in status["said"]) == (False, True)
            assert made.cutover("back", "shop.yaml", code=None)["error"]
