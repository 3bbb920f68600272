"""An application that writes to a pipeline's source or target all the time, with its own log as witness."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_core.config import load
from cdc_core.meta import Lease
from cdc_core.operations.cutover.moving import cutover_lease
from cdc_core.operations.cutover.opening import work_of
from cdc_core.operations.cutover.work import CutoverWork
from cdc_core.operations.open_pipeline import open_pipeline
from spark_jobs.driver import Driver
from tests.lab.databases import drop_database

PIPELINE = """
pipeline: {name}
sources: [{{name: {name}, connection: env:SOURCE, server_id: 5191, start: latest}}]
tables: {{include: ['{name}\\.(orders|items)']}}
routes: [{{match: '{name}\\.(.*)', to: '\\1'}}]
stage: {{uri: "file://{folder}/stage"}}
meta: {{url: "{meta}"}}
targets:
  - name: {name}_shards
    connections: [env:TARGET]
    on_missing_table: create
    tables:
      '*': {{database: "{name}_{{d}}", table: "{{logical}}_{{t}}", sharding: {{key: id, databases: 2, tables: 2}}}}
snapshot: {{mode: initial}}
limits: {{lease_s: 5}}
cutover: {{switch_with: {folder}/switch.sh, budget_s: {budget_s}, max_lag_s: {max_lag_s}, {more}}}
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


GONE = frozenset({0, 1053, 1927, 2003, 2006, 2013})
"""Errors of a server that was killed."""


_SHORT = "SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 1"


class Application:
    """Writes to the place that the file `to` names. written: what servers have confirmed, by table and id.

    Every tenth write is a row of its own, which no later write covers up. One that gets no answer, or an error, is
    repeated where the application writes then. Two of three writers wait for locks for a second only.
    pause_s: of each of three writers, between its writes.
    """

    def __init__(self, folder: Path, source: Any, target: Any, name: str, pause_s: float) -> None:
        self._pause_s = pause_s
        self._folder, self._servers, self._name = folder, {"old": source, "new": target}, name
        self.written: dict[str, dict[int, int]] = {table: {} for table in TABLES}
        self._count = 0
        self.refused = self.expired = 0
        self.errors: list[Exception] = []
        self._stop = threading.Event()
        self._turns = [threading.Lock() for _ in range(3)]
        self._threads = [threading.Thread(target=self._write, args=(at,)) for at in range(3)]

    def __enter__(self) -> Application:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @contextmanager
    def still(self) -> Iterator[None]:
        """It writes nothing during the block, and every write has its answer."""
        with ExitStack() as held:
            for turn in self._turns:
                held.enter_context(turn)
            yield

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
            sessions: dict[str, Any] = {}
            turn = 0
            while not self._stop.is_set():
                turn += 1
                table = TABLES[turn % 2]
                key = number + 3 * (turn * 7 % 50 if turn % 10 else 10_000 + turn)
                with self._turns[number]:
                    while not self._put(sessions, table, key, turn):
                        time.sleep(0.01)
                    self.written[table][key] = turn
                    self._count += 1
                time.sleep(self._pause_s)
        except pymysql.err.MySQLError as error:
            self.errors.append(error)

    def _put(self, sessions: dict[str, Any], table: str, key: int, value: int) -> bool:
        to, place = self.place(table, key)
        try:
            if to not in sessions:
                sessions[to] = self._servers[to].connect(autocommit=True, init_command=_SHORT if key % 3 else None)
            with sessions[to].cursor() as cursor:
                cursor.execute(
                    f"INSERT INTO {place} (id, n) VALUES ({key}, {value}) ON DUPLICATE KEY UPDATE n = {value}"
                )
        except pymysql.err.MySQLError as error:
            if error.args[0] in GONE:
                sessions.pop(to, None)
            elif error.args[0] == 1644:  # the gate of an old table
                self.refused += 1
            elif error.args[0] == 1205:  # locked
                self.expired += 1
            else:
                raise
            return False
        return True


