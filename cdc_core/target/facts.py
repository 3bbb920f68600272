"""What a target server and its tables are like, and what they must be. `require_*` are the only judges: the
preflight (`lockstep check`) and the write job call the same ones, so that what passes here can be written.

A table must exist, have the key (where rows have one) as a unique key, hold every column of the source that is not
generated in a type at least as wide, and be able to do without a value for its other columns. The order of columns is
free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pymysql

from cdc_core.connections import answers
from cdc_core.errors import Refused
from cdc_core.model.schema import (
    BINARY_BASES,
    GEOMETRY_BASES,
    INTEGER_BYTES,
    TEXT_BASES,
    Column,
    ColumnType,
    TableSchema,
    parse_column_type,
)

VERSION_COLUMN = "_cdc_version"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of a target table. `declared` is the server's own text of the type, charset and collation.

    optional: a row can be inserted without naming it (nullable, a default, auto_increment, or generated).
    """

    name: str
    type: ColumnType
    declared: str
    nullable: bool
    optional: bool
    generated: bool
    invisible: bool


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique index. `parts` are (column, prefix length or None); a column of "" is an expression."""

    name: str
    parts: tuple[tuple[str, int | None], ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(column.lower() for column, _ in self.parts)

    @property
    def plain(self) -> bool:
        return all(column and length is None for column, length in self.parts)


@dataclass(frozen=True)
class TableFacts:
    """A target table as its server describes it. beside: versions of its rows are kept in a table of their own.
    keyless: its rows have no key, and so no versions."""

    database: str
    table: str
    columns: tuple[TargetColumn, ...]
    unique_keys: tuple[UniqueKey, ...]
    triggers: tuple[str, ...] = ()
    beside: bool = False
    keyless: bool = False

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @cached_property
    def by_name(self) -> Mapping[str, TargetColumn]:
        """By lower-case name: MySQL's column names do not differ by case alone."""
        return {column.name.lower(): column for column in self.columns}

    @property
    def versioned(self) -> bool:
        return VERSION_COLUMN in self.by_name


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@answers("target")
def table_facts(connection: pymysql.Connection[Any], database: str, tables: Collection[str]) -> dict[str, TableFacts]:
    """Facts of those of the named tables that exist, in four queries."""
    if not tables:
        return {}
    names = list(tables)
    marks = ", ".join(["%s"] * len(names))
    where = f"TABLE_SCHEMA = %s AND TABLE_NAME IN ({marks})"
    arguments = [database, *names]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, IS_NULLABLE, "
            f"COLUMN_DEFAULT, EXTRA FROM information_schema.COLUMNS WHERE {where} "
            "ORDER BY TABLE_NAME, ORDINAL_POSITION",
            arguments,
        )
        columns: dict[str, list[TargetColumn]] = {}
        for table, *rest in cursor.fetchall():
            columns.setdefault(table, []).append(_column(*rest))
        cursor.execute(
            f"SELECT * FROM information_schema.STATISTICS WHERE {where} AND NON_UNIQUE = 0 "
            "ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
            arguments,
        )
        at = {name[0].upper(): index for index, name in enumerate(cursor.description)}
        parts: dict[tuple[str, str], list[tuple[str, int | None]]] = {}
        for row in cursor.fetchall():
            column = row[at["COLUMN_NAME"]] or ""
            parts.setdefault((row[at["TABLE_NAME"]], row[at["INDEX_NAME"]]), []).append((column, row[at["SUB_PART"]]))
        cursor.execute(
            "SELECT EVENT_OBJECT_TABLE, TRIGGER_NAME FROM information_schema.TRIGGERS "
            f"WHERE TRIGGER_SCHEMA = %s AND EVENT_OBJECT_TABLE IN ({marks})",
            arguments,
        )
        triggers: dict[str, list[str]] = {}
        for table, trigger in cursor.fetchall():
            triggers.setdefault(table, []).append(trigger)
    return {
        table: TableFacts(
            database,
            table,
            tuple(found),
            tuple(UniqueKey(name, tuple(part)) for (of, name), part in parts.items() if of == table),
            tuple(sorted(triggers.get(table, ()))),
        )
        for table, found in columns.items()
    }


def _column(
    name: str, declared: str, charset: str | None, collation: str | None, nullable: str, default: Any, extra: str
) -> TargetColumn:
    words = (extra or "").lower()
    # MySQL writes DEFAULT_GENERATED for an expression default; MariaDB writes "STORED GENERATED" or "VIRTUAL ...".
    generated = "virtual generated" in words or "stored generated" in words
    full = declared + (f" CHARACTER SET {charset} COLLATE {collation}" if charset else "")
    optional = nullable == "YES" or default is not None or generated or "auto_increment" in words
    return TargetColumn(
        name,
        parse_column_type(declared, charset=charset or "", collation=collation or ""),
        full,
        nullable == "YES",
        optional,
        generated,
        "invisible" in words,
    )


