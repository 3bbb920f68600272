"""Row images of one table, of many events, to Arrow columns.

`RowImages` keeps the bytes as they came, joined, with arrays that say where each event's images lie. The kernels
first scan all images once for the place of every value (scan.py), then fill one column after the other
(columns.py). No Python object is made per row.
Keeps true: every value is exact or stands in `literal`; bytes that do not fit the table's shape stop with the
place of their event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_core.binlog.events import Event
from cdc_core.binlog.rows_event import RowsEvent
from cdc_core.binlog.table_map import TableMap
from cdc_core.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class RowImages:
    """Images of one table map, as columns: one element an event, in stream order.

    buffer:      uint8, the images of all events.
    start, stop: int64, where each event's images lie in it.
    kind:        uint8, INSERT, UPDATE or DELETE of rows_event.
    event:       int32, the caller's number of the event, copied to its rows.
    bitmaps:     the distinct pairs of (present, present_after) bitmaps; shape: int32, index into them.
    offset:      int64, where each event starts in `file`, for errors.
    """

    buffer: npt.NDArray[np.uint8]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]
    event: npt.NDArray[np.int32]
    bitmaps: tuple[tuple[bytes, bytes], ...]
    shape: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    file: str = ""
    partial: bool = False

    def __len__(self) -> int:
        return len(self.start)

    @property
    def size_bytes(self) -> int:
        return len(self.buffer)

    @classmethod
    def of(cls, events: Sequence[RowsEvent], numbers: Sequence[int] | None = None) -> RowImages:
        """The images of `events`, which must be of one table map. numbers: the ordinal of each, 0.. by default."""
        sizes = np.array([len(event.images) for event in events], dtype=np.int64)
        stop = np.cumsum(sizes)
        pairs = [(event.present, event.present_after) for event in events]
        distinct = tuple(dict.fromkeys(pairs))
        index = {pair: i for i, pair in enumerate(distinct)}
        places: list[Event] = [event.event for event in events]
        return cls(
            buffer=np.frombuffer(b"".join(event.images for event in events), dtype=np.uint8),
            start=stop - sizes,
            stop=stop,
            kind=np.array([event.kind for event in events], dtype=np.uint8),
            event=np.array(range(len(events)) if numbers is None else numbers, dtype=np.int32),
            bitmaps=distinct,
            shape=np.array([index[pair] for pair in pairs], dtype=np.int32),
            offset=np.array([place.start for place in places], dtype=np.int64),
            file=places[0].file if places else "",
            partial=any(event.partial for event in events),
        )


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows in columns, n of them, in stream order.

    after:   one array per column of the schema (of its Arrow type, length n): the after image, for a delete the
             before image.
    before:  struct array of the same columns, length n: the before image of an update, else null.
    op:      dictionary<int32, string> of length n: c, u or d.
    literal: map<string, string> of length n: column -> exact text that the typed column cannot hold; a value of
             `before` is under `_before.<column>`. Null where there is none.
    event:   int32 of length n, `RowImages.event` of the event each row came from; ascending with it.
    rows_per_event: int64, rows in each event of the RowImages, in order.
    """

    after: tuple[pa.Array, ...]
    before: pa.StructArray
    op: pa.DictionaryArray
    literal: pa.MapArray
    event: npt.NDArray[np.int32]
    rows_per_event: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.event)


def count_rows(table_map: TableMap, images: RowImages, schema: TableSchema | None = None) -> npt.NDArray[np.int64]:
    """Rows in each event, without decoding a value. `schema` is needed only for temporal columns of the old codes
    (7, 11, 12), whose width MariaDB does not log. Raises as decode_rows does."""
    raise NotImplementedError


def decode_rows(schema: TableSchema, table_map: TableMap, images: RowImages) -> DecodedRows:
    """All rows of `images`, as `schema` (of `schema_of` for this table map) types them.

    Raises Refused `binlog.row_image` when a column is absent from the images, Refused `binlog.charset` for a
    character set that is not converted exactly, DataAtRisk `binlog.malformed` for bytes of another shape.
    """
    raise NotImplementedError
