"""Cutovers of an application that writes all the time, with its own log as witness: no write is lost or made twice."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

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
TABLES = ("orders", "items")


class Application:
    """Writes to the place that the file `to` names. written: what servers have confirmed, by table and id."""

    def __init__(self, folder: Path, source: Any, target: Any, name: str) -> None:
        self._folder, self._servers, self._name = folder, {"old": source, "new": target}, name
        self.written: dict[str, dict[int, int]] = {table: {} for table in TABLES}
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
    (made.folder / "to").write_text("old")
    made.behave()
    try:
        yield made
    finally:
        for server, names in ((source, [name]), (target, [f"{name}_0", f"{name}_1"])):
            with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
                for one in names:
                    cursor.execute(f"DROP DATABASE IF EXISTS {one}")


@pytest.fixture(params=["mysql9 to mariadb", "mariadb to mysql9"])
def servers(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    source, target = {
        "mysql9 to mariadb": ("mysql9", "mariadb_target"), "mariadb to mysql9": ("mariadb", "mysql9")
    }[request.param]  # fmt: skip
    return request.getfixturevalue(source), request.getfixturevalue(target)


REST = {1000: 1, 1001: 1, 1002: 2}
"""Rows that the application does not write."""


@pytest.mark.timeout(900)
def test_an_application_is_switched_and_led_back_without_losing_a_write(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        lockstep("run", "shop.yaml")
        assert sorted(made.cutover("plan", "shop.yaml")["tables"]) == ["items", "orders"]
        with made.application() as application:
            made.until(lambda: len(application.written["orders"]) > 20)
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
            assert made.called() == [["switch", "back", back["cutover"]]]
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
