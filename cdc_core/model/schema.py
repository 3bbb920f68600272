"""Table definitions as of a position, and the one mapping from source types to Arrow types.

The mapping serves the binlog decoder and the snapshot reader alike, so that a value of either is the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from cdc_core.errors import TableRefused
from cdc_core.model.collations import own_name
from cdc_core.model.json_codec import Natural, TimeUs, plain

INTEGER_BYTES: Mapping[str, int] = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
BINARY_BASES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
TEXT_BASES = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
GEOMETRY_BASES = frozenset(
    {
        "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
        "geometrycollection", "geomcollection",
    }
)  # fmt: skip
_ALIASES = {"integer": "int", "dec": "decimal", "numeric": "decimal", "real": "double", "bool": "tinyint"}

_INT_ARROW: Mapping[tuple[int, bool], pa.DataType] = {
    (1, False): pa.int8(), (1, True): pa.uint8(),
    (2, False): pa.int16(), (2, True): pa.uint16(),
    (3, False): pa.int32(), (3, True): pa.uint32(),
    (4, False): pa.int32(), (4, True): pa.uint32(),
    (8, False): pa.int64(), (8, True): pa.uint64(),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's type as the server declares it, without display widths and defaults.

    base:      lower-case type name: 'int', 'varchar', 'decimal', 'enum', 'json', 'uuid', ...
    unsigned:  numeric types only.
    length:    characters for char types, bytes for binary types, bits for 'bit'; None where the type has none.
    precision, scale: 'decimal'; of 'float' and 'double' only if they are declared, and then they round.
    fsp:       fractional seconds digits of time, datetime and timestamp.
    labels:    members of 'enum' and 'set', in declared order.
    charset, collation: of character columns, "" otherwise. The collation's own name (model.collations).
    """

    base: str
    unsigned: bool = False
    length: Natural | None = None
    precision: Natural | None = None
    scale: Natural | None = None
    fsp: Natural = 0
    labels: tuple[str, ...] = ()
    charset: str = ""
    collation: str = ""

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow (and Parquet) type of the column; raises Refused for an unknown type."""
        base = self.base
        if base in INTEGER_BYTES:
            return _INT_ARROW[INTEGER_BYTES[base], self.unsigned]
        if base == "decimal":
            precision = self.precision or 10
            return pa.decimal128(precision, self.scale or 0) if precision <= 38 else pa.string()
        if base == "bit":
            return pa.bool_() if (self.length or 1) == 1 else pa.uint64()
        if base in BINARY_BASES or base in GEOMETRY_BASES:
            return pa.binary()
        if base in TEXT_BASES or base in _STRING_BASES:
            return pa.string()
        simple = _SIMPLE_ARROW.get(base)
        if simple is None:
            raise TableRefused(
                f"Lockstep does not support the column type {base!r}.",
                code="source.unsupported_table",
                remedy="exclude the table (tables.exclude), or change the column's type on the source",
            )
        return simple

    def __str__(self) -> str:
        text = self.base
        if self.precision is not None:
            text += f"({self.precision},{self.scale})"
        elif self.labels:
            text += "(" + ",".join("'" + label.replace("'", "''") + "'" for label in self.labels) + ")"
        elif self.length is not None:
            text += f"({self.length})"
        elif self.fsp:
            text += f"({self.fsp})"
        return text + (" unsigned" if self.unsigned else "")


_STRING_BASES = frozenset({"enum", "set", "json", "time", "uuid", "inet4", "inet6"})
_SIMPLE_ARROW: Mapping[str, pa.DataType] = {
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "year": pa.int16(),
    "vector": pa.list_(pa.float32()),
}


_UNDECLARED = (
    *(ColumnType(base, unsigned=sign) for base in ("tinyint", "smallint", "int", "bigint") for sign in (False, True)),
    ColumnType("bit", length=1), ColumnType("float"), ColumnType("double"), ColumnType("date"),
    ColumnType("datetime", fsp=6), ColumnType("timestamp", fsp=6), ColumnType("longblob"),
    ColumnType("longtext", charset="utf8mb4", collation="utf8mb4_bin"),
)  # fmt: skip


def type_of(kind: pa.DataType) -> ColumnType:
    """The declared type that a column of an Arrow type has when no server declared it.

    Raises Refused (source.unsupported_table).
    """
    if pa.types.is_decimal128(kind):
        return ColumnType("decimal", precision=kind.precision, scale=kind.scale)
    for undeclared in _UNDECLARED:
        if undeclared.arrow == kind:
            return undeclared
    raise TableRefused(
        f"Lockstep cannot stage a column of Arrow's type {kind}.",
        code="source.unsupported_table",
        remedy="give integers, floats, decimal128, bool, string, binary, date32 or timestamps in microseconds",
    )


_TYPE = re.compile(r"^\s*([a-zA-Z0-9_]+)\s*(?:\((.*)\))?\s*(.*)$", re.DOTALL)
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_UNESCAPED = re.compile(r"''|\\([\\0nr])")


def _unescaped(match: re.Match[str]) -> str:
    """What servers write in a label for a quote, a backslash, NUL and line ends."""
    return {None: "'", "0": "\0", "n": "\n", "r": "\r"}.get(match[1], match[1])


def parse_column_type(text: str, *, charset: str = "", collation: str = "", mariadb: bool = False) -> ColumnType:
    """A type from INFORMATION_SCHEMA.COLUMNS.COLUMN_TYPE, such as `decimal(12,2) unsigned` or `enum('a','b')`.

    collation: as the server shows it; mariadb: whether the server is a MariaDB.
    """
    collation = own_name(collation, mariadb=mariadb)
    match = _TYPE.match(text)
    if match is None:
        raise TableRefused(
            f"Lockstep does not know the column type {text!r}.",
            code="source.unsupported_table",
            remedy="exclude the table (tables.exclude)",
        )
    base = _ALIASES.get(match[1].lower(), match[1].lower())
    arguments = match[2] or ""
    unsigned = "unsigned" in match[3].lower() or "zerofill" in match[3].lower()
    if base in ("enum", "set"):
        labels = tuple(_UNESCAPED.sub(_unescaped, label) for label in _LABEL.findall(arguments))
        return ColumnType(base, labels=labels, charset=charset, collation=collation)
    if base == "decimal":
        numbers = [int(part) for part in arguments.split(",") if part.strip()]
        precision, scale = (*numbers, 10, 0)[:2] if len(numbers) != 1 else (numbers[0], 0)
        return ColumnType(base, unsigned=unsigned, precision=precision, scale=scale)
    if base in ("time", "datetime", "timestamp"):
        return ColumnType(base, fsp=int(arguments or 0))
    if base in ("float", "double") and "," in arguments:
        precision, scale = (int(part) for part in arguments.split(","))
        return ColumnType(base, unsigned=unsigned, precision=precision, scale=scale)
    if base in INTEGER_BYTES or base in ("float", "double"):
        return ColumnType(base, unsigned=unsigned)
    if base == "bit":
        return ColumnType(base, length=int(arguments or 1))
    length = int(arguments) if arguments.strip().isdigit() and base not in ("year",) else None
    if base in TEXT_BASES:
        return ColumnType(base, length=length, charset=charset, collation=collation)
    return ColumnType(base, length=length)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, in the order of the row image.

    key_part:  1-based place in the primary key (or the promoted NOT NULL UNIQUE key), None outside it.
    generated: a generated (virtual or stored) column. Its values are in row images, and go to a target whose column
               is a plain one.
    logged:    False for a generated column of MariaDB, which row images may leave out, changed or not: other images
               than FULL leave out virtual ones, and updates and deletes of 11.8 all of them.
    """

    name: str
    type: ColumnType
    nullable: bool = True
    key_part: Natural | None = None
    generated: bool = False
    logged: bool = True


