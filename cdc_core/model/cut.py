"""A cut: one snapshot of every mirror of a lake, which together are the database at one position of its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdc_core.model.coverage import TableCoverage
from cdc_core.model.json_codec import Natural, TimeUs, dumped, parsed
from cdc_core.model.position import Position

_VERSION = 1


@dataclass(frozen=True, slots=True)
class CutSource:
    """How far a source's log is in the tables. committed_us: all transactions up to there belong to windows before or
    at this time. coverage: of the source's tables, as the batches say it that the target has."""

    position: Position
    gtid_set: str
    committed_us: TimeUs
    coverage: Mapping[str, TableCoverage]


@dataclass(frozen=True, slots=True)
class CutTable:
    """name: of the mirror, with its namespace. snapshot: None: it is empty. lacks: which rows it does not have that the
    database had, in words; () for a complete table."""

    logical: str
    name: str
    snapshot: Natural | None
    lacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """run_id: of the run that published it, at `made_us`."""

    run_id: str
    target: str
    made_us: TimeUs
    sources: Mapping[str, CutSource]
    tables: tuple[CutTable, ...]

    def to_bytes(self) -> bytes:
        return dumped(self, version=_VERSION, indent=1)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Cut:
        """Raises ValueError."""
        return parsed(cls, raw, version=_VERSION)
