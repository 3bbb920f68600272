"""A logical table at one target, ready to be written: its physical tables, their servers and facts.

Created once, by the driver; it travels to Spark's workers inside closures (it holds logins: never in a Spark setting,
never in a file).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import ParamSpec

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql

from cdc_core.config import MysqlTable, MysqlTarget, Sharding
from cdc_core.errors import LockstepError, Refused, UsageError, combined
from cdc_core.model.schema import TableSchema
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.mysql.connections import SafeConnection, Server, connect, is_mariadb, resolve, sensible
from cdc_core.mysql.session_settings import WRITING
from cdc_core.targets.bookkeeping.fence import fenced
from cdc_core.targets.bookkeeping.indexes import IndexedTable, build_due
from cdc_core.targets.bookkeeping.ownership import Writer, holding, require_answer
from cdc_core.targets.bookkeeping.placement import misplaced
from cdc_core.targets.bookkeeping.table_states import NOTHING, Fence, TableState, states_in
from cdc_core.targets.reading.sharding import ShardTable, shard_function, shard_tables, shards_of
from cdc_core.targets.reading.table_facts import (
    TableFacts,
    engine_problems,
    lacking_privileges,
    loaded_columns,
    may_alter,
    require_server,
    require_shown_names,
    table_facts,
    table_problems,
)
from cdc_core.targets.reading.target_faults import PRIVILEGES, lacks, translating
from cdc_core.targets.tables.target_keys import BYTEWISE, coarser_columns, spelled_apart_in
from cdc_core.targets.writing.load import Layout, altering_session, documents_of, open_session
from cdc_core.targets.writing.prepare import Ours, is_prepared, ours_beside, prepare_several, require_store

PREPARING_SESSIONS = 4
"""At most, of all servers of a target together."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One physical table on its server. columns: whose values go to it. The shards of a table may differ in the columns
    that are generated, missing there if they are generated on the source, or JSON. writer: the pipeline that writes.
    noted: that its stage was let in, as far as somebody asked (ownership.take)."""

    table: ShardTable
    server: Server
    facts: TableFacts
    columns: tuple[str, ...]
    writer: str = ""
    noted: bool = True


@dataclass(frozen=True, slots=True)
class Destination:
    """See the module's docstring. columns: those of all shards, key columns included, as the rows name them. key: () if
    rows have none, and are identified by all of their columns. shared: several source tables may feed the table, and
    must not share keys."""

    target: str
    logical: str
    rule: MysqlTable
    key: tuple[str, ...]
    columns: tuple[str, ...]
    shards: tuple[Shard, ...]
    shared: bool = False

    def layout_of(self, shard: Shard) -> Layout:
        documents = documents_of(shard.facts, shard.columns)
        return Layout(self.key, shard.columns, shared=self.shared, documents=documents)

    @property
    def quarantine(self) -> bool:
        """Rows that the target rejects are set aside."""
        return self.rule.on_row_error == "quarantine"

    @property
    def moving(self) -> str | None:
        """The shard key, if a row can change it without changing its key."""
        sharding = self.rule.sharding
        return None if sharding is None or not self.key or sharding.key in self.key else sharding.key

    def shard_numbers(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The shard of each row; all of them have their shard key."""
        if self.rule.sharding is None:
            return np.zeros(rows.num_rows, dtype=np.int64)
        return shards_of(rows.column(self.rule.sharding.key), self.rule.sharding, self._shard_key_scale)

    @property
    def _shard_key_scale(self) -> int | None:
        """Fractional digits of a shard key that the target has as DECIMAL: a source may have fewer, or get more."""
        assert self.rule.sharding is not None
        name = self.rule.sharding.key.lower()
        kinds = [shard.facts.by_name[name].type for shard in self.shards if name in shard.facts.by_name]
        return max((kind.scale or 0 for kind in kinds if kind.base == "decimal"), default=None)


