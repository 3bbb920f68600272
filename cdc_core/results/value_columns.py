"""How each column of a table is selected, and how its located values become the array that the stream makes of them.

What the stream decodes in the same bytes is decoded by the same functions (binlog/column_buffers.py): texts come in the
bytes of their own character set, since the reader turns the server's conversion off; integers, floats and BIT as they
are. Only dates, DECIMAL and YEAR have another form here. It must keep true that a value is decoded as the type that the
server announced for it, and that this is the column's type: `require_same`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.binlog import charsets, column_buffers, kernels
from cdc_core.binlog.column_buffers import Literals
from cdc_core.binlog.table_map import TypeCode
from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, TooManyBytes
from cdc_core.model.collations import spell_out_utf8
from cdc_core.model.schema import BINARY_BASES, GEOMETRY_BASES, INTEGER_BYTES, TEXT_BASES, Column, ColumnType
from cdc_core.mysql.connections import quote
from cdc_core.results.reading_faults import UnlikeDefinition, definition_changed, malformed
from cdc_core.results.result_columns import STRINGS, ResultColumn
from cdc_core.results.row_packets import Bytes, Ints, Located, Longs

_CODES: dict[str, frozenset[TypeCode]] = {
    "tinyint": frozenset({TypeCode.TINY}), "smallint": frozenset({TypeCode.SHORT}),
    "mediumint": frozenset({TypeCode.INT24}), "int": frozenset({TypeCode.LONG}),
    "bigint": frozenset({TypeCode.LONGLONG}), "float": frozenset({TypeCode.FLOAT}),
    "double": frozenset({TypeCode.DOUBLE}), "decimal": frozenset({TypeCode.DECIMAL}),
    "bit": frozenset({TypeCode.BIT}), "year": frozenset({TypeCode.YEAR}),
    "date": frozenset({TypeCode.DATE, TypeCode.NEWDATE}), "datetime": frozenset({TypeCode.DATETIME}),
    "timestamp": frozenset({TypeCode.TIMESTAMP}), "time": frozenset({TypeCode.TIME}),
    "json": frozenset({TypeCode.JSON}), "vector": frozenset({TypeCode.VECTOR, TypeCode.VAR_STRING}),
    **dict.fromkeys(GEOMETRY_BASES, frozenset({TypeCode.GEOMETRY})),
}  # fmt: skip
_INTEGERS = frozenset().union(*(_CODES[base] for base in INTEGER_BYTES))
"""MariaDB makes a number as narrow as it finds enough. It announces a VECTOR as a binary string."""
_UTF8 = ColumnType("longtext", charset="utf8mb4")
_NUMBER = ColumnType("bigint", unsigned=True)


@dataclass(frozen=True, slots=True)
class Selected:
    """column: of the table. expression: how it is selected. wire: the type whose form its values have then."""

    column: Column
    expression: str
    wire: ColumnType

    @property
    def by_number(self) -> bool:
        """An ENUM or SET of which the server is asked for the number instead of the text."""
        return self.wire == _NUMBER and self.column.type.base in ("enum", "set")


def selected(column: Column) -> Selected:
    """Raises Refused (source.unsupported_table)."""
    kind, name = column.type, quote(column.name)
    assert kind.arrow is not None  # it refuses a type that is not supported
    base = kind.base
    if base in ("enum", "set") and (kind.charset in ("", charsets.BINARY) or (base == "enum" and "" in kind.labels)):
        # '' may be a label and the error value too: only the number tells them apart. Binary labels are not text.
        return Selected(column, f"CAST({name} AS UNSIGNED)", _NUMBER)
    if base in TEXT_BASES | {"enum", "set"}:
        if not charsets.convertible(kind.charset):
            raise column_buffers.charset_refused(column, "")
        return Selected(column, name, ColumnType("longtext", charset=kind.charset))
    if base in ("uuid", "inet4", "inet6"):
        return Selected(column, name, _UTF8)
    return Selected(column, name, kind)


def require_same(selection: Sequence[Selected], definitions: Sequence[ResultColumn], *, where: str) -> None:
    """Raises UnlikeDefinition (table.redefined) if the server announces another type than the table had."""
    if len(selection) != len(definitions):
        how = f"it has {len(definitions)} columns, not {len(selection)}"
        raise definition_changed(how, where=where, kind=UnlikeDefinition)
    for column, definition in zip(selection, definitions, strict=True):
        difference = _difference(column, definition)
        if difference:
            how = f"column {column.column.name!r} has {difference}"
            raise definition_changed(how, where=where, kind=UnlikeDefinition)


def _difference(column: Selected, definition: ResultColumn) -> str:
    kind, base = column.wire, column.wire.base
    code = TypeCode(definition.code)
    if column.by_number:
        return "" if code in _INTEGERS else f"type {code.name}, not a number"
    if code not in _CODES.get(base, STRINGS):
        return f"type {code.name}, not {base}"
    if base in INTEGER_BYTES and definition.unsigned != kind.unsigned:
        return "another sign"
    if base in ("time", "datetime", "timestamp") and definition.decimals != kind.fsp:
        return f"{definition.decimals} fractional digits, not {kind.fsp}"
    if base == "decimal" and definition.decimals != (kind.scale or 0):
        return f"{definition.decimals} digits after the point, not {kind.scale}"
    if (base in BINARY_BASES or (code == TypeCode.VAR_STRING and base == "vector")) and (
        definition.charset != charsets.BINARY
    ):
        return f"character set {definition.charset}"
    own = column.column.type.charset
    if base in TEXT_BASES and own and spell_out_utf8(definition.charset) != spell_out_utf8(own):
        return f"character set {definition.charset}, not {own}"
    return ""


Where = Callable[[int], str]
_Decoded = tuple[pa.Array, Literals | None]


def decode(chosen: Selected, located: Located, at: int, where: str) -> _Decoded:
    """The array of the column's type for the column with index `at` of the located rows, and what it cannot hold.

    Raises RetryLater (connection.unreachable, table.redefined) and Refused (source.unsupported_table,
    source.too_large).
    """
    column = Column(chosen.column.name, chosen.wire)
    offset, length = located.offset[at], located.length[at]

    def place(_: int) -> str:
        return where

    try:
        if chosen.by_number:
            _require_labels(chosen, located, at, where)
            return column_buffers.decode_column(chosen.column, 0, 0, located.buffer, offset, length, place)
        base = chosen.wire.base
        if base == "json" and not length.all():
            raise _json_cut_off(chosen, where)
        if base in ("date", "datetime", "timestamp", "time"):
            return column_buffers.decode_fields(column, located.buffer, offset, length, place)
        if base == "decimal":
            return _decimal(chosen, located.buffer, offset, length, where), None
        if base in _INSTEAD:
            column = Column(
                column.name, _INSTEAD[base] if base != "mediumint" else ColumnType("int", chosen.wire.unsigned)
            )
        array, literals = column_buffers.decode_column(column, 0, 0, located.buffer, offset, length, place)
    except (DataAtRisk, InternalError) as error:
        raise _translated(error, chosen, where) from error
    if chosen.column.type.base == "enum":
        _require_known(array, chosen, where)
    return array, literals


# YEAR and MEDIUMINT come in the form of these, JSON as text.
_INSTEAD = {"year": ColumnType("smallint"), "json": _UTF8, "mediumint": ColumnType("int")}


def _json_cut_off(column: Selected, where: str) -> Refused:
    """MySQL sends an empty text, with a mere warning, for a document whose text is longer than max_allowed_packet. No
    document is an empty text."""
    return Refused(
        f"The server sent no text for a JSON document in column {column.column.name!r}: it is longer than "
        "max_allowed_packet.",
        where=where,
        code="source.too_large",
        remedy="SET GLOBAL max_allowed_packet = 1073741824 on the server, and write it into the option file; then "
        "run again",
    )


def _translated(error: LockstepError, column: Selected, where: str) -> LockstepError:
    if isinstance(error, TooManyBytes):
        return Refused(
            f"Column {column.column.name!r} has a value of more than 2 GiB as UTF-8, which no Arrow array holds.",
            where=where,
            code="source.too_large",
            remedy="exclude the table (tables.exclude), or shorten the value",
        )
    return malformed(error.what.rstrip("."), where=where)


def _require_labels(column: Selected, located: Located, at: int, where: str) -> None:
    """The numbers of labels are the definition's only as long as it has that many."""
    numbers_ = np.empty(located.rows, np.uint64)
    kernels.little(located.buffer, located.offset[at], located.length[at], numbers_)
    count = len(column.column.type.labels)
    limit = count if column.column.type.base == "enum" else (1 << count) - 1
    valid = located.length[at] >= 0
    if valid.any() and int(numbers_[valid].max()) > limit:
        raise definition_changed(f"column {column.column.name!r} has a label beyond its {count}", where=where)


def _require_known(array: pa.StringArray, column: Selected, where: str) -> None:
    labels = pa.array(["", *column.column.type.labels], pa.string())
    unknown = pc.any(pc.and_(pc.is_valid(array), pc.invert(pc.is_in(array, value_set=labels)))).as_py()
    if unknown:
        raise definition_changed(f"column {column.column.name!r} has a label that it did not have", where=where)


def _decimal(column: Selected, buffer: Bytes, offset: Longs, length: Ints, where: str) -> pa.Array:
    kind = column.column.type
    precision, scale = kind.precision or 10, kind.scale or 0
    text = column_buffers.text_column(buffer, offset, length)
    if precision > 38:  # without the zeros that ZEROFILL puts before a number
        return pc.replace_substring_regex(text, r"^0+(\d)", r"\1")
    try:
        return text.cast(pa.decimal128(precision, scale))
    except ValueError:
        raise malformed(f"column {column.column.name!r} has a text that is not a {kind}", where=where) from None
