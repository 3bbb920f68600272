"""The paths of the stage, and nothing else. Those of a run are in `run_plan.RunPlan`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cdc_core.model.paths import segment
from cdc_core.model.position import Position
from cdc_core.model.windows import from_us, window_label

CHANGES = "changes/"
MANIFESTS = "manifests/"
STARTS = "starts/"
SNAPSHOT = "snapshot/"
COMPACTED = "compacted/"
COMPACTIONS = "compactions/"
ERASURES = "erasures/"
ERASED = "erased/"
_FOLDERS = r"cdc_table=[A-Za-z0-9_.@~-]+/cdc_date=(\d{4})-(\d\d)-(\d\d)/"
_PART = re.compile(
    rf"changes/{_FOLDERS}\1\2\3T\d{{6}}Z-([a-z][a-z0-9_]*)-(\d{{19}})-(\d{{1,19}})-(\d{{4,9}})\.parquet", re.ASCII
)
_COPIED = re.compile(rf"snapshot/{_FOLDERS}([a-z][a-z0-9_]*)-(\d{{12}})-(\d{{1,19}})-(\d{{4,9}})\.parquet", re.ASCII)
_COMPACTED = re.compile(
    rf"compacted/{_FOLDERS}\1\2\3T\d{{6}}Z-([a-z][a-z0-9_]*)-(\d{{19}})-(\d{{19}})-(\d{{1,19}})-(\d{{4,9}})\.parquet",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class CompactedName:
    """What the name of a compacted file says: its source, where its range begins and ends, under which epoch."""

    source: str
    begin_seq: int
    end_seq: int
    epoch: int
    part: int


def compacted_path(table: str, window_start_us: int, name: CompactedName) -> str:
    """A file with the rows of a table from several batches, under the UTC date on which their first window starts."""
    label = window_label(window_start_us)
    file = f"{label}-{name.source}-{name.begin_seq:019d}-{name.end_seq:019d}-{name.epoch}-{name.part:04d}.parquet"
    return f"{compacted_prefix(table)}{_date_folder(window_start_us)}{file}"


def compacted_prefix(table: str) -> str:
    """All compacted files of a logical table."""
    return f"{COMPACTED}{_table_folder(table)}"


def _table_folder(table: str) -> str:
    """The names of folders are read as columns: none is a keyword of SQL. All files with rows are below two of them:
    readers refuse a list of files whose folders differ in number."""
    return f"cdc_table={segment(table)}/"


def _date_folder(moment_us: int) -> str:
    return f"cdc_date={from_us(moment_us):%Y-%m-%d}/"


def parse_compacted(path: str) -> CompactedName | None:
    """The name in the path of a compacted file; None for any other."""
    match = _COMPACTED.fullmatch(path)
    return CompactedName(match[4], *(int(match[group]) for group in (5, 6, 7, 8))) if match else None


def compactions_prefix(source: str) -> str:
    return f"{COMPACTIONS}{segment(source)}/"


def compaction_path(source: str, begin: Position) -> str:
    """The record of the compacted range that begins there."""
    return f"{compactions_prefix(source)}{begin.name}.json"


def originals_removed_path(source: str, begin: Position) -> str:
    """Says that the parts of a compacted range that its files replace are removed."""
    return f"{compactions_prefix(source)}{begin.name}.removed"


@dataclass(frozen=True, slots=True)
class CopiedName:
    """What the name of a file of copied rows says: its source, the number of its chunk, under which epoch."""

    source: str
    chunk: int
    epoch: int
    part: int


def copied_path(table: str, ts_us: int, name: CopiedName) -> str:
    """A file with rows of one chunk of a copy, under the UTC date of their `_cdc_ts`."""
    file = f"{name.source}-{name.chunk:012d}-{name.epoch}-{name.part:04d}.parquet"
    return f"{copied_prefix(table)}{_date_folder(ts_us)}{file}"


def copied_prefix(table: str) -> str:
    """All copied rows of a logical table."""
    return f"{SNAPSHOT}{_table_folder(table)}"


def parse_copied(path: str) -> CopiedName | None:
    """The name in the path of a file of copied rows; None for any other."""
    match = _COPIED.fullmatch(path)
    return CopiedName(match[4], *(int(match[group]) for group in (5, 6, 7))) if match else None


@dataclass(frozen=True, slots=True)
class PartName:
    """What a part's file name says: its source, where its batch begins (`seq`), under which epoch."""

    source: str
    seq: int
    epoch: int
    part: int


def table_prefix(table: str) -> str:
    """All staged changes of a logical table."""
    return f"{CHANGES}{_table_folder(table)}"


def part_path(table: str, window_start_us: int, name: PartName) -> str:
    """A part of a batch, under the UTC date on which its window starts.

    The epoch is in the name, so that two holders of a lease never write the same path.
    """
    label = window_label(window_start_us)
    file = f"{label}-{name.source}-{name.seq:019d}-{name.epoch}-{name.part:04d}.parquet"
    return f"{table_prefix(table)}{_date_folder(window_start_us)}{file}"


def parse_part(path: str) -> PartName | None:
    """The name in a part's path; None for any other file under `changes/`."""
    match = _PART.fullmatch(path)
    return PartName(match[4], int(match[5]), int(match[6]), int(match[7])) if match else None


def manifests_prefix(source: str) -> str:
    return f"{MANIFESTS}{segment(source)}/"


def erasure_path(request: str, *, ended: bool = False) -> str:
    """The record of an erasure that has begun, and of one that has ended."""
    return f"{ERASED if ended else ERASURES}{segment(request)}.json"


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
    """The commit point of the batch of the log that begins there."""
    return f"{first_at(source, begin)}.json"


def batch_path(batch_id: str) -> str:
    """The manifest of a batch."""
    source, _, place = batch_id.partition("/")
    return f"{manifests_prefix(source)}{place}.json"


def first_at(source: str, place: Position) -> str:
    """Sorts before the manifests of all batches that begin there, those of copied rows among them, and after all that
    begin earlier."""
    return f"{manifests_prefix(source)}{place.name}"
