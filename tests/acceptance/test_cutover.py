"""Cutovers of an application that writes all the time, with its own log as witness: no write is lost or made twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_core.cli import cutover as cli
from cdc_core.cli.output import CliOutput
from cdc_core.cutover import hold, machine
from cdc_core.cutover.moving import cutover_lease
from cdc_core.errors import RetryLater

PIPELINE = """
pipeline: {name}
sources: [{{name: {name}, connection: env:SOURCE, server_id: 5191, start: latest}}]
tables: {{include: ['{name}\\.(orders|items)']}}
routes: [{{match: '{name}\\.(.*)', to: '\\1'}}]
stage: {{uri: "file://{folder}/stage"}}
meta: {{url: "sqlite:///{folder}/meta.db"}}
targets:
  - name: {name}_shards
    connections: [env:TARGET]
    on_missing_table: create
    tables:
      '*': {{database: "{name}_{{d}}", table: "{{logical}}_{{t}}", sharding: {{key: id, databases: 2, tables: 2}}}}
snapshot: {{mode: initial}}
limits: {{lease_s: 5}}
cutover: {{switch_with: {folder}/switch.sh, budget_s: 20, max_lag_s: 10, {more}}}
"""
SWITCH = """#!/bin/sh
echo "$LOCKSTEP_CUTOVER_PHASE $LOCKSTEP_CUTOVER_DIRECTION $LOCKSTEP_CUTOVER_ID" >> {folder}/called
if [ "$LOCKSTEP_CUTOVER_PHASE" = switch ]; then
  {behaviour}
  if [ "$LOCKSTEP_CUTOVER_DIRECTION" = there ]; then echo new > {folder}/.to; else echo old > {folder}/.to; fi
  mv {folder}/.to {folder}/to
