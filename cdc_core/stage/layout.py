"""The paths of the stage, and nothing else. Those of a run are in `model.run.RunPlan`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cdc_core.model.paths import segment
from cdc_core.model.position import Position
from cdc_core.windows import window_label

CHANGES = "changes/"
MANIFESTS = "manifests/"
STARTS = "starts/"
_PART = re.compile(
    r"changes/cdc_table=[A-Za-z0-9_.@~-]+/cdc_date=(\d{4})-(\d\d)-(\d\d)/"
    r"\1\2\3T\d{6}Z-([a-z][a-z0-9_]*)-(\d{19})-(\d{1,19})-(\d{4,9})\.parquet",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class PartName:
    """What a part's file name says: its source, where its batch begins (`seq`), under which epoch."""

    source: str
    seq: int
    epoch: int
    part: int


def table_prefix(table: str) -> str:
    """All staged changes of a logical table. The names of folders are read as columns: none is a keyword of SQL."""
    return f"{CHANGES}cdc_table={segment(table)}/"


def part_path(table: str, window_start_us: int, name: PartName) -> str:
    """A part of a batch, under the UTC date on which its window starts.

    The epoch is in the name, so that two holders of a lease never write the same path.
    """
    label = window_label(window_start_us)
    file = f"{label}-{name.source}-{name.seq:019d}-{name.epoch}-{name.part:04d}.parquet"
    return f"{table_prefix(table)}cdc_date={label[:4]}-{label[4:6]}-{label[6:8]}/{file}"


def parse_part(path: str) -> PartName | None:
    """The name in a part's path; None for any other file under `changes/`."""
    match = _PART.fullmatch(path)
    return PartName(match[4], int(match[5]), int(match[6]), int(match[7])) if match else None


def manifests_prefix(source: str) -> str:
    return f"{MANIFESTS}{segment(source)}/"


def cleared_path(source: str, place: Position, table: str) -> str:
    """Says that a source table, isolated up to a place, is read again from there on."""
    return f"isolated/{source}/{place.name}-{segment(table)}.cleared"


def horizon_path(source: str) -> str:
    """Where the source's staged history begins, after a purge."""
    return f"horizons/{segment(source)}.json"


def start_path(source: str) -> str:
    """Where the source's chain of manifests began."""
    return f"{STARTS}{segment(source)}.json"


def manifest_path(source: str, begin: Position) -> str:
    """The commit point of the batch that begins there."""
    return f"{manifests_prefix(source)}{begin.name}.json"
