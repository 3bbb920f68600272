"""Table definitions as INFORMATION_SCHEMA has them now.

It must keep true that the definition of a table is the one that its row images follow as long as no ALTER lies between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import pymysql

from cdc_core.errors import RESYNC, NeverCaptured, Refused, TableRefused
from cdc_core.model.schema import Column, TableName, TableSchema, parse_column_type
from cdc_core.mysql.connections import answers, is_mariadb, quote
from cdc_core.source.host.server_facts import as_text, query
from cdc_core.source.schemas import merge_tables

_COLUMNS = """
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA,
       DATETIME_PRECISION
  FROM INFORMATION_SCHEMA.COLUMNS
 WHERE {where}
 ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
"""
_UNIQUE_KEYS = """
SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, NULLABLE, SUB_PART, INDEX_TYPE
  FROM INFORMATION_SCHEMA.STATISTICS
 WHERE NON_UNIQUE = 0 AND {where}
 ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX
"""
_TABLES = """
SELECT TABLE_SCHEMA, TABLE_NAME FROM INFORMATION_SCHEMA.TABLES
 WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
 ORDER BY TABLE_SCHEMA, TABLE_NAME
"""
_MEMORY = "MEMORY"
_UNUSUAL = f"""
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM INFORMATION_SCHEMA.TABLES
 WHERE (TABLE_TYPE = 'SYSTEM VERSIONED' OR ENGINE IN ('{merge_tables.ENGINE}', '{_MEMORY}')) AND {{where}}
