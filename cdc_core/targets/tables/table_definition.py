"""A table's whole definition, as INFORMATION_SCHEMA has it: of a source, to make the same table at a target, and of a
target, to compare the two.

INFORMATION_SCHEMA loses characters outside the basic plane and bytes, which become question marks. `exact` says of an
expression whether that may have happened; literal defaults are therefore only marked here, and read by another way
(column_defaults).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pymysql

from cdc_core.model.collations import own_name
from cdc_core.model.schema import ColumnType, parse_column_type
from cdc_core.mysql.connections import is_mariadb, sensible

LITERAL, NOW, EXPRESSION = "literal", "now", "expression"
_NOW = re.compile(r"^current_timestamp(\(\d*\))?$", re.IGNORECASE)
_MARIADB_LITERAL = re.compile(r"^(?:[nN]?'.*'|[bxBX]'.*'|[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)$", re.DOTALL)
_NAMED = re.compile(r"`((?:[^`]|``)+)`")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Expression:
    """SQL of a server. text: as it can be executed again, by a server of the same kind."""

    text: str

    @property
    def exact(self) -> bool:
        """Whether no character can have been lost on the way."""
        return self.text.isascii() and "?" not in self.text

    @property
    def columns(self) -> frozenset[str]:
        """The names in it, in lower case. Both servers quote every one."""
        return frozenset(name.replace("``", "`").lower() for name in _NAMED.findall(self.text))


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """default: LITERAL (its value is not here), NOW (the current time), EXPRESSION, or "" for none.
    generated: `STORED` or `VIRTUAL`, "" for a plain column. expression: of the generated column, or of the default.
    counted: AUTO_INCREMENT. refreshed: ON UPDATE CURRENT_TIMESTAMP. srid: MySQL's, of a geometry. declared: the
    server's own text of the type, charset and collation."""

    name: str
    type: ColumnType
    nullable: bool = True
    default: str = ""
    generated: str = ""
    expression: Expression = Expression("")
    zerofill: bool = False
    invisible: bool = False
    counted: bool = False
    refreshed: bool = False
    srid: int | None = None
    comment: str = ""
    declared: str = field(default="", compare=False)

    @property
    def optional(self) -> bool:
        """Whether a row can be inserted without naming it."""
        return self.nullable or bool(self.default or self.generated) or self.counted

    @property
    def replaces_null(self) -> bool:
        """Whether the server silently stores another value for null: the next number, or the current time (MariaDB).
        Any other NOT NULL column refuses a row that has null."""
        return not self.nullable and (self.counted or self.type.base == "timestamp")


@dataclass(frozen=True, slots=True)
class IndexPart:
    """column: "" where an expression is indexed. prefix: characters or bytes of the value, None for all."""

    column: str
    prefix: int | None = None
    descending: bool = False
    expression: Expression = Expression("")


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """kind: BTREE, FULLTEXT, SPATIAL, ... as the server says."""

    name: str
    unique: bool
    parts: tuple[IndexPart, ...]
    kind: str = "BTREE"
    hidden: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """In lower case."""
        return tuple(part.column.lower() for part in self.parts)

    @property
    def whole(self) -> bool:
        """Whether it is over whole columns."""
        return all(part.column and part.prefix is None for part in self.parts)


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """columns and indexes in the server's order. collation: the default for further columns. checks: names of CHECK
    constraints; column_checks: the columns (in lower case) that have one of their own (MariaDB), which MODIFY drops.
    periods: MariaDB's of the application's time."""

    database: str
    table: str
    columns: tuple[ColumnDefinition, ...]
    indexes: tuple[IndexDefinition, ...] = ()
    engine: str = "InnoDB"
    collation: str = ""
    comment: str = ""
    partitioned: bool = False
    foreign_keys: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    column_checks: frozenset[str] = frozenset()
    mariadb: bool = False
    periods: tuple[str, ...] = ()
    by_name: Mapping[str, ColumnDefinition] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {column.name.lower(): column for column in self.columns})

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


