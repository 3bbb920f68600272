"""How far a copy is: the rows read, of the server's estimate from when the copy began, and the rate of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cdc_core.meta import TableCopy
from cdc_core.model.readable import counted


class CopyProgress:
    """Takes what the copier reports; threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._first: dict[str, tuple[float, int]] = {}

    def text(self, copy: TableCopy) -> str:
        """For people: on the terminal, and in the log of an Airflow task. An estimate has a ~."""
        if copy.complete:
            return f"all {counted(copy.rows, 'row')} read"
        text = f"{copy.rows:,} of ~{rows_in_all(copy):,} rows"
        if copy.waiting:
            return f"{text}; waits: {copy.waiting}"
        with self._lock:
            now_s = self._clock()
            first_s, rows = self._first.get(copy.table, (now_s, copy.rows))
            if copy.rows <= rows:  # the first report, or the copy has begun again
                first_s, rows = self._first[copy.table] = now_s, copy.rows
        return f"{text}, {(copy.rows - rows) / (now_s - first_s):,.0f} rows/s" if now_s > first_s else text


def rows_in_all(copy: TableCopy) -> int:
    """As far as the server knows: never fewer than are read."""
    return copy.rows if copy.complete else max(copy.rows_estimated, copy.rows)
