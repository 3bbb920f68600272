"""The rows of one range, of source and target: compared in memory (columnwise), and by `Comparison` where they differ.

Only rows of keys that differ reach `Comparison`. A range that is larger than MEMORY_BYTES (a table that cannot be cut,
or a target with many rows that the source does not have) goes there as a whole, so that memory is bounded. It must keep
true that both ways find the same keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.operations.verify import columnwise
from cdc_core.operations.verify.columnwise import ColumnPiece
from cdc_core.operations.verify.comparison import Comparison, Side

MEMORY_BYTES = 256 << 20
"""Of the rows of a range, of both sides together."""
_SIDES = ("source", "target")


class RangeRows:
    """Add all rows, then call `differing`; the other results are for afterwards, until it is closed. opened: makes the
    comparison of a range, if one is needed."""

    def __init__(self, opened: Callable[[ExitStack], Comparison]) -> None:
        self._opened = opened
        self._stack = ExitStack()
        self._pieces: dict[str, list[tuple[int, ColumnPiece]]] = {side: [] for side in _SIDES}
        self._rows = dict.fromkeys(_SIDES, 0)
        self._size_bytes = 0
        self._spilled = False
        self._comparison: Comparison | None = None
        self._sums: dict[str, int] = {}

    def close(self) -> None:
        self._stack.close()

    @property
    def comparison(self) -> Comparison:
        """That judges the keys that differ."""
        if self._comparison is None:
            self._comparison = self._opened(self._stack)
        return self._comparison

    def add(self, side: str, piece: ColumnPiece, places: npt.NDArray[np.int64]) -> None:
        """Rows of a side, "source" or "target". places: the shard of each."""
        self._rows[side] += piece.rows.num_rows
        if not self._spilled:
            self._pieces[side] += _by_place(piece, places)
            self._size_bytes += piece.rows.nbytes
            if self._size_bytes > MEMORY_BYTES:
                self._spill()
        else:
            self.comparison.add(side, piece.keys, piece.texts, pa.array(places))

    def differing(self) -> int:
        """How many keys do not have the same rows on both sides."""
        if self._spilled:
            return self.comparison.differing()
        places = sorted({place for side in _SIDES for place, _ in self._pieces[side]})
        apart = [place for place in places if not columnwise.equal(*(self._of(side, place) for side in _SIDES))]
        keys = self._keys_of(apart) if apart else pa.array([], pa.string())
        found = 0
        if keys is None or len(keys):
            for side, place, piece in self._all():
                some = piece if keys is None else piece.filter(pc.is_in(piece.keys, value_set=keys))
                if some.rows.num_rows:
                    self.comparison.add(side, some.keys, some.texts, _repeated(place, some))
            found = self.comparison.differing()
        # Equal rows in another order have another digest: one of both sides is enough.
        mine = self._digest("source")
        self._sums = {"source": mine, "target": self._digest("target") if found else mine}
        self._pieces = {side: [] for side in _SIDES}
        return found

    def side(self, side: str) -> Side:
        """What was read of a side."""
        if self._spilled:
            return self.comparison.side(side)
        return Side(self._rows[side], f"{self._sums[side]:032x}")

    def _keys_of(self, places: list[int]) -> pa.StringArray | None:
        """The keys that differ in these shards; None if all rows must be looked at."""
        found = [columnwise.differing_keys(*(self._of(side, place) for side in _SIDES)) for place in places]
        return None if any(one is None for one in found) else pc.unique(pa.concat_arrays(found))

    def _of(self, side: str, place: int) -> list[ColumnPiece]:
        return [piece for at, piece in self._pieces[side] if at == place]

    def _digest(self, side: str) -> int:
        places = sorted({place for place, _ in self._pieces[side]})
        return sum((place + 1) * columnwise.digest(self._of(side, place)) for place in places) % (1 << 128)

    def _all(self) -> Iterator[tuple[str, int, ColumnPiece]]:
        for side in _SIDES:
            for place, piece in self._pieces[side]:
                yield side, place, piece

    def _spill(self) -> None:
        for side, place, piece in self._all():
            self.comparison.add(side, piece.keys, piece.texts, _repeated(place, piece))
        self._pieces = {side: [] for side in _SIDES}
        self._spilled = True


def _by_place(piece: ColumnPiece, places: npt.NDArray[np.int64]) -> Iterator[tuple[int, ColumnPiece]]:
    if len(places) and (places == places[0]).all():
        yield int(places[0]), piece
        return
    for place in np.unique(places).tolist():
        yield place, piece.filter(pa.array(places == place))


def _repeated(place: int, piece: ColumnPiece) -> pa.Array:
    return pa.array(np.full(piece.rows.num_rows, place))
