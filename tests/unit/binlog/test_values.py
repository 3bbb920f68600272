"""Single forms of values: whatever is encoded as the servers document it comes back equal."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_core.binlog import decimal
from cdc_core.binlog.charsets import code_table, decode
from cdc_core.binlog.column_buffers import decode_column
from cdc_core.binlog.json import JsonError, double_text, json_text
from cdc_core.binlog.json_diff import patched
from cdc_core.binlog.table_map import TypeCode
from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.schema import Column, ColumnType
from tests.lab.refusals import raises

_PROPERTY = settings(max_examples=150, deadline=None)


def column_of(kind: ColumnType, code: int, metadata: int, values: Sequence[bytes | None]) -> tuple[list[Any], Any]:
    """The values and the literals of a column with these bytes; None is a null."""
    sizes = np.array([len(value) if value is not None else 0 for value in values], np.int64)
    buffer = np.frombuffer(b"".join(value or b"" for value in values) or b"\0", np.uint8)
    length = np.array([-1 if value is None else len(value) for value in values], np.int32)
    array, literals = decode_column(
        Column("v", kind), code, metadata, buffer, np.cumsum(sizes) - sizes, length, lambda row: f"row {row}"
    )
    array.validate(full=True)
    return array.to_pylist(), literals


def decimal_bytes(value: Decimal, precision: int, scale: int) -> bytes:
    """The layout of reference manuals, done digit by digit: the decoder's opposite."""
    sizes, digits, _ = decimal.digit_groups(precision, scale)
    number = abs(int(value.scaleb(scale)))
    text = f"{number:0{precision}d}"
    out, at = b"", 0
    for size, count in zip(sizes, digits, strict=True):
        out += int(text[at : at + count]).to_bytes(int(size), "big")
        at += count
    out = bytes([out[0] ^ 0x80]) + out[1:]
    return bytes(byte ^ 0xFF for byte in out) if value < 0 else out


@st.composite
def decimals(draw: st.DrawFn) -> tuple[int, int, list[Decimal]]:
    precision = draw(st.integers(1, 65))
    scale = draw(st.integers(0, min(30, precision)))
    top = 10**precision - 1
    numbers = draw(st.lists(st.integers(-top, top), min_size=1, max_size=5))
    import decimal

    with decimal.localcontext() as context:
        context.prec = 70
        return precision, scale, [Decimal(number).scaleb(-scale) for number in [*numbers, top, -top, 0]]


@_PROPERTY
@given(decimals())
def test_a_decimal_of_any_size_comes_back_digit_by_digit(case: tuple[int, int, list[Decimal]]) -> None:
    import decimal

    with decimal.localcontext() as context:
        context.prec = 70
        precision, scale, numbers = case
        raw: list[bytes | None] = [decimal_bytes(number, precision, scale) for number in numbers]
        kind = ColumnType("decimal", precision=precision, scale=scale)
        found, _ = column_of(kind, TypeCode.DECIMAL, precision << 8 | scale, [None, *raw])
        shown = [f"{number:f}" for number in numbers]
        assert [value if isinstance(value, str) else f"{value:f}" for value in found[1:]] == shown
        assert found[0] is None


@pytest.mark.parametrize(("precision", "scale"), [(9, 0), (40, 0), (10, 2), (65, 30)])
def test_a_decimal_with_more_in_a_group_than_its_digits_stops(precision: int, scale: int) -> None:
    _, digits, _ = decimal.digit_groups(precision, scale)
    raw = b"\xff" * len(decimal_bytes(Decimal(0), precision, scale))
    assert sum(digits) == precision
    kind = ColumnType("decimal", precision=precision, scale=scale)
    with pytest.raises(DataAtRisk, match="not a DECIMAL"):
        column_of(kind, TypeCode.DECIMAL, precision << 8 | scale, [None, raw])


