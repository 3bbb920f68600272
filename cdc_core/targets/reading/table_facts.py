"""What a target server and its tables are like, and what they must be. Only `require_*` decide: the preflight
(`lockstep check`) and the write job call the same functions, so that what passes here can be written.

A table must exist, have the key (if rows have one) as a unique key, hold every column of the source in a type that
takes all of its values (type_pairs), and need no values for its other columns. The order of columns is free.
Generated columns of the source may be plain, generated, or missing in the target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pymysql

from cdc_core.errors import ColumnsMissing, LockstepError, Refused, TableMissing
from cdc_core.model.schema import TEXT_BASES, Column, ColumnType, TableSchema
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.mysql.connections import quote, sensible, utf8_literal
from cdc_core.mysql.server_errors import number_of
from cdc_core.targets.reading.target_faults import PRIVILEGES, denied, translated
from cdc_core.targets.tables import type_pairs
from cdc_core.targets.tables.table_definition import ColumnDefinition, DefinitionReader, IndexDefinition


@dataclass(frozen=True)
class TableFacts:
    """A target table as its server describes it. beside: versions of its rows are kept in a table of their own.
    key: the columns that identify its rows, as the rows name them. keyless: its rows have no key, and so no versions.
    coarser: it may treat keys as equal that differ on the source."""

    database: str
    table: str
    columns: tuple[ColumnDefinition, ...]
    unique_keys: tuple[IndexDefinition, ...]
    triggers: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    beside: bool = False
    keyless: bool = False
    coarser: bool = False

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @cached_property
    def by_name(self) -> Mapping[str, ColumnDefinition]:
        """Columns by lower-case name: MySQL's column names do not differ by case alone."""
        return {column.name.lower(): column for column in self.columns}

    @property
    def versioned(self) -> bool:
        return VERSION_COLUMN in self.by_name


@sensible("target")
def table_facts(connection: pymysql.Connection[Any], database: str, tables: Collection[str]) -> dict[str, TableFacts]:
    """Facts about those of the named tables that exist, in three queries."""
    if not tables:
        return {}
    reader = DefinitionReader(connection, database, list(tables))
    # Not CARDINALITY, for which MySQL opens each table.
    indexes = reader.indexes("TABLE_NAME, INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART, COLLATION, INDEX_TYPE")
    triggers = reader.triggers()
    return {
        table: TableFacts(
            database,
            table,
            columns,
            tuple(index for index in indexes.get(table, ()) if index.unique),
            triggers.get(table, ()),
        )
        for table, columns in reader.columns().items()
    }


def require_shown_names(connection: pymysql.Connection[Any], names: Iterable[str]) -> None:
    """A server that keeps names in small letters takes others too, and never shows them: whatever is looked for by such
    a name, such as gates and counters, seems not to be there. Raises Refused (config.table_rule)."""
    capital = sorted(name for name in names if name != name.lower())
    if not capital:
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@lower_case_table_names")
        row = cursor.fetchone()
    if row and int(row[0]) == 1:
        raise Refused(
            f"The server keeps names of tables and databases in small letters (lower_case_table_names = 1), and the "
            f"rules name {capital[0]}.",
            where=capital[0],
            code="config.table_rule",
            remedy=f"name {capital[0].lower()} in `database` and `table` of the rule",
        )


