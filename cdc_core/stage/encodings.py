"""How the values of a column are best encoded in Parquet, judged by the first of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SAMPLE, _LEAST_SAMPLE = 4096, 256
_SAMPLE_BYTES = 1 << 20
"""This many first values decide whether a column repeats; fewer if they are long."""
_REPEATS = 8
"""A column is dictionary-encoded when its first values repeat this often on average."""
_EVEN_BITS = 16
"""A column is delta-encoded when the steps between its first values differ by at most so many bits on average."""
_BLOCK = 32
"""Values of which DELTA_BINARY_PACKED stores the steps in equally many bits."""


def repeats(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary of these first values is small."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_nested(kind) or pa.types.is_floating(kind):
        return False
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        # A dictionary of long values would outgrow its page, and looking for one takes longer than writing them.
        held = pc.sum(pc.binary_length(column)).as_py() or 0
        column = column.slice(0, max(_LEAST_SAMPLE, len(column) * _SAMPLE_BYTES // max(held, 1)))
    present = len(column) - column.null_count
    return bool(present and pc.count_distinct(column).as_py() * _REPEATS <= present)


def even(column: pa.ChunkedArray) -> bool:
    """Whether an encoding of steps is small: that of random values would take as much space, and more time."""
    kind = column.type
    if not (kind == pa.int64() or pa.types.is_timestamp(kind)):
        return False
    steps = np.diff(column.drop_null().combine_chunks().cast(pa.int64()).to_numpy())
    whole = steps[: len(steps) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    if not len(whole):
        return False
    # As floats: the range of 64-bit steps does not fit into 64 bits.
    ranges = whole.max(axis=1).astype(np.float64) - whole.min(axis=1)
    return bool(np.log2(ranges + 1).mean() <= _EVEN_BITS)
