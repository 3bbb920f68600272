"""Files for the changes of a transaction that is larger than memory and may still be undone.

Prepared changes (XA), and those after a savepoint, must be kept until their outcome is known. It may assume that
nothing else touches its files, and must keep true that changes come back unchanged and in order.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from cdc_core.source.host import source_faults
from cdc_core.source.transactions.pending_changes import MappedTable, PendingChange


class SpillFiles:
    """A directory that is created when first needed, and removed with this object."""

    def __init__(self) -> None:
        self.directory: Path | None = None
        self._count = 0

    def new_path(self) -> Path:
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="lockstep-"))
            weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        self._count += 1
        return self.directory / str(self._count)


class _TablesApart(pickle.Pickler):
    """Tables compare by identity and may hold functions (their defaults), so they are not written but numbered."""

    def __init__(self, file: BinaryIO, tables: dict[MappedTable, int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._tables = tables

    def persistent_id(self, value: object) -> int | None:
        return self._tables.setdefault(value, len(self._tables)) if isinstance(value, MappedTable) else None


class _TablesBack(pickle.Unpickler):
    def __init__(self, file: BinaryIO, tables: list[MappedTable]) -> None:
        super().__init__(file)
        self._tables = tables

    def persistent_load(self, number: int) -> MappedTable:
        return self._tables[number]


@dataclass(frozen=True, slots=True)
class _SpillFile:
    """`count` changes in a file. tables: the tables in them, which stay in memory, by their number there."""

    path: Path
    count: int
    tables: list[MappedTable]

    @classmethod
    def write(cls, changes: list[PendingChange], path: Path) -> _SpillFile:
        tables: dict[MappedTable, int] = {}
        with path.open("wb") as file:
            _TablesApart(file, tables).dump(changes)
        return cls(path, len(changes), list(tables))

    def read(self) -> list[PendingChange]:
        """The changes; the file is removed."""
        with self.path.open("rb") as file:
            changes: list[PendingChange] = _TablesBack(file, self.tables).load()
        self.path.unlink()
        return changes


@dataclass(slots=True)
class SpillableChanges:
    """Changes of one transaction, in order: the later ones in memory, those before them in files."""

    spill_files: SpillFiles
    memory_bytes: int = 0
    _in_memory: list[PendingChange] = field(default_factory=list)
    _spilled: list[_SpillFile] = field(default_factory=list)

    def __len__(self) -> int:
        return self._spilled_count + len(self._in_memory)

    @property
    def _spilled_count(self) -> int:
        return sum(file.count for file in self._spilled)

    def append(self, change: PendingChange) -> None:
        self._in_memory.append(change)
        self.memory_bytes += change.size_bytes

    def spill(self) -> None:
        """Writes what is in memory to a file."""
        if self._in_memory:
            with source_faults.scratch():
                self._spilled.append(_SpillFile.write(self._in_memory, self.spill_files.new_path()))
            self.pop_memory()

    def pop_memory(self) -> list[PendingChange]:
        """The changes in memory, taken out."""
        changes, self._in_memory, self.memory_bytes = self._in_memory, [], 0
        return changes

    def pop_spilled(self) -> Iterator[list[PendingChange]]:
        """The changes of one file after the other, taken out."""
        while self._spilled:
            yield self._spilled.pop(0).read()

    def truncate(self, count: int) -> None:
        """Drops all after the first `count`."""
        while self._spilled and count < self._spilled_count:
            last = self._spilled.pop()
            if count > self._spilled_count:
                self._in_memory = last.read()
            else:
                last.path.unlink()
                self._in_memory = []
        del self._in_memory[count - self._spilled_count :]
        self.memory_bytes = sum(change.size_bytes for change in self._in_memory)
