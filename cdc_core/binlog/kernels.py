"""Column kernels: the values of one column, scattered over the buffer, into an Arrow buffer.

One kernel per form of value, never per table, so that all can be compiled in advance (warm_kernels.py). Each reads only
inside [offset, offset + length), which scan.py has checked; a length of -1 is a null. None creates a Python object.
"""

from __future__ import annotations

import numpy as np

from cdc_core.binlog.compiled import inlined, kernel

# mypy: disable-error-code="no-untyped-def"

TENS = np.array([10**k for k in range(10)], np.uint64)


@kernel
def little(buf, off, length, out):
    """Integers of 1 to 8 bytes, little-endian, zero-extended to uint64."""
    for i in range(off.shape[0]):
        o = off[i]
        n = length[i]
        if n == 8:
            out[i] = (
                np.uint64(buf[o])
                | np.uint64(buf[o + 1]) << np.uint64(8)
                | np.uint64(buf[o + 2]) << np.uint64(16)
                | np.uint64(buf[o + 3]) << np.uint64(24)
                | np.uint64(buf[o + 4]) << np.uint64(32)
                | np.uint64(buf[o + 5]) << np.uint64(40)
                | np.uint64(buf[o + 6]) << np.uint64(48)
                | np.uint64(buf[o + 7]) << np.uint64(56)
            )
        elif n == 4:
            out[i] = (
                np.uint64(buf[o])
                | np.uint64(buf[o + 1]) << np.uint64(8)
                | np.uint64(buf[o + 2]) << np.uint64(16)
                | np.uint64(buf[o + 3]) << np.uint64(24)
            )
        else:
            v = np.uint64(0)
            for k in range(n):
                v |= np.uint64(buf[o + k]) << np.uint64(8 * k)
            out[i] = v


@kernel
def big(buf, off, length, out):
    """The same, big-endian (BIT)."""
    for i in range(off.shape[0]):
        v = np.uint64(0)
        for k in range(length[i]):
            v = v << np.uint64(8) | np.uint64(buf[off[i] + k])
        out[i] = v


@kernel
def copy(buf, off, length, ends, out):
    """Bytes of each value to out[ends[i]:ends[i + 1]], shorter ones followed by zeros.

    Returns whether a byte above 127 was among them.
    """
    high = np.uint8(0)
    for i in range(off.shape[0]):
        o = off[i]
        d = np.int64(ends[i])
        n = length[i]
        if n < 0:
            n = 0
        source = buf[o : o + n]
        target = out[d : d + n]
        for k in range(n):  # in views from 0 on: many bytes at a time
            b = source[k]
            target[k] = b
            high |= b
        for k in range(d + n, np.int64(ends[i + 1])):
            out[k] = 0
    return high > 127


@kernel
def set_sizes(value, valid, label_end, out):
    """Bytes of each SET's text; -1 for a member that the definition does not have."""
    members = label_end.shape[0] - 1
    for i in range(value.shape[0]):
        n = np.int64(0)
        if valid[i]:
            v = value[i]
            if members < 64 and v >> np.uint64(members):
                out[i] = -1
                continue
            for m in range(members):
                if v >> np.uint64(m) & np.uint64(1):
                    n += label_end[m + 1] - label_end[m] + (1 if n else 0)
        out[i] = n


@kernel
def set_text(value, valid, label, label_end, ends, out):
    """Labels of each SET, joined by commas; like the server, without a comma after an empty first label."""
    members = label_end.shape[0] - 1
    for i in range(value.shape[0]):
        if not valid[i]:
            continue
        d = np.int64(ends[i])
        for m in range(members):
            if value[i] >> np.uint64(m) & np.uint64(1):
                if d > ends[i]:
                    out[d] = 44
                    d += 1
                for k in range(label_end[m], label_end[m + 1]):
                    out[d] = label[k]
                    d += 1


@kernel
def _group(buf, at, n, mask):
    """A group of n bytes, big-endian, of a DECIMAL; `mask` is 255 for a negative number."""
    v = np.uint64(0)
    for k in range(n):
        v = v << np.uint64(8) | np.uint64(buf[at + k] ^ mask)
    return v


@inlined
def times_plus(lo, hi, ten, v):
    """The halves of (hi, lo) * ten + v; ten is below 2^30."""
    low32 = np.uint64(0xFFFFFFFF)
    a = (lo & low32) * ten + v
    b = (lo >> np.uint64(32)) * ten + (a >> np.uint64(32))
    return (a & low32) | (b << np.uint64(32)), hi * ten + (b >> np.uint64(32))


@inlined
def signed(lo, hi, negative):
    """The halves of a number with this sign, in two's complement."""
    if not negative:
        return lo, hi
    low = ~lo + np.uint64(1)
    return low, ~hi + (np.uint64(1) if low == 0 else np.uint64(0))


@kernel
def decimals(buf, off, length, sizes, digits, out):
    """DECIMAL of up to 38 digits as 128-bit integers, [i, 0] the low and [i, 1] the high half.

    sizes, digits: bytes and decimal digits of each group, first to last. Returns the first row whose groups hold
    more than their digits can, else -1.
    """
    for i in range(off.shape[0]):
        out[i, 0] = 0
        out[i, 1] = 0
        if length[i] < 0:
            continue
        at = off[i]
        negative = buf[at] & np.uint8(0x80) == 0
        mask = np.uint8(255) if negative else np.uint8(0)
        lo = np.uint64(0)
        hi = np.uint64(0)
        for g in range(sizes.shape[0]):
            v = _group(buf, at, sizes[g], mask)
            if g == 0:
                v ^= np.uint64(0x80) << np.uint64(8 * (sizes[0] - 1))
            at += sizes[g]
            ten = TENS[digits[g]]
            if v >= ten:
                return i
            lo, hi = times_plus(lo, hi, ten, v)
        out[i, 0], out[i, 1] = signed(lo, hi, negative)
    return -1


@kernel
def decimal_text(buf, off, length, sizes, digits, whole_groups, size, out):
    """DECIMAL of any size as the server prints it, to out[i]; size[i]: bytes written. As decimals()."""
    for i in range(off.shape[0]):
        size[i] = 0
        if length[i] < 0:
            continue
        at = off[i]
        negative = buf[at] & np.uint8(0x80) == 0
        mask = np.uint8(255) if negative else np.uint8(0)
        d = 0
        if negative:
            out[i, d] = 45
            d += 1
        begun = False
        for g in range(sizes.shape[0]):
            v = _group(buf, at, sizes[g], mask)
            if g == 0:
                v ^= np.uint64(0x80) << np.uint64(8 * (sizes[0] - 1))
            at += sizes[g]
            if v >= TENS[digits[g]]:
                return i
            if g == whole_groups:
                if not begun:
                    out[i, d] = 48
                    d += 1
                out[i, d] = 46
                d += 1
                begun = True
            for k in range(digits[g] - 1, -1, -1):
                digit = v // TENS[k] % np.uint64(10)
                if begun or digit:
                    out[i, d] = np.uint8(48 + digit)
                    d += 1
                    begun = True
        if not begun:
            out[i, d] = 48
            d += 1
        size[i] = d
    return -1
