"""Whatever is killed during a cutover, it ends switched or rolled back, and the application's own log is the witness.

A sample is part of all tests; `make move-matrix` runs all and prints the tables of docs/reliability.md.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.acceptance.cutover_cases import (
    CASES,
    EITHER,
    META,
    PAUSED,
    ROLLED_BACK,
    SOURCE,
    SWITCHED,
    TARGET,
    Case,
)
from tests.acceptance.cutover_cases import table as table_of_cases
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
from tests.acceptance.random_cutovers import NOTHING, MetaReader, RandomCutovers, Struck, ends_of
from tests.forked_commands import ROOT, ForkedCommands

pytestmark = [pytest.mark.slow, pytest.mark.spark]
HOOK = ROOT / "tests" / "crash" / "hook"


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


@FROM_MARIADB
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(one, id=one.id, marks=pytest.mark.move_sample if one.sample else pytest.mark.matrix)
        for one in CASES
    ],
)
def test_whatever_is_killed_a_cutover_ends_switched_or_rolled_back(
    lockstep: Any, servers: tuple[Any, Any], postgres: Any, case: Case, record_property: Callable[[str, str], None]
) -> None:
    with shop(lockstep, *servers) as made, meta_of(postgres, made):
        made.behave("true", "attempts: 1")
        lockstep("run", "shop.yaml")
        flag = made.folder / "struck"
        killed = {SOURCE: made.source, TARGET: made.target, META: postgres}.get(case.killed)
        with made.application() as application:
            goes_on(made, application)
            order = {
                "module": case.module, "function": case.function, "when": case.when, "call": case.call,
                "victim": "process" if killed is None else str(killed.pid), "flag": str(flag),
                "signal": "SIGSTOP" if case.killed == PAUSED else "SIGKILL",
            }  # fmt: skip
            environ = {**made.lockstep.environment, "LOCKSTEP_CRASH": json.dumps(order)}
            environ["PYTHONPATH"] = os.pathsep.join([str(HOOK), environ["PYTHONPATH"]])
            log = made.folder / "command.log"
            with restarting(killed, flag), log.open("wb") as said:
                process = subprocess.Popen(
                    made.lockstep.command("cutover", "run", "shop.yaml"), cwd=made.folder, env=environ,
                    stdout=said, stderr=said, start_new_session=True,
                )  # fmt: skip
                try:
                    if case.killed == PAUSED:
                        made.until(lambda: flag.exists() or process.poll() is not None, 180)
                        settled(made, there=True)
                        process.send_signal(signal.SIGCONT)
                    process.wait(240)
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
            text = log.read_text(errors="replace")
            assert flag.exists(), f"nothing was killed: {text}"
            state = settled(made, there=True)
            if case.killed == PAUSED and made.place_of_application() == "new" and state == "ROLLED_BACK":
                # The command was called although a person had said that nothing was switched: no write gets through
                # there, until somebody leads the application back.
                made.until(lambda: application.refused > 0)
                made.lead("old")
            goes_on(made, application)
        assert not application.errors, (application.errors, text)
        ended = SWITCHED if state == "WATCH" else ROLLED_BACK
        equal_on_both_sides(made, application, switched=state == "WATCH")
        record_property("ended", ended)
        assert case.ends in (ended, EITHER), text


def equal_on_both_sides(made: Shop, application: Application, *, switched: bool) -> None:
    """The application's tables have all that it wrote; and what Lockstep carries from there makes the others equal."""
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
    record_property: Callable[[str, str], None],
) -> None:
    """LOCKSTEP_CUTOVERS of them; as many as fit into LOCKSTEP_CUTOVERS_S if that is given. LOCKSTEP_CUTOVERS_LOG: a
    file that gets a line of JSON for each."""
    seed = int(os.environ.get("LOCKSTEP_SEED", random.randrange(1 << 30)))
    wanted = int(os.environ.get("LOCKSTEP_CUTOVERS", "20"))
    end_s = time.monotonic() + float(os.environ.get("LOCKSTEP_CUTOVERS_S", "inf"))
    noted = os.environ.get("LOCKSTEP_CUTOVERS_LOG", os.devnull)
    found: list[Struck] = []
    with (
        shop(lockstep, *servers) as made,
        meta_of(postgres, made),
        MetaReader(lockstep.environ["META"]) as reader,
    ):
        made.behave("sleep 0.3", "attempts: 1, hook_s: 10", budget_s=60, max_lag_s=60)
        lockstep("run", "shop.yaml")
        with made.application(pause_s=0.05) as application:
            goes_on(made, application)
            cutovers = RandomCutovers(random.Random(seed), made, commands, postgres, reader)
            while len(found) < wanted and time.monotonic() < end_s:
                one = cutovers.one(len(found), application)
                found.append(one)
                with Path(noted).open("a") as file:
                    file.write(json.dumps({"seed": seed, **asdict(one), "writes": application.count}) + "\n")
                assert not application.errors, (application.errors, seed, one)
                goes_on(made, application)
                assert one.victim != NOTHING or one.ended == SWITCHED, (seed, one)
                there = (one.direction == "there") == (one.ended == SWITCHED)
                assert made.place_of_application() == ("new" if there else "old"), (seed, one)
                keeps_all(made, application, (seed, one))
        assert not application.errors
        equal_on_both_sides(made, application, switched=made.place_of_application() == "new")
    for ending, count in ends_of(found).items():
        record_property("ended", "|".join((*ending, str(count))))
    print(f"seed {seed}: {len(found)} cutovers, longest write {application.longest_s:.1f} s")


def keeps_all(made: Shop, application: Application, case: object) -> None:
    """Where the application writes are all of its rows, and no later than it wrote them last."""
    there = made.place_of_application() == "new"
    for table in TABLES:
        before = dict(application.written[table])
        found = (made.new if there else made.old)(table)
        lost = {key: value for key, value in before.items() if found.get(key, -1) < value}
        assert not lost, (table, lost, case)


def test_the_table_of_the_document_is_that_of_the_cases() -> None:
    document = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert "\n".join(table_of_cases()) in document, "\n".join(table_of_cases())


def test_the_functions_at_which_something_is_killed_exist() -> None:
    for case in CASES:
        attrgetter(case.function)(import_module(case.module))
