"""A script's way over all shards of a target: one shard first, then the others in waves.

    decide   what every shard is now, what the statements will make of it, what speaks against it: alters nothing
    roll     alters what lacks something; meta knows that it was begun, and the servers how far each shard is

A shard is compared with what was foretold before and after each statement, and never altered if it is none of that. A
lock is waited for LOCK_WAIT_S, during which others wait behind it, and again until `patience_s`.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pymysql

from cdc_core.config import MysqlTarget
from cdc_core.errors import DataAtRisk, LeaseHeld, LockstepError, Refused, RetryLater, UsageError, combined, of_all
from cdc_core.meta import Lease
from cdc_core.meta.meta_rows import Rollout
from cdc_core.meta.rollouts import OPEN, alterer_of, unfinished
from cdc_core.model.readable import counted
from cdc_core.mysql.connections import connect, resolve
from cdc_core.mysql.server_errors import LOCKED, number_of
from cdc_core.operations.apply.plan import schemas_of
from cdc_core.operations.ddl import copy_hook
from cdc_core.operations.ddl.fingerprint import DefinitionFingerprint, fingerprint
from cdc_core.operations.ddl.foretell import COPY, NOT_THIS_WAY, WAYS, Foretold, foretell, no_table, refused
from cdc_core.operations.ddl.script import Script, ScriptStatement, parse
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.target_tables import source_tables
from cdc_core.stage.stores import open_stage
from cdc_core.targets.bookkeeping.indexes import indexes_due, with_due
from cdc_core.targets.reading.sharding import ShardTable, shard_tables
from cdc_core.targets.reading.target_faults import is_row_error, known, translated, translating
from cdc_core.targets.writing.load import altering_session

log = logging.getLogger(__name__)

LOCK_WAIT_S = 2
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class RolloutShard:
    """One physical table, and what it is now. found: None where it does not exist. server: its kind and version."""

    place: ShardTable
    server: str
    found: DefinitionFingerprint | None


@dataclass(frozen=True, slots=True)
class DecidedTable:
    """What a script means for a logical table. foretold: by server. shards: in the order in which they are altered."""

    logical: str
    statements: tuple[ScriptStatement, ...]
    shards: tuple[RolloutShard, ...]
    foretold: Mapping[str, Foretold]

    @property
    def copied(self) -> bool:
        """Whether its only statement copies the table."""
        return any(COPY in foretold.ways for foretold in self.foretold.values())

    def behind(self, shard: RolloutShard) -> int | None:
        """How many statements the shard has behind it; None for one that is missing or defined otherwise."""
        foretold = self.foretold.get(shard.server)
        return None if foretold is None or shard.found is None else foretold.place(shard.found)

    def drift(self, shard: RolloutShard) -> tuple[str, ...]:
        """How a shard that is defined otherwise differs from the nearest definition that was foretold."""
        other = next(
            (beside.found for beside in self.shards if beside.server == shard.server and self.behind(beside) == 0), None
        )
        if shard.found is None or other is None:
            return ()
        lines = difflib.unified_diff(other.text.splitlines(), shard.found.text.splitlines(), lineterm="", n=0)
        return tuple(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


@dataclass(frozen=True, slots=True)
class Decided:
    """rollout: the one that is open, or None. taken_back: one that is open, of whose statements these are the reverse.
    tables: in the script's order. problems: what speaks against it."""

    script: Script
    direction: str
    text: str
    tables: tuple[DecidedTable, ...]
    rollout: Rollout | None = None
    taken_back: Rollout | None = None
    problems: tuple[LockstepError, ...] = ()

    @property
    def done(self) -> bool:
        """Whether all shards have all statements behind them."""
        return all(table.behind(shard) == len(table.statements) for table in self.tables for shard in table.shards)


@dataclass(frozen=True, slots=True)
class Options:
    """canary: the number of the shard that is altered first, alone. wave: how many are altered at once afterwards.
    patience_s: for how long a lock is waited for again and again, on each shard. copy_with: the command that makes
    copies (copy_hook), "" for none."""

    canary: int = 0
    wave: int = 8
    patience_s: float = 300.0
    copy_with: str = ""


@dataclass(frozen=True, slots=True)
class RolloutWork:
    """The values that all shards of one rollout need."""

    opened: OpenPipeline
    target: MysqlTarget


