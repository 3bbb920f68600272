"""All physical tables of a target: created where they are missing, compared and perhaps altered where they exist.

It knows the sources only by what `WantedTable` says of them. Errors of one table do not stop the others; one of a
server that takes no statements now does. Twice, or two at once, has the same result as once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pymysql

from cdc_core.config import MysqlTarget
from cdc_core.errors import LockstepError, Refused
from cdc_core.mysql.connections import quote, resolve
from cdc_core.mysql.server_errors import ErrorKind, kind_of
from cdc_core.targets.bookkeeping.indexes import build_due, due_in, note_made, with_due
from cdc_core.targets.bookkeeping.table_states import (
    LEDGER,
    MARKS,
    DueIndex,
    TableState,
    note,
    states_in,
    tables_locked,
)
from cdc_core.targets.reading.sharding import ShardTable, by_server, placed_tables, require_apart
from cdc_core.targets.reading.table_facts import require_shown_names, table_facts
from cdc_core.targets.reading.target_faults import denied, is_row_error, known, reason, translated
from cdc_core.targets.tables.definition_sql import Dialect, Origin, PlannedTable, planned_table
from cdc_core.targets.tables.table_definition import LITERAL, TableDefinition, read_definitions
from cdc_core.targets.tables.table_differences import (
    Existing,
    Literals,
    TableDifference,
    alter_sql,
    alter_table,
    create_database_sql,
    dialect_of,
    differences,
)
from cdc_core.targets.writing.load import altering_session, asking_session
from cdc_core.targets.writing.prepare import prepare, tombstones_table, versions_table

log = logging.getLogger(__name__)

LiteralsOf = Callable[["pymysql.Connection[Any]", TableDefinition], Literals]
"""The exact literal defaults of a table (column_defaults)."""


@dataclass(frozen=True, slots=True)
class WantedTable:
    """What a logical table needs at a target. origins: its source tables. key: () for rows without one.
    alone: no other source table feeds it. renamed: (old, new) of columns that got another name there."""

    origins: tuple[Origin, ...]
    key: tuple[str, ...]
    alone: bool
    renamed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Actions:
    """What may be done. add: the logical tables whose columns follow those of the source: missing ones are added, and
    those that it no longer has allow NULL. alter: whatever else only adds, too.
    dry: nothing; the statements are only shown."""

    create: bool = True
    add: frozenset[str] = frozenset()
    alter: bool = False
    dry: bool = False

    def does(self, logical: str, difference: TableDifference) -> bool:
        return (
            difference.safe
            and bool(difference.alter)
            and (self.alter or (bool(difference.column) and logical in self.add))
        )


@dataclass(frozen=True, slots=True)
class MadeTable:
    """What became of a physical table.

    state:       created, altered, exists, or missing.
    statements:  what was executed; with Actions.dry, what would be.
    differences: those that remain, each with the statement that ends it, "" where there is none.
    """

    logical: str
    name: str
    state: str
    statements: tuple[str, ...] = ()
    differences: tuple[tuple[TableDifference, str], ...] = ()
    notes: tuple[str, ...] = ()
    error: LockstepError | None = None


@dataclass(frozen=True, slots=True)
class _Options:
    target: MysqlTarget
    wanted: Mapping[str, WantedTable]
    actions: Actions
    literals_of: LiteralsOf
    made: Callable[[MadeTable], None]
    results: list[MadeTable] = field(default_factory=list)

    def add(self, table: MadeTable) -> None:
        self.results.append(table)
        self.made(table)


def _unknown(connection: pymysql.Connection[Any], definition: TableDefinition) -> Literals:
    return {}


def make_tables(
    target: MysqlTarget,
    wanted: Mapping[str, WantedTable],
    actions: Actions,
    *,
    literals_of: LiteralsOf = _unknown,
    made: Callable[[MadeTable], None] = lambda table: None,
) -> list[MadeTable]:
    """Makes the tables of these logical tables. made: is called after each one.

    Raises UsageError (config.invalid), Refused (config.table_rule), and what connecting raises.
    """
    require_apart(target, wanted)
    tables = list(by_server(target, placed_tables(target, wanted)))
    if not actions.dry:
        places: dict[str, list[tuple[str, str]]] = {}
        for reference, placed in tables:
            places.setdefault(reference, []).extend((place.database, place.table) for _, place in placed)
        build_due(with_due(places))
    options = _Options(target, wanted, actions, literals_of, made)
    for reference, placed in tables:
        with altering_session(resolve(reference), reference) as connection:
            _on_server(connection, placed, options)
    return options.results


def missing_tables(target: MysqlTarget, logicals: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Those of the logical tables of which physical tables do not exist, and these."""
    found: dict[str, tuple[str, ...]] = {}
    for reference, placed in by_server(target, placed_tables(target, logicals)):
        with asking_session(resolve(reference), reference) as connection:
            there = _existing(connection, {table.database for _, table in placed})
        for logical, table in placed:
            if (table.database, table.table) not in there:
                found[logical] = (*found.get(logical, ()), table.name)
    return found


