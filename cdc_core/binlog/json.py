"""MySQL's binary JSON to the text that the server prints.

Layout (MySQL sql-common/json_binary.h): a type byte, then the value. Small and large objects and arrays differ in the
width of their offsets (2 or 4 bytes): count, size in bytes, for objects a key entry each (offset, u16 length), a
value entry each (type, then the value itself where it fits, else its offset). Offsets count from the count.
Printing: sql-common/json_dom.cc (wrapper_to_string) and strings/dtoa.cc (my_gcvt).
Assumes nothing about the bytes: every read is checked, nesting is limited to the server's own 100 levels, and the
text is bounded by the bytes.
"""

from __future__ import annotations

import base64
import math
import re
import struct

from cdc_core.binlog import decimal

MAX_DEPTH = 100

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = range(4)
_LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(4, 13)
_OPAQUE = 15
_NUMBERS = {_INT16: "<h", _UINT16: "<H", _INT32: "<i", _UINT32: "<I", _INT64: "<q", _UINT64: "<Q", _DOUBLE: "<d"}
_LITERALS = {0: "null", 1: "true", 2: "false"}
_TYPE_DECIMAL, _TYPE_DATE, _TYPE_TIME, _TYPE_DATETIME, _TYPE_TIMESTAMP = 246, 10, 11, 12, 7

_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class JsonError(ValueError):
    """The bytes are not binary JSON."""


def json_text(raw: bytes) -> str:
    """The server's text of a JSON column's value. The server reads an empty value as null."""
    if not raw:
        return "null"
    printer = _Printer(len(raw))
    try:
        printer.value(raw[0], raw, 1, 0)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise JsonError(f"a JSON value ends too early or is not text: {error}") from error
    return "".join(printer.out)


def _take(raw: bytes, at: int, size: int) -> bytes:
    if at + size > len(raw):
        raise JsonError(f"a JSON value of {size} bytes, but only {len(raw) - at} are left")
    return raw[at : at + size]


def _length(raw: bytes, at: int) -> tuple[int, int]:
    """A length in 7 bits a byte, lowest first, up to 5 bytes; and the place after it."""
    size = 0
    for n in range(5):
        byte = raw[at + n]
        size |= (byte & 127) << (7 * n)
        if byte < 128:
            return size, at + n + 1
    raise JsonError("a JSON length of more than 5 bytes")


class _Printer:
    """Gathers the pieces of one text in `out`.

    No two members share bytes, so all of them together are at most as large as the whole: a value that needs more has
    offsets that point to the same bytes repeatedly, and might print without end.
    """

    def __init__(self, size: int) -> None:
        self.out: list[str] = []
        self._left = size

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise JsonError("members of a JSON value share bytes")

    def value(self, kind: int, raw: bytes, at: int, depth: int) -> None:
        self._spend(1)
        if kind <= _LARGE_ARRAY:
            if depth >= MAX_DEPTH:
                raise JsonError(f"JSON nested deeper than {MAX_DEPTH}")
            self._container(kind, raw, at, depth)
        elif kind == _LITERAL:
            if raw[at] not in _LITERALS:
                raise JsonError(f"JSON literal {raw[at]}")
            self.out.append(_LITERALS[raw[at]])
        elif kind == _DOUBLE:
            self.out.append(double_text(struct.unpack_from("<d", raw, at)[0]))
        elif kind in _NUMBERS:
            self.out.append(str(struct.unpack_from(_NUMBERS[kind], raw, at)[0]))
        elif kind == _STRING:
            self.out.append(quoted(self._sized(raw, at).decode()))
        elif kind == _OPAQUE:
            self.out.append(_opaque(raw[at], self._sized(raw, at + 1)))
        else:
            raise JsonError(f"JSON type {kind}")

    def _sized(self, raw: bytes, at: int) -> bytes:
        size, at = _length(raw, at)
        self._spend(size)
        return _take(raw, at, size)

    def _container(self, kind: int, raw: bytes, at: int, depth: int) -> None:
        large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
        is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
        width, code = (4, "<I") if large else (2, "<H")
        count = struct.unpack_from(code, raw, at)[0]
        size = struct.unpack_from(code, raw, at + width)[0]
        # Members of this container can neither pass its end nor reach back before it.
        body = _take(raw, at, size)
        keys = 2 * width
        values = keys + (count * (width + 2) if is_object else 0)
        if values + count * (width + 1) > size:
            raise JsonError(f"{count} members in {size} bytes of JSON")
        self.out.append("{" if is_object else "[")
        for n in range(count):
            if n:
                self.out.append(", ")
            if is_object:
                key_at = struct.unpack_from(code, body, keys + n * (width + 2))[0]
                key_size = struct.unpack_from("<H", body, keys + n * (width + 2) + width)[0]
                self._spend(key_size)
                self.out.append(quoted(_take(body, key_at, key_size).decode()))
                self.out.append(": ")
            entry = values + n * (width + 1)
            member = body[entry]
            if member in (_LITERAL, _INT16, _UINT16) or (large and member in (_INT32, _UINT32)):
                self.value(member, body, entry + 1, depth + 1)
            else:
                place = struct.unpack_from(code, body, entry + 1)[0]
                if place < values + count * (width + 1):
                    raise JsonError(f"a JSON member at {place}, inside the entries")
                self.value(member, body, place, depth + 1)
        self.out.append("}" if is_object else "]")


