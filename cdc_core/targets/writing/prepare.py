"""What Lockstep adds to a target: a version with each row, and tombstones of deleted keys:

    <table>._cdc_version         VARBINARY, invisible: SELECT * does not show it, INSERT need not name it
    <database>._lockstep_version_<table>     instead of it, with guard.store: table: the version of each row, by key
    <database>._lockstep_tombstone_<table>   one row per deleted key, so that a late insert cannot revive it

and the tables that those of a database have in common (table_states.py).

Versions and tombstones are found by typed copies of the table's own key columns, so that the server decides which keys
are equal by one rule everywhere: the collation, padding, scale and precision of the table itself. Where the table's key
columns have been altered since, the tables beside it are altered to match.

Preparing twice, or by two jobs at once, has the same result as once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pymysql

from cdc_core.errors import ColumnsMissing, Refused
from cdc_core.model.version import VERSION_BYTES, VERSION_COLUMN
from cdc_core.mysql.connections import quote, sensible
from cdc_core.mysql.server_errors import number_of
from cdc_core.targets.bookkeeping.table_states import OF_A_RUN, create, tables_locked
from cdc_core.targets.reading.table_facts import TableFacts, table_facts
from cdc_core.targets.reading.target_faults import is_row_error, known, reason, translated
from cdc_core.targets.tables.table_definition import DefinitionReader
from cdc_core.targets.tables.type_pairs import LARGE
from cdc_core.targets.writing.guard_sql import newer_or_equal_sql

log = logging.getLogger(__name__)

_NAME_CHARS = 64
_DUPLICATE_COLUMN = 1060
_DUPLICATE_KEY = 1062
_NEWEST = "_lockstep_newest"


def tombstones_table(table: str) -> str:
    """The table of a table's tombstones, in the same database."""
    return _beside("_lockstep_tombstone_", table)


def versions_table(table: str) -> str:
    """The table of the versions of a table's rows (guard.store: table), in the same database."""
    return _beside("_lockstep_version_", table)


def _beside(prefix: str, table: str) -> str:
    name = prefix + table
    if len(name) > _NAME_CHARS:
        name = prefix + hashlib.sha256(table.encode()).hexdigest()[:40]
    return name


def is_prepared(facts: TableFacts, there: Ours) -> bool:
    """Whether `prepare` would change nothing. there: what ours_beside says."""
    if not all(name in there for name in OF_A_RUN):
        return False
    if facts.keyless:
        return True
    by_key = [tombstones_table(facts.table), *([versions_table(facts.table)] if facts.beside else [])]
    keyed = all(_key_there(there, name) == _key_wanted(facts) for name in by_key)
    return keyed and (facts.versioned or facts.beside)


def prepare(connection: pymysql.Connection[Any], facts: TableFacts) -> TableFacts:
    """Adds what is missing to the table and its database; the facts afterwards. As prepare_several."""
    return prepare_several(connection, [facts])[0]


@sensible("target")
def prepare_several(connection: pymysql.Connection[Any], tables: Sequence[TableFacts]) -> list[TableFacts]:
    """Adds what is missing to tables of one database; the facts afterwards. The server is asked once for all of them.

    The connection has the settings of session_settings.WRITING: key columns are copied as the table has them, zero
    dates too. Raises Refused (connection.grant, target.prepare, config.table_rule), RetryLater (target.busy,
    connection.unreachable) of the first table that cannot be prepared; those after it may have been left as they were.
    """
    database = tables[0].database
    there = ours_beside(connection, database, [facts.table for facts in tables])
    with connection.cursor() as cursor:
        for facts in tables:
            with _preparing(facts):
                require_store(connection, facts, there)
        with _preparing(tables[0]):
            create(cursor, database, OF_A_RUN)
    altered = {facts.table for facts in tables if _add_missing(connection, facts, there)}
    found = table_facts(connection, database, altered)
    return [
        replace(found[facts.table], beside=facts.beside, key=facts.key, coarser=facts.coarser)
        if facts.table in altered
        else facts
        for facts in tables
    ]