def _existing(connection: pymysql.Connection[Any], databases: Collection[str]) -> set[tuple[str, str]]:
    marks = ", ".join(["%s"] * len(databases))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA IN ({marks})",
            tuple(databases),
        )
        return {(str(database), str(table)) for database, table in cursor.fetchall()}


def _on_server(
    connection: pymysql.Connection[Any], places: Sequence[tuple[str, ShardTable]], options: _Options
) -> None:
    require_shown_names(connection, [place.name for _, place in places])
    dialect = dialect_of(connection)
    plans: dict[str, PlannedTable | LockstepError] = {}
    for database in dict.fromkeys(place.database for _, place in places):
        here = [(logical, place) for logical, place in places if place.database == database]
        there = read_definitions(connection, database, [place.table for _, place in here])
        with connection.cursor() as cursor:
            due = due_in(cursor, database)
        absent = _database_is_absent(connection, database)
        created: list[tuple[str, ShardTable, tuple[str, ...]]] = []
        for logical, place in here:
            if logical not in plans:
                plans[logical] = _planned(options, logical, dialect)
            plan = plans[logical]
            if isinstance(plan, LockstepError):
                state = "exists" if place.table in there else "missing"
                options.add(MadeTable(logical, place.name, state, error=plan))
            elif place.table in there:
                lacks = due.get(place.table, ())
                made = _existing_table(connection, plan, there[place.table], logical, options, whole=not lacks)
                options.add(_with_due(made, lacks))
            else:
                with _failing(options, logical, place, plan):
                    statements = _create(connection, plan, place, options, absent=absent)
                    if statements is not None:
                        absent = False
                        created.append((logical, place, statements))
        _prepare(connection, database, created, options, plans)


def _planned(options: _Options, logical: str, dialect: Dialect) -> PlannedTable | LockstepError:
    wanted = options.wanted[logical]
    rule = options.target.table(logical)
    assert rule is not None  # shard_tables has refused it
    try:
        return planned_table(
            logical, wanted.origins, wanted.key, dialect, versioned=rule.guard.store == "row", alone=wanted.alone
        )
    except LockstepError as error:
        return error


