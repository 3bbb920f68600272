"""The versions of merged rows, whole columns at a time (model/version.py says what a version is)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.merged_columns import ORIGIN
from cdc_core.model.staged_columns import ROW, SEQ, SOURCE, TS
from cdc_core.model.version import encode_numbers


def version_bytes(rows: pa.RecordBatch) -> pa.BinaryArray:
    """The version of each row (model.version)."""
    stamps = rows.column(TS).cast(pa.timestamp("us")).cast(pa.int64())
    numbers = encode_numbers(_ints(stamps), _ints(rows.column(SEQ)), _ints(rows.column(ROW)))
    count = rows.num_rows
    offsets = np.arange(0, (count + 1) * 24, 24, dtype=np.int32)
    head = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(numbers.tobytes())]
    )
    return pc.binary_join_element_wise(head, *_version_names(rows), b"")


def _version_names(rows: pa.RecordBatch) -> list[pa.Array]:
    """What follows the numbers: the source and, where rows have it, the origin, after its zero byte."""
    sources = _dictionary(rows.column(SOURCE))
    names = pa.array([name.encode() for name in sources.dictionary.to_pylist()], pa.binary())
    if ORIGIN not in rows.schema.names:
        return [names.take(sources.indices)]
    origins = _dictionary(rows.column(ORIGIN))
    tails = pa.array([b"\0" + name.encode() for name in origins.dictionary.to_pylist()], pa.binary())
    return [names.take(sources.indices), pc.fill_null(tails.take(origins.indices), b"")]


def _dictionary(values: pa.Array) -> pa.DictionaryArray:
    return values if pa.types.is_dictionary(values.type) else values.dictionary_encode()


def _ints(values: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(values.cast(pa.int64()))
