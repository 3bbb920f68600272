"""The layout of a DECIMAL: groups of nine digits in four bytes each, with fewer bytes for leftover digits.

Big-endian groups, first to last: leftover digits of the integer part, its whole groups, the whole groups of the
fraction, its leftover digits. The top bit is flipped; if it was 0 the number is negative and every byte is inverted
(MySQL strings/decimal.cc, decimal2bin). Columns and JSON documents share it.
"""

from __future__ import annotations

from typing import NamedTuple

DIGITS = 9
"""Digits of a whole group."""
GROUP_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of a group, by its number of digits."""


class DigitGroups(NamedTuple):
    """sizes, digits: bytes and decimal digits of each group. integer: how many groups come before the point."""

    sizes: tuple[int, ...]
    digits: tuple[int, ...]
    integer: int


def digit_groups(precision: int, scale: int) -> DigitGroups:
    """The groups of a DECIMAL(precision, scale)."""
    whole = precision - scale
    before = [whole % DIGITS] * bool(whole % DIGITS) + [DIGITS] * (whole // DIGITS)
    after = [DIGITS] * (scale // DIGITS) + [scale % DIGITS] * bool(scale % DIGITS)
    digits = (*before, *after)
    return DigitGroups(tuple(GROUP_BYTES[count] for count in digits), digits, len(before))


def size_bytes(precision: int, scale: int) -> int:
    """Bytes of a value."""
    return sum(digit_groups(precision, scale).sizes)


def text(raw: bytes, precision: int, scale: int) -> str:
    """A value as the server prints it. Raises ValueError for bytes that are not of this DECIMAL."""
    sizes, digits, integer = digit_groups(precision, scale)
    if len(raw) != sum(sizes):
        raise ValueError(f"{len(raw)} bytes of a DECIMAL({precision},{scale}) instead of {sum(sizes)}")
    negative = raw[0] & 0x80 == 0
    data = bytes(byte ^ (255 if negative else 0) for byte in (raw[0] ^ 0x80, *raw[1:]))
    at, parts = 0, []
    for size, count in zip(sizes, digits, strict=True):
        number = int.from_bytes(data[at : at + size], "big")
        if number >= 10**count:
            raise ValueError(f"{number} in a DECIMAL group of {count} digits")
        parts.append(f"{number:0{count}d}")
        at += size
    whole = "".join(parts[:integer]).lstrip("0") or "0"
    fraction = "".join(parts[integer:])
    return ("-" if negative else "") + whole + ("." + fraction if fraction else "")
