"""A table's definition as of its table map: what the server logs, completed from INFORMATION_SCHEMA.

Keeps true: row images are never decoded with a definition that contradicts the log. With binlog_row_metadata=FULL the
log alone says which columns and key there are, and INFORMATION_SCHEMA adds, per column of the same name and a type that
fits, what no server logs: generated columns, and MariaDB's UUID, INET and VECTOR, which look like binary strings.
Without FULL the definition is INFORMATION_SCHEMA's, checked column by column against everything that is logged.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cdc_core.binlog import charsets
from cdc_core.binlog.table_map import TableMap, TypeCode
from cdc_core.binlog.wire import malformed
from cdc_core.errors import RESYNC, Refused, TableRefused
from cdc_core.model.collations import own_name, spell_out_utf8
from cdc_core.model.schema import GEOMETRY_BASES, TEXT_BASES, Column, ColumnType, TableSchema

SCHEMA_REMEDY = f"SET GLOBAL binlog_row_metadata = FULL on the source, so that the log names its columns, and {RESYNC}"

INTEGERS = {
    TypeCode.TINY: "tinyint", TypeCode.SHORT: "smallint", TypeCode.INT24: "mediumint", TypeCode.LONG: "int",
    TypeCode.LONGLONG: "bigint",
}  # fmt: skip
_PLAIN = {
    TypeCode.FLOAT: "float", TypeCode.DOUBLE: "double", TypeCode.DATE: "date", TypeCode.NEWDATE: "date",
    TypeCode.YEAR: "year", TypeCode.JSON: "json",
}  # fmt: skip
_TEMPORAL = {TypeCode.TIMESTAMP2: "timestamp", TypeCode.DATETIME2: "datetime", TypeCode.TIME2: "time"}
_OLD_TEMPORAL = frozenset({TypeCode.TIMESTAMP, TypeCode.DATETIME, TypeCode.TIME})
_BLOBS = frozenset({TypeCode.BLOB, TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB})
_BLOB_NAMES = {1: ("tinyblob", "tinytext"), 2: ("blob", "text"), 3: ("mediumblob", "mediumtext")}
_GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection",
)  # fmt: skip
_HASH = re.compile(r"DB_ROW_HASH_\d+$")
_FIXED_BINARY = {"uuid": 16, "inet6": 16, "inet4": 4}
_BYTES_PER_CHARACTER = {
    "utf8mb4": 4, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4, "utf8mb3": 3, "utf8": 3, "ujis": 3,
    "eucjpms": 3, "ucs2": 2, "big5": 2, "sjis": 2, "euckr": 2, "gb2312": 2, "gbk": 2, "cp932": 2,
}  # fmt: skip


def schema_of(table_map: TableMap, known: TableSchema | None, *, mariadb: bool = False) -> TableSchema:
    """The definition that the row images after `table_map` follow.

    known:   the definition in INFORMATION_SCHEMA, as close to this position as available; None if unread.
    Raises Refused (source.incomplete_rows) when they contradict each other or do not suffice; TableRefused
    (source.unsupported_table).
    """
    if _OLD_TEMPORAL & set(table_map.types):
        raise TableRefused(
            f"{table_map.name} has a TIMESTAMP, DATETIME or TIME column in the form of servers before MySQL 5.6 and "
            "MariaDB 10.1.",
            code="source.unsupported_table",
            remedy=f"ALTER TABLE ... FORCE on the source (MariaDB: with mysql56_temporal_format = ON), and {RESYNC}",
        )
    if table_map.names is None:
        return _checked(table_map, known, mariadb=mariadb)
    by_name = {column.name: column for column in known.columns} if known else {}
    key_parts = {index: part for part, index in enumerate(table_map.key or (), 1)}
    columns = []
    for i, name in enumerate(table_map.names):
        if mariadb and name not in by_name and is_hidden(table_map, i):
            continue
        found = by_name.get(name)
        if found is not None and not fits(found.type, table_map, i):
            found = None
        kind = found.type if found is not None else _own(_logged_type(table_map, i), mariadb=mariadb)
        computed = {} if found is None else {"generated": found.generated, "logged": found.logged}
        columns.append(Column(name, kind, table_map.nullable[i], key_parts.get(i), **computed))
    return TableSchema(table_map.database, table_map.table, tuple(columns))


def _own(kind: ColumnType, *, mariadb: bool) -> ColumnType:
    return replace(kind, collation=own_name(kind.collation, mariadb=mariadb))


def is_hidden(table_map: TableMap, i: int) -> bool:
    """Whether a column that INFORMATION_SCHEMA does not have is one in which MariaDB keeps the hash of a unique key.
    Such columns, unsigned BIGINTs, follow all others."""
    if not all(code == TypeCode.LONGLONG for code in table_map.types[i:]):
        return False
    signs, names = table_map.unsigned, table_map.names
    return (signs is None or all(signs[i:])) and (names is None or all(_HASH.match(name) for name in names[i:]))


def _checked(table_map: TableMap, known: TableSchema | None, *, mariadb: bool) -> TableSchema:
    if known is None:
        raise _incomplete(
            f"The log does not name the columns of {table_map.name}, and the source no longer has the table."
        )
    own = len(known.columns)
    if own != table_map.columns and not (mariadb and own < table_map.columns and is_hidden(table_map, own)):
        raise _mismatch(
            table_map,
            f"INFORMATION_SCHEMA has {len(known.columns)} columns, the log's row images have {table_map.columns}",
        )
    for i, column in enumerate(known.columns):
        if not fits(column.type, table_map, i):
            raise _mismatch(
                table_map,
                f"column {column.name!r} is {column.type} in INFORMATION_SCHEMA, but the log has "
                f"{_describe(table_map, i)}",
            )
    columns = zip(known.columns, table_map.nullable[:own], strict=True)
    return TableSchema(
        table_map.database, table_map.table, tuple(replace(column, nullable=null) for column, null in columns)
    )


def _mismatch(table_map: TableMap, what: str) -> Refused:
    return _incomplete(f"{table_map.name} had another definition when these rows were logged: {what}.")


def _incomplete(what: str) -> Refused:
    return Refused(what, code="source.incomplete_rows", remedy=SCHEMA_REMEDY)


def _unknown_charset(what: str) -> TableRefused:
    remedy = "ALTER TABLE ... CONVERT TO CHARACTER SET utf8mb4 on the source, or exclude the table (tables.exclude)"
    return TableRefused(what, code="source.unsupported_table", remedy=remedy)


def _describe(table_map: TableMap, i: int) -> str:
    code = table_map.types[i]
    name = TypeCode(code).name if code in list(TypeCode) else f"type code {code}"
    return f"{name} with metadata {table_map.metadata[i]}"


def _charset(table_map: TableMap, i: int) -> tuple[str, str] | None:
    """(character set, collation) of a character, ENUM or SET column; None where the log does not say."""
    ids = table_map.enum_collations if table_map.types[i] in (TypeCode.ENUM, TypeCode.SET) else table_map.collations
    if ids is None or ids[i] == 0:
        return None
    found = charsets.collations().get(ids[i])
    if found is None:
        raise _unknown_charset(f"{table_map.name} has a column with collation {ids[i]}, which Lockstep does not know.")
    collation, charset = found
    return charset, collation


def _logged_type(table_map: TableMap, i: int) -> ColumnType:
    """The type, from the log alone."""
    code, metadata = table_map.types[i], table_map.metadata[i]
    unsigned = table_map.unsigned[i] if table_map.unsigned is not None else False
    if code in INTEGERS:
        return ColumnType(INTEGERS[TypeCode(code)], unsigned=unsigned)
    if code in (TypeCode.FLOAT, TypeCode.DOUBLE):
        return ColumnType(_PLAIN[TypeCode(code)], unsigned=unsigned)
    if code in _PLAIN:
        return ColumnType(_PLAIN[TypeCode(code)])
    if code == TypeCode.DECIMAL:
        return ColumnType("decimal", unsigned=unsigned, precision=metadata >> 8, scale=metadata & 255)
    if code == TypeCode.BIT:
        return ColumnType("bit", length=metadata)
    if code in _TEMPORAL:
        return ColumnType(_TEMPORAL[TypeCode(code)], fsp=metadata)
    if code == TypeCode.GEOMETRY:
        number = table_map.geometry_types[i] if table_map.geometry_types is not None else 0
        return ColumnType(_GEOMETRIES[number] if number < len(_GEOMETRIES) else "geometry")
    if code == TypeCode.VECTOR:
        return ColumnType("vector", length=table_map.vector_dimensions[i] if table_map.vector_dimensions else None)
    if code in (TypeCode.ENUM, TypeCode.SET):
        return _logged_members(table_map, i)
    return _logged_string(table_map, i)


def _logged_members(table_map: TableMap, i: int) -> ColumnType:
    charset, collation = _charset(table_map, i) or ("utf8mb4", "")
    labels = []
    for raw in table_map.labels[i] if table_map.labels is not None else ():
        label = charsets.decode(raw, charset)
        if label is None:
            raise _unknown_charset(
                f"Label {raw!r} of column {i} of {table_map.name} has character set {charset!r}, which Lockstep "
                "cannot convert exactly."
            )
        labels.append(label)
    base = "enum" if table_map.types[i] == TypeCode.ENUM else "set"
    return ColumnType(base, labels=tuple(labels), charset=charset, collation=collation)


def _logged_string(table_map: TableMap, i: int) -> ColumnType:
    code, metadata = table_map.types[i], table_map.metadata[i]
    found = _charset(table_map, i)
    if found is None and code in (*_STRING_NAMES, *_BLOBS, TypeCode.BLOB_COMPRESSED):
        raise _incomplete(f"The log does not give the character set of a column of {table_map.name}.")
    charset, collation = found or (charsets.BINARY, "")
    binary = charset == charsets.BINARY
    if code in _STRING_NAMES:
        name = _STRING_NAMES[TypeCode(code)][0 if binary else 1]
        length = metadata if binary else metadata // _BYTES_PER_CHARACTER.get(charset, 1)
    elif code in _BLOBS or code == TypeCode.BLOB_COMPRESSED:
        name = _BLOB_NAMES.get(metadata, ("longblob", "longtext"))[0 if binary else 1]
        return ColumnType(name) if binary else ColumnType(name, charset=charset, collation=collation)
    else:
        raise malformed(f"Column {i} of {table_map.name} is {_describe(table_map, i)}, which no server writes", "")
    if binary:
        return ColumnType(name, length=length)
    return ColumnType(name, length=length, charset=charset, collation=collation)


_STRING_NAMES = {
    TypeCode.STRING: ("binary", "char"), TypeCode.VARCHAR: ("varbinary", "varchar"),
    TypeCode.VAR_STRING: ("varbinary", "varchar"), TypeCode.VARCHAR_COMPRESSED: ("varbinary", "varchar"),
}  # fmt: skip


def fits(kind: ColumnType, table_map: TableMap, i: int) -> bool:
    """Whether a column of this type can be logged with this code and metadata."""
    code, metadata = table_map.types[i], table_map.metadata[i]
    base = kind.base
    if code in INTEGERS:
        return base == INTEGERS[TypeCode(code)] and _sign_fits(kind, table_map, i)
    if code == TypeCode.DECIMAL:
        return base == "decimal" and (kind.precision or 10) << 8 | (kind.scale or 0) == metadata
    if code in _PLAIN:
        return base == _PLAIN[TypeCode(code)]
    if code == TypeCode.BIT:
        return base == "bit" and (kind.length or 1) == metadata
    if code in _TEMPORAL:
        return base == _TEMPORAL[TypeCode(code)] and kind.fsp == metadata
    if code == TypeCode.GEOMETRY:
        return base in GEOMETRY_BASES
    if code == TypeCode.VECTOR:
        return base == "vector"
    if code in (TypeCode.ENUM, TypeCode.SET):
        return _members_fit(kind, table_map, i)
    return _string_fits(kind, table_map, i)


def _sign_fits(kind: ColumnType, table_map: TableMap, i: int) -> bool:
    return table_map.unsigned is None or table_map.unsigned[i] == kind.unsigned


def _members_fit(kind: ColumnType, table_map: TableMap, i: int) -> bool:
    is_enum = table_map.types[i] == TypeCode.ENUM
    if kind.base != ("enum" if is_enum else "set"):
        return False
    if table_map.labels is not None:
        charset = (_charset(table_map, i) or (kind.charset or "utf8mb4", ""))[0]
        if charsets.convertible(charset):
            return tuple(charsets.decode(raw, charset) for raw in table_map.labels[i]) == kind.labels
        return len(table_map.labels[i]) == len(kind.labels)
    count = len(kind.labels)
    size = (1 if count < 256 else 2) if is_enum else (count + 7) // 8 if count <= 32 else 8
    return size == table_map.metadata[i]


def _string_fits(kind: ColumnType, table_map: TableMap, i: int) -> bool:
    code, metadata, base = table_map.types[i], table_map.metadata[i], kind.base
    charset = _charset(table_map, i)
    is_text = base in TEXT_BASES
    if charset is not None and is_text and spell_out_utf8(charset[0]) != spell_out_utf8(kind.charset):
        return False
    if charset is not None and not is_text and charset[0] != charsets.BINARY:
        return False
    width = _BYTES_PER_CHARACTER.get(kind.charset, 1) if is_text else 1
    if code == TypeCode.STRING:
        if base in _FIXED_BINARY:
            return metadata == _FIXED_BINARY[base]
        return base in ("char", "binary") and (1 if kind.length is None else kind.length) * width == metadata
    if code in (TypeCode.VARCHAR, TypeCode.VAR_STRING):
        if base == "vector":
            return (kind.length or 0) * 4 == metadata
        return base in ("varchar", "varbinary") and (kind.length or 0) * width == metadata
    if code == TypeCode.VARCHAR_COMPRESSED:
        return base in ("varchar", "varbinary")
    if code in _BLOBS or code == TypeCode.BLOB_COMPRESSED:
        return base in _BLOB_NAMES.get(metadata, ("longblob", "longtext"))
    return False
