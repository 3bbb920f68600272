"""Makes batches of chunks that were read: the claims of a table join the source's chain once it has reached their
highs.

A manifest of copied rows is decided in meta, written to the stage, and recorded: whoever comes after a kill finishes
what was decided before deciding anything else, so that no claim is ever in two batches. Nothing here needs the
extractor's lease: the place of the batch is one that the chain has passed, and everything the log brought up to there
is known.

What the log has brought by then decides about a copy, which began where its last key was read (replacing.began_at):

    the coverage of the table                        the copy
    rows existed before the capture, or unknown      counts: the table is whole from the batch's place on
    whole: truncated or created since                is dropped: nothing is missing any more
    whole before the copy began                      counts, and takes the place of the older rows (replacing)
    changes were missed (unlogged, captured again)
        before the copy began                        counts, and takes the place of the older rows (replacing)
        since                                        is dropped: a chunk may have been read before them
    left out or isolated by now                      is dropped: changes are being missed
    begun under other rules for its rows             is dropped: a mask or a condition may be missing
    copied at the same place, without a key          is dropped: targets know copies of such tables by their places
    the chain has gone to another server's log       is dropped too: nobody can say when it passed a chunk's high
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cdc_core.errors import LeaseLost
from cdc_core.meta import Lease, Meta, ReadChunk, TableCopy
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import TableSchema
from cdc_core.operations.copy.chunk_file import ChunkFiles
from cdc_core.operations.copy.replacing import OpenFile, as_of, began_at, begun_again
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.source.capture import Capture
from cdc_core.stage import manifest as manifests
from cdc_core.stage.isolated import notes
from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)

_SAME_PLACE = (
    "the source has logged nothing since the last copy of this table, which has no key, so that a target would take "
    "both for one; write something there first, or FLUSH BINARY LOGS"
)

Route = Callable[[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Staged:
    """What a call has staged. waiting: the place that the chain must reach for the rest, None where nothing waits.
    dropped: tables whose copies began to be read before something that they do not show, and why."""

    batches: tuple[Manifest, ...] = ()
    tables: tuple[str, ...] = ()
    waiting: Position | None = None
    dropped: tuple[tuple[str, str], ...] = ()

    def then(self, later: Staged) -> Staged:
        """What both calls have staged, and what still waits after the later one."""
        return Staged(
            self.batches + later.batches, self.tables + later.tables, later.waiting, self.dropped + later.dropped
        )


def stage_due(opened: OpenPipeline, source: str, lease: Lease, *, capture: Capture) -> Staged:
    """Stages every copy that is complete and due. capture: the pipeline's rules.

    Raises RetryLater (lease.lost), and what the store raises; a repeated call continues.
    """
    finish_decided(opened.meta, opened.store, source, lease)
    capture = capture.as_in(opened.meta.coverages.find(source).surveyed.captured)
    place, coverage = _as_of_one_place(opened.meta, source)
    chunks, purged_seq = opened.meta.copies.chunks(source), opened.meta.positions.purged_seq(source)
    dropped: list[tuple[str, str]] = []
    due: list[tuple[TableCopy, list[ReadChunk]]] = []
    waiting: Position | None = None
    with tempfile.TemporaryDirectory(prefix="lockstep-snapshot-") as scratch:
        stage = _Stage(opened, source, lease, place, coverage, capture, Path(scratch))
        for copy in opened.meta.copies.find(source):
            of_table = [chunk for chunk in chunks if chunk.chunk.table == copy.table]
            covered = coverage.get(copy.table)
            captured = capture.captures(copy.schema.database, copy.schema.table)
            why = _outdated(copy, of_table, covered, place.position, purged_seq, captured=captured)
            if not why and captured and copy.rules and copy.rules != capture.rules_of(copy.schema):
                why = "the pipeline's rules for the table have changed since it was begun"
            high = max((chunk.chunk.high for chunk in of_table), default=place.position)
            if not why and copy.complete and of_table and high > place.position:
                waiting = high if waiting is None else max(waiting, high)
                continue
            if not why and copy.complete and of_table and not copy.schema.key:
                why = _SAME_PLACE if _copied_at(covered, place.position) else ""
                of_table = [] if why else stage.moved_on(copy, of_table)
                why = why or ("" if of_table else "the table was redefined since it was read")
            if why:
                log.warning("%s: the copy of %s is dropped: %s", source, copy.table, why)
                opened.meta.copies.drop(lease, source, copy.table)
                dropped.append((copy.table, why))
            elif copy.complete and of_table:
                due.append((copy, of_table))
        made = []
        for manifest, done in stage.composed(due):
            counted = any(not copy.schema.key for copy, _ in due if copy.table in done)
            opened.meta.copied.decide(lease, manifest, done, exact=counted)
            made.append(_finish(opened.meta, opened.store, lease, manifest))
    return Staged(tuple(made), tuple(copy.table for copy, _ in due), waiting, tuple(dropped))


@dataclass(frozen=True, slots=True)
class Claims:
    """Rows of a source table that were looked up by their keys. schema: the table's definition then. chunks: one or
    more, durable and in no manifest."""

    schema: TableSchema
    chunks: tuple[ReadChunk, ...]


def stage_claims(
    opened: OpenPipeline,
    source: str,
    lease: Lease,
    claims: Sequence[Claims],
    *,
    capture: Capture,
    current: Callable[[TableSchema], bool],
) -> Staged:
    """Stages rows that were looked up by key, all of them in one batch, or none.

    They say nothing of other rows, so that the coverage of no table changes. The chain has reached the high of each.
    None are staged where the log has brought something of their tables that they do not show,
    or a purge has removed what it brought since (`dropped`): then they are read again. lease: the copier's. current:
    whether the table still has this definition; asked once the place of the batch is fixed, so that no definition comes
    after a later one in the chain.

    Raises what `stage_due` raises, and what `current` raises.
    """
    capture = capture.as_in(opened.meta.coverages.find(source).surveyed.captured)
    place, coverage = _as_of_one_place(opened.meta, source)
    purged_seq = opened.meta.positions.purged_seq(source)
    dropped: list[tuple[str, str]] = []
    for claim in claims:
        copy, table = TableCopy(source, claim.schema, ()), claim.schema.name
        captured = capture.captures(claim.schema.database, claim.schema.table)
        why = _outdated(copy, claim.chunks, coverage.get(table), place.position, purged_seq, captured=captured)
        if why or not current(claim.schema):
            dropped.append((table, why or "the table was redefined"))
    if dropped:
        return Staged(dropped=tuple(dropped))
    chunks = sorted((chunk for claim in claims for chunk in claim.chunks), key=lambda chunk: chunk.chunk.number)
    manifest = _with(_empty(opened, source, lease, place), chunks, {})
    opened.meta.copied.decide(lease, manifest, ())
    return Staged((_finish(opened.meta, opened.store, lease, manifest),), tuple(claim.schema.name for claim in claims))


def finish_decided(meta: Meta, store: ObjectStore, source: str, lease: Lease) -> None:
    """Writes and records the manifests that a killed process had decided."""
    for manifest in meta.copied.decided(source):
        _finish(meta, store, lease, manifest)


def _finish(meta: Meta, store: ObjectStore, lease: Lease, manifest: Manifest) -> Manifest:
    committed = manifests.commit(store, manifest).manifest
    meta.batches.record_copied(lease, committed)
    log.info("%s: staged %d copied rows at %s", manifest.source, manifest.rows, manifest.begin.position)
    return committed


def _as_of_one_place(meta: Meta, source: str) -> tuple[Checkpoint, dict[str, TableCoverage]]:
    """The end of the chain, and the coverage of tables there: the extractor may be moving both."""
    for _ in range(100):
        before = meta.positions.checkpoint(source)
        coverage = dict(meta.coverages.find(source).tables)
        if before is not None and meta.positions.checkpoint(source) == before:
            return before, coverage
        time.sleep(0.01)
    raise LeaseLost(
        f"Other processes staged batches of {source!r} each time this one was about to.",
        where=source,
        remedy="nothing is lost; the next attempt continues from there",
    )


def _outdated(
    copy: TableCopy,
    chunks: Sequence[ReadChunk],
    coverage: TableCoverage | None,
    place: Position,
    purged_seq: int,
    *,
    captured: bool,
) -> str:
    """Why a copy does not count; "" if it does. captured: by the pipeline's rules."""
    if not chunks:
        return ""
    if not captured:
        return "the pipeline leaves the table out"
    begin = began_at(copy, chunks)
    if any(position.timeline != place.timeline for position in (begin, *(chunk.chunk.high for chunk in chunks))):
        return "the source has gone to another server's log meanwhile"
    if begin.seq < purged_seq:
        return "what the log brought since it was read is purged"
    if coverage is None or coverage.how in (How.EXISTING, How.COPIED):
        return ""
    if not coverage.how.captured:
        return f"changes are missed since {coverage.place} ({coverage.how.value})"
    if coverage.seq < begin.seq:
        return ""
    if not coverage.how.whole:
        return f"changes were missed at {coverage.place} ({coverage.how.value}), after the copy had begun"
    return f"the table is whole since {coverage.place} ({coverage.how.value})"


