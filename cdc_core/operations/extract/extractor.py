"""The extractor of one source: stream -> capture -> ring -> stager, with a lease that fences what it moves.

A reader thread fills the ring and a lease keeper renews the lease for as long as the extractor is open; batches
are staged by `drain`, in the caller's thread, so that the caller decides when it has waited long enough. An
error of the reader thread reaches the caller after everything read before it has been staged.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import pymysql

from cdc_core.binlog.warm_kernels import is_cold, warm
from cdc_core.errors import (
    ConnectionLost,
    LeaseLost,
    LockstepError,
    OtherServer,
    ServerChanged,
    UndoneAfterParts,
    defect,
)
from cdc_core.meta.meta_rows import RingDepth
from cdc_core.model.block import Block
from cdc_core.model.position import FIRST_OFFSET, Position
from cdc_core.model.windows import from_us
from cdc_core.mysql import connections
from cdc_core.operations.extract import acceptances, hosts
from cdc_core.operations.extract.attached_source import AttachedSource, recover
from cdc_core.operations.extract.drained import NOTHING, DrainResult, DrainStats, StagingTotals
from cdc_core.operations.extract.process_memory import limit_memory
from cdc_core.operations.extract.source_clock import SourceClock
from cdc_core.operations.extract.stager import Stager
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.process.leaving import uninterrupted
from cdc_core.ring import Ring, RingClosed
from cdc_core.source.capture import Capture
from cdc_core.source.host import source_server
from cdc_core.source.sql.accepted_places import AcceptedPlaces
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.transactions.source_stream import SourceStream
from cdc_core.source.wire import replica_identity
from cdc_core.stage.isolated import isolated, notes

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

FRUITLESS = 3
"""How often reading is retried from one position."""

ADVICE_S = 600.0
"""How often the position is compared with what the server purges next."""

FINISH_S = 2.0
"""How long what has come is waited for, once reading is interrupted."""
POLL_S = 0.2
"""How long `drain` waits for the ring before it looks at fence, budget and limits again."""
ANSWER_POLL_S = 0.005
"""How often it looks whether the stream has answered, once nothing is missing up to the fence."""


class Extractor:
    """Opens the source for reading on entering the context, and releases it on leaving.

    Raises, on entering, what `lockstep check` reports; RetryLater (lease.held) when another extractor holds
    the source.
    """

    def __init__(
        self,
        opened: OpenPipeline,
        source: str,
        *,
        accept: Iterable[tuple[str, int]] = (),
        abandon: tuple[str, int] | None = None,
    ) -> None:
        """accept: file and offset of events that would stop the source, and that an operator accepts.
        abandon: the same of the stored position, if what the log has from there on is to be given up."""
        self._accept = tuple(accept)
        self._abandon = abandon
        pipeline = opened.pipeline
        self._opened = opened
        self._pipeline = pipeline
        self._source = pipeline.source(source)
        self._meta = opened.meta
        self._cleanup = ExitStack()
        self._attached = ExitStack()
        self._ring = Ring(pipeline.limits.ring_items, pipeline.limits.ring_bytes)
        self._stream: SourceStream | None = None
        self._leaving: threading.Event | None = None
        """Has the reader end; None while no stream is being read."""
        self._stats_before = DrainStats()
        self._reader_error: BaseException | None = None
        self._lease_error: LockstepError | None = None
        self._undone: set[int] = set()
        self._advice_due_s = 0.0
        self._clock = SourceClock(self._source.name, self._meta)
        self._fruitless = (Position(0, "none.000000", FIRST_OFFSET), 0)

    def __enter__(self) -> Extractor:
        with self._placed(), ExitStack() as opened:
            self._open(opened)
            self._cleanup = opened.pop_all()
        return self

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """A remedy that gives up the rest of the log says from where on."""
        try:
            yield
        except LockstepError as error:
            if (
                "FILE:OFFSET" in error.remedy
                and (stored := self._meta.positions.checkpoint(self._source.name)) is not None
            ):
                place = f"{stored.position.file}:{stored.position.offset}"
                error.remedy = error.remedy.replace("NAME", self._source.name).replace("FILE:OFFSET", place)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def _open(self, opened: ExitStack) -> None:
        pipeline, source = self._pipeline, self._source
        self._capture = Capture(pipeline.tables, pipeline.routes)
        self._store = self._opened.store
        for reference in source.connections:  # a wrong one is reported before anything is touched
            connections.resolve(reference)
        held = self._meta.leases.held(
            source.name, self._opened.holder, pipeline.limits.lease_s, ring=self._ring_depth, lost=self._lost
        )
        self._lease = opened.enter_context(held)
        self._temporary = Path(
            opened.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True))
        )
        opened.callback(lambda: self._attached.close())
        self._attach(NOTHING)

    def _attach(self, staged: StagingTotals) -> None:
        """Connects to a server of the source and continues from the last durable position, with totals so far."""
        self._leaving = None
        self._attached.close()
        with ExitStack() as opened:
            pipeline, source = self._pipeline, self._source
            stored = recover(self._meta, self._store, self._lease)
            replica_host = replica_identity.replica_host(pipeline.pipeline, source.name, self._lease.identity)
            address, self._control, facts = hosts.connect(source, stored, replica_host)
            opened.callback(self._control.close)
            self._meta.leases.record_retention(self._lease, facts.retention_s)
            self._clock.read(self._control)
            if facts.lower_case != self._capture.lower_case:
                self._capture = Capture(pipeline.tables, pipeline.routes, lower_case=facts.lower_case)
            policy = CapturePolicy.from_config(pipeline.tables)
            at = AttachedSource(self._opened, source, self._lease, self._capture, address, self._control, facts)
            at.require_seen_cascades(policy)
            start = at.begin(stored, self._abandon)
            self._abandon = None  # when it attaches again
            left_out = isolated(self._store, source.name)
            for note in notes(left_out):
                log.warning("%s: %s", source.name, note)
            pending = acceptances.pending(self._accept, start.position, self._store, source.name)
            self._renew_ring()
            opened.callback(self._ring.close)
            self._stager = Stager(
                self._opened,
                lease=self._lease,
                start=start,
                scratch=self._temporary,
                acknowledge=self._ring.ack,
                staged=staged,
                isolated=left_out,
                coverage=at.coverage(start, left_out),
            )
            opened.callback(self._stager.abort)
            limit_memory()
            if is_cold():
                log.warning("Compiling the decoder for this machine, once: about 40 s. Later runs take it from disk.")
                warm()  # before the server sends, which does not wait that long for its first block to be read
            stream = SourceStream(
                source,
                server=address,
                start=start,
                capture=self._capture,
                replica_host=replica_host,
                policy=policy,
                isolated=left_out,
                history=self._meta.schemas.history(source.name),
                ahead=self._meta.positions.read_ahead(source.name),
                keep_ahead=self._keep_ahead,
                block_bytes=pipeline.limits.block_bytes,
                undone=self._undone,
                accepted=AcceptedPlaces(
                    source.name, pending, f"lockstep extract {pipeline.pipeline} --source {source.name} --accept"
                ),
            )
            opened.enter_context(stream)
            self._stream = stream
            leaving = self._start_reader(stream, opened)
            self._attached, self._leaving = opened.pop_all(), leaving

    def _renew_ring(self) -> None:
        """An empty ring; the waits and losses of the stream before it stay counted."""
        stats = self._drain_stats()
        # The stream counts the losses that it repairs itself; an end that reached us is one more.
        self._stats_before = replace(stats, losses=stats.losses + (self._stream is not None))
        self._stream = None
        self._ring = Ring(self._pipeline.limits.ring_items, self._pipeline.limits.ring_bytes)
        if self._lease_error is not None:
            self._ring.fail(self._lease_error)

    def _start_reader(self, stream: SourceStream, opened: ExitStack) -> threading.Event:
        """Starts the thread that fills the ring; it ends with `opened`, or once the event is set."""
        self._reader_error = None
        leaving = threading.Event()
        reader = threading.Thread(
            target=self._read, args=(stream, self._ring, leaving), name=f"lockstep-{self._source.name}", daemon=True
        )
        opened.callback(reader.join)
        reader.start()
        # Last in, first out: signal the thread to stop before joining it.
        opened.callback(self._ring.close)
        opened.callback(leaving.set)
        return leaving

    def _lost(self, error: LockstepError) -> None:
        self._lease_error = error
        self._ring.fail(error)

    def _keep_ahead(self, kept: str) -> None:
        """Without it, the next extractor reads that much of the log again. Raises RetryLater (lease.lost)."""
        try:
            self._meta.positions.keep_read_ahead(self._lease, kept)
        except LeaseLost:
            raise
        except LockstepError as error:
            log.warning("%s: what was read ahead could not be kept: %s", self._source.name, error)

    def _read(self, stream: SourceStream, ring: Ring, leaving: threading.Event) -> None:
        try:
            for block in stream.blocks(leaving.is_set):
                ring.put(self._capture.apply(block))
        except RingClosed:
            return
        except BaseException as error:  # noqa: BLE001 - every error must reach the caller of drain
            self._reader_error = error
        # What was read before the error can still be staged.
        ring.close()

    def drain(
        self,
        *,
        until_us: int | None = None,
        budget_s: float | None = None,
        progress: Callable[[DrainResult], None] | None = None,
    ) -> DrainResult:
        """Stage everything committed before `until_us` (µs UTC); None: up to the server's current position.

        Returns with done=False when `budget_s` expires first, or when the server's clock has not passed `until_us` yet
        and nothing is left to read; what was read meanwhile is kept for the next call. An interrupt, also one that
        `progress` raises, leaves after what has come is staged, up to the end of its last transaction.
        """
        try:
            with self._placed():
                return self._drain(until_us, budget_s, progress)
        except (SystemExit, KeyboardInterrupt):
            with uninterrupted():
                self._finish()
            raise

    def _finish(self) -> None:
        if self._leaving is None:
            return
        self._leaving.set()
        until_s = time.monotonic() + FINISH_S
        while time.monotonic() < until_s and not self._ring.drained:
            self._add(self._ring.take(timeout_s=POLL_S), self._clock.now_us)
        if not self._stager.inside_transaction:
            self._stager.commit()

    def _drain(
        self, until_us: int | None, budget_s: float | None, progress: Callable[[DrainResult], None] | None
    ) -> DrainResult:
        started_s = time.monotonic()
        fence: Position | None = None
        asked_now = until_us is None
        self._clock.expire()
        while True:
            now_us = self._now_us()
            if until_us is None:
                until_us = now_us
            staged_us = self._stager.reached.watermark_us
            if not self._stager.trust_watermark(now_us):
                log.warning(
                    "%s: staged up to %s, because clocks were ahead: it is %s. Completeness is determined again, and "
                    "new changes are not staged in an earlier window",
                    self._source.name,
                    from_us(staged_us).isoformat(),
                    from_us(now_us).isoformat(),
                )
            if fence is None and now_us >= until_us:
                fence = self._asked(self._end_of_log)
                if fence is not None:
                    log.info("%s: draining to the fence %s", self._source.name, fence)
                    assert self._stream is not None
                    self._stream.fence = fence
            self._warn_of_purge()
            attached = self._attached
            waited = not self._take(now_us, self._patience_s(fence))
            if self._attached is not attached:
                fence = None  # another log, perhaps
            reached = self._stager.reached
            complete = fence is not None and reached.position >= fence
            passed_window = not asked_now and reached.watermark_us >= until_us
            if (complete or passed_window) and not self._stager.inside_transaction:
                with uninterrupted():
                    self._stager.commit(watermark_us=until_us if complete else 0)
                if self._stream is not None:
                    self._stream.require_accepted()
                return self._result(done=True)
            if progress is not None:
                progress(self._result(done=False))
            if budget_s is not None and time.monotonic() - started_s >= budget_s:
                return self._result(done=False)
            if waited and fence is None and budget_s is not None:
                return self._result(done=False)

    @property
    def reached(self) -> DrainResult:
        """What is staged so far, also by a drain that raised."""
        return self._result(done=False)

    def _now_us(self) -> int:
        if self._clock.due:
            self._asked(self._clock.read)
        return self._clock.now_us

    def _warn_of_purge(self) -> None:
        """Warns, at intervals, when the server is about to purge what is not staged yet."""
        if time.monotonic() < self._advice_due_s:
            return
        self._advice_due_s = time.monotonic() + ADVICE_S

        def near(control: pymysql.Connection) -> source_server.Advice | None:
            durable = self._stager.durable
            if durable.position >= self._end_of_log(control):
                return None
            return source_server.advise_position(
                source_server.facts(control), source_server.binlog_files(control), durable
            )

        if (advice := self._asked(near)) is not None:
            log.warning("%s: %s", self._source.name, advice)

    def _end_of_log(self, control: pymysql.Connection) -> Position:
        return source_server.end_position(control, self._stager.reached.position.timeline)

    def _asked(self, question: Callable[[pymysql.Connection], Answer]) -> Answer | None:
        """The server's answer; None while it is down: the stream reconnects, and decides when to give up."""
        try:
            return question(self._control)
        except ConnectionLost:
            return None

    def _patience_s(self, fence: Position | None) -> float:
        """How long to wait for the next block. If nothing is missing up to the fence, nothing is waited for but an
        answer to the stream's request: a log that cannot be read must not go unnoticed."""
        if fence is None or self._stager.reached.position < fence:
            return POLL_S
        ends_s = time.monotonic() + POLL_S
        while self._stream is not None and not self._stream.answered and not self._ring.drained:
            if time.monotonic() >= ends_s:
                break
            time.sleep(ANSWER_POLL_S)
        return 0.0

    def _take(self, now_us: int, timeout_s: float) -> bool:
        """Move what the ring holds into the stager; False when nothing came within the time."""
        with uninterrupted():
            if taken := self._ring.take(timeout_s=timeout_s):
                self._add(taken, now_us)
                return True
            if self._ring.starved:
                self._stager.release()
                return False
            if not self._ring.drained:
                self._stager.tick()
                return False
        self._end_of_stream()
        return False

    def _add(self, blocks: Iterable[Block], now_us: int) -> None:
        for block in blocks:
            self._stager.add(block, now_us=now_us)

    def _end_of_stream(self) -> None:
        """The reader thread has ended: keep what is complete, then attach again if that helps, or raise its error."""
        error = self._reader_error
        helps = isinstance(error, LockstepError) and self._attaching_helps(error)
        with uninterrupted():
            if not self._stager.inside_transaction:
                self._stager.commit()
        if helps:
            log.warning("%s: continuing from the last durable position: %s", self._source.name, error)
            self._attach(self._stager.staged)
            return
        if error is not None:
            raise error
        raise defect(
            "The stream ended without an error while it was being drained.",
            where=f"{self._source.name} {self._stager.reached.position}",
            first="nothing is lost; run again",
        )

    def _attaching_helps(self, error: LockstepError) -> bool:
        """Whether attaching again may help: to another server, or to reread a transaction in pieces."""
        several = len(self._source.connections) > 1
        lost = isinstance(error, ConnectionLost) and (several or self._stager.inside_transaction)
        if not lost and not isinstance(error, OtherServer | ServerChanged | UndoneAfterParts):
            return False
        place = self._stager.reached.position if not self._stager.inside_transaction else self._stager.durable.position
        last, times = self._fruitless
        self._fruitless = (place, times + 1 if place == last else 1)
        return self._fruitless[1] <= FRUITLESS

    def _result(self, *, done: bool) -> DrainResult:
        durable = self._stager.durable
        return DrainResult(
            done,
            self._stager.staged,
            durable.position,
            durable.watermark_us,
            self._drain_stats(),
            self._stager.coverage.partial if done else {},
        )

    def _ring_depth(self) -> RingDepth:
        ring = self._ring.stats()
        return RingDepth(ring.depth_items, ring.depth_bytes, ring.high_water_items, ring.high_water_bytes)

    def _drain_stats(self) -> DrainStats:
        before, ring = self._stats_before, self._ring.stats()
        return DrainStats(
            before.put_waits + ring.put_waits,
            before.take_waits + ring.take_waits,
            before.losses + (0 if self._stream is None else self._stream.connection.losses),
        )
