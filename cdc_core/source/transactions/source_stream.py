"""The stream of one source: opened at a checkpoint, and read into blocks until the caller stops it.

It joins the wire (dump), the transactions (transaction_assembler) and a second connection for definitions. It must keep
true that a block leaves soon (at most a second after its first event), that the caller's stop takes effect soon, and
that resuming after a stop or a lost connection neither loses nor repeats anything: the stream resumes where the last
whole transaction ended, and drops and rereads what it had of the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from types import TracebackType

import pymysql

from cdc_core.config import Limits, Source
from cdc_core.errors import ConnectionLost, DamagedBytes, LockstepError, NoEventHere
from cdc_core.model.block import Block
from cdc_core.model.position import FIRST_OFFSET, Checkpoint, Fingerprint, Position
from cdc_core.model.schema import DefinedSince, TableSchema
from cdc_core.mysql import connections
from cdc_core.source.host import source_faults
from cdc_core.source.host.gtid_sets import GtidSet
from cdc_core.source.host.server_facts import BinlogFile, binlog_files, facts, lower_case_names, query
from cdc_core.source.host.source_answers import SourceAnswers
from cdc_core.source.host.source_server import require_free_server_id
from cdc_core.source.host.start_position import Search, require_available
from cdc_core.source.schemas.captured_definitions import table_schemas
from cdc_core.source.schemas.cascades import Cascades, logs_cascades
from cdc_core.source.schemas.definition_history import LogPoint, SchemaHistory
from cdc_core.source.schemas.merge_tables import united_table, united_tables
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.sql.accepted_places import AcceptedPlaces
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.sql.log_ahead import LogAhead
from cdc_core.source.sql.statement_reach import StatementReach
from cdc_core.source.transactions.fast_path import FastPath
from cdc_core.source.transactions.spilled_changes import SpillableChanges
from cdc_core.source.transactions.transaction_assembler import TransactionAssembler
from cdc_core.source.wire import replica_identity
from cdc_core.source.wire.backoff import Backoff
from cdc_core.source.wire.log_glance import LogGlance
from cdc_core.source.wire.log_reader import LogReader

log = logging.getLogger(__name__)

POLL_S = 0.1
"""How long a read waits; a block that is being built leaves when nothing came for this long."""
FLUSH_S = 1.0
"""A block leaves at this age even if more is coming."""
VERIFY_S = 60.0
"""How often the server's definitions are compared with those in use, where the log does not name columns."""
BLOCK_BYTES = 16 << 20
"""Approximate decoded size of a block, if the limits allow it."""