@dataclass(frozen=True, slots=True)
class TableUse:
    """What a pipeline is about to do with a table of a target.

    key: of the rows; None: the rule's, or the first schema's. writing: rows are to be written, which a fence refuses,
    and a table that has the rows of another layout. partial: row images leave columns out. shared: as in Destination.
    pipeline: which a fence may let through. owner: None if nobody asks whose rows a table has (ownership.py). let_in:
    as if a cutover had let the pipeline in.
    """

    key: tuple[str, ...] | None = None
    writing: bool = True
    partial: bool = False
    shared: bool = False
    pipeline: str = ""
    owner: Writer | None = None
    let_in: bool = False

    def owns(self, logical: str, state: TableState) -> bool:
        return not self.writing or self.owner is None or self.owner.owns(logical, state)

    def is_let_through(self, fence: Fence) -> bool:
        return fence.lets_through(self.pipeline) or (self.let_in and fence.will_let_through(self.pipeline))

    def problems_of(self, place: ShardTable, state: TableState, *, new: bool) -> list[LockstepError]:
        """Why the state of a table refuses it. new: the table has no rows, or loses them."""
        if not self.writing:
            return []
        errors: list[LockstepError] = []
        fence = state.fence
        barred = fence is not None and fence.keeps_out(self.pipeline)
        if fence is not None and barred and not (self.let_in and fence.waits_for(self.pipeline)):
            errors.append(fenced(place.name, fence.note))
        if not new and state.placement not in (None, place.placement):
            errors.append(misplaced(place.name, str(state.placement), place.placement))
        return errors


def open_destination(
    target: MysqlTarget,
    logical: str,
    schemas: Sequence[TableSchema],
    use: TableUse = TableUse(),
) -> Destination:
    """As checked_destination, of one table alone."""
    with TargetSurvey(target, [logical]) as survey:
        return checked_destination(survey, logical, schemas, use)


def checked_destination(
    survey: TargetSurvey, logical: str, schemas: Sequence[TableSchema], use: TableUse
) -> Destination:
    """Checks every physical table of a logical one.

    This is the only list of requirements for a target: `lockstep check`, the plan of a run and the Spark jobs call it.
    Everything that is wrong is raised as one error (errors.combined). What Lockstep needs in the tables may still be
    lacking: prepared_destinations adds it.

    schemas: the current definitions of the source tables that are routed here. Raises what sharding and facts.* raise,
    and what target_faults makes of the servers' errors.
    """
    target = survey.target
    places = shard_tables(target, logical)
    rule = target.table(logical)
    assert rule is not None  # shard_tables has refused it
    rule = _as_spelled(rule, schemas)
    key = tuple(use.key or rule.key or schemas[0].key)
    if rule.sharding is not None:
        _require_shard_key(rule.sharding, target.name, logical, schemas, key)
    demands = _Demands(logical, tuple(schemas), key, rule, use)
    shards: list[Shard] = []
    problems: list[LockstepError] = []
    for number, reference in enumerate(target.connections):
        mine = [place for place in places if place.connection == number]
        if not mine:
            continue
        try:
            with survey.asking(number) as server:
                for place, facts, noted in _inspect(survey, mine, demands, reference, problems):
                    shards.append(Shard(place, server, facts, _loaded(facts, schemas), use.pipeline, noted))
        except LockstepError as error:
            problems.append(error)
    if problems:
        raise combined(problems)
    columns = dict.fromkeys(name for shard in shards for name in shard.columns)
    return Destination(
        target.name,
        logical,
        rule,
        key,
        tuple(columns),
        tuple(sorted(shards, key=lambda shard: shard.table.shard)),
        use.shared,
    )


def _as_spelled(rule: MysqlTable, schemas: Sequence[TableSchema]) -> MysqlTable:
    """The rule with its freshness column as the rows name it: a server takes the name in any letter case."""
    names = {column.name.lower(): column.name for schema in schemas for column in schema.columns}
    named = rule.freshness
    return rule if named is None else rule.model_copy(update={"freshness": names.get(named.lower(), named)})


