"""Packets of a result set, cut anywhere, out of order or damaged: the rows that were sent, or an error."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.binlog.table_map import TypeCode
from cdc_core.errors import RetryLater
from cdc_core.model.schema import Column, ColumnType
from cdc_core.results import result_columns, row_packets, statement
from cdc_core.results import value_columns as values
from cdc_core.results.answer import Buffer, ResultAnswer
from cdc_core.results.reading_faults import UnlikeDefinition
from cdc_core.results.result_columns import ResultColumn, type_of
from cdc_core.results.row_packets import Located
from tests.lab.refusals import raises

_PROPERTY = settings(max_examples=300)
FORMS = (4, 1, row_packets.SIZED, row_packets.MOMENT, row_packets.DURATION, 8)
EOF = b"\xfe\x00\x00\x22\x00"
EDGE = row_packets.MAX_PAYLOAD


class Sent:
    """A connection that gives bytes in pieces of these sizes, then ends as a lost one does."""

    def __init__(self, data: bytes, pieces: list[int]) -> None:
        self._data, self._pieces = memoryview(data), pieces

    def receive_into(self, buffer: memoryview) -> int:
        size = min(len(buffer), len(self._data), self._pieces.pop() if self._pieces else len(self._data))
        if not size:
            raise ConnectionError
        buffer[:size], self._data = self._data[:size], self._data[size:]
        return size


def sized(value: bytes) -> bytes:
    if len(value) < 251:
        return bytes([len(value)]) + value
    return b"\xfd" + len(value).to_bytes(3, "little") + value if len(value) < 1 << 24 else (
        b"\xfe" + struct.pack("<Q", len(value)) + value
    )  # fmt: skip


def row(values: list[bytes | None], forms: tuple[int, ...] = FORMS) -> bytes:
    nulls = sum(1 << i + 2 for i, value in enumerate(values) if value is None)
    coded = [
        value if form > 0 else sized(value) for value, form in zip(values, forms, strict=True) if value is not None
    ]
    return b"\0" + nulls.to_bytes((len(values) + 9) // 8, "little") + b"".join(coded)


def packets(payloads: list[bytes], number: int = 1) -> bytes:
    out = []
    for payload in payloads:
        while True:
            part, payload = payload[:EDGE], payload[EDGE:]
            out.append(len(part).to_bytes(3, "little") + bytes([number & 255]) + part)
            number += 1
            if len(part) < EDGE:
                break
    return b"".join(out)


def received(
    data: bytes, pieces: list[int], forms: tuple[int, ...] = FORMS, *, most: int = 1 << 16, size_bytes: int = 4096
) -> list[list[bytes | None]]:
    """All rows up to the packet that is not one, which must be the last."""
    answer = ResultAnswer(Sent(data, pieces), Buffer(len(forms), most, size_bytes), "here")
    found: list[list[bytes | None]] = []
    ended = False
    while not ended:
        located, ended = answer.next_batch(np.array(forms, np.int8))
        assert located.rows or ended
        for n in range(located.rows):
            spans = zip(located.offset[:, n].tolist(), located.length[:, n].tolist(), strict=True)
            found.append([located.buffer[o : o + size].tobytes() if size >= 0 else None for o, size in spans])
    assert answer.packet() == EOF
    assert answer.left_bytes == 0
    return found


_VALUES = st.tuples(
    st.none() | st.binary(min_size=4, max_size=4), st.none() | st.binary(min_size=1, max_size=1),
    st.none() | st.binary(max_size=400), st.none() | st.sampled_from([b"", b"\1\2\3\4", bytes(7), bytes(11)]),
    st.none() | st.sampled_from([b"", bytes(8), bytes(12)]), st.none() | st.binary(min_size=8, max_size=8),
)  # fmt: skip
_ROWS = st.lists(_VALUES.map(list), max_size=30)


@_PROPERTY
@given(_ROWS, st.lists(st.integers(1, 300), max_size=40), st.integers(1, 40), st.integers(64, 3000))
def test_rows_are_what_was_sent_wherever_it_is_cut(
    sent: list[list[bytes | None]], pieces: list[int], most: int, size_bytes: int
) -> None:
    data = packets([*(row(values) for values in sent), EOF])
    assert received(data, pieces, most=most, size_bytes=size_bytes) == sent


@pytest.mark.parametrize("size", [EDGE - 9, EDGE - 8, EDGE - 7, 2 * EDGE - 9 - 3, 2 * EDGE + 50, 3 * EDGE + 7])
def test_a_row_of_several_packets_is_joined(size: int) -> None:
    long, pieces = bytes(range(251)) * (size // 251 + 1), [1 << 20, 3, 1, 1, 4, 1 << 22, 1, 2] * 40
    sent = [[b"a"], [long[:size]], [None], [b"c" * 300]]
    data = packets([*(row(values, (row_packets.SIZED,)) for values in sent), EOF])
    assert received(data, pieces, (row_packets.SIZED,)) == sent


def test_numbers_of_packets_start_over_after_255() -> None:
    sent: list[list[bytes | None]] = [[bytes([i & 255])] for i in range(1000)]
    assert received(packets([*(row(values, (1,)) for values in sent), EOF]), [5] * 100, (1,)) == sent


@_PROPERTY
@given(_ROWS.filter(bool), st.data())
def test_a_damaged_answer_is_an_error_or_has_rows_that_lie_within_it(sent: list[Any], data: st.DataObject) -> None:
    raw = bytearray(packets([*(row(values) for values in sent), EOF]))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    whole = bytes(raw[: data.draw(st.integers(1, len(raw)))])
    try:
        found = received(whole, [])
    except (RetryLater, ConnectionError, AssertionError):
        return
    assert sum(len(value or b"") for values in found for value in values) <= len(whole)


@pytest.mark.parametrize(
    ("payload", "forms"),
    [
        (b"", (1,)),  # no byte
        (b"\0", (1,)),  # no bitmap
        (b"\0\0", (1,)),  # no value
        (b"\0\0ab", (1,)),  # a byte too many
        (b"\0\0\xfb", (row_packets.SIZED,)),  # 251 is the text protocol's null
        (b"\0\0\xff", (row_packets.SIZED,)),
        (b"\0\0\x05abcd", (row_packets.SIZED,)),
        (b"\0\0\xfc\x05", (row_packets.SIZED,)),
        (b"\0\0\xfe" + b"\xff" * 8, (row_packets.SIZED,)),  # a negative length
        (b"\0\0\x05abcde", (row_packets.MOMENT,)),
        (b"\0\0\x04abcd", (row_packets.DURATION,)),
    ],
)
def test_a_row_that_does_not_have_the_announced_columns_is_an_error(payload: bytes, forms: tuple[int, ...]) -> None:
    with raises(RetryLater, "connection.unreachable"):
        received(packets([payload, EOF]), [], forms)


def test_a_packet_that_is_missing_repeated_or_out_of_order_is_an_error() -> None:
    one, two, three = (packets([row([bytes([n])], (1,))], n) for n in (1, 2, 3))
    for data in (one + three, one + one + two, two, one + three + two):
        with pytest.raises(RetryLater):
            received(data + packets([EOF], 4), [], (1,))


def test_a_row_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc_core.results.answer._MAX_ROW_BYTES", 40 << 20)
    with pytest.raises(RetryLater) as caught:
        received(packets([row([bytes(100 << 20)], (row_packets.SIZED,))]), [], (row_packets.SIZED,))
    assert "a row of more than" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        packets([b"\x00\x00\x00\x02\x00\x00\x00"]),  # OK: no rows
        packets([b"\xfb/etc/passwd"]),  # LOCAL INFILE
        packets([b""]),
        packets([b"\x01", b"\x03def"]),
        packets([b"\x01", b"\xfe" + bytes(30)]),
        packets([b"\xff"]),
        packets([b"\x01", b"\x00" * 6 + b"\x0c" + bytes(6) + b"\xc8" + bytes(5)]),  # an unknown type
    ],
)
def test_an_answer_that_is_no_result_set_is_an_error(data: bytes) -> None:
    answer = ResultAnswer(Sent(data, []), Buffer(1, 1, 4096), "here")
    with pytest.raises((RetryLater, ConnectionError)):
        statement._definitions(answer, "here")


@_PROPERTY
@given(st.binary(max_size=60))
def test_any_bytes_are_a_definition_or_a_value_error(raw: bytes) -> None:
    try:
        found = result_columns.parse(raw)
    except ValueError:
        return
    assert isinstance(found, ResultColumn)


# DECIMAL


@_PROPERTY
@given(st.data())
def test_a_decimal_is_exact(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, min(precision, 30)))
    units = data.draw(st.lists(st.integers(-(10**precision) + 1, 10**precision - 1), min_size=1, max_size=5))
    texts = [written(unit, scale) for unit in units]
    wanted = [Decimal(text) for text in texts]
    if data.draw(st.booleans()):
        texts = [text if text.startswith("-") else "000" + text for text in texts]
    assert decimals(texts, precision, scale) == wanted


def written(units: int, scale: int) -> str:
    digits = f"{abs(units):0{scale + 1}d}"
    sign = "-" if units < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def decimals(texts: list[str], precision: int, scale: int) -> list[Decimal]:
    buffer = np.frombuffer("".join(texts).encode() or b"\0", np.uint8).copy()
    length = np.array([[len(text) for text in texts]], np.int32)
    located = Located(buffer, np.cumsum(length, axis=1, dtype=np.int64) - length, length)
    selected = values.selected(Column("d", ColumnType("decimal", precision=precision, scale=scale)))
    found: list[Decimal] = values.decode(selected, located, 0, "d.t")[0].to_pylist()
    return found


def test_fewer_digits_than_the_scale_are_filled_with_zeros_and_more_refused() -> None:
    assert decimals(["1.5", "-2", "0.125"], 10, 3) == [Decimal("1.500"), Decimal("-2.000"), Decimal("0.125")]
    for text in ("", "-", ".", "1.2345", "12345678", "1.2.3", " 1", "--1", "NaN", "1e8"):
        with raises(RetryLater, "connection.unreachable", match="not a decimal"):
            decimals(["1.000", text], 10, 3)
    assert decimals(["0"], 1, 0) == [Decimal(0)]
    assert decimals(["1e3", "+1"], 10, 3) == [Decimal(1000), Decimal(1)]


def test_a_decimal_of_more_digits_than_arrow_has_is_text_without_zeros_before_it() -> None:
    assert decimals(["000", "007.10", "0.5", "-0.5", "10"], 40, 2) == ["0", "7.10", "0.5", "-0.5", "10"]


def test_the_type_of_a_decimal_expression_has_room_for_all_its_digits() -> None:
    def kind(length: int, decimals: int, *, unsigned: bool = False) -> tuple[int | None, int | None]:
        column_type = type_of(ResultColumn("x", 246, unsigned, 63, length, decimals))
        return column_type.precision, column_type.scale

    assert kind(12, 2) == (10, 2)
    assert kind(11, 2, unsigned=True) == (10, 2)
    assert kind(6, 0) == (5, 0)
    assert kind(67, 30) == (65, 30)


def test_a_vector_that_is_announced_as_a_binary_string_is_the_one_of_the_log() -> None:
    """As MariaDB does. As text it is something else."""
    selected = values.selected(Column("v", ColumnType("vector", length=2)))
    binary, text = (ResultColumn("v", TypeCode.VAR_STRING, False, collation, 8, 0) for collation in (63, 46))
    values.require_same([selected], [binary], where="d.t")
    with pytest.raises(UnlikeDefinition):
        values.require_same([selected], [text], where="d.t")
    raw = np.frombuffer(np.array([1.5, -2], "<f4").tobytes(), np.uint8)
    located = Located(raw, np.array([[0, 0]]), np.array([[8, -1]], np.int32))
    array, literals = values.decode(selected, located, 0, "d.t")
    assert (array.to_pylist(), array.type, literals) == ([[1.5, -2.0], None], selected.column.type.arrow, None)