def _add_missing(connection: pymysql.Connection[Any], facts: TableFacts, there: Ours) -> bool:
    """Whether the table itself was altered. there: as it was a moment ago: whatever another job has added since then is
    found again when it is added."""
    with _preparing(facts), connection.cursor() as cursor:
        if not facts.keyless:
            _create_by_key(cursor, facts, tombstones_table(facts.table), "versions of deleted keys", there)
        if facts.beside:
            _create_by_key(cursor, facts, versions_table(facts.table), "versions of rows", there)
        if facts.versioned or facts.beside or facts.keyless:
            return False
        log.info("adding the invisible column %s to %s", VERSION_COLUMN, facts.name)
        cursor.execute(
            f"ALTER TABLE {quote(facts.database)}.{quote(facts.table)} "
            f"ADD COLUMN {VERSION_COLUMN} VARBINARY({VERSION_BYTES}) INVISIBLE"
        )
    return True


@contextmanager
def _preparing(facts: TableFacts) -> Iterator[None]:
    try:
        yield
    except pymysql.err.MySQLError as error:
        if number_of(error) == _DUPLICATE_COLUMN:
            return  # another job has added it
        if known(error) and not is_row_error(error):
            raise translated(error, where=facts.name) from None
        raise Refused(
            f"The table cannot be prepared: {reason(error)}.",
            where=facts.name,
            code="target.prepare",
            remedy="fix what the server reports, or add the invisible column and the tables by hand "
            "(docs/errors.md has the statements)",
        ) from None


Ours = Mapping[str, Mapping[str, str]]
"""Lockstep's tables that exist: for each the declared types of its columns."""


@sensible("target")
def ours_beside(connection: pymysql.Connection[Any], database: str, tables: Collection[str]) -> Ours:
    """Lockstep's tables in a database, and those beside the named tables."""
    names = [*OF_A_RUN]
    names += [beside(table) for table in tables for beside in (tombstones_table, versions_table)]
    columns = DefinitionReader(connection, database, names).columns()
    return {table: {column.name.lower(): column.declared for column in some} for table, some in columns.items()}


def indexable(facts: TableFacts, key: Sequence[str]) -> bool:
    """Whether an ordinary index takes the whole key."""
    return all(facts.by_name[name.lower()].type.base not in LARGE for name in key)


def _create_by_key(cursor: Any, facts: TableFacts, name: str, comment: str, there: Ours) -> None:
    """The table `name`, with the key columns as the target table has them."""
    columns = [facts.by_name[column.lower()] for column in facts.key]
    wanted, found = _key_wanted(facts), _key_there(there, name)
    if found == wanted:
        return
    names = ", ".join(quote(column.name) for column in columns)
    declared = [f"{quote(column.name)} {column.declared} NOT NULL" for column in columns]
    unique = f"{'PRIMARY KEY' if indexable(facts, facts.key) else 'UNIQUE KEY'} ({names})"
    definition = f"({', '.join(declared)}, {VERSION_COLUMN} VARBINARY({VERSION_BYTES}) NOT NULL, {unique})"
    if not found:
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {quote(facts.database)}.{quote(name)} {definition} "
            f"ENGINE=InnoDB ROW_FORMAT=DYNAMIC COMMENT='Lockstep: {comment}'"
        )
        return
    if found.keys() != wanted.keys():
        raise ColumnsMissing(
            f"{name} has the key ({', '.join(found)}); the key of {facts.name} is now ({', '.join(wanted)}).",
            where=facts.name,
            remedy=f"if no batch from before the change of the key will be replayed into the table, "
            f"DROP TABLE {quote(facts.database)}.{quote(name)}; otherwise restore the former key",
        )
    with tables_locked(cursor, [facts.name]):
        _redeclare(cursor, facts, name, declared, unique, definition)


def _key_wanted(facts: TableFacts) -> dict[str, str]:
    """How each column of the key is declared."""
    return {column.name.lower(): column.declared for column in (facts.by_name[name.lower()] for name in facts.key)}


