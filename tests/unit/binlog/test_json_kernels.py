"""The compiled printer of JSON prints what json.py prints, or declines."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_core.binlog import json_kernels
from cdc_core.binlog.json import JsonError, double_text, json_text
from tests.unit.binlog.test_values import _JSON, json_binary


def printed(raws: Sequence[bytes], room: int = 4096) -> list[bytes | None]:
    """The text of each, None where it is declined."""
    buffer = np.frombuffer(b"x" + b"".join(raws), np.uint8)
    length = np.array([len(raw) for raw in raws], np.int32)
    offset = 1 + np.cumsum(length, dtype=np.int64) - length
    out, size = np.full(room, 33, np.uint8), np.empty(len(raws), np.int64)
    end = json_kernels.documents(buffer, offset, length, out, size, json_kernels.workspace())
    assert (out[end:] == 33).all() or room < 4096 or (size < 0).any()
    ends = np.cumsum(np.maximum(size, 0))
    assert end == ends[-1]
    return [None if n < 0 else out[e - n : e].tobytes() for n, e in zip(size.tolist(), ends.tolist(), strict=True)]


@given(st.lists(_JSON, min_size=1, max_size=4))
@settings(deadline=None)
def test_what_is_not_declined_is_the_servers_text(values: list[Any]) -> None:
    raws = [json_binary(value) for value in values]
    for raw, text in zip(raws, printed(raws), strict=True):
        assert text is None or text.decode() == json_text(raw)


@given(_JSON, st.data())
@settings(deadline=None, max_examples=300)
def test_bent_bytes_are_declined_or_print_the_same(value: Any, data: st.DataObject) -> None:
    raw = bytearray(json_binary(value))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    bent = bytes(raw[: data.draw(st.integers(1, len(raw)))])
    (text,) = printed([bent])
    if text is None:
        return
    try:
        decoded = text.decode()
    except UnicodeDecodeError:  # bytes that are no UTF-8 are found by who takes the texts
        with pytest.raises(JsonError):
            json_text(bent)
    else:
        assert decoded == json_text(bent)


@given(
    st.one_of(
        st.floats(),
        st.decimals(-(10**14), 10**14, places=4, allow_nan=False).map(float),
        st.integers(-(10**16), 10**16).map(float),
    )
)
@example(0.1)
@example(-0.0)
@example(999999999999999.0)
@example(1e15)
@example(5e-324)
@example(0.00001)
@example(123456.789012345)
@settings(deadline=None, max_examples=500)
def test_a_double_prints_the_shortest_digits_or_is_declined(value: float) -> None:
    (text,) = printed([b"\x0b" + struct.pack("<d", value)])
    if text is not None:
        assert text.decode() == double_text(value)


PLAIN = {
    "id": 7,
    "name": 'a "b"\n\x01 \\ é',
    "price": 142.875,
    "tags": [True, None, -5, []],
    "in": {"x": {}, "big": 2**64 - 1},
}


def test_an_ordinary_document_is_not_declined() -> None:
    raw = json_binary(PLAIN)
    assert printed([raw, b"", raw]) == [json_text(raw).encode(), None, json_text(raw).encode()]


@pytest.mark.parametrize("large", [False, True])
def test_numbers_inside_the_entries_and_large_containers_are_read(large: bool) -> None:
    code, kinds = ("<I", (5, 6, 7, 8)) if large else ("<H", (5, 6))
    members = [(kind, n) for kind, n in zip(kinds, (-2, 65535, -70000, 4294967295), strict=False)]
    width = 4 if large else 2
    entries = b"".join(bytes([kind]) + (n % (1 << 8 * width)).to_bytes(width, "little") for kind, n in members)
    raw = (
        bytes([3 if large else 2])
        + struct.pack(code, len(members))
        + struct.pack(code, 2 * width + len(entries))
        + entries
    )
    assert printed([raw]) == [json_text(raw).encode()]


def test_a_document_that_has_no_room_is_declined_and_writes_nothing_behind_the_end() -> None:
    raw = json_binary(["x" * 30] * 20)
    for room in range(40, 800, 7):
        (text,) = printed([raw], room)
        assert text in (None, json_text(raw).encode())


@given(st.integers(1, 65), st.integers(0, 30), st.booleans(), st.data())
@settings(deadline=None, max_examples=300)
def test_a_decimal_prints_all_its_digits_and_no_leading_zeros(
    precision: int, scale: int, negative: bool, data: st.DataObject
) -> None:
    scale = min(scale, precision)
    whole = precision - scale
    counts = ([whole % 9] if whole % 9 else []) + [9] * (whole // 9)
    counts += [9] * (scale // 9) + ([scale % 9] if scale % 9 else [])
    raw = b"".join(
        data.draw(st.sampled_from([0, 1, 10**count - 1]) | st.integers(0, 10**count)).to_bytes(
            (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[count], "big"
        )
        for count in counts
    )
    raw = bytes([raw[0] ^ 0x80]) + raw[1:]
    body = bytes([precision, scale]) + (bytes(byte ^ 255 for byte in raw) if negative else raw)
    document = bytes([15, 246, len(body)]) + body
    (text,) = printed([document])
    try:
        assert text == json_text(document).encode()
    except JsonError:
        assert text is None
