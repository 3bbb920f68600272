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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import psycopg
import pytest

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
    made_switched,
    settled,
    shop,
)
from tests.forked_commands import ROOT

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
                if case.killed == PAUSED:
                    made.until(lambda: flag.exists() or process.poll() is not None, 180)
                    settled(made, there=True)
                    process.send_signal(signal.SIGCONT)
                process.wait(240)
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


class Striker:
    """Kills or pauses something at a random moment. seen: how long a cutover takes that is left alone."""

    def __init__(self, chance: random.Random, made: Shop, meta: Any) -> None:
        self._chance, self._made, self._seen_s = chance, made, 20.0
        self._servers = {SOURCE: made.source, TARGET: made.target, META: meta}

    def strike(self, process: subprocess.Popen[bytes], what: str) -> None:
        began_s = time.monotonic()
        if what == NOTHING:
            process.wait(300)
            self._seen_s = time.monotonic() - began_s
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._chance.uniform(0.25, 1) * self._seen_s)
        if what == COMMAND and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        elif what == PAUSED and process.poll() is None:
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(self._chance.choice((1, 14)))
            for verb in self._chance.choice(((), ("abort",))):  # after 14 s the lease is free
                self._made.lockstep("cutover", verb, "shop.yaml" if self._there() else "shop_back.yaml", code=None)
            os.killpg(process.pid, signal.SIGCONT)
        elif what == SWITCH_COMMAND:
            while process.poll() is None and not self._hook_killed(process):
                time.sleep(0.02)
        elif what in self._servers:
            server = self._servers[what]
            if self._chance.random() < 0.3:
                os.kill(server.pid, signal.SIGSTOP)
                time.sleep(self._chance.uniform(0.5, 6))
                os.kill(server.pid, signal.SIGCONT)
            else:
                server.kill()
                time.sleep(self._chance.uniform(0, 3))
                server.restart()
        process.wait(300)

    def _there(self) -> bool:
        return self._made.place_of_application() == "old"

    def _hook_killed(self, process: subprocess.Popen[bytes]) -> bool:
        """The switch command, before or after it has led the application elsewhere."""
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if b"switch.sh" in (folder / "cmdline").read_bytes() and _parent(folder) == process.pid:
                    time.sleep(self._chance.uniform(0, 0.6))
                    os.kill(int(folder.name), signal.SIGKILL)
                    return True
        return False


def _parent(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(")")[2].split()[1])


NOTHING, SWITCH_COMMAND = "nothing", "the switch command"
STRUCK = (NOTHING, COMMAND, PAUSED, SWITCH_COMMAND, SOURCE, TARGET, META)
DIRECTIONS = {True: "there", False: "back"}


@FROM_MARIADB
@pytest.mark.matrix
@pytest.mark.timeout(100_000)
def test_random_cutovers_there_and_back_lose_no_write(
    lockstep: Any, servers: tuple[Any, Any], postgres: Any, record_property: Callable[[str, str], None]
) -> None:
    """LOCKSTEP_CUTOVERS of them; as many as fit into LOCKSTEP_CUTOVERS_S if that is given."""
    seed = int(os.environ.get("LOCKSTEP_SEED", random.randrange(1 << 30)))
    wanted = int(os.environ.get("LOCKSTEP_CUTOVERS", "20"))
    end_s = time.monotonic() + float(os.environ.get("LOCKSTEP_CUTOVERS_S", "inf"))
    chance = random.Random(seed)
    ended: Counter[tuple[str, str, str]] = Counter()
    with shop(lockstep, *servers) as made, meta_of(postgres, made):
        made.behave("sleep 0.3", "attempts: 1, hook_s: 5")
        lockstep("run", "shop.yaml")
        striker = Striker(chance, made, postgres)
        with made.application() as application:
            goes_on(made, application)
            for turn in range(wanted):
                if time.monotonic() > end_s:
                    break
                there = made.place_of_application() == "old"
                what = STRUCK[turn] if turn < 1 else chance.choice(STRUCK)
                if not there:  # the way back has come as far as the switch
                    lockstep("run", "shop_back.yaml")
                log = made.folder / "command.log"
                with log.open("wb") as said:
                    process = subprocess.Popen(
                        lockstep.command("cutover", "run" if there else "back", "shop.yaml"), cwd=made.folder,
                        env=lockstep.environment, stdout=said, stderr=said, start_new_session=True,
                    )  # fmt: skip
                    striker.strike(process, what)
                time.sleep(1)  # a switch command that outlives its caller has ended
                settled(made, there)
                now = made.place_of_application()
                case = (seed, turn, what, log.read_text(errors="replace")[-3000:])
                if what == NOTHING:
                    assert now == ("new" if there else "old"), case
                assert not application.errors, (application.errors, case)
                goes_on(made, application)
                old, new = ("old", "new") if there else ("new", "old")
                assert now == (new if made_switched(made, there) else old), case
                ended[what, DIRECTIONS[there], SWITCHED if now == new else ROLLED_BACK] += 1
                keeps_all(made, application, case)
        assert not application.errors
        there = made.place_of_application() == "new"
        equal_on_both_sides(made, application, switched=there)
    for (what, direction, end), count in sorted(ended.items()):
        record_property("ended", f"{what}|{direction}|{end}|{count}")
    print(f"seed {seed}: {sum(ended.values())} cutovers, {dict(ended)}, longest write {application.longest_s:.1f} s")


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