TableName = tuple[str, str]
"""The database and the table."""


@dataclass(frozen=True)
class TableSchema:
    """The definition of a source table as of a position of its log."""

    database: str
    table: str
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @cached_property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns in key-part order; () for a table without a key."""
        parts = [(column.key_part, column.name) for column in self.columns if column.key_part is not None]
        return tuple(name for _, name in sorted(parts))

    @cached_property
    def id(self) -> str:
        """Sixteen hex digits that name this definition; equal definitions have equal ids."""
        return hashlib.sha256(json.dumps(plain(self), sort_keys=True).encode()).hexdigest()[:16]

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class DefinedSince:
    """What a table's definition is from the order key `seq` of its log on, until another says otherwise.

    schema:   without columns if all that is known is that the definition changed.
    defaults: what an INSERT stores in a column that it leaves out (column_defaults); None if not requested.
    gone:     no table has this name from here on: it was dropped or renamed.
    rowless:  a statement of the log made the table, and no row of it had been logged since.
    dropped:  columns that were dropped here.
    emptied:  columns that were added here and that the table once had: their values in older changes no longer hold.
    ts_us:    commit time of what happened here, µs UTC; 0 if nothing did.
    renamed:  (old, new) of columns that got another name here; they are dropped and added, too.
    """

    seq: Natural
    schema: TableSchema
    defaults: Mapping[str, str | None] | None = None
    gone: bool = False
    dropped: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()
    ts_us: TimeUs = 0
    rowless: bool = False
    renamed: tuple[tuple[str, str], ...] = ()