def rollout_lease(work: RolloutWork) -> AbstractContextManager[Lease]:
    """The right to alter the shards of a target. Raises RetryLater (lease.held)."""
    lease_s = work.opened.pipeline.limits.lease_s
    taken = LeaseHeld(
        f"Another process alters the shards of {work.target.name!r}.",
        where=work.target.name,
        remedy=f"wait until it has ended or, if it is dead, {lease_s:g} s for its lease to expire",
    )
    return work.opened.meta.leases.held(
        alterer_of(work.opened.name, work.target.name), work.opened.holder, lease_s, taken=taken
    )


def decide(work: RolloutWork, text: str, name: str, direction: str, options: Options) -> Decided:
    """What the script means now. Alters nothing but an empty copy of a table, on each kind of server.

    Raises UsageError (ddl.script), Refused (ddl.script), what connecting raises, and target_faults' errors.
    """
    script = parse(text, name)
    statements = script.statements(direction)
    if not statements:
        raise UsageError(
            f"{name} has no statements for {direction}.",
            where=name,
            code="ddl.script",
            remedy=f"write them below a line `-- migrate:{direction}`",
        )
    former = work.opened.meta.rollouts.latest(work.target.name)
    same = former if former is not None and _is_of(former, script, direction) else None
    reverse = former if former is not None and direction == "down" and _is_of(former, script, "up") else None
    problems: list[LockstepError] = []
    if former is not None and former.state == OPEN:
        problems += _layout_problems(work, former) if same or reverse else [unfinished(former)]
    decided = []
    for logical in dict.fromkeys(statement.logical for statement in statements):
        of_table = _of_table(statements, logical)
        undone = _Undone(reverse, logical, _of_table(script.up, logical)) if reverse is not None else None
        table, errors = _decided(work, logical, of_table, options, same, undone)
        decided.append(table)
        problems += errors or _held_columns(work, table)
    rollout, taken_back = (one if one is not None and one.state == OPEN else None for one in (same, reverse))
    return Decided(script, direction, text, tuple(decided), rollout, taken_back, tuple(problems))


def _of_table(statements: Sequence[ScriptStatement], logical: str) -> tuple[ScriptStatement, ...]:
    return tuple(statement for statement in statements if statement.logical == logical)


def _is_of(former: Rollout, script: Script, direction: str) -> bool:
    """Whether the rollout has these statements: its file may have got the reverse of them since."""
    kept = parse(former.script, former.name).statements(former.direction)
    return former.direction == direction and kept == script.statements(direction)


@dataclass(frozen=True, slots=True)
class _Undone:
    """A rollout that may have stopped anywhere, and its statements of one table."""

    rollout: Rollout
    logical: str
    statements: tuple[ScriptStatement, ...]

    def lacking(self, shard: RolloutShard) -> tuple[ScriptStatement, ...]:
        """The statements that the shard has not been given: its definition is taken back from behind them."""
        told = _told(self.rollout, shard.server, self.logical, [shard])
        place = told.place(shard.found) if told is not None and shard.found is not None else None
        return () if place is None else self.statements[place:]


def _layout_problems(work: RolloutWork, rollout: Rollout) -> Iterator[Refused]:
    """Tables whose shards are not those that the rollout was begun with: some would keep their definition unnoticed."""
    for logical, former in rollout.shards.items():
        now = {table.shard for table in shard_tables(work.target, logical)}
        if now != set(former):
            yield Refused(
                f"{rollout.name} ({rollout.direction}) was begun for {counted(len(former), 'shard')} of {logical!r}; "
                f"the pipeline file now has {len(now):,}.",
                where=f"targets.{work.target.name}.tables.{logical}.sharding",
                code="ddl.open",
                remedy="restore the former sharding; then finish with `lockstep ddl resume`, or take it back with "
                "`lockstep ddl run` of the same file and --down",
            )