def _copied_at(coverage: TableCoverage | None, place: Position) -> bool:
    """Whether the last copy of a table is at this place."""
    return coverage is not None and coverage.how is How.COPIED and coverage.seq == place.seq - 1


def _renews(coverage: TableCoverage | None) -> bool:
    """Whether a copy takes the place of what is staged of a table, and does not only add to it."""
    return coverage is not None and (coverage.how is not How.EXISTING or coverage.cascaded_seq > 0)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where copies join the chain. coverage: of the tables there. capture: the pipeline's rules. scratch: a folder."""

    opened: OpenPipeline
    source: str
    lease: Lease
    place: Checkpoint
    coverage: Mapping[str, TableCoverage]
    capture: Capture
    scratch: Path

    def composed(self, due: Sequence[tuple[TableCopy, list[ReadChunk]]]) -> list[tuple[Manifest, tuple[str, ...]]]:
        """Manifests, each with its tables: whole tables until they have `limits.batch_mib`.

        A table is never in two. Copied rows leave no gap in the chain where their manifest is lost; what says that the
        table is whole is lost with it.
        """
        made: list[tuple[Manifest, tuple[str, ...]]] = []
        chunks: list[ReadChunk] = []
        copied: dict[str, TableCoverage] = {}
        size_bytes = 0
        for copy, mine in due:
            covered = self.coverage.get(copy.table)
            whole = copied[copy.table] = _copied(copy, self.place, mine, covered, self.capture.route)
            # Those of a table without a key always take the place of older rows.
            if copy.schema.key and _renews(covered):
                mine = begun_again(copy, mine, whole.ts_us, self._open_file(copy))
            chunks += mine
            size_bytes += sum(chunk.size_bytes for chunk in mine)
            if size_bytes >= self.opened.pipeline.limits.batch_mib << 20 or copy is due[-1][0]:
                empty = _empty(self.opened, self.source, self.lease, self.place)
                made.append((_with(empty, chunks, copied), tuple(copied)))
                chunks, copied, size_bytes = [], {}, 0
        return made

    def moved_on(self, copy: TableCopy, chunks: Sequence[ReadChunk]) -> list[ReadChunk]:
        """The claim of a table without a key, as of the place; [] if it was redefined since it was read."""
        (chunk,) = chunks
        store, place = self.opened.store, self.place
        empty = _empty(self.opened, self.source, self.lease, place)
        chain = [batch for batch in manifests.chain(store, self.source) if batch.end.position <= place.position]
        ts_us = max(place.watermark_us, chunk.chunk.ts_us)
        moved = as_of(place, chunk, empty, chain, ts_us, self._open_file(copy), store)
        return [] if moved is None else [moved]

    def _open_file(self, copy: TableCopy) -> OpenFile:
        files = ChunkFiles(self.opened, self.source, self.lease, self.capture, self.scratch)
        return partial(files.chunk, copy.schema)