@sensible("definition")
def read_definitions(
    connection: pymysql.Connection[Any], database: str, tables: Collection[str]
) -> dict[str, TableDefinition]:
    """The definitions of those of a database's tables that exist, in seven queries. Raises PyMySQL's errors."""
    if not tables:
        return {}
    mariadb = is_mariadb(connection)
    reader = DefinitionReader(connection, database, list(tables))
    listed = {row["TABLE_NAME"]: row for row in reader.rows("TABLES", "TABLE_SCHEMA", "TABLE_NAME")}
    columns, indexes, triggers = reader.columns(), reader.indexes(), reader.triggers()
    keys = _grouped(_foreign_keys(reader), "TABLE_NAME")
    checks = _grouped(_checks(reader, mariadb=mariadb), "TABLE_NAME")
    periods: dict[str, list[Row]] = {}
    with suppress(pymysql.err.MySQLError):  # no such view before MariaDB 11.4
        if mariadb:
            periods = _grouped(reader.rows("PERIODS", "TABLE_SCHEMA", "TABLE_NAME"), "TABLE_NAME")
    definitions = {}
    for name, row in listed.items():
        if row["TABLE_TYPE"] not in ("BASE TABLE", "SYSTEM VERSIONED") or name not in columns:
            continue
        definitions[name] = TableDefinition(
            database,
            name,
            columns[name],
            indexes.get(name, ()),
            str(row["ENGINE"] or ""),
            own_name(str(row["TABLE_COLLATION"] or ""), mariadb=mariadb),
            str(row["TABLE_COMMENT"] or ""),
            "partitioned" in str(row["CREATE_OPTIONS"] or "").lower(),
            tuple(str(key["CONSTRAINT_NAME"]) for key in keys.get(name, ())),
            triggers.get(name, ()),
            tuple(str(check["CONSTRAINT_NAME"]) for check in checks.get(name, ())),
            frozenset(
                str(check["CONSTRAINT_NAME"]).lower()
                for check in checks.get(name, ())
                if check.get("LEVEL") == "Column"
            ),
            mariadb,
            tuple(str(period["PERIOD"]) for period in periods.get(name, ()) if period["PERIOD"] != "SYSTEM_TIME"),
        )
    return definitions


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DefinitionReader:
    """Asks INFORMATION_SCHEMA about tables of a database, all of them at once. Answers are by table."""

    connection: pymysql.Connection[Any]
    database: str
    tables: Sequence[str]

    def columns(self) -> dict[str, tuple[ColumnDefinition, ...]]:
        mariadb = is_mariadb(self.connection)
        rows = self.rows("COLUMNS", "TABLE_SCHEMA", "TABLE_NAME", "ORDINAL_POSITION")
        return {
            table: tuple(_column(row, mariadb=mariadb) for row in of_table)
            for table, of_table in _grouped(rows, "TABLE_NAME").items()
        }

    def indexes(self, columns: str = "*") -> dict[str, tuple[IndexDefinition, ...]]:
        """columns: of the view."""
        rows = self.rows("STATISTICS", "TABLE_SCHEMA", "TABLE_NAME", "INDEX_NAME", "SEQ_IN_INDEX", columns=columns)
        return {table: tuple(_indexes(of_table)) for table, of_table in _grouped(rows, "TABLE_NAME").items()}

    def triggers(self) -> dict[str, tuple[str, ...]]:
        rows = self.rows("TRIGGERS", "TRIGGER_SCHEMA", "EVENT_OBJECT_TABLE")
        return {
            table: tuple(sorted(str(row["TRIGGER_NAME"]) for row in of_table))
            for table, of_table in _grouped(rows, "EVENT_OBJECT_TABLE").items()
        }

    def rows(self, view: str, database: str, table: str, *order: str, columns: str = "*") -> list[Row]:
        """The rows of a view of INFORMATION_SCHEMA that concern the tables."""
        marks = ", ".join(["%s"] * len(self.tables))
        ordered = f" ORDER BY {', '.join((table, *order))}"
        return self.query(
            f"SELECT {columns} FROM information_schema.{view} WHERE {database} = %s AND {table} IN ({marks}){ordered}",
            (self.database, *self.tables),
        )

    def query(self, sql: str, arguments: Sequence[str]) -> list[Row]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            names = [column[0].upper() for column in cursor.description]
            return [
                {
                    name: value.decode() if isinstance(value, bytes) else value
                    for name, value in zip(names, row, strict=True)
                }
                for row in cursor.fetchall()
            ]


