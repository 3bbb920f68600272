"""The shelf: files for the changes of a transaction that is larger than memory and may still be undone.

What was prepared (XA), and what follows a savepoint, must be kept until its end is known. It may assume that nobody
else touches its files, and must keep true that changes come back as they were, in their order.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cdc_core.source import faults
from cdc_core.source.gather import Held, TableUse


class Shelf:
    """A directory that is made when it is first needed, and goes away with the shelf."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._made = 0

    def new(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="lockstep-"))
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._made += 1
        return self._directory / str(self._made)


@dataclass(frozen=True, slots=True)
class _Shelved:
    """`count` changes in a file. uses: the tables in them, which stay in memory, by their number there."""

    path: Path
    count: int
    uses: list[TableUse]

    @classmethod
    def of(cls, rows: list[Held], path: Path) -> _Shelved:
        uses: dict[TableUse, int] = {}
        with path.open("wb") as file:
            pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
            pickler.persistent_id = lambda one: (  # type: ignore[method-assign]
                uses.setdefault(one, len(uses)) if isinstance(one, TableUse) else None
            )
            pickler.dump(rows)
        return cls(path, len(rows), list(uses))

    def take(self) -> list[Held]:
        with self.path.open("rb") as file:
            unpickler = pickle.Unpickler(file)
            unpickler.persistent_load = self.uses.__getitem__  # type: ignore[method-assign]
            rows: list[Held] = unpickler.load()
        self.path.unlink()
        return rows


@dataclass(slots=True)
class Pile:
    """Changes of one transaction, in order: `near` in memory, and those before them on the shelf."""

    shelf: Shelf
    near: list[Held] = field(default_factory=list)
    near_bytes: int = 0
    _far: list[_Shelved] = field(default_factory=list)

    def __len__(self) -> int:
        return self._far_count + len(self.near)

    @property
    def _far_count(self) -> int:
        return sum(one.count for one in self._far)

    def add(self, held: Held) -> None:
        self.near.append(held)
        self.near_bytes += held.size_bytes

    def shelve(self) -> None:
        """Takes out of memory what is there."""
        if self.near:
            with faults.scratch():
                self._far.append(_Shelved.of(self.near, self.shelf.new()))
            self.take()

    def take(self) -> list[Held]:
        """What is in memory, which the pile forgets."""
        rows, self.near, self.near_bytes = self.near, [], 0
        return rows

    def unshelved(self) -> Iterator[list[Held]]:
        """What is on the shelf, one file after the other, which the pile forgets."""
        while self._far:
            yield self._far.pop(0).take()

    def cut(self, count: int) -> None:
        """Forgets all behind the first `count`."""
        while self._far and count < self._far_count:
            last = self._far.pop()
            if count > self._far_count:
                self.near = last.take()
            else:
                last.path.unlink()
                self.near = []
        del self.near[count - self._far_count :]
        self.near_bytes = sum(held.size_bytes for held in self.near)
