"""`Meta`: every question and every move of the meta database, one transaction each.

Here is where transactions begin and what callers must know; the SQL is in the functions of leases, batches, runs and
views, which take a connection, so that one transaction can use several of them.
May assume nothing about concurrent users: extractors, tasks of several runs, the command line.
Keeps true: a call that raises has moved nothing; frozen values go in and come out.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any

from sqlalchemy import Connection

from cdc_core.errors import LockstepError, Refused
from cdc_core.leaving import at_the_last, unwound
from cdc_core.meta import (
    batches,
    copies,
    cutovers,
    ddl,
    failures,
    forget,
    layouts,
    leases,
    migrate,
    runs,
    verifications,
    views,
    writes,
)
from cdc_core.meta.copies import CopyPause, PlannedChunk, ReadChunk, TableCopy
from cdc_core.meta.database import Database, absent, now_us, parse, require_file
from cdc_core.meta.overview import Account, Overview, accounts, overview
from cdc_core.meta.rows import (
    BatchRow,
    ChunkRetries,
    Claim,
    ClosedWrite,
    Failure,
    FileRow,
    LastWrites,
    Lease,
    LedgerRow,
    PlannedRun,
    RecordRow,
    Renewals,
    RingDepth,
    RunRow,
    SetAside,
    SourceCoverage,
    Status,
    Verification,
)
from cdc_core.meta.states import RecordState
from cdc_core.meta.views import PlanView
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import Surveyed, TableCoverage
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.run import LedgerEntry, WriteCounts
from cdc_core.model.schema import DefinedSince, TableSchema
from cdc_core.windows import Windows

log = logging.getLogger(__name__)

_NO_RING = RingDepth()
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Meta:
    """Open it with `Meta.open`, as a context manager. Threads may share one; a forked process opens its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._holds: dict[tuple[str, str], Lease] = {}
        """Leases that were taken and not given back."""

    @classmethod
    def open(
        cls,
        url: str,
        pipeline: str,
        *,
        upgrade: bool = False,
        create: bool = True,
        busy_timeout_s: float = 30.0,
        answer_timeout_s: float | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Meta:
        """A pipeline's part of the meta database behind a SQLAlchemy URL, or behind `env:VAR` that holds one.

        A database without Lockstep's tables gets them; one with older tables gets newer ones by `upgrade` only.
        create: False for readers: neither a file nor tables are created.
        answer_timeout_s: how long a server may take to answer; for callers that ask little and must not hang.

        Raises UsageError (config.invalid, config.unset, install.missing), Refused (meta.absent, meta.outdated,
        install.version, connection.denied, disk.not_permitted), RetryLater (connection.unreachable, meta.busy).
        """
        parsed = parse(url, environ)
        if not create:
            require_file(parsed)
        database = Database(parsed, pipeline, busy_timeout_s=busy_timeout_s, answer_timeout_s=answer_timeout_s)
        try:
            _check_version(database, upgrade=upgrade, create=create)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def of(self, pipeline: str) -> Meta:
        """Another pipeline's part of the same database."""
        return Meta(self._database.of(pipeline))

    def __enter__(self) -> Meta:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Meta({self._database.name!r})"

    def close(self) -> None:
        """Leases that are still held, because a signal came when they were taken, are given back."""
        unwound(self._give_back)
        self._give_back()
        self._database.close()

    def _give_back(self) -> None:
        for lease in list(self._holds.values()):
            with suppress(LockstepError):
                self._database.write(partial(leases.give_back, lease=lease))

    # Leases

    def acquire_lease(self, source: str, pipeline: str, holder: str, ttl_s: float) -> Lease:
        """The right to extract a source, under a new epoch. Raises RetryLater (lease.held)."""
        at_the_last(self._give_back)
        named = pipeline, source
        before = self._holds.get(named)

        def take(connection: Connection) -> Lease:
            # Before the transaction ends: a signal may come once it is taken and before we know.
            lease = self._holds[named] = leases.acquire(connection, source, pipeline, holder, ttl_s)
            return lease

        try:
            return self._database.write(take)
        except Exception:
            self._holds.pop(named, None)
            if before is not None:
                self._holds[named] = before
            raise

    def renew_lease(self, lease: Lease, ttl_s: float, ring: RingDepth = _NO_RING) -> Lease:
        """Raises RetryLater (lease.lost) when another has taken it. ring: of an extractor, for `status`."""
        return self._database.write(lambda c: leases.renew(c, lease, ttl_s, ring))

    def release_lease(self, lease: Lease, ring: RingDepth = _NO_RING) -> None:
        """Give the lease up at once. Raises RetryLater (lease.lost) when another has taken it."""
        self._database.write(lambda c: leases.release(c, lease, ring))
        self._holds.pop((lease.pipeline, lease.source), None)

    def live_epoch(self, source: str) -> int:
        """Epochs of the source below it have ended."""
        return self._database.read(lambda c: leases.live_epoch(c, source))

    def record_retention(self, lease: Lease, retention_s: int) -> None:
        """How long the source keeps its log; 0: for ever. Raises RetryLater (lease.lost)."""
        self._database.write(lambda c: leases.record_retention(c, lease, retention_s))

    def lease_identity(self, source: str) -> str:
        """Lease.identity of the source; "" for one that was never extracted."""
        return self._database.read(lambda c: leases.identity(c, source))

    @contextmanager
    def holding(self, source: str, pipeline: str, holder: str, ttl_s: float) -> Iterator[None]:
        """The source's lease for the length of a block: no extractor runs meanwhile. Raises as acquire_lease."""
        lease = self.acquire_lease(source, pipeline, holder, ttl_s)
        try:
            yield
        finally:
            self.release_lease(lease)

    # Positions and batches

    def now_us(self) -> int:
        """The database's clock, µs UTC."""
        return self._database.read(now_us)

    def checkpoint(self, source: str) -> Checkpoint | None:
        """Up to where a source is staged; None for one that was never extracted."""
        return self._database.read(lambda c: batches.checkpoint(c, source))

    def checkpoints(self, pipeline: str) -> Mapping[str, Checkpoint]:
        """By source, of those that were extracted before."""
        return self._database.of(pipeline).read(lambda c: batches.sources_of(c, pipeline))

    def watermark(self, sources: Sequence[str]) -> int:
        """µs UTC: windows that end at or before it are staged completely by all of them; 0 when one never began."""
        found = self._database.read(lambda c: [batches.checkpoint(c, source) for source in sources])
        return min((one.watermark_us if one is not None else 0 for one in found), default=0)

    def commit_batch(self, lease: Lease, manifest: Manifest) -> None:
        """Record a batch whose manifest is durable, and move the position to its end. Idempotent.

        Serves adoption too: a manifest found in the chain after the stored position, of this or an older epoch.
        Raises RetryLater (lease.lost), DataAtRisk (meta.gap, stage.chain).
        """
        self._database.write(lambda c: batches.commit(c, lease, manifest))

    def advance_watermark(self, lease: Lease, checkpoint: Checkpoint) -> None:
        """Progress without a batch: the position stays, the watermark never falls. The first call sets the position.

        Raises RetryLater (lease.lost), DataAtRisk (meta.gap) when the position differs from the stored one.
        """
        self._database.write(lambda c: batches.advance_watermark(c, lease, checkpoint))

    def coverage(self, source: str) -> SourceCoverage:
        """Whether the source's tables are staged with every row."""
        return self._database.read(lambda c: batches.coverage(c, source))

    def keep_coverage(self, lease: Lease, covered: Mapping[str, TableCoverage], surveyed: Surveyed) -> None:
        """Keep what was seen of tables until a manifest says it. Raises RetryLater (lease.lost)."""
        self._database.write(lambda c: batches.keep_coverage(c, lease, covered, surveyed))

    # Copies of existing rows

    def copies(self, source: str) -> tuple[TableCopy, ...]:
        """The copies of a source's tables that are not staged yet."""
        return self._database.read(lambda c: copies.find(c, source))

    def begin_copy(self, lease: Lease, copy: TableCopy) -> None:
        """Begin to copy a table, or begin again. Raises RetryLater (lease.lost)."""
        self._database.write(lambda c: copies.begin(c, lease, copy))

    def drop_copy(self, lease: Lease, source: str, table: str) -> None:
        """Forget a copy that is not wanted any more, and its chunks. Raises RetryLater (lease.lost)."""
        self._database.write(lambda c: copies.drop(c, lease, source, table))

    def next_chunk(self, lease: Lease, source: str) -> int:
        """A number for a chunk, greater than all before. Raises RetryLater (lease.lost)."""
        return self._database.write(lambda c: copies.next_chunk(c, lease, source))

    def plan_chunk(
        self, lease: Lease, source: str, table: str, above: tuple[str, ...] | None, through: tuple[str, ...]
    ) -> PlannedChunk:
        """The next chunk of a table's copy, after `above`; the caller is to read it.

        Raises RetryLater (lease.lost).
        """
        return self._database.write(lambda c: copies.plan_chunk(c, lease, source, table, above, through))

    def take_chunk(self, lease: Lease, source: str, table: str) -> PlannedChunk | None:
        """A chunk whose reader has failed or was killed; the caller is to read it.

        Raises RetryLater (lease.lost).
        """
        return self._database.write(lambda c: copies.take_chunk(c, lease, source, table))

    def chunk_retries(self, source: str) -> Mapping[str, ChunkRetries]:
        """By table whose copy is not staged yet, if reading a chunk of it has failed, or was interrupted."""
        return self._database.read(lambda c: copies.retries(c, source))

    def leave_chunk(self, lease: Lease, source: str, number: int, error: str) -> None:
        """The reader of a chunk has failed. Raises RetryLater (lease.lost)."""
        self._database.write(lambda c: copies.leave_chunk(c, lease, source, number, error))

    def chunk_read(self, lease: Lease, source: str, one: ReadChunk, size_bytes: int = 0) -> bool:
        """A chunk's files are durable; False if its copy was dropped or begun again.

        size_bytes: of its values in memory. Raises RetryLater (lease.lost).
        """
        return self._database.write(lambda c: copies.read(c, lease, source, one, size_bytes))

    def pause_copies(self, source: str, holder: str) -> None:
        """No chunk of the source is read from now on, by any process."""
        self._database.write(lambda c: copies.pause(c, source, holder))

    def resume_copies(self, source: str) -> bool:
        """Whether copies were paused."""
        return self._database.write(lambda c: copies.resume(c, source))

    def copies_paused(self, source: str) -> CopyPause | None:
        """Since when and by whom; None while copies may be read."""
        return self._database.read(lambda c: copies.paused(c, source))

    def chunks(self, source: str) -> tuple[ReadChunk, ...]:
        """The chunks that are read and in no manifest yet."""
        return self._database.read(lambda c: copies.chunks(c, source))

    def decide_copied(self, lease: Lease, manifest: Manifest, done: Sequence[str], *, exact: bool = False) -> None:
        """A manifest takes these chunks, all of the tables `done`; it is written next.

        exact: some are of a table without a key; until it is recorded, runs take no batch from its place on.

        Raises RetryLater (lease.lost).
        """
        self._database.write(lambda c: copies.decide(c, lease, manifest, done, exact=exact))

    def repaired(self, source: str, within_s: float) -> int:
        """Rows of a source that repairs have staged in the last seconds."""
        return self._database.read(lambda c: copies.repaired(c, source, within_s))

    def repaired_batches(self, source: str) -> frozenset[str]:
        """Ids of the batches that repairs have staged or decided in the last days."""
        return self._database.read(lambda c: copies.repaired_batches(c, source))

    def decided_copied(self, source: str) -> tuple[Manifest, ...]:
        """Manifests that were decided and may not be written, or not recorded."""
        return self._database.read(lambda c: copies.decided(c, source))

    def record_copied(self, lease: Lease, manifest: Manifest) -> None:
        """Record a batch of copied rows whose manifest is durable. Idempotent. Raises RetryLater (lease.lost)."""
        self._database.write(lambda c: batches.record_copied(c, lease, manifest))

    def rebuild(
        self, lease: Lease, manifests: Iterable[Manifest], purged: Mapping[str, TableCoverage] | None = None
    ) -> tuple[Lease, int]:
        """Restore a source's batches and position from its chain of manifests, given from the first one on.

        purged: the coverage that the horizon kept of manifests before them.

        Returns the lease, under an epoch above all of the chain's, and how many batches were missing.
        Raises RetryLater (lease.lost), DataAtRisk (stage.chain).
        """
        chain = tuple(manifests)
        raised, added = self._database.write(lambda c: batches.rebuild(c, lease, chain, purged or {}))
        self._holds[lease.pipeline, lease.source] = raised
        return raised, added

    def batches(
        self, source: str, *, after: Position | None = None, until: Position | None = None
    ) -> tuple[BatchRow, ...]:
        """In stream order: those that begin at or after `after` and end at or before `until`."""
        return self._database.read(lambda c: batches.find(c, source, after=after, until=until))

    def batch(self, batch_id: str) -> BatchRow | None:
        """A purged one too, until `forget_batches`."""
        return self._database.read(lambda c: batches.by_id(c, batch_id))

    def copied_manifests(self, source: str) -> tuple[str, ...]:
        """The paths of its manifests of copied rows: without one of them, the chain of manifests has no gap."""
        return self._database.read(lambda c: batches.copied_manifests(c, source))

    def files(self, batch_ids: Sequence[str]) -> Mapping[str, tuple[FileRow, ...]]:
        """The files of each batch, as in its manifest."""
        return self._database.read(lambda c: batches.files(c, batch_ids))

    def schemas(self, schema_ids: Sequence[str]) -> Mapping[str, TableSchema]:
        """The definitions that meta knows of those asked for."""
        return self._database.read(lambda c: batches.schemas(c, schema_ids))

    def read_ahead(self, source: str) -> str:
        """What of the source's log was read ahead, as it was kept; "" for nothing."""
        return self._database.read(lambda c: batches.read_ahead(c, source))

    def keep_read_ahead(self, lease: Lease, kept: str) -> None:
        """Raises RetryLater (lease.lost)."""
        self._database.write(lambda c: batches.keep_read_ahead(c, lease, kept))

    def history(self, source: str) -> tuple[DefinedSince, ...]:
        """What the source's tables were, where its log does not say it, in the order of the log."""
        return self._database.read(lambda c: batches.history(c, source))

    # Runs and consume records

    def plan_view(
        self, run_id: str, sources: Sequence[str], targets: Sequence[str], window: tuple[int, int] | None
    ) -> PlanView:
        return self._database.read(lambda c: views.plan_view(c, run_id, sources, targets, window))

    def claim(self, run: PlannedRun, claims: Sequence[Claim]) -> None:
        """Register a run, and make it the owner of these records: new ones STAGED, others in the state they have.

        Raises RetryLater (run.taken_over) when one of them is committed, Refused (usage.argument), DataAtRisk
        (target.layout).
        """
        self._database.write(lambda c: runs.claim(c, run, claims))

    def layouts(self, target: str) -> Mapping[str, str]:
        """By logical table, the layout under which the target's rows were written."""
        return self._database.read(lambda c: layouts.known(c, target))

    def require_layouts(self, target: str, wanted: Mapping[str, str]) -> None:
        """Raises DataAtRisk (target.layout)."""
        self._database.read(lambda c: layouts.require(c, target, wanted))

    def note_layouts(self, target: str, wanted: Mapping[str, str]) -> None:
        """From now on, rows may be in the shards where these layouts have them. Raises DataAtRisk (target.layout)."""

        def noted(c: Connection) -> None:
            layouts.require(c, target, wanted)
            layouts.note(c, target, wanted)

        self._database.write(noted)

    def accept_layouts(self, target: str, accepted: Mapping[str, str]) -> None:
        """The rows of these tables are where these layouts have them."""
        self._database.write(lambda c: layouts.note(c, target, accepted, accepted=frozenset(accepted)))

    def run(self, run_id: str) -> RunRow | None:
        return self._database.read(lambda c: runs.find(c, run_id))

    def records(self, target: str, batch_ids: Sequence[str]) -> tuple[RecordRow, ...]:
        """A target's consume records of these batches, by batch id and table."""
        return self._database.read(lambda c: runs.records(c, target, batch_ids))

    def committed_by(self, run_id: str, target: str) -> tuple[str, ...]:
        """The batches that a run has committed for a target, in stream order of each source; none of a replay."""
        return self._database.read(lambda c: runs.committed_by(c, run_id, target))

    def left_out(self, target: str, tables: Collection[str]) -> dict[str, list[str]]:
        """By table of these, the batches that the target has consumed without it, in stream order."""
        return self._database.read(lambda c: runs.left_out(c, target, tables))

    def take(self, target: str, batches: Mapping[str, Collection[str]]) -> None:
        """By table, batches whose changes of it the target has, although it has consumed them without."""
        self._database.write(lambda c: runs.take(c, target, batches))

    def mark_applied(self, run_id: str, target: str, batch_ids: Sequence[str]) -> int:
        """STAGED → APPLIED for all records that no other run has taken over; how many moved.

        Raises Refused (run.clear_task).
        """
        return self._database.write(lambda c: runs.move(c, run_id, target, batch_ids, RecordState.APPLIED))

    def commit_run(
        self,
        run_id: str,
        target: str,
        batch_ids: Sequence[str],
        entries: Sequence[LedgerEntry],
        shards: Sequence[WriteCounts],
        *,
        plan: tuple[str, str] | None = None,
        spans: Mapping[str, Mapping[str, tuple[str, str]]] = _NOTHING,
        lost: Mapping[str, Collection[str]] = _NOTHING,
        renewed: Renewals = _NOTHING,
    ) -> int:
        """APPLIED → COMMITTED for all of them, together with the ledger; how many moved. Again: 0, no change.

        plan: path and sha256 of the one that was carried out: no other may be registered by now. spans: RunPlan.spans.
        lost, renewed: as in writes.keep.
        Raises RetryLater (run.taken_over), Refused (run.clear_task).
        """
        return self._database.write(
            lambda c: runs.close(
                c, run_id, target, batch_ids, entries, shards, plan=plan, spans=spans, lost=lost, renewed=renewed
            )
        )

    def record_failure(self, run_id: str, error: str, *, target: str | None = None) -> None:
        """Keep why a task of the run failed; states stay. Does nothing for a run that has committed."""
        self._database.write(lambda c: runs.record_failure(c, run_id, target, error))

    def failed(self, pipeline: str, task: str, subject: str, error: LockstepError) -> None:
        """Keep an error of a task (extract, plan, run, copy) of a source or run, until the task has succeeded."""
        self._database.of(pipeline).write(lambda c: failures.keep(c, pipeline, task, subject, error))

    def succeeded(self, pipeline: str, task: str, subject: str) -> None:
        """Forget the error of a task whose success nothing else shows."""
        self._database.of(pipeline).write(lambda c: failures.clear(c, pipeline, task, subject))

    def failures(self, pipeline: str) -> tuple[Failure, ...]:
        """Errors that no success has followed, the latest first."""
        return self._database.of(pipeline).read(lambda c: failures.find(c, pipeline))

    def purge(
        self, source: str, end: Position, batch_ids: Sequence[str], *, targets: Sequence[str], copied: Collection[str]
    ) -> int:
        """COMMITTED → PURGED for all of them and all of these targets; how many records moved. Again: 0, no change.

        end: where the last of the batches ends. copied: ids of later batches of copied rows; these need none of them.

        Raises Refused (stage.not_committed) when a target has not committed one of them, or any still works on it;
        RetryLater (lease.lost) when rows that need one of them were copied meanwhile, or still are.
        """

        def work(connection: Connection) -> int:
            copies.mark_purged(connection, source, end, copied)
            return runs.purge(connection, targets, batch_ids)

        return self._database.write(work)

    def purged_seq(self, source: str) -> int:
        """What begins before it is purged, or about to be; 0 where nothing is."""
        return self._database.read(lambda c: copies.purged_seq(c, source))

    def seed(self, target: str, batches: Sequence[BatchRow]) -> int:
        """Count batches as PURGED for a target that was filled by other means; how many of them had no record."""
        return self._database.write(lambda c: runs.seed(c, target, batches))

    def seeded(self, target: str) -> bool:
        """Whether `seed` has counted batches for the target."""
        return self._database.read(lambda c: runs.seeded(c, target))

    def finished_runs(self, pipeline: str, before_us: int) -> tuple[str, ...]:
        """Runs that were committed before a time, and whose rows no target lacks that it set aside."""
        return self._database.of(pipeline).read(lambda c: runs.finished(c, pipeline, before_us))

    def unfinished_runs(self, pipeline: str, since_us: int) -> tuple[RunRow, ...]:
        """Runs that are not committed and were planned, or failed, since a time."""
        return self._database.of(pipeline).read(lambda c: runs.unfinished(c, pipeline, since_us))

    def holder(self, batch_ids: Sequence[str]) -> tuple[str, str] | None:
        """A target and its run that hold one of these batches and have not committed it; None if there is none."""
        return self._database.read(lambda c: runs.holder(c, batch_ids))

    def first_lacking(self, source: str, target: str) -> str | None:
        """The id of the source's first batch that the target has not consumed."""
        return self._database.read(lambda c: views.first_lacking(c, source, target))

    def forget_batches(self, horizons: Mapping[str, Position], before_us: int, *, dry_run: bool = False) -> int:
        """Drop what is known of the first batches of each source, those before its horizon whose windows ended by
        `before_us`, with their files and records; how many batches."""
        return self._database.write(lambda c: forget.batches(c, horizons, before_us, dry_run=dry_run))

    def forget_runs(self, pipeline: str, before_us: int, *, dry_run: bool = False) -> int:
        """Drop the finished_runs of before a time, with their ledgers; how many runs."""
        return self._database.of(pipeline).write(lambda c: forget.runs(c, pipeline, before_us, dry_run=dry_run))

    def ledger(self, run_id: str, target: str | None = None) -> tuple[LedgerRow, ...]:
        return self._database.read(lambda c: runs.ledger(c, run_id, target))

    def set_aside(self, target: str) -> tuple[SetAside, ...]:
        """Rows that the target rejected, as long as it lacks them."""
        return self._database.read(lambda c: runs.set_aside(c, target))

    def settle(
        self, target: str, *, run_id: str | None = None, table: str | None = None, before_us: int | None = None
    ) -> None:
        """The target lacks no more of what was set aside: of these runs and tables, by ledgers closed before then."""
        self._database.write(lambda c: runs.settle(c, target, run_id, table, before_us))

    def last_writes(self, target: str) -> LastWrites:
        """What the target must have: the last transactions that closed ledgers count."""
        return self._database.read(lambda c: writes.last(c, target))

    def closed_writes(self, target: str, table: str) -> tuple[ClosedWrite, ...]:
        """What closed ledgers say of one table, in the order of their closing; those that meta still has."""
        return self._database.read(lambda c: writes.closed(c, target, table))

    def accept_writes(self, target: str, shown: Renewals) -> None:
        """The target need have nothing of these tables' shards but what it shows, if nothing was written since."""
        self._database.write(lambda c: writes.accept(c, target, shown))

    # Verifications

    def verification(self, pipeline: str, target: str) -> Verification | None:
        """None where none was ever begun."""
        found = self._database.of(pipeline).read(lambda c: verifications.find(c, pipeline))
        return next((one for one in found if one.target == target), None)

    def keep_progress(self, lease: Lease, pipeline: str, target: str, progress: str | None) -> None:
        """How far a verification is, a document; None where none is under way. Raises RetryLater (lease.lost)."""
        self._database.of(pipeline).write(lambda c: verifications.keep_progress(c, lease, pipeline, target, progress))

    def finish_verification(
        self, lease: Lease, pipeline: str, target: str, mode: str, evidence: Mapping[str, Any]
    ) -> None:
        """The verification under way has ended. evidence: a summary, as JSON. Raises RetryLater (lease.lost)."""
        self._database.of(pipeline).write(lambda c: verifications.finish(c, lease, pipeline, target, mode, evidence))

    def doubt(
        self, lease: Lease, pipeline: str, target: str, mode: str, why: str, differing: Mapping[str, int]
    ) -> None:
        """What verifications that have begun before now say does not count. mode: under which it is kept. why: for
        people. differing: by logical table, rows that are known to differ. Raises RetryLater (lease.lost)."""
        self._database.of(pipeline).write(
            lambda c: verifications.doubt(c, lease, pipeline, target, mode, why, differing)
        )

    def forget_differences(self, lease: Lease, pipeline: str, target: str, repaired: Mapping[str, int]) -> None:
        """repaired: by logical table, how many rows are equal now. Raises RetryLater (lease.lost)."""
        self._database.of(pipeline).write(
            lambda c: verifications.forget_differences(c, lease, pipeline, target, repaired)
        )

    # Changes of definitions

    def latest_rollout(self, pipeline: str, target: str) -> ddl.Rollout | None:
        return self._database.of(pipeline).read(lambda c: ddl.latest(c, pipeline, target))

    def rollout_shards(self, rollout_id: str) -> tuple[ddl.ShardProgress, ...]:
        return self._database.read(lambda c: ddl.shards(c, rollout_id))

    def begin_rollout(self, lease: Lease, rollout: ddl.Rollout, known: Sequence[ddl.ShardProgress]) -> ddl.Rollout:
        """Raises RetryLater (lease.lost)."""
        return self._database.write(lambda c: ddl.begin(c, lease, rollout, known))

    def move_shard(
        self, lease: Lease, rollout_id: str, former: ddl.ShardProgress, behind: int, error: str = ""
    ) -> ddl.ShardProgress:
        """Raises RetryLater (lease.lost)."""
        return self._database.write(lambda c: ddl.moved(c, lease, rollout_id, former, behind, error))

    def finish_rollout(self, lease: Lease, rollout_id: str) -> None:
        """Raises RetryLater (lease.lost)."""
        self._database.write(lambda c: ddl.finish(c, lease, rollout_id))

    # Cutovers

    def latest_cutover(self, pipeline: str) -> cutovers.Cutover | None:
        """Of those in which the application leaves the sources of this pipeline."""
        return self._database.of(pipeline).read(lambda c: cutovers.latest(c, pipeline))

    def cutover_tokens(self, states: Collection[str]) -> frozenset[str]:
        """Of what cutovers in these states, of all pipelines, have fenced and gated."""
        return self._database.read(lambda c: cutovers.tokens(c, states))

    def begin_cutover(self, lease: Lease, cutover: cutovers.Cutover, over: Collection[str]) -> cutovers.Cutover:
        """over: the states in which a former one is over. Raises RetryLater (lease.lost)."""
        return self._database.write(lambda c: cutovers.begin(c, lease, cutover, over))

    def move_cutover(
        self,
        lease: Lease,
        former: cutovers.Cutover,
        state: str,
        details: Mapping[str, Any] = _NOTHING,
        error: str = "",
    ) -> cutovers.Cutover:
        """To a state, or to the same one with other details. Raises RetryLater (lease.lost)."""
        return self._database.write(lambda c: cutovers.move(c, lease, former, state, details, error))

    def status(self, pipeline: str, targets: Sequence[str] = ()) -> Status:
        """`targets`: names to show even if nothing was planned for them yet."""
        return self._database.of(pipeline).read(lambda c: views.status(c, pipeline, targets))

    def account(self, run_id: str) -> Account | None:
        """A run with its targets and ledgers; None for one that was never planned."""

        def asked(c: Connection) -> Account | None:
            found = runs.find(c, run_id)
            return None if found is None else accounts(c, [found])[0]

        return self._database.read(asked)

    def overview(self, pipeline: str, targets: Sequence[str], windows: Windows) -> Overview:
        """The status and what led to it, for a page; `windows` are the pipeline's."""
        return self._database.of(pipeline).read(lambda c: overview(c, pipeline, targets, windows))


def _check_version(database: Database, *, upgrade: bool, create: bool) -> None:
    head = migrate.head()
    revision = database.read(migrate.current)
    if revision == head:
        return
    if revision is None and not create:
        raise absent(database.name)
    if revision is not None and not migrate.known(revision):
        raise Refused(
            f"The meta database is at migration {revision}, which this version of Lockstep ({head}) does not know.",
            where=database.name,
            code="install.version",
            remedy="upgrade Lockstep on this host to the version that migrated the database",
        )
    if revision is not None and not upgrade:
        raise Refused(
            f"The meta database is at migration {revision}; this version of Lockstep needs {head}.",
            where=database.name,
            code="meta.outdated",
            remedy="run `lockstep meta upgrade PIPELINE` while no task of the pipeline runs",
        )
    database.write(_upgrade)
    log.info("meta %s: at migration %s", database.name, head)


def _upgrade(connection: Connection) -> None:
    """Another process may have been first: the check is repeated in the transaction that writes."""
    revision = migrate.current(connection)
    if revision is None:
        migrate.create(connection)
    elif revision != migrate.head():
        migrate.upgrade(connection)
