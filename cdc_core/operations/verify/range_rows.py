"""The rows of one range, of source and target: compared in memory (columnwise), and by `Comparison` where they differ.

Only rows of keys that differ reach `Comparison`. A range that is larger than MEMORY_BYTES (a table that cannot be cut,
or a target with many rows that the source does not have) goes there as a whole, so that memory is bounded. It must keep
true that both ways find the same keys.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.operations.verify import columnwise
from cdc_core.operations.verify.canonical import values_of
from cdc_core.operations.verify.columnwise import ColumnPiece
from cdc_core.operations.verify.comparison import Comparison

MEMORY_BYTES = 256 << 20
"""The rows of both sides of a range take so much memory at most; a larger range goes to disk."""
_SIDES = ("source", "target")


class RangeRows:
    """Add all rows, then call `differing`; the other results are for afterwards, until it is closed. keyed, apart: as
    for Comparison."""

    def __init__(self, *, keyed: bool, apart: bool = False) -> None:
        self._keyed, self._apart = keyed, apart
        self._stack = ExitStack()
        self._pieces: dict[str, list[tuple[int, ColumnPiece]]] = {side: [] for side in _SIDES}
        self.rows = dict.fromkeys(_SIDES, 0)
        """How many rows were added, by side."""
        self._size_bytes = 0
        self._spilled = False
        self._comparison: Comparison | None = None

    def close(self) -> None:
        self._stack.close()

    @property
    def comparison(self) -> Comparison:
        """The comparison that judges the keys that differ; it begins when it is first needed."""
        if self._comparison is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-verify-"))
            opened = Comparison(Path(folder), keyed=self._keyed, apart=self._apart)
            self._comparison = self._stack.enter_context(opened)
        return self._comparison

    def add(self, side: str, piece: ColumnPiece, places: npt.NDArray[np.int64]) -> None:
        """Rows of a side, "source" or "target". places: the shard of each."""
        self.rows[side] += piece.rows.num_rows
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
        unequal = [place for place in places if not columnwise.equal(*(self._at(side, place) for side in _SIDES))]
        keys = self._keys_of(unequal) if unequal else pa.array([], pa.string())
        count = 0
        if keys is None or len(keys):
            for side, place, piece in self._placed():
                doubtful = piece if keys is None else piece.filter(pc.is_in(piece.keys, value_set=keys))
                if doubtful.rows.num_rows:
                    self.comparison.add(side, doubtful.keys, doubtful.texts, _repeated(place, doubtful))
            count = self.comparison.differing()
        self._pieces = {side: [] for side in _SIDES}
        return count

    def values(self, side: str) -> dict[str, list[tuple[int, list[str | None]]]]:
        """The rows of a few keys by key, before `differing`: the shard of each, and the texts of its values."""
        values: dict[str, list[tuple[int, list[str | None]]]] = {}
        for place, piece in self._pieces[side]:
            for key, text in zip(piece.keys.to_pylist(), piece.texts.to_pylist(), strict=True):
                values.setdefault(key, []).append((place, values_of(text)))
        return values

    def _keys_of(self, places: list[int]) -> pa.StringArray | None:
        """The keys that differ in these shards; None if all rows must be looked at."""
        parts = [columnwise.differing_keys(*(self._at(side, place) for side in _SIDES)) for place in places]
        return None if any(keys is None for keys in parts) else pc.unique(pa.concat_arrays(parts))

    def _at(self, side: str, place: int) -> list[ColumnPiece]:
        return [piece for at, piece in self._pieces[side] if at == place]

    def _placed(self) -> Iterator[tuple[str, int, ColumnPiece]]:
        for side in _SIDES:
            for place, piece in self._pieces[side]:
                yield side, place, piece

    def _spill(self) -> None:
        for side, place, piece in self._placed():
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
