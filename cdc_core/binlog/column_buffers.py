"""One column's values, located by scan.py, as one Arrow array of the schema's type.

Assumes spans inside the buffer (scan.py checks them) and a type that matches the wire's (row_columns.py checks it).
Keeps true (G3 of docs/guarantees.md): each value is exact, or null here with its exact text in `Literals`. Bytes that
are not text of their character set have no text: their literal is `0x` and their hex digits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.binlog import addresses, charsets, code_tables, decimal, json_kernels, kernels, temporal
from cdc_core.binlog.json import JsonError, json_text
from cdc_core.binlog.scan import Bytes, Ints, Longs
from cdc_core.binlog.table_map import TypeCode
from cdc_core.binlog.wire import malformed
from cdc_core.errors import Refused, TooManyBytes
from cdc_core.model.schema import BINARY_BASES, GEOMETRY_BASES, INTEGER_BYTES, TEXT_BASES, Column
from cdc_core.model.staged_columns import LITERAL_TYPE, LiteralEntries

Where = Callable[[int], str]
"""Position of the event that contains a row."""

MAX_COLUMN_BYTES = (1 << 31) - 1
"""Arrow's string and binary arrays have 32-bit offsets."""


@dataclass(frozen=True, slots=True)
class Literals:
    """row: int64, ascending. text: string array, the exact text of each of these rows' value."""

    row: Longs
    text: pa.StringArray


@dataclass(frozen=True, slots=True)
class _Values:
    """What every form of column needs: the column, its wire type, and the span of each value."""

    column: Column
    code: int
    metadata: int
    buffer: Bytes
    offset: Longs
    length: Ints
    where: Where

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        return self.length >= 0

    def raw(self, row: int) -> bytes:
        return self.buffer[self.offset[row] : self.offset[row] + self.length[row]].tobytes()

    def only(self, rows: Longs) -> _Values:
        return _Values(
            self.column, self.code, self.metadata, self.buffer, self.offset[rows], self.length[rows], self.where
        )


_Decoded = tuple[pa.Array, Literals | None]


def decode_column(
    column: Column, code: int, metadata: int, buffer: Bytes, offset: Longs, length: Ints, where: Where
) -> _Decoded:
    """The array (of `column.type.arrow`, one element per span) and the values it cannot hold."""
    values = _Values(column, code, metadata, buffer, offset, length, where)
    if code in (TypeCode.BLOB_COMPRESSED, TypeCode.VARCHAR_COMPRESSED):
        values = _unpacked(values)
    base = column.type.base
    if base in INTEGER_BYTES:
        return _integer(values), None
    if base in TEXT_BASES:
        return _text(values)
    if base in BINARY_BASES or base in GEOMETRY_BASES:
        return _binary(values)
    return _DECODERS[base](values)


def decode_fields(column: Column, buffer: Bytes, offset: Longs, length: Ints, where: Where) -> _Decoded:
    """As decode_column, for dates and times that are spelled out as fields (binary result sets), in UTC."""
    values = _Values(column, 0, 0, buffer, offset, length, where)
    if column.type.base == "time":
        return _temporal_text(values, temporal.TIME_FIELDS, temporal.TIME_TEXT, column.type.fsp), None
    kind = temporal.DATE_TEXT if column.type.base == "date" else temporal.DATETIME_TEXT
    return _moments(values, temporal.DATETIME_FIELDS, kind, column.type.fsp)


def text_column(out: Bytes, offset: Longs, length: Ints) -> pa.StringArray:
    """ASCII texts as a string array."""
    return _values_of(pa.string(), out, offset, length)[0]