@sensible("target")
def require_server(connection: pymysql.Connection[Any], *, where: str) -> None:
    """Raises Refused (connection.setting) if bulk loading is off or cannot be logged."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@local_infile, @@log_bin, @@binlog_format")
        local_infile, log_bin, binlog_format = cursor.fetchone() or (0, 0, "")
    if not local_infile:
        raise Refused(
            "The server does not allow LOAD DATA LOCAL INFILE.",
            where=where,
            code="connection.setting",
            remedy="SET GLOBAL local_infile = ON on the target, and local_infile=ON in its option file",
        )
    if log_bin and str(binlog_format).upper() == "STATEMENT":
        raise Refused(
            "The server's binary log has the format STATEMENT, which cannot log what is written from temporary tables.",
            where=where,
            code="connection.setting",
            remedy="SET GLOBAL binlog_format = ROW (or MIXED) on the target, and binlog_format=ROW in its option file",
        )


def table_problems(
    facts: TableFacts | None,
    schema: TableSchema,
    key: Sequence[str],
    *,
    name: str,
    freshness: str | None = None,
    narrower: bool = False,
    partial: bool = False,
    mariadb: bool = False,
) -> list[LockstepError]:
    """Everything that prevents writing changes of `schema` to the table: Refused (target.table, .key, .column, .type).

    narrower: a column may be too narrow for some values, if the server reports each one that does not fit.
    partial:  some row images leave columns out (binlog_row_image is not FULL).
    mariadb:  what the target's server is, for the statements that the remedies name.
    """
    if facts is None:
        return [
            TableMissing(
                f"The table {name} does not exist on the target, or the account has no privilege to see it.",
                where=name,
                remedy="`lockstep target create` creates it, with all keys and defaults, or prints the statement "
                "(`--dry-run`)",
            )
        ]
    new_key = _new_key(facts, key, schema, mariadb=mariadb) if key else None
    problems: list[LockstepError] = [*_key_problems(facts, key, new_key)] if key else []
    settled = frozenset() if new_key is None else new_key.columns
    in_key, at = {column.lower() for column in key}, "FIRST"
    for column in schema.columns:
        if column.name.lower() == VERSION_COLUMN or column.name.lower() in settled:
            continue  # the former of a source that is itself a target (loaded_columns)
        there = facts.by_name.get(column.name.lower())
        if there is None and column.name.lower() not in in_key:
            column = replace(column, nullable=True)  # changes that are older than the column are written as well
        problem = _column_problem(
            facts,
            column,
            there,
            at,
            in_key=column.name.lower() in in_key,
            narrower=narrower,
            partial=partial,
            mariadb=mariadb,
        )
        if problem is not None:
            problems.append(problem)
        if problem is not None or there is not None:
            at = f"AFTER {quote(column.name)}"
    names = {column.name.lower() for column in schema.columns}
    for definition in facts.columns:
        unknown = definition.name.lower() not in names and definition.name.lower() not in settled
        if unknown and not definition.optional and definition.name != VERSION_COLUMN:
            problems.append(
                ColumnsMissing(
                    f"The target's column {definition.name} is NOT NULL without a default, "
                    "and the source has no such column.",
                    where=name,
                    remedy=_optional(facts, definition),
                )
            )
    if freshness is not None and not (freshness.lower() in names and freshness.lower() in facts.by_name):
        problems.append(
            ColumnsMissing(
                f"The freshness column {freshness!r} is not a column of both {schema.name} and {facts.name}.",
                where=name,
                remedy="name a column of the source in targets.*.tables.*.freshness, or leave the key out",
            )
        )
    return problems


def _optional(facts: TableFacts, column: ColumnDefinition) -> str:
    """How a row becomes possible that does not have a value for the target's own column."""
    if any(column.name.lower() in unique.columns for unique in facts.unique_keys):
        return f"give {column.name} a default, or drop it from the target and its unique keys"
    return f"ALTER TABLE {table_name(facts)} MODIFY {quote(column.name)} {column.declared} NULL"


@dataclass(frozen=True, slots=True)
class _NewKey:
    """How a table whose primary key came from the source gets the source's new one. columns: that the clauses add, or
    that need no value afterwards. emptied: its rows have no values for the key."""

    former: str
    clauses: str
    columns: frozenset[str]
    emptied: bool


def _new_key(facts: TableFacts, key: Sequence[str], schema: TableSchema, *, mariadb: bool) -> _NewKey | None:
    """None for a table that has the key, and for one whose primary key is its own: it gives that a value itself."""
    primary = next((unique for unique in facts.unique_keys if unique.name == "PRIMARY"), None)
    if _has_key(facts, key) or primary is None:
        return None
    source = {column.name.lower(): column for column in schema.columns}
    gone = [
        facts.by_name[column]
        for column in sorted(set(primary.columns))
        if column in facts.by_name and column not in source
    ]
    if any(column.optional for column in gone) or not primary.whole:
        return None
    added = [
        source[column.lower()] for column in key if column.lower() in source and column.lower() not in facts.by_name
    ]
    clauses = [
        *(f"ADD COLUMN {column_definition(column, mariadb=mariadb)}" for column in added),
        f"DROP PRIMARY KEY, ADD PRIMARY KEY ({', '.join(map(quote, key))})",
        *(f"MODIFY {quote(column.name)} {column.declared} NULL" for column in gone),
    ]
    return _NewKey(
        former=", ".join(part.column for part in primary.parts),
        clauses=", ".join(clauses),
        columns=frozenset([*(column.name.lower() for column in added), *(column.name.lower() for column in gone)]),
        emptied=bool(added),
    )


def _has_key(facts: TableFacts, key: Sequence[str]) -> bool:
    wanted = frozenset(column.lower() for column in key)
    return any(unique.whole and frozenset(unique.columns) == wanted for unique in facts.unique_keys)


