"""From source tables to a target's table: pure functions from definitions to SQL, with a note for all that differs.

The target's table takes every value of its sources unchanged. Of what a definition has beside that,

    the same                 types, lengths, nullability, comments, literal defaults, keys, indexes, what is invisible
    the same, or another     collations that the target does not have (target_collations); types that it does not have
    computed by the target   generated columns, where source and target are of one kind; otherwise they are plain, or
                             left out if the log may lack their values (Column.logged)
    left out                 whatever would make the target change or refuse rows by itself: AUTO_INCREMENT, ON UPDATE,
                             triggers, foreign keys, CHECK; and partitions

so that the rows are those of the source and nothing else. Several source tables that feed one table must have the same
columns; keys that they do not have in common become plain indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from pymysql.converters import escape_string

from cdc_core.errors import ColumnsMissing, Refused
from cdc_core.model.schema import BINARY_BASES, GEOMETRY_BASES, Column, ColumnType, TableSchema
from cdc_core.model.version import VERSION_BYTES, VERSION_COLUMN
from cdc_core.mysql.connections import quote
from cdc_core.targets.reading.table_facts import declaration
from cdc_core.targets.tables import type_pairs
from cdc_core.targets.tables.table_definition import (
    EXPRESSION,
    LITERAL,
    NOW,
    ColumnDefinition,
    IndexDefinition,
    TableDefinition,
)
from cdc_core.targets.tables.target_collations import substitute

LARGE_OR_JSON = type_pairs.LARGE | {"json"}
_WITH_LENGTH = frozenset({"char", "varchar", "binary", "varbinary"})
_INDEX_BYTES = 3072
"""The most that an index of InnoDB takes, where pages have 16 KiB."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a target's server understands. collations: the names of those that it has."""

    mariadb: bool
    version: tuple[int, ...]
    collations: frozenset[str]


@dataclass(frozen=True, slots=True)
class Origin:
    """A source table. schema: its captured columns after all rules. definition: None where it could not be asked.
    literals: the exact values of its literal defaults, as column_defaults has them. masked: columns whose values were
    replaced, whatever their types say, in lower case."""

    schema: TableSchema
    definition: TableDefinition | None = None
    literals: Mapping[str, str | None] | None = None
    masked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """sql: the column in a CREATE TABLE or ALTER TABLE. loose: the same with NULL allowed and without a computed
    default.
    source: its type on the source, type: here. default: its kind (table_definition.py), "" for none.
    generated: the target computes it. derived: the source does. absent: so it does, the log may lack its values, and
    the target cannot compute it: no table is made with it."""

    name: str
    source: ColumnType
    type: ColumnType
    nullable: bool
    sql: str
    loose: str
    default: str = ""
    generated: bool = False
    derived: bool = False
    absent: bool = False


@dataclass(frozen=True, slots=True)
class PlannedIndex:
    """sql: in a CREATE TABLE, or after ADD in an ALTER TABLE. parts: (column in lower case, prefix)."""

    name: str
    unique: bool
    parts: tuple[tuple[str, int | None], ...]
    sql: str


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """What each physical table of a logical one must be, on servers of one dialect. notes: how it differs from its
    sources. versioned: its rows have their versions in a column.
    """

    logical: str
    columns: tuple[PlannedColumn, ...]
    key: tuple[str, ...]
    indexes: tuple[PlannedIndex, ...]
    versioned: bool
    notes: tuple[str, ...]
    collation: str = ""
    comment: str = ""

    def create(self, database: str, table: str) -> str:
        """The statement. Twice it does no harm."""
        parts = [column.sql for column in self.columns if not column.absent]
        if self.versioned:
            parts.append(f"{VERSION_COLUMN} VARBINARY({VERSION_BYTES}) INVISIBLE")
        parts += [index.sql for index in self.indexes]
        collation = f" COLLATE={self.collation}" if self.collation else ""
        comment = f" COMMENT={text_literal(self.comment)}" if self.comment else ""
        return (
            f"CREATE TABLE IF NOT EXISTS {quote(database, table)} (\n  "
            + ",\n  ".join(parts)
            + f"\n) ENGINE=InnoDB ROW_FORMAT=DYNAMIC{collation}{comment}"
        )