def _loaded(facts: TableFacts, schemas: Sequence[TableSchema]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for schema in schemas for name in loaded_columns(facts, schema)))


def _require_shard_key(
    sharding: Sharding, target: str, logical: str, schemas: Sequence[TableSchema], key: Sequence[str]
) -> None:
    """Raises Refused (config.table_rule), and what sharding.shard_function raises. key: of the rows."""
    if any(sharding.key not in _names(schema) for schema in schemas):
        raise Refused(
            f"The shard key {sharding.key!r} is not a column of every source table of {logical!r}.",
            where=f"targets.{target}.tables",
            code="config.table_rule",
            remedy="name a column that all of them have",
        )
    if sharding.function == "python":
        shard_function(sharding)
        return
    for schema in schemas:
        kind = schema.column(sharding.key).type
        shards_of(pa.array([], kind.arrow), sharding)  # it refuses a type that the function does not take
        if sharding.key in key and spelled_apart_in(kind):
            raise Refused(
                f"The collation of the shard key {sharding.key!r} of {logical!r}, {kind.collation}, treats values as "
                f"equal that {sharding.function} tells apart by bytes: one row's versions would be in two shards.",
                where=f"targets.{target}.tables",
                code="config.table_rule",
                remedy=f"shard by another column; or give it, on the source, {BYTEWISE}; or set function: python, with "
                "a function that gives such keys one shard",
            )


def prepared_destinations(survey: TargetSurvey, destinations: Sequence[Destination]) -> list[Destination]:
    """Adds what Lockstep needs to each table of checked destinations, and the indexes that are due. Several sessions do
    it side by side, since a server spends most of the time on flushing; a column takes long to add on one that cannot
    do it in place.

    Raises what prepare and indexes.build_due raise, of the first table, after all others are done.
    """
    build_due(_with_due(survey, destinations))
    lacking: dict[tuple[int, str], dict[str, Shard]] = {}
    for destination in destinations:
        for shard in destination.shards:
            place = shard.table.connection, shard.table.database
            if not is_prepared(shard.facts, survey.ours(*place)):
                lacking.setdefault(place, {})[shard.facts.table] = shard
    if not lacking:
        return list(destinations)
    facts_of: dict[tuple[int, str, str], TableFacts] = {}
    with ThreadPoolExecutor(PREPARING_SESSIONS, thread_name_prefix="prepare") as pool:
        ahead = []
        for (number, database), by_table in lacking.items():
            shards = list(by_table.values())
            for at in range(min(PREPARING_SESSIONS, len(shards))):
                several = shards[at::PREPARING_SESSIONS]
                ahead.append((number, database, pool.submit(_prepare, several, survey.target.connections[number])))
    for number, database, future in ahead:
        facts_of |= {(number, database, facts.table): facts for facts in future.result()}
    return [
        replace(destination, shards=tuple(_with_facts(shard, facts_of) for shard in destination.shards))
        for destination in destinations
    ]


def _with_due(survey: TargetSurvey, destinations: Sequence[Destination]) -> Iterator[IndexedTable]:
    for destination in destinations:
        for shard in destination.shards:
            place = shard.table
            if survey.has_due(place):
                yield IndexedTable(
                    shard.server, survey.target.connections[place.connection], place.database, place.table
                )


def _prepare(shards: Sequence[Shard], reference: str) -> list[TableFacts]:
    with altering_session(shards[0].server, reference) as connection:
        return prepare_several(connection, [shard.facts for shard in shards])


def _with_facts(shard: Shard, facts_of: Mapping[tuple[int, str, str], TableFacts]) -> Shard:
    facts = facts_of.get((shard.table.connection, shard.table.database, shard.facts.table))
    return shard if facts is None else replace(shard, facts=facts)


def _names(schema: TableSchema) -> set[str]:
    return {column.name for column in schema.columns}


@dataclass(frozen=True, slots=True)
class _Demands:
    """What `checked_destination` was asked for."""

    logical: str
    schemas: tuple[TableSchema, ...]
    key: tuple[str, ...]
    rule: MysqlTable
    use: TableUse