def _key_problems(facts: TableFacts, key: Sequence[str], new: _NewKey | None) -> Iterator[Refused]:
    if not _has_key(facts, key):
        what = f"{facts.name} has no unique key over exactly ({', '.join(key)})"
        remedy = f"ALTER TABLE {table_name(facts)} ADD UNIQUE KEY ({', '.join(map(quote, key))})"
        if new is not None:
            what += f"; its primary key is ({new.former})"
            remedy = f"ALTER TABLE {table_name(facts)} {new.clauses}"
            if new.emptied:
                remedy = (
                    f"the rows there have no values for the new key: if all of them come from this source, "
                    f"TRUNCATE TABLE {table_name(facts)}; {remedy}; and copy the table again (`lockstep snapshot`), "
                    "unless its copy is pending"
                )
        yield ColumnsMissing(f"{what}.", where=facts.name, remedy=remedy)
    for name in key:
        column = facts.by_name.get(name.lower())
        if column is not None and column.nullable:
            yield ColumnsMissing(
                f"The key column {column.name} of {facts.name} may be null, and nulls are never equal.",
                where=facts.name,
                remedy=f"ALTER TABLE {table_name(facts)} MODIFY {quote(column.name)} {column.declared} NOT NULL",
            )


def loaded_columns(facts: TableFacts, schema: TableSchema) -> tuple[str, ...]:
    """Names, as the source writes them, of the columns whose values go to the target's server.

    A column that the target generates itself is included if its type takes the source's values: the write compares the
    two (written_columns leaves it out). A generated column of the source that the target does not have is left out.
    """
    names = []
    for column in schema.columns:
        if column.name.lower() == VERSION_COLUMN:
            continue  # of a source that is itself a target: a version there says nothing here
        there = facts.by_name.get(column.name.lower())
        compared = there is not None and column.logged and not type_pairs.problem(column.type, there.type)
        if there is not None and (compared or not there.generated):
            names.append(column.name)
    return tuple(names)


