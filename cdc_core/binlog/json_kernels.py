"""Binary JSON to text, compiled, for plain documents; json.py handles everything, and prints what this declines.

Plain: objects, arrays, literals, integers, strings, decimals, and doubles of at most 15 digits between 1e-5 and 1e15.
A document with anything else, or with invalid bytes, is declined. Layout, bounds and the byte budget are those of
json.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc_core.binlog.compiled import inlined, kernel

# mypy: disable-error-code="no-untyped-def, assignment, operator, arg-type, call-overload"

MAX_DEPTH = 100
_LARGE_OBJECT, _LARGE_ARRAY = 1, 3
_LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(4, 13)
_OPAQUE, _DECIMAL = 15, 246
_DECLINED = -1
_NUMBER_SIZE = 32
TENS = np.array([10.0**n for n in range(23)])
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_WORDS = np.frombuffer(b"null true false", np.uint8)


class Workspace(NamedTuple):
    """stack: of each open container: its begin, end, type, count, and the next member. bits, floats: the same eight
    bytes. The others are tables."""

    stack: npt.NDArray[np.int64]
    bits: npt.NDArray[np.uint64]
    floats: npt.NDArray[np.float64]
    tens: npt.NDArray[np.float64]
    hexes: npt.NDArray[np.uint8]
    words: npt.NDArray[np.uint8]


def workspace() -> Workspace:
    bits = np.empty(1, np.uint64)
    return Workspace(np.empty((MAX_DEPTH, 5), np.int64), bits, bits.view(np.float64), TENS, _HEX, _WORDS)


@kernel
def _little(buf, at, n):
    v = np.uint64(0)
    for k in range(n):
        v |= np.uint64(buf[at + k]) << np.uint64(8 * k)
    return v


@kernel
def _digits(out, to, value, least):
    """Writes an unsigned number with at least `least` digits; returns where it ends."""
    n = 0
    rest = value
    while n < least or rest > np.uint64(0):
        rest //= np.uint64(10)
        n += 1
    for k in range(n):
        out[to + n - 1 - k] = np.uint8(48) + np.uint8(value % np.uint64(10))
        value //= np.uint64(10)
    return to + n


@kernel
def _double(out, to, value, tens):
    """Writes the shortest digits that read back as `value`. n / 10^p is rounded correctly while n and 10^p are exact,
    so the first p that reads back gives them; -1 where there are more than 15."""
    if value < 0:
        out[to] = 45
        to += 1
        value = -value
    if not 1e-5 <= value < 1e15:
        return _DECLINED
    for p in range(21):
        scaled = np.floor(value * tens[p] + 0.5)
        if scaled >= 1e15:
            return _DECLINED
        if scaled / tens[p] == value:
            number = np.uint64(scaled)
            ten = np.uint64(1)
            for _ in range(p):
                ten *= np.uint64(10)
            to = _digits(out, to, number // ten, 1)
            out[to] = 46
            return _digits(out, to + 1, number % ten, max(p, 1))
    return _DECLINED


@kernel
def _quoted(buf, at, size, out, to, hexes):
    out[to] = 34
    to += 1
    for k in range(size):
        c = buf[at + k]
        if c >= 32 and c != 34 and c != 92:
            out[to] = c
            to += 1
            continue
        out[to] = 92
        short = np.uint8(0)
        if c in (34, 92):
            short = c
        elif c == 8:
            short = np.uint8(98)
        elif c == 12:
            short = np.uint8(102)
        elif c == 10:
            short = np.uint8(110)
        elif c == 13:
            short = np.uint8(114)
        elif c == 9:
            short = np.uint8(116)
        if short:
            out[to + 1] = short
            to += 2
        else:
            out[to + 1] = 117
            out[to + 2] = 48
            out[to + 3] = 48
            out[to + 4] = hexes[c >> 4]
            out[to + 5] = hexes[c & 15]
            to += 6
    out[to] = 34
    return to + 1


@kernel
def _decimal(buf, at, end, out, to):
    """precision u8, scale u8, then the bytes of a DECIMAL column."""
    if end - at < 3:
        return _DECLINED
    precision = np.int64(buf[at])
    scale = np.int64(buf[at + 1])
    whole = precision - scale
    if precision < 1 or precision > 65 or scale > 30 or whole < 0:
        return _DECLINED
    at += 2
    negative = buf[at] & np.uint8(0x80) == 0
    mask = np.uint8(255) if negative else np.uint8(0)
    first = at
    if negative:
        out[to] = 45
        to += 1
    begun = False
    for part in range(2):
        left = whole if part == 0 else scale
        if part == 1:
            if not begun:
                out[to] = 48
                to += 1
            if not scale:
                break
            out[to] = 46
            to += 1
            begun = True
        while left:
            # Leftover digits come before the whole groups, and after those of the fraction.
            count = left % 9 if part == 0 and left % 9 else min(left, 9)
            size = (count + 1) // 2 if count < 7 else 4
            if at + size > end:
                return _DECLINED
            number = np.uint64(0)
            limit = np.uint64(1)
            for _ in range(count):
                limit *= np.uint64(10)
            for k in range(size):
                byte = buf[at + k] ^ mask
                if at + k == first:
                    byte ^= np.uint8(0x80)
                number = number << np.uint64(8) | np.uint64(byte)
            if number >= limit:
                return _DECLINED
            if begun:
                to = _digits(out, to, number, count)
            elif number:
                to = _digits(out, to, number, 1)
                begun = True
            at += size
            left -= count
    return to if at == end else _DECLINED


@inlined
def _opened(buf, at, end, kind, stack, depth):
    """Enters an object or array; whether it is within its bounds."""
    if depth >= MAX_DEPTH:
        return False
    width = 4 if kind in (_LARGE_OBJECT, _LARGE_ARRAY) else 2
    if at + 2 * width > end:
        return False
    count = np.int64(_little(buf, at, width))
    size = np.int64(_little(buf, at + width, width))
    entry = width + 1 + (width + 2 if kind <= _LARGE_OBJECT else 0)
    if at + size > end or 2 * width + count * entry > size:
        return False
    stack[depth, 0] = at
    stack[depth, 1] = at + size
    stack[depth, 2] = kind
    stack[depth, 3] = count
    stack[depth, 4] = 0
    return True


@inlined
def _literal(buf, at, end, out, to, words):
    """null, true or false; returns where it ends, or -1."""
    if at >= end or buf[at] > 2:
        return _DECLINED
    first = 0 if buf[at] == 0 else (5 if buf[at] == 1 else 10)
    for k in range(5 if buf[at] == 2 else 4):
        out[to] = words[first + k]
        to += 1
    return to


@inlined
def _number(buf, at, end, kind, out, to, work):
    """An integer or a double; returns where it ends, or -1."""
    size = np.int64(2 if kind <= _UINT16 else (4 if kind <= _UINT32 else 8))
    if at + size > end:
        return _DECLINED
    number = _little(buf, at, size)
    if kind == _DOUBLE:
        work.bits[0] = number
        return _double(out, to, work.floats[0], work.tens)
    top = np.uint64(1) << np.uint64(8 * size - 1)
    if kind in (_INT16, _INT32, _INT64) and number & top:
        out[to] = 45
        to += 1
        number = top - (number & (top - np.uint64(1)))
    return _digits(out, to, number, 1)


@inlined
def _length(buf, at, end):
    """The variable-length number at `at`: seven bits a byte, least first. Returns it, or -1, and where it ends."""
    size = np.int64(0)
    shift = 0
    while at < end and shift <= 28:
        size |= np.int64(buf[at] & 127) << shift
        shift += 7
        at += 1
        if buf[at - 1] < 128:
            return size, at
    return np.int64(_DECLINED), at


@inlined
def _next_member(buf, stack, top, out, to, left, hexes):
    """Writes what precedes the next member of the container at the stack's top: a comma, and its key in an object.
    Returns the value's kind and place (-1 if it is not valid), where the text ends, and the byte budget left."""
    begin = stack[top, 0]
    outer = stack[top, 2]
    count = stack[top, 3]
    n = stack[top, 4]
    stack[top, 4] = n + 1
    large = outer in (_LARGE_OBJECT, _LARGE_ARRAY)
    width = 4 if large else 2
    values = 2 * width
    if n:
        if to + 2 > out.shape[0]:
            return np.int64(0), np.int64(_DECLINED), to, left
        out[to] = 44
        out[to + 1] = 32
        to += 2
    if outer <= _LARGE_OBJECT:
        place = begin + values + n * (width + 2)
        key = begin + np.int64(_little(buf, place, width))
        size = np.int64(_little(buf, place + width, 2))
        left -= size
        if left < 0 or key + size > stack[top, 1] or to + 6 * size + _NUMBER_SIZE > out.shape[0]:
            return np.int64(0), np.int64(_DECLINED), to, left
        to = _quoted(buf, key, size, out, to, hexes)
        out[to] = 58
        out[to + 1] = 32
        to += 2
        values += count * (width + 2)
    place = begin + values + n * (width + 1)
    kind = np.int64(buf[place])
    if kind in (_LITERAL, _INT16, _UINT16) or (large and kind in (_INT32, _UINT32)):
        return kind, place + 1, to, left  # small values are in the table of values itself
    at = np.int64(_little(buf, place + 1, width))
    if at < values + count * (width + 1):
        return np.int64(0), np.int64(_DECLINED), to, left
    return kind, begin + at, to, left


