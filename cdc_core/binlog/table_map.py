"""TABLE_MAP: the shape of the row images that follow, and as much of the table's definition as the server logs.

Layout (MySQL libs/mysql/binlog/event/rows_event.h): table id u48, flags u16, database (length u8, NUL), table (the
same), column count lenenc, a type byte per column, metadata (lenenc size, then 0 to 2 bytes per column), a bitmap
of nullable columns, then optional fields: type u8, length lenenc, value (Optional_metadata_field_type in that file).
Keeps true: a field that cannot be read to its end is an error; a field of unknown type is left unread, since the fields
are optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from cdc_core.binlog.event_headers import Event
from cdc_core.binlog.wire import WireCursor


class TypeCode(IntEnum):
    """Column type codes of a table map (MySQL include/field_types.h; 140, 141: MariaDB)."""

    DECIMAL_OLD = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    DECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


_NUMERIC = frozenset({
    TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG, TypeCode.FLOAT,
    TypeCode.DOUBLE, TypeCode.DECIMAL, TypeCode.YEAR, TypeCode.DECIMAL_OLD,
})  # fmt: skip
_ONE_BYTE = frozenset({
    TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.TIMESTAMP2, TypeCode.DATETIME2, TypeCode.TIME2, TypeCode.BLOB,
    TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB, TypeCode.JSON, TypeCode.GEOMETRY, TypeCode.VECTOR,
    TypeCode.BLOB_COMPRESSED,
})  # fmt: skip
_TWO_BYTES = frozenset({
    TypeCode.VARCHAR, TypeCode.VAR_STRING, TypeCode.VARCHAR_COMPRESSED, TypeCode.BIT, TypeCode.DECIMAL,
    TypeCode.STRING, TypeCode.ENUM, TypeCode.SET,
})  # fmt: skip
_CHARACTER = frozenset({
    TypeCode.VARCHAR, TypeCode.VAR_STRING, TypeCode.VARCHAR_COMPRESSED, TypeCode.STRING, TypeCode.TINY_BLOB,
    TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB, TypeCode.BLOB, TypeCode.BLOB_COMPRESSED,
})  # fmt: skip


_COUNTED_TOO = {False: frozenset({TypeCode.VECTOR}), True: frozenset({TypeCode.GEOMETRY})}
"""Types that MySQL (False) and MariaDB (True) also count as character columns; to them these are BLOBs."""


@dataclass(frozen=True, slots=True)
class TableMap:
    """types, metadata: one element a column. A STRING that is really an ENUM or SET has that code here; metadata
    is the number in the type's own terms: max bytes (character types), prefix width (BLOB kinds), precision << 8 |
    scale (DECIMAL), bits (BIT), digits (temporals), width (FLOAT, DOUBLE, ENUM, SET), else 0.

    The optional fields are None where the server did not log them:
    unsigned: per column, False for what is not numeric. collations: id per character column, else 0.
    enum_collations: the same for ENUM and SET. labels: raw bytes of ENUM and SET members, () for other columns.
    names: of all columns. key: column indices in key-part order.
    geometry_types, vector_dimensions: per column, 0 where it does not apply.
    """

    table_id: int
    flags: int
    database: str
    table: str
    types: tuple[int, ...]
    metadata: tuple[int, ...]
    nullable: tuple[bool, ...]
    unsigned: tuple[bool, ...] | None = None
    collations: tuple[int, ...] | None = None
    enum_collations: tuple[int, ...] | None = None
    labels: tuple[tuple[bytes, ...], ...] | None = None
    names: tuple[str, ...] | None = None
    key: tuple[int, ...] | None = None
    geometry_types: tuple[int, ...] | None = None
    vector_dimensions: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def columns(self) -> int:
        return len(self.types)


def table_name(event: Event) -> tuple[str, str]:
    """Database and table, nothing else: a table that is not captured must not be able to stop the stream."""
    read = event.cursor()
    read.take(8)
    database = read.name(read.zero_terminated(read.u8()))
    return database, read.name(read.zero_terminated(read.u8()))


def parse_table_map(event: Event, *, mariadb: bool) -> TableMap:
    """The whole event, optional fields included. mariadb: it counts the columns of fields 2 and 3 differently."""
    read = event.cursor()
    table_id, flags = read.uint(6), read.uint(2)
    database = read.name(read.zero_terminated(read.u8()))
    table = read.name(read.zero_terminated(read.u8()))
    count = read.lenenc()
    raw_types = read.take(count)
    block = WireCursor(read.take(read.lenenc()), f"the metadata of {event.name} {database}.{table}", event.where)
    pairs = [_type_and_metadata(code, block) for code in raw_types]
    block.end()
    types = tuple(code for code, _ in pairs)
    bitmap = read.take((count + 7) // 8)
    nullable = tuple(bool(bitmap[i >> 3] >> (i & 7) & 1) for i in range(count))
    optional: dict[int, bytes] = {}
    while read.left:
        kind = read.u8()
        optional[kind] = read.take(read.lenenc())
    fields = _Fields(types, optional, f"{event.name} {database}.{table}", event.where)
    return TableMap(
        table_id,
        flags,
        database,
        table,
        types,
        tuple(number for _, number in pairs),
        nullable,
        unsigned=fields.unsigned(),
        collations=fields.collations(2, 3, _CHARACTER, _COUNTED_TOO[mariadb]),
        enum_collations=fields.collations(10, 11, frozenset({TypeCode.ENUM, TypeCode.SET})),
        labels=fields.labels(),
        names=fields.names(),
        key=fields.key(),
        geometry_types=fields.numbers(7, TypeCode.GEOMETRY),
        vector_dimensions=fields.numbers(13, TypeCode.VECTOR),
    )


def _type_and_metadata(code: int, read: WireCursor) -> tuple[int, int]:
    if code == TypeCode.STRING:
        # The first byte holds the real type; for CHAR its bits 4 and 5, inverted, are bits 8 and 9 of the length.
        first, second = read.u8(), read.u8()
        if first & 0x30 != 0x30:
            return TypeCode.STRING, second | (first & 0x30 ^ 0x30) << 4
        return (first, second) if first in (TypeCode.ENUM, TypeCode.SET) else (TypeCode.STRING, second)
    if code == TypeCode.DECIMAL:
        precision = read.u8()
        return code, precision << 8 | read.u8()
    if code == TypeCode.BIT:
        bits = read.u8()
        return code, bits + 8 * read.u8()
    if code in (TypeCode.ENUM, TypeCode.SET):
        read.u8()
        return code, read.u8()
    if code in _TWO_BYTES:
        return code, read.uint(2)
    return code, read.u8() if code in _ONE_BYTE else 0


class _Fields:
    """The optional fields of one table map, read against its column types."""

    def __init__(self, types: tuple[int, ...], raw: Mapping[int, bytes], what: str, where: str) -> None:
        self.types = types
        self.raw = raw
        self.what = what
        self.where = where

    def _cursor(self, kind: int) -> WireCursor | None:
        value = self.raw.get(kind)
        return None if value is None else WireCursor(value, f"field {kind} of {self.what}", self.where)

    def unsigned(self) -> tuple[bool, ...] | None:
        """A bit per numeric column, highest first."""
        read = self._cursor(1)
        if read is None:
            return None
        columns = [i for i, code in enumerate(self.types) if code in _NUMERIC]
        bits = read.take((len(columns) + 7) // 8)
        read.end()
        signs = [False] * len(self.types)
        for n, i in enumerate(columns):
            signs[i] = bool(bits[n >> 3] >> (7 - (n & 7)) & 1)
        return tuple(signs)

    def collations(
        self, default: int, each: int, kinds: frozenset[TypeCode], too: frozenset[TypeCode] = frozenset()
    ) -> tuple[int, ...] | None:
        """Either a default and exceptions (index among the columns of these kinds, id), or an id per such column.

        too: kinds that are counted with them, without a character set.
        """
        kind = default if default in self.raw else each
        read = self._cursor(kind)
        if read is None:
            return None
        columns = [i for i, code in enumerate(self.types) if code in kinds or code in too]
        ids = [0] * len(self.types)
        if kind == default:
            base = read.lenenc()
            for i in columns:
                ids[i] = base
            while read.left:
                index = read.lenenc()
                if index >= len(columns):
                    raise read.error(f"a collation for character column {index} of {len(columns)}")
                ids[columns[index]] = read.lenenc()
        else:
            for i in columns:
                ids[i] = read.lenenc()
            read.end()
        for i, code in enumerate(self.types):
            if code not in kinds:
                ids[i] = 0
        return tuple(ids)

    def labels(self) -> tuple[tuple[bytes, ...], ...] | None:
        """Field 5 for SETs, 6 for ENUMs: per column a count, then each label with its length."""
        if 5 not in self.raw and 6 not in self.raw:
            return None
        found: list[tuple[bytes, ...]] = [()] * len(self.types)
        for kind, code in ((5, TypeCode.SET), (6, TypeCode.ENUM)):
            read = self._cursor(kind)
            if read is None:
                continue
            for i, column in enumerate(self.types):
                if column == code:
                    count = read.lenenc()
                    if count > read.left:
                        raise read.error(f"{count} labels")
                    found[i] = tuple(read.take(read.lenenc()) for _ in range(count))
            read.end()
        return tuple(found)

    def names(self) -> tuple[str, ...] | None:
        read = self._cursor(4)
        if read is None:
            return None
        names = tuple(read.name(read.take(read.lenenc())) for _ in self.types)
        read.end()
        return names

    def key(self) -> tuple[int, ...] | None:
        """Field 8: column indices; field 9: pairs of index and prefix length."""
        read = self._cursor(8) or self._cursor(9)
        if read is None:
            return None
        columns = []
        while read.left:
            columns.append(read.lenenc())
            if 8 not in self.raw:
                read.lenenc()
            if columns[-1] >= len(self.types):
                raise read.error(f"column {columns[-1]} of {len(self.types)} in the key")
        return tuple(columns)

    def numbers(self, kind: int, code: TypeCode) -> tuple[int, ...] | None:
        read = self._cursor(kind)
        if read is None:
            return None
        found = tuple(read.lenenc() if column == code else 0 for column in self.types)
        read.end()
        return found
