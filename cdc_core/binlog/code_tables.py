"""Character sets other than UTF-8: texts to UTF-8, whole columns at a time.

data/wide.npz was written by real servers (`python -m examples.sandbox.charsets`; MySQL 9.7 and MariaDB 11.4 agree on
every code that both have); charsets.py has the sets of one byte. No byte that is a character begins a longer one, so
that a text is read in one way only. Each set is one array of code points, 0 for none (and for byte 0), indexed by

    SINGLE: a byte
    TWO: a byte, or two bytes big-endian                 up to 0xFFFF
    PLUS_8F: after a byte 8F, two more                   from 0x10000
    PLUS_FOUR (gb18030): 81..FE 30..39 81..FE 30..39     from 0x10000, counted in that order; the planes above the
                                                         first by rule, from 90308130 = U+10000 on

Surrogates are not characters, alone or (UCS-2) in pairs. Keeps true: no code without a character becomes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from cdc_core.binlog.compiled import kernel

SINGLE, TWO, PLUS_8F, PLUS_FOUR, UTF16_BIG, UTF16_LITTLE, UCS2, UTF32 = range(8)
FORMS = {
    "big5": TWO, "cp932": TWO, "euckr": TWO, "gb2312": TWO, "gbk": TWO, "sjis": TWO, "eucjpms": PLUS_8F,
    "ujis": PLUS_8F, "gb18030": PLUS_FOUR, "utf16": UTF16_BIG, "utf16le": UTF16_LITTLE, "ucs2": UCS2, "utf32": UTF32,
}  # fmt: skip
BEYOND = 1 << 16
"""Where codes of three and of four bytes begin in the array."""
FIRST_PLANE = 39420
"""Codes of four bytes in gb18030's first plane."""


@dataclass(frozen=True, slots=True)
class CodeTable:
    """form: how codes are read. points: uint16, the code point of each code; zeros for the Unicode forms."""

    form: int
    points: npt.NDArray[np.uint16]

    def decode(self, raw: bytes) -> str | None:
        """One text; None where it is not text of this set."""
        buffer = np.frombuffer(raw or b"\0", np.uint8)
        place, length, size = np.zeros(1, np.int64), np.array([len(raw)], np.int32), np.zeros(1, np.int64)
        if sizes(buffer, place, length, self.form, self.points, size):
            return None
        out = np.empty(int(size[0]), np.uint8)
        encode(buffer, place, length, self.form, self.points, np.array([0, len(out)], np.int32), out)
        return out.tobytes().decode()


@cache
def wide(charset: str) -> CodeTable | None:
    """The table of a set of more than one byte, None for any other."""
    form = FORMS.get(charset)
    if form is None:
        return None
    points = np.zeros(256, np.uint16)
    if form <= PLUS_FOUR:
        with resources.files("cdc_core.binlog").joinpath("data", "wide.npz").open("rb") as file, np.load(file) as data:
            points = np.cumsum(data[charset], dtype=np.uint16)
    points.flags.writeable = False
    return CodeTable(form, points)


@kernel
def _unicode(buf, at, left, form):  # type: ignore[no-untyped-def]
    if form == UTF32:
        if left < 4 or buf[at] != 0:
            return 0, 0
        point = np.int64(buf[at + 1]) << 16 | np.int64(buf[at + 2]) << 8 | np.int64(buf[at + 3])
        return (0, 0) if point > 0x10FFFF or 0xD800 <= point < 0xE000 else (point, 4)
    if left < 2:
        return 0, 0
    high = 1 if form == UTF16_LITTLE else 0
    point = np.int64(buf[at + high]) << 8 | np.int64(buf[at + 1 - high])
    if point < 0xD800 or point > 0xDFFF:
        return point, 2
    if form == UCS2 or point > 0xDBFF or left < 4:
        return 0, 0
    low = np.int64(buf[at + 2 + high]) << 8 | np.int64(buf[at + 3 - high])
    return (0x10000 + ((point - 0xD800) << 10 | low - 0xDC00), 4) if 0xDC00 <= low < 0xE000 else (0, 0)


@kernel
def _longer(buf, at, left, form, points):  # type: ignore[no-untyped-def]
    """The code point at `at`, of `left` bytes, and how many it takes, where the first alone has no code point: 0 where
    there is none."""
    if form > PLUS_FOUR:
        return _unicode(buf, at, left, form)
    first = np.int64(buf[at])
    if not first:
        return 0, 1
    if form == SINGLE or left < 2:
        return 0, 0
    second = np.int64(buf[at + 1])
    if form == PLUS_8F and first == 0x8F:
        if left < 3:
            return 0, 0
        point = np.int64(points[BEYOND + (second << 8 | np.int64(buf[at + 2]))])
        return point, 3 if point else 0
    if form == PLUS_FOUR and 0x30 <= second <= 0x39:
        if left < 4:
            return 0, 0
        third, fourth = np.int64(buf[at + 2]), np.int64(buf[at + 3])
        if first < 0x81 or first > 0xFE or third < 0x81 or third > 0xFE or fourth < 0x30 or fourth > 0x39:
            return 0, 0
        number = (((first - 0x81) * 10 + second - 0x30) * 126 + third - 0x81) * 10 + fourth - 0x30
        if number < FIRST_PLANE:
            point = np.int64(points[BEYOND + number])
        else:
            # 90308130 is number 189000.
            point = np.int64(number - 189000 + 0x10000)
            if point < 0x10000 or point > 0x10FFFF:
                return 0, 0
        return point, 4 if point else 0
    point = np.int64(points[first << 8 | second])
    return point, 2 if point else 0


@kernel
def sizes(buf, off, length, form, points, out):  # type: ignore[no-untyped-def]
    """Bytes that each value takes in UTF-8, -1 for one that is not text of the set. Returns how many those are."""
    bad = 0
    for i in range(off.shape[0]):
        n = np.int64(0)
        at = off[i]
        end = at + max(length[i], 0)
        while at < end:
            point, took = np.int64(points[buf[at]]), 1
            if not point:
                point, took = _longer(buf, at, end - at, form, points)
                if took == 0:
                    n = np.int64(-1)
                    bad += 1
                    break
            n += 1 + (point > 0x7F) + (point > 0x7FF) + (point > 0xFFFF)
            at += took
        out[i] = n
    return bad


@kernel
def encode(buf, off, length, form, points, ends, out):  # type: ignore[no-untyped-def]
    """Each value's text as UTF-8 to out[ends[i]:ends[i + 1]]; values without bytes there are skipped."""
    for i in range(off.shape[0]):
        at = off[i]
        d = np.int64(ends[i])
        while d < ends[i + 1]:
            point, took = np.int64(points[buf[at]]), 1
            if not point:
                point, took = _longer(buf, at, off[i] + length[i] - at, form, points)
            at += took
            if point < 0x80:
                out[d] = point
                d += 1
                continue
            more = 1 if point < 0x800 else 2 if point < 0x10000 else 3
            out[d] = 0xFF00 >> more + 1 & 0xFF | point >> 6 * more
            for k in range(1, more + 1):
                out[d + k] = 0x80 | point >> 6 * (more - k) & 0x3F
            d += more + 1