def _decided(
    work: RolloutWork,
    logical: str,
    statements: tuple[ScriptStatement, ...],
    options: Options,
    former: Rollout | None,
    undone: _Undone | None,
) -> tuple[DecidedTable, list[LockstepError]]:
    """former: the latest rollout, if it is of the same statements: what they make of a table was foretold then."""
    places = shard_tables(work.target, logical)
    if not 0 <= options.canary < len(places):
        raise UsageError(
            f"{logical!r} has no shard {options.canary}.",
            where="--canary",
            code="usage.unknown_name",
            remedy=f"give a number from 0 to {len(places) - 1}",
        )
    ordered = sorted(places, key=lambda place: (place.shard != options.canary, place.shard))
    shards = tuple(_surveyed(work, ordered))
    problems: list[LockstepError] = [no_table(shard.place) for shard in shards if shard.found is None]
    by_server: dict[str, list[tuple[str, str]]] = {}
    for place in places:
        by_server.setdefault(work.target.connections[place.connection], []).append((place.database, place.table))
    problems += [indexes_due(indexed.name) for indexed in with_due(by_server)]
    foretold: dict[str, Foretold] = {}
    for server in dict.fromkeys(shard.server for shard in shards):
        of_server = [shard for shard in shards if shard.server == server and shard.found is not None]
        told = _told(former, server, logical, of_server)
        still = former is not None and (
            former.state == OPEN or told is None or all(_knows(told, shard) for shard in of_server)
        )
        if told is not None and still:
            foretold[server] = told
        elif of_server:
            try:
                foretold[server] = _foretold(work, of_server, statements, undone, options)
            except LockstepError as error:
                if error.retriable:
                    raise
                problems.append(error)
    table = DecidedTable(logical, statements, shards, foretold)
    problems += [
        _drifted(table, shard)
        for shard in shards
        if shard.found is not None and shard.server in foretold and table.behind(shard) is None
    ]
    return table, problems


def _told(former: Rollout | None, server: str, logical: str, shards: Sequence[RolloutShard]) -> Foretold | None:
    """What was foretold by the server; or by one of another version, as it may have been then, that knows the shards:
    from those that have the statements already, they would be foretold to have them twice."""
    if former is None:
        return None
    for version in (server, *former.prints):
        prints = former.prints.get(version, {}).get(logical)
        if prints:
            told = Foretold(tuple(prints), tuple(former.ways[version][logical]))
            if version == server or all(_knows(told, shard) for shard in shards):
                return told
    return None


def _knows(told: Foretold, shard: RolloutShard) -> bool:
    return shard.found is not None and told.place(shard.found) is not None


def _foretold(
    work: RolloutWork,
    shards: Sequence[RolloutShard],
    statements: Sequence[ScriptStatement],
    undone: _Undone | None,
    options: Options,
) -> Foretold:
    """From the definition by which most shards are known: others may have the statements behind them already."""
    best: tuple[int, Foretold] | None = None
    first: LockstepError | None = None
    for definition in dict.fromkeys(shard.found for shard in shards):
        base = next(shard for shard in shards if shard.found == definition)
        try:
            # Two at once would drop each other's empty copy, and foretell from half of the statements.
            with _session(work, base.place) as connection, _alone(connection, base.place, options.patience_s):
                lacking = undone.lacking(base) if undone is not None else ()
                told = foretell(connection, base.place, statements, lacking=lacking, copies=bool(options.copy_with))
        except LockstepError as error:
            if error.retriable:
                raise
            first = first or error
            continue
        covered = sum(_knows(told, shard) for shard in shards)
        if best is None or covered > best[0]:
            best = covered, told
    if best is None:
        assert first is not None
        raise first
    return best[1]


def _surveyed(work: RolloutWork, places: Sequence[ShardTable]) -> Iterator[RolloutShard]:
    shards: dict[ShardTable, RolloutShard] = {}
    for number in dict.fromkeys(place.connection for place in places):
        reference = work.target.connections[number]
        server = resolve(reference)
        with translating(reference), connect(server, where=reference) as connection:
            version = connection.get_server_info()  # type: ignore[no-untyped-call]
            for place in places:
                if place.connection == number:
                    shards[place] = RolloutShard(place, version, fingerprint(connection, place.database, place.table))
    return (shards[place] for place in places)


def _drifted(table: DecidedTable, shard: RolloutShard) -> Refused:
    lines = table.drift(shard)
    how = f": {' '.join(' '.join(lines).split())[:300]}" if lines else ""
    return Refused(
        f"{shard.place.name} differs from the other shards{how}.",
        where=shard.place.name,
        code="ddl.drift",
        remedy="make it like the others (- is theirs, + its own), or like the result; then run the command again",
    )


