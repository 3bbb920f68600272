"""How a cutover ends: what is left of one that was not switched, and what a later command finishes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pymysql
import pytest

from cdc_core.errors import Refused, RetryLater
from cdc_core.meta import Meta
from cdc_core.meta.cutovers import Cutovers
from cdc_core.operations.cutover import hold, machine, moving, readiness
from cdc_core.targets.bookkeeping.gates import gated_tables, open_gates
from examples.sandbox.mariadb import MariaDb
from tests.acceptance.moving_shop import FROM_MARIADB, FROM_MYSQL, REST, TABLES, Shop, goes_on, shop
from tests.lab.forked_commands import ROOT, ForkedCommands
from tests.lab.shell import export

pytestmark = pytest.mark.spark


@pytest.mark.matrix
@FROM_MYSQL
@pytest.mark.timeout(600)
def test_a_way_back_that_has_run_writes_nothing_to_the_old_tables_unless_the_application_was_switched(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    """It reads Lockstep's own writes to the new tables, which are older than the application's to the old ones."""
    with shop(lockstep, *servers) as made:
        orders = f"{made.name}.orders"
        made.behave("exit 9", "attempts: 1")
        lockstep("run", "shop.yaml")
        assert made.cutover("run", "shop.yaml", code=4)["error"]["code"] == "cutover.unknown"
        lockstep("run", "shop_back.yaml", code=None)
        answered = lockstep("cutover", "resume", "shop.yaml", "--answer", "not-switched", code=3)
        assert "shop_back.yaml stays" in answered.err

        made.source.run(f"UPDATE {orders} SET n = 5 WHERE id = 1000", f"DELETE FROM {orders} WHERE id = 1001")
        lockstep("run", "shop.yaml")
        made.source.run(f"UPDATE {orders} SET n = 6 WHERE id = 1000", f"INSERT INTO {orders} VALUES (1001, 7)")
        kept = {1000: 6, 1001: 7, 1002: 2}
        for verb in (["run"], ["run", "--replay"]):
            refused = lockstep(*verb, "shop_back.yaml", code=3)
            assert json.loads(refused.out)["error"]["code"] == "target.fenced"
            assert made.old("orders") == kept
        assert made.cutover("abort", "shop.yaml")["state"] == "ROLLED_BACK"
        lockstep("run", "shop_back.yaml", code=3)
        assert made.old("orders") == kept
        lockstep("run", "shop.yaml")  # the fence around the new tables is down

        # A second cutover uses the same way back.
        made.behave("true", "attempts: 1")
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        made.target.run(f"INSERT INTO {made.name}_0.orders_0 (id, n) VALUES (4, 4)")
        lockstep("run", "shop_back.yaml")
        assert made.old("orders") == made.new("orders") == kept | {4: 4}
        assert made.old("items") == made.new("items") == REST
        assert made.cutover("back", "shop.yaml")["state"] == "COMPLETE"
        for table in TABLES:
            assert made.old(table) == made.new(table)


STOPPING = """#!/bin/sh
echo "$LOCKSTEP_CUTOVER_PHASE" >> {folder}/told
[ $LOCKSTEP_CUTOVER_PHASE = release ] || {behaviour}
[ $LOCKSTEP_CUTOVER_PHASE = stop ] || {release}
"""


def stops_by(made: Shop, behaviour: str, more: str, budget_s: int, release: str = "true") -> None:
    """behaviour: of the command that stops the application. release: of the one that lets it continue."""
    path = made.folder / "stop.sh"
    path.write_text(STOPPING.format(folder=made.folder, behaviour=behaviour, release=release))
    path.chmod(0o755)
    made.behave(more=f"attempts: 1, stop_with: {path}, {more}", budget_s=budget_s)


def told(made: Shop) -> list[str]:
    return (made.folder / "told").read_text().split()


def nothing_is_left(made: Shop) -> None:
    """The application writes to the old tables, Lockstep to the new ones, and a cutover gets through."""
    old = {"env:SOURCE": [(made.name, table) for table in TABLES]}
    export(made.lockstep.environ)
    assert gated_tables(old) == frozenset()
    assert (made.called(), made.place_of_application()) == ([], "old")
    made.source.run(f"UPDATE {made.name}.orders SET n = 5 WHERE id = 1000")
    made.lockstep("run", "shop.yaml")
    assert made.new("orders") == made.old("orders")
    made.behave("true", "attempts: 1")
    assert made.cutover("run", "shop.yaml")["state"] == "WATCH"


@pytest.mark.matrix
@FROM_MYSQL
@pytest.mark.timeout(300)
def test_a_stop_command_that_hangs_has_no_more_than_the_budget_and_the_application_is_released(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        stops_by(made, "sleep 1000", "hook_s: 1000", budget_s=1)
        lockstep("run", "shop.yaml")
        error = made.cutover("run", "shop.yaml", code=75)["error"]
        assert (error["code"], "no answer in time" in error["what"]) == ("cutover.rolled_back", True)
        assert told(made) == ["stop", "release"]
        nothing_is_left(made)


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hangs", ["the last look", "the meta database"])
def test_the_application_is_released_when_the_budget_is_over_whatever_hangs(
    lockstep: Any, servers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    with shop(lockstep, *servers) as made:
        stops_by(made, "true", "hook_s: 30", budget_s=10)
        lockstep("run", "shop.yaml")
        hung: list[str] = []
        with made.application() as application:
            goes_on(made, application)
            look, move = hold.written_since, Cutovers.move

            def slow_look(*arguments: Any) -> int:
                found = look(*arguments)
                hung.append("the last look")
                made.until(lambda: told(made) == ["stop", "release"])
                goes_on(made, application)
                return found

            def slow_move(meta: Meta, *arguments: Any) -> Any:
                moved = move(meta, *arguments)
                if "SWITCHING" in arguments:
                    hung.append("the meta database")
                    made.until(lambda: told(made) == ["stop", "release"])
                    goes_on(made, application)
                return moved

            if hangs == "the last look":
                monkeypatch.setattr(hold, "written_since", slow_look)
            else:
                monkeypatch.setattr(Cutovers, "move", slow_move)
            with (
                made.in_this_process(monkeypatch) as (work, lease),
                pytest.raises(RetryLater, match=r"longer than cutover\.budget_s") as caught,
            ):
                machine.run(work, lease)
            assert (caught.value.code, set(hung)) == ("cutover.rolled_back", {hangs})
            goes_on(made, application)
        assert not application.errors
        assert told(made) == ["stop", "release"]
        assert made.cutover("status", "shop.yaml")["state"] == "ROLLED_BACK"
        for table in TABLES:
            assert made.old(table) == application.written[table] | REST
        nothing_is_left(made)


def struck(
    made: Shop, commands: ForkedCommands, *arguments: str, module: str, function: str, when: str, signal: str
) -> str:
    """What a command says to which a signal is sent before or after a function."""
    flag = made.folder / f"struck_{function}"
    order = {"module": module, "function": function, "when": when, "call": 1, "victim": "process", "flag": str(flag),
             "signal": signal}  # fmt: skip
    environ = {**made.lockstep.environment, "LOCKSTEP_CRASH": json.dumps(order)}
    log = made.folder / "struck.log"
    started = commands.start(*arguments, "--json", directory=made.folder, environ=environ, log=log)
    made.until(lambda: started.ended, 120)
    started.kill()
    assert flag.exists(), log.read_text()
    return log.read_text()


@pytest.mark.matrix
@FROM_MYSQL
@pytest.mark.timeout(600)
@pytest.mark.parametrize("signal", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.matrix)])
def test_a_cutover_that_is_interrupted_before_its_switch_command_undoes_itself(
    lockstep: Any, commands: ForkedCommands, servers: tuple[Any, Any], signal: str
) -> None:
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        said = struck(made, commands, "cutover", "run", "shop.yaml", module="cdc_core.operations.cutover.machine",
                      function="gated_tables", when="before", signal=signal)  # fmt: skip
        found = made.cutover("status", "shop.yaml")
        assert (found["state"], found["last_error"]) == ("CHASE", "it was interrupted by a signal"), said
        nothing_is_left(made)


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_cutover_that_is_told_twice_to_end_lets_the_application_write_first(
    lockstep: Any, commands: ForkedCommands, servers: tuple[Any, Any], number: str
) -> None:
    """As Airflow tells it: at once, and when the task's process ends."""
    with shop(lockstep, *servers) as made:
        released = made.folder / "released"
        stops_by(made, "sleep 60", "hook_s: 120", budget_s=100, release=f"{{ sleep 3; touch {released}; }}")
        lockstep("run", "shop.yaml")
        log, environ = made.folder / "twice.log", made.lockstep.environment
        started = commands.start("cutover", "run", "shop.yaml", "--json", directory=made.folder, environ=environ,
                                 log=log)  # fmt: skip
        for phases in (["stop"], ["stop", "release"]):
            made.until(lambda phases=phases: (made.folder / "told").exists() and told(made) == phases)
            os.kill(started.pid, getattr(signal, number))
        made.until(lambda: started.ended)
        started.kill()
        assert released.exists(), log.read_text()
        assert '"run.interrupted"' in log.read_text()
        found = made.cutover("status", "shop.yaml")
        assert (found["state"], found["last_error"]) == ("CHASE", "it was interrupted by a signal")
        nothing_is_left(made)


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_cutover_whose_notes_nobody_reads_any_more_keeps_the_answer_of_its_switch_command(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        switching, gone = made.folder / "switching", made.folder / "gone"
        made.behave(f"touch {switching}; while [ ! -e {gone} ]; do sleep 0.1; done")
        lockstep("run", "shop.yaml")
        command = [sys.executable, "-m", "cdc_core.cli", "cutover", "run", "shop.yaml", "--json"]
        cutover = subprocess.Popen(
            command, cwd=made.folder, env={**made.lockstep.environment, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with cutover:
            made.until(switching.exists)
            assert cutover.stderr is not None
            cutover.stderr.close()
            gone.touch()
            assert cutover.stdout is not None
            said = json.loads(cutover.stdout.read())
        assert (cutover.returncode, said["state"], made.place_of_application()) == (0, "WATCH", "new")


@FROM_MYSQL
@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_move_whose_answer_was_lost_is_undone_too(
    lockstep: Any, servers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meta has written down that the command is called, and its connection was lost."""
    with shop(lockstep, *servers) as made:
        made.behave(more="attempts: 1")
        lockstep("run", "shop.yaml")
        move, interrupted = Cutovers.move, list[bool]()

        def lost(meta: Meta, *arguments: Any) -> Any:
            moved = move(meta, *arguments)
            if "SWITCHING" in arguments and not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt
            return moved

        monkeypatch.setattr(Cutovers, "move", lost)
        with (
            made.in_this_process(monkeypatch) as (work, lease),
            pytest.raises(KeyboardInterrupt),
        ):
            machine.run(work, lease)
        assert made.cutover("status", "shop.yaml")["state"] == "CHASE"
        nothing_is_left(made)


@FROM_MARIADB
@pytest.mark.timeout(600)
def test_a_cutover_back_that_was_killed_is_continued_by_the_same_command(
    lockstep: Any, commands: ForkedCommands, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        struck(made, commands, "cutover", "back", "shop.yaml", module="cdc_core.operations.cutover.moving",
               function="Moving.end_other", when="after", signal="SIGTERM")  # fmt: skip
        assert made.place_of_application() == "old"
        assert made.cutover("status", "shop_back.yaml", code=4)["state"] == "SWITCHED"
        ended = made.cutover("back", "shop.yaml")
        assert (ended["state"], ended["pipeline"]) == ("COMPLETE", f"{made.name}_back")
        assert made.cutover("back", "shop.yaml")["cutover"] == ended["cutover"]  # nothing is left to be done
        assert [phase for phase, *_ in made.called()] == ["switch"] * 2


@pytest.mark.matrix
@FROM_MARIADB
@pytest.mark.timeout(600)
def test_what_could_not_be_looked_up_when_a_person_answered_is_looked_up_before_the_way_back_is_let_in(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        made.behave("exit 9", "attempts: 1")
        lockstep("run", "shop.yaml")
        assert made.cutover("run", "shop.yaml", code=4)["error"]["code"] == "cutover.unknown"
        export(lockstep.environ)
        open_gates({"env:SOURCE": [(made.name, "orders")]})
        made.source.run(f"INSERT INTO {made.name}.orders VALUES (7, 7)")

        lockstep.environ["SOURCE"] = "mysql://nobody@127.0.0.1:1"  # the server is away
        for answer in (["--answer", "switched"], []):
            error = made.cutover("resume", "shop.yaml", *answer, code=75)["error"]
            assert error["code"] == "cutover.unchecked"
        found = made.cutover("status", "shop.yaml", code=4)
        assert (found["state"], found["unchecked"] is None) == ("SWITCHED", False)
        assert "nobody knows whether the old tables took writes" in found["last_error"]
        lockstep.environ["SOURCE"] = made.source.url
        made.target.run(f"INSERT INTO {made.name}_0.orders_0 (id, n) VALUES (4, 4)")
        assert json.loads(lockstep("run", "shop_back.yaml", code=3).out)["error"]["code"] == "target.fenced"

        slipped = made.cutover("resume", "shop.yaml", code=4)["error"]
        assert (slipped["code"], "the old tables took 1 changes" in slipped["what"]) == ("cutover.slipped_before", True)
        found = made.cutover("resume", "shop.yaml")
        assert (found["state"], found["unchecked"], found["slipped"]) == ("WATCH", None, 1)
        assert "took 1 changes after the final position" in made.cutover("status", "shop.yaml")["last_error"]
        with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
            made.source.run(f"DELETE FROM {made.name}.orders")
        lockstep("run", "shop_back.yaml")
        assert made.old("orders") == REST | {4: 4, 7: 7}


@FROM_MYSQL
@pytest.mark.timeout(600)
def test_nobody_says_not_switched_where_the_command_has_said_that_it_has_switched(
    lockstep: Any, servers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends between the command's answer and what follows from it, and the application writes on."""
    with shop(lockstep, *servers) as made:
        made.behave(more="attempts: 1")
        lockstep("run", "shop.yaml")

        def killed(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(machine, "answered", killed)
        with (
            made.in_this_process(monkeypatch) as (work, lease),
            pytest.raises(KeyboardInterrupt),
        ):
            machine.run(work, lease)
        assert (made.cutover("status", "shop.yaml", code=4)["state"], made.place_of_application()) == (
            "SWITCHING",
            "new",
        )
        made.target.run(f"INSERT INTO {made.name}_0.orders_0 (id, n) VALUES (4, 4)")
        error = made.cutover("resume", "shop.yaml", "--answer", "not-switched", code=2)["error"]
        assert (error["code"], "leave --answer out" in error["remedy"]) == ("usage.argument", True)
        made.refuses_late_writes()
        assert made.cutover("resume", "shop.yaml")["state"] == "WATCH"
        lockstep("run", "shop_back.yaml")
        assert made.old("orders") == made.new("orders") == REST | {4: 4}


@FROM_MYSQL
@pytest.mark.timeout(600)
def test_a_cutover_is_ended_at_the_target_that_it_leads_to_and_a_chase_is_given_up(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        made.behave(more="attempts: 3, chase: 1s", max_lag_s=0.001)
        lockstep("run", "shop.yaml")
        error = made.cutover("run", "shop.yaml", code=75)["error"]
        assert (error["code"], "no 3 runs in a row took less than 0.001 s" in error["what"]) == (
            "cutover.rolled_back", True,
        )  # fmt: skip

        made.behave("exit 9", "attempts: 1")
        assert made.cutover("run", "shop.yaml", code=4)["error"]["code"] == "cutover.unknown"
        path = made.folder / "shop.yaml"
        text = path.read_text().replace("snapshot:", SECOND.format(name=made.name) + "snapshot:")
        path.write_text(text)
        first, second = f"{made.name}_shards", f"{made.name}_others"
        for verb in (["resume", "--answer", "not-switched"], ["abort"], ["run"]):
            error = made.cutover(*verb, "shop.yaml", "--target", second, code=2)["error"]
            assert (error["code"], f"--target {first}" in error["remedy"]) == ("usage.argument", True)
        assert made.cutover("status", "shop.yaml", code=4)["state"] == "SWITCHING"
        made.cutover("resume", "--answer", "not-switched", "shop.yaml", "--target", first, code=3)
        assert made.cutover("abort", "shop.yaml", "--target", second, code=2)["error"]["code"] == "usage.argument"
        assert made.cutover("abort", "shop.yaml", "--target", first)["state"] == "ROLLED_BACK"


@pytest.mark.matrix
@FROM_MYSQL
@pytest.mark.timeout(600)
def test_nobody_is_led_away_from_tables_that_the_application_has_left(
    lockstep: Any, servers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What equals them lacks what the application has written since."""
    with shop(lockstep, *servers) as made:
        made.behave(more="attempts: 1")
        path = made.folder / "shop.yaml"
        path.write_text(path.read_text().replace("snapshot:", SECOND.format(name=made.name) + "snapshot:"))
        first, second = (("shop.yaml", "--target", f"{made.name}_{name}") for name in ("shards", "others"))
        lockstep("run", "shop.yaml")
        assert made.cutover("rehearse", *second)["state"] == "ROLLED_BACK"
        assert made.cutover("run", *first)["state"] == "WATCH"
        assert made.cutover("complete", *first)["state"] == "COMPLETE"
        (made.folder / "shop_back.yaml").unlink()  # nobody goes back
        made.target.run(f"INSERT INTO {made.name}_0.orders_0 (id, n) VALUES (4, 4)")
        for verb in ("plan", "run"):
            assert made.cutover(verb, *second, code=3)["error"]["code"] == "cutover.left_before"
        assert made.cutover("status", "shop.yaml")["state"] == "COMPLETE"

        # Gates that another cutover closes at the same time are seen after those of this one.
        for module in (moving, readiness):
            monkeypatch.setattr(module, "require_not_left", lambda *_: None)
        with (
            made.in_this_process(monkeypatch, second[2]) as (work, lease),
            pytest.raises(Refused) as caught,
        ):
            machine.run(work, lease)
        assert caught.value.code == "cutover.left_before"
        for _ in range(2):
            assert made.cutover("abort", *second)["state"] == "ROLLED_BACK"
        made.refuses_late_writes()
        assert [phase for phase, *_ in made.called()] == ["switch"]


@pytest.mark.matrix
@FROM_MYSQL
@pytest.mark.timeout(600)
def test_a_cutover_that_was_paused_while_another_process_has_finished_it_leaves_the_way_back_in(
    lockstep: Any, servers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop(lockstep, *servers) as made:
        made.behave(more="attempts: 1")
        lockstep("run", "shop.yaml")
        chase = machine.chase
        with made.in_this_process(monkeypatch) as (work, lease):

            def paused(*arguments: Any) -> Any:
                found = chase(*arguments)
                work.meta.leases.release(lease)  # as if it had expired
                assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
                return found

            monkeypatch.setattr(machine, "chase", paused)
            with pytest.raises(RetryLater) as caught:
                machine.run(work, lease)
        assert caught.value.code == "lease.lost"
        made.target.run(f"INSERT INTO {made.name}_0.orders_0 (id, n) VALUES (4, 4)")
        lockstep("run", "shop_back.yaml")
        assert made.old("orders") == REST | {4: 4}


@FROM_MYSQL
@pytest.mark.timeout(600)
def test_a_rehearsal_that_was_stopped_is_resumed_as_a_rehearsal(
    lockstep: Any, servers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop(lockstep, *servers) as made:
        made.behave(more="attempts: 1")
        lockstep("run", "shop.yaml")

        def stopped(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(machine, "chase", stopped)
        with (
            made.in_this_process(monkeypatch) as (work, lease),
            pytest.raises(KeyboardInterrupt),
        ):
            machine.run(work, lease, rehearse=True)
        assert made.cutover("status", "shop.yaml")["state"] == "CHASE"
        assert made.cutover("resume", "shop.yaml")["state"] == "ROLLED_BACK"
        assert made.called() == []


SECOND = """
  - name: {name}_others
    connections: [env:TARGET]
    on_missing_table: create
    tables: {{'*': {{database: "{name}_0", table: "{{logical}}_others"}}}}
"""


@FROM_MYSQL
@pytest.mark.timeout(600)
def test_a_backup_that_begins_while_the_switch_command_runs_keeps_nobody_from_writing(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made, made.source.connect(autocommit=True) as backup, backup.cursor() as cursor:
        mariadb = isinstance(made.source, MariaDb)
        begin = ("BACKUP STAGE START", "BACKUP STAGE BLOCK_DDL") if mariadb else ("LOCK INSTANCE FOR BACKUP",)
        switching, gone = made.folder / "switching", made.folder / "gone"
        made.behave(f"touch {switching}; while [ ! -e {gone} ]; do sleep 0.1; done; exit 3")
        lockstep("run", "shop.yaml")
        command = lockstep.command("cutover", "run", "shop.yaml", "--json")
        with subprocess.Popen(command, cwd=made.folder, env=lockstep.environment, stdout=subprocess.PIPE) as cutover:
            made.until(switching.exists)
            made.refuses_late_writes_at("old")
            for statement in begin:
                cursor.execute(statement)
            gone.touch()
            assert cutover.stdout is not None
            said = json.loads(cutover.stdout.read())
        assert (cutover.returncode, said["error"]["code"]) == (3, "cutover.not_switched")
        made.source.run(f"INSERT INTO {made.name}.orders VALUES (7, 7)")
        assert made.cutover("status", "shop.yaml")["state"] == "ROLLED_BACK"
        cursor.execute("BACKUP STAGE END" if mariadb else "UNLOCK INSTANCE")
        lockstep("run", "shop.yaml")
        made.cutover("abort", "shop.yaml")
        trigger = "SELECT * FROM information_schema.TRIGGERS WHERE TRIGGER_NAME LIKE '%lockstep_gate%'"
        assert cursor.execute(trigger) == 0


@FROM_MARIADB
@pytest.mark.timeout(600)
def test_what_a_switch_command_has_answered_is_known_whatever_fails_then(
    lockstep: Any, servers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the gates is away when they are to be opened."""
    with shop(lockstep, *servers) as made:
        made.behave("exit 3", "attempts: 1")
        lockstep("run", "shop.yaml")

        def away(*_: Any) -> None:
            raise RetryLater("away", where="the server", code="cutover.not_undone", remedy="later")

        with monkeypatch.context() as patched, made.in_this_process(patched) as (work, lease):
            patched.setattr(moving, "open_made", away)
            with pytest.raises(RetryLater, match="away"):
                machine.run(work, lease)
        for command in (["status"], ["cutover", "status"]):
            told = json.loads(lockstep(*command, "shop.yaml", "--json", code=4).out)
            problem = told["problems"][0] if "problems" in told else told["problem"]
            assert (problem["code"], problem["since"] != "") == ("cutover.not_undone", True)
            assert "writes to the old tables may fail" in problem["what"]
            assert "`lockstep cutover abort shop.yaml`" in problem["remedy"]
        with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
            made.source.run(f"DELETE FROM {made.name}.orders")
        assert made.cutover("abort", "shop.yaml")["state"] == "ROLLED_BACK"
        for command in (["status"], ["cutover", "status"]):
            lockstep(*command, "shop.yaml")
        made.source.run(f"INSERT INTO {made.name}.orders VALUES (7, 7)")


@FROM_MARIADB
@pytest.mark.timeout(600)
def test_gates_that_are_gone_are_told_until_they_are_closed_again(lockstep: Any, servers: tuple[Any, Any]) -> None:
    """The tool of a schema change swaps the table for another one, which has no triggers."""
    with shop(lockstep, *servers) as made:
        orders = f"{made.name}.orders"
        lockstep("run", "shop.yaml")
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        lockstep("run", "shop_back.yaml")
        lockstep("verify", "shop_back.yaml")
        made.cutover("status", "shop.yaml")

        made.source.run(f"CREATE TABLE {orders}_new LIKE {orders}", "SET @lockstep_writes = 1",
                        f"INSERT INTO {orders}_new SELECT * FROM {orders}",
                        f"RENAME TABLE {orders} TO {orders}_old, {orders}_new TO {orders}",
                        f"INSERT INTO {orders} VALUES (8, 8)")  # fmt: skip
        made.target.run(f"INSERT INTO {made.name}_0.orders_0 (id, n) VALUES (4, 4)")
        for command in (["run", "shop_back.yaml"], ["status", "shop_back.yaml"], ["run", "shop_back.yaml"],
                        ["cutover", "status", "shop.yaml"], ["cutover", "complete", "shop.yaml"],
                        ["cutover", "back", "shop.yaml"]):  # fmt: skip
            told = json.loads(lockstep(*command, "--json", code=4).out)
            error = told["problems"][0] if "problems" in told else told["error"]
            assert (error["code"], orders in error["what"]) == ("cutover.gates_gone", True), command
        assert made.old("orders") == REST | {4: 4, 8: 8}  # what the application writes is carried nevertheless

        assert made.cutover("resume", "shop.yaml")["state"] == "WATCH"
        made.refuses_late_writes()
        found = made.cutover("status", "shop.yaml")["way_back"]
        assert (found["ready"], "gates of its tables were gone" in found["said"]) == (False, True)
        lockstep("status", "shop_back.yaml")
        assert made.cutover("back", "shop.yaml", code=4)["error"]["code"] == "verify.differs"
        lockstep("repair", "shop_back.yaml")
        made.cutover("abort", "shop_back.yaml")
        assert made.cutover("complete", "shop.yaml")["state"] == "COMPLETE"
        made.source.run(f"DROP TRIGGER {made.name}._lockstep_gate_items_delete")
        assert made.cutover("status", "shop.yaml", code=4)["error"]["code"] == "cutover.gates_gone"
        made.cutover("resume", "shop.yaml")
        made.refuses_late_writes()
