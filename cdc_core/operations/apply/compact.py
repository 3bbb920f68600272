"""Compaction: closed ranges of staged batches become few files, and later the parts that these replace are removed.

A range is all batches of the log whose windows begin on one day (UTC), or in one window, once a later batch is staged
and every target has committed them: no plan of a run that is not finished can name them, except those of
replays and of new targets, which keep their parts (see below). The order of the steps ensures that a kill between any
two of them, or two compactions at once, loses nothing and shows nothing twice:

    files              durable, read back and equal to their parts; until a record names them, they are orphans
    record             put if absent: the commit point. New readers and plans use the files from now on
    parts              at the earliest `older_than` after the record, if the files are still intact, no target holds a
                       batch of the range, and no plan that is not finished names one of the parts
    `.removed`         nothing is left to remove of this range

A reader that began before the record and is still reading after the parts are gone is told to read again
(stage.removed). Compactions, purges and sweeps of a pipeline take turns.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cdc_core.meta import Lease, Meta
from cdc_core.model.batch import Manifest
from cdc_core.model.compacted import Compaction
from cdc_core.model.readable import counted
from cdc_core.model.windows import MICROSECONDS, from_us, window_label
from cdc_core.operations.apply.consumed import committed
from cdc_core.operations.apply.turn import require_turn, turn_at
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import compactions, start_record
from cdc_core.stage.compacting import compact as write
from cdc_core.stage.compacting import files_of
from cdc_core.stage.compactions import Compactions
from cdc_core.stage.intact import damage
from cdc_core.stage.layout import compaction_path, originals_removed_path, parse_compacted
from cdc_core.stage.manifest import chain, read
from cdc_core.stage.objects import ObjectStore, find

log = logging.getLogger(__name__)

REMOVED_AFTER_US = 86_400 * MICROSECONDS
"""Age of a record before the parts that its files replace are removed: more than any query or Spark job takes."""
ABANDONED_US = 7 * 86_400 * MICROSECONDS
"""After this time without a retry, a run that is not finished no longer holds the parts that its plan names."""
_DELETED_AT_ONCE = 16


class By(StrEnum):
    """What a compacted range is."""

    DAY = "day"
    WINDOW = "window"

    def label(self, batch: Manifest) -> str:
        label = window_label(batch.window_start_us)
        return label if self is By.WINDOW else label[:8]


@dataclass(frozen=True, slots=True)
class CompactedRange:
    """A range that was compacted, or would be. files_before, size_before_bytes: of its parts; files, size_bytes: of
    what readers read instead; size_bytes is 0 where that is not known yet."""

    source: str
    label: str
    begin: str
    end: str
    batches: int
    rows: int
    files_before: int
    files: int
    size_before_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RemovedParts:
    """The parts of a compacted range that were removed, or would be. held_by: why they stay."""

    source: str
    begin: str
    files: int
    size_bytes: int
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class Compacted:
    """held_by: by source, why the next old batches are not compacted."""

    ranges: tuple[CompactedRange, ...]
    removed: tuple[RemovedParts, ...]
    held_by: dict[str, str]


def compact(
    opened: OpenPipeline,
    *,
    by: By = By.DAY,
    sources: Sequence[str] | None = None,
    older_than_us: int | None = None,
    dry_run: bool = False,
) -> Compacted:
    """Compacts the closed ranges that are not compacted yet.

    older_than_us: removes the parts of ranges that were compacted this long ago; None: no part.
    Raises RetryLater (lease.held: a purge, sweep or compaction; lease.lost), DataAtRisk
    (stage.damaged), and what the stage raises.
    """
    names = [source.name for source in opened.pipeline.sources] if sources is None else list(sources)
    work = _CompactionWork(opened, by, older_than_us)
    if dry_run:
        return work.look(names)
    with turn_at(opened) as turn:
        return work.do(names, turn)


def closed_ranges(batches: Sequence[Manifest], ready: Sequence[Manifest], by: By) -> list[list[Manifest]]:
    """batches: of the log, in stream order; ready: those of them that may be compacted. A range has all neighbours with
    one label; one that has the newest batch is not closed, nor is one of which some batch is not ready.

    Its windows follow one another: readers of a moment cut a file where the next window begins.
    """
    groups: list[list[Manifest]] = []
    for batch in batches:
        before = groups[-1][-1] if groups else None
        joined = (
            before is not None
            and by.label(before) == by.label(batch)
            and before.window_start_us <= batch.window_start_us
            and before.end.position == batch.begin.position
        )
        if joined:
            groups[-1].append(batch)
        else:
            groups.append([batch])
    may = {manifest.batch_id for manifest in ready}
    return [some for some in groups[:-1] if len(some) > 1 and all(manifest.batch_id in may for manifest in some)]


@dataclass(frozen=True, slots=True)
class _CompactionWork:
    opened: OpenPipeline
    by: By
    older_than_us: int | None

    @property
    def meta(self) -> Meta:
        return self.opened.meta

    @property
    def store(self) -> ObjectStore:
        return self.opened.store

    def look(self, names: Sequence[str]) -> Compacted:
        made, removed, held = [], [], {}
        for name in names:
            ranges, groups, held[name] = self._found(name)
            made += [_described(self.by, some, None) for some in groups]
            removed += [self._removable(compaction)[0] for compaction in self._old(ranges.by_source[name])]
        return Compacted(tuple(made), tuple(removed), held)

    def do(self, names: Sequence[str], turn: Lease) -> Compacted:
        made, removed, held = [], [], {}
        for name in names:
            _, groups, held[name] = self._found(name)
            for some in groups:
                record = self._made(some, turn)
                if record is not None:
                    made.append(_described(self.by, some, record))
            for compaction in self._old(compactions.read(self.store, [name]).by_source[name]):
                removed.append(self._remove(compaction, turn))
        return Compacted(tuple(made), tuple(removed), held)

    def _found(self, source: str) -> tuple[Compactions, list[list[Manifest]], str]:
        start_record.require_own(self.store, source, self.opened.pipeline.pipeline)
        ranges = compactions.read(self.store, [source])
        batches = [
            manifest for manifest in chain(self.store, source, known=ranges.known(source)) if not manifest.copied
        ]
        fresh = [batch for batch in batches if ranges.at(source, batch.begin.position.seq) is None]
        ready, held_by = committed(self.meta, self.opened.pipeline, batches)
        return ranges, closed_ranges(fresh, ready, self.by), held_by

    def _made(self, batches: Sequence[Manifest], turn: Lease) -> Compaction | None:
        """None if another one has the place of its record."""
        source, label = batches[0].source, self.by.label(batches[0])
        self.opened.progress.note(f"{source} {label}: compacting {counted(len(batches), 'batch')}")
        record = write(
            self.store,
            batches,
            epoch=turn.epoch,
            created_us=self.meta.now_us(),
            level=self.opened.pipeline.stage.compression_level,
        )
        require_turn(self.meta, turn)  # a purge that took the turn may have removed what the record would name
        path, data = compaction_path(source, record.begin), record.to_bytes()
        if self.store.put_if_absent(path, data) or self.store.get(path) == data:
            log.info("source %s: compacted %s: %d batches, %d files", source, record, len(batches), len(record.parts))
            return record
        log.warning("source %s: %s was compacted by another process", source, record)
        return None

    def _old(self, ranges: Iterable[Compaction]) -> Iterator[Compaction]:
        """Those whose parts may be due."""
        if self.older_than_us is None:
            return
        latest_us = self.meta.now_us() - self.older_than_us
        for compaction in ranges:
            if (
                compaction.created_us <= latest_us
                and find(self.store, originals_removed_path(compaction.source, compaction.begin)) is None
            ):
                yield compaction

    def _removable(self, compaction: Compaction) -> tuple[RemovedParts, list[str]]:
        """What is to be said of the parts, and the parts; none if they are held."""
        kept = {part.path for part in compaction.parts}
        parts = {
            part.path: part.size_bytes
            for batch in compaction.batches
            for part in read(self.store, compaction.source, batch.begin.position).parts
            if part.path not in kept
        }
        held_by = self._held_by(compaction, parts.keys())
        said = RemovedParts(compaction.source, compaction.begin.name, len(parts), sum(parts.values()), held_by)
        return said, [] if held_by else list(parts)

    def _held_by(self, compaction: Compaction, paths: Iterable[str]) -> str:
        holder = self.meta.records.holder([batch.batch_id for batch in compaction.batches])
        if holder is not None:
            return f"the run {holder[1]} has not committed them for {holder[0]}"
        wanted = set(paths)
        for run in self.meta.runs.unfinished(self.meta.now_us() - ABANDONED_US):
            data = find(self.store, run.plan_path)
            if data is not None and _names_any(data, wanted):
                return f"the run {run.run_id} is not finished (planned {from_us(run.updated_us).isoformat()})"
        return ""

    def _remove(self, compaction: Compaction, turn: Lease) -> RemovedParts:
        said, paths = self._removable(compaction)
        if said.held_by:
            return said
        for part in compaction.parts:
            if parse_compacted(part.path):
                error = damage(self.store, part)
                if error is not None:
                    raise error
        with ThreadPoolExecutor(_DELETED_AT_ONCE) as pool:
            for start in range(0, len(paths), 1000):
                require_turn(self.meta, turn)
                list(pool.map(self.store.delete, paths[start : start + 1000]))
        self.store.put(originals_removed_path(compaction.source, compaction.begin), b"")
        log.info("source %s: removed %d parts of the compacted range %s", compaction.source, len(paths), compaction)
        return said


def _described(by: By, batches: Sequence[Manifest], record: Compaction | None) -> CompactedRange:
    parts = [part for batch in batches for part in batch.parts]
    return CompactedRange(
        source=batches[0].source,
        label=by.label(batches[0]),
        begin=batches[0].begin.position.name,
        end=batches[-1].end.position.name,
        batches=len(batches),
        rows=sum(part.rows for part in parts),
        files_before=len(parts),
        files=len(files_of(batches)) if record is None else len(record.parts),
        size_before_bytes=sum(part.size_bytes for part in parts),
        size_bytes=0 if record is None else record.size_bytes,
    )


def _names_any(plan: bytes, paths: set[str]) -> bool:
    """Whether a plan.json, of any version of it, names one of the files, as far as it can be read."""
    try:
        data: dict[str, Any] = json.loads(plan)
        named = (
            file["path"] for merge_set in data["merge_sets"] for table in merge_set["tables"] for file in table["files"]
        )
        return any(path in paths for path in named)
    except (ValueError, KeyError, TypeError):
        return True