def quoted(text: str) -> str:
    """A JSON string as the server writes it: only quotes, backslashes and control characters are escaped."""
    return '"' + _ESCAPED.sub(lambda match: _SHORT_ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}", text) + '"'


def double_text(value: float) -> str:
    """The shortest digits that read back as `value`, with an exponent below 1e-15, and from 1e15 on where there is no
    fraction; an integral number without exponent ends in `.0`."""
    if not math.isfinite(value):
        raise JsonError(f"JSON holds {value}")
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    mantissa, exponent = f"{value!r}".lower().partition("e")[::2]
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    point = len(whole) + int(exponent or 0)
    digits = whole + fraction
    point -= len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    if point < -14 or (point > 15 and len(digits) <= point):
        tail = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}.0"
    return f"{sign}{digits[:point]}.{digits[point:]}"


def _opaque(field: int, raw: bytes) -> str:
    if field == _TYPE_DECIMAL:
        return _decimal(raw)
    if field in (_TYPE_DATE, _TYPE_TIME, _TYPE_DATETIME, _TYPE_TIMESTAMP):
        if len(raw) != 8:
            raise JsonError(f"a JSON temporal of {len(raw)} bytes")
        return f'"{_temporal(field, struct.unpack("<q", raw)[0])}"'
    return f'"base64:type{field}:{base64.b64encode(raw).decode()}"'


def _temporal(field: int, packed: int) -> str:
    """Packed as in my_time.cc: 24 bits of fraction; 17 bits of time; day 5, year * 13 + month 17."""
    sign = "-" if packed < 0 else ""
    packed = abs(packed)
    micro, seconds = packed & 0xFFFFFF, packed >> 24
    if field == _TYPE_TIME:
        return f"{sign}{seconds >> 12 & 0x3FF:02d}:{seconds >> 6 & 63:02d}:{seconds & 63:02d}.{micro:06d}"
    days, clock = seconds >> 17, seconds & 0x1FFFF
    date = f"{(days >> 5) // 13:04d}-{(days >> 5) % 13:02d}-{days & 31:02d}"
    if field == _TYPE_DATE:
        return date
    return f"{date} {clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{micro:06d}"


def _decimal(raw: bytes) -> str:
    """precision u8, scale u8, then the bytes of a DECIMAL column."""
    precision, scale = raw[0], raw[1]
    if not 1 <= precision <= 65 or scale > min(precision, 30):
        raise JsonError(f"a JSON decimal({precision},{scale})")
    try:
        return decimal.text(raw[2:], precision, scale)
    except ValueError as error:
        raise JsonError(f"a JSON decimal: {error}") from error
