"""Kernels of DATE, DATETIME, TIMESTAMP and TIME, as MySQL has written them since 5.6 and MariaDB since 10.1.

A date that is not in the calendar (zero, 2024-02-31, year 0) does not exist in Arrow: it is flagged, and its text
comes from `text`, as the server prints it. Source: MySQL mysys/my_time.cc, verified against both servers by
tests/integration/test_binlog_types.py.
"""

from __future__ import annotations

import numpy as np

from cdc_core.binlog.compiled import kernel

# mypy: disable-error-code="no-untyped-def"

DATE, DATETIME2, TIME2, DATETIME_FIELDS, TIME_FIELDS = range(5)
"""Forms. DATE: u24 LE year<<9 | month<<5 | day. DATETIME2: u40 BE - 2^39: (year * 13 + month) 17 bits, day 5, hour 5,
minute 6, second 6; fraction BE. TIME2: one BE integer - 0x800000 << fraction bits: hour 10, minute 6, second 6,
fraction. FIELDS (binary result sets): u16 LE year, month, day, hour, minute, second, u32 LE microsecond; or sign, u32
LE days, hour, minute, second, u32 LE microsecond; the fields that are left out at the end are 0."""

DATE_TEXT, DATETIME_TEXT, TIME_TEXT = range(3)
TEXT_WIDTH = 32
"""More bytes than the longest text needs, even with hours that no server writes."""


@kernel
def _unsigned(buf, o, n, little):
    v = np.int64(0)
    for k in range(n):
        if little:
            v |= np.int64(buf[o + k]) << (8 * k)
        else:
            v = v << 8 | np.int64(buf[o + k])
    return v


@kernel
def _split(form, buf, o, n):
    """(negative, year, month, day, hour, minute, second, microsecond) of one value."""
    y = mo = d = h = mi = s = us = np.int64(0)
    negative = False
    if form == DATE:
        v = _unsigned(buf, o, 3, True)
        y, mo, d = v >> 9, v >> 5 & 15, v & 31
    elif form == DATETIME2:
        v = _unsigned(buf, o, 5, False) - 0x8000000000
        k = n - 5
        us = _unsigned(buf, o + 5, k, False)
        for _ in range(3 - k):
            us *= 100
        ym = v >> 22
        y, mo = ym // 13, ym % 13
        d, h, mi, s = v >> 17 & 31, v >> 12 & 31, v >> 6 & 63, v & 63
    elif form == TIME2:
        k = n - 3
        v = _unsigned(buf, o, n, False) - (np.int64(0x800000) << (8 * k))
        negative = v < 0
        v = abs(v)
        us = v & ((np.int64(1) << (8 * k)) - 1)
        for _ in range(3 - k):
            us *= 100
        v = v >> (8 * k)
        h, mi, s = v >> 12, v >> 6 & 63, v & 63
    elif form == DATETIME_FIELDS:
        if n >= 4:
            y, mo, d = _unsigned(buf, o, 2, True), np.int64(buf[o + 2]), np.int64(buf[o + 3])
        if n >= 7:
            h, mi, s = np.int64(buf[o + 4]), np.int64(buf[o + 5]), np.int64(buf[o + 6])
        if n >= 11:
            us = _unsigned(buf, o + 7, 4, True)
    else:
        if n >= 8:
            negative = buf[o] != 0
            h = _unsigned(buf, o + 1, 4, True) * 24 + np.int64(buf[o + 5])
            mi, s = np.int64(buf[o + 6]), np.int64(buf[o + 7])
        if n >= 12:
            us = _unsigned(buf, o + 8, 4, True)
    return negative, y, mo, d, h, mi, s, us


@kernel
def _in_calendar(y, mo, d):
    if y < 1 or y > 9999 or mo < 1 or mo > 12 or d < 1:
        return False
    if mo == 2:
        return d <= (29 if y % 4 == 0 and (y % 100 != 0 or y % 400 == 0) else 28)
    return d <= (30 if mo == 4 or mo == 6 or mo == 9 or mo == 11 else 31)


@kernel
def _days(y, mo, d):
    """Days since 1970-01-01 in the proleptic Gregorian calendar; years count from March here."""
    if mo <= 2:
        y -= 1
        mo += 12
    era = y // 400
    of_era = y - era * 400
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * (mo - 3) + 2) // 5 + d - 1 - 719468


@kernel
def dates(form, buf, off, length, days, out, bad):
    """days: out gets days since 1970, else microseconds. bad: 1 where the value is not in the calendar.

    Returns how many are bad.
    """
    found = 0
    for i in range(off.shape[0]):
        bad[i] = 0
        out[i] = 0
        if length[i] < 0:
            continue
        _, y, mo, d, h, mi, s, us = _split(form, buf, off[i], length[i])
        if not _in_calendar(y, mo, d) or h > 23 or mi > 59 or s > 59 or us > 999999:
            bad[i] = 1
            found += 1
        elif days:
            out[i] = _days(y, mo, d)
        else:
            out[i] = (((_days(y, mo, d) * 24 + h) * 60 + mi) * 60 + s) * 1000000 + us
    return found


@kernel
def timestamps(unit_us, buf, off, length, out, bad):
    """TIMESTAMP: 4 bytes of seconds, then a fraction in units of unit_us. 0 is the zero date."""
    found = 0
    for i in range(off.shape[0]):
        bad[i] = 0
        out[i] = 0
        if length[i] < 0:
            continue
        s = _unsigned(buf, off[i], 4, False)
        us = _unsigned(buf, off[i] + 4, length[i] - 4, False) * unit_us
        if (s == 0 and us == 0) or us > 999999:
            bad[i] = 1
            found += 1
        out[i] = s * 1000000 + us
    return found


@kernel
def _digits(out, at, value, least):
    """Decimal digits of `value`, at least `least` of them; returns the offset after them."""
    n = 1
    top = np.int64(10)
    while value >= top and n < 18:
        n += 1
        top *= 10
    n = max(n, least)
    for k in range(n - 1, -1, -1):
        out[at + k] = np.uint8(48 + value % 10)
        value //= 10
    return at + n


@kernel
def text(form, kind, fsp, buf, off, length, size, out):
    """What the server prints, to out[i * TEXT_WIDTH:]; size[i]: bytes written. The fraction has exactly fsp digits."""
    for i in range(off.shape[0]):
        size[i] = 0
        if length[i] < 0:
            continue
        negative, y, mo, d, h, mi, s, us = _split(form, buf, off[i], length[i])
        base = np.int64(i) * TEXT_WIDTH
        at = base
        if negative:
            out[at] = 45
            at += 1
        if kind != TIME_TEXT:
            at = _digits(out, at, y, 4)
            out[at] = 45
            at = _digits(out, at + 1, mo, 2)
            out[at] = 45
            at = _digits(out, at + 1, d, 2)
        if kind == DATETIME_TEXT:
            out[at] = 32
            at += 1
        if kind != DATE_TEXT:
            at = _digits(out, at, h, 2)
            out[at] = 58
            at = _digits(out, at + 1, mi, 2)
            out[at] = 58
            at = _digits(out, at + 1, s, 2)
            if fsp:
                out[at] = 46
                at += 1
                for _ in range(6 - fsp):
                    us //= 10
                _digits(out, at, us, fsp)
                at += fsp
        size[i] = at - base
