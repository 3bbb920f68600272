"""Kernels of DECIMAL, which a binary result set has as text."""

from __future__ import annotations

import numpy as np

from cdc_core.binlog.compiled import kernel
from cdc_core.binlog.kernels import TENS, signed, times_plus

# mypy: disable-error-code="no-untyped-def"


@kernel
def decimals(buf, off, length, precision, scale, out):
    """Numbers `[-]digits[.digits]` of at most 38 digits as 128-bit integers of units 10^-scale.

    [i, 0]: the low half, [i, 1]: the high one. Returns the first row that is not such a number, or has more digits than
    precision and scale allow, else -1.
    """
    for i in range(off.shape[0]):
        out[i, 0] = 0
        out[i, 1] = 0
        if length[i] < 0:
            continue
        at = off[i]
        end = at + length[i]
        negative = at < end and buf[at] == 45
        if negative:
            at += 1
        lo = np.uint64(0)
        hi = np.uint64(0)
        chunk = np.uint64(0)
        held = 0
        digits = 0
        fraction = -1
        seen = False
        while True:
            if at < end:
                c = buf[at]
                at += 1
                if c == 46:
                    if fraction >= 0:
                        return i
                    fraction = 0
                    continue
                if c < 48 or c > 57:
                    return i
                seen = True
                digit = np.uint64(c - np.uint8(48))
                if fraction >= 0:
                    fraction += 1
            elif fraction < scale:  # fewer digits than the type has: an expression's
                if fraction < 0:
                    fraction = 0
                    if scale == 0:
                        break
                digit = np.uint64(0)
                fraction += 1
            else:
                break
            if digit or digits:
                digits += 1
            chunk = chunk * np.uint64(10) + digit
            held += 1
            if held == 9:
                if hi == 0 and lo >> np.uint64(32) == 0:
                    lo = lo * TENS[9] + chunk
                else:
                    lo, hi = times_plus(lo, hi, TENS[9], chunk)
                chunk = np.uint64(0)
                held = 0
        if not seen or digits > precision or fraction > scale:
            return i
        lo, hi = times_plus(lo, hi, TENS[held], chunk)
        out[i, 0], out[i, 1] = signed(lo, hi, negative)
    return -1


@kernel
def without_zeros(buf, off, length):
    """Each number starts after the zeros that ZEROFILL puts before it."""
    for i in range(off.shape[0]):
        while length[i] > 1 and buf[off[i]] == 48 and buf[off[i] + 1] != 46:
            off[i] += 1
            length[i] -= 1