def text_literal(text: str) -> str:
    """A string in a statement of a session whose sql_mode lacks NO_BACKSLASH_ESCAPES (session_settings.WRITING)."""
    return "'" + escape_string(text) + "'"


def planned_table(
    logical: str, origins: Sequence[Origin], key: Sequence[str], dialect: Dialect, *, versioned: bool, alone: bool
) -> PlannedTable:
    """The table that takes all rows of the origins, at least one.

    alone: no other source table can feed it, so that what is unique at the source is unique here.
    Raises Refused (target.not_creatable, target.definition).
    """
    return _Plan(logical, tuple(origins), tuple(key), dialect, alone).table(versioned=versioned)


class _Plan:
    def __init__(
        self, logical: str, origins: tuple[Origin, ...], key: tuple[str, ...], dialect: Dialect, alone: bool
    ) -> None:
        self.logical = logical
        self.origins = origins
        self.key = key
        self.dialect = dialect
        self.alone = alone
        self.first = origins[0].definition
        self.notes: dict[str, None] = {}
        self.in_key = frozenset(name.lower() for name in key)
        self.unique = frozenset(
            column for index in (self.first.indexes if self.first else ()) if index.unique for column in index.columns
        )

    def note(self, text: str) -> None:
        self.notes[text] = None

    def table(self, *, versioned: bool) -> PlannedTable:
        columns = self._agreed()
        made = tuple(self._column(column) for column in columns if column.name.lower() != VERSION_COLUMN)
        indexes = tuple(self._indexes({column.name.lower(): column for column in made if not column.absent}))
        self._note_left_out()
        collation = ""
        if self.first is not None and self.first.collation:
            charset = self.first.collation.partition("_")[0]
            collation = substitute(charset, self.first.collation, self.dialect.collations, apart=False)[1]
        return PlannedTable(
            self.logical,
            made,
            self.key,
            indexes,
            versioned and bool(self.key),
            tuple(self.notes),
            collation,
            self.first.comment if self.first else "",
        )

    def _agreed(self) -> list[Column]:
        """The columns of all origins, in the order of the first ones. Raises Refused (target.not_creatable)."""
        found: dict[str, list[tuple[TableSchema, Column]]] = {}
        for origin in self.origins:
            for column in origin.schema.columns:
                found.setdefault(column.name.lower(), []).append((origin.schema, column))
        differ = []
        agreed = []
        for uses in found.values():
            (schema, column), *others = uses
            for other, theirs in others:
                if theirs.type != column.type:
                    differ.append(
                        f"{column.name} is {shown_type(column.type)} in {schema.name} and {shown_type(theirs.type)} in "
                        f"{other.name}"
                    )
            lacking = len(uses) < len(self.origins)
            if lacking and column.name.lower() not in self.in_key:
                self.note(f"the column {column.name} is not in every source table: it allows NULL")
            nullable = lacking or any(used.nullable for _, used in uses)
            agreed.append(replace(column, nullable=nullable, generated=all(used.generated for _, used in uses)))
        if differ:
            raise Refused(
                f"The source tables of {self.logical!r} have different columns: {'; '.join(dict.fromkeys(differ))}.",
                where=self.logical,
                code="target.not_creatable",
                remedy="make the columns the same on the sources; or create the table yourself, with types that take "
                "the values of both",
            )
        return agreed

    # Columns.

    def _column(self, column: Column) -> PlannedColumn:
        theirs = self._definition_of(column)
        in_key = column.name.lower() in self.in_key
        kind = self._type(column, apart=in_key or column.name.lower() in self.unique)
        nullable = column.nullable and not in_key
        head, tail = [quote(column.name), declaration(kind)], []
        generated = theirs is not None and self._computed(column, theirs)
        default, default_kind = "", ""
        if theirs is not None:
            default, default_kind = self._default(theirs, column, kind)
            if theirs.zerofill:
                head.append("ZEROFILL")
            if generated:
                head.append(f"GENERATED ALWAYS AS ({theirs.expression.text}) {theirs.generated}")
            tail = list(self._attributes(theirs, kind, optional=nullable or bool(default) or generated))
        absent = not (column.logged or generated or in_key)
        if absent:
            self.note(f"the generated column {column.name} is left out: the source's log may lack its values")
        # MariaDB's generated columns have neither of the two.
        allows = [] if generated and self.dialect.mariadb else ["NULL" if nullable else "NOT NULL"]
        given = [f"DEFAULT {default}"] if default else []
        return PlannedColumn(
            column.name,
            column.type,
            kind,
            nullable,
            " ".join([*head, *allows, *given, *tail]),
            " ".join([*head, *(["NULL"] if allows else []), *(given if default_kind == LITERAL else []), *tail]),
            default_kind,
            generated,
            column.generated,
            absent,
        )

    def _attributes(self, theirs: ColumnDefinition, kind: ColumnType, *, optional: bool) -> Iterator[str]:
        """What follows the default in a column's definition. optional: a row can be inserted without the column."""
        name = theirs.name
        if theirs.srid is not None and not self.dialect.mariadb and kind.base in GEOMETRY_BASES:
            yield f"SRID {theirs.srid}"
        if theirs.invisible:
            if self.dialect.mariadb and not optional:
                self.note(f"the column {name} is visible: an invisible one needs a default on MariaDB")
            else:
                yield "INVISIBLE"
        if theirs.comment:
            yield f"COMMENT {text_literal(theirs.comment)}"
        if theirs.counted:
            self.note(f"{name} is not AUTO_INCREMENT: its values come from the source")
        if theirs.refreshed:
            self.note(f"{name} has no ON UPDATE: its values come from the source")

    def _definition_of(self, column: Column) -> ColumnDefinition | None:
        """The source's definition of the column, if no rule of the pipeline has changed its values or its type."""
        if self.first is None or column.name.lower() in self.origins[0].masked:
            return None
        definition = self.first.by_name.get(column.name.lower())
        return definition if definition is not None and definition.type == column.type else None

    def _type(self, column: Column, *, apart: bool) -> ColumnType:
        kind = type_pairs.native(column.type, mariadb=self.dialect.mariadb)
        if kind.base != column.type.base and kind.base not in GEOMETRY_BASES:
            self.note(f"{column.name} is {kind.base.upper()}: the target has no type {column.type.base.upper()}")
        if kind.base == "vector" and self.dialect.mariadb and self.dialect.version < (11, 7):
            raise Refused(
                f"The column {column.name} is a VECTOR, which this target does not have.",
                where=self.logical,
                code="target.not_creatable",
                remedy="exclude the column (tables.columns.exclude); or use MySQL 9, or MariaDB 11.7 or later",
            )
        if not kind.collation:
            return kind
        charset, collation = substitute(kind.charset, kind.collation, self.dialect.collations, apart=apart)
        if collation != kind.collation:
            self.note(f"{column.name} has the collation {collation}: the target does not have {kind.collation}")
        return replace(kind, charset=charset, collation=collation)

    def _computed(self, column: Column, theirs: ColumnDefinition) -> bool:
        """Whether the target computes the column as the source does."""
        if not theirs.generated:
            return False
        assert self.first is not None
        why = ""
        if column.name.lower() in self.in_key:
            why = "it is in the key"
        elif self.first.mariadb != self.dialect.mariadb:
            why = "the servers may compute it differently"
        elif len(self.origins) > 1:
            why = "it comes from several source tables"
        elif not theirs.expression.exact:
            why = "the source does not show its expression exactly"
        elif changed := sorted(self._changed(theirs.expression.columns)):
            why = f"it depends on {changed[0]}, which is excluded or masked"
        if why and column.logged:
            self.note(f"the generated column {column.name} is a plain column with the source's values: {why}")
        return not why

    def _changed(self, names: frozenset[str]) -> set[str]:
        """The source's columns that are not captured as they are."""
        assert self.first is not None
        captured = {
            column.name.lower(): column.type
            for column in self.origins[0].schema.columns
            if column.name.lower() not in self.origins[0].masked
        }
        return {
            name
            for name in names
            if name not in self.first.by_name or captured.get(name) != self.first.by_name[name].type
        }

    def _default(self, theirs: ColumnDefinition, column: Column, kind: ColumnType) -> tuple[str, str]:
        """The default as SQL and its kind; both "" for none. It is for other writers: our rows have all values."""
        assert self.first is not None
        if theirs.default == NOW and kind.base in ("datetime", "timestamp"):
            return "CURRENT_TIMESTAMP" + (f"({kind.fsp})" if kind.fsp else ""), NOW
        if theirs.default == LITERAL:
            literals = self.origins[0].literals or {}
            value = literals.get(column.name)
            if value is not None and kind.base not in GEOMETRY_BASES:
                sql = default_literal(value, column.type)
                large = kind.base in LARGE_OR_JSON and not self.dialect.mariadb
                return (f"({sql})" if large else sql), LITERAL
        elif theirs.default == EXPRESSION:
            ours = self.first.mariadb == self.dialect.mariadb and theirs.expression.exact
            if ours and not _of_a_sequence(theirs.expression.text) and not self._changed(theirs.expression.columns):
                return f"({theirs.expression.text})", EXPRESSION
        if theirs.default:
            self.note(f"{column.name} has no default: the source's cannot be taken over exactly")
        return "", ""

    # Indexes.

    def _indexes(self, columns: Mapping[str, PlannedColumn]) -> Iterator[PlannedIndex]:
        if self.key:
            yield self._key_index(columns)
        for index in self.first.indexes if self.first else ():
            if index.whole and index.unique and set(index.columns) == set(self.in_key):
                continue
            why = self._unusable(index, columns)
            if why:
                self.note(f"the index {index.name} is left out: {why}")
                continue
            yield self._index(index, columns)

    def _key_index(self, columns: Mapping[str, PlannedColumn]) -> PlannedIndex:
        large = [name for name in self.key if columns[name.lower()].type.base in LARGE_OR_JSON]
        if large and not self.dialect.mariadb:
            raise ColumnsMissing(
                f"The key column {large[0]} is {columns[large[0].lower()].type}, of which MySQL has no unique key over "
                "whole values.",
                where=self.logical,
                remedy="name other key columns in targets.*.tables.*.key, or use a target on MariaDB",
            )
        names = ", ".join(quote(columns[name.lower()].name) for name in self.key)
        sql = f"UNIQUE KEY ({names})" if large else f"PRIMARY KEY ({names})"
        return PlannedIndex("PRIMARY", True, tuple((name.lower(), None) for name in self.key), sql)

    def _unusable(self, index: IndexDefinition, columns: Mapping[str, PlannedColumn]) -> str:
        """Why an index of the source cannot be on the target; "" if it can."""
        assert self.first is not None
        if index.kind not in ("BTREE", "HASH", "RTREE", "SPATIAL", "FULLTEXT"):
            return f"Lockstep does not know the kind {index.kind}"
        for part in index.parts:
            if not part.column:
                if self.dialect.mariadb:
                    return "the target has no indexes on expressions"
                if not part.expression.exact or self._changed(part.expression.columns):
                    return "its expression cannot be taken over exactly"
                continue
            column = columns.get(part.column.lower())
            if column is None:
                return f"the column {part.column} is not captured, or left out"
            if part.prefix is not None and self._changed(frozenset({part.column.lower()})):
                return f"the column {part.column} is masked or changed"
            if index.kind == "SPATIAL" and (column.nullable or column.type.base not in GEOMETRY_BASES):
                return f"the column {part.column} may be null or is not a geometry"
            if index.kind == "FULLTEXT" and column.type.collation != column.source.collation and len(index.parts) > 1:
                return "its columns have other collations on the target"
            long = (
                sum(_index_bytes(columns.get(indexed.column.lower()), indexed.prefix) for indexed in index.parts)
                > _INDEX_BYTES
            )
            large = (column.type.base in LARGE_OR_JSON or long) and index.kind != "FULLTEXT"
            if large and part.prefix is None and not (self.dialect.mariadb and index.unique and self.alone):
                return f"the whole {part.column} cannot be in an ordinary index"
        return ""

    def _index(self, index: IndexDefinition, columns: Mapping[str, PlannedColumn]) -> PlannedIndex:
        unique = index.unique
        if unique and not self.alone:
            unique = False
            self.note(f"the index {index.name} is not unique: several source tables may feed {self.logical}")
        elif unique and any(not part.column for part in index.parts):
            unique = False
            self.note(f"the index {index.name} is not unique: it is over expressions, which the source compares")
        parts, shape = [], []
        for part in index.parts:
            prefix = part.prefix
            order = " DESC" if part.descending else ""
            if not part.column:
                parts.append(f"({part.expression.text}){order}")
            else:
                column = columns[part.column.lower()]
                if prefix is not None and column.type.length is not None and prefix >= column.type.length:
                    prefix = None
                parts.append(quote(column.name) + (f"({prefix})" if prefix is not None else "") + order)
            shape.append((part.column.lower(), prefix))
        kind = {"FULLTEXT": "FULLTEXT KEY", "SPATIAL": "SPATIAL KEY", "RTREE": "SPATIAL KEY"}.get(
            index.kind, "UNIQUE KEY" if unique else "KEY"
        )
        # A primary key of the source that is not the key here has no name of its own.
        name = "source_primary" if index.name == "PRIMARY" else index.name
        hidden = (" IGNORED" if self.dialect.mariadb else " INVISIBLE") if index.hidden else ""
        return PlannedIndex(name, unique, tuple(shape), f"{kind} {quote(name)} ({', '.join(parts)}){hidden}")

    def _note_left_out(self) -> None:
        first = self.first
        if first is None:
            self.note("its source could not be asked: the table has no defaults, comments and further indexes")
            return
        for what, names in (
            ("foreign key", first.foreign_keys),
            ("trigger", first.triggers),
            ("CHECK constraint", first.checks),
        ):
            if names:
                self.note(f"without the source's {what}s ({', '.join(names)}): its rows have passed them")
        for period in first.periods:
            self.note(
                f"without the period {period}: no key is WITHOUT OVERLAPS, and FOR PORTION OF {period} fails there"
            )
        if first.partitioned:
            self.note("not partitioned")
        if first.engine and first.engine.lower() != "innodb":
            self.note(f"the engine is InnoDB, not {first.engine}")


def _index_bytes(column: PlannedColumn | None, prefix: int | None) -> int:
    """The most that a text or a string of bytes takes in an index; 0 for other types."""
    chars = prefix or (column.type.length if column and column.type.base in _WITH_LENGTH else None) or 0
    return chars * type_pairs.CHARACTER_BYTES.get((column.type.charset if column else "") or "", 1)


def shown_type(kind: ColumnType) -> str:
    return str(kind) + (f" {kind.collation}" if kind.collation else "")


def _of_a_sequence(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in ("nextval", "lastval", "setval", "next value", "previous value"))


def default_literal(value: str, kind: ColumnType) -> str:
    """A literal default as SQL. value: as column_defaults has it, for a column of type `kind`."""
    if kind.base in BINARY_BASES:
        return f"X'{value}'" if value else "''"
    if kind.base == "bit":
        return f"b'{int(value):b}'"
    if kind.base == "timestamp":
        return text_literal(_moment(value))
    return text_literal(value)


def _moment(seconds: str) -> str:
    whole, dot, fraction = seconds.partition(".")
    if int(whole) == 0:
        return "0000-00-00 00:00:00"
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(whole))
    return f"{at:%Y-%m-%d %H:%M:%S}{dot}{fraction}"