def _empty(opened: OpenPipeline, source: str, lease: Lease, place: Checkpoint) -> Manifest:
    """A batch at the place, without chunks."""
    newest = manifests.newest(opened.store, source)
    isolated = {} if newest is None else dict(newest.isolated)
    moment_us = max(place.watermark_us - 1, place.floor_us, 0)
    window = opened.pipeline.windows.containing(moment_us)
    return Manifest(
        pipeline=opened.name,
        source=source,
        epoch=lease.epoch,
        begin=place,
        end=place,
        window_start_us=window[0],
        window_end_us=window[1],
        parts=(),
        events=0,
        transactions=0,
        created_us=time.time_ns() // 1000,
        notes=notes(isolated),
        isolated=isolated,
    )


def _with(empty: Manifest, some: Sequence[ReadChunk], copied: dict[str, TableCoverage]) -> Manifest:
    parts = tuple(part for chunk in some for part in chunk.parts)
    schemas = {schema.id: schema for chunk in some for schema in chunk.schemas}
    return replace(empty, chunks=tuple(chunk.chunk for chunk in some), parts=parts, schemas=schemas, coverage=copied)


def _copied(
    copy: TableCopy, place: Checkpoint, chunks: Sequence[ReadChunk], covered: TableCoverage | None, routes: Route
) -> TableCoverage:
    """Whole from the place on, and from a time on that all copied rows have: what was before is not known.

    The watermark may have been withdrawn since a chunk was read, because a clock had been ahead.
    """
    feeds = routes(copy.schema.database, copy.schema.table) or (covered.feeds if covered is not None else ())
    ts_us = max(place.watermark_us, *(chunk.chunk.ts_us for chunk in chunks))
    base_seq = began_at(copy, chunks).seq
    return TableCoverage(
        How.COPIED,
        place.position.seq - 1,
        ts_us,
        str(place.position),
        feeds=feeds,
        base_seq=base_seq,
        cascaded_seq=0 if covered is None else covered.cascaded_seq,
        rules=copy.rules,
    )