def _validity(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _fixed(kind: pa.DataType, valid: npt.NDArray[np.bool_], data: npt.NDArray[np.generic]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(valid), [_validity(valid), pa.py_buffer(np.ascontiguousarray(data))])


def _little(values: _Values) -> npt.NDArray[np.uint64]:
    out = np.empty(len(values.offset), np.uint64)
    kernels.little(values.buffer, values.offset, values.length, out)
    return out


def _integer(values: _Values) -> pa.Array:
    kind = values.column.type.arrow
    raw = _little(values)
    if values.column.type.base == "mediumint" and not values.column.type.unsigned:
        raw = (raw ^ np.uint64(0x800000)) - np.uint64(0x800000)
    return _fixed(kind, values.valid, raw.astype(f"u{kind.bit_width // 8}"))


def _float(values: _Values) -> _Decoded:
    return _fixed(pa.float32(), values.valid, _little(values).astype(np.uint32)), None


def _double(values: _Values) -> _Decoded:
    return _fixed(pa.float64(), values.valid, _little(values)), None


def _year(values: _Values) -> _Decoded:
    raw = _little(values)
    return _fixed(pa.int16(), values.valid, np.where(raw == 0, 0, raw + 1900).astype(np.int16)), None


def _bit(values: _Values) -> _Decoded:
    out = np.empty(len(values.offset), np.uint64)
    kernels.big(values.buffer, values.offset, values.length, out)
    if values.column.type.arrow == pa.bool_():
        return _fixed(pa.bool_(), values.valid, np.packbits(out & np.uint64(1) > 0, bitorder="little")), None
    return _fixed(pa.uint64(), values.valid, out), None


def _decimal(values: _Values) -> _Decoded:
    precision, scale = values.metadata >> 8, values.metadata & 255
    groups = decimal.digit_groups(precision, scale)
    sizes, digits = np.array(groups.sizes, np.int64), np.array(groups.digits, np.int64)
    rows = len(values.offset)
    if precision <= 38:
        words = np.empty((rows, 2), np.uint64)
        bad = kernels.decimals(values.buffer, values.offset, values.length, sizes, digits, words)
        array = _fixed(pa.decimal128(precision, scale), values.valid, words)
    else:
        width = precision + 3
        size = np.empty(rows, np.int64)
        out = np.empty((rows, width), np.uint8)
        bad = kernels.decimal_text(
            values.buffer, values.offset, values.length, sizes, digits, groups.integer, size, out
        )
        array = _compact(out.reshape(-1), width, size, values.valid)
    if bad >= 0:
        size_bytes = len(values.raw(bad))
        raise malformed(f"Column {values.column.name!r}: its {size_bytes} bytes are not a DECIMAL", values.where(bad))
    return array, None


def _compact(out: Bytes, width: int, size: Longs, valid: npt.NDArray[np.bool_]) -> pa.StringArray:
    """Texts at out[i * width:] of `size` bytes each, as a string array."""
    offset = np.arange(len(size), dtype=np.int64) * width
    return _values_of(pa.string(), out, offset, np.where(valid, size, -1).astype(np.int32))[0]


def _values_of(
    kind: pa.DataType, buffer: Bytes, offset: Longs, length: Ints, padded: int | None = None
) -> tuple[pa.Array, bool]:
    """Bytes of all values as a string or binary array, `padded` with zeros to one size; and whether any is > 127."""
    valid = length >= 0
    sizes = np.where(valid, length if padded is None else np.maximum(length, padded), 0)
    ends = _ends(sizes)
    out = np.empty(int(ends[-1]), np.uint8)
    view = buffer.view()
    view.flags.writeable = False
    high = kernels.copy(view, offset, length, ends, out)
    buffers = [_validity(valid), pa.py_buffer(ends), pa.py_buffer(out)]
    return pa.Array.from_buffers(kind, len(length), buffers), bool(high)


def _ends(sizes: npt.NDArray[np.integer]) -> Ints:
    total = int(sizes.sum(dtype=np.int64))
    if total > MAX_COLUMN_BYTES:
        raise TooManyBytes(
            f"One column of a block has {total} bytes; an Arrow array holds {MAX_COLUMN_BYTES}.",
            remedy="lower limits.ring_mib: fewer rows are then decoded at once",
        )
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _binary(values: _Values) -> _Decoded:
    padded = values.column.type.length if values.column.type.base == "binary" else None
    return _values_of(pa.binary(), values.buffer, values.offset, values.length, padded)[0], None


def _text(values: _Values) -> _Decoded:
    charset = values.column.type.charset
    if charset in charsets.UTF8 or charset == charsets.BINARY:
        array, high = _values_of(pa.string(), values.buffer, values.offset, values.length)
        return (array, None) if not high or _is_utf8(array) else _each_text(values)
    table = charsets.code_table(charset)
    if table is not None:
        return _converted(values, table)
    raise charset_refused(values.column, values.where(0) if len(values.offset) else "")


def charset_refused(column: Column, where: str) -> Refused:
    return Refused(
        f"Column {column.name!r} has character set {column.type.charset!r}, which Lockstep cannot convert exactly.",
        where=where,
        code="source.unsupported_table",
        remedy="ALTER TABLE ... CONVERT TO CHARACTER SET utf8mb4 on the source, or exclude the table (tables.exclude)",
    )


def _is_utf8(array: pa.StringArray) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _converted(values: _Values, table: code_tables.CodeTable) -> _Decoded:
    size = np.empty(len(values.offset), np.int64)
    bad = code_tables.sizes(values.buffer, values.offset, values.length, table.form, table.points, size)
    ends = _ends(np.maximum(size, 0))
    out = np.empty(int(ends[-1]), np.uint8)
    code_tables.encode(values.buffer, values.offset, values.length, table.form, table.points, ends, out)
    buffers = [_validity(values.valid & (size >= 0)), pa.py_buffer(ends), pa.py_buffer(out)]
    array = pa.Array.from_buffers(pa.string(), len(size), buffers)
    return array, _hex_literals(values, np.flatnonzero(size < 0).tolist() if bad else [])


def _each_text(values: _Values) -> _Decoded:
    """Value by value in Python: columns in which some bytes are not text."""
    charset = values.column.type.charset
    texts: list[str | None] = []
    bad: list[int] = []
    for row in range(len(values.offset)):
        text = charsets.decode(values.raw(row), charset) if values.length[row] >= 0 else None
        if text is None and values.length[row] >= 0:
            bad.append(row)
        texts.append(text)
    return pa.array(texts, pa.string()), _hex_literals(values, bad)


def _hex_literals(values: _Values, rows: list[int]) -> Literals | None:
    if not rows:
        return None
    return Literals(np.array(rows, np.int64), pa.array(["0x" + values.raw(row).hex() for row in rows], pa.string()))


def _date(values: _Values) -> _Decoded:
    return _moments(values, temporal.DATE, temporal.DATE_TEXT, 0)


def _datetime(values: _Values) -> _Decoded:
    return _moments(values, temporal.DATETIME2, temporal.DATETIME_TEXT, values.column.type.fsp)


def _moments(values: _Values, form: int, kind: int, fsp: int) -> _Decoded:
    out = np.empty(len(values.offset), np.int64)
    bad = np.empty(len(values.offset), np.uint8)
    days = kind == temporal.DATE_TEXT
    found = temporal.dates(form, values.buffer, values.offset, values.length, days, out, bad)
    literals = None
    if found:
        rows = np.flatnonzero(bad)
        literals = Literals(rows, _temporal_text(values.only(rows), form, kind, fsp))
    array = _fixed(values.column.type.arrow, values.valid & (bad == 0), out.astype(np.int32) if days else out)
    return array, literals


def _temporal_text(values: _Values, form: int, kind: int, fsp: int) -> pa.StringArray:
    size = np.empty(len(values.offset), np.int64)
    out = np.empty(len(values.offset) * temporal.TEXT_WIDTH, np.uint8)
    temporal.text(form, kind, fsp, values.buffer, values.offset, values.length, size, out)
    return _compact(out, temporal.TEXT_WIDTH, size, values.valid)


def _timestamp(values: _Values) -> _Decoded:
    fsp = values.column.type.fsp
    out = np.empty(len(values.offset), np.int64)
    bad = np.empty(len(values.offset), np.uint8)
    unit = 10 ** (6 - 2 * ((fsp + 1) // 2))
    literals = None
    if temporal.timestamps(unit, values.buffer, values.offset, values.length, out, bad):
        rows = np.flatnonzero(bad)
        zero = "0000-00-00 00:00:00" + ("." + "0" * fsp if fsp else "")
        literals = Literals(rows, pa.array([zero]).take(pa.array(np.zeros(len(rows), np.int64))))
    return _fixed(values.column.type.arrow, values.valid & (bad == 0), out), literals


def _time(values: _Values) -> _Decoded:
    return _temporal_text(values, temporal.TIME2, temporal.TIME_TEXT, values.column.type.fsp), None


def _enum(values: _Values) -> _Decoded:
    """0 is '', the value of an invalid insert; labels count from 1. Where '' is a label too, an empty literal tells the
    two apart."""
    labels = values.column.type.labels
    index = _little(values)
    index[~values.valid] = 0
    if len(index) and int(index.max()) > len(labels):
        row = int(index.argmax())
        raise malformed(f"Column {values.column.name!r}: member {index[row]} of {len(labels)}", values.where(row))
    choice = pa.array(index.astype(np.int32), mask=~values.valid)
    literals = None
    if "" in labels and len(zero := np.flatnonzero(values.valid & (index == 0))):
        literals = Literals(zero, pa.array([""]).take(pa.array(np.zeros(len(zero), np.int64))))
    return pa.array(["", *labels], pa.string()).take(choice), literals


def _set(values: _Values) -> _Decoded:
    members = [label.encode() for label in values.column.type.labels]
    label = np.frombuffer(b"".join(members) or b"\0", np.uint8)
    label_end = np.concatenate([[0], np.cumsum([len(member) for member in members], dtype=np.int64)]).astype(np.int64)
    value, valid = _little(values), values.valid
    sizes = np.empty(len(value), np.int64)
    kernels.set_sizes(value, valid, label_end, sizes)
    if len(sizes) and sizes.min() < 0:
        row = int(sizes.argmin())
        raise malformed(f"Column {values.column.name!r}: {value[row]:#x} of {len(members)} members", values.where(row))
    ends = _ends(sizes)
    out = np.empty(int(ends[-1]), np.uint8)
    kernels.set_text(value, valid, label, label_end, ends, out)
    buffers = [_validity(valid), pa.py_buffer(ends), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(value), buffers), None


def _json(values: _Values) -> _Decoded:
    if values.code != TypeCode.JSON:
        return _text(values)
    array = _plain_json(values)
    if not _is_utf8(array):
        return _json_texts(values, np.flatnonzero(values.valid)), None
    declined = values.valid & array.is_null().to_numpy(zero_copy_only=False)
    if declined.any():
        array = pc.replace_with_mask(
            array, pa.array(declined), _json_texts(values, np.flatnonzero(declined)).drop_null()
        )
    return array, None


def _plain_json(values: _Values) -> pa.StringArray:
    """Null where there is no value, and where json_kernels declines one."""
    rows = len(values.offset)
    size = np.empty(rows, np.int64)
    # Usually a text is about as long as the binary form; the kernel declines what does not fit.
    out = np.empty(3 * int(values.length[values.valid].sum(dtype=np.int64)) + 64 * rows + 64, np.uint8)
    json_kernels.documents(values.buffer, values.offset, values.length, out, size, json_kernels.workspace())
    ends = _ends(np.maximum(size, 0))
    present = _validity(values.valid & (size >= 0))
    return pa.Array.from_buffers(pa.string(), rows, [present, pa.py_buffer(ends), pa.py_buffer(out)])


def _json_texts(values: _Values, rows: Longs) -> pa.StringArray:
    """Texts of these rows, null for others."""
    texts: list[str | None] = [None] * len(values.offset)
    for row in rows.tolist():
        try:
            texts[row] = json_text(values.raw(row))
        except JsonError as error:
            raise malformed(f"Column {values.column.name!r}: {error}", values.where(row)) from error
    return pa.array(texts, pa.string())


def _vector(values: _Values) -> _Decoded:
    sizes = np.where(values.valid, values.length, 0)
    if (sizes % 4).any():
        row = int(np.flatnonzero(sizes % 4)[0])
        raise malformed(f"Column {values.column.name!r}: a VECTOR of {sizes[row]} bytes", values.where(row))
    raw, _ = _values_of(pa.binary(), values.buffer, values.offset, values.length)
    ends = _ends(sizes) // 4
    floats = pa.Array.from_buffers(pa.float32(), int(ends[-1]), [None, raw.buffers()[2]])
    buffers = [_validity(values.valid), pa.py_buffer(ends)]
    return pa.Array.from_buffers(pa.list_(pa.float32()), len(sizes), buffers, children=[floats]), None


def _address(values: _Values) -> _Decoded:
    """MariaDB's UUID, INET6 and INET4: fixed bytes whose trailing zeros the log leaves out."""
    size = {"uuid": 16, "inet6": 16, "inet4": 4}[values.column.type.base]
    if len(values.length) and int(values.length.max()) > size:
        row = int(values.length.argmax())
        raise malformed(f"Column {values.column.name!r}: {values.length[row]} bytes, not {size}", values.where(row))
    raw, _ = _values_of(pa.binary(), values.buffer, values.offset, values.length, size)
    data = raw.buffers()[2]
    packed = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    starts = np.frombuffer(raw.buffers()[1], np.int32)[:-1].astype(np.int64)
    length = np.empty(len(starts), np.int64)
    out = np.empty(len(starts) * addresses.TEXT_WIDTH, np.uint8)
    kind = {"uuid": addresses.UUID, "inet6": addresses.INET6, "inet4": addresses.INET4}[values.column.type.base]
    addresses.text(kind, packed, starts, values.valid, length, out)
    return _compact(out, addresses.TEXT_WIDTH, length, values.valid), None


def _unpacked(values: _Values) -> _Values:
    """MariaDB's COMPRESSED columns: first byte 0: plain; else method << 4 (8: zlib), bit 3: raw deflate, bits 0-2:
    how many bytes big-endian hold the plain size; then the stream. An empty value is empty."""
    parts: list[bytes] = []
    length = np.full(len(values.length), -1, np.int32)
    for row in np.flatnonzero(values.valid):
        raw = values.raw(int(row))
        if raw:
            try:
                raw = _inflate(raw)
            except (ValueError, zlib.error) as error:
                raise malformed(f"Column {values.column.name!r} COMPRESSED: {error}", values.where(int(row))) from error
        parts.append(raw)
        length[row] = len(raw)
    sizes = np.where(length >= 0, length, 0).astype(np.int64)
    buffer = np.frombuffer(b"".join(parts) or b"\0", np.uint8)
    return _Values(values.column, values.code, values.metadata, buffer, np.cumsum(sizes) - sizes, length, values.where)


def _inflate(raw: bytes) -> bytes:
    head = raw[0]
    if head == 0:
        return raw[1:]
    if head >> 4 != 8:
        raise ValueError(f"method {head >> 4}")
    size = int.from_bytes(raw[1 : 1 + (head & 7)], "big")
    if size > MAX_COLUMN_BYTES:
        raise ValueError(f"{size} plain bytes")
    unpack = zlib.decompressobj(-zlib.MAX_WBITS if head & 8 else zlib.MAX_WBITS)
    plain = unpack.decompress(raw[1 + (head & 7) :], size + 1)
    if len(plain) != size:
        raise ValueError(f"{len(plain)} plain bytes, not {size}")
    return plain


_DECODERS: dict[str, Callable[[_Values], _Decoded]] = {
    "float": _float, "double": _double, "decimal": _decimal, "bit": _bit, "year": _year, "date": _date,
    "datetime": _datetime, "timestamp": _timestamp, "time": _time, "enum": _enum, "set": _set, "json": _json,
    "vector": _vector, "uuid": _address, "inet4": _address, "inet6": _address,
}  # fmt: skip


def literal_map(literals: list[tuple[str, Literals]], rows: int) -> pa.MapArray:
    """`_cdc_literal` of some rows, from the literals of their columns, by name."""
    if not literals:
        return pa.nulls(rows, LITERAL_TYPE)
    names = pa.array([name for name, _ in literals])
    number = np.repeat(np.arange(len(literals)), [len(found.row) for _, found in literals])
    row = np.concatenate([found.row for _, found in literals])
    text = pa.concat_arrays([found.text for _, found in literals])
    return LiteralEntries(row, names.take(pa.array(number)), text).array(rows)
