"""Arrays that grow at their end: int64 columns of one length, and bytes. Each growth at least doubles them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]


class Int64Columns:
    """Named int64 columns of one length."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._all = np.empty((len(names), 256), np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> Longs:
        return self._all[self._names.index(name), : self._count]

    def clear(self) -> None:
        """Forgets the elements, and keeps their memory for the next ones."""
        self._count = 0

    def append(self, *values: int) -> None:
        """One element, a value for each name."""
        self._reserve(1)
        self._all[:, self._count] = values
        self._count += 1

    def extend(self, count: int, **values: npt.NDArray[np.integer] | int) -> None:
        """`count` elements: a value for all of them, or one for each."""
        self._reserve(count)
        part = self._all[:, self._count : self._count + count]
        for number, name in enumerate(self._names):
            part[number] = values[name]
        self._count += count

    def _reserve(self, more: int) -> None:
        need = self._count + more
        if need > self._all.shape[1]:
            grown = np.empty((len(self._names), max(need, 2 * self._all.shape[1])), np.int64)
            grown[:, : self._count] = self._all[:, : self._count]
            self._all = grown


class GrowableBytes:
    """Bytes, filled from the front: `data` has `len(self)` of them, and free space after them."""

    def __init__(self) -> None:
        self.data: npt.NDArray[np.uint8] = np.empty(1 << 16, np.uint8)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forgets the bytes, and keeps their memory for the next ones."""
        self._count = 0

    def add_space(self, more: int) -> int:
        """Where `more` bytes begin, for the caller to fill."""
        start, need = self._count, self._count + more
        if need > len(self.data):
            grown = np.empty(max(need, 2 * len(self.data)), np.uint8)
            grown[:start] = self.data[:start]
            self.data = grown
        self._count = need
        return start
