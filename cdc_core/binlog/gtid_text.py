"""Texts of many GTIDs at once, compiled: written from numbers, and read back to runs of consecutive ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_core.binlog.compiled import allocating, kernel

# mypy: disable-error-code="no-untyped-def"

Longs = npt.NDArray[np.int64]

_OPEN = 64
"""Names whose runs are continued side by side."""
_COLON, _DASH, _COMMA, _ZERO = ord(":"), ord("-"), ord(","), ord("0")


@kernel
def _digits(value):
    n = 1
    while value >= 10:
        value //= 10
        n += 1
    return n


@kernel
def _put(out, to, value, n):
    for k in range(n):
        out[to + n - 1 - k] = np.uint8(_ZERO + value % 10)
        value //= 10
    return to + n


@kernel
def sizes(prefix_ends, name, low, high, ends):
    """ends[i + 1]: the end of the text of entry i: its name's prefix, low, and `-high` if that differs."""
    at = 0
    for i in range(name.shape[0]):
        m = name[i]
        if m >= 0:
            at += prefix_ends[m + 1] - prefix_ends[m] + _digits(low[i])
            if high[i] != low[i]:
                at += 1 + _digits(high[i])
        ends[i + 1] = at


@kernel
def texts(prefix, prefix_ends, name, low, high, ends, out):
    """The texts that `sizes` measured."""
    for i in range(name.shape[0]):
        m = name[i]
        if m < 0:
            continue
        source = prefix[prefix_ends[m] : prefix_ends[m + 1]]
        n = source.shape[0]
        target = out[ends[i] : ends[i] + n]
        for k in range(n):
            target[k] = source[k]
        to = _put(out, np.int64(ends[i]) + n, low[i], _digits(low[i]))
        if high[i] != low[i]:
            out[to] = _DASH
            _put(out, to + 1, high[i], _digits(high[i]))


def written(prefixes: Sequence[str], name: Longs, low: Longs, high: Longs) -> pa.StringArray:
    """`prefixes[name]` and the number, or `low-high`; "" where name is -1."""
    raw = [prefix.encode() for prefix in prefixes]
    prefix_ends = np.zeros(len(raw) + 1, np.int64)
    np.cumsum([len(one) for one in raw], out=prefix_ends[1:])
    ends = np.zeros(len(name) + 1, np.int32)
    sizes(prefix_ends, name, low, high, ends)
    out = np.empty(int(ends[-1]), np.uint8)
    texts(np.frombuffer(b"".join(raw) or b"\0", np.uint8), prefix_ends, name, low, high, ends, out)
    return pa.Array.from_buffers(pa.string(), len(name), [None, pa.py_buffer(ends), pa.py_buffer(out)])


@allocating
def runs(ends, data, first, last, low, high):
    """Runs of texts `name:number` (`name-number` where there is no colon) with consecutive numbers: the rows where one
    begins and was last continued, and its numbers. Any other text is its own run, with low -1; for a MariaDB domain
    and server the last number implies the others. Returns the number of runs; empty texts are skipped."""
    count = 0
    going = np.full(_OPEN, -1, np.int64)
    oldest = 0
    for i in range(ends.shape[0] - 1):
        start = np.int64(ends[i])
        stop = np.int64(ends[i + 1])
        if start == stop:
            continue
        text = data[start:stop]
        n = text.shape[0]
        split = n
        value = np.int64(0)
        power = np.int64(1)
        while split > 0 and n - split < 18 and 0 <= np.int64(text[split - 1]) - _ZERO <= 9:
            split -= 1
            value += power * (np.int64(text[split]) - _ZERO)
            power *= 10
        simple = 1 < split < n and (text[split - 1] == _COLON or text[split - 1] == _DASH)
        modern = simple and text[split - 1] == _COLON
        if simple:
            for k in range(split - 1):
                if text[k] == _COMMA or (not modern and text[k] == _COLON):
                    simple = False
                    break
        if simple:
            found = -1
            for k in range(_OPEN):
                r = going[k]
                if r < 0:
                    break
                known = np.int64(ends[first[r]])
                # No name is the start of another: `uuid:` is followed by a number or a tag.
                if ends[first[r] + 1] - known <= split or np.int64(data[known + split]) - _ZERO > 9:
                    continue
                same = data[known : known + split]
                differs = np.uint8(0)
                for b in range(split):
                    differs |= same[b] ^ text[b]
                if differs == 0:
                    found = k
                    break
            if found >= 0:
                r = going[found]
                if modern and value == high[r] + 1:
                    high[r] = value
                    last[r] = i
                    continue
                if not modern and value >= high[r]:
                    low[r] = value
                    high[r] = value
                    last[r] = i
                    continue
                going[found] = count
            else:
                going[oldest] = count
                oldest = (oldest + 1) % _OPEN
        first[count] = i
        last[count] = i
        low[count] = value if simple else -1
        high[count] = value
        count += 1
    return count


def condensed(gtids: pa.StringArray) -> list[str]:
    """Fewer texts for the same set, in the order in which each was last extended."""
    ends = np.frombuffer(gtids.buffers()[1], np.int32, len(gtids) + 1, 4 * gtids.offset)
    raw = gtids.buffers()[2]
    data = np.frombuffer(raw if raw is not None and raw.size else b"\0", np.uint8)
    first, last, low, high = (np.empty(len(gtids), np.int64) for _ in range(4))
    count = runs(ends, data, first, last, low, high)
    order = np.argsort(last[:count], kind="stable")
    found = []
    for row, lowest, highest in zip(*(column[:count][order].tolist() for column in (first, low, high)), strict=True):
        text: str = gtids[row].as_py()
        if lowest >= 0:
            prefix = text.removesuffix(text.rpartition(":" if ":" in text else "-")[2])
            text = f"{prefix}{lowest}" if lowest == highest else f"{prefix}{lowest}-{highest}"
        found.append(text)
    return found