class Shop:
    """A pipeline, its servers and its application."""

    def __init__(self, lockstep: Any, source: Any, target: Any, name: str) -> None:
        self.lockstep, self.source, self.target, self.name = lockstep, source, target, name
        self.folder = Path(lockstep.directory)
        self.meta_url = f"sqlite:///{self.folder}/meta.db"

    def behave(
        self, behaviour: str = "true", more: str = "attempts: 2", budget_s: int = 20, max_lag_s: int = 10
    ) -> None:
        """behaviour: of the switch command, before it switches."""
        (self.folder / "switch.sh").write_text(SWITCH.format(folder=self.folder, behaviour=behaviour))
        (self.folder / "switch.sh").chmod(0o755)
        text = PIPELINE.format(
            name=self.name, folder=self.folder, meta=self.meta_url, more=more, budget_s=budget_s, max_lag_s=max_lag_s
        )
        (self.folder / "shop.yaml").write_text(text)

    def lead(self, to: str) -> None:
        """Leads the application to a place, as the switch command does."""
        (self.folder / ".by_hand").write_text(to)
        (self.folder / ".by_hand").replace(self.folder / "to")

    def place_of_application(self) -> str:
        return (self.folder / "to").read_text().strip()

    def application(self, pause_s: float = 0.02) -> Application:
        return Application(self.folder, self.source, self.target, self.name, pause_s)

    def cutover(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = self.lockstep("cutover", *arguments, code=code)
        document: dict[str, Any] = json.loads(done.out)
        return document

    @contextmanager
    def in_this_process(
        self, monkeypatch: pytest.MonkeyPatch, target: str | None = None
    ) -> Iterator[tuple[CutoverWork, Lease]]:
        """What `lockstep cutover` of shop.yaml works with, and its lease."""
        monkeypatch.setenv("SOURCE", self.source.url)
        monkeypatch.setenv("TARGET", self.target.url)
        file = self.folder / "shop.yaml"
        with (
            open_pipeline(load(file)) as ready,
            Driver(ready.pipeline, ready.store, master=ready.pipeline.spark.master) as spark,
            work_of(ready, spark, file, target) as work,
            cutover_lease(work) as lease,
        ):
            yield work, lease

    def old(self, table: str) -> dict[int, int]:
        return self._rows(self.source, [f"{self.name}.{table}"])

    def new(self, table: str) -> dict[int, int]:
        return self._rows(self.target, [f"{self.name}_{d}.{table}_{t}" for d in range(2) for t in range(2)])

    def _rows(self, server: Any, places: list[str]) -> dict[int, int]:
        found = server.run(" UNION ALL ".join(f"SELECT id, n FROM {place}" for place in places))
        assert len(dict(found)) == len(found), "a row is there twice"
        return dict(found)

    def refuses_late_writes(self) -> None:
        """Whoever has not heard that the application has been led away gets an error where it wrote before."""
        self.refuses_late_writes_at("old" if self.place_of_application() == "new" else "new")

    def refuses_late_writes_at(self, left: str) -> None:
        left_old = left == "old"
        place = f"{self.name}.{{}}" if left_old else f"{self.name}_0.{{}}_0"
        for table in TABLES:
            with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
                (self.source if left_old else self.target).run(
                    f"UPDATE {place.format(table)} SET n = 5 WHERE id = 1000"
                )

    def called(self) -> list[list[str]]:
        path = self.folder / "called"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, reached: Callable[[], bool], patience_s: float = 60) -> None:
        end_s = time.monotonic() + patience_s
        while not reached():
            assert time.monotonic() < end_s
            time.sleep(0.05)


@contextmanager
def shop(lockstep: Any, source: Any, target: Any) -> Iterator[Shop]:
    name = f"move_{uuid.uuid4().hex[:8]}"
    made = Shop(lockstep, source, target, name)
    lockstep.environ |= {"SOURCE": source.url, "TARGET": target.url}
    source.run(f"CREATE DATABASE {name}")
    for table in TABLES:
        source.run(
            f"CREATE TABLE {name}.{table} (id INT PRIMARY KEY, n INT NOT NULL)",
            f"INSERT INTO {name}.{table} VALUES (1000, 1), (1001, 1), (1002, 2)",
        )
    made.lead("old")
    made.behave()
    try:
        yield made
    finally:
        for server, names in ((source, [name]), (target, [f"{name}_0", f"{name}_1"])):
            for table in names:
                drop_database(server, table)


def goes_on(made: Shop, application: Application) -> None:
    """The application writes."""
    before = application.count
    made.until(lambda: application.count > before + 10)


def answer_for(made: Shop, pipeline: str) -> None:
    """What a person would answer: the file says where the application writes."""
    there = not pipeline.endswith("_back.yaml")
    switched = (made.place_of_application() == "new") == there
    made.lockstep("cutover", "resume", pipeline, "--answer", "switched" if switched else "not-switched", code=None)


def settled(made: Shop, there: bool) -> str:
    """Ends a cutover that was killed, as a person would; the state that it ends in."""
    end_s = time.monotonic() + 300
    pipeline = "shop.yaml" if there else "shop_back.yaml"
    while True:
        assert time.monotonic() < end_s
        state = json.loads(made.lockstep("cutover", "status", pipeline, code=None).out).get("state")
        if state in (None, "ROLLED_BACK", "COMPLETE", "BACK") or (state == "WATCH" and there):
            return str(state)
        if state == "SWITCHING":
            answer_for(made, pipeline)
        else:
            made.lockstep("cutover", "resume" if state in ("SWITCHED", "WATCH") else "abort", pipeline, code=None)
        time.sleep(2)  # most of the time, the lease of the process that was killed has not expired


PAIRS = {"mysql9 to mariadb": ("mysql9", "mariadb_target"), "mariadb to mysql9": ("mariadb", "mysql9")}


def always(first: str) -> Any:
    """Both pairs of servers, of which the other is left to the matrix."""
    chosen = [pytest.param(name, marks=[] if name == first else [pytest.mark.matrix]) for name in PAIRS]
    return pytest.mark.parametrize("servers", chosen, indirect=True)


FROM_MYSQL, FROM_MARIADB = always("mysql9 to mariadb"), always("mariadb to mysql9")


REST = {1000: 1, 1001: 1, 1002: 2}
"""Rows that the application does not write."""
