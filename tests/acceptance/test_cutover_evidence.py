"""What a cutover may conclude from earlier verifications: no change that was not staged is left behind."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import pytest

from cdc_core import config
from cdc_core.operations.cutover import cutover_report, hold, machine
from cdc_core.operations.cutover.cutover_report import way_back_document
from cdc_core.stage.isolated import clear
from cdc_core.stage.stores import open_stage
from tests.acceptance.moving_shop import FROM_MARIADB, REST, Shop, shop
from tests.lab.refusals import refusal

pytestmark = pytest.mark.spark
UNLOGGED = """
import pymysql
from cdc_core.mysql.connections import parse_url
at = parse_url({url!r}, where="test")
session = pymysql.connect(host=at.host, port=at.port, user=at.user, password=at.password, autocommit=True)
with session.cursor() as cursor:
    for statement in {statements!r}:
        cursor.execute(statement)
"""


def capture_rules(made: Shop, rules: str) -> None:
    """Adds keys to `tables` of the pipeline file."""
    path = made.folder / "shop.yaml"
    path.write_text(path.read_text().replace("tables: {include", f"tables: {{{rules}, include", 1))


def unreadable(table: str) -> list[str]:
    """Changes rows while the table has a column that Lockstep refuses; and then others."""
    return [
        f"ALTER TABLE {table} ADD COLUMN _cdc_seq INT",
        f"UPDATE {table} SET n = n + 1 WHERE id = 1000",
        f"ALTER TABLE {table} DROP COLUMN _cdc_seq",
        f"UPDATE {table} SET n = 50 WHERE id = 1001",
    ]


def verified_after_its_copy(made: Shop) -> None:
    """The log has gone on since the copy, so that no proof compares the rows that were copied."""
    made.lockstep("run", "shop.yaml")
    made.source.run(f"UPDATE {made.name}.items SET n = 3 WHERE id = 1000")
    made.lockstep("run", "shop.yaml")
    made.lockstep("verify", "shop.yaml")


@pytest.mark.timeout(600)
def test_updates_of_a_table_that_was_isolated_after_its_verification_are_not_left_behind(
    lockstep: Any, mysql9: Any, mariadb_target: Any
) -> None:
    """They are in the log, are not staged, and change no number of rows."""
    with shop(lockstep, mysql9, mariadb_target) as made:
        made.behave(more=f"attempts: 1, stop_with: {made.folder}/stop.sh")
        capture_rules(made, "on_unreadable: isolate")
        stop, statements = made.folder / "stop.py", unreadable(f"{made.name}.orders")
        stop.write_text(UNLOGGED.format(url=mysql9.url, statements=statements))
        (made.folder / "stop.sh").write_text(
            f"#!/bin/sh\n[ $LOCKSTEP_CUTOVER_PHASE = release ] || {sys.executable} {stop}\n"
        )
        (made.folder / "stop.sh").chmod(0o755)
        verified_after_its_copy(made)

        # It is isolated while writes are stopped, by the last of them.
        late = made.cutover("run", "shop.yaml", code=3)["error"]
        assert (late["code"], "orders" in late["what"]) == ("table.not_captured", True)
        assert made.cutover("status", "shop.yaml")["state"] == "CHASE"
        assert made.called() == []

        # It is known beforehand.
        (made.folder / "stop.sh").write_text("#!/bin/sh\n")
        planned = made.cutover("plan", "shop.yaml", code=3)
        assert planned["error"]["code"] == "table.not_captured"
        for verb in ("rehearse", "run"):
            assert made.cutover(verb, "shop.yaml", code=3)["error"]["code"] == "table.not_captured"

        # Read again, it waits for its copy, and then every row is verified first.
        pipeline = config.load(made.folder / "shop.yaml")
        clear(open_stage(pipeline.stage), pipeline.sources[0].name, f"{made.name}.orders")
        lockstep("extract", "shop.yaml")
        assert made.cutover("plan", "shop.yaml", code=3)["error"]["code"] == "cutover.copy_due"
        lockstep("run", "shop.yaml")
        planned = made.cutover("plan", "shop.yaml")
        assert (planned["evidence"], "orders" in planned["disturbed"]) == (None, True)
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        assert made.new("orders") == made.old("orders") == REST | {1000: 2, 1001: 50}


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_what_is_known_of_rows_that_changed_without_the_log_counts_more_than_an_earlier_verification(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        capture_rules(made, "on_unlogged_change: record")
        verified_after_its_copy(made)
        assert made.cutover("plan", "shop.yaml")["evidence"] is not None
        orders, items, there = f"{made.name}.orders", f"{made.name}.items", f"{made.name}_0.orders_0"

        # A later verification has found something, if only a sample, or a number of rows.
        made.target.run(f"UPDATE {there} SET n = 9 WHERE id = 1000")
        lockstep("verify", "shop.yaml", "--mode", "random", "--sample", "100", code=4)
        speaks_against_it(made, "were found to differ")
        assert made.cutover("run", "shop.yaml", code=4)["error"]["code"] == "verify.differs"
        made.target.run(f"UPDATE {there} SET n = 1 WHERE id = 1000")
        lockstep("verify", "shop.yaml")
        assert made.cutover("plan", "shop.yaml")["evidence"] is not None
        made.target.run(f"INSERT INTO {there} (id, n) VALUES (4, 4)")
        lockstep("verify", "shop.yaml", "--mode", "count", code=4)
        speaks_against_it(made, "--mode count")
        made.target.run(f"DELETE FROM {there} WHERE id = 4")
        lockstep("verify", "shop.yaml")
        assert made.cutover("plan", "shop.yaml")["evidence"] is not None

        # A definition has given rows other values.
        made.source.run(f"ALTER TABLE {items} DROP COLUMN n",
                        f"ALTER TABLE {items} ADD COLUMN n INT NOT NULL DEFAULT 7",
                        f"UPDATE {items} SET n = 8 WHERE id = 1001")  # fmt: skip
        lockstep("run", "shop.yaml")
        speaks_against_it(made, items)
        assert made.cutover("run", "shop.yaml", code=4)["error"]["code"] == "verify.differs"
        lockstep("repair", "shop.yaml")
        lockstep("verify", "shop.yaml")

        # A statement has changed rows that the log does not have.
        made.source.run("SET SESSION binlog_format = STATEMENT", f"UPDATE {orders} SET n = n + 1 WHERE id = 1000",
                        "SET SESSION binlog_format = ROW", f"UPDATE {orders} SET n = 50 WHERE id = 1001")  # fmt: skip
        lockstep("run", "shop.yaml")
        speaks_against_it(made, orders)
        assert made.cutover("run", "shop.yaml", code=4)["error"]["code"] == "verify.differs"
        assert made.called() == []
        lockstep("repair", "shop.yaml")
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        for table in ("orders", "items"):
            assert made.new(table) == made.old(table)


@FROM_MARIADB
@pytest.mark.timeout(600)
def test_a_row_that_a_verification_finds_to_differ_while_the_cutover_catches_up_keeps_it_from_switching(
    lockstep: Any, servers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that has not changed since the evidence, so that no proof compares it."""
    with shop(lockstep, *servers) as made:
        verified_after_its_copy(made)
        there = f"{made.name}_0.orders_0"
        chase = machine.chase

        def found_meanwhile(*arguments: Any) -> Any:
            made.target.run(f"UPDATE {there} SET n = 9 WHERE id = 1000")
            lockstep("verify", "shop.yaml", "--mode", "random", "--sample", "100", code=4)
            return chase(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(machine, "chase", found_meanwhile)
            with made.in_this_process(monkeypatch) as (work, lease):
                error = refusal(lambda: machine.run(work, lease))
        assert error.code == "cutover.verify_again"
        assert made.called() == []
        assert made.cutover("status", "shop.yaml")["state"] == "CHASE"
        made.target.run(f"UPDATE {there} SET n = 1 WHERE id = 1000")
        assert made.cutover("resume", "shop.yaml")["state"] == "WATCH"
        assert made.new("orders") == made.old("orders")


def speaks_against_it(made: Shop, why: str) -> None:
    planned = made.cutover("plan", "shop.yaml")
    assert planned["evidence"] is None
    assert why in planned["disturbed"]


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_tables_that_the_target_does_not_take_may_be_written_while_it_is_switched(
    lockstep: Any, mysql9: Any, mariadb_target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop(lockstep, mysql9, mariadb_target) as made:
        visits = f"{made.name}.visits"
        mysql9.run(f"CREATE TABLE {visits} (id INT AUTO_INCREMENT PRIMARY KEY)")
        path = made.folder / "shop.yaml"
        text = path.read_text().replace("(orders|items)", "(orders|items|visits)")
        rule = re.search(r"'\*': (.*)", text)
        assert rule is not None
        path.write_text(text.replace(rule[0], f"orders: {rule[1]}\n      items: {rule[1]}"))
        lockstep("run", "shop.yaml")
        fence = hold.raise_fences

        def visited(*arguments: Any, **named: Any) -> None:
            fence(*arguments, **named)
            mysql9.run(f"INSERT INTO {visits} VALUES ()")

        monkeypatch.setattr(hold, "raise_fences", visited)
        with made.in_this_process(monkeypatch) as (work, lease):
            assert machine.run(work, lease).state == "WATCH"


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_way_back_is_ready_only_while_its_evidence_counts_and_everything_is_applied(
    lockstep: Any, mariadb: Any, mysql9: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop(lockstep, mariadb, mysql9) as made, lockstep.opened() as ready:
        meta = ready.meta
        lockstep("run", "shop.yaml")
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        switched = meta.cutovers.latest(made.name)
        assert switched is not None
        there = f"{made.name}_0.orders_0"
        mysql9.run(f"INSERT INTO {there} (id, n) VALUES (4, 4)")
        lockstep("run", "shop_back.yaml")
        assert "never verified" in way_back_document(meta, switched, "24h")["said"]
        lockstep("verify", "shop_back.yaml")
        assert way_back_document(meta, switched, "24h")["ready"] is True
        time.sleep(1.1)
        old = way_back_document(meta, switched, "1s")
        assert (old["ready"], "too old (cutover.evidence: 1s)" in old["said"]) == (False, True)

        mariadb.run("SET @lockstep_writes = 1", f"UPDATE {made.name}.orders SET n = 9 WHERE id = 4")
        lockstep("verify", "shop_back.yaml", "--mode", "random", "--sample", "100", code=4)
        differs = way_back_document(meta, switched, "24h")
        assert (differs["ready"], "1 row of orders were found to differ" in differs["said"]) == (False, True)
        lockstep("repair", "shop_back.yaml")
        lockstep("verify", "shop_back.yaml")
        assert way_back_document(meta, switched, "24h")["ready"] is True

        # Staged, and applied by nobody.
        mysql9.run(f"UPDATE {there} SET n = 5 WHERE id = 4")
        lockstep("extract", "shop_back.yaml")
        monkeypatch.setattr(cutover_report, "LATE_S", 0.0)
        waits = way_back_document(meta, switched, "24h")
        assert (waits["ready"], waits["lag_s"] > 0, " to apply" in waits["said"]) == (False, True, True)


BACK_THAT_FAILS = """
if [ $LOCKSTEP_CUTOVER_DIRECTION = back ] && [ -e {flag} ]; then rm {flag}; {python} {script}; exit {code}; fi
"""


@FROM_MARIADB
@pytest.mark.timeout(600)
@pytest.mark.parametrize("code", [3, pytest.param(9, marks=pytest.mark.matrix)], ids=["not switched", "unknown"])
def test_rows_that_were_written_to_tables_opened_by_a_cutover_that_did_not_switch_are_named_and_compared(
    lockstep: Any, servers: tuple[Any, Any], code: int
) -> None:
    """Somebody writes to the old tables while the command runs, and the application stays at the new ones."""
    with shop(lockstep, *servers) as made:
        script, flag = made.folder / "elsewhere.py", made.folder / "once"
        script.write_text(
            UNLOGGED.format(url=made.source.url, statements=[f"UPDATE {made.name}.orders SET n = 99 WHERE id = 1000"])
        )
        made.behave(BACK_THAT_FAILS.format(flag=flag, python=sys.executable, script=script, code=code), "attempts: 1")
        lockstep("run", "shop.yaml")
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        made.target.run(f"UPDATE {made.name}_0.orders_0 SET n = 50 WHERE id = 1000")
        lockstep("run", "shop_back.yaml")
        lockstep("verify", "shop_back.yaml")
        assert made.cutover("status", "shop.yaml")["way_back"]["ready"] is True

        flag.touch()
        error = made.cutover("back", "shop.yaml", code=4)["error"]
        if code != 3:
            assert error["code"] == "cutover.unknown"
            error = made.cutover("resume", "shop_back.yaml", "--answer", "not-switched", code=4)["error"]
        assert (error["code"], "Rows: orders: 1000." in error["what"]) == ("cutover.slipped_before", True)
        assert made.cutover("status", "shop_back.yaml")["state"] == "ROLLED_BACK"
        ready = made.cutover("status", "shop.yaml")["way_back"]
        assert (ready["ready"], "had opened the new tables" in ready["said"]) == (False, True)
        assert "1 row of orders differs" in lockstep("status", "shop_back.yaml", code=4).out

        # Nothing is proven over them.
        assert made.cutover("plan", "shop_back.yaml")["evidence"] is None
        assert made.cutover("back", "shop.yaml", code=4)["error"]["code"] == "verify.differs"
        assert (made.place_of_application(), made.new("orders")[1000]) == ("new", 50)
        lockstep("repair", "shop_back.yaml")
        assert made.cutover("back", "shop.yaml")["state"] == "COMPLETE"
        assert made.old("orders") == made.new("orders") == REST | {1000: 50}