@answers("target")
def require_server(connection: pymysql.Connection[Any], *, where: str) -> None:
    """Raises Refused (target.local_infile) when bulk loading is off."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@local_infile")
        row = cursor.fetchone()
    if row is None or not row[0]:
        raise Refused(
            "The server does not allow LOAD DATA LOCAL INFILE.",
            where=where,
            code="target.local_infile",
            remedy="SET GLOBAL local_infile = ON on the target, and local_infile=ON in its option file",
        )


def require_table(
    facts: TableFacts | None,
    schema: TableSchema,
    key: Sequence[str],
    *,
    name: str,
    freshness: str | None = None,
    narrower: bool = False,
) -> TableFacts:
    """The table, if changes of `schema` can be written to it. Raises Refused (target.table, .key, .column, .type).

    narrower: a column may be too narrow for some values, if the server tells of each one that does not fit.
    """
    if facts is None:
        raise Refused(
            f"The table {name} does not exist on the target.",
            where=name,
            code="target.table",
            remedy=f"create it there with the columns of {schema.name}, and its key",
        )
    if key:
        _require_key(facts, key)
    wanted = written_columns(facts, schema, check=True, narrower=narrower)
    for column in facts.columns:
        known = column.name.lower() in {one.lower() for one in wanted}
        if not known and not column.optional and column.name != VERSION_COLUMN:
            raise Refused(
                f"The column {column.name} of the target is NOT NULL without a default, and the source has none such.",
                where=name,
                code="target.column",
                remedy=f"give {column.name} a default, or allow null",
            )
    if freshness is not None and freshness.lower() not in {one.lower() for one in wanted}:
        raise Refused(
            f"The freshness column {freshness!r} is not a column of {schema.name}.",
            where=name,
            code="target.column",
            remedy="name a column of the source in targets.*.tables.*.freshness, or leave the key out",
        )
    return facts


def _require_key(facts: TableFacts, key: Sequence[str]) -> None:
    wanted = frozenset(one.lower() for one in key)
    if not any(unique.plain and unique.columns == wanted for unique in facts.unique_keys):
        raise Refused(
            f"{facts.name} has no unique key over exactly ({', '.join(key)}).",
            where=facts.name,
            code="target.key",
            remedy=f"ALTER TABLE {facts.name} ADD UNIQUE KEY ({', '.join(key)})",
        )
    for column in facts.columns:
        if column.name.lower() in wanted and column.nullable:
            raise Refused(
                f"The key column {column.name} of {facts.name} may be null, and nulls are never equal.",
                where=facts.name,
                code="target.key",
                remedy=f"make {column.name} NOT NULL",
            )


def written_columns(
    facts: TableFacts, schema: TableSchema, *, check: bool = False, narrower: bool = False
) -> tuple[str, ...]:
    """Names, as the source writes them, of the columns that are written to the target.

    Generated columns (of the source, or of the target) are not. With `check`, raises Refused (target.column,
    target.type) for a column that is missing or too narrow.
    """
    names = []
    for column in schema.columns:
        there = facts.by_name.get(column.name.lower())
        if column.generated or (there is not None and there.generated):
            continue
        if check:
            _require_column(facts, column, there, narrower=narrower)
        names.append(column.name)
    return tuple(names)


def _require_column(facts: TableFacts, column: Column, there: TargetColumn | None, *, narrower: bool) -> None:
    if there is None:
        raise Refused(
            f"The column {column.name} ({column.type}) of the source is missing in {facts.name}.",
            where=facts.name,
            code="target.column",
            remedy=f"ALTER TABLE {facts.name} ADD COLUMN {quote(column.name)} {column.type}",
        )
    problem = too_narrow(column.type, there.type)
    if problem and not (narrower and _told(problem, there.type)):
        raise Refused(
            f"The column {column.name} is {column.type} on the source and {there.type} in {facts.name}: {problem}.",
            where=facts.name,
            code="target.type",
            remedy=f"ALTER TABLE {facts.name} MODIFY {quote(there.name)} {column.type}",
        )


_TEXT_BYTES = {"tinytext": 255, "text": 65_535, "mediumtext": 2**24 - 1, "longtext": 2**32 - 1}
_BLOB_BYTES = {"tinyblob": 255, "blob": 65_535, "mediumblob": 2**24 - 1, "longblob": 2**32 - 1}


def too_narrow(source: ColumnType, target: ColumnType) -> str:
    """Why a target column cannot hold every value of a source column; "" when it can."""
    if source.base in INTEGER_BYTES:
        return _integer_problem(source, target)
    if source.base in TEXT_BASES | {"enum", "set", "json", "uuid", "inet4", "inet6"} and target.base in TEXT_BASES:
        return _length_problem(source, target, _TEXT_BYTES)
    if source.base in BINARY_BASES and target.base in BINARY_BASES:
        # BINARY(n) pads what is shorter, and would give back other bytes.
        if target.base == "binary" and (source.base, source.length) != (target.base, target.length):
            return "a BINARY column pads its values"
        return _length_problem(source, target, _BLOB_BYTES)
    if source.base in GEOMETRY_BASES and target.base in GEOMETRY_BASES:
        return "" if target.base in (source.base, "geometry") else "it takes another kind of geometry"
    if source.base == "float" and target.base == "double":
        return ""
    if source.base in ("datetime", "timestamp") and target.base in ("datetime", "timestamp"):
        if source.base == "datetime" and target.base == "timestamp":
            return "TIMESTAMP has a smaller range"
        return "" if target.fsp >= source.fsp else "it has fewer fractional digits"
    if source.base != target.base:
        return "the types differ"
    if source.base == "decimal":
        whole = (source.precision or 10) - (source.scale or 0)
        fits = (target.scale or 0) >= (source.scale or 0) and (target.precision or 10) - (target.scale or 0) >= whole
        return "" if fits and (source.unsigned or not target.unsigned) else "it has fewer digits"
    if source.base in ("enum", "set"):
        missing = [label for label in source.labels if label not in target.labels]
        return f"it lacks the label {missing[0]!r}" if missing else ""
    if source.base == "time":
        return "" if target.fsp >= source.fsp else "it has fewer fractional digits"
    if source.base in ("bit", "vector") and source.length != target.length:
        return "the lengths differ"
    return ""


_SHORTER, _SMALLER = "it is shorter", "it has a smaller range"
_TOLD = frozenset({_SHORTER, _SMALLER, "it takes no negative numbers", "TIMESTAMP has a smaller range"})


def _told(problem: str, target: ColumnType) -> bool:
    """Whether the server warns of each value that does not fit. It rounds fractions, and cuts spaces off a CHAR's end,
    without a word."""
    return problem in _TOLD and target.base != "char"


def _integer_problem(source: ColumnType, target: ColumnType) -> str:
    if target.base == "decimal":
        digits = (target.precision or 10) - (target.scale or 0)
        return "" if digits >= 20 and not target.unsigned else "it has fewer digits"
    if target.base not in INTEGER_BYTES:
        return "the types differ"
    bits, room = INTEGER_BYTES[source.base] * 8, INTEGER_BYTES[target.base] * 8
    if source.unsigned == target.unsigned:
        return "" if room >= bits else _SMALLER
    if source.unsigned:
        return "" if room > bits else _SMALLER
    return "it takes no negative numbers"


def _length_problem(source: ColumnType, target: ColumnType, sizes: Mapping[str, int]) -> str:
    if target.base in sizes:
        # Characters of a char type take up to four bytes in a TEXT column.
        need = sizes.get(source.base) or (source.length or 0) * (4 if sizes is _TEXT_BYTES else 1)
        if source.base in ("enum", "set"):
            need = sum(len(label.encode()) + 1 for label in source.labels)
        if source.base == "json":
            need = _TEXT_BYTES["longtext"]
        return "" if sizes[target.base] >= need else _SHORTER
    need = source.length or 0
    if source.base in ("enum", "set"):
        need = sum(len(label) + 1 for label in source.labels)
    elif source.base == "uuid":
        need = 36
    elif source.base in ("inet4", "inet6"):
        need = 45
    elif source.base in sizes or source.base == "json":
        return _SHORTER
    return "" if (target.length or 0) >= need else _SHORTER


@answers("target")
def require_grants(
    connection: pymysql.Connection[Any], facts: Iterable[TableFacts], *, temporary_in: str, where: str
) -> None:
    """Raises Refused (target.grant) when the account may not read, write, or make temporary tables.

    EXPLAIN asks for the privileges of the statement it explains, and runs nothing.
    """
    with connection.cursor() as cursor:
        try:
            cursor.execute(f"CREATE TEMPORARY TABLE {quote(temporary_in)}._lockstep_check (n INT)")
            cursor.execute(f"DROP TEMPORARY TABLE {quote(temporary_in)}._lockstep_check")
            for table in facts:
                name = f"{quote(table.database)}.{quote(table.table)}"
                column = quote(table.columns[0].name)
                cursor.execute(f"EXPLAIN INSERT INTO {name} SELECT * FROM {name} WHERE FALSE")
                cursor.execute(f"EXPLAIN UPDATE {name} SET {column} = {column} WHERE FALSE")
                cursor.execute(f"EXPLAIN DELETE FROM {name} WHERE FALSE")
        except pymysql.err.MySQLError as error:
            raise denied(error, where=where) from None


DENIED = frozenset({1044, 1045, 1142, 1143, 1227, 1370})


def denied(error: pymysql.err.MySQLError, *, where: str) -> Refused:
    return Refused(
        f"The target refused a statement: {error.args[-1]}.",
        where=where,
        code="target.grant",
        remedy="GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, CREATE TEMPORARY TABLES on the target's databases "
        "to the pipeline's account",
    )
