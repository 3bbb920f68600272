"""Whatever is killed during a cutover, it ends switched or rolled back, and the application's own log is the witness.

A sample is part of all tests; `make move-matrix` runs all and prints the tables.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.acceptance.conftest import CommandLine
from tests.acceptance.cutover_cases import (
    CASES,
    COMMAND,
    EITHER,
    META,
    PAUSED,
    ROLLED_BACK,
    SOURCE,
    SWITCHED,
    TARGET,
    THERE,
    Case,
)
from tests.acceptance.moving_shop import (
    FROM_MARIADB,
    REST,
    TABLES,
    Application,
    Shop,
    goes_on,
    settled,
    shop,
)
from tests.acceptance.random_cutovers import NOTHING, MetaReader, RandomCutovers
from tests.lab.forked_commands import ForkedCommands

pytestmark = pytest.mark.spark

PATIENCE_S = 400
"""For each half of a cutover beside an application that writes all the time; usually half a minute is enough."""


@contextmanager
def meta_of(postgres: Any, made: Shop) -> Iterator[None]:
    """The pipeline's meta database is on a server that can be killed."""
    name = f"meta_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    made.lockstep.environ["META"] = postgres.url(name)
    made.meta_url = "env:META"
    made.behave()
    made.lockstep("meta", "upgrade", "shop.yaml")
    yield


