"""How large the next chunk is: by the size of the rows read before, and by the time that reading took."""

from __future__ import annotations

from cdc_core.operations.copy.chunks import chunk_rows


class Pace:
    """chunk_bytes, chunk_s: what a chunk should not exceed, in bytes and in time to read. row_bytes: of a row.

    first_rows: of the chunks before the first was read, at most: a server's estimate of its rows' size may be that of a
    table that was almost empty. None: row_bytes can be relied on.
    """

    def __init__(
        self, chunk_bytes: int, chunk_s: float, row_bytes: float = 0.0, *, first_rows: int | None = None
    ) -> None:
        self.row_bytes = row_bytes
        self._chunk_bytes = chunk_bytes
        self._chunk_s = chunk_s
        self._most_rows = first_rows or 1 << 62
        self._first = first_rows is not None

    @property
    def rows(self) -> int:
        """Of the next chunk."""
        return min(chunk_rows(self._chunk_bytes, self.row_bytes), self._most_rows)

    def read(self, rows: int, size_bytes: int, took_s: float) -> None:
        """A chunk was read. size_bytes: of the values. took_s: how long its read view was open."""
        if not rows:
            return
        self.row_bytes = size_bytes / rows
        if took_s > self._chunk_s or self._first:
            self._first = False
            took_s = max(took_s, 0.001)
            self._most_rows = max(1, int(rows * self._chunk_s / took_s))
        elif took_s < self._chunk_s / 2:
            self._most_rows = max(self._most_rows, 2 * rows)