fi
"""
pytestmark = [pytest.mark.slow, pytest.mark.spark]

TABLES = ("orders", "items")


class Application:
    """Writes to the place that the file `to` names. written: what servers have confirmed, by table and id."""

    def __init__(self, folder: Path, source: Any, target: Any, name: str) -> None:
        self._folder, self._servers, self._name = folder, {"old": source, "new": target}, name
        self.written: dict[str, dict[int, int]] = {table: {} for table in TABLES}
        self._count = 0
        self.refused = 0
        self.longest_s = 0.0
        self.errors: list[Exception] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(at,)) for at in range(3)]

    def __enter__(self) -> Application:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def count(self) -> int:
        """Of writes."""
        return self._count

    def place(self, table: str, key: int) -> tuple[str, str]:
        to = (self._folder / "to").read_text().strip()
        shard = key % 4
        return to, (f"{self._name}.{table}" if to == "old" else f"{self._name}_{shard // 2}.{table}_{shard % 2}")

    def _write(self, number: int) -> None:
        try:
            sessions = {to: server.connect(autocommit=True) for to, server in self._servers.items()}
            turn = 0
            while not self._stop.is_set():
                turn += 1
                table, key = TABLES[turn % 2], number + 3 * (turn * 7 % 50)
                before_s = time.monotonic()
                while not self._put(sessions, table, key, turn):
                    time.sleep(0.01)
                self.longest_s = max(self.longest_s, time.monotonic() - before_s)
                self.written[table][key] = turn
                self._count += 1
                time.sleep(0.005)
        except pymysql.err.MySQLError as error:
            self.errors.append(error)

    def _put(self, sessions: dict[str, Any], table: str, key: int, value: int) -> bool:
        to, place = self.place(table, key)
        try:
            with sessions[to].cursor() as cursor:
                cursor.execute(
                    f"INSERT INTO {place} (id, n) VALUES ({key}, {value}) ON DUPLICATE KEY UPDATE n = {value}"
                )
        except pymysql.err.MySQLError as error:
            if error.args[0] != 1644:  # the gate of an old table
                raise
            self.refused += 1
            return False
        return True


class Shop:
    """A pipeline, its servers and its application."""

    def __init__(self, lockstep: Any, source: Any, target: Any, name: str) -> None:
        self.lockstep, self.source, self.target, self.name = lockstep, source, target, name
        self.folder = Path(lockstep.directory)

    def behave(self, behaviour: str = "true", more: str = "attempts: 2") -> None:
        """behaviour: of the switch command, before it switches."""
        (self.folder / "switch.sh").write_text(SWITCH.format(folder=self.folder, behaviour=behaviour))
        (self.folder / "switch.sh").chmod(0o755)
        text = PIPELINE.format(name=self.name, folder=self.folder, more=more)
        (self.folder / "shop.yaml").write_text(text)

    def lead(self, to: str) -> None:
        """Leads the application to a place, as the switch command does."""
        (self.folder / ".by_hand").write_text(to)
        (self.folder / ".by_hand").replace(self.folder / "to")

    def application(self) -> Application:
        return Application(self.folder, self.source, self.target, self.name)

    def cutover(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = self.lockstep("cutover", *arguments, code=code)
        document: dict[str, Any] = json.loads(done.out)
        return document

    def old(self, table: str) -> dict[int, int]:
        return self._rows(self.source, [f"{self.name}.{table}"])

    def new(self, table: str) -> dict[int, int]:
        return self._rows(self.target, [f"{self.name}_{d}.{table}_{t}" for d in range(2) for t in range(2)])

    def _rows(self, server: Any, places: list[str]) -> dict[int, int]:
        found: list[tuple[int, int]] = []
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            for place in places:
                cursor.execute(f"SELECT id, n FROM {place}")
                found += cursor.fetchall()
        assert len(dict(found)) == len(found), "a row is there twice"
        return dict(found)

    def called(self) -> list[list[str]]:
        path = self.folder / "called"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, reached: Callable[[], bool], patience_s: float = 60) -> None:
        end_s = time.monotonic() + patience_s
        while not reached():
            assert time.monotonic() < end_s
            time.sleep(0.05)


def execute(server: Any, *statements: str) -> None:
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextmanager
def shop(lockstep: Any, source: Any, target: Any) -> Iterator[Shop]:
    name = f"move_{uuid.uuid4().hex[:8]}"
    made = Shop(lockstep, source, target, name)
    lockstep.environ |= {"SOURCE": source.url, "TARGET": target.url}
    with source.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        for table in TABLES:
            cursor.execute(f"CREATE TABLE {name}.{table} (id INT PRIMARY KEY, n INT NOT NULL)")
            cursor.execute(f"INSERT INTO {name}.{table} VALUES (1000, 1), (1001, 1), (1002, 2)")
    made.lead("old")
    made.behave()
    try:
        yield made
    finally:
        for server, names in ((source, [name]), (target, [f"{name}_0", f"{name}_1"])):
            for one in names:
                made.until(partial(dropped, server, one))


def dropped(server: Any, database: str) -> bool:
    """A server that is still deleting files of its tables says that the directory is not empty."""
    try:
        execute(server, f"DROP DATABASE IF EXISTS {database}")
    except pymysql.err.OperationalError as error:
        if error.args[0] != 1010:
            raise
        return False
    return True


PAIRS = {"mysql9 to mariadb": ("mysql9", "mariadb_target"), "mariadb to mysql9": ("mariadb", "mysql9")}


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    source, target = PAIRS[request.param]
    return request.getfixturevalue(source), request.getfixturevalue(target)


def always(first: str) -> Any:
    """Both pairs of servers, of which the other is left to the matrix."""
    chosen = [pytest.param(name, marks=[] if name == first else [pytest.mark.matrix]) for name in PAIRS]
    return pytest.mark.parametrize("servers", chosen, indirect=True)


FROM_MYSQL, FROM_MARIADB = always("mysql9 to mariadb"), always("mariadb to mysql9")


REST = {1000: 1, 1001: 1, 1002: 2}
"""Rows that the application does not write."""


@FROM_MYSQL
@pytest.mark.timeout(900)
def test_an_application_is_switched_and_led_back_without_losing_a_write(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        assert sorted(made.cutover("plan", "shop.yaml")["tables"]) == ["items", "orders"]
        with made.application() as application:
            made.until(lambda: len(application.written["orders"]) > 20)
            tried = made.cutover("rehearse", "shop.yaml")
            assert (tried["state"], made.called()) == ("ROLLED_BACK", [])
            assert [one["state"] for one in tried["steps"]][-3:] == ["PROVED", "CHASE", "ROLLED_BACK"]
            assert 0 < tried["stopped_s"] < 20
            goes_on(made, application)
            assert application.refused == 0
            there = made.cutover("run", "shop.yaml")
            assert (there["state"], there["way_back"]["ready"]) == ("WATCH", False)
            assert 0 < there["stopped_s"] < 20
            assert made.called() == [["switch", "there", there["cutover"]]]
            time.sleep(1)
        assert not application.errors
        for table in TABLES:
            assert made.new(table) == application.written[table] | REST
            assert made.old(table) != made.new(table)

        # The old tables take no writes but Lockstep's, the new ones all but Lockstep's.
        for statement in ("INSERT INTO {} VALUES (5, 5)", "UPDATE {} SET n = 0", "DELETE FROM {}"):
            with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
                execute(made.source, statement.format(f"{made.name}.orders"))
        late = lockstep("run", "shop.yaml", "--replay", "--target", f"{made.name}_shards", code=3)
        assert json.loads(late.out)["error"]["code"] == "target.fenced"
        assert made.new("orders") == application.written["orders"] | REST

        lockstep("run", "shop_back.yaml")
        for table in TABLES:
            assert made.old(table) == made.new(table)
        assert json.loads(lockstep("verify", "shop_back.yaml").out)["equal"] is True
        ready = made.cutover("status", "shop.yaml")["way_back"]
        assert ready["ready"] is True, ready

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
        with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
            execute(made.target, f"DELETE FROM {made.name}_0.orders_0")

        # The pipeline carries changes to the target again, and there is a second way there.
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
        assert made.cutover("complete", "shop.yaml")["state"] == "COMPLETE"


def killed_at(made: Shop, state: str, verb: str) -> None:
    """Runs a cutover, as soon as the lease of a killed one allows, and kills it with all that it has started when it
    says that it has come to a state."""
    end_s = time.monotonic() + 90
    while not _came_to(made, state, verb):
        assert time.monotonic() < end_s
        time.sleep(0.5)


def _came_to(made: Shop, state: str, verb: str) -> bool:
    process = subprocess.Popen(
        made.lockstep.command("cutover", verb, "shop.yaml"), cwd=made.folder, env=made.lockstep.environment, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if line.strip() == state:
                return True
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
    assert "cutover.running" in "".join(said), "".join(said)
    return False


def after_a_kill(made: Shop, verb: str) -> dict[str, Any]:
    """The answer to a command for a cutover whose process was killed, as soon as the lease allows."""
    end_s = time.monotonic() + 90
    while True:
        done = made.lockstep("cutover", verb, "shop.yaml", code=None)
        document: dict[str, Any] = json.loads(done.out)
        code = document.get("error", {}).get("code")
        if code not in ("cutover.running", "cutover.rolled_back"):
            assert code is None, done.out + done.err
            return document
        assert time.monotonic() < end_s, done.out + done.err
        time.sleep(0.5)


def goes_on(made: Shop, application: Application) -> None:
    """The application writes."""
    before = application.count
    made.until(lambda: application.count > before + 10)


@FROM_MARIADB
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "states",
    [
        pytest.param(["STOPPED", "ARMED"], id="sample"),
        pytest.param(["CHASE", "DRAINED", "PROVED", "STOPPED", "ARMED"], id="all", marks=pytest.mark.matrix),
    ],
)
def test_a_cutover_that_is_killed_leaves_the_application_where_it_was(
    lockstep: Any, servers: tuple[Any, Any], states: list[str]
) -> None:
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        with made.application() as application:
            goes_on(made, application)
            verb = "run"
            for state in states:
                killed_at(made, state, verb)
                if state == "ARMED":  # or further; its gates are closed until the next one opens them
                    if settled(made, there=True) == "WATCH":
                        break
                    verb = "run"
                else:
                    verb = "resume"
                    assert made.called() == []
                goes_on(made, application)
            found = after_a_kill(made, verb)
            assert found["state"] == "WATCH"
            goes_on(made, application)
        assert not application.errors
        for table in TABLES:
            assert made.new(table) == application.written[table] | REST
        lockstep("run", "shop_back.yaml")
        for table in TABLES:
            assert made.old(table) == made.new(table)


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
                execute(made.source, f"DELETE FROM {made.name}.orders")
            assert made.cutover("resume", "shop.yaml", "--answer", "not-switched", code=3)["error"]["code"] == (
                "cutover.not_switched"
            )
            assert made.cutover("status", "shop.yaml")["state"] == "ROLLED_BACK"
            goes_on(made, application)

            made.behave("sleep 60", "hook_s: 0.5")
            assert made.cutover("run", "shop.yaml", code=4)["error"]["code"] == "cutover.unknown"
            made.lead("new")
            assert made.cutover("resume", "shop.yaml", "--answer", "switched")["state"] == "WATCH"
            goes_on(made, application)
        assert not application.errors
        for table in TABLES:
            assert made.new(table) == application.written[table] | REST
        assert [phase for phase, *_ in made.called()] == ["switch"] * 3


@FROM_MARIADB
@pytest.mark.timeout(900)
def test_transactions_that_are_open_when_writes_stop_are_waited_for(lockstep: Any, servers: tuple[Any, Any]) -> None:
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        execute(made.source, "XA START 'moving'", f"UPDATE {made.name}.items SET n = 77 WHERE id = 1000",
                "XA END 'moving'", "XA PREPARE 'moving'")  # fmt: skip
        made.behave(more="attempts: 1, patience_s: 1")
        prepared = made.cutover("run", "shop.yaml", code=75)["error"]
        assert prepared["code"] == "cutover.rolled_back"
        assert "transactions that have written to them are still open" in prepared["what"]
        execute(made.source, "XA COMMIT 'moving'")

        with made.source.connect(autocommit=False) as session, session.cursor() as cursor:
            cursor.execute(f"UPDATE {made.name}.orders SET n = 99 WHERE id = 1000")
            made.behave(more="attempts: 1, patience_s: 20")
            process = subprocess.Popen(
                lockstep.command("cutover", "run", "shop.yaml"), cwd=made.folder, env=lockstep.environment, text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if line.strip() == "STOPPED":
                    time.sleep(3)
                    assert made.called() == []
                    session.commit()
            process.stderr.close()
            assert process.wait() == 0, "".join(said)
        assert made.new("orders") == {1000: 99, 1001: 1, 1002: 2}
        assert made.new("items") == {1000: 77, 1001: 1, 1002: 2}


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_writes_that_were_stopped_for_too_long_continue(lockstep: Any, mariadb: Any, mariadb_target: Any) -> None:
    with shop(lockstep, mariadb, mariadb_target) as made:
        made.behave(more=f"attempts: 2, stop_with: {made.folder}/switch.sh")
        text = (made.folder / "shop.yaml").read_text().replace("budget_s: 20", "budget_s: 0.01")
        (made.folder / "shop.yaml").write_text(text)
        lockstep("run", "shop.yaml")
        with made.application() as application:
            goes_on(made, application)
            error = made.cutover("run", "shop.yaml", code=75)["error"]
            assert error["code"] == "cutover.rolled_back"
            goes_on(made, application)
        assert not application.errors
        assert application.refused == 0
        assert [phase for phase, *_ in made.called()] == ["stop", "release"] * 2


@pytest.mark.timeout(600)
def test_rows_that_differ_stop_a_cutover_before_anything_is_switched(
    lockstep: Any, mysql9: Any, mariadb_target: Any
) -> None:
    """A row that changed since the verification, and a row that nobody staged: neither is in the evidence."""
    with shop(lockstep, mysql9, mariadb_target) as made:
        lockstep("run", "shop.yaml")
        lockstep("verify", "shop.yaml")
        execute(mysql9, f"UPDATE {made.name}.orders SET n = 5 WHERE id = 1000")
        lockstep("run", "shop.yaml")
        execute(mariadb_target, f"UPDATE {made.name}_0.orders_0 SET n = 6 WHERE id = 1000")
        changed = made.cutover("run", "shop.yaml", code=4)["error"]
        assert (changed["code"], "1 rows of orders differ" in changed["what"]) == ("cutover.differs", True)
        assert [one["state"] for one in made.cutover("status", "shop.yaml")["steps"]] == ["PREPARED", "CHASE"]

        execute(mariadb_target, f"UPDATE {made.name}_0.orders_0 SET n = 5 WHERE id = 1000",
                f"INSERT INTO {made.name}_0.items_0 (id, n) VALUES (4, 4)")  # fmt: skip
        stray = made.cutover("run", "shop.yaml", code=4)["error"]
        assert (stray["code"], stray["what"].startswith("items has ")) == ("cutover.differs", True)
        assert made.cutover("status", "shop.yaml")["state"] == "CHASE"
        execute(mysql9, f"INSERT INTO {made.name}.orders VALUES (7, 7)")  # nothing is locked or gated

        execute(mariadb_target, f"DELETE FROM {made.name}_0.items_0 WHERE id = 4")
        assert made.cutover("resume", "shop.yaml")["state"] == "WATCH"
        assert made.new("orders") == REST | {1000: 5, 7: 7}


@FROM_MYSQL
@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_process_that_is_paused_loses_its_locks_and_changes_nothing_later(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        made.behave(more="attempts: 1")
        path = made.folder / "shop.yaml"
        path.write_text(path.read_text().replace("budget_s: 20", "budget_s: 4"))
        lockstep("run", "shop.yaml")
        with made.application() as application:
            goes_on(made, application)
            process = subprocess.Popen(
                lockstep.command("cutover", "run", "shop.yaml"), cwd=made.folder, env=lockstep.environment, text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert process.stderr is not None
            for line in process.stderr:
                if line.strip() == "DRAINED":
                    process.send_signal(signal.SIGSTOP)
                    break
            else:
                raise AssertionError("it did not come to DRAINED")
            goes_on(made, application)
            assert after_a_kill(made, "abort")["state"] == "ROLLED_BACK"
            process.send_signal(signal.SIGCONT)
            process.stderr.read()
            process.stderr.close()
            assert process.wait() != 0
            goes_on(made, application)
            assert (made.called(), application.refused) == ([], 0)
            assert made.cutover("status", "shop.yaml")["state"] == "ROLLED_BACK"
        assert not application.errors


def answer_for(made: Shop, pipeline: str) -> None:
    """What a person would answer: the file says where the application writes."""
    there = not pipeline.endswith("_back.yaml")
    switched = ((made.folder / "to").read_text().strip() == "new") == there
    made.lockstep("cutover", "resume", pipeline, "--answer", "switched" if switched else "not-switched", code=None)


@FROM_MYSQL
@pytest.mark.matrix
@pytest.mark.timeout(7200)
def test_cutovers_with_kills_at_random_moments_end_switched_or_rolled_back(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    """There and back again, killed at any moment; each ends where the application writes, which has every write."""
    seed = int(os.environ.get("LOCKSTEP_SEED", random.randrange(1 << 30)))
    chance = random.Random(seed)
    ended: Counter[str] = Counter()
    with shop(lockstep, *servers) as made:
        made.behave("sleep 0.3", "attempts: 1")
        lockstep("run", "shop.yaml")
        with made.application() as application:
            goes_on(made, application)
            for turn in range(int(os.environ.get("LOCKSTEP_CUTOVERS", "6"))):
                before = (made.folder / "to").read_text().strip()
                there = before == "old"
                process = subprocess.Popen(
                    lockstep.command("cutover", *(("run",) if there else ("back",)), "shop.yaml"), cwd=made.folder,
                    env=lockstep.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
                killed = chance.random() < 0.8
                try:
                    process.wait(chance.uniform(4, 30) if killed else 300)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                ended[settled(made, there)] += 1
                assert not application.errors, (seed, turn, application.errors)
                goes_on(made, application)
                now = (made.folder / "to").read_text().strip()
                old, new = ("old", "new") if there else ("new", "old")
                assert now == (new if made_switched(made, there) else old), (seed, turn)
        assert not application.errors
        last = made.new if (made.folder / "to").read_text().strip() == "new" else made.old
        for table in TABLES:
            assert last(table) == application.written[table] | REST, seed
    print(f"seed {seed}: {dict(ended)}; longest write {application.longest_s:.1f} s")


def made_switched(made: Shop, there: bool) -> bool:
    state = made.cutover("status", "shop.yaml")["state"]
    return state == "WATCH" if there else state != "WATCH"


def settled(made: Shop, there: bool) -> str:
    """Ends a cutover that was killed, as a person would; the state that it ends in."""
    end_s = time.monotonic() + 300
    pipeline = "shop.yaml" if there else "shop_back.yaml"
    while True:
        assert time.monotonic() < end_s
        state = json.loads(made.lockstep("cutover", "status", pipeline).out).get("state")
        if state in (None, "ROLLED_BACK", "COMPLETE", "BACK", "WATCH"):
            return str(state)
        if state == "SWITCHING":
            answer_for(made, pipeline)
        else:
            made.lockstep("cutover", "resume" if state == "SWITCHED" else "abort", pipeline, code=None)
        time.sleep(0.3)


@pytest.mark.timeout(600)
def test_a_write_that_slips_through_before_the_gates_close_is_found_in_the_log(
    lockstep: Any, mysql9: Any, mariadb_target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks end too early, and another extractor stages the write before the cutover looks."""
    with shop(lockstep, mysql9, mariadb_target) as made:
        made.behave(more="attempts: 1")
        monkeypatch.setenv("SOURCE", mysql9.url)
        monkeypatch.setenv("TARGET", mariadb_target.url)
        lockstep("run", "shop.yaml")
        fence = hold.raise_fences

        def too_late(*arguments: Any) -> None:
            fence(*arguments)
            with mysql9.connect(autocommit=True) as session, session.cursor() as cursor:
                cursor.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep'")
                for (number,) in cursor.fetchall():
                    with suppress(pymysql.err.MySQLError):
                        cursor.execute(f"KILL {number}")
            execute(mysql9, f"INSERT INTO {made.name}.orders VALUES (8, 8)")
            lockstep("extract", "shop.yaml")

        monkeypatch.setattr(hold, "raise_fences", too_late)
        with (
            cli._work(str(made.folder / "shop.yaml"), made.folder, None, CliOutput(as_json=True)) as work,
            cutover_lease(work) as lease,
            pytest.raises(RetryLater, match="1 changes were made after"),
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
        execute(mariadb, f"CREATE TABLE {made.name}.later (id INT PRIMARY KEY, n INT NOT NULL)",
                f"INSERT INTO {made.name}.later VALUES (1, 1)")  # fmt: skip
        lockstep("run", "shop.yaml")
        assert "verifying every row" in lockstep("cutover", "rehearse", "shop.yaml").err
        assert "verifying every row" not in lockstep("cutover", "rehearse", "shop.yaml").err
