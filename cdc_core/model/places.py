"""Values and rows of Arrow by their places, copied only where they have to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Values = TypeVar("Values", pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def at_places(values: Values, places: npt.NDArray[np.integer[Any]]) -> Values:
    """The values at these places, in the order of the places; not copied where each place follows the one before."""
    if len(places) and int(places[-1]) - int(places[0]) == len(places) - 1 and (np.diff(places) == 1).all():
        return values.slice(int(places[0]), len(places))
    return values.take(pa.array(places))


def rows_where(rows: Rows, flags: pa.Array | pa.ChunkedArray | npt.NDArray[np.bool_]) -> Rows:
    """The rows that have the flag; not copied where all have it, as is usual."""
    kept = pa.array(flags) if isinstance(flags, np.ndarray) else flags
    return rows if pc.all(kept, skip_nulls=False).as_py() else rows.filter(kept)


def in_order(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows in the order of the key."""
    return at_places(rows, np.asarray(order_of(rows, key)))


def order_of(rows: pa.Table, names: Sequence[str], *, nulls: str = "at_start") -> pa.UInt64Array:
    """The places of the rows in the order of these columns."""
    # By position: names may have dots, which would lead into a struct.
    columns = [rows.column(name) for name in names]
    plain = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column for column in columns
    ]
    numbered = pa.table(plain, names=[f"c{at}" for at in range(len(names))])
    return pc.sort_indices(numbered, sort_keys=[(name, "ascending", nulls) for name in numbered.column_names])


def repeated(text: str, count: int) -> pa.DictionaryArray:
    """A text for each of so many rows, by number."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text], pa.string()))