def _key_there(there: Ours, name: str) -> dict[str, str]:
    """As the table `name` has them."""
    return {column: declared for column, declared in there.get(name, {}).items() if column != VERSION_COLUMN}


def _redeclare(
    cursor: Any, facts: TableFacts, name: str, declared: Sequence[str], unique: str, definition: str
) -> None:
    """Gives `name` the key columns as they are declared now. Keys that have become equal keep the newest version.

    ALTER TABLE does it in one step, where the account may drop no table. Killed before it, the table has lost at most
    versions that its newest ones stand above.
    """
    log.info("%s: altering %s, since key columns have been altered", facts.name, name)
    cursor.execute(
        "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0",
        (facts.database, name),
    )
    indexes = [f"DROP INDEX {quote(index)}" for (index,) in cursor.fetchall()]
    changes = [*(f"MODIFY {column}" for column in declared), *indexes, f"ADD {unique}"]
    alter = f"ALTER TABLE {quote(facts.database)}.{quote(name)} {', '.join(changes)}"
    try:
        cursor.execute(alter)
    except pymysql.err.IntegrityError as error:
        if number_of(error) != _DUPLICATE_KEY:
            raise
        _keep_newest(cursor, facts, name, definition)
        cursor.execute(alter)


def _keep_newest(cursor: Any, facts: TableFacts, name: str, definition: str) -> None:
    """Leaves of the rows of `name` whose keys are equal by a new definition the newest one."""
    table, newest = f"{quote(facts.database)}.{quote(name)}", f"{quote(facts.database)}.{_NEWEST}"
    both = ", ".join([*(quote(facts.by_name[column.lower()].name) for column in facts.key), VERSION_COLUMN])
    newer = newer_or_equal_sql(f"o.{VERSION_COLUMN}", f"{_NEWEST}.{VERSION_COLUMN}")
    cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {newest}")
    cursor.execute(f"CREATE TEMPORARY TABLE {newest} {definition} ENGINE=InnoDB ROW_FORMAT=DYNAMIC")
    cursor.execute("START TRANSACTION")
    try:
        cursor.execute(
            f"INSERT INTO {newest} ({both}) SELECT {both} FROM {table} o "
            f"ON DUPLICATE KEY UPDATE {VERSION_COLUMN} = IF({newer}, o.{VERSION_COLUMN}, {_NEWEST}.{VERSION_COLUMN})"
        )
        cursor.execute(f"DELETE FROM {table}")
        cursor.execute(f"INSERT INTO {table} ({both}) SELECT {both} FROM {newest}")
        cursor.execute("COMMIT")
    except BaseException:
        cursor.execute("ROLLBACK")
        raise
    cursor.execute(f"DROP TEMPORARY TABLE {newest}")


@sensible("target")
def require_store(connection: pymysql.Connection[Any], facts: TableFacts, there: Ours) -> None:
    """Raises Refused (config.table_rule) when versions of the rows are kept where `guard.store` does not look. there:
    what ours_beside says."""
    if facts.keyless:
        return
    versions = versions_table(facts.table)
    if facts.beside and facts.versioned:
        raise _moved(facts, VERSION_COLUMN, "row", f"the column {VERSION_COLUMN}")
    # Rows that have the column have had it before: only a way back, let through a fence, keeps others beside it.
    if not facts.beside and not facts.versioned and versions in there:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {quote(facts.database, versions)} LIMIT 1")
            kept = cursor.fetchone()
        if kept:
            raise _moved(facts, versions, "table", f"the table {versions}")


def _moved(facts: TableFacts, kept: str, store: str, away: str) -> Refused:
    return Refused(
        f"The versions of the rows of {facts.name} are kept in {kept}; guard.store says otherwise.",
        where=facts.name,
        code="config.table_rule",
        remedy=f"set guard.store: {store}; or empty the table, remove its versions ({away}) and replay it. If the "
        "pipeline is a way back to this table, the application has left the tables that it reads: stop it",
    )