def _foreign_keys(reader: DefinitionReader) -> list[Row]:
    """From the view in which MariaDB shows them to an account that may only SELECT, too."""
    rows = reader.rows("KEY_COLUMN_USAGE", "TABLE_SCHEMA", "TABLE_NAME", "CONSTRAINT_NAME")
    named = {(row["TABLE_NAME"], row["CONSTRAINT_NAME"]): row for row in rows if row["REFERENCED_TABLE_NAME"]}
    return list(named.values())


def _checks(reader: DefinitionReader, *, mariadb: bool) -> list[Row]:
    if mariadb:
        return reader.rows("CHECK_CONSTRAINTS", "CONSTRAINT_SCHEMA", "TABLE_NAME")
    marks = ", ".join(["%s"] * len(reader.tables))
    return reader.query(
        "SELECT TABLE_NAME, CONSTRAINT_NAME FROM information_schema.TABLE_CONSTRAINTS WHERE CONSTRAINT_TYPE = 'CHECK' "
        f"AND TABLE_SCHEMA = %s AND TABLE_NAME IN ({marks}) ORDER BY TABLE_NAME, CONSTRAINT_NAME",
        (reader.database, *reader.tables),
    )


def _grouped(rows: Sequence[Row], by: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row[by]), []).append(row)
    return groups


def _column(row: Row, *, mariadb: bool) -> ColumnDefinition:
    extra, declared = str(row["EXTRA"] or "").lower(), str(row["COLUMN_TYPE"])
    charset, collation = row["CHARACTER_SET_NAME"] or "", row["COLLATION_NAME"] or ""
    generated = "STORED" if "stored generated" in extra else "VIRTUAL" if "virtual generated" in extra else ""
    default, text = _default(row["COLUMN_DEFAULT"], extra, mariadb=mariadb)
    if generated:
        default, text = "", str(row["GENERATION_EXPRESSION"] or "")
    return ColumnDefinition(
        str(row["COLUMN_NAME"]),
        parse_column_type(declared, charset=charset, collation=collation, mariadb=mariadb),
        row["IS_NULLABLE"] == "YES",
        default,
        generated,
        Expression(text if mariadb else _unescaped(text)),
        "zerofill" in declared.lower(),
        "invisible" in extra,
        "auto_increment" in extra,
        "on update" in extra,
        row.get("SRS_ID"),
        str(row["COLUMN_COMMENT"] or ""),
        declared + (f" CHARACTER SET {charset} COLLATE {collation}" if charset else ""),
    )


def _default(text: Any, extra: str, *, mariadb: bool) -> tuple[str, str]:
    """The kind of a default, and the text of an expression."""
    if text is None or (mariadb and text == "NULL"):
        return "", ""
    if _NOW.match(str(text)):
        return NOW, ""
    literal = bool(_MARIADB_LITERAL.match(str(text))) if mariadb else "default_generated" not in extra
    return (LITERAL, "") if literal else (EXPRESSION, str(text))


def _unescaped(text: str) -> str:
    """MySQL escapes quotes and backslashes of the expressions that it lists."""
    return _ESCAPED.sub(r"\1", text)


def _indexes(rows: Sequence[Row]) -> Iterator[IndexDefinition]:
    for name, parts in _grouped(rows, "INDEX_NAME").items():
        first = parts[0]
        kind = str(first["INDEX_TYPE"]).upper()
        yield IndexDefinition(
            name,
            not int(first["NON_UNIQUE"]),
            tuple(
                IndexPart(
                    str(part["COLUMN_NAME"] or ""),
                    None if part["SUB_PART"] is None or kind == "SPATIAL" else int(part["SUB_PART"]),
                    part["COLLATION"] == "D",
                    Expression(_unescaped(str(part.get("EXPRESSION") or ""))),
                )
                for part in parts
            ),
            kind,
            _hidden(first),
        )


def _hidden(row: Row) -> bool:
    """Whether the optimizer leaves the index alone: INVISIBLE (MySQL), IGNORED (MariaDB)."""
    return row.get("IS_VISIBLE") == "NO" or row.get("IGNORED") == "YES"