def end_leases(made: Shop, pid: int) -> None:
    """As if the leases of a process that was killed had expired."""
    with psycopg.connect(made.lockstep.environ["META"].replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("UPDATE lease SET expires_us = 0 WHERE holder LIKE %s", (f"%:{pid}",))


@contextmanager
def restarting(server: Any, flag: Path) -> Iterator[None]:
    """Starts the server, if one is killed, again a moment after the flag says so."""
    if server is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not flag.exists():
            if over.wait(0.05):
                return
        time.sleep(1)
        server.restart()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


@contextmanager
def writing(lockstep: Any, servers: tuple[Any, Any], postgres: Any) -> Iterator[tuple[Shop, Application]]:
    """A shop and its application, which writes to the old tables."""
    with shop(lockstep, *servers) as made, meta_of(postgres, made):
        made.behave("true", "attempts: 1")
        lockstep("run", "shop.yaml")
        with made.application() as application:
            goes_on(made, application)
            yield made, application


class Stations:
    """A shop for each pair of servers whose application is led back in one case after the other."""

    CASES = 20
    """Of one shop, whose application writes all the time: a bigger one needs longer for each cutover."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, Any], tuple[int, ExitStack, tuple[Shop, Application]]] = {}

    @contextmanager
    def one(self, lockstep: Any, servers: tuple[Any, Any], postgres: Any) -> Iterator[tuple[Shop, Application]]:
        """The application writes to the new tables. After a case that failed, or CASES, the next one gets a new
        shop."""
        served, stack, station = self._open.pop(servers, None) or (0, ExitStack(), None)
        try:
            made, application = station or stack.enter_context(writing(lockstep, servers, postgres))
            if made.place_of_application() == "old":
                assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
                goes_on(made, application)
            yield made, application
        except BaseException:
            stack.close()
            raise
        if served + 1 < self.CASES:
            self._open[servers] = served + 1, stack, (made, application)
        else:
            stack.close()

    def close(self) -> None:
        for _, stack, _ in self._open.values():
            stack.close()


@pytest.fixture
def lockstep(tmp_path: Path, commands: ForkedCommands) -> CommandLine:
    """Databases stay: those of a station are of many cases."""
    return CommandLine(tmp_path, commands)


@pytest.fixture(scope="module")
def stations() -> Iterator[Stations]:
    with closing(Stations()) as made:
        yield made


@FROM_MARIADB
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.id, marks=pytest.mark.move_sample if case.sample else pytest.mark.matrix)
        for case in CASES
    ],
)
def test_whatever_is_killed_a_cutover_ends_switched_or_rolled_back(
    lockstep: Any,
    commands: ForkedCommands,
    servers: tuple[Any, Any],
    postgres: Any,
    stations: Stations,
    tmp_path_factory: pytest.TempPathFactory,
    case: Case,
    record_property: Callable[[str, str], None],
) -> None:
    there = case.direction == THERE
    of_its_own = replace(lockstep, directory=tmp_path_factory.mktemp("shop"), environ={})  # it outlives the case
    opened = writing(lockstep, servers, postgres) if there else stations.one(of_its_own, servers, postgres)
    with opened as (made, application):
        source, target = (made.source, made.target) if there else (made.target, made.source)
        killed = {SOURCE: source, TARGET: target, META: postgres}.get(case.killed)
        flag = Path(tempfile.mkdtemp(dir=made.folder)) / "struck"
        order = {
            "module": case.module, "function": case.function, "when": case.when, "call": case.call,
            "given": case.given, "victim": "process" if killed is None else str(killed.pid), "flag": str(flag),
            "signal": "SIGSTOP" if case.killed == PAUSED else "SIGKILL",
        }  # fmt: skip
        environ = {**made.lockstep.environment, "LOCKSTEP_CRASH": json.dumps(order)}
        with restarting(killed, flag):
            started = commands.start(
                "cutover", "run" if there else "back", "shop.yaml", directory=made.folder, environ=environ,
                log=made.folder / "command.log",
            )  # fmt: skip
            try:
                if case.killed == PAUSED:
                    made.until(lambda: flag.exists() or started.ended, PATIENCE_S)
                    settled(made, there=there)
                    os.kill(started.pid, signal.SIGCONT)
                made.until(lambda: started.ended, PATIENCE_S)
            finally:
                started.kill()
        if case.killed == COMMAND:
            end_leases(made, started.pid)
        text = started.log.read_text(errors="replace")
        assert flag.exists(), f"nothing was killed: {text}"
        state = settled(made, there=there)
        former, latter = ("old", "new") if there else ("new", "old")
        if case.killed == PAUSED and made.place_of_application() == latter and state == "ROLLED_BACK":
            # The command was called although a person had said that nothing was switched: no write gets through
            # there, until somebody leads the application back.
            refused = application.refused
            made.until(lambda: application.refused > refused)
            made.lead(former)
        goes_on(made, application)
        assert not application.errors, (application.errors, text)
        switched = state == ("WATCH" if there else "COMPLETE")
        with application.still():
            equal_on_both_sides(made, application, switched=switched == there)
        if switched or not there:  # otherwise the application has never been elsewhere
            made.refuses_late_writes()
        if not there:  # the cutover by which the application came to the new tables
            assert made.cutover("status", "shop.yaml")["state"] == ("BACK" if switched else "WATCH")
        ended = SWITCHED if switched else ROLLED_BACK
        record_property("ended", ended)
        assert case.ends in (ended, EITHER), text


def equal_on_both_sides(made: Shop, application: Application, *, switched: bool) -> None:
    """The application's tables have all that it wrote; and what Lockstep carries from there makes the others equal.
    switched: it writes to the new tables."""
    assert made.place_of_application() == ("new" if switched else "old")
    for table in TABLES:
        assert (made.new if switched else made.old)(table) == application.written[table] | REST
    made.lockstep("run", "shop_back.yaml" if switched else "shop.yaml")
    for table in TABLES:
        assert made.old(table) == made.new(table)


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(100_000)
def test_random_cutovers_there_and_back_lose_no_write(
    lockstep: Any,
    commands: ForkedCommands,
    servers: tuple[Any, Any],
    postgres: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """LOCKSTEP_CUTOVERS of them. LOCKSTEP_CUTOVERS_FROM: the number of the first."""
    first = int(os.environ.get("LOCKSTEP_CUTOVERS_FROM", random.randrange(1 << 30)))
    numbers = range(first, first + int(os.environ.get("LOCKSTEP_CUTOVERS", "20")))
    dwelled_s: dict[str, float] = {}
    for begin in range(0, len(numbers), _IN_ONE_SHOP):
        of_its_own = replace(lockstep, directory=tmp_path_factory.mktemp("shop"), environ={})
        with (
            shop(of_its_own, *servers) as made,
            meta_of(postgres, made),
            MetaReader(of_its_own.environ["META"]) as reader,
        ):
            made.behave(ANSWERING.format(made.folder), "attempts: 1, hook_s: 5", budget_s=15, max_lag_s=60)
            of_its_own("run", "shop.yaml")
            cutovers = RandomCutovers(made, commands, postgres, reader, dwelled_s)
            one_after_the_other(numbers[begin : begin + _IN_ONE_SHOP], cutovers, made)


ANSWERING = """cd {}; sleep 0.3
if [ -e answer ]; then
  while [ ! -e go ]; do sleep 0.05; done
  code=$(cat answer); rm -f go answer; exit $code
fi"""
"""Ends as the file says, once another session has written."""
_IN_ONE_SHOP = 40
"""Verifications of a way back from shards read all that it has staged."""


def one_after_the_other(numbers: Sequence[int], cutovers: RandomCutovers, made: Shop) -> None:
    """In one shop, with one application."""
    moved = False
    with made.application(pause_s=0.05) as application:
        goes_on(made, application)
        # Nothing is struck in the first of all: it says how long each state lasts.
        for number in numbers if cutovers.knows_states else (-1, *numbers):
            struck = cutovers.one(number, application)
            assert not application.errors, (application.errors, struck)
            goes_on(made, application)
            assert struck.victim != NOTHING or struck.ended == SWITCHED, struck
            there = (struck.direction == "there") == (struck.ended == SWITCHED)
            assert made.place_of_application() == ("new" if there else "old"), struck
            keeps_all(made, application, struck)
            moved = moved or there
            if moved:
                made.refuses_late_writes()
    assert not application.errors
    equal_on_both_sides(made, application, switched=made.place_of_application() == "new")


def keeps_all(made: Shop, application: Application, case: object) -> None:
    """Where the application writes are all of its rows, and no later than it wrote them last."""
    there = made.place_of_application() == "new"
    for table in TABLES:
        before = dict(application.written[table])
        found = (made.new if there else made.old)(table)
        lost = {key: value for key, value in before.items() if found.get(key, -1) < value}
        assert not lost, (table, lost, case)


def test_the_functions_at_which_something_is_killed_exist() -> None:
    for case in CASES:
        attrgetter(case.function)(import_module(case.module))