class SourceStream:
    """Blocks of a source from `start` on. A context manager; not thread-safe.

    captures:          whether a table is captured.
    replica_host:      the name under which we register (server_id.replica_host): only our own old streams are ended.
    isolated:          tables that are already isolated, `database.table` -> since where, and why.
    history:           earlier definitions, from earlier blocks (Block.definitions).
    excludes:          whether no definition that is kept may name a column, where the log itself names them.
    limits:            of the ring; they bound the size of a block.
    undone:            see TransactionAssembler; the stream adds to it.
    accept, accept_by: file and offset of events that an operator accepts; the command for it, without FILE:OFFSET.
    ahead, keep_ahead: what was read ahead before, as it was kept; keeps it.
    Raises, on entering, what LogReader raises.
    """

    def __init__(
        self,
        source: Source,
        *,
        server: connections.Server,
        start: Checkpoint,
        captures: Callable[[str, str], bool],
        replica_host: str,
        policy: CapturePolicy,
        isolated: Mapping[str, str] | None = None,
        history: Iterable[DefinedSince] = (),
        excludes: Callable[[TableSchema, str], bool] = lambda schema, column: False,
        limits: Limits | None = None,
        block_bytes: int = BLOCK_BYTES,
        undone: set[int] | None = None,
        accept: Iterable[tuple[str, int]] = (),
        accept_by: str = "",
        ahead: str = "",
        keep_ahead: Callable[[str], None] = lambda kept: None,
    ) -> None:
        self._source = source
        self._server = server
        self._checkpoint = start
        self._start = start.position
        self._fingerprint = start.fingerprint
        self._captures = captures
        self._replica_host = replica_host
        self._policy = policy
        self._block_bytes = min(block_bytes, (limits or Limits()).block_bytes)
        self._reader: LogReader | None = None
        self._answers = answers = SourceAnswers(source, server, start.position.timeline)
        self._glance = LogGlance(source, server)
        self._undone = undone
        command = accept_by or f"lockstep extract PIPELINE --source {source.name} --accept"
        self._accepted = AcceptedPlaces(source.name, start.position.timeline, accept, command)
        read_ahead = LogAhead(self._glance.statements_after, ahead, keep_ahead)
        self._cascades = Cascades(
            captures, answers.foreign_keys, answers.end_of_log, answers.now_us,
            lambda: answers.require_seen_cascades(captures, policy),
        )  # fmt: skip
        self._history = SchemaHistory(
            history, answers.definition_if_captured, read_ahead, answers.end_of_log, answers.defaults, excludes
        )
        self._tables = tables = TableRegistry(captures, answers.definition, isolated, self._history)
        self._reach = StatementReach(tables, answers.connection, read_ahead, answers.end_of_log)
        self._assembler = self._assemble(self._start, tables)
        self._fast_path = FastPath(self._assembler, tables)
        self._feeding: Iterator[Block] = iter(())
        """Blocks still in the received bytes: a caller that leaves `blocks` midway continues here."""
        self._backoff = Backoff(source.reconnect_s)
        self._resume_s = 0.0
        self._verify_s = 0.0
        self._names_logged = True
        self._bent_at: Position | None = None
        self._in_order = True
        self.position = self._start
        """After the last block that left."""
        self.fence: Position | None = None
        """A block that reaches it leaves at once, as no caller waits for more. Any thread may set it."""
        self.answered = False
        """Whether the server has sent any part of the log: it can be read."""
        self.losses = 0
        """How many lost connections were retried."""

    def require_accepted(self) -> None:
        """Raises UsageError (usage.argument) where a position to be accepted did not come."""
        self._accepted.require_used()

    def __enter__(self) -> SourceStream:
        self._reader = self._open(self._start, binlog_files(self._answers.connection()))
        lower_case = lower_case_names(self._answers.connection())
        self._assembler.lower_case = self._reach.lower_case = self._history.lower_case = lower_case
        self._cascades.open(logged=logs_cascades(self._answers.connection()), lower_case=lower_case)
        self._leave_out_united()
        self._begin_history()
        return self

    def _leave_out_united(self) -> None:
        for merge, united in united_tables(self._answers.connection()).items():
            for name in united:
                if self._tables.captures(*name):
                    self._assembler.leave_out(name, united_table(name, merge, self._source.name))

    def _begin_history(self) -> None:
        control, history = self._answers.connection(), self._history
        metadata, image = query(control, "SELECT @@GLOBAL.binlog_row_metadata, @@GLOBAL.binlog_row_image")[0]
        history.early_defaults = image != "FULL"
        self._names_logged = metadata == "FULL"
        history.early = metadata != "FULL" or history.early_defaults
        # Just before the start: the statement at the start may define a table.
        point = LogPoint(self._start.seq - 1, self._start)
        history.begin(table_schemas(control, self._tables.captures), point)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self._disconnect()

    def _leave(self) -> None:
        """Makes the server end the stream now; otherwise it would notice only at its next write, and keep our server_id
        and its open log file until then. Not after an error that may mean that the server hangs."""
        if self._reader is None or not self._answers.connected or not self._in_order:
            return
        with suppress(LockstepError, pymysql.err.MySQLError, OSError):
            replica_identity.end_connection(self._answers.connection(), self._reader.connection_id)

    def _disconnect(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._answers.close()

    def blocks(self, stop: Callable[[], bool]) -> Iterator[Block]:
        """Blocks in stream order until `stop()` is true; call again to continue where it left off.

        Raises RetryLater (connection.unreachable) when the source's `reconnect_s` is over, or
        at once when pieces of the open transaction have already left; DataAtRisk and Refused as the log or the server
        demand. Whole transactions that were read before such an error leave first.
        """
        assembler = self._assembler
        due_s = 0.0
        while not stop():
            if self._reader is None and time.monotonic() < self._resume_s:
                time.sleep(POLL_S)
                continue
            try:
                if self._reader is None:
                    self._reader = self._open_again()
                    self._in_order = True
                yield from self._fed()
                self._verify()
                came = self._reader.receive(POLL_S)
                self._feeding = self._fast_path.feed(self._reader.framer)
                yield from self._fed()
                self.answered = self.answered or came
            except Exception as error:
                self._in_order = False
                yield from self._flushed()
                if not isinstance(error, LockstepError) or not self._can_go_on(error):
                    raise
                continue
            self._backoff.reached(assembler.builder.begin.number, assembler.reached)
            now_s = time.monotonic()
            if not assembler.builder:
                due_s = now_s + FLUSH_S
            elif not came or now_s >= due_s or self._at_fence():
                yield from self._flushed()
                due_s = now_s + FLUSH_S
        yield from self._flushed()

    def _verify(self) -> None:
        """Checks at intervals that no table was altered without a log entry. Isolates it, or raises
        source.incomplete_rows."""
        if self._names_logged or time.monotonic() < self._verify_s:
            return
        self._verify_s = time.monotonic() + VERIFY_S
        point = self._assembler.log_point
        now = table_schemas(self._answers.connection(), self._tables.captures)
        for name, error in self._history.unexplained(now, point):
            self._assembler.leave_out(name, error)

    def _at_fence(self) -> bool:
        fence, builder = self.fence, self._assembler.builder
        return fence is not None and builder.begin < fence <= replace(builder.begin, offset=builder.end)

    def _fed(self) -> Iterator[Block]:
        # Not `yield from`: it would close the generator with us when our caller leaves.
        for block in self._feeding:
            yield self._handed_on(block)

    def _flushed(self) -> Iterator[Block]:
        block = self._assembler.flush()
        if block is not None:
            yield self._handed_on(block)

    def _handed_on(self, block: Block) -> Block:
        self.position = block.end
        self._fingerprint = block.fingerprint(self._fingerprint)
        return block

    # The connection

    def _open(self, begin: Position, files: Sequence[BinlogFile]) -> LogReader:
        """Opens the log if it is the known one. A log that cannot be read where it was read before is not; it is read
        twice, as bytes may be damaged in transit."""
        source, known = self._source, self._fingerprint
        if known is not None and known.file not in [file.name for file in files]:
            # Of a file that ended right before us, purged since.
            self._require_proven_by_gtids(begin, files, known)
            known = None
        for again in (True, False):
            try:
                return LogReader(
                    self._server, begin, source=source.name, server_id=source.server_id, known=known,
                    heartbeat_s=source.heartbeat_s, read_timeout_s=source.read_timeout_s, host=self._replica_host,
                )  # fmt: skip
            except (DamagedBytes, NoEventHere) as error:
                if known is None:
                    raise
                if not again:
                    raise source_faults.history_changed(
                        f"{known.file} cannot be read from {known.begin} on: {error.what}", f"{source.name}, {begin}"
                    ) from error
        raise AssertionError("unreachable")

    def _require_proven_by_gtids(self, begin: Position, files: Sequence[BinlogFile], known: Fingerprint) -> None:
        """Where the file before us is gone, that ours says that exactly what was read was executed before it.

        Nothing else tells it from a file of the same name in a log that began again: its first event is not known.
        """
        control, checkpoint = self._answers.connection(), self._checkpoint
        head = Search(self._source, control, self._server, files, facts(control)).head(begin.file)
        before, read = GtidSet.parse(head.previous), GtidSet.parse(checkpoint.gtid_set)
        same = before.contains(read) and read.contains(before)
        if begin != checkpoint.position or not checkpoint.gtid_set or not same:
            raise source_faults.history_changed(
                f"{known.file} is purged, so that it cannot be compared with what was read, and {begin.file} does not "
                f"prove itself by GTIDs (before it {head.previous or 'none'}, read {checkpoint.gtid_set or 'none'})",
                f"{self._source.name}, {begin}",
            )
        log.info("%s: %s is purged; %s is proven by its GTIDs", self._source.name, known.file, begin.file)

    def _can_go_on(self, error: LockstepError) -> bool:
        """After an error: drops the connection and waits before the next; False when the error is final."""
        # A log that is reset under a stream ends the stream with some read error: connecting again compares the logs.
        once = isinstance(error, DamagedBytes | NoEventHere)
        if not once and not isinstance(error, ConnectionLost):
            return False
        place = self._assembler.rewind()
        if place is None or (once and place == self._bent_at):
            return False
        if once:
            self._bent_at = place
        pause_s = self._backoff.pause_s()
        if pause_s is None:
            log.error("%s: giving up after %g s (reconnect_s)", self._source.name, self._source.reconnect_s)
            return False
        self._disconnect()
        self.losses += 1
        self._resume_s = time.monotonic() + pause_s
        log.warning("%s: trying again in %.1f s, from %s: %s", self._source.name, pause_s, place, error)
        return True

    def _open_again(self) -> LogReader:
        """Reopens where the last whole transaction ended, if server and log are still the ones that were read.

        Raises what connect, require_available, require_free_server_id and LogReader do.
        """
        place = self._assembler.builder.begin
        control = self._answers.connection()
        here = replace(self._checkpoint, position=place)
        known = facts(control)
        files = binlog_files(control)
        require_available(here, files, known, control, self._source)
        require_free_server_id(known.without_replica(self._replica_host), self._source)
        reader = self._open(place, files)
        log.info("%s: reconnected, continuing from %s", self._source.name, place)
        return reader

    def _assemble(self, begin: Position, tables: TableRegistry, *, past: bool = False) -> TransactionAssembler:
        # What is past was judged when it was first read.
        policy = replace(self._policy, on_unlogged_change="record") if past else self._policy
        return TransactionAssembler(
            self._source.name, begin, tables, policy, reach=self._reach.of,
            prepared=None if past else self._prepared, undone=self._undone, block_bytes=self._block_bytes,
            accepted=None if past else self._accepted, cascades=None if past else self._cascades,
        )  # fmt: skip

    def _prepared(self) -> Mapping[str, SpillableChanges]:
        """XA transactions that were prepared but not ended before this stream began: reads the earlier log again."""
        source = self._source
        log.info("%s: searching the log before %s for prepared XA transactions", source.name, self._start)
        oldest = binlog_files(self._answers.connection())[0].name
        begin = Position(self._start.timeline, oldest, FIRST_OFFSET)
        past = self._assemble(
            begin,
            TableRegistry(self._captures, self._answers.definition, self._tables.isolated, self._history),
            past=True,
        )
        past.mariadb = self._assembler.mariadb
        past.lower_case = self._assembler.lower_case
        with closing(self._glance.events_after(begin)) as events:
            for event in events:
                if event.start >= 0 and Position(begin.timeline, event.file, event.start) >= self._start:
                    break
                for _ in past.feed(event):
                    pass
                past.discard()
        return past.prepared.changes
