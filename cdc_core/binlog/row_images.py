"""The images of many row events of one table map: the bytes as they came, joined, with the span of each event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdc_core.binlog import scan
from cdc_core.binlog.rows_event import RowsEvent
from cdc_core.binlog.wire import malformed


@dataclass(frozen=True, slots=True)
class RowImages:
    """Images of one table map, as columns: one element an event, in stream order.

    buffer:      uint8, the images of all events.
    start, stop: int64, the span of each event's images in it.
    kind:        uint8, INSERT, UPDATE or DELETE of rows_event.
    event:       int32, the caller's number of the event, copied to its rows.
    bitmaps:     the distinct pairs of (present, present_after) bitmaps; shape: int32, index into them.
    columns:     how many columns the events say that the table has.
    offset:      int64, where each event starts in `file`, for errors.
    partial:     bool, whether an event's after images may hold differences of JSON (PARTIAL_UPDATE_ROWS).
    """

    buffer: npt.NDArray[np.uint8]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]
    event: npt.NDArray[np.int32]
    bitmaps: tuple[tuple[bytes, bytes], ...]
    shape: npt.NDArray[np.int32]
    columns: int
    offset: npt.NDArray[np.int64]
    partial: npt.NDArray[np.bool_]
    file: str = ""

    def __len__(self) -> int:
        return len(self.start)

    def where(self, event: int) -> str:
        """`file:offset` of an event, by its index here."""
        return f"{self.file}:{self.offset[event]}"

    @classmethod
    def from_events(cls, events: Sequence[RowsEvent]) -> RowImages:
        """The images of `events`, which must be of one table map."""
        sizes = np.array([len(event.images) for event in events], dtype=np.int64)
        stop = np.cumsum(sizes)
        pairs = [(event.present, event.present_after) for event in events]
        distinct = tuple(dict.fromkeys(pairs))
        index = {pair: i for i, pair in enumerate(distinct)}
        columns = {event.columns for event in events}
        if len(columns) > 1:
            raise malformed(f"row events of one table with {sorted(columns)} columns", events[0].event.where)
        return cls(
            buffer=np.frombuffer(b"".join(event.images for event in events), dtype=np.uint8),
            start=stop - sizes,
            stop=stop,
            kind=np.array([event.kind for event in events], dtype=np.uint8),
            event=np.arange(len(events), dtype=np.int32),
            bitmaps=distinct,
            shape=np.array([index[pair] for pair in pairs], dtype=np.int32),
            columns=columns.pop() if columns else 0,
            offset=np.array([event.event.start for event in events], dtype=np.int64),
            partial=np.array([event.partial for event in events], dtype=np.bool_),
            file=events[0].event.file if events else "",
        )

    def for_kernels(self) -> scan.ImageSpans:
        """In the form for the kernels, which are compiled once, for a read-only buffer."""
        buffer = self.buffer.view()
        buffer.flags.writeable = False
        return scan.ImageSpans(buffer, self.start, self.stop, self.kind)
