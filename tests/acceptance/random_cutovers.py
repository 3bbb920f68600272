"""Cutovers at a random moment of which something happens, one after the other in one shop, there and back and there.

    killed or paused    the command, its switch command, or a server, in a state of the cutover and a random time after
                        it came there
    a backup            takes its lock then, and keeps it for a while
    another session     writes to the tables that the application would come to while the switch command runs, which
                        ends as not switched, or without an answer
    a dropped trigger   lets another session write to a table that the application has left

What follows is what a person would do: resume or abort, an answer to the question where the application writes, and
what an error advises. `lockstep cutover status` must end with 4 while a person must act, and with 0 afterwards.

Each cutover has a number, from which all choices come.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg
import pymysql

from cdc_core.operations.cutover.cutover_states import OPEN, State
from examples.sandbox.mariadb import MariaDb
from tests.acceptance.cutover_cases import COMMAND, META, PAUSED, ROLLED_BACK, SOURCE, SWITCHED, TARGET
from tests.acceptance.moving_shop import TABLES, Application, Shop
from tests.lab.forked_commands import ForkedCommands, Started

NOTHING, HOOK = "nothing", "the switch command"
BACKUP, STRANGER, DROPPED = "a backup", "another session", "a dropped trigger"
STRAY = -1
"""What another session writes over a row of the application."""
VICTIMS = (COMMAND, PAUSED, HOOK, SOURCE, TARGET, META)
STATES = ("PREPARED", "CHASE", "STOPPED", "DRAINED", "PROVED", "ARMED", "SWITCHING", "SWITCHED")
PATIENCE_S = 300.0
_LOOK_S, _FAR_S = 0.003, 0.03
"""How often to look at the state: just before the wanted one, which may be short, and earlier."""
_BEFORE = {STATES[at]: STATES[max(0, at - 1) : at + 1] for at in range(len(STATES))}
_LEAKS = ("nanobind:", " - ", "See https://nanobind")


_PAIRS = tuple((victim, state) for victim in VICTIMS for state in STATES if victim != HOOK)
_STRIKES = (
    *_PAIRS, *[(HOOK, "SWITCHING")] * 3, *[(NOTHING, "")] * 3, *((BACKUP, state) for state in STATES[1:]),
    *[(STRANGER, "SWITCHING")] * 6, *[(DROPPED, "")] * 4,
)  # fmt: skip


def strike_of(number: int) -> tuple[str, str]:
    """Victim and state of a cutover: all come before any comes again."""
    round_, turn = divmod(number, len(_STRIKES))
    return random.Random(round_).sample(_STRIKES, len(_STRIKES))[turn]


class MetaReader:
    """What the meta database says of cutovers and their leases. It may be down: then the last answer holds."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("+psycopg", "")
        self._session: psycopg.Connection[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._session is not None:
            with suppress(psycopg.Error):
                self._session.close()
        self._session = None

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]] | None:
        """None: it does not answer."""
        try:
            if self._session is None:
                self._session = psycopg.connect(self._url, autocommit=True, connect_timeout=5)
            return self._session.execute(query, values).fetchall()  # type: ignore[arg-type]
        except psycopg.Error:
            self._forget()
            return None

    def surely(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        end_s = time.monotonic() + PATIENCE_S
        while (found := self.ask(query, *values)) is None:
            assert time.monotonic() < end_s
            time.sleep(0.1)
        return found

    def cutover(self, pipeline: str) -> tuple[str, str] | None:
        """Identity and state of its latest one; None: there is none, or no answer."""
        query = "SELECT cutover_id, state FROM cutover WHERE pipeline = %s ORDER BY created_us DESC LIMIT 1"
        found = self.ask(query, pipeline)
        return (str(found[0][0]), str(found[0][1])) if found else None

    def state(self, pipeline: str) -> str:
        query = "SELECT state FROM cutover WHERE pipeline = %s ORDER BY created_us DESC LIMIT 1"
        found = self.surely(query, pipeline)
        return str(found[0][0]) if found else ""

    def dwelled_s(self, pipeline: str) -> dict[str, float]:
        """Seconds that its latest cutover was in each of its states."""
        query = "SELECT steps FROM cutover WHERE pipeline = %s ORDER BY created_us DESC LIMIT 1"
        steps = [step for (text,) in self.surely(query, pipeline) for step in json.loads(text)]
        return {state: (then - at) / 1e6 for (state, at), (_, then) in itertools.pairwise(steps)}

    def end_leases(self, pid: int) -> None:
        """As if the leases of a process that was killed, or is paused, had expired."""
        self.surely("UPDATE lease SET expires_us = 0 WHERE holder LIKE %s RETURNING source", f"%:{pid}")

    def lease_is_free(self) -> bool:
        query = (
            "SELECT count(*) FROM lease WHERE source LIKE 'cutover:%%' "
            "AND expires_us > (extract(epoch FROM clock_timestamp()) * 1e6)::bigint"
        )
        return self.surely(query)[0][0] == 0


@dataclass(frozen=True, slots=True)
class Struck:
    """One cutover. state: in which the victim was struck; "" if the cutover had ended before. answers: what people said
    to end it. log: the end of what the command said."""

    number: int
    direction: str
    victim: str
    state: str
    ended: str
    answers: tuple[str, ...]
    log: str


class RandomCutovers:
    """made: its meta database is the one of `meta`, a server that can be struck. dwelled_s: how
    long the last cutover was in each state; kept up to date."""

    def __init__(
        self,
        made: Shop,
        commands: ForkedCommands,
        meta: Any,
        reader: MetaReader,
        dwelled_s: dict[str, float],
    ) -> None:
        self._made, self._commands, self._reader = made, commands, reader
        self._servers = {SOURCE: made.source, TARGET: made.target, META: meta}
        self._dwelled_s = dwelled_s
        self._chance = random.Random()
        self._written: dict[str, dict[int, int]] = {}

    @property
    def knows_states(self) -> bool:
        return bool(self._dwelled_s)

    def one(self, number: int, application: Application) -> Struck:
        """Leads the application to the other place, or tries to. When it returns, the cutover has ended, and nothing is
        left that a person would have to do. number: below 0, nothing is struck."""
        self._written = application.written
        made = self._made
        _until(self._reader.lease_is_free)  # of a process that could not give it back
        self._chance.seed(number)
        victim, wanted = strike_of(number) if number >= 0 else (NOTHING, "")
        there = made.place_of_application() == "old"
        pipeline = made.name if there else f"{made.name}_back"
        former = self._reader.cutover(pipeline)
        answers: tuple[str, ...] = ()
        if victim == DROPPED and (made.folder / "shop_back.yaml").exists():
            answers = self._dropped(there)
        if victim == STRANGER:
            (made.folder / "answer").write_text(self._chance.choice(("3", "9")))
        log = made.folder / "command.log"
        started = self._commands.start(
            "cutover", "run" if there else "back", "shop.yaml", directory=made.folder,
            environ=made.lockstep.environment, log=log,
        )  # fmt: skip
        try:
            state, more = self._struck(started, victim, wanted, pipeline, former)
            answers += more
            _until(lambda: started.ended)
        finally:
            started.kill()
        _until(lambda: not any(self._hooks()))  # one that outlives its caller has ended
        answers += self._settled(pipeline)
        for left in ("answer", "go"):
            (made.folder / left).unlink(missing_ok=True)
        if victim == STRANGER and state:
            if self._chance.random() < 0.5:  # nothing may be proven over what it wrote
                made.lockstep("cutover", "run" if there else "back", "shop.yaml", code=None)
                answers += ("again", *self._settled(pipeline))
            if self._reader.state(pipeline) == State.ROLLED_BACK:
                answers += self._compared("shop.yaml" if there else "shop_back.yaml")
        place = made.place_of_application()
        if self._reader.state(pipeline) == State.ROLLED_BACK and (place == "new") == there:
            # The command was called after a person had said that nothing was switched: no write gets through where it
            # led the application, until somebody leads it back.
            refused = application.refused
            _until(lambda: application.refused > refused)
            made.lead("old" if there else "new")
            answers = (*answers, "led back by hand")
        self._told(0)
        for seen, took_s in self._reader.dwelled_s(pipeline).items():
            self._dwelled_s[seen] = took_s
        # The way back has no state of its own for an application that it leads back: the pipeline there has ended.
        switched = (self._reader.state(made.name) == State.WATCH) == there
        # A forked process reports what the modules of its parent have left.
        said = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith(_LEAKS)]
        return Struck(
            number, "there" if there else "back", victim, state,
            SWITCHED if switched else ROLLED_BACK, answers, "\n".join(said)[-3000:],
        )  # fmt: skip

    def _struck(
        self, started: Started, victim: str, wanted: str, pipeline: str, former: tuple[str, str] | None
    ) -> tuple[str, tuple[str, ...]]:
        """The state in which it was struck, and what people said meanwhile."""
        if victim in (NOTHING, DROPPED):
            return "", ()
        found: tuple[str, str] | None = None
        while not started.ended:
            now = self._reader.cutover(pipeline)
            if now is not None and now != former:
                found = now
                if now[1] == wanted:
                    break
            near = now is not None and now != former and now[1] in _BEFORE.get(wanted, ())
            time.sleep(_LOOK_S if near else _FAR_S)
        if victim == STRANGER:
            return (found[1], self._strays(pipeline)) if found is not None and not started.ended else ("", ())
        self._wait(started, self._chance.uniform(0, self._dwelled_s.get(wanted, 0.1)))
        found = self._reader.cutover(pipeline) or found
        if started.ended or found is None:
            return "", ()
        if victim == COMMAND:
            os.kill(started.pid, signal.SIGKILL)
            self._reader.end_leases(started.pid)
        elif victim == PAUSED:
            return found[1], self._paused(started, pipeline)
        elif victim == BACKUP:
            self._backed_up(self._made.source if self._made.place_of_application() == "old" else self._made.target)
        elif victim == HOOK:
            for pid in self._hooks():
                with suppress(ProcessLookupError):
                    os.kill(pid, self._chance.choice((signal.SIGKILL, signal.SIGSTOP)))
                return found[1], ()
            return "", ()
        else:
            self._strike(self._servers[victim])
        return found[1], ()

    @staticmethod
    def _wait(started: Started, for_s: float) -> None:
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s and not started.ended:
            time.sleep(_LOOK_S)

    def _paused(self, started: Started, pipeline: str) -> tuple[str, ...]:
        """For a moment, or until its lease is free and somebody else has come to the cutover."""
        answers: tuple[str, ...] = ()
        os.kill(started.pid, signal.SIGSTOP)
        try:
            if self._chance.random() < 0.25:
                time.sleep(self._chance.uniform(0.1, 1.5))
            else:
                if self._chance.random() < 0.7:  # the others wait until it has expired
                    self._reader.end_leases(started.pid)
                _until(self._reader.lease_is_free)
                if self._reader.state(pipeline) in OPEN:
                    answers = (self._ended_by_hand(pipeline),)
        finally:
            os.kill(started.pid, signal.SIGCONT)
        return answers

    def _backed_up(self, server: Any) -> None:
        mariadb = isinstance(server, MariaDb)
        taken = [f"BACKUP STAGE {stage}" for stage in ("START", "FLUSH", "BLOCK_DDL")]
        with server.connect(autocommit=True) as session, session.cursor() as cursor:
            for statement in taken if mariadb else ["LOCK INSTANCE FOR BACKUP"]:
                cursor.execute(statement)
            time.sleep(self._chance.uniform(0.5, 6))
            cursor.execute("BACKUP STAGE END" if mariadb else "UNLOCK INSTANCE")

    def _stray(self, to: str) -> str:
        """Another session writes over a row of the application that nobody will write any more."""
        made, table = self._made, TABLES[0]
        own = [key for key in self._written[table] if key >= 30_000]
        key = self._chance.choice(own[:-5])
        place = f"{made.name}.{table}" if to == "old" else f"{made.name}_{key % 4 // 2}.{table}_{key % 2}"
        try:
            (made.source if to == "old" else made.target).run(f"UPDATE {place} SET n = {STRAY} WHERE id = {key}")
        except pymysql.err.MySQLError as error:
            return f"stray: {error.args[0]}"
        return f"stray: {place} {key}"

    def _strays(self, pipeline: str) -> tuple[str, ...]:
        said = self._stray("old" if pipeline.endswith("_back") else "new")
        (self._made.folder / "go").touch()
        return (said,)

    def _dropped(self, there: bool) -> tuple[str, ...]:
        """A trigger of a table that the application has left; what is told, and what a person does. there: it has left
        the new tables, if it ever came to them."""
        made = self._made
        server, database = (made.target, f"{made.name}_0") if there else (made.source, made.name)
        way_back, led = ("shop.yaml", "shop_back.yaml") if there else ("shop_back.yaml", "shop.yaml")
        with server.connect(autocommit=True) as session, session.cursor() as cursor:
            cursor.execute(
                "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = %s AND TRIGGER_NAME LIKE "
                "'%%lockstep_gate%%update'", (database,),
            )  # fmt: skip
            names = [str(name) for (name,) in cursor.fetchall()]
            if not names or (there and self._reader.state(f"{made.name}_back") != State.COMPLETE):
                return ()
            cursor.execute(f"DROP TRIGGER {database}.`{self._chance.choice(sorted(names))}`")
        answers = (self._stray("new" if there else "old"),)
        for command in self._chance.sample(
            (["run", way_back], ["cutover", "status", led], ["cutover", "back" if not there else "run", "shop.yaml"]), 2
        ):
            done = made.lockstep(*command, code=None)
            assert (done.code, "cutover.gates_gone" in done.out) == (4, True), (command, done.out, done.err)
            answers += (f"{' '.join(command)}: gone",)
        made.lockstep("cutover", "abort", way_back, code=None)
        made.lockstep("cutover", "resume", led)
        return (*answers, *self._compared(way_back))

    def _compared(self, file: str) -> tuple[str, ...]:
        """As errors advise: verified, and repaired where rows differ."""
        made = self._made
        made.lockstep("run", file)
        if made.lockstep("verify", file, code=None).code != 4:
            return ()
        made.lockstep("repair", file)
        made.lockstep("run", file)
        made.lockstep("verify", file)
        return (f"repaired {file}",)

    def _told(self, expected: int) -> None:
        """What `lockstep cutover status` says of whether somebody must act."""
        for file in ("shop.yaml", "shop_back.yaml"):
            if (self._made.folder / file).exists():
                done = self._made.lockstep("cutover", "status", file, code=None)
                assert done.code == expected, (file, done.code, done.out, done.err)

    def _strike(self, server: Any) -> None:
        if self._chance.random() < 0.3:
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(self._chance.uniform(0.5, 4))
            os.kill(server.pid, signal.SIGCONT)
        else:
            server.kill()
            time.sleep(self._chance.choice((0, 0, self._chance.uniform(0, 3))))
            server.restart()

    def _hooks(self) -> Iterator[int]:
        """The switch commands that run."""
        script = str(self._made.folder / "switch.sh").encode()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    if script in (folder / "cmdline").read_bytes().split(b"\0"):
                        yield int(folder.name)

    def _settled(self, pipeline: str) -> tuple[str, ...]:
        """Ends a cutover that was left; what was said. One there stays in WATCH, one back does not."""
        answers: tuple[str, ...] = ()
        end_s = time.monotonic() + PATIENCE_S
        left = OPEN if pipeline.endswith("_back") else OPEN - {State.WATCH}
        while (state := self._reader.state(pipeline)) in left:
            assert time.monotonic() < end_s, (state, answers)
            _until(self._reader.lease_is_free)
            if state in (State.SWITCHING, State.SWITCHED):
                file = "shop_back.yaml" if pipeline.endswith("_back") else "shop.yaml"
                assert self._made.lockstep("cutover", "status", file, code=None).code == 4, state
            answers = (*answers, self._ended_by_hand(pipeline))
        return answers

    def _ended_by_hand(self, pipeline: str) -> str:
        _until(lambda: not any(self._hooks()))
        made, state = self._made, self._reader.state(pipeline)
        there = not pipeline.endswith("_back")
        if state == State.SWITCHING:
            switched = (made.place_of_application() == "new") == there
            said = ["resume", "--answer", "switched" if switched else "not-switched"]
        elif state in (State.SWITCHED, State.WATCH):
            said = ["resume"]
        else:
            said = [self._chance.choice(("resume", "abort"))]
        file = "shop.yaml" if there else "shop_back.yaml"
        done = made.lockstep("cutover", said[0], file, *said[1:], code=None)
        code = json.loads(done.out).get("error", {}).get("code", "") if done.out.strip() else f"code {done.code}"
        return f"{state}: {' '.join(said)}{f' ({code})' if code else ''}"


def _until(reached: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end_s
        time.sleep(0.02)
