"""The versions of merged rows, whole columns at a time (model/version.py says what a version is)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.merged_columns import ORIGIN
from cdc_core.model.staged_columns import ROW, SEQ, SOURCE, TS
from cdc_core.model.version import encode_numbers

VERSION_PARTS = (TS, SEQ, ROW, SOURCE, ORIGIN)
"""The columns that say a version. Rows may lack the last one."""


def version_bytes(rows: pa.RecordBatch) -> pa.BinaryArray:
    """The version of each row (model.version)."""
    stamps = rows.column(TS).cast(pa.timestamp("us")).cast(pa.int64())
    numbers = encode_numbers(_ints(stamps), _ints(rows.column(SEQ)), _ints(rows.column(ROW)))
    names, name_of = _names(rows)
    if len(names) == 1:
        return _named(numbers, names[0])
    order = np.argsort(name_of, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    parts = np.split(numbers[order], np.cumsum(np.bincount(name_of, minlength=len(names)))[:-1]) if names else []
    each = [_named(part, name) for part, name in zip(parts, names, strict=True)]
    return pa.concat_arrays([pa.array([], pa.binary()), *each]).take(pa.array(place))


def _named(numbers: npt.NDArray[np.uint8], name: bytes) -> pa.BinaryArray:
    """Versions that end in one name."""
    count, head = numbers.shape
    versions = np.empty((count, head + len(name)), np.uint8)
    versions[:, :head] = numbers
    versions[:, head:] = np.frombuffer(name, np.uint8)
    ends = np.arange(0, versions.size + 1, versions.shape[1], dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(versions)])


def _names(rows: pa.RecordBatch) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """(what follows the numbers in versions: the source and, where rows have it, the origin, after its zero byte; which
    of these each row has)."""
    sources = _dictionary(rows.column(SOURCE))
    heads, tails = [name.encode() for name in sources.dictionary.to_pylist()], [b""]
    name_of = _ints(sources.indices)
    if ORIGIN in rows.schema.names:
        origins = _dictionary(rows.column(ORIGIN))
        tails += [b"\0" + name.encode() for name in origins.dictionary.to_pylist()]
        name_of = name_of * len(tails) + _ints(pc.fill_null(origins.indices, -1)) + 1
    used = np.flatnonzero(np.bincount(name_of, minlength=len(heads) * len(tails)))
    number = np.zeros(len(heads) * len(tails), np.int64)
    number[used] = np.arange(len(used))
    return [heads[at // len(tails)] + tails[at % len(tails)] for at in used.tolist()], number[name_of]


def _dictionary(values: pa.Array) -> pa.DictionaryArray:
    return values if pa.types.is_dictionary(values.type) else values.dictionary_encode()


def _ints(values: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(values.cast(pa.int64()))