def written_columns(facts: TableFacts, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of the rows that a statement may assign: generated columns compute their own values."""
    return tuple(name for name in columns if not facts.by_name[name.lower()].generated)


def _column_problem(
    facts: TableFacts,
    column: Column,
    there: ColumnDefinition | None,
    at: str,
    *,
    in_key: bool,
    narrower: bool,
    partial: bool,
    mariadb: bool,
) -> Refused | None:
    """at: where a column that is missing is on the source."""
    if there is None:
        if column.generated and column.key_part is None:
            return None  # nothing is lost: it is computed from other columns
        return ColumnsMissing(
            f"The source's column {column.name} ({column.type}) is missing in {facts.name}.",
            where=facts.name,
            remedy=f"ALTER TABLE {table_name(facts)} ADD COLUMN {column_definition(column, mariadb=mariadb)} {at}",
        )
    problem = type_pairs.problem(column.type, there.type)
    if there.generated:
        if not problem or (column.generated and column.key_part is None):
            return None
    elif not column.logged and partial:
        return ColumnsMissing(
            f"{column.name} is a generated column of the source, whose values MariaDB left out of the log; in "
            f"{facts.name} it is a plain column.",
            where=facts.name,
            remedy=f"make {column.name} a generated column of the target, or drop it there; or, up to MariaDB 11.4, "
            "SET GLOBAL binlog_row_image = FULL on the source and copy the whole table to the target",
        )
    elif not problem and column.nullable and there.replaces_null:
        problem = type_pairs.NULLS
    if not problem or (narrower and type_pairs.reported(problem, there.type)):
        return None
    kind = there.type if problem == type_pairs.NULLS else type_pairs.widened(column.type, there.type, mariadb=mariadb)
    null = "NOT NULL" if not there.nullable and problem != type_pairs.NULLS else "NULL"
    remedy = f"ALTER TABLE {table_name(facts)} MODIFY {quote(there.name)} {declaration(kind)} {null}"
    if problem == type_pairs.DIFFER and not in_key:
        remedy += (
            f". If the server refuses that because of the values that are there: ALTER TABLE {table_name(facts)} "
            f"DROP COLUMN {quote(there.name)}, ADD COLUMN {quote(there.name)} {declaration(kind)} NULL, then "
            "`lockstep snapshot PIPELINE TABLE`, and the next run fills it"
        )
    return Refused(
        f"The column {column.name} is {column.type} on the source and {there.type} in {facts.name}: {problem}.",
        where=facts.name,
        code="target.definition",
        remedy=remedy,
    )


def declaration(kind: ColumnType) -> str:
    """A type as DDL, with its charset."""
    text = str(kind).replace("\\", "\\\\")
    if kind.charset and kind.base in TEXT_BASES | {"enum", "set"}:
        text += f" CHARACTER SET {kind.charset}" + (f" COLLATE {kind.collation}" if kind.collation else "")
    return text


def column_definition(column: Column, *, mariadb: bool) -> str:
    """A source's column as a plain column of a target."""
    kind = type_pairs.native(column.type, mariadb=mariadb)
    unknown = "_0900_" in kind.collation if mariadb else "uca1400" in kind.collation or "nopad" in kind.collation
    if unknown:
        kind = replace(kind, collation="")
    return f"{quote(column.name)} {declaration(kind)} {'NULL' if column.nullable else 'NOT NULL'}"


def table_name(facts: TableFacts) -> str:
    """In SQL."""
    return quote(facts.database, facts.table)


_NO_SUCH_TABLE, _DUPLICATE_COLUMN = 1146, 1060
_PROBES = {
    "SELECT": "SELECT 1 FROM {} WHERE FALSE",
    "INSERT": "EXPLAIN INSERT INTO {} VALUES (1)",
    "UPDATE": "EXPLAIN UPDATE {} SET n = n WHERE FALSE",
    "DELETE": "EXPLAIN DELETE FROM {} WHERE FALSE",
}
"""Statements on a table that does not exist. Without the privilege they fail for lack of it: only an account that has
it on the whole database is told that there is no such table."""


@sensible("target")
def lacking_privileges(connection: pymysql.Connection[Any], database: str, *, where: str) -> tuple[str, ...]:
    """The privileges on a database that the account lacks; ALTER is that of a table (may_alter). Raises what
    target_faults makes of other errors, such as those of a server that takes no writes now."""
    probe = f"{quote(database)}._lockstep_check"
    with connection.cursor() as cursor:
        lacking = {name for name, statement in _PROBES.items() if not _may(cursor, statement.format(probe), where)}
        if not _may(cursor, f"CREATE TEMPORARY TABLE {probe} (n INT PRIMARY KEY)", where):
            lacking.add("CREATE TEMPORARY TABLES")
        else:
            cursor.execute(f"DROP TEMPORARY TABLE {probe}")
        # PREPARE checks the privileges of its statement, and runs nothing.
        cursor.execute(f"SET @_lockstep_check = {utf8_literal(f'CREATE TABLE {probe} (n INT PRIMARY KEY)')}")
        if not _may(cursor, "PREPARE _lockstep_check FROM @_lockstep_check", where):
            lacking.add("CREATE")
    return tuple(name for name in PRIVILEGES if name in lacking)


def may_alter(connection: pymysql.Connection[Any], facts: TableFacts, *, where: str) -> bool:
    """Asks by an ALTER TABLE that always fails, for lack of the privilege or because the column exists. Raises as
    lacking_privileges."""
    with connection.cursor() as cursor:
        statement = f"ALTER TABLE {table_name(facts)} ADD COLUMN {quote(facts.columns[0].name)} INT"
        return _may(cursor, statement, where)


def _may(cursor: Any, statement: str, where: str) -> bool:
    """Whether the account has the privileges of a statement."""
    try:
        cursor.execute(statement)
    except pymysql.err.MySQLError as error:
        if denied(error):
            return False
        if number_of(error) not in (_NO_SUCH_TABLE, _DUPLICATE_COLUMN):
            raise translated(error, where=where) from None
    return True


@sensible("target")
def engine_problems(connection: pymysql.Connection[Any], database: str, tables: Collection[str]) -> dict[str, Refused]:
    """For each of the tables that cannot be written in a transaction, and each view, the error (target.definition)."""
    if not tables:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t.TABLE_NAME, t.ENGINE, t.TABLE_TYPE FROM information_schema.TABLES t "
            "LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE WHERE COALESCE(e.TRANSACTIONS, '') <> 'YES' "
            f"AND t.TABLE_SCHEMA = %s AND t.TABLE_NAME IN ({', '.join(['%s'] * len(tables))})",
            [database, *tables],
        )
        return {table: _engine_problem(database, table, *row) for table, *row in cursor.fetchall()}


def _engine_problem(database: str, table: str, engine: str | None, kind: str) -> Refused:
    shown = f"has the storage engine {engine}" if engine else f"is a {kind.lower()}"
    return Refused(
        f"{database}.{table} {shown}, which cannot roll back: a write that fails half-way would leave rows there.",
        where=f"{database}.{table}",
        code="target.definition",
        remedy=f"ALTER TABLE {quote(database, table)} ENGINE=InnoDB" if engine else "name a table, not a view",
    )
