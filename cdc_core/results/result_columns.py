"""The column definitions of a result set: what the server says that a value's bytes are.

Layout (dev.mysql.com/doc/dev/mysql-server/latest/, page Protocol::ColumnDefinition41): six length-encoded texts
(catalog, schema, table, its own name, column, its own name), length 12, then collation u16, length u32, type u8,
flags u16, decimals u8, two unused bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.binlog import charsets
from cdc_core.binlog.row_definition import INTEGERS
from cdc_core.binlog.table_map import TypeCode
from cdc_core.errors import TableRefused
from cdc_core.model.schema import ColumnType
from cdc_core.results import row_packets

_UNSIGNED = 32
_FIXED_PART = 13
_FIXED = {
    TypeCode.TINY: 1, TypeCode.SHORT: 2, TypeCode.YEAR: 2, TypeCode.INT24: 4, TypeCode.LONG: 4, TypeCode.LONGLONG: 8,
    TypeCode.FLOAT: 4, TypeCode.DOUBLE: 8,
}  # fmt: skip
_MOMENTS = frozenset({TypeCode.DATE, TypeCode.NEWDATE, TypeCode.DATETIME, TypeCode.TIMESTAMP})
_TEMPORAL = {
    TypeCode.DATE: "date", TypeCode.NEWDATE: "date", TypeCode.DATETIME: "datetime", TypeCode.TIMESTAMP: "timestamp",
    TypeCode.TIME: "time",
}  # fmt: skip
_SIMPLE = {
    TypeCode.FLOAT: "float", TypeCode.DOUBLE: "double", TypeCode.YEAR: "year", TypeCode.JSON: "json",
    TypeCode.GEOMETRY: "geometry", TypeCode.VECTOR: "vector",
}  # fmt: skip
STRINGS = frozenset({
    TypeCode.VARCHAR, TypeCode.VAR_STRING, TypeCode.STRING, TypeCode.BLOB, TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB,
    TypeCode.LONG_BLOB, TypeCode.ENUM, TypeCode.SET,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """code: a TypeCode. collation: its number. length: in bytes, as the server displays values. decimals: digits."""

    name: str
    code: int
    unsigned: bool
    collation: int
    length: int
    decimals: int

    @property
    def form(self) -> int:
        """How the kernel finds a value: a number of bytes, or a form of row_packets.py."""
        if self.code in _MOMENTS:
            return row_packets.MOMENT
        return (
            row_packets.DURATION if self.code == TypeCode.TIME else _FIXED.get(TypeCode(self.code), row_packets.SIZED)
        )

    @property
    def charset(self) -> str:
        """The character set of the value's bytes; 'binary' where they are not text."""
        return charsets.collations().get(self.collation, ("", ""))[1]


def parse(packet: bytes) -> ResultColumn:
    """Raises ValueError for bytes that are not a definition."""
    at, texts = 0, []
    for _ in range(6):
        size, at = _length(packet, at)
        if size > len(packet) - at:
            raise ValueError("a text ends after its packet")
        texts.append(packet[at : at + size])
        at += size
    rest = packet[at:]
    if len(rest) < _FIXED_PART or rest[0] < _FIXED_PART - 1:
        raise ValueError(f"{len(rest)} bytes after the names")
    code, flags = rest[7], int.from_bytes(rest[8:10], "little")
    return ResultColumn(
        texts[4].decode("utf-8", "replace"),
        TypeCode(code),
        bool(flags & _UNSIGNED),
        int.from_bytes(rest[1:3], "little"),
        int.from_bytes(rest[3:7], "little"),
        rest[10],
    )


def _length(packet: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer of up to three bytes, and the place after it."""
    if at >= len(packet):
        raise ValueError("a length after the end of its packet")
    first = packet[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3}.get(first)
    if width is None:
        raise ValueError(f"a length that begins with {first}")
    return int.from_bytes(packet[at + 1 : at + 1 + width], "little"), at + 1 + width


def type_of(definition: ResultColumn) -> ColumnType:
    """The declared type that a column with this definition would have. Raises Refused (source.unsupported_table)."""
    code = TypeCode(definition.code)
    if code in INTEGERS:
        return ColumnType(INTEGERS[code], unsigned=definition.unsigned)
    if code in _TEMPORAL:
        return ColumnType(_TEMPORAL[code], fsp=definition.decimals if code != TypeCode.DATE else 0)
    if code in _SIMPLE:
        return ColumnType(_SIMPLE[code])
    if code == TypeCode.DECIMAL:
        scale = definition.decimals
        precision = definition.length - bool(scale) - (not definition.unsigned)
        return ColumnType(
            "decimal", unsigned=definition.unsigned, precision=min(max(precision, scale, 1), 65), scale=scale
        )
    if code == TypeCode.BIT:
        return ColumnType("bit", length=definition.length)
    if code in STRINGS or code == TypeCode.NULL:
        if definition.charset == charsets.BINARY:
            return ColumnType("longblob")
        collation, charset = charsets.collations().get(definition.collation, ("", ""))
        return ColumnType("longtext", charset=charset, collation=collation)
    raise TableRefused(
        f"Column {definition.name!r} of the result has type {code.name}, which Lockstep does not support.",
        code="source.unsupported_table",
        remedy="select it as another type (CAST)",
    )
