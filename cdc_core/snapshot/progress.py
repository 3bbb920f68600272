"""How far a copy is: rows and bytes, rate and time left, for each table and in all.

It does no I/O. Rows and bytes are counted by the copier itself. How many rows a table has is the server's estimate from
when its copy began, which may be off by half; the rows that are still to come are taken to be as large as those read so
far. The time left counts a row as its bytes and a fixed cost: rows that grow take longer, but not in proportion.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cdc_core.meta import TableCopy
from cdc_core.meta.copy_pace import RATE_S, Rate
from cdc_core.words import counted, duration, size


@dataclass(frozen=True, slots=True)
class Figures:
    """total: rows in all, None where nothing is known. rows_s, bytes_s, left_s: None until they can be told.

    size_bytes: of the values read; total_bytes: of all, as far as it is known.
    waiting: why nothing is read at the moment.
    """

    rows: int
    size_bytes: int
    total: int | None
    rows_s: float | None
    bytes_s: float | None
    left_s: float | None
    complete: bool = False
    waiting: str = ""
    total_bytes: int | None = None

    @property
    def fraction(self) -> float | None:
        if self.complete:
            return 1.0
        return min(1.0, self.rows / self.total) if self.total else None


def figures_of(copy: TableCopy) -> Figures:
    """Without a rate: of a copy as meta has it."""
    progress = CopyProgress({})
    progress.update(copy)
    return progress.table(copy.table)


class CopyProgress:
    """Takes what the copier reports; threads may share it.

    expected: the tables to copy, with the server's estimates of their rows.
    """

    def __init__(self, expected: Mapping[str, int | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._expected = dict(expected)
        self._clock = clock
        self._lock = threading.Lock()
        self._copies: dict[str, TableCopy] = {}
        self._seen: dict[str, deque[tuple[float, int, int]]] = {}

    def update(self, copy: TableCopy) -> None:
        with self._lock:
            known = self._copies.get(copy.table)
            if known is not None and copy.rows < known.rows and copy.limit == known.limit and copy.planned is not None:
                return  # of two readers that report at once, the later has more
            begun_again = known is not None and copy.rows < known.rows
            self._copies[copy.table] = copy
            now_s = self._clock()
            rows_of_all, bytes_of_all = self._sums()
            for name, rows, size_bytes in ((copy.table, copy.rows, copy.size_bytes), ("", rows_of_all, bytes_of_all)):
                seen = self._seen.setdefault(name, deque())
                if begun_again:
                    seen.clear()
                seen.append((now_s, rows, size_bytes))
                while len(seen) > 2 and seen[1][0] < now_s - RATE_S:
                    seen.popleft()

    def table(self, name: str) -> Figures:
        with self._lock:
            copy = self._copies.get(name)
            if copy is None:
                return Figures(0, 0, self._expected.get(name), None, None, None)
            return self._figures(
                name, copy.rows, copy.size_bytes, self._total(name), self._total_bytes(name),
                complete=copy.complete, waiting=copy.waiting,
            )  # fmt: skip

    def overall(self) -> Figures:
        with self._lock:
            totals = [self._total(name) for name in self._expected]
            total = None if any(one is None for one in totals) else sum(one or 0 for one in totals)
            sizes = [self._total_bytes(name) for name in self._expected]
            total_bytes = None if any(one is None for one in sizes) else sum(one or 0 for one in sizes)
            rows, size_bytes = self._sums()
            copies = [self._copies.get(name) for name in self._expected]
            return self._figures(
                "", rows, size_bytes, total, total_bytes,
                complete=all(one is not None and one.complete for one in copies),
                waiting=next((one.waiting for one in self._copies.values() if one.waiting), ""),
            )  # fmt: skip

    def _total(self, name: str) -> int | None:
        copy = self._copies.get(name)
        if copy is None:
            return self._expected.get(name)
        return copy.rows if copy.complete else max(copy.rows_estimated, copy.rows)

    def _total_bytes(self, name: str) -> int | None:
        """Rows of a table that has not begun are taken to be as large as those that were read of others."""
        total, copy = self._total(name), self._copies.get(name)
        rows, size_bytes = (copy.rows, copy.size_bytes) if copy is not None and copy.rows else self._sums()
        return None if total is None or not rows else round(total * size_bytes / rows)

    def _sums(self) -> tuple[int, int]:
        copies = self._copies.values()
        return sum(one.rows for one in copies), sum(one.size_bytes for one in copies)

    def _figures(
        self, name: str, rows: int, size_bytes: int, total: int | None, total_bytes: int | None, *,
        complete: bool, waiting: str,
    ) -> Figures:  # fmt: skip
        seen = self._seen.get(name)
        rows_s = bytes_s = left_s = None
        if seen:
            first_s, first_rows, first_bytes = seen[0]
            took_s = seen[-1][0] - first_s
            if took_s > 0 and rows > first_rows:
                rows_s, bytes_s = (rows - first_rows) / took_s, (size_bytes - first_bytes) / took_s
                if total is not None and total_bytes is not None:
                    left_s = Rate(rows_s, bytes_s).left_s(max(0, total - rows), max(0, total_bytes - size_bytes))
        return Figures(
            rows, size_bytes, total, rows_s, bytes_s, 0.0 if complete else left_s, complete, waiting, total_bytes
        )  # fmt: skip


def progress_text(figures: Figures) -> str:
    """Rows and bytes, read and of all; the rate, and the time that is left. An estimate has a ~."""
    fraction = figures.fraction
    of = "" if figures.total is None else f" of ~{figures.total:,}"
    if figures.complete:
        return f"all {counted(figures.rows, 'row')} read, {size(figures.size_bytes)}"
    parts = [f"{figures.rows:,}{of} rows", size(figures.size_bytes)]
    if figures.total_bytes is not None and not figures.complete:
        parts[1] += f" of ~{size(figures.total_bytes)}"
    if fraction is not None:
        parts[0] += f" ({fraction:.0%})"
    if figures.waiting:
        return f"{', '.join(parts)}; waits: {figures.waiting}"
    if figures.rows_s and figures.bytes_s:
        parts.append(f"{figures.rows_s:,.0f} rows/s, {size(int(figures.bytes_s))}/s")
    if figures.left_s:
        parts.append(f"about {duration(figures.left_s)} left")
    return ", ".join(parts)
