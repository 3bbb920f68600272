"""Maintenance of a lake: the first run of each hour does it, after its commit, and that of each day looks for files
that nothing names, and for tombstones that a purge of the stage has made useless; `lockstep lake maintain` does all at
any time.

Compaction is not here: each run that writes a table leaves it with few files (cdc_core/lake/compaction.py).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice

from cdc_core.config import IcebergTarget
from cdc_core.errors import LockstepError
from cdc_core.lake import cut_table
from cdc_core.lake.catalogs import catalog_answers, identifier_named, name_of
from cdc_core.lake.expiry import GRACE_US, Forgotten, forget, kept_cuts, remove_orphans, tag_of
from cdc_core.lake.lake_tables import changes_of, owner_of, require_ours, tombstones_of
from cdc_core.lake.tombstone_expiry import forget_tombstones
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import cuts
from cdc_core.stage import horizon as horizons
from cdc_core.stage.manifest import read_several

log = logging.getLogger(__name__)
_HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Maintained:
    """kept, forgotten: cuts. problems: of tables that were left as they are."""

    kept: int
    forgotten: int
    tables: Forgotten
    orphans: int
    tombstones: int = 0
    problems: tuple[str, ...] = ()


def maintain_hourly(ready: OpenPipeline, target: IcebergTarget) -> None:
    """After a commit, if its cut is the first of an hour. What fails is logged: the next hour repeats it."""
    newest = islice(cuts.newest_first(ready.store, target.name), 2)
    hours = [cut.made_us // _HOUR_US for _, cut in newest]
    if len(hours) == 2 and hours[0] == hours[1]:
        return
    try:
        done = maintain(ready, target, daily=len({hour // 24 for hour in hours}) == 2)
    except LockstepError as error:
        log.warning("%s: maintenance: %s", target.name, error)
        return
    for problem in done.problems:
        log.warning("%s: maintenance: %s", target.name, problem)
    log.info("%s: maintenance: %s", target.name, done)


def maintain(ready: OpenPipeline, target: IcebergTarget, *, daily: bool = True) -> Maintained:
    """daily: also removes files that nothing names, for which it lists every folder, and tombstones. Raises what
    reading cuts and opening the catalog raise."""
    now_us = ready.meta.now_us()
    catalog, of_cuts = ready.catalogs.of(target), cut_table.identifier_of(target)
    with catalog_answers(target):
        if not catalog.table_exists(of_cuts):  # no run has made the lake's tables yet
            return Maintained(0, 0, Forgotten(0, 0, 0), 0)
        published = {snapshot.snapshot_id for snapshot in cut_table.shown(catalog.load_table(of_cuts))}
    cuts.complete(ready.store, target.name, published, before_us=now_us - GRACE_US)
    named_cuts = list(cuts.newest_first(ready.store, target.name))
    kept = kept_cuts((cut for _, cut in named_cuts), target.keep, now_us)
    tags: dict[str, dict[str, int]] = {}
    for cut in kept:
        for table in cut.tables:
            mine = tags.setdefault(table.name, {})
            if table.snapshot is not None and table.snapshot not in mine.values():
                mine[tag_of(cut)] = table.snapshot
    tables = [table for _, cut in named_cuts for table in cut.tables if table.snapshot is not None]
    names = {identifier_named(target, table.name): table.logical for table in tables}
    gone = [path for path, cut in named_cuts if cut not in kept and now_us - cut.made_us > GRACE_US]
    stay = {cut.run_id for path, cut in named_cuts if path not in gone}
    total, removed, dug_up, problems = Forgotten(0, 0, 0), 0, 0, list[str]()
    begins = _begins(ready) if daily else {}
    buried = {tombstones_of(name): logical for name, logical in names.items()}
    changes = {changes_of(name): logical for name, logical in names.items() if target.keeps_changes(logical)}
    for identifier, logical in sorted({**changes, **buried, **names, of_cuts: cut_table.NAME}.items()):
        name = name_of(identifier)
        try:
            with catalog_answers(target):
                if not catalog.table_exists(identifier):  # the next run makes it, or somebody has dropped a mirror
                    continue
                require_ours(catalog.load_table(identifier), logical, owner_of(ready.name, target.name))
                if identifier == of_cuts:
                    cut_table.prune(catalog.load_table(identifier), stay, now_us - GRACE_US)
                if identifier in buried and any(begins.values()):
                    dug_up += forget_tombstones(catalog.load_table(identifier), begins)
                total += forget(catalog.load_table(identifier), tags.get(name, {}), now_us)
                if daily:
                    removed += remove_orphans(catalog.load_table(identifier), now_us)
        except LockstepError as error:
            problems.append(f"{name}: {error.what}")
    for path in gone:
        ready.store.delete(path)
    return Maintained(len(kept), len(gone), total, removed, dug_up, tuple(problems))


def _begins(ready: OpenPipeline) -> dict[str, int]:
    """For each source, the least order key that a change of it may still come with; 0 where nothing was purged. Copied
    rows are older than their batch."""
    found: dict[str, int] = {}
    for source in [source.name for source in ready.pipeline.sources]:
        horizon, found[source] = horizons.read(ready.store, source), 0
        if horizon is not None:
            begin = horizon.position.seq
            copied = [
                batch.manifest for batch in ready.meta.batches.find(source) if batch.copied and batch.begin.seq >= begin
            ]
            lows = [chunk.low for manifest in read_several(ready.store, source, copied) for chunk in manifest.chunks]
            lows += [chunk.chunk.low for chunk in ready.meta.copies.chunks(source)]
            found[source] = min([begin, *(low.seq - 1 for low in lows)])
    return found
