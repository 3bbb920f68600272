"""Cutovers at a random moment of which something is killed or paused, one after the other in one shop.

The moment is a state of the cutover, and a random time after it came there. What follows is what a person would do:
resume or abort, and an answer to the question where the application writes.

Each cutover has a number, from which all choices come. A file keeps what was seen of each, so that runs add up: the
next one begins with the next number.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import psycopg

from cdc_core.cutover.states import OPEN, State
from tests.acceptance.cutover_cases import COMMAND, META, PAUSED, ROLLED_BACK, SOURCE, SWITCHED, TARGET
from tests.acceptance.moving_shop import Application, Shop
from tests.forked_commands import ForkedCommands, Started

NOTHING, HOOK = "nothing", "the switch command"
VICTIMS = (COMMAND, PAUSED, HOOK, SOURCE, TARGET, META)
STATES = ("PREPARED", "CHASE", "STOPPED", "DRAINED", "PROVED", "ARMED", "SWITCHING", "SWITCHED")
PATIENCE_S = 300.0
_LOOK_S, _FAR_S = 0.003, 0.03
"""How often to look at the state: just before the wanted one, which may be short, and earlier."""
_BEFORE = {STATES[at]: STATES[max(0, at - 1) : at + 1] for at in range(len(STATES))}
_LEAKS = ("nanobind:", " - ", "See https://nanobind")


_PAIRS = tuple((victim, state) for victim in VICTIMS for state in STATES if victim != HOOK)
_STRIKES = (*_PAIRS, *[(HOOK, "SWITCHING")] * 3, *[(NOTHING, "")] * 3)


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
    """One cutover. servers: source and target. state: in which the victim was struck; "" if the cutover had ended
    before. answers: what people said to end it."""

    number: int
    servers: str
    direction: str
    victim: str
    state: str
    ended: str
    answers: tuple[str, ...]
    took_s: float
    log: str = ""


class Log:
    """A file with a line of JSON for each cutover."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, servers: str) -> list[Struck]:
        """What was seen with these servers, in earlier runs as well."""
        if not self._path.is_file():
            return []
        lines = map(json.loads, self._path.read_text(encoding="utf-8").splitlines())
        known = {one.name for one in fields(Struck)}
        return [
            Struck(**{name: value for name, value in line.items() if name in known})
            for line in lines
            if line["servers"] == servers
        ]

    def add(self, one: Struck, writes: int) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(one) | {"writes": writes}) + "\n")


class RandomCutovers:
    """servers: their name. made: its meta database is the one of `meta`, a server that can be struck. dwelled_s: how
    long the last cutover was in each state; kept up to date."""

    def __init__(
        self,
        servers: str,
        made: Shop,
        commands: ForkedCommands,
        meta: Any,
        reader: MetaReader,
        dwelled_s: dict[str, float],
    ) -> None:
        self._named, self._made, self._commands, self._reader = servers, made, commands, reader
        self._servers = {SOURCE: made.source, TARGET: made.target, META: meta}
        self._dwelled_s = dwelled_s
        self._chance = random.Random()

    @property
    def knows_states(self) -> bool:
        return bool(self._dwelled_s)

    def one(self, number: int, application: Application) -> Struck:
        """Leads the application to the other place, or tries to. When it returns, the cutover has ended. number: below
        0, nothing is struck."""
        made, began_s = self._made, time.monotonic()
        _until(self._reader.lease_is_free)  # of a process that could not give it back
        self._chance.seed(number)
        victim, wanted = strike_of(number) if number >= 0 else (NOTHING, "")
        there = made.place_of_application() == "old"
        pipeline = made.name if there else f"{made.name}_back"
        former = self._reader.cutover(pipeline)
        log = made.folder / "command.log"
        started = self._commands.start(
            "cutover", "run" if there else "back", "shop.yaml", directory=made.folder,
            environ=made.lockstep.environment, log=log,
        )  # fmt: skip
        try:
            state, answers = self._struck(started, victim, wanted, pipeline, former)
            _until(lambda: started.ended)
        finally:
            started.kill()
        _until(lambda: not any(self._hooks()))  # one that outlives its caller has ended
        answers += self._settled(pipeline)
        place = made.place_of_application()
        if self._reader.state(pipeline) == State.ROLLED_BACK and (place == "new") == there:
            # The command was called after a person had said that nothing was switched: no write gets through where it
            # led the application, until somebody leads it back.
            refused = application.refused
            _until(lambda: application.refused > refused)
            made.lead("old" if there else "new")
            answers = (*answers, "led back by hand")
        for seen, took_s in self._reader.dwelled_s(pipeline).items():
            self._dwelled_s[seen] = took_s
        # The way back has no state of its own for an application that it leads back: the pipeline there has ended.
        switched = (self._reader.state(made.name) == State.WATCH) == there
        # A forked process reports what the modules of its parent have left.
        said = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith(_LEAKS)]
        return Struck(
            number, self._named, "there" if there else "back", victim, state,
            SWITCHED if switched else ROLLED_BACK, answers, time.monotonic() - began_s, "\n".join(said)[-3000:],
        )  # fmt: skip

    def _struck(
        self, started: Started, victim: str, wanted: str, pipeline: str, former: tuple[str, str] | None
    ) -> tuple[str, tuple[str, ...]]:
        """The state in which it was struck, and what people said meanwhile."""
        if victim == NOTHING:
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
        self._wait(started, self._chance.uniform(0, self._dwelled_s.get(wanted, 0.1)))
        found = self._reader.cutover(pipeline) or found
        if started.ended or found is None:
            return "", ()
        if victim == COMMAND:
            os.kill(started.pid, signal.SIGKILL)
            self._reader.end_leases(started.pid)
        elif victim == PAUSED:
            return found[1], self._paused(started, pipeline)
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


def ends_of(found: Iterable[Struck]) -> Counter[tuple[str, str, str, str]]:
    """How many cutovers ended how: by state, victim, direction and end."""
    return Counter((one.state or "none", one.victim, one.direction, one.ended) for one in found)


def _until(reached: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end_s
        time.sleep(0.02)