def _held_columns(work: RolloutWork, table: DecidedTable) -> list[LockstepError]:
    """A column may go once the source lacks it and nothing staged brings it any more. One that a statement drops and
    adds has lost its values."""
    dropped, made = set[str](), set[str]()
    for statement in table.statements:
        gone = {name.lower() for name in (*statement.columns.dropped, *statement.columns.perhaps_dropped)}
        dropped |= gone - made
        made |= {name.lower() for name in statement.columns.added}
    if not dropped:
        return []
    problems: list[LockstepError] = []
    present = source_tables(work.opened.pipeline, only=[table.logical]).origins.get(table.logical, ())
    for origin in present:
        held = dropped & {column.name.lower() for column in origin.schema.columns}
        if held:
            problems.append(_held(table.logical, held, f"{origin.schema.name} of the source has it"))
    sources = [source.name for source in work.opened.pipeline.sources]
    view = work.opened.meta.plans.find("", sources, [work.target.name], None)
    pending = view.pending[work.target.name]
    schemas = schemas_of(view, open_stage(work.opened.pipeline.stage))
    for batch in sorted(pending):
        for file in view.files.get(batch, ()):
            if file.table == table.logical:
                held = dropped & {column.name.lower() for column in schemas[file.schema_id].columns}
                if held:
                    problems.append(_held(table.logical, held, f"the staged batch {batch} brings it"))
                    return problems
    return problems


def _held(logical: str, held: set[str], why: str) -> Refused:
    return Refused(
        f"The column {min(held)!r} of {logical!r} is still needed: {why}.",
        where=logical,
        code="ddl.column_needed",
        remedy="drop it at the source first, apply what is staged (`lockstep run`), then drop it at the targets",
    )


def roll(work: RolloutWork, decided: Decided, lease: Lease, options: Options) -> Decided:
    """Brings all shards to the end of the script; what they are then.

    Raises what speaks against it, and what stopped it (errors.combined).
    """
    if decided.problems:
        raise combined(list(decided.problems))
    if decided.done and decided.rollout is None and decided.taken_back is None:
        return decided
    if not decided.done and any(table.copied for table in decided.tables) and not options.copy_with:
        raise UsageError(
            f"{decided.script.name} copies a table, and no command for copies was given.",
            where="--copy-with",
            code="usage.argument",
            remedy="add --copy-with, as when the change was begun",
        )
    rollout = decided.rollout or _begun(work, decided, lease)
    for table in decided.tables:
        places = [shard.place for shard in table.shards]
        waves = [places[:1], *(places[at : at + options.wave] for at in range(1, len(places), options.wave))]
        if table.copied:
            _in_waves(waves, partial(_start_copy, work, lease, table, options))
        _in_waves(waves, partial(_bring, work, lease, table, options))
    work.opened.meta.rollouts.finish(lease, rollout.rollout_id)
    return replace(decided, tables=tuple(_as_is_now(work, table) for table in decided.tables))


def _in_waves(waves: Sequence[Sequence[ShardTable]], work: Callable[[ShardTable], None]) -> None:
    """Does the work for each shard. Raises what it raised (errors.combined) once the wave has ended."""
    for wave in waves:
        with ThreadPoolExecutor(max(1, len(wave))) as pool:
            tasks = [pool.submit(work, place) for place in wave]
        errors = [error for task in tasks if (error := task.exception()) is not None]
        if errors:
            raise of_all(errors)


def _as_is_now(work: RolloutWork, table: DecidedTable) -> DecidedTable:
    return replace(table, shards=tuple(_surveyed(work, [shard.place for shard in table.shards])))


def _begun(work: RolloutWork, decided: Decided, lease: Lease) -> Rollout:
    prints: dict[str, dict[str, Sequence[str]]] = {}
    ways: dict[str, dict[str, Sequence[str]]] = {}
    for table in decided.tables:
        for server, foretold in table.foretold.items():
            prints.setdefault(server, {})[table.logical] = foretold.prints
            ways.setdefault(server, {})[table.logical] = foretold.ways
    identity = f"{work.opened.name}/{work.target.name}/{decided.direction}/{work.opened.meta.now_us()}/{decided.text}"
    rollout = Rollout(
        hashlib.sha256(identity.encode()).hexdigest()[:16],
        work.opened.name,
        work.target.name,
        decided.script.name,
        decided.direction,
        decided.text,
        prints,
        ways,
        {table.logical: [shard.place.shard for shard in table.shards] for table in decided.tables},
    )
    return work.opened.meta.rollouts.begin(lease, rollout)


def _require_right(work: RolloutWork, lease: Lease) -> None:
    """Right before a shard is altered, under its lock: to a process that was paused, a shard that another one has taken
    back looks as if nothing had happened. Raises RetryLater (lease.lost)."""
    work.opened.meta.leases.renew(lease, work.opened.pipeline.limits.lease_s)