@kernel
def _document(buf, start, stop, out, to, work):
    """One document from buf[start:stop] to out[to:]; where its text ends, or -1."""
    stack = work.stack
    left = stop - start
    depth = 0
    kind = np.int64(buf[start])
    at = start + 1
    end = stop
    size_out = out.shape[0]
    while True:
        # One value of this kind at `at`, which may not pass `end`.
        left -= 1
        if left < 0 or to + _NUMBER_SIZE > size_out:
            return _DECLINED
        if kind <= _LARGE_ARRAY:
            if not _opened(buf, at, end, kind, stack, depth):
                return _DECLINED
            depth += 1
            out[to] = 123 if kind <= _LARGE_OBJECT else 91
            to += 1
        elif kind == _LITERAL:
            to = _literal(buf, at, end, out, to, work.words)
        elif kind <= _DOUBLE:
            to = _number(buf, at, end, kind, out, to, work)
        elif kind in (_STRING, _OPAQUE):
            if kind == _OPAQUE:
                if at >= end or buf[at] != _DECIMAL:
                    return _DECLINED
                at += 1
            size, at = _length(buf, at, end)
            left -= size
            if size < 0 or left < 0 or at + size > end or to + 6 * size + _NUMBER_SIZE > size_out:
                return _DECLINED
            if kind == _STRING:
                to = _quoted(buf, at, size, out, to, work.hexes)
            else:
                to = _decimal(buf, at, at + size, out, to)
        else:
            return _DECLINED
        if to < 0:
            return _DECLINED
        # The next member: of the innermost container that has one left.
        while depth and stack[depth - 1, 4] == stack[depth - 1, 3]:
            depth -= 1
            if to >= size_out:
                return _DECLINED
            out[to] = 125 if stack[depth, 2] <= _LARGE_OBJECT else 93
            to += 1
        if not depth:
            return to
        kind, at, to, left = _next_member(buf, stack, depth - 1, out, to, left, work.hexes)
        if at < 0:
            return _DECLINED
        end = stack[depth - 1, 1]


@kernel
def documents(buf, offset, length, out, size, work):
    """The text of each document, one after the other in out; size: bytes of each, 0 for a null, -1 for one that is
    declined. Returns the bytes written."""
    to = 0
    for i in range(offset.shape[0]):
        size[i] = 0
        if length[i] < 0:
            continue
        end = _DECLINED
        if length[i] > 0:
            end = _document(buf, offset[i], offset[i] + length[i], out, to, work)
        if end < 0:
            size[i] = _DECLINED
        else:
            size[i] = end - to
            to = end
    return to