@contextmanager
def _failing(options: _Options, logical: str, place: ShardTable, plan: PlannedTable) -> Iterator[None]:
    """An error becomes the table's result, unless a retry of all may help."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        refused = _refused(error, place.name)
        if refused.retriable:
            raise refused from None
        options.add(MadeTable(logical, place.name, "missing", notes=plan.notes, error=refused))


def _refused(error: pymysql.err.MySQLError, where: str) -> LockstepError:
    if known(error) and not is_row_error(error):
        return translated(error, where=where)
    return Refused(
        f"The server refuses the definition of the table: {reason(error)}.",
        where=where,
        code="target.not_creatable",
        remedy="see the statement with `lockstep target create --dry-run`; create the table by hand, in a form that "
        "the server accepts",
    )


def _create(
    connection: pymysql.Connection[Any],
    plan: PlannedTable,
    place: ShardTable,
    options: _Options,
    *,
    absent: bool,
) -> tuple[str, ...] | None:
    """The statements, if they were executed; None where they were only shown."""
    statement = plan.create(place.database, place.table)
    statements = (create_database_sql(place.database, plan.collation), statement) if absent else (statement,)
    actions = options.actions
    if actions.dry or not actions.create:
        options.add(
            MadeTable(plan.logical, place.name, "missing", statements if actions.create else (), notes=plan.notes)
        )
        return None
    with connection.cursor() as cursor:
        if absent:
            cursor.execute(statements[0])
        with tables_locked(cursor, [place.name]):
            new = (place.database, place.table) not in _existing(connection, [place.database])
            if new:
                _forget(cursor, place)
            cursor.execute(statement)
            if new:
                note_made(cursor, place.database, place.table, plan)
    return statements


def _forget(cursor: Any, place: ShardTable) -> None:
    """Removes what is noted beside a table that was dropped: which runs wrote to it, for which rows, and its rows'
    versions.

    A new table has none of these rows. Without the notes, every run finds that committed writes are lost
    (apply.lost_writes), and only a replay ends that; with them, it would continue with new changes alone.
    """
    for name in (LEDGER, MARKS):
        _if_there(cursor, f"DELETE FROM {quote(place.database, name)} WHERE table_name = %s", (place.table,))
    _if_there(cursor, f"DELETE FROM {quote(place.database, versions_table(place.table))}")
    before = states_in(cursor, place.database, place.table).get(place.table)
    if before is not None:
        note(cursor, place.database, place.table, before, TableState(fence=before.fence))


def _if_there(cursor: Any, statement: str, arguments: tuple[str, ...] = ()) -> None:
    """Executes it on a table, or a column of it, that may not exist."""
    try:
        cursor.execute(statement, arguments or None)
    except pymysql.err.MySQLError as error:
        if kind_of(error) is not ErrorKind.ALTERED:
            raise


def _prepare(
    connection: pymysql.Connection[Any],
    database: str,
    created: Sequence[tuple[str, ShardTable, tuple[str, ...]]],
    options: _Options,
    plans: Mapping[str, PlannedTable | LockstepError],
) -> None:
    """What Lockstep needs beside the tables; the jobs of a run would add it, too."""
    facts = table_facts(connection, database, [place.table for _, place, _ in created])
    for logical, place, statements in created:
        plan, rule = plans[logical], options.target.table(logical)
        assert isinstance(plan, PlannedTable)
        assert rule is not None
        key = options.wanted[logical].key
        error = None
        there = facts.get(place.table)
        if there is not None:  # otherwise another has dropped it
            beside = bool(key) and rule.guard.store == "table"
            try:
                prepare(connection, replace(there, key=key, keyless=not key, beside=beside))
            except LockstepError as refused:
                if refused.retriable:
                    raise
                error = refused
        log.info("%s: created", place.name)
        options.add(MadeTable(logical, place.name, "created", statements, notes=plan.notes, error=error))


def _existing_table(
    connection: pymysql.Connection[Any],
    plan: PlannedTable,
    definition: TableDefinition,
    logical: str,
    options: _Options,
    *,
    whole: bool,
) -> MadeTable:
    """whole: no indexes are due. Otherwise no type is altered: it might be one that they cannot have."""
    actions = options.actions
    renamed = [] if actions.dry else _rename(connection, definition, plan, options.wanted[logical])
    if renamed:
        definition = read_definitions(connection, definition.database, [definition.table])[definition.table]
    there = _state(connection, definition, options, plan)
    differing = differences(plan, there)
    taken = [
        difference for difference in differing if actions.does(logical, difference) and (whole or difference.column)
    ]
    statements: Sequence[str] = [alter_sql(definition.database, definition.table, difference) for difference in taken]
    error = None
    if taken and not actions.dry:
        try:
            statements = alter_table(connection, definition.database, definition.table, taken)
            for statement in statements:
                log.info("%s: %s", definition.name, statement)
        except pymysql.err.MySQLError as refused:
            error = _refused(refused, definition.name)
            if error.retriable:
                raise error from None
        again = read_definitions(connection, definition.database, [definition.table]).get(definition.table)
        differing = differences(plan, _state(connection, again, options, plan)) if again else differing
    left = [difference for difference in differing if not (actions.dry and difference in taken)]
    shown = tuple(
        (difference, alter_sql(definition.database, definition.table, difference) if difference.alter else "")
        for difference in left
    )
    state = "altered" if (taken or renamed) and error is None and not actions.dry else "exists"
    return MadeTable(logical, definition.name, state, (*renamed, *statements), shown, plan.notes, error)


def _rename(
    connection: pymysql.Connection[Any], definition: TableDefinition, plan: PlannedTable, wanted: WantedTable
) -> list[str]:
    """Renames columns as the source has, those of the key also in the tables beside the table; the statements. A server
    that refuses one gets a new column, as after any other change."""
    names, planned = set(definition.by_name), {column.name.lower() for column in plan.columns}
    done: list[str] = []
    for old, new in wanted.renamed if wanted.alone else ():
        if old.lower() not in names - planned or new.lower() in names:
            continue
        names = names - {old.lower()} | {new.lower()}
        # The table itself comes last: as long as it has the former name, another run begins again.
        for table in (tombstones_table(definition.table), versions_table(definition.table), definition.table):
            statement = f"ALTER TABLE {quote(definition.database, table)} RENAME COLUMN {quote(old)} TO {quote(new)}"
            try:
                with connection.cursor() as cursor:
                    _if_there(cursor, statement)
            except pymysql.err.MySQLError as error:
                log.warning("%s: %s: %s", definition.name, statement, reason(error))
                return done
            done.append(statement)
    return done


def _with_due(made: MadeTable, due: Sequence[DueIndex]) -> MadeTable:
    """due: indexes that still are, after they were built where that was possible."""
    if not due:
        return made
    names = ", ".join(index.name for index in due)
    what = f"the indexes {names} are due: the next run builds them, or `lockstep target create` without --dry-run"
    return replace(made, differences=((TableDifference(what), ""), *made.differences))


def _state(
    connection: pymysql.Connection[Any], definition: TableDefinition, options: _Options, plan: PlannedTable
) -> Existing:
    lacks = any(column.name.lower() not in definition.by_name for column in plan.columns)
    literal = any(column.default == LITERAL for column in definition.columns)
    empty = False
    if lacks:
        with connection.cursor() as cursor:
            try:
                cursor.execute(f"SELECT 1 FROM {quote(definition.database, definition.table)} LIMIT 1")
                empty = cursor.fetchone() is None
            except pymysql.err.MySQLError as error:
                if not denied(error):
                    raise
    return Existing(definition, options.literals_of(connection, definition) if literal else {}, empty)


def _database_is_absent(connection: pymysql.Connection[Any], database: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (database,))
        return cursor.fetchone() is None