def _start_copy(work: RolloutWork, lease: Lease, table: DecidedTable, options: Options, place: ShardTable) -> None:
    """The shard's copy, as far as the exchange, which waits for the copies of all others."""
    (shard,) = _surveyed(work, [place])
    if table.behind(shard) == 0:
        _require_right(work, lease)
        server = resolve(work.target.connections[place.connection])
        copy_hook.call(options.copy_with, copy_hook.START, place, server, table.statements[0])


def _bring(work: RolloutWork, lease: Lease, table: DecidedTable, options: Options, place: ShardTable) -> None:
    """All statements that this shard lacks."""
    with _session(work, place) as connection, _alone(connection, place, options.patience_s):
        server = connection.get_server_info()  # type: ignore[no-untyped-call]
        while True:
            definition = fingerprint(connection, place.database, place.table)
            if definition is None:
                raise no_table(place)
            behind = table.behind(RolloutShard(place, server, definition))
            if behind is None:
                raise _drifted(table, RolloutShard(place, server, definition))
            if behind == len(table.statements):
                return
            _require_right(work, lease)
            statement, way = table.statements[behind], table.foretold[server].ways[behind]
            if way == COPY:
                login = resolve(work.target.connections[place.connection])
                copy_hook.call(options.copy_with, copy_hook.COMPLETE, place, login, statement)
            else:
                _execute(connection, place, statement, way, options.patience_s)
            after = fingerprint(connection, place.database, place.table)
            if after is None or table.behind(RolloutShard(place, server, after)) != behind + 1:
                raise DataAtRisk(
                    f"After the statement, {place.name} is not defined as expected.",
                    where=place.name,
                    code="ddl.unforetold",
                    remedy="compare it with the other shards (`lockstep ddl plan`) before you alter anything else",
                )
            work.opened.progress.note(f"{place.name}: {behind + 1} of its statements")


def _execute(
    connection: pymysql.Connection[Any], place: ShardTable, statement: ScriptStatement, way: str, patience_s: float
) -> None:
    """Alters by the foretold way, or a dearer one that still keeps nobody waiting. Raises Refused (ddl.refused,
    ddl.copies), RetryLater (ddl.locked), and target_faults' errors."""
    ways = WAYS[[name for name, _ in WAYS].index(way) :]
    until_s = time.monotonic() + patience_s
    at = 0
    while True:
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement.on(place.database, place.table, *ways[at][1]))
        except pymysql.err.MySQLError as error:
            number = number_of(error)
            if number in NOT_THIS_WAY and at + 1 < len(ways):
                at += 1
                continue
            if number not in LOCKED:
                if known(error) and not is_row_error(error):
                    raise translated(error, where=place.name) from None
                raise refused(error, place, statement) from None
            if time.monotonic() >= until_s:
                raise RetryLater(
                    f"{place.name} was in use for {patience_s:.0f} s, so its definition could not be exchanged.",
                    where=place.name,
                    code="ddl.locked",
                    remedy="look for long transactions on the table; then run `lockstep ddl resume`",
                ) from None
            time.sleep(random.uniform(_PAUSE_S, 2 * _PAUSE_S))
            continue
        log.info("%s: %s (%s)", place.name, statement.clauses, ways[at][0])
        return


@contextmanager
def _session(work: RolloutWork, place: ShardTable) -> Iterator[pymysql.Connection[Any]]:
    reference = work.target.connections[place.connection]
    with altering_session(resolve(reference), reference) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
            cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_S}")
        yield connection


@contextmanager
def _alone(connection: pymysql.Connection[Any], place: ShardTable, patience_s: float) -> Iterator[None]:
    """A killed process's statement may still be running: the server frees its lock when that has ended."""
    name = "lockstep-ddl:" + hashlib.sha256(place.name.encode()).hexdigest()[:40]
    with connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, %s)", (name, patience_s))
        row = cursor.fetchone()
    if not row or row[0] != 1:
        raise RetryLater(
            f"Another session has been altering {place.name} for more than {patience_s:.0f} s.",
            where=place.name,
            code="ddl.locked",
            remedy="wait until its statement ends, or end it on the server; then run `lockstep ddl resume`",
        )
    try:
        yield
    finally:
        if connection.open:
            with connection.cursor() as cursor:
                cursor.execute("DO RELEASE_LOCK(%s)", (name,))


def summary(decided: Decided) -> str:
    """`2 tables, 64 shards: 12 have all statements`."""
    shards = [(table, shard) for table in decided.tables for shard in table.shards]
    done = sum(table.behind(shard) == len(table.statements) for table, shard in shards)
    return f"{counted(len(decided.tables), 'table')}, {counted(len(shards), 'shard')}: {done:,} have all statements"
