"""A logical table at one target, ready to be written: its physical tables, their servers and facts.

Made once, by the driver; it travels to Spark's workers inside closures (it holds logins: never in a Spark setting,
never in a file).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql

from cdc_core.config import Target, TargetTable
from cdc_core.connections import Server, connect, resolve
from cdc_core.errors import LockstepError, Refused, combined
from cdc_core.model.schema import TableSchema
from cdc_core.target.facts import (
    UNAVAILABLE,
    TableFacts,
    loaded_columns,
    require_grants,
    require_server,
    table_facts,
    table_problems,
    unavailable,
)
from cdc_core.target.load import Layout, open_session, set_session
from cdc_core.target.prepare import prepare, require_store
from cdc_core.target.sharding import ShardTable, shard_function, shard_tables, shards_of

_ALTER_S = 86_400


@dataclass(frozen=True, slots=True)
class Shard:
    """One physical table on its server."""

    place: ShardTable
    server: Server
    facts: TableFacts


@dataclass(frozen=True, slots=True)
class Destination:
    """See the module's docstring. columns: what is written, key columns included, as the rows name them. key: () where
    rows have none, and each is what its columns are."""

    target: str
    logical: str
    rule: TargetTable
    key: tuple[str, ...]
    columns: tuple[str, ...]
    shards: tuple[Shard, ...]

    @property
    def layout(self) -> Layout:
        facts = self.shards[0].facts
        documents = (name for name in self.columns if facts.by_name[name.lower()].type.base == "json")
        return Layout(self.key, self.columns, frozenset(documents))

    @property
    def quarantine(self) -> bool:
        """Rows that the target does not take are set aside."""
        return self.rule.on_row_error == "quarantine"

    @property
    def moving(self) -> str | None:
        """The shard key, if a row can change it without changing its key."""
        sharding = self.rule.sharding
        return None if sharding is None or not self.key or sharding.key in self.key else sharding.key

    def shard_numbers(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The shard of each row; they all say their shard key."""
        if self.rule.sharding is None:
            return np.zeros(rows.num_rows, dtype=np.int64)
        return shards_of(rows.column(self.rule.sharding.key), self.rule.sharding)


def open_destination(
    target: Target,
    logical: str,
    schemas: Sequence[TableSchema],
    *,
    key: Sequence[str] | None = None,
    ready: bool,
    partial: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Destination:
    """Looks at every physical table, and with `ready` adds what Lockstep needs there.

    This is the one list of what a target must be: `lockstep check` and the plan of a run ask it with ready=False, the
    Spark jobs with ready=True. All that is wrong is raised as one error (errors.combined).

    schemas: the current definitions of the source tables that are routed here. key: default, the rule's or the
    first schema's. partial: row images leave columns out. Raises what sharding, facts.* and prepare raise.
    """
    places = shard_tables(target, logical)
    rule = target.table(logical)
    assert rule is not None  # shard_tables has refused it
    key = tuple(key or rule.key or schemas[0].key)
    if rule.sharding is not None and any(rule.sharding.key not in _names(schema) for schema in schemas):
        raise Refused(
            f"The shard key {rule.sharding.key!r} is not a column of every source table of {logical!r}.",
            where=f"targets.{target.name}.tables",
            code="target.shard_key",
            remedy="name a column that all of them have",
        )
    if rule.sharding is not None and rule.sharding.function == "python":
        shard_function(rule.sharding)
    shards: list[Shard] = []
    problems: list[LockstepError] = []
    for number, reference in enumerate(target.connections):
        mine = [place for place in places if place.connection == number]
        if not mine:
            continue
        server = resolve(reference, environ)
        try:
            with connect(server, where=reference) as connection:
                with connection.cursor() as cursor:
                    set_session(cursor)
                require_server(connection, where=f"{reference} ({server})")
                shards += [
                    Shard(place, server, facts)
                    for place, facts in _inspect(
                        connection, mine, schemas, key, rule, reference, problems, partial=partial
                    )
                ]
        except LockstepError as error:
            problems.append(error)
        except pymysql.err.MySQLError as error:
            if (error.args[0] if error.args else 0) not in UNAVAILABLE:
                raise
            problems.append(unavailable(error, where=f"{reference} ({server})"))
    if problems:
        raise combined(problems)
    if ready:
        shards = _prepared(target, shards)
    columns: dict[str, None] = {}
    for schema in schemas:
        columns |= dict.fromkeys(loaded_columns(shards[0].facts, schema))
    return Destination(
        target.name, logical, rule, key, tuple(columns), tuple(sorted(shards, key=lambda shard: shard.place.shard))
    )


def _prepared(target: Target, shards: Sequence[Shard]) -> list[Shard]:
    """With what Lockstep needs in each table. Adding a column may take long on a server that cannot do it in place."""
    done: list[Shard] = []
    for number, reference in enumerate(target.connections):
        mine = [shard for shard in shards if shard.place.connection == number]
        if mine:
            server = mine[0].server
            with connect(server, where=reference, read_timeout=_ALTER_S, statement_timeout_s=_ALTER_S) as connection:
                with connection.cursor() as cursor:
                    set_session(cursor)
                done += [replace(shard, facts=prepare(connection, shard.facts)) for shard in mine]
    return done


def _names(schema: TableSchema) -> set[str]:
    return {column.name for column in schema.columns}


def _inspect(
    connection: pymysql.Connection[Any],
    places: Sequence[ShardTable],
    schemas: Sequence[TableSchema],
    key: Sequence[str],
    rule: TargetTable,
    where: str,
    problems: list[LockstepError],
    *,
    partial: bool,
) -> Iterator[tuple[ShardTable, TableFacts]]:
    """The tables that are there; what is wrong with them, and with those that are not, is added to `problems`."""
    mariadb = "MariaDB" in connection.get_server_info()  # type: ignore[no-untyped-call]
    for database in dict.fromkeys(place.database for place in places):
        here = [place for place in places if place.database == database]
        found = table_facts(connection, database, [place.table for place in here])
        for place in here:
            facts = found.get(place.table)
            for schema in schemas[: None if facts else 1]:
                problems += table_problems(
                    facts,
                    schema,
                    key,
                    name=place.name,
                    freshness=rule.freshness,
                    narrower=rule.on_row_error == "quarantine",
                    partial=partial,
                    mariadb=mariadb,
                )
            if facts is None:
                continue
            facts = replace(facts, keyless=not key, beside=bool(key) and rule.guard.store == "table")
            found[place.table] = facts
            _collect(problems, lambda: require_store(connection, facts))  # noqa: B023
            yield place, facts
        _collect(
            problems,
            lambda: require_grants(connection, found.values(), temporary_in=database, where=where),  # noqa: B023
        )


def _collect(problems: list[LockstepError], check: Callable[[], None]) -> None:
    try:
        check()
    except LockstepError as error:
        problems.append(error)


class Sessions:
    """Bulk connections of one worker, opened when first used: one per server and database."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._open: dict[tuple[int, str], pymysql.Connection[Any]] = {}

    def __enter__(self) -> Sessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._open.values():
            connection.close()

    def of(self, shard: Shard) -> pymysql.Connection[Any]:
        at = (shard.place.connection, shard.place.database)
        if at not in self._open:
            self._open[at] = open_session(shard.server, shard.place.database, where=shard.place.name)
        return self._open[at]
