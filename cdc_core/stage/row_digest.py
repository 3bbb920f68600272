"""A digest of rows: of every value and its place, however the rows were encoded, compressed or cut into batches.

Two sequences of rows under one schema have one digest if and only if they are equal, bit by bit (up to collisions of
SHA-256). Bytes behind a null do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_ROWS = 32_768


class RowDigest:
    """Takes rows in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        start = 0
        while start < rows.num_rows:
            some = rows.slice(start, _ROWS - self._held_rows)
            self._held.append(some)
            self._held_rows += some.num_rows
            start += some.num_rows
            if self._held_rows == _ROWS:
                self._drain()

    def hexdigest(self) -> str:
        """Of all rows; no more may be added."""
        self._drain()
        return self._hash.hexdigest()

    def _drain(self) -> None:
        if self._held_rows:
            table = pa.Table.from_batches(self._held).unify_dictionaries().combine_chunks()
            for name, column in zip(table.column_names, table.columns, strict=True):
                self._hash.update(name.encode())
                for chunk in column.chunks:
                    _add(self._hash.update, chunk)
            self._held, self._held_rows = [], 0


def _add(update: Callable[[bytes | memoryview[int]], None], array: pa.Array) -> None:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    update(f"{array.type} {len(array)} {array.null_count}".encode())
    if array.null_count:
        update(np.packbits(np.asarray(array.is_valid())).tobytes())
        array = array.drop_null()
    kind = array.type
    if pa.types.is_struct(kind):
        for child in array.flatten():
            _add(update, child)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        ends = _ends(array)
        update(np.diff(ends).tobytes())
        _add(update, array.values.slice(int(ends[0]), int(ends[-1] - ends[0])))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        ends, data = _ends(array), array.buffers()[2]
        update(np.diff(ends).tobytes())
        if data is not None:
            update(memoryview(data)[int(ends[0]) : int(ends[-1])])
    elif pa.types.is_boolean(kind):
        update(np.packbits(array.to_numpy(zero_copy_only=False)).tobytes())
    else:
        width = kind.bit_width // 8
        data = array.buffers()[1]
        if len(array) and data is not None:
            update(memoryview(data)[array.offset * width : (array.offset + len(array)) * width])


def _ends(array: pa.Array) -> npt.NDArray[np.int32]:
    """Where the values of each element begin, and where the last ones end."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32)[array.offset : array.offset + len(array) + 1]
