"""A cut: one snapshot of every mirror of a lake, which together are the database at one position of its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdc_core.model.json_codec import Natural, TimeUs, dumped, parsed
from cdc_core.model.position import Position

_VERSION = 1


@dataclass(frozen=True, slots=True)
class CutSource:
    """How far a source's log is in the tables. committed_us: all transactions up to there belong to windows before or
    at this time."""

    position: Position
    gtid_set: str
    committed_us: TimeUs


@dataclass(frozen=True, slots=True)
class CutTable:
    """name: of the mirror, with its namespace. snapshot: None: it is empty."""

    logical: str
    name: str
    snapshot: Natural | None


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
