"""Retention: purges staged batches that are old and that every target has committed, and the files of old runs.

A purge takes whole batches from the beginning of a source's chain, as far as their windows ended before the cutoff and
all targets have committed them. The newest batch of a source always stays: its end is where the next begins.
The order of the steps ensures that a crash between any two of them loses nothing that a reader may still see:

    records COMMITTED → PURGED    by compare-and-set, all of a source's in one transaction: nobody works on them
    the horizon                   the commit point: from now on no reader looks before it
    rows of old purged batches    in meta, where the pipeline wants that: no reader asks for what is before a horizon
    parts, then their manifest    batch by batch: what a manifest names can be found until it is gone
    compacted files, their record a compacted range is purged as a whole
    files of old runs             and then the rows of older ones, by which their files are found

The next purge finishes one that was killed. Two at once take turns, and so do purges and sweeps. A sweep removes
what killed attempts left on the stage (`stage.manifest.sweep` says what may go).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from cdc_core.errors import DataAtRisk, LockstepError, Refused
from cdc_core.meta import Lease, Meta, RunState
from cdc_core.meta.table_copies import copier_of
from cdc_core.model.batch import Manifest
from cdc_core.model.choices import choose
from cdc_core.model.coverage import settled
from cdc_core.model.position import Position
from cdc_core.model.run_plan import PLAN, RUNS, run_root
from cdc_core.operations.apply.consumed import committed
from cdc_core.operations.apply.turn import require_turn, turn_at, turn_of
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import compactions, start_record
from cdc_core.stage import horizon as horizons
from cdc_core.stage.horizon import Horizon
from cdc_core.stage.layout import first_at, horizon_path, manifests_prefix
from cdc_core.stage.manifest import SWEPT_AFTER_S, Copies, Swept, chain, parse
from cdc_core.stage.manifest import sweep as clear_orphans
from cdc_core.stage.objects import ObjectInfo, ObjectStore, check_writable, find

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PurgedSource:
    """What was purged of a source, or would be. held_by: why the next old batch stays; "" if none is left."""

    source: str
    batches: int
    rows: int
    size_bytes: int
    horizon: Horizon | None
    held_by: str

    def to_json(self) -> dict[str, Any]:
        names = ("source", "batches", "rows", "size_bytes", "held_by")
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        place = None if self.horizon is None else f"{self.source}/{self.horizon.position.name}"
        return found | {"horizon": place, "horizon_until_us": self.horizon.until_us if self.horizon else None}


@dataclass(frozen=True, slots=True)
class Purged:
    """runs: ids of committed runs whose files were removed, or would be. forgotten_*: how many left meta."""

    sources: tuple[PurgedSource, ...]
    runs: tuple[str, ...]
    forgotten_batches: int
    forgotten_runs: int

    def to_json(self) -> dict[str, Any]:
        return {
            "sources": [source.to_json() for source in self.sources],
            "runs": list(self.runs),
            "forgotten": {"batches": self.forgotten_batches, "runs": self.forgotten_runs},
        }


def purge(opened: OpenPipeline, *, cutoff_us: int, forget_us: int | None = None, dry_run: bool = False) -> Purged:
    """Purge what is older than `cutoff_us` (µs UTC), and drop the rows of what is purged and older than `forget_us`.

    Raises RetryLater (lease.held: another purge), Refused (stage.not_committed), and what the stage raises.
    """
    before_us = 0 if forget_us is None else min(forget_us, cutoff_us)
    if dry_run:
        sources = [_look(opened, source.name, cutoff_us)[0] for source in opened.pipeline.sources]
        batches = opened.meta.batches.forget(_positions(sources), before_us, dry_run=True)
    else:
        check_writable(opened.store)  # if it deletes nothing, nothing must be recorded as purged
        with turn_at(opened) as turn:
            sources = [_move_horizon(opened, source.name, cutoff_us, turn) for source in opened.pipeline.sources]
            batches = opened.meta.batches.forget(_positions(sources), before_us)
        finish(opened)
    runs = _old_runs(opened, cutoff_us)
    if not dry_run:
        for done, paths in enumerate(runs.values()):
            with _saying(f"the files of {done} of {len(runs)} old runs were removed before"):
                for path in paths:
                    opened.store.delete(path)
    forgotten = opened.meta.runs.forget(before_us, dry_run=dry_run)
    return Purged(tuple(sources), tuple(runs), batches, forgotten)


def finish(opened: OpenPipeline) -> None:
    """Removes the files of all that is purged, also what purges that were killed have left. Raises what the stage
    raises."""
    for source in opened.pipeline.sources:
        if (horizon := horizons.read(opened.store, source.name)) is not None:
            _delete_before(opened.store, horizon)


def sweep(
    opened: OpenPipeline,
    *,
    older_than_s: float = SWEPT_AFTER_S,
    sources: Sequence[str] | None = None,
    dry_run: bool = False,
) -> dict[str, Swept]:
    """Removes from the stage what killed attempts have left of each source.

    Raises RetryLater (lease.held: a purge, or another sweep), and what the stage raises: nothing is removed of a
    source whose chain is broken.
    """
    names = [source.name for source in opened.pipeline.sources] if sources is None else list(sources)

    def swept(name: str) -> Swept:
        start_record.require_own(opened.store, name, opened.name)
        return clear_orphans(
            opened.store,
            name,
            live_epoch=opened.meta.leases.live_epoch(name),
            compactor_epoch=opened.meta.leases.live_epoch(turn_of(opened.pipeline)),
            copies=_copies(opened.meta, name),
            older_than_s=older_than_s,
            dry_run=dry_run,
        )

    if dry_run:
        return {name: swept(name) for name in names}
    with turn_at(opened) as turn:
        done = {}
        for name in names:
            require_turn(opened.meta, turn)
            done[name] = swept(name)
        return done


def sweep_plans(
    opened: OpenPipeline,
    *,
    older_than_s: float = SWEPT_AFTER_S,
    dry_run: bool = False,
) -> dict[str, list[ObjectInfo]]:
    """Removes the files of the pipeline's dead plans: of runs that were planned again, or whose batches other runs have
    taken over and committed. By the plan's folder, the files that are removed, or would be.

    A plan over a batch that a target has not committed stays: its filtered files may be the only place of values that
    a killed write has to be completed with (spark_jobs/unfinished_writes.py).
    Raises RetryLater (lease.held: a purge, or another sweep), and what the stage raises.
    """
    if dry_run:
        return _dead_plans(opened, older_than_s)
    with turn_at(opened):
        dead = _dead_plans(opened, older_than_s)
        for done, files in enumerate(dead.values()):
            # The plan goes last: by it the next sweep knows whose the other files are.
            with _saying(f"the files of {done} of {len(dead)} dead plans were removed before"):
                for info in sorted(files, key=lambda file: file.path.endswith(f"/{PLAN}")):
                    opened.store.delete(info.path)
        return dead


def _dead_plans(opened: OpenPipeline, older_than_s: float) -> dict[str, list[ObjectInfo]]:
    folders: dict[str, list[ObjectInfo]] = {}
    for info in opened.store.list(RUNS):
        folders.setdefault("/".join(info.path.split("/", 3)[:3]), []).append(info)
    latest = time.time() - older_than_s
    old = {root: files for root, files in folders.items() if all(file.modified <= latest for file in files)}
    staged = (
        {batch.batch_id for source in opened.pipeline.sources for batch in opened.meta.batches.find(source.name)}
        if old
        else set()
    )
    return {
        root: files
        for root, files in old.items()
        if (raw := find(opened.store, f"{root}/{PLAN}")) is not None and _is_dead(opened, raw, staged)
    }


def _is_dead(opened: OpenPipeline, raw: bytes, staged: set[str]) -> bool:
    """raw: a plan.json, of any version and any pipeline: a stage may be shared."""
    try:
        made = json.loads(raw)
        owner, run_id, replay = made["pipeline"], made["run_id"], made["replay"]
        takes = [(target["target"], staged.intersection(target["batches"])) for target in made["targets"]]
    except (ValueError, KeyError, TypeError):
        return False
    if owner != opened.name:
        return False
    run = opened.meta.runs.find(run_id)
    finished = replay or (run is not None and run.state is RunState.COMMITTED)
    if run is not None and finished and run.plan_sha256 == hashlib.sha256(raw).hexdigest():
        return False  # a purge removes it
    return not any(_is_open(opened.meta, target, batches) for target, batches in takes)


def _is_open(meta: Meta, target: str, batches: Collection[str]) -> bool:
    """Whether the target has not committed all of the batches."""
    records = meta.records.find(target, sorted(batches))
    return not all(record.state.consumed for record in records) or {record.batch_id for record in records} != set(
        batches
    )


def _copies(meta: Meta, source: str) -> Copies:
    epoch = meta.leases.live_epoch(copier_of(source))
    waiting = [part.path for chunk in meta.copies.chunks(source) for part in chunk.parts]
    decided = [part.path for manifest in meta.copied.decided(source) for part in manifest.parts]
    return Copies(epoch, frozenset([*waiting, *decided]))


def _positions(sources: Sequence[PurgedSource]) -> dict[str, Position]:
    return {source.source: source.horizon.position for source in sources if source.horizon is not None}


def seeded(opened: OpenPipeline, target: str) -> int:
    """A target counts as one that holds all that was purged; the number of those batches that meta knows."""
    choose([configured.name for configured in opened.pipeline.targets], [target], "target", "--seeded")
    with turn_at(opened) as turn:
        added = 0
        for source in opened.pipeline.sources:
            start_record.require_own(opened.store, source.name, opened.name)
            horizon = horizons.read(opened.store, source.name)
            if horizon is not None:
                purged = [
                    batch
                    for batch in opened.meta.batches.find(source.name, until=horizon.position)
                    if batch.begin < horizon.position
                ]
                added += opened.meta.records.seed(target, purged)
                targets = tuple(sorted({*horizon.targets, target}))
                require_turn(opened.meta, turn)  # a purge that took the turn may have moved the horizon
                opened.store.put(horizon_path(source.name), replace(horizon, targets=targets).to_bytes())
    return added


def _look(opened: OpenPipeline, source: str, cutoff_us: int) -> tuple[PurgedSource, list[Manifest], list[Manifest]]:
    """What can be purged now of a source, its manifests, and those that stay. Raises Refused (stage.other_pipeline)."""
    start_record.require_own(opened.store, source, opened.name)
    manifests = list(chain(opened.store, source))
    old = []
    for manifest in manifests[:-1]:
        if manifest.window_end_us > cutoff_us:
            break
        old.append(manifest)
    ready, held_by = committed(opened.meta, opened.pipeline, old)
    held_by = _needed_by_copies(opened.meta, source, ready) or held_by
    count = -1
    while count != len(ready):  # what one rule leaves out may concern the others
        count = len(ready)
        held_by = _whole_ranges(opened.store, source, ready) or held_by
        while ready and ready[-1].copied:
            ready.pop()  # a place is purged as a whole: copied rows go with the batch of the log that begins there
        held_by = _needed_by_claims(manifests, ready) or held_by
    horizon = horizons.read(opened.store, source)
    if ready:
        tables = Counter(dict(horizon.tables) if horizon is not None else {})
        coverage = dict(horizon.coverage) if horizon is not None else {}
        for manifest in ready:
            tables.update({part.table: part.rows for part in manifest.parts})
            coverage = settled(coverage, manifest.coverage)
        last = ready[-1]
        names = tuple(sorted(target.name for target in opened.pipeline.targets))
        place, until_us = last.end.position, last.window_end_us
        horizon = Horizon(source, place, until_us, last.batch_id, names, dict(tables), coverage)
    rows, size = sum(manifest.rows for manifest in ready), sum(manifest.size_bytes for manifest in ready)
    return PurgedSource(source, len(ready), rows, size, horizon, held_by), ready, manifests[len(ready) :]


def _needed_by_copies(meta: Meta, source: str, ready: list[Manifest]) -> str:
    """Leaves out what a copy that is not staged yet needs: a row that it has read may have changed since. Why the next
    batch stays then."""
    chunks = [chunk.chunk for chunk in meta.copies.chunks(source)]
    chunks += [chunk for manifest in meta.copied.decided(source) for chunk in manifest.chunks]
    begins = [chunk.low for chunk in chunks] + [copy.low for copy in meta.copies.find(source) if copy.low is not None]
    since = _left_since(begins, ready)
    return "" if since is None else f"a copy that began at {since} is not staged yet"


def _needed_by_claims(manifests: list[Manifest], ready: list[Manifest]) -> str:
    """Leaves out what the log brought since rows were read that stay: without a later delete, such a row would be
    there again. Why the next batch stays then. ready: the first of the manifests."""
    begins = [chunk.low for manifest in manifests[len(ready) :] for chunk in manifest.chunks]
    since = _left_since(begins, ready)
    return "" if since is None else f"rows that were read at {since} are staged at a later place"


def _left_since(begins: Sequence[Position], ready: list[Manifest]) -> Position | None:
    """Leaves out what the log brought since the first of these places, which is returned; None if nothing was ready."""
    first = min(begins, default=None)
    if first is None or not ready or ready[-1].end.position <= first:
        return None
    ready[:] = [manifest for manifest in ready if manifest.end.position <= first]
    return first


def _whole_ranges(store: ObjectStore, source: str, ready: list[Manifest]) -> str:
    """Leaves out what is part of a compacted range that is not ready as a whole; why the next batch stays then."""
    if ready:
        end = ready[-1].end.position
        for compaction in compactions.read(store, [source]):
            if compaction.begin < end < compaction.end:
                ready[:] = [manifest for manifest in ready if manifest.begin.position < compaction.begin]
                return f"the compacted range {compaction} is purged as a whole"
    return ""


def _move_horizon(opened: OpenPipeline, source: str, cutoff_us: int, turn: Lease) -> PurgedSource:
    purged, ready, stay = _look(opened, source, cutoff_us)
    if ready:
        assert purged.horizon is not None
        targets = [target.name for target in opened.pipeline.targets]
        ids = [manifest.batch_id for manifest in ready]
        copied = {manifest.batch_id for manifest in stay if manifest.copied}
        opened.meta.records.purge(source, purged.horizon.position, ids, targets=targets, copied=copied)
        require_turn(opened.meta, turn)
        opened.store.put(horizon_path(source), purged.horizon.to_bytes())
        log.info("source %s: %d batches purged, horizon %s", source, len(ready), purged.horizon)
    return purged


def _delete_before(store: ObjectStore, horizon: Horizon) -> None:
    """The files of all batches before the horizon, those of an earlier purge that was killed among them."""
    end = first_at(horizon.source, horizon.position)
    infos = [info for info in store.list(manifests_prefix(horizon.source)) if info.path < end]
    for done, info in enumerate(infos):
        try:
            parts = parse(store.get(info.path), info.path, store.uri).parts
        except (DataAtRisk, Refused) as error:
            # Readers no longer go there; the parts that it may have named are orphans, which a sweep finds by name.
            log.warning("source %s: %s Its parts are left for `lockstep stage sweep`.", horizon.source, error.what)
            parts = ()
        with _saying(f"{done} of {len(infos)} purged batches of {horizon.source!r} were removed before"):
            for part in parts:
                store.delete(part.path)
            store.delete(info.path)
    for record in compactions.records(store, horizon.source):
        if record.begin < horizon.position:
            for path in compactions.files_of(record):
                store.delete(path)


@contextmanager
def _saying(done: str) -> Iterator[None]:
    """Around deletions: an error says how far they came."""
    try:
        yield
    except LockstepError as error:
        remedy = f"{error.remedy.rstrip('.')}. {done[0].upper()}{done[1:]}; the next purge or sweep removes the others"
        raise error.with_remedy(remedy) from error


def _old_runs(opened: OpenPipeline, cutoff_us: int) -> dict[str, list[str]]:
    """The files of runs that were committed before the cutoff, by run."""
    roots = {run_root(run_id): run_id for run_id in opened.meta.runs.finished(cutoff_us)}
    if not roots:
        return {}
    found: dict[str, list[str]] = {}
    for info in opened.store.list(RUNS):
        run_id = roots.get("/".join(info.path.split("/", 2)[:2]))
        if run_id is not None:
            found.setdefault(run_id, []).append(info.path)
    return found


def require_seeded(store: ObjectStore, source: str, targets: Sequence[str]) -> None:
    """Raises Refused (plan.purged) when a target never took what was purged of a source."""
    horizon = horizons.read(store, source)
    if horizon is None:
        return
    for target in targets:
        if target not in horizon.targets:
            raise Refused(
                f"The target {target!r} has not taken the changes of {source!r} before {horizon}, which were purged.",
                where=f"targets.{target}",
                code="plan.purged",
                remedy="fill its tables from a dump of a target that has them, made in one transaction, with "
                "_cdc_version and the tables _lockstep_tombstone_*, _lockstep_version_*, _lockstep_truncate and "
                "_lockstep_mark. Tables with a key may also come from a dump of the source. Then confirm it: "
                f"`lockstep stage purge PIPELINE --seeded {target}`",
            )