@_PROPERTY
@given(st.integers(0, 6), st.lists(st.integers(-3020399_999999, 3020399_999999), min_size=1))
@example(1, [-900000])
def test_a_time_comes_back_with_sign_hours_and_exactly_its_digits(fsp: int, times_us: list[int]) -> None:
    unit = 10 ** (6 - fsp)
    size = (fsp + 1) // 2
    raw: list[bytes | None] = []
    shown: list[str | None] = []
    for time_us in [time_us - math.fmod(time_us, unit) for time_us in times_us]:
        us = abs(int(time_us))
        seconds, fraction = divmod(us, 1_000_000)
        packed = (seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60) << 8 * size
        packed |= fraction // 10 ** (6 - 2 * size)
        packed = (-packed if time_us < 0 else packed) + (0x800000 << 8 * size)
        raw.append(packed.to_bytes(3 + size, "big"))
        sign = "-" if time_us < 0 else ""
        digits = f".{fraction:06d}"[: fsp + 1] if fsp else ""
        shown.append(f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{digits}")
    found, _ = column_of(ColumnType("time", fsp=fsp), TypeCode.TIME2, fsp, [*raw, None])
    assert found == [*shown, None]


def datetime2(year: int, month: int, day: int, hour: int, minute: int, second: int, us: int, fsp: int) -> bytes:
    size = (fsp + 1) // 2
    packed = ((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second
    return (packed + 0x8000000000).to_bytes(5, "big") + (us // 10 ** (6 - 2 * size)).to_bytes(size, "big")


@_PROPERTY
@given(st.integers(0, 6), st.lists(st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)), min_size=1))
def test_a_datetime_comes_back_to_the_last_of_its_digits(fsp: int, moments: list[dt.datetime]) -> None:
    unit = 10 ** (6 - fsp)
    moments = [moment.replace(microsecond=moment.microsecond // unit * unit) for moment in moments]
    raw = [datetime2(m.year, m.month, m.day, m.hour, m.minute, m.second, m.microsecond, fsp) for m in moments]
    found, literals = column_of(ColumnType("datetime", fsp=fsp), TypeCode.DATETIME2, fsp, raw)
    assert found == moments
    assert literals is None
    days = [(m.year << 9 | m.month << 5 | m.day).to_bytes(3, "little") for m in moments]
    assert column_of(ColumnType("date"), TypeCode.DATE, 0, days)[0] == [m.date() for m in moments]


@_PROPERTY
@given(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31), st.integers(0, 6))
@example(2024, 2, 30, 3)
@example(1900, 2, 29, 0)
@example(0, 1, 1, 6)
def test_a_date_is_a_moment_or_a_literal_and_never_both(year: int, month: int, day: int, fsp: int) -> None:
    try:
        moment: dt.datetime | None = dt.datetime(year, month, day, 1, 2, 3)
    except ValueError:
        moment = None
    raw = datetime2(year, month, day, 1, 2, 3, 0, fsp)
    found, literals = column_of(ColumnType("datetime", fsp=fsp), TypeCode.DATETIME2, fsp, [None, raw])
    assert found == [None, moment]
    if moment is None:
        assert literals.row.tolist() == [1]
        digits = "." + "0" * fsp if fsp else ""
        assert literals.text.to_pylist() == [f"{year:04d}-{month:02d}-{day:02d} 01:02:03{digits}"]
    else:
        assert literals is None


@pytest.mark.parametrize("charset", ["latin1", "ascii", "cp1251", "greek", "koi8u", "hebrew"])
def test_each_code_of_a_single_byte_set_is_its_character_or_a_literal(charset: str) -> None:
    raw = [bytes([code]) for code in range(256)]
    found, literals = column_of(ColumnType("varchar", length=1, charset=charset), TypeCode.VARCHAR, 1, raw)
    points = enumerate(code_table(charset).points.tolist())
    assert found == [chr(point) if point or not code else None for code, point in points]
    gaps = [code for code in range(256) if found[code] is None]
    assert (literals.row.tolist() if literals else []) == gaps
    assert (literals.text.to_pylist() if literals else []) == [f"0x{code:02x}" for code in gaps]
    assert [found[code] for code in range(32, 127)] == [chr(code) for code in range(32, 127)]


def test_bytes_that_are_no_utf8_are_a_literal_and_the_rest_of_the_column_is_text() -> None:
    values = [b"a", None, b"\xff\xfe", "é".encode()]
    found, literals = column_of(ColumnType("varchar", length=9, charset="utf8mb4"), TypeCode.VARCHAR, 36, values)
    assert found == ["a", None, None, "é"]
    assert (literals.row.tolist(), literals.text.to_pylist()) == ([2], ["0xfffe"])


@pytest.mark.parametrize(
    ("charset", "raw", "text"),
    [
        ("gbk", b"a\xb0\xa1", "a啊"),
        ("gbk", b"\xb0", None),
        ("ujis", b"\x8f\xb0\xa1\x8e\xb1", "丂ｱ"),
        ("ujis", b"\x8f\xb0", None),
        ("gb18030", b"\x90\x30\x81\x30\xe3\x32\x9a\x35z", "\U00010000\U0010ffffz"),
        ("gb18030", b"\xe3\x32\x9a\x36", None),
        ("gb18030", b"\x84\x31\xa4", None),
        ("gb18030", b"\x81\x30\x81\x3a", None),
        ("sjis", b"\\~\xb1\x82\xa0", "\\~ｱあ"),
        ("ucs2", b"\xd8\x3d\xde\x00", None),
        ("utf16", b"\xd8\x3d\xde\x00", "😀"),
        ("utf16", b"\xd8\x3d\x00\x41", None),
        ("utf16", b"\xde\x00", None),
        ("utf16le", b"A\x00\x3d", None),
        ("utf32", b"\x00\x00\xd8\x00", None),
        ("utf32", b"\x00\x11\x00\x00", None),
        ("big5", b"", ""),
    ],
)  # fmt: skip
def test_a_text_of_a_wide_set_is_converted_or_a_literal(charset: str, raw: bytes, text: str | None) -> None:
    assert decode(raw, charset) == text
    kind = ColumnType("varchar", length=9, charset=charset)
    found, literals = column_of(kind, TypeCode.VARCHAR, 36, [b"", raw, None, raw])
    assert found == ["", text, None, text]
    assert (literals.text.to_pylist() if literals else []) == ([f"0x{raw.hex()}"] * 2 if text is None else [])


def test_a_character_set_that_is_not_converted_exactly_is_refused() -> None:
    with raises(Refused, "source.unsupported_table") as refused:
        column_of(ColumnType("varchar", length=9, charset="utf7"), TypeCode.VARCHAR, 18, [b"a"])
    assert "utf8mb4" in refused.value.remedy


def test_a_member_that_the_definition_lacks_stops() -> None:
    with pytest.raises(DataAtRisk, match="member 3 of 2"):
        column_of(ColumnType("enum", labels=("a", "b")), TypeCode.ENUM, 1, [b"\x01", b"\x03"])
    with pytest.raises(DataAtRisk, match="0x4 of 2 members"):
        column_of(ColumnType("set", labels=("a", "b")), TypeCode.SET, 1, [b"\x01", b"\x04"])


def test_a_vector_of_broken_floats_stops() -> None:
    with pytest.raises(DataAtRisk, match="VECTOR of 5 bytes"):
        column_of(ColumnType("vector"), TypeCode.VECTOR, 4, [b"12345"])


# JSON ---------------------------------------------------------------------------------------------------------------


def json_binary(value: Any) -> bytes:
    """A small document as MySQL stores it: small objects and arrays only, numbers not inlined but int16."""
    kind, raw = _json_value(value)
    return bytes([kind]) + raw


def _json_value(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([0 if value is None else 1 if value else 2])
    if isinstance(value, int):
        return (9, struct.pack("<q", value)) if value < 2**63 else (10, struct.pack("<Q", value))
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        raw = value.encode()
        size, left = b"", len(raw)
        while left > 127:
            size += bytes([left & 127 | 128])
            left >>= 7
        return 12, size + bytes([left]) + raw
    keys = [key.encode() for key in value] if isinstance(value, dict) else []
    members = list(value.values()) if isinstance(value, dict) else value
    entries = 4 + 4 * len(keys) + 3 * len(members)
    heads, tail = b"", b""
    for key in keys:
        heads += struct.pack("<HH", entries + len(tail), len(key))
        tail += key
    for member in members:
        kind, raw = _json_value(member)
        if kind == 4:
            heads += bytes([kind]) + raw + b"\0"
        else:
            heads += bytes([kind]) + struct.pack("<H", entries + len(tail))
            tail += raw
    body = struct.pack("<HH", len(members), entries + len(tail)) + heads + tail
    return (0 if isinstance(value, dict) else 2), body


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=200)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@_PROPERTY
@given(_JSON)
def test_the_text_of_a_json_value_reads_back_as_the_value(value: Any) -> None:
    text = json_text(json_binary(value))
    back = json.loads(text)
    assert back == value
    assert json.dumps(back) == json.dumps(value)


@_PROPERTY
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_json_double_prints_the_shortest_digits_that_read_back(value: float) -> None:
    text = double_text(value)
    assert struct.pack("<d", float(text)) == struct.pack("<d", value)
    assert "." in text or "e" in text
    digits = [form.partition("e")[0].replace(".", "").strip("-0") for form in (text, repr(value))]
    assert digits[0] == digits[1]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e15, "1e15"), (3230380257716527.5, "3230380257716527.5"),
        (123456789012345.0, "123456789012345.0"), (0.1, "0.1"), (1e-14, "0.00000000000001"),
        (1e-16, "1e-16"), (100.0, "100.0"), (-0.0, "-0.0"), (1.5e300, "1.5e300"),
    ],
)  # fmt: skip
def test_a_json_double_has_an_exponent_where_the_server_gives_it_one(value: float, text: str) -> None:
    assert double_text(value) == text