"""

_PRIMARY, _VIRTUAL = "PRIMARY", "VIRTUAL GENERATED"
_GENERATED = (_VIRTUAL, "STORED GENERATED", "PERSISTENT")
_NONE_LOGGED_SINCE = (11, 5)
"""MariaDB leaves generated columns out of updates and deletes: virtual ones if binlog_row_image is not FULL, and others
since a version between 11.4.5, which has not left them out, and 11.8.9."""
_OLD_TEMPORAL = "/* mariadb-5.3 */"

NOT_VISIBLE = "not visible to the account: GRANT SELECT on it"


@answers("source")
def captured_tables(
    connection: pymysql.Connection, captures: Callable[[str, str], bool]
) -> dict[TableName, tuple[TableSchema | None, str]]:
    """All captured tables, keyless ones included, in the order of their names: the definition, or why there is none."""
    names = [name for row in query(connection, _TABLES) if captures(*(name := (as_text(row[0]), as_text(row[1]))))]
    definitions = read_definitions(connection, names)
    return {name: definitions.get(name, (None, NOT_VISIBLE)) for name in names}


@answers("source")
def table_schemas(connection: pymysql.Connection, captures: Callable[[str, str], bool]) -> list[TableSchema]:
    """The definitions of the captured tables that have one: those whose rows can be read."""
    return [schema for schema, _ in captured_tables(connection, captures).values() if schema is not None]


@answers("source")
def table_schema(connection: pymysql.Connection, database: str, table: str) -> TableSchema | None:
    """The current definition of one table; None where it is gone, invisible, or has a type that is not supported.

    Raises Refused (source.unsupported_table).
    """
    where = "TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    found = _read(connection, where, [database, table], frozenset({(database, table)}))
    schema, problem = found.get((database, table), (None, ""))
    if problem == SYSTEM_VERSIONED:
        raise system_versioned(database, table)
    if problem == merge_tables.NO_ROWS_OF_ITS_OWN:
        raise merge_tables.merge_table(database, table)
    return schema


SYSTEM_VERSIONED = "system-versioned: the log records its history as further rows"


def system_versioned(database: str, table: str) -> Refused:
    """For a MariaDB table whose row events include old versions. Their key is that of the live row, except for the
    column where the version ends, which the server may not even show: a target would lose or overwrite live rows."""
    return NeverCaptured(
        f"{database}.{table} is system-versioned: the log records its history as further rows with the same key.",
        where=f"{database}.{table}",
        remedy="exclude the table (tables.exclude); or ALTER TABLE ... DROP SYSTEM VERSIONING on the source, and "
        f"{RESYNC}",
    )


def read_definitions(
    connection: pymysql.Connection, names: Sequence[TableName]
) -> dict[TableName, tuple[TableSchema | None, str]]:
    """For each table that the account may see: its definition, or why there is none. In one pass over its databases."""
    databases = sorted({database for database, _ in names})
    return _read(connection, "TABLE_SCHEMA IN ({})", databases, frozenset(names)) if databases else {}


def _read(
    connection: pymysql.Connection, where: str, arguments: Sequence[str], wanted: frozenset[TableName]
) -> dict[TableName, tuple[TableSchema | None, str]]:
    """For each wanted table: its definition, or why there is none."""
    mariadb, unlogged = is_mariadb(connection), _unlogged(connection)
    where = where.format(", ".join(["%s"] * len(arguments)))
    uniques = query(connection, _UNIQUE_KEYS.format(where=where), arguments)
    columns: dict[TableName, list[tuple[Any, ...]]] = {}
    for row in query(connection, _COLUMNS.format(where=where), arguments):
        columns.setdefault((as_text(row[0]), as_text(row[1])), []).append(row)
    definitions: dict[TableName, tuple[TableSchema | None, str]] = {}
    hashed: set[TableName] = set()
    for row in query(connection, _UNUSUAL.format(where=where), arguments):
        if (name := (as_text(row[0]), as_text(row[1]))) not in wanted:
            continue
        if as_text(row[2]) == "SYSTEM VERSIONED":
            definitions[name] = None, SYSTEM_VERSIONED
        elif as_text(row[3]).upper() == _MEMORY:
            hashed.add(name)
        else:
            definitions[name] = None, merge_tables.NO_ROWS_OF_ITS_OWN
    virtual = {
        (*name, as_text(row[2]))
        for name in wanted
        for row in columns.get(name, ())
        if _VIRTUAL in as_text(row[7]).upper()
    }
    mine = [row for row in uniques if (as_text(row[0]), as_text(row[1])) in wanted]
    keys = _keys(connection, mine, hashed, virtual)
    for name, rows in columns.items():
        if name not in wanted or name in definitions:
            continue
        key = keys.get(name, ())
        try:
            definitions[name] = (
                TableSchema(*name, tuple(_column(row, key, unlogged, mariadb=mariadb) for row in rows)),
                "",
            )
        except Refused as error:
            definitions[name] = None, error.what.rstrip(".")
    return definitions


def _unlogged(connection: pymysql.Connection) -> tuple[str, ...]:
    """The kinds of generated columns that row images may leave out even where they change."""
    if not is_mariadb(connection):
        return ()
    number = re.match(r"(\d+)\.(\d+)", as_text(query(connection, "SELECT VERSION()")[0][0]))
    some = number is not None and (int(number[1]), int(number[2])) < _NONE_LOGGED_SINCE
    return (_VIRTUAL,) if some else _GENERATED


def _column(row: tuple[Any, ...], key: tuple[str, ...], unlogged: tuple[str, ...], *, mariadb: bool) -> Column:
    name, extra = as_text(row[2]), as_text(row[7] or "").upper()
    charset, collation = as_text(row[5] or ""), as_text(row[6] or "")
    declared = as_text(row[3])
    if _OLD_TEMPORAL in declared:
        raise TableRefused(
            f"Column {name} is a {declared}, in a form that Lockstep does not read.",
            code="source.unsupported_table",
            remedy="ALTER TABLE ... FORCE on the source, with mysql56_temporal_format = ON",
        )
    column_type = parse_column_type(declared, charset=charset, collation=collation, mariadb=mariadb)
    return Column(
        name,
        column_type,
        nullable=as_text(row[4]) == "YES",
        key_part=key.index(name) + 1 if name in key else None,
        generated=any(word in extra for word in _GENERATED),
        logged=not any(word in extra for word in unlogged),
    )


def _keys(
    connection: pymysql.Connection,
    rows: Iterable[tuple[Any, ...]],
    hashed: Container[TableName],
    virtual: Container[Any],
) -> dict[TableName, tuple[str, ...]]:
    """The key that the server itself takes for each table, and names in its log: the primary key, else the first unique
    key, as SHOW INDEX orders them, of whole NOT NULL columns that are stored.

    hashed: tables whose engine looks up unique keys by hash. In other tables MariaDB makes a unique key of type HASH
    from a hidden column, and takes no such key. virtual: (database, table, column) of virtual columns.
    """
    parts: dict[TableName, dict[str, list[tuple[Any, ...]]]] = {}
    for row in rows:
        parts.setdefault((as_text(row[0]), as_text(row[1])), {}).setdefault(as_text(row[2]), []).append(row)
    keys: dict[TableName, tuple[str, ...]] = {}
    for name, indexes in parts.items():
        candidates = [
            index
            for index, columns in indexes.items()
            if index == _PRIMARY
            or all(
                row[3] is not None
                and not as_text(row[4] or "")
                and row[5] is None
                and (name in hashed or as_text(row[6]) != "HASH")
                and (*name, as_text(row[3])) not in virtual
                for row in columns
            )
        ]
        if _PRIMARY in candidates:
            candidates = [_PRIMARY]
        elif len(candidates) > 1:  # INFORMATION_SCHEMA does not have their order
            shown = query(connection, f"SHOW INDEX FROM {quote(*name)}")
            candidates = [index for row in shown if (index := as_text(row[2])) in candidates]
        if candidates:
            keys[name] = tuple(as_text(row[3]) for row in indexes[candidates[0]])
    return keys
