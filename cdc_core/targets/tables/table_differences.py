"""Makes the tables of a target, compares those that exist, and alters them where that only adds.

A column is added, and a type is widened, if the new type takes every value of the old one and of the source; nothing
else of an existing table is touched. Whatever was done is found by looking again: killed between two statements, or
done by two at once, the next call continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pymysql

from cdc_core.model.collations import own_name
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.mysql.connections import quote
from cdc_core.mysql.server_errors import number_of
from cdc_core.targets.reading.table_facts import declaration
from cdc_core.targets.tables import type_pairs
from cdc_core.targets.tables.definition_sql import (
    LARGE_OR_JSON,
    Dialect,
    PlannedColumn,
    PlannedTable,
    default_literal,
    text_literal,
)
from cdc_core.targets.tables.table_definition import LITERAL, ColumnDefinition, TableDefinition

_DUPLICATE_COLUMN = 1060

Literals = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class TableDifference:
    """How an existing table differs. stops: rows cannot be written as it is. alter: clauses of the ALTER TABLE that
    ends the difference; safe: it only adds, or allows NULL. column: it is about a column that either side lacks."""

    what: str
    stops: bool = False
    alter: str = ""
    safe: bool = False
    column: str = ""


@dataclass(frozen=True, slots=True)
class Existing:
    """A table that exists. literals: the exact values of its literal defaults. empty: it has no rows."""

    definition: TableDefinition
    literals: Literals = field(default_factory=dict)
    empty: bool = False


def dialect_of(connection: pymysql.Connection[Any]) -> Dialect:
    """What the server understands."""
    info = str(connection.get_server_info())  # type: ignore[no-untyped-call]
    with connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        (version,) = cursor.fetchone() or ("",)
        cursor.execute("SELECT * FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY")
        heads = [column[0].upper() for column in cursor.description]
        at = heads.index("FULL_COLLATION_NAME") if "FULL_COLLATION_NAME" in heads else heads.index("COLLATION_NAME")
        names = [str(row[at]) for row in cursor.fetchall()]
    numbers = str(version).partition("-")[0].split(".")
    mariadb = "MariaDB" in info
    collations = frozenset(name for name in names if own_name(name, mariadb=mariadb) == name)
    return Dialect(mariadb, tuple(int(number) for number in numbers if number.isdigit()), collations)


def differences(planned: PlannedTable, there: Existing) -> list[TableDifference]:
    """What an existing table lacks of the one that would be created, and what may change or refuse rows there.
    Defaults, expressions and comments may be others."""
    differing: list[TableDifference] = []
    definition = there.definition
    key = {name.lower() for name in planned.key}
    at = "FIRST"
    for column in planned.columns:
        theirs = definition.by_name.get(column.name.lower())
        if theirs is None and column.absent:
            continue
        if theirs is None:
            lacking = _missing(column, at, empty=there.empty, in_key=column.name.lower() in key)
            differing.append(lacking)
            if not (lacking.safe and lacking.column):
                continue  # it may stay missing
        else:
            differing += _column_differences(planned, column, theirs, there)
        at = f"AFTER {quote(column.name)}"
    names = {column.name.lower() for column in planned.columns} | {VERSION_COLUMN}
    primary = {name for index in definition.indexes if index.name == "PRIMARY" for name in index.columns}
    for extra in definition.columns:
        if extra.name.lower() not in names:
            needed = not extra.optional
            free = needed and extra.name.lower() not in primary
            alter = _modified(replace(extra, nullable=True), there) if free else ""
            what = f"the column {extra.name} is not on the source"
            differing.append(
                TableDifference(what, stops=needed, alter=alter, safe=bool(alter), column=extra.name if alter else "")
            )
    differing += _index_differences(planned, definition)
    if definition.engine.lower() != "innodb":
        differing.append(TableDifference(f"the engine is {definition.engine}", alter="ENGINE=InnoDB"))
    differing += [TableDifference(f"the trigger {name} may change rows") for name in definition.triggers]
    differing += [
        TableDifference(f"the foreign key {name} may change or refuse rows") for name in definition.foreign_keys
    ]
    return differing


def _missing(column: PlannedColumn, at: str, *, empty: bool, in_key: bool) -> TableDifference:
    """at: its place on the source: an application that is led here may not name columns.

    Beside rows that exist, NULL is allowed: changes from before the column have no value for it, and are written as
    well, until the table is copied again. A computed default would give the rows that exist another value than they
    have on the source: they get NULL."""
    what = f"the column {column.name} ({column.type}) is missing"
    strict = not (column.nullable or column.generated)
    loose = not empty and not in_key and (strict or column.default not in ("", LITERAL))
    if loose and strict:
        what += "; it is added with NULL allowed, since changes that are older than it have no value for it"
    safe = not in_key or empty or column.generated or bool(column.default)
    alter = f"ADD COLUMN {column.loose if loose else column.sql} {at}"
    if column.derived and not column.generated and not in_key:
        # Nothing is lost without it, and MariaDB does not log all values of a virtual column.
        return TableDifference(what, alter=alter, safe=safe)
    return TableDifference(what, stops=not column.generated, alter=alter, safe=safe, column=column.name)


def _column_differences(
    planned: PlannedTable, column: PlannedColumn, theirs: ColumnDefinition, there: Existing
) -> list[TableDifference]:
    differing = []
    name = theirs.name
    in_key = name.lower() in {part.lower() for part in planned.key}
    problem = type_pairs.problem(column.source, theirs.type)
    if not problem and column.nullable and not theirs.nullable and not theirs.generated:
        problem = "it is NOT NULL"
    if problem and not theirs.generated:
        wide = column.type if type_pairs.problem(column.source, theirs.type) else theirs.type
        alter = ""
        if not type_pairs.problem(theirs.type, wide) and not (wide.base == "char" and theirs.type.base != "char"):
            nullable = theirs.nullable or (column.nullable and not in_key)
            alter = _modified(replace(theirs, type=wide, nullable=nullable), there)
        differing.append(
            TableDifference(
                f"the column {name} is {column.source} on the source and {theirs.type} here: {problem}",
                stops=True,
                alter=alter,
                safe=bool(alter),
            )
        )
    if theirs.nullable and not column.nullable and not column.generated:
        strict = _modified(replace(theirs, nullable=False), there)
        differing.append(TableDifference(f"the column {name} allows NULL", stops=in_key, alter=strict))
    if theirs.counted:
        differing.append(
            TableDifference(f"the column {name} is AUTO_INCREMENT: the target hands out ids to other writers")
        )
    if theirs.refreshed:
        differing.append(TableDifference(f"the column {name} has ON UPDATE, which may change rows"))
    return differing


def _modified(column: ColumnDefinition, there: Existing) -> str:
    """MODIFY with all else as it is; "" where that cannot be known."""
    default = ""
    if column.name.lower() in there.definition.column_checks or column.generated or column.srid is not None:
        return ""
    if column.default == LITERAL:
        value = there.literals.get(column.name)
        if value is None:
            return ""
        default = f" DEFAULT {default_literal(value, there.definition.by_name[column.name.lower()].type)}"
        if column.type.base in LARGE_OR_JSON and not there.definition.mariadb:
            return ""
    elif column.default:
        return ""
    words = [f"MODIFY COLUMN {quote(column.name)} {declaration(column.type)}"]
    words += ["ZEROFILL"] if column.zerofill else []
    words.append(("NULL" if column.nullable else "NOT NULL") + default)
    words += ["AUTO_INCREMENT"] if column.counted else []
    words += ["INVISIBLE"] if column.invisible else []
    words += [f"COMMENT {text_literal(column.comment)}"] if column.comment else []
    return "" if column.refreshed else " ".join(words)


def _index_differences(planned: PlannedTable, definition: TableDefinition) -> list[TableDifference]:
    differing = []
    shapes = {
        (index.unique, tuple((part.column.lower(), part.prefix) for part in index.parts)): index.name
        for index in definition.indexes
    }
    wanted = {(index.unique, index.parts) for index in planned.indexes}
    key = planned.indexes[0] if planned.key else None
    for index in planned.indexes:
        if index is key:
            same = any(
                unique
                and {name for name, prefix in parts if prefix is None} == {name for name, _ in index.parts}
                and len(parts) == len(index.parts)
                for unique, parts in shapes
            )
            if not same:
                differing.append(
                    TableDifference(
                        f"no unique key over exactly ({', '.join(planned.key)})", stops=True, alter=f"ADD {index.sql}"
                    )
                )
        elif (index.unique, index.parts) not in shapes:
            differing.append(TableDifference(f"the index {index.name} is missing", alter=f"ADD {index.sql}"))
    keyed = {name for name, _ in key.parts} if key else set()
    for (unique, parts), name in shapes.items():
        if unique and (unique, parts) not in wanted and {column for column, _ in parts} != keyed:
            differing.append(TableDifference(f"the unique key {name} is not on the source: rows may violate it"))
    return differing


def create_database_sql(database: str, collation: str) -> str:
    return f"CREATE DATABASE IF NOT EXISTS {quote(database)}" + (f" COLLATE {collation}" if collation else "")


def alter_table(
    connection: pymysql.Connection[Any], database: str, table: str, changes: Sequence[TableDifference]
) -> list[str]:
    """Executes the safe alterations; the statements. Each is one of its own: killed between two, the rest is found
    again. Raises PyMySQL's errors."""
    done = []
    for difference in changes:
        if difference.safe and difference.alter:
            statement = alter_sql(database, table, difference)
            try:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
            except pymysql.err.MySQLError as error:
                if number_of(error) != _DUPLICATE_COLUMN:  # another has added it meanwhile
                    raise
            done.append(statement)
    return done


def alter_sql(database: str, table: str, difference: TableDifference) -> str:
    return f"ALTER TABLE {quote(database, table)} {difference.alter}"