def test_members_that_share_bytes_are_refused_before_they_print_without_end() -> None:
    inner = json_text(json_binary([1] * 3))
    assert inner == "[1, 1, 1]"
    # Twenty levels of an array whose eight members are the same next level: 8^20 numbers in a kilobyte.
    body = struct.pack("<HH", 1, 7) + b"\x05" + struct.pack("<h", 1)
    for _ in range(20):
        entries = 4 + 3 * 8
        body = struct.pack("<HH", 8, entries + len(body)) + (b"\x02" + struct.pack("<H", entries)) * 8 + body
    with pytest.raises(JsonError, match="share bytes"):
        json_text(b"\x02" + body)


def test_json_nested_too_deep_is_refused() -> None:
    value: Any = 1
    for _ in range(101):
        value = [value]
    with pytest.raises(JsonError, match="nested deeper"):
        json_text(json_binary(value))


@_PROPERTY
@given(_JSON, st.data())
def test_bent_json_is_text_or_an_error(value: Any, data: st.DataObject) -> None:
    raw = bytearray(json_binary(value))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        text = json_text(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    except JsonError:
        return
    assert isinstance(text, str)


@pytest.mark.parametrize(
    ("differences", "problem"),
    [
        (b"\x03\x01$", "operation 3"),
        (b"\x02\x03$.b", "which the JSON value does not have"),
        (b"\x02\x04$[0]", "which the JSON value does not have"),
        (b"\x02\x05$.a.b", "which the JSON value does not have"),
        (b"\x02\x03.a.", "the path"),
        (b"\x02\x04$.a[", "the path"),
        (b"\x01\x03$.a\x02\x04\x00", "which the JSON value does not have"),
        (b"\x00\x03$.a", "needs 1 bytes"),
        (b"\x00\x09$.a", "needs 9 bytes"),
        (b"\x00\x03$.a\x02\x04\x07", "JSON literal 7"),
    ],
)  # fmt: skip
def test_a_difference_of_json_that_does_not_fit_is_an_error(differences: bytes, problem: str) -> None:
    document = b"\x00\x01\x00\x0c\x00\x0b\x00\x01\x00\x05\x07\x00a"  # {"a": 7}
    assert patched(document, b"", "here") == '{"a": 7}'
    with pytest.raises((JsonError, DataAtRisk), match=problem):
        patched(document, differences, "here")
