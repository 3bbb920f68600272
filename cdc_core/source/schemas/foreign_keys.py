"""The foreign keys that an account sees at a server, with what each does to rows of its table.

MariaDB shows REFERENTIAL_CONSTRAINTS, which has the rules, only to accounts that may do more than SELECT; a reader sees
the columns of the keys alone, and the rules in SHOW CREATE TABLE (MariaDB 11.4; MySQL 9 shows both to a reader).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pymysql

from cdc_core.errors import Refused
from cdc_core.model.schema import TableName
from cdc_core.mysql.connections import answers, quote
from cdc_core.source.host.server_facts import as_text, query

_COLUMNS = """
SELECT TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, COLUMN_NAME, REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME,
       REFERENCED_COLUMN_NAME
  FROM INFORMATION_SCHEMA.KEY_COLUMN_USAGE
 WHERE REFERENCED_TABLE_NAME IS NOT NULL
 ORDER BY TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, ORDINAL_POSITION
"""
_RULES = """
SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE
  FROM INFORMATION_SCHEMA.REFERENTIAL_CONSTRAINTS
"""
_VERSIONED = """
SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_TYPE = 'SYSTEM VERSIONED'
"""
_LINE = re.compile(r"\s*CONSTRAINT (`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\") FOREIGN KEY (.*)")
_RULE = re.compile(r"[ ]ON (DELETE|UPDATE) (CASCADE|SET NULL|SET DEFAULT|RESTRICT|NO ACTION)")
_UNKNOWN = "CASCADE", "CASCADE"
"""The rules of a key whose rules cannot be read: it may do anything."""
CHANGING = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """From the columns of a child to as many of its parent. on_delete, on_update: CASCADE, SET NULL, RESTRICT, ...

    versioned: the parent is system-versioned: MariaDB logs a row of it that is deleted as one that is updated.
    """

    child: TableName
    name: str
    columns: tuple[str, ...]
    parent: TableName
    referenced: tuple[str, ...]
    on_delete: str
    on_update: str
    versioned: bool = False

    @property
    def changes_rows(self) -> bool:
        """Whether the server changes rows of the child with rows of the parent."""
        return bool(CHANGING & {self.on_delete, self.on_update})

    def __str__(self) -> str:
        return (
            f"{'.'.join(self.child)}: the foreign key {self.name} to {'.'.join(self.parent)} "
            f"(ON DELETE {self.on_delete}, ON UPDATE {self.on_update})"
        )


@answers("source")
def foreign_keys(connection: pymysql.Connection) -> tuple[ForeignKey, ...]:
    """All that the account sees. Raises what a query raises."""
    columns: dict[tuple[str, str, str], list[tuple[str, TableName, str]]] = {}
    for row in query(connection, _COLUMNS):
        database, table, name, column, *parent, referenced = map(as_text, row)
        columns.setdefault((database, table, name), []).append((column, (parent[0], parent[1]), referenced))
    if not columns:  # each of these views takes MariaDB half a second for 3,000 tables
        return ()
    rules = {
        (as_text(row[0]), as_text(row[1]), as_text(row[2])): (as_text(row[3]), as_text(row[4]))
        for row in query(connection, _RULES)
    }
    shown = _shown(connection, {key[:2] for key in columns.keys() - rules.keys()})
    keys = [
        ForeignKey(
            key[:2],
            key[2],
            tuple(part[0] for part in parts),
            parts[0][1],
            tuple(part[2] for part in parts),
            *rules.get(key, shown.get(key, _UNKNOWN)),
        )
        for key, parts in columns.items()
    ]
    versioned = {
        (database, as_text(row[0]))
        for database in sorted({key.parent[0] for key in keys if key.changes_rows})
        for row in query(connection, _VERSIONED, (database,))
    }
    return tuple(replace(key, versioned=key.parent in versioned) for key in keys)


def _shown(
    connection: pymysql.Connection, tables: Iterable[TableName]
) -> Mapping[tuple[str, str, str], tuple[str, str]]:
    """The rules as SHOW CREATE TABLE has them; none of a table that is gone, or that the account may not see."""
    found = {}
    for database, table in sorted(tables):
        try:
            [row] = query(connection, f"SHOW CREATE TABLE {quote(database, table)}")
        except (pymysql.err.ProgrammingError, Refused):
            continue
        for name, on_delete, on_update in rules_in(as_text(row[1])):
            found[database, table, name] = on_delete, on_update
    return found


def rules_in(definition: str) -> list[tuple[str, str, str]]:
    """(name, ON DELETE, ON UPDATE) of the foreign keys in what SHOW CREATE TABLE shows."""
    found = []
    for line in definition.split("\n"):  # servers escape line feeds in comments, and no other separators
        if line.startswith(")"):  # options of the table, its comment among them
            break
        if match := _LINE.match(line):
            mark = match[1][0]
            rules = dict(_RULE.findall(match[2].rpartition(")")[2]))
            name = match[1][1:-1].replace(mark * 2, mark)
            found.append((name, rules.get("DELETE", "RESTRICT"), rules.get("UPDATE", "RESTRICT")))
    return found