@dataclass(frozen=True, slots=True)
class _Database:
    """What a server says of a database of the target. unsound: tables that cannot roll back."""

    facts: Mapping[str, TableFacts]
    unsound: Mapping[str, Refused]
    ours: Ours
    states: Mapping[str, TableState]


class TargetSurvey:
    """What the servers of a target say of several logical tables: each database is asked once for all of them.

    Connections stay open until the end of the block; one that fails is opened again when it is next needed. loading:
    a server that takes no bulk loads is refused (table_facts.require_server).
    """

    def __init__(self, target: MysqlTarget, logical: Iterable[str], *, loading: bool = True) -> None:
        self.target = target
        self._loading = loading
        self._tables: dict[tuple[int, str], dict[str, None]] = {}
        self._connections: dict[int, SafeConnection] = {}
        self._databases: dict[tuple[int, str], _Database] = {}
        self._lacking: dict[tuple[int, str], tuple[str, ...]] = {}
        for name in logical:
            with suppress(UsageError):  # checked_destination raises it, for the table that it is about
                for place in shard_tables(target, name):
                    self._tables.setdefault((place.connection, place.database), {})[place.table] = None

    def __enter__(self) -> TargetSurvey:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in list(self._connections):
            self._forget(number)

    @contextmanager
    def asking(self, number: int) -> Iterator[Server]:
        """Around questions to one of the target's servers, whose errors become Lockstep's."""
        reference = self.target.connections[number]
        server = resolve(reference)
        where = f"{reference} ({server})"
        try:
            with translating(where), sensible(reference):
                if number not in self._connections:
                    self._connections[number] = connect(server, where=reference, settings=WRITING)
                    if self._loading:
                        require_server(self._connections[number], where=where)
                yield server
        except BaseException:
            self._forget(number)
            raise

    def connection(self, number: int) -> SafeConnection:
        """Within `asking`."""
        return self._connections[number]

    def database(self, number: int, name: str) -> _Database:
        """Within `asking`."""
        at = number, name
        if at not in self._databases:
            connection, tables = self._connections[number], list(self._tables[at])
            with connection.cursor() as cursor:
                states = states_in(cursor, name)
            self._databases[at] = _Database(
                table_facts(connection, name, tables),
                engine_problems(connection, name, tables),
                ours_beside(connection, name, tables),
                states,
            )
        return self._databases[at]

    def lacking(self, number: int, name: str, *, where: str) -> tuple[str, ...]:
        """Within `asking`: table_facts.lacking_privileges."""
        at = number, name
        if at not in self._lacking:
            self._lacking[at] = lacking_privileges(self._connections[number], name, where=where)
        return self._lacking[at]

    def ours(self, number: int, name: str) -> Ours:
        """Lockstep's tables in a database that was asked, as they were then."""
        return self._databases[number, name].ours

    def has_due(self, place: ShardTable) -> bool:
        """Whether a table of a database that was asked has indexes that are due, as it was then."""
        state = self._databases[place.connection, place.database].states.get(place.table)
        return bool(state and state.due)

    def _forget(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            connection.close()


def _inspect(
    survey: TargetSurvey,
    places: Sequence[ShardTable],
    demands: _Demands,
    where: str,
    problems: list[LockstepError],
) -> Iterator[tuple[ShardTable, TableFacts, bool]]:
    """The tables that exist, of one server, and whether the writer is noted there; what is wrong with them, and with
    the missing ones, is added to `problems`.

    Raises LockstepError, or an error of the server, if it takes no statements now: further checks would be pointless.
    """
    number, use = places[0].connection, demands.use
    connection = survey.connection(number)
    mariadb = is_mariadb(connection)
    if not _collect(problems, require_shown_names, connection, [place.name for place in places]):
        return
    for database in dict.fromkeys(place.database for place in places):
        here = [place for place in places if place.database == database]
        surveyed = survey.database(number, database)
        facts_of = {place.table: surveyed.facts[place.table] for place in here if place.table in surveyed.facts}
        for place in here:
            facts = facts_of.get(place.table)
            for schema in demands.schemas[: None if facts else 1]:
                problems += table_problems(
                    facts,
                    schema,
                    demands.key,
                    name=place.name,
                    freshness=demands.rule.freshness,
                    narrower=demands.rule.on_row_error == "quarantine",
                    partial=use.partial,
                    mariadb=mariadb,
                )
            if facts is not None:
                facts = replace(
                    facts,
                    key=demands.key,
                    keyless=not demands.key,
                    beside=bool(demands.key) and demands.rule.guard.store == "table",
                )
                fence = surveyed.states.get(place.table, NOTHING).fence
                if facts.beside and fence is not None and use.is_let_through(fence):
                    facts = _without_versions(facts)
                facts_of[place.table] = replace(facts, coarser=bool(coarser_columns(facts, demands.schemas)))
        problems += [surveyed.unsound[table] for table in facts_of if table in surveyed.unsound]
        lacking = survey.lacking(number, database, where=where)
        sound = [table for name, table in facts_of.items() if name not in surveyed.unsound]
        bare = [table for table in sound if not (table.versioned or table.beside or table.keyless)]
        if bare and not may_alter(connection, bare[0], where=where):
            lacking = tuple(privilege for privilege in PRIVILEGES if privilege in (*lacking, "ALTER"))
        if lacking:
            with connection.cursor() as cursor:
                problems.append(lacks(cursor, database, lacking, where=where))
        states = {place.table: surveyed.states.get(place.table, NOTHING) for place in here}
        strange = {table for table, state in states.items() if not use.owns(demands.logical, state)}
        asked = [] if lacking else sorted(strange & facts_of.keys())
        held = holding(connection, database, asked, surveyed.ours)
        for place in here:
            new = place.table in strange and (place.table not in held or survey.target.existing == "replace")
            problems += use.problems_of(place, states[place.table], new=new)
            if place.table in held and use.owner is not None:
                _collect(problems, require_answer, survey.target, use.owner, demands.logical, place.name)
            if place.table not in facts_of:
                continue
            facts = facts_of[place.table]
            _collect(problems, require_store, connection, facts, surveyed.ours)
            yield place, facts, use.owner is None or use.owner.is_in(states[place.table])


def _without_versions(facts: TableFacts) -> TableFacts:
    """Versions in the rows are from before the fence, and so older than all that the pipeline writes that it lets
    through: they need not be compared, and the pipeline may keep its own beside the table."""
    return replace(facts, columns=tuple(column for column in facts.columns if column.name.lower() != VERSION_COLUMN))


Rules = ParamSpec("Rules")


def _collect(
    problems: list[LockstepError], check: Callable[Rules, None], *arguments: Rules.args, **options: Rules.kwargs
) -> bool:
    """Whether a check found nothing. Findings are added; an error of a server that takes nothing now is raised."""
    try:
        check(*arguments, **options)
    except LockstepError as error:
        if error.retriable:
            raise
        problems.append(error)
        return False
    return True


class ShardSessions:
    """Bulk connections of one worker to one target, opened when first used: one per server and database."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], SafeConnection] = {}

    def __enter__(self) -> ShardSessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Those that are needed later are opened again."""
        while self._open:
            _, connection = self._open.popitem()
            if connection.open:  # an error may have ended it
                connection.close()

    def of(self, shard: Shard) -> SafeConnection:
        at = (shard.table.connection, shard.table.database)
        if at not in self._open or not _is_alive(self._open[at]):
            self._open[at] = open_session(shard.server, shard.table.database, where=shard.table.name)
        return self._open[at]


def _is_alive(connection: SafeConnection) -> bool:
    """A server ends what has said nothing for load.IDLE_S."""
    try:
        if connection.open:
            connection.ping(reconnect=False)
    except pymysql.err.MySQLError:
        connection.close()
    return connection.open
