"""Kernels of MariaDB's UUID, INET4 and INET6: bytes to the server's own text.

Source: MariaDB plugin/type_uuid/sql_type_uuid.h (segments, rec_need_swap), plugin/type_inet/sql_type_inet.cc.
"""

from __future__ import annotations

import numpy as np

from cdc_core.binlog.compiled import kernel

# mypy: disable-error-code="no-untyped-def"

UUID, INET4, INET6 = range(3)
TEXT_WIDTH = 48


@kernel
def _hex(out, at, nibble):
    out[at] = np.uint8(48 + nibble if nibble < 10 else 87 + nibble)
    return at + 1


@kernel
def _dotted(buf, o, out, at):
    for k in range(4):
        v = buf[o + k]
        if k:
            out[at] = 46
            at += 1
        if v >= 100:
            out[at] = 48 + v // 100
            at += 1
        if v >= 10:
            out[at] = 48 + v // 10 % 10
            at += 1
        out[at] = 48 + v % 10
        at += 1
    return at


@kernel
def _uuid(buf, o, out, at):
    """Versions 1 to 5 of the common variant are stored with their segments swapped: bit 7 of byte 6 is set and
    byte 8 is not 0; other uuids are stored as they print."""
    swapped = buf[o + 6] & 0x80 != 0 and buf[o + 8] > 0 and buf[o + 8] <= 0x80
    for k in range(16):
        if k == 4 or k == 6 or k == 8 or k == 10:
            out[at] = 45
            at += 1
        j = k
        if swapped:
            j = k + 12 if k < 4 else k + 6 if k < 6 else k + 2 if k < 8 else k - 2 if k < 10 else k - 10
        at = _hex(out, at, np.int64(buf[o + j] >> 4))
        at = _hex(out, at, np.int64(buf[o + j] & 15))
    return at


@kernel
def _inet6(buf, o, out, at):
    """Groups in hex without leading zeros; the first longest run of zero groups, be it one, is '::'; the last
    two groups are dotted in ::a.b.c.d and ::ffff:a.b.c.d."""
    best = -1
    best_size = 0
    g = 0
    while g < 8:
        n = 0
        while g + n < 8 and buf[o + 2 * (g + n)] == 0 and buf[o + 2 * (g + n) + 1] == 0:
            n += 1
        if n > best_size:
            best = g
            best_size = n
        g += n + 1
    dotted = best == 0 and (best_size == 6 or (best_size == 5 and buf[o + 10] == 255 and buf[o + 11] == 255))
    g = 0
    while g < 8:
        if g == best:
            out[at] = 58
            at += 1
            g += best_size
            if g == 8:
                out[at] = 58
                at += 1
            continue
        if g:
            out[at] = 58
            at += 1
        if dotted and g == 6:
            return _dotted(buf, o + 12, out, at)
        v = np.int64(buf[o + 2 * g]) << 8 | np.int64(buf[o + 2 * g + 1])
        if v >> 12:
            at = _hex(out, at, v >> 12)
        if v >> 8:
            at = _hex(out, at, v >> 8 & 15)
        if v >> 4:
            at = _hex(out, at, v >> 4 & 15)
        at = _hex(out, at, v & 15)
        g += 1
    return at


@kernel
def text(kind, buf, off, valid, size, out):
    """Text of each value to out[i * TEXT_WIDTH:]; size[i]: bytes written."""
    for i in range(off.shape[0]):
        size[i] = 0
        if not valid[i]:
            continue
        base = np.int64(i) * TEXT_WIDTH
        if kind == UUID:
            end = _uuid(buf, off[i], out, base)
        elif kind == INET4:
            end = _dotted(buf, off[i], out, base)
        else:
            end = _inet6(buf, off[i], out, base)
        size[i] = end - base
